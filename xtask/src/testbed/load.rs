//! A client that does not slow down when the server does.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use super::client::Client;
use super::cpu;
use super::namespace::Namespace;
use super::outcome::Outcome;
use super::schedule::Schedule;

/// When connections are attempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At fixed times, however the server fares.
    Open {
        /// Connections per second.
        per_second: u32,
    },
    /// As soon as an earlier one is done, so that this many are always under way.
    Closed {
        /// Concurrent connections.
        connections: usize,
    },
    /// As [`Pace::Open`], with a rate that changes; set the load's `duration` to the schedule's.
    Steps(Schedule),
}

/// A load of fresh connections, each with one HTTP request, on a [`super::Server`].
///
/// Latency counts from the intended start, so that a client which is held up does not hide what its users
/// would have waited. A client whose patience ends closes its socket as browsers do, with FIN: the server
/// cannot tell and answers anyway.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where the server listens.
    pub target: SocketAddr,
    /// Addresses to connect from, in turn; none leaves it to the kernel. One address is good for some 28,000
    /// connections a minute.
    pub sources: Vec<IpAddr>,
    /// When connections are attempted.
    pub pace: Pace,
    /// For how long connections are attempted; those under way then are still seen to their end.
    pub duration: Duration,
    /// From the intended start to giving up.
    pub patience: Duration,
    /// The CPU the client stays on.
    pub cpu: Option<usize>,
}

/// Counts of a load while it runs, and the way to stop it.
#[derive(Debug, Default)]
pub struct Live {
    /// Set it to end the load early, with [`io::ErrorKind::Interrupted`].
    pub stop: Arc<AtomicBool>,
    /// Connections attempted.
    pub offered: AtomicU64,
    /// Complete answers in time.
    pub useful: AtomicU64,
    /// Connections refused.
    pub refused: AtomicU64,
    /// Connections without an answer in time.
    pub gave_up: AtomicU64,
}

impl Load {
    /// Ten seconds, a patience of 250 ms, from the address that the kernel chooses, on any CPU.
    #[must_use]
    pub fn new(target: SocketAddr, pace: Pace) -> Self {
        Self {
            target,
            sources: Vec::new(),
            pace,
            duration: Duration::from_secs(10),
            patience: Duration::from_millis(250),
            cpu: None,
        }
    }

    /// Runs the load from within `namespace`, on one thread, until the last connection is done.
    ///
    /// # Errors
    /// When the client cannot work at all, or was stopped. What happens to a connection is no error but
    /// counted.
    pub fn run_in(&self, namespace: &Namespace, live: &Live) -> io::Result<Outcome> {
        namespace.enter(|| self.run(live))?
    }

    /// As [`Load::run_in`], on the calling thread and in its namespace; pins the thread if a CPU is given.
    ///
    /// # Errors
    /// As [`Load::run_in`].
    pub fn run(&self, live: &Live) -> io::Result<Outcome> {
        cpu::be_punctual(self.cpu)?;
        Client::new(self, live)?.run()
    }

    /// When the connection after `offered` earlier ones shall start, counted from the start of the load;
    /// `None` when it waits for another to end.
    pub(super) fn intended(&self, offered: u64, under_way: usize, now: Duration) -> Option<Duration> {
        match &self.pace {
            Pace::Open { per_second } => {
                let ns = u128::from(offered) * 1_000_000_000 / u128::from((*per_second).max(1));
                Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
            }
            Pace::Closed { connections } => (under_way < *connections).then_some(now),
            Pace::Steps(schedule) => Some(schedule.intended(offered).unwrap_or(Duration::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::schedule::Step;
    use super::*;

    fn load(pace: Pace) -> Load {
        Load::new(([127, 0, 0, 1], 1).into(), pace)
    }

    #[test]
    fn an_open_load_keeps_its_times_whatever_is_under_way() {
        let load = load(Pace::Open { per_second: 4000 });
        for (under_way, now) in [(0, Duration::ZERO), (10_000, Duration::from_secs(9))] {
            assert_eq!(load.intended(0, under_way, now), Some(Duration::ZERO));
            assert_eq!(load.intended(1, under_way, now), Some(Duration::from_micros(250)));
            assert_eq!(load.intended(40_000, under_way, now), Some(Duration::from_secs(10)));
        }
    }

    #[test]
    fn a_load_in_steps_ends_with_the_last() {
        let step = Step { per_second: 10, duration: Duration::from_secs(1) };
        let load = load(Pace::Steps(Schedule::new([step])));
        assert_eq!(load.intended(9, 0, Duration::ZERO), Some(Duration::from_millis(900)));
        assert_eq!(load.intended(10, 0, Duration::ZERO), Some(Duration::MAX));
    }

    #[test]
    fn a_closed_load_waits_for_a_place() {
        let load = load(Pace::Closed { connections: 2 });
        let now = Duration::from_millis(7);
        assert_eq!(load.intended(5, 1, now), Some(now));
        assert_eq!(load.intended(5, 2, now), None);
    }

    proptest! {
        #[test]
        fn an_open_load_attempts_its_rate_in_every_second(per_second in 1_u32..200_000, second in 0_u64..1000) {
            let load = load(Pace::Open { per_second });
            let first = u64::from(per_second) * second;
            let at = |offered| load.intended(offered, 0, Duration::ZERO).unwrap();
            prop_assert_eq!(at(first), Duration::from_secs(second));
            prop_assert!(at(first + u64::from(per_second) - 1) < Duration::from_secs(second + 1));
        }
    }
}
