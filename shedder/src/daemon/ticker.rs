//! The beat of the control loop: a timer of the kernel's, one wake-up for each tick.
//!
//! The runtime's own timers share one for all of them, which takes three wake-ups for each tick: one halfway, where its
//! wheel turns, and one to learn of the next timer.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Wakes its waiter at regular times; times that went by while nobody waited are one.
#[derive(Debug)]
pub(super) struct Ticker {
    timer: AsyncFd<OwnedFd>,
}

impl Ticker {
    /// Begins now; the first tick is over after one interval, which is not zero. On a runtime.
    pub(super) fn new(interval: Duration) -> io::Result<Self> {
        let interval = Timespec::try_from(interval).map_err(|_| io::ErrorKind::InvalidInput)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let times = Itimerspec { it_interval: interval, it_value: interval };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        // SAFETY: an `OwnedFd` keeps its descriptor open and the same until it is dropped.
        #[expect(unsafe_code, reason = "the library cannot know that of a type")]
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?;
        Ok(Self { timer })
    }

    /// Waits for the next tick. Loses none where the future is dropped.
    pub(super) async fn tick(&self) -> io::Result<()> {
        loop {
            let mut ready = self.timer.readable().await?;
            let mut expirations = [0; size_of::<u64>()];
            match ready.try_io(|timer| Ok(rustix::io::read(timer, &mut expirations)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => {
                    // The next time over is news again.
                    ready.clear_ready();
                    return read.map(drop);
                }
                // It was not over yet.
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::clock;

    const INTERVAL: Duration = Duration::from_millis(20);

    fn on_a_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .unwrap()
            .block_on(test);
    }

    #[test]
    fn ticks_come_at_the_interval_and_not_before() {
        on_a_runtime(async {
            let began = clock::monotonic();
            let ticker = Ticker::new(INTERVAL).unwrap();
            for tick in 1..=5 {
                ticker.tick().await.unwrap();
                assert!(clock::monotonic() - began >= INTERVAL * tick);
            }
        });
    }

    #[test]
    fn what_was_missed_is_one_tick_and_the_beat_stays() {
        on_a_runtime(async {
            let began = clock::monotonic();
            let ticker = Ticker::new(INTERVAL).unwrap();
            std::thread::sleep(INTERVAL * 3 + INTERVAL / 2);
            ticker.tick().await.unwrap();
            let late = clock::monotonic();
            ticker.tick().await.unwrap();
            // The next one is a multiple of the interval after the beginning, not an interval after the late one.
            let beats = (clock::monotonic() - began).as_nanos() / INTERVAL.as_nanos();
            assert!(beats > (late - began).as_nanos() / INTERVAL.as_nanos(), "{beats}");
        });
    }

    #[test]
    fn a_tick_is_not_lost_with_its_waiter() {
        on_a_runtime(async {
            let ticker = Ticker::new(INTERVAL).unwrap();
            tokio::select! {
                biased;
                _ = ticker.tick() => panic!("it is not over yet"),
                () = std::future::ready(()) => {}
            }
            ticker.tick().await.unwrap();
        });
    }
}
