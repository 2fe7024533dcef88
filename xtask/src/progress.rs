//! A line that lives while a load runs.

use std::io::{IsTerminal, Write, stderr};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use xtask::testbed::Live;

const ON_TERMINAL: Duration = Duration::from_millis(200);
/// A log wants fewer lines.
const IN_LOG: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);

/// Runs `work` and shows meanwhile what `live` counts.
pub(crate) fn shown<T: Send>(
    name: &str,
    duration: Duration,
    live: &Live,
    work: impl FnOnce() -> T + Send,
) -> T {
    let terminal = stderr().is_terminal();
    let every = if terminal { ON_TERMINAL } else { IN_LOG };
    let show = |elapsed: Duration| {
        let line = line(name, elapsed.min(duration), duration, live);
        let (before, after) = if terminal { ("\r", "\x1b[K") } else { ("", "\n") };
        // Nobody to show it to is no reason to stop.
        write!(stderr(), "{before}{line}{after}").ok();
    };
    let done = thread::scope(|scope| {
        let worker = scope.spawn(work);
        let mut elapsed = Duration::ZERO;
        let mut shown = Duration::ZERO;
        while !worker.is_finished() {
            thread::sleep(STEP);
            elapsed += STEP;
            if elapsed - shown >= every {
                shown = elapsed;
                show(elapsed);
            }
        }
        worker.join()
    });
    show(duration);
    if terminal {
        eprintln!();
    }
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

fn line(name: &str, elapsed: Duration, duration: Duration, live: &Live) -> String {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    format!(
        "{name}: {:4.1} of {} s · {} offered · {} useful · {} refused · {} gave up",
        elapsed.as_secs_f64(),
        duration.as_secs(),
        count(&live.offered),
        count(&live.useful),
        count(&live.refused),
        count(&live.gave_up),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_counted() {
        let live = Live::default();
        live.offered.store(40, Ordering::Relaxed);
        live.useful.store(16, Ordering::Relaxed);
        live.refused.store(20, Ordering::Relaxed);
        live.gave_up.store(4, Ordering::Relaxed);
        assert_eq!(
            line("with shedder", Duration::from_millis(1500), Duration::from_secs(10), &live),
            "with shedder:  1.5 of 10 s · 40 offered · 16 useful · 20 refused · 4 gave up"
        );
    }

    #[test]
    fn what_the_work_gives_comes_back() {
        assert_eq!(shown("test", Duration::ZERO, &Live::default(), || 7), 7);
    }
}
