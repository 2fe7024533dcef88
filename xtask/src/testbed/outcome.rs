//! What became of a load.

use std::collections::BTreeMap;
use std::time::Duration;

use super::record::{Fate, Record};

/// What became of each connection that a [`super::Load`] attempted.
///
/// `offered` is the sum of [`Outcome::useful`], `refused`, `gave_up` and all that `failed`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Connections attempted.
    pub offered: u64,
    /// Connections refused by RST, at once or later.
    pub refused: u64,
    /// Connections without a complete answer when patience ended.
    pub gave_up: u64,
    /// Those among them that were never even established.
    pub gave_up_unconnected: u64,
    /// Everything else, by what the kernel said.
    pub failed: BTreeMap<String, u64>,
    /// For how long connections were attempted.
    pub duration: Duration,
    /// How far the client itself was ever behind its schedule. Latencies count from the schedule all the same.
    pub lag_max: Duration,
    /// Every attempt, in the order in which they ended.
    pub records: Vec<Record>,
    /// Of useful answers, from the intended start, ascending.
    latencies: Vec<Duration>,
}

impl Outcome {
    /// Nothing yet.
    pub(crate) fn over(duration: Duration) -> Self {
        Self { duration, ..Self::default() }
    }

    /// Takes the attempts in, and sorts the latencies of the useful ones.
    pub(crate) fn with_records(mut self, records: Vec<Record>) -> Self {
        let useful = records.iter().filter(|record| record.fate == Fate::Useful);
        self.latencies = useful.map(Record::latency).collect();
        self.latencies.sort_unstable();
        self.records = records;
        self
    }

    /// Complete answers in time.
    #[must_use]
    pub fn useful(&self) -> u64 {
        u64::try_from(self.latencies.len()).unwrap_or(u64::MAX)
    }

    /// [`Outcome::useful`] over the time in which connections were attempted.
    #[must_use]
    pub fn useful_per_second(&self) -> f64 {
        per_second(self.useful(), self.duration)
    }

    /// Connections attempted per second.
    #[must_use]
    pub fn offered_per_second(&self) -> f64 {
        per_second(self.offered, self.duration)
    }

    /// The latency that `percent` of the useful answers did not exceed (nearest rank, 1..=100); `None` when
    /// there was none.
    #[must_use]
    pub fn latency(&self, percent: u8) -> Option<Duration> {
        let rank = (self.latencies.len() * usize::from(percent.min(100))).div_ceil(100);
        self.latencies.get(rank.max(1) - 1).copied()
    }
}

fn per_second(count: u64, duration: Duration) -> f64 {
    if duration.is_zero() {
        return 0.0;
    }
    // 2^53 connections are out of reach.
    count as f64 / duration.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn outcome(latencies: impl IntoIterator<Item = u64>) -> Outcome {
        let useful = |ms| Record {
            source: 0,
            intended: Duration::from_secs(1),
            started: Duration::from_secs(1),
            ended: Duration::from_secs(1) + Duration::from_millis(ms),
            fate: Fate::Useful,
        };
        let refused = Record { fate: Fate::Refused, ..useful(7) };
        let records = latencies.into_iter().map(useful).chain([refused]).collect();
        Outcome::over(Duration::from_secs(2)).with_records(records)
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let hundred = outcome((1..=100).rev());
        for percent in [1, 50, 99, 100] {
            assert_eq!(hundred.latency(percent), Some(Duration::from_millis(percent.into())));
        }
        let three = outcome([30, 10, 20]);
        assert_eq!(three.latency(50), Some(Duration::from_millis(20)));
        assert_eq!(three.latency(99), Some(Duration::from_millis(30)));
    }

    #[test]
    fn nothing_useful_has_no_percentile() {
        assert_eq!(outcome([]).latency(99), None);
        assert_eq!(outcome([]).useful_per_second(), 0.0);
        assert_eq!(Outcome::default().useful_per_second(), 0.0);
    }

    #[test]
    fn rates_are_over_the_time_offered() {
        assert_eq!(outcome([1, 2, 3]).useful_per_second(), 1.5);
    }

    proptest! {
        #[test]
        fn a_percentile_is_a_latency_that_so_many_do_not_exceed(
            latencies in prop::collection::vec(0_u64..1000, 1..200),
            percent in 1_u8..=100,
        ) {
            let limit = outcome(latencies.clone()).latency(percent).unwrap();
            let within = latencies.iter().filter(|ms| Duration::from_millis(**ms) <= limit).count();
            prop_assert!(within * 100 >= latencies.len() * usize::from(percent));
            prop_assert!(latencies.contains(&u64::try_from(limit.as_millis()).unwrap()));
        }
    }
}
