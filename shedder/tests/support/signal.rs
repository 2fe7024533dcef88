//! A signal of the test's own: a number in a file, written anew all the time, as an application would.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

/// How often it is written, far below any `stale_after`.
const PERIOD: Duration = Duration::from_millis(50);

/// The file and the thread that writes it; both go on drop.
pub struct SignalFile {
    path: PathBuf,
    text: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

impl SignalFile {
    /// Holds `text` from now on.
    pub fn new(path: &Path, text: &str) -> Self {
        write(path, Some(text));
        let (shared, stop) = (Arc::new(Mutex::new(Some(text.to_owned()))), Arc::new(AtomicBool::new(false)));
        let writer = {
            let (path, text, stop) = (path.to_owned(), Arc::clone(&shared), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    // Under the lock, so that nothing old is written after `set`.
                    write(&path, text.lock().unwrap().as_deref());
                    sleep(PERIOD);
                }
            }
        };
        Self { path: path.to_owned(), text: shared, stop, writer: Some(thread::spawn(writer)) }
    }

    /// Replaces the file atomically.
    pub fn set(&self, text: &str) {
        let mut shared = self.text.lock().unwrap();
        *shared = Some(text.to_owned());
        write(&self.path, shared.as_deref());
    }

    /// Removes the file.
    pub fn vanish(&self) {
        let mut shared = self.text.lock().unwrap();
        *shared = None;
        write(&self.path, None);
    }
}

fn write(path: &Path, text: Option<&str>) {
    match text {
        Some(text) => {
            let unfinished = path.with_extension("new");
            fs::write(&unfinished, text).unwrap();
            fs::rename(&unfinished, path).unwrap();
        }
        None => drop(fs::remove_file(path)),
    }
}

impl Drop for SignalFile {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
        drop(fs::remove_file(&self.path));
    }
}

/// `[signals.NAME]` of a file, with `moderate`, `high` and `emergency` entered at 1, 2, 3 and left at half a unit less.
pub fn section(name: &str, path: &Path, scope: &str) -> String {
    format!(
        "[signals.{name}]\nsource = \"file\"\npath = \"{}\"\nscope = \"{scope}\"\n\
         moderate = {{ enter = 1.0, exit = 0.5 }}\nhigh = {{ enter = 2.0, exit = 1.5 }}\n\
         emergency = {{ enter = 3.0, exit = 2.5 }}\n",
        path.display()
    )
}
