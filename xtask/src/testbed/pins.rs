//! Directories in bpffs that go when their value goes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) const BPFFS: &str = "/sys/fs/bpf";

/// The path of a directory in bpffs that nobody else uses. Whoever pins there makes it; on drop it goes with
/// all that is in it.
#[derive(Debug)]
pub struct PinDirectory {
    path: PathBuf,
}

impl PinDirectory {
    /// `/sys/fs/bpf/shedder-<label>-<pid>-<n>`; the label must hold no number of its own.
    #[must_use]
    pub fn new(label: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("shedder-{label}-{}-{number}", std::process::id());
        Self { path: Path::new(BPFFS).join(name) }
    }

    /// Where.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PinDirectory {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("remove {}: {error}", self.path.display());
        }
    }
}

/// Removes a pin or a directory of pins; one that is not there is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
