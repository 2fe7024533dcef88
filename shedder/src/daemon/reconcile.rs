//! Making the count of live connections true where it went wrong, and where the kernel cannot count connections
//! that are older than the counting.

use std::collections::BTreeMap;
use std::time::Duration;

/// How often the socket table is looked at, at most and at least.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A pause is so many times as long as the look before it: looking takes 0.025 % of a CPU.
const PAUSE_PER_LOOK: u32 = 4000;

use super::ranges::{PortRange, Ranges};

/// What was seen of one policy around a walk through the socket table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    /// Connections counted by the kernel before the walk.
    pub(super) counted_before: u64,
    /// Live connections that the walk found.
    pub(super) found: u64,
    /// Connections counted by the kernel after the walk.
    pub(super) counted_after: u64,
    /// Connections that may have been opened during the walk.
    pub(super) opened: u64,
    /// The kernel's count includes the connections that are older than the counting.
    pub(super) recounted: bool,
}

impl Observation {
    const fn is_quiet(&self) -> bool {
        self.counted_before == self.counted_after && self.opened == 0
    }

    /// Between which numbers the connections lie that are counted but are no more.
    ///
    /// What lived all the time was found, so with an excess *e*: found ≥ after − *e* − opened. What was found
    /// lived before or was opened, so: found ≤ before − *e* + opened.
    fn excess(&self) -> (i64, i64) {
        let (found, opened) = (signed(self.found), signed(self.opened));
        let least = signed(self.counted_after).saturating_sub(found).saturating_sub(opened).max(0);
        let most = signed(self.counted_before).saturating_sub(found).saturating_add(opened).max(least);
        (least, most)
    }
}

/// Decides what to add to the kernel's counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Reconciler {
    policies: BTreeMap<PortRange, Seen>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    correction: i64,
    /// A difference seen once while nothing moved; it is believed when it is seen again.
    suspected: Option<i64>,
}

impl Reconciler {
    /// The correction of a policy that the kernel should have from now on, where it changes.
    ///
    /// A kernel that includes what is older counts right, but for ends of connections that it did not show to
    /// the programs: it is corrected downwards, by what two looks in a row prove, however much moves. (The table
    /// also shows what this host itself opened from a port with a policy, so it proves nothing upwards.)
    ///
    /// Any other kernel is not believed at the first look, and the socket table is, whatever moves; later the
    /// table is believed when it twice shows the same difference while nothing moves.
    pub(super) fn observe(&mut self, policy: PortRange, seen: Observation) -> Option<i64> {
        let difference = signed(seen.found) - signed(seen.counted_after);
        let Some(known) = self.policies.get_mut(&policy) else {
            let correction = if seen.recounted { 0 } else { difference.max(0) };
            self.policies.insert(policy, Seen { correction, suspected: None });
            // Even 0 is news: the kernel may still have what an earlier daemon wrote.
            return Some(correction);
        };
        let wanted = if seen.recounted {
            let (least, most) = seen.excess();
            -known.correction.saturating_neg().clamp(least, most)
        } else if seen.is_quiet() {
            difference
        } else {
            known.correction
        };
        let change = wanted - known.correction;
        let Some(suspected) = known.suspected.take().filter(|_| change != 0) else {
            known.suspected = (change != 0).then_some(wanted);
            return None;
        };
        let before = suspected - known.correction;
        let agreed = if seen.recounted { before.signum() == change.signum() } else { before == change };
        if !agreed {
            known.suspected = Some(wanted);
            return None;
        }
        known.correction += if before.abs() < change.abs() { before } else { change };
        Some(known.correction)
    }

    /// How long to wait until the next look, when the last one took so long.
    #[must_use]
    pub(super) fn pause(&self, look: Duration) -> Duration {
        if self.is_restless() {
            SHORTEST_PAUSE
        } else {
            look.saturating_mul(PAUSE_PER_LOOK).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
        }
    }

    /// Whether the table should be looked at again soon: something is suspected, or connections that only the
    /// table shows are still there.
    fn is_restless(&self) -> bool {
        self.policies.values().any(|seen| seen.correction > 0 || seen.suspected.is_some())
    }

    /// Forgets policies that are no more.
    pub(super) fn keep(&mut self, policies: &Ranges) {
        self.policies.retain(|policy, _| policies.contains(*policy));
    }

