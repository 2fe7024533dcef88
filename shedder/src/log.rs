//! The daemon's log: lines on standard error, written by a thread of their own. Whoever does not read them, or a disk that
//! is full, neither stops the control loop nor ends the daemon.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written; more are lost, and their number is said.
const WAITING: usize = 1_024;

/// How long the end of the daemon waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Writes what is waiting when it is dropped.
#[derive(Debug)]
pub struct Log {
    lines: Lines,
}

/// Logs to standard error from now on, as the variable `RUST_LOG` says. Called once.
///
/// # Errors
///
/// No thread can be started.
pub fn start() -> io::Result<Log> {
    let lines = Lines::to(io::stderr())?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_writer(lines.clone())
        // It would tell of a line that could not be written in the same place, and panic.
        .log_internal_errors(false)
        .init();
    Ok(Log { lines })
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines.wait_until_written(LAST_LINES);
    }
}

/// Hands lines to the thread that writes them.
#[derive(Clone, Debug)]
struct Lines {
    queue: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

impl Lines {
    fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, entries) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let lost_by_writers = Arc::clone(&lost);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write(&entries, &lost_by_writers, out))?;
        Ok(Self { queue, lost })
    }

    fn wait_until_written(&self, patience: Duration) {
        let (written, is_written) = sync_channel(1);
        // A queue that is full is one that nobody reads.
        if self.queue.try_send(Entry::Flush(written)).is_ok() {
            let _in_time = is_written.recv_timeout(patience);
        }
    }
}

impl Write for Lines {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Entry::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Until the last sender is gone. There is no place to tell of what cannot be written.
fn write(entries: &Receiver<Entry>, lost: &AtomicU64, mut out: impl Write) {
    for entry in entries {
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _unwritten = writeln!(out, "{lost} lines of this log are lost: it was not read in time.");
        }
        match entry {
            Entry::Line(line) => {
                let _unwritten = out.write_all(&line);
            }
            Entry::Flush(written) => {
                let _unwritten = out.flush();
                let _gone = written.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Writes only when it may.
    struct Gate {
        open: Receiver<()>,
        text: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Once the sender is gone it stays open.
            let _gone = self.open.recv();
            self.text.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stands_still_keeps_nobody_waiting_and_hears_what_it_missed() {
        let (open, gate) = channel();
        let text = Arc::new(Mutex::new(Vec::new()));
        let mut lines = Lines::to(Gate { open: gate, text: Arc::clone(&text) }).unwrap();
        for number in 0..WAITING * 2 {
            lines.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        lines.wait_until_written(PATIENCE);
        assert!(text.lock().unwrap().is_empty());
        drop(open);
        // There is room once the thread goes on.
        let (written, is_written) = sync_channel(1);
        lines.queue.send(Entry::Flush(written)).unwrap();
        is_written.recv_timeout(PATIENCE).unwrap();
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        let (told, written): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.contains("lost"));
        let first: Vec<String> = (0..written.len()).map(|number| number.to_string()).collect();
        assert_eq!(written, first, "the first ones, in their order");
        let lost: usize =
            told.iter().map(|line| line.split(' ').next().unwrap().parse::<usize>().unwrap()).sum();
        assert_eq!(written.len() + lost, WAITING * 2, "{told:?}");
    }

    #[test]
    fn what_cannot_be_written_is_no_end() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut lines = Lines::to(full).unwrap();
        for _ in 0..3 {
            lines.write_all(b"line\n").unwrap();
            lines.wait_until_written(PATIENCE);
        }
    }
}
