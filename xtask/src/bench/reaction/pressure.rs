//! When a stall is long enough for its threshold, by the kernel's own count.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::watch::now;

/// Not faster: the kernel weighs what was since the last look, whosever, by whole jiffies of up to 10 ms, so a file
/// that is read more often stands still.
const LOOK: Duration = Duration::from_millis(20);

/// A pressure file of a control group and how much each of its lines must grow.
pub(super) struct Threshold {
    pub(super) file: &'static str,
    /// `some` or `full`, with the default threshold of level `moderate` over its window.
    pub(super) lines: &'static [(&'static str, Duration)],
}

impl Threshold {
    /// Looks until one of the lines has grown enough; `None` when `done` comes first.
    pub(super) fn reached(&self, cgroup: &Path, done: &AtomicBool) -> std::io::Result<Option<Instant>> {
        let path = cgroup.join(self.file);
        let before = fs::read_to_string(&path)?;
        while !done.load(Ordering::Relaxed) {
            let text = fs::read_to_string(&path)?;
            let at = now();
            let enough = |(line, least): &(&str, Duration)| {
                let grown = total(&text, line).zip(total(&before, line));
                grown.is_some_and(|(after, before)| after.saturating_sub(before) >= *least)
            };
            if self.lines.iter().any(enough) {
                return Ok(Some(at));
            }
            thread::sleep(LOOK);
        }
        Ok(None)
    }
}

fn total(text: &str, kind: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
    let total = line.split(' ').find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &[(&str, Duration)] = &[("full", Duration::from_millis(20))];

    #[test]
    fn totals_are_those_of_their_line() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0.00 total=7\n";
        assert_eq!(total(text, "some"), Some(Duration::from_micros(2500)));
        assert_eq!(total(text, "full"), Some(Duration::from_micros(7)));
        assert_eq!(total("some avg10=0.00", "some"), None);
    }

    #[test]
    fn what_does_not_grow_is_not_reached() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("memory.pressure"), "full total=90000\n").unwrap();
        let threshold = Threshold { file: "memory.pressure", lines: LINES };
        assert_eq!(threshold.reached(directory.path(), &AtomicBool::new(true)).unwrap(), None);
        let missing = Threshold { file: "no.pressure", lines: LINES };
        assert!(missing.reached(directory.path(), &AtomicBool::new(true)).is_err());
    }
}
