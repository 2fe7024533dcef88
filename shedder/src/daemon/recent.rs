//! What happened at each port within the last seconds: differences of counters.

use std::collections::BTreeMap;
use std::time::Duration;

use shedder_common::class::Class;
use shedder_common::counters::{ClassCounters, PolicyCounters};
use shedder_common::gate::Gate;

use crate::datapath::Counters;
use crate::snapshot::Recent;

/// Least time between the two samples that are kept of each port: what is shown spans one to two of it.
const SPACING: Duration = Duration::from_secs(2);

/// First and last port of a policy.
type PortRange = (u16, u16);

/// Earlier counters of every port.
#[derive(Debug, Default)]
pub(super) struct Lately {
    ports: BTreeMap<PortRange, Samples>,
}

#[derive(Clone, Copy, Debug)]
struct Samples {
    older: Sample,
    newer: Sample,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    counters: PolicyCounters,
}

/// What happened at one port.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecentFacts {
    span: Duration,
    change: PolicyCounters,
}

impl Lately {
    /// Once per tick, with what has just been read.
    pub(super) fn update(&mut self, now: Duration, counters: &Counters) {
        self.ports.retain(|range, _| counters.policies.contains_key(range));
        for (range, reading) in &counters.policies {
            let sample = Sample { at: now, counters: reading.counters };
            let samples = self.ports.entry(*range).or_insert(Samples { older: sample, newer: sample });
            if now.saturating_sub(samples.newer.at) >= SPACING {
                samples.older = samples.newer;
                samples.newer = sample;
            }
        }
    }

    /// What happened at a port since the older sample.
    pub(super) fn of(&self, now: Duration, range: PortRange, counters: &Counters) -> RecentFacts {
        let (Some(samples), Some(reading)) = (self.ports.get(&range), counters.policies.get(&range)) else {
            return RecentFacts::default();
        };
        RecentFacts {
            span: now.saturating_sub(samples.older.at),
            change: change(&samples.older.counters, &reading.counters),
        }
    }
}

impl RecentFacts {
    /// As the snapshot shows it.
    pub(super) fn state(&self) -> Recent {
        if self.span.is_zero() {
            return Recent::default();
        }
        let seconds = self.span.as_secs_f64();
        let admitted: u64 = self.change.classes.iter().map(|class| class.admitted).sum();
        let waits: u64 = self.change.wait_buckets.iter().sum();
        Recent {
            seconds,
            admitted_per_second: admitted as f64 / seconds,
            wait_seconds: (waits > 0).then(|| self.change.wait_sum_us as f64 / 1e6 / waits as f64),
        }
    }

    /// Refusals of a class by gate name, without zeros.
    pub(super) fn refused(&self, class: Class) -> BTreeMap<String, u64> {
        let Some(change) = self.change.classes.get(class.index()) else { return BTreeMap::new() };
        let by_gate = change.shed.iter().zip(&change.would_shed).map(|(shed, would_shed)| shed + would_shed);
        let named = Gate::ALL.into_iter().map(|gate| gate.name().to_owned()).zip(by_gate);
        named.filter(|(_, count)| *count > 0).collect()
    }
}

/// What has been counted between two moments; nothing where the counters began anew.
fn change(before: &PolicyCounters, after: &PolicyCounters) -> PolicyCounters {
    let mut change = PolicyCounters::default();
    for (change, (before, after)) in change.classes.iter_mut().zip(before.classes.iter().zip(&after.classes))
    {
        *change = ClassCounters {
            admitted: after.admitted.saturating_sub(before.admitted),
            shed: differences(&before.shed, &after.shed),
            would_shed: differences(&before.would_shed, &after.would_shed),
            ..ClassCounters::default()
        };
    }
    change.wait_buckets = differences(&before.wait_buckets, &after.wait_buckets);
    change.wait_sum_us = after.wait_sum_us.saturating_sub(before.wait_sum_us);
    change
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
        lately.update(Duration::from_secs(1), &Counters::default());
        assert!(lately.ports.is_empty());
    }
}