    /// Whether a policy was never looked at.
    #[must_use]
    pub(super) fn is_new(&self, policy: PortRange) -> bool {
        !self.policies.contains_key(&policy)
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortRange = (80, 80);

    fn seen(found: u64, counted: u64) -> Observation {
        Observation { counted_before: counted, found, counted_after: counted, opened: 0, recounted: false }
    }

    fn moving(found: u64, counted: u64) -> Observation {
        Observation { opened: 5, ..seen(found, counted) }
    }

    fn recounted(seen: Observation) -> Observation {
        Observation { recounted: true, ..seen }
    }

    #[test]
    fn connections_older_than_the_counting_are_added_at_once_and_leave_one_by_one() {
        let mut reconciler = Reconciler::default();
        assert_eq!(reconciler.observe(PORT, moving(7, 1)), Some(6));
        assert!(reconciler.is_restless());
        // One of the seven closed; the kernel did not count it, so only the table shows it.
        assert_eq!(reconciler.observe(PORT, seen(6, 1)), None);
        assert_eq!(reconciler.observe(PORT, seen(6, 1)), Some(5));
        assert_eq!(reconciler.observe(PORT, seen(1, 1)), None);
        assert_eq!(reconciler.observe(PORT, seen(1, 1)), Some(0));
        assert!(!reconciler.is_restless());
    }

    #[test]
    fn a_kernel_that_has_recounted_is_believed_over_the_table_and_old_corrections() {
        let mut reconciler = Reconciler::default();
        for found in [7, 7, 8, 5] {
            let news = reconciler.observe(PORT, recounted(seen(found, 5)));
            assert!(news.is_none_or(|correction| correction == 0), "{news:?}");
        }
        assert!(!reconciler.is_restless());
    }

    #[test]
    fn a_recounted_kernel_is_corrected_by_what_two_looks_prove_while_all_moves() {
        let mut reconciler = Reconciler::default();
        assert_eq!(reconciler.observe(PORT, recounted(moving(100, 100))), Some(0));
        // Five may have been opened behind the walk: 103 proves nothing, 110 proves five, 107 two.
        assert_eq!(reconciler.observe(PORT, recounted(moving(100, 103))), None);
        assert!(!reconciler.is_restless());
        assert_eq!(reconciler.observe(PORT, recounted(moving(100, 110))), None);
        assert!(reconciler.is_restless());
        assert_eq!(reconciler.observe(PORT, recounted(moving(100, 107))), Some(-2));
        // In quiet the rest is seen, and what was too much goes back.
        assert_eq!(reconciler.observe(PORT, recounted(seen(50, 57))), None);
        assert_eq!(reconciler.observe(PORT, recounted(seen(50, 57))), Some(-7));
        assert!(!reconciler.is_restless());
        assert_eq!(reconciler.observe(PORT, recounted(seen(50, 53))), None);
        assert_eq!(reconciler.observe(PORT, recounted(seen(50, 53))), Some(-3));
    }

    proptest::proptest! {
        /// Some live all the time, some are opened or closed at any moment of the walk, some are counted but no
        /// more: what is proved is never wrong.
        #[test]
        fn the_excess_lies_where_an_observation_says(
            stay in 0_u64..50, excess in 0_u64..50,
            closed in proptest::collection::vec(proptest::bool::ANY, 0..20),
            opened in proptest::collection::vec(proptest::bool::ANY, 0..20),
            brief in proptest::collection::vec(proptest::bool::ANY, 0..20),
        ) {
            let count = |those: &[bool]| u64::try_from(those.len()).unwrap();
            let seen_of = |those: &[bool]| u64::try_from(those.iter().filter(|seen| **seen).count()).unwrap();
            let observation = Observation {
                counted_before: stay + count(&closed) + excess,
                found: stay + seen_of(&closed) + seen_of(&opened) + seen_of(&brief),
                counted_after: stay + count(&opened) + excess,
                opened: count(&opened) + count(&brief),
                recounted: true,
            };
            let (least, most) = observation.excess();
            proptest::prop_assert!((least..=most).contains(&i64::try_from(excess).unwrap()), "{least} {most}");
        }
    }

    #[test]
    fn a_moving_count_is_believed_over_the_table() {
        let mut reconciler = Reconciler::default();
        assert_eq!(reconciler.observe(PORT, seen(10, 10)), Some(0));
        for _ in 0..5 {
            assert_eq!(reconciler.observe(PORT, moving(14, 12)), None);
        }
        assert!(!reconciler.is_restless());
    }

    #[test]
    fn a_count_that_stays_too_high_is_corrected() {
        let mut reconciler = Reconciler::default();
        assert_eq!(reconciler.observe(PORT, seen(3, 3)), Some(0));
        assert_eq!(reconciler.observe(PORT, seen(0, 3)), None);
        assert_eq!(reconciler.observe(PORT, moving(0, 3)), None);
        assert_eq!(reconciler.observe(PORT, seen(0, 3)), None);
        assert_eq!(reconciler.observe(PORT, seen(0, 3)), Some(-3));
    }

    #[test]
    fn what_takes_long_is_done_seldom_unless_something_is_suspected() {
        let pause = |reconciler: &Reconciler, look_ms| reconciler.pause(Duration::from_millis(look_ms));
        let mut reconciler = Reconciler::default();
        assert_eq!(reconciler.observe(PORT, recounted(seen(3, 3))), Some(0));
        let pauses = [0, 1, 4, 60].map(|look_ms| pause(&reconciler, look_ms).as_secs());
        assert_eq!(pauses, [1, 4, 10, 10]);
        assert_eq!(reconciler.observe(PORT, recounted(seen(0, 3))), None);
        assert_eq!(pause(&reconciler, 60).as_secs(), 1);
        assert_eq!(reconciler.observe(PORT, recounted(seen(0, 3))), Some(-3));
        assert_eq!(pause(&reconciler, 60).as_secs(), 10);
    }

    #[test]
    fn a_policy_that_comes_back_is_new() {
        let mut reconciler = Reconciler::default();
        assert_eq!(reconciler.observe(PORT, seen(2, 0)), Some(2));
        reconciler.keep(&Ranges::default());
        assert!(reconciler.is_new(PORT));
        assert_eq!(reconciler.observe(PORT, seen(2, 0)), Some(2));
    }
}
