//! What happened at each port within the last seconds: differences of counters.

use std::collections::BTreeMap;
use std::time::Duration;

use shedder_common::class::{CLASSES, Class};
use shedder_common::counters::{PolicyCounters, WAIT_BUCKETS};
use shedder_common::gate::{GATES, Gate};

use super::ranges::PortRange;
use crate::datapath::Counters;
use crate::snapshot::Recent;

/// Least time between the two samples that are kept: what is shown spans one to two of it.
const SPACING: Duration = Duration::from_secs(2);

/// Earlier counters of every port.
#[derive(Debug, Default)]
pub(super) struct Lately {
    older: Sample,
    newer: Sample,
}

#[derive(Debug, Default)]
struct Sample {
    at: Duration,
    ports: BTreeMap<PortRange, Counts>,
}

/// As much of a policy's counters as is shown; there are two for each of a thousand policies.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// By class.
    admitted: [u64; CLASSES],
    /// By class and gate, in whichever mode.
    refused: [[u64; GATES]; CLASSES],
    wait_buckets: [u64; WAIT_BUCKETS],
    wait_sum_us: u64,
}

/// What happened at one port.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecentFacts {
    span: Duration,
    change: Counts,
}

impl Lately {
    /// Takes what has just been read, where it is time.
    pub(super) fn update(&mut self, now: Duration, counters: &Counters) {
        if !self.newer.ports.is_empty() && now.saturating_sub(self.newer.at) < SPACING {
            return;
        }
        let ports = counters.policies.iter().map(|(range, reading)| (*range, Counts::of(&reading.counters)));
        let newest = Sample { at: now, ports: ports.collect() };
        self.older = std::mem::replace(&mut self.newer, newest);
    }

    /// What happened at a port since the older sample; since the newer one where there was no such port before.
    pub(super) fn of(&self, now: Duration, range: PortRange, counters: &Counters) -> RecentFacts {
        let Some(reading) = counters.policies.get(&range) else { return RecentFacts::default() };
        let before = |sample: &Sample| Some((sample.at, *sample.ports.get(&range)?));
        let Some((at, before)) = before(&self.older).or_else(|| before(&self.newer)) else {
            return RecentFacts::default();
        };
        RecentFacts { span: now.saturating_sub(at), change: Counts::of(&reading.counters).since(&before) }
    }
}

impl RecentFacts {
    /// As the snapshot shows it.
    pub(super) fn state(&self) -> Recent {
        if self.span.is_zero() {
            return Recent::default();
        }
        let seconds = self.span.as_secs_f64();
        let admitted: u64 = self.change.admitted.iter().sum();
        let waits: u64 = self.change.wait_buckets.iter().sum();
        Recent {
            seconds,
            admitted_per_second: admitted as f64 / seconds,
            wait_seconds: (waits > 0).then(|| self.change.wait_sum_us as f64 / 1e6 / waits as f64),
        }
    }

    /// Refusals of a class by gate name, without zeros.
    pub(super) fn refused(&self, class: Class) -> BTreeMap<String, u64> {
        let by_gate = self.change.refused.get(class.index()).into_iter().flatten().copied();
        let named = Gate::ALL.into_iter().map(|gate| gate.name().to_owned()).zip(by_gate);
        named.filter(|(_, count)| *count > 0).collect()
    }
}

impl Counts {
    fn of(counters: &PolicyCounters) -> Self {
        let classes = &counters.classes;
        Self {
            admitted: classes.map(|class| class.admitted),
            refused: classes.map(|class| sums(&class.shed, &class.would_shed)),
            wait_buckets: counters.wait_buckets,
            wait_sum_us: counters.wait_sum_us,
        }
    }

    /// What has been counted since; nothing where the counters began anew.
    fn since(&self, before: &Self) -> Self {
        let mut refused = self.refused;
        for (after, before) in refused.iter_mut().zip(&before.refused) {
            *after = differences(before, after);
        }
        Self {
            admitted: differences(&before.admitted, &self.admitted),
            refused,
            wait_buckets: differences(&before.wait_buckets, &self.wait_buckets),
            wait_sum_us: self.wait_sum_us.saturating_sub(before.wait_sum_us),
        }
    }
}

fn sums<const N: usize>(one: &[u64; N], other: &[u64; N]) -> [u64; N] {
    let mut sums = *one;
    for (sum, other) in sums.iter_mut().zip(other) {
        *sum = sum.saturating_add(*other);
    }
    sums
}

fn differences<const N: usize>(before: &[u64; N], after: &[u64; N]) -> [u64; N] {
    let mut differences = *after;
    for (difference, before) in differences.iter_mut().zip(before) {
        *difference = difference.saturating_sub(*before);
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::PolicyReading;

    const RANGE: PortRange = (80, 80);

    fn counted(admitted: u64, refused: u64) -> Counters {
        let mut reading = PolicyReading::default();
        reading.counters.classes[Class::Batch.index()].admitted = admitted;
        reading.counters.classes[Class::Batch.index()].would_shed[Gate::Rate as usize] = refused;
        reading.counters.wait_buckets[3] = admitted;
        reading.counters.wait_sum_us = admitted * 6_000;
        Counters { policies: BTreeMap::from([(RANGE, reading)]), ..Counters::default() }
    }

    #[test]
    fn rates_follow_within_the_span() {
        let mut lately = Lately::default();
        assert_eq!(lately.of(Duration::ZERO, RANGE, &counted(9, 9)).state(), Recent::default());
        // A hundred per second for ten seconds, then nothing for four.
        let mut total = 5_000;
        for tick in 0..140_u32 {
            let now = Duration::from_millis(100) * tick;
            total += if tick < 100 { 10 } else { 0 };
            lately.update(now, &counted(total, total));
            let recent = lately.of(now, RANGE, &counted(total, total)).state();
            assert!(recent.seconds <= 4.0, "{recent:?}");
            if (20..100).contains(&tick) {
                assert!((recent.admitted_per_second - 100.0).abs() < 1e-6, "{recent:?}");
                assert!(recent.wait_seconds.is_some_and(|wait| (wait - 0.006).abs() < 1e-9), "{recent:?}");
            }
        }
        let now = Duration::from_secs(14);
        lately.update(now, &counted(total, total));
        let facts = lately.of(now, RANGE, &counted(total, total));
        assert_eq!((facts.state().admitted_per_second, facts.state().wait_seconds), (0.0, None));
        assert!(facts.refused(Class::Batch).is_empty());
        let facts = lately.of(now, RANGE, &counted(total, total + 3));
        assert_eq!(facts.refused(Class::Batch), BTreeMap::from([("rate".to_owned(), 3)]));
        assert!(facts.refused(Class::Core).is_empty());
    }

    #[test]
    fn counters_that_begin_anew_and_ports_that_go_are_no_news() {
        let mut lately = Lately::default();
        lately.update(Duration::ZERO, &counted(1_000, 1_000));
        let recent = lately.of(Duration::from_secs(1), RANGE, &counted(5, 5));
        assert_eq!(recent.state().admitted_per_second, 0.0);
        assert_eq!(lately.of(SPACING, RANGE, &Counters::default()).state(), Recent::default());
        for time in 1..=2 {
            lately.update(SPACING * time, &Counters::default());
        }
        assert_eq!(lately.of(SPACING * 3, RANGE, &counted(9, 9)).state(), Recent::default());
    }
}
