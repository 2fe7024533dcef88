//! Making the count of live connections true where it went wrong, and where the kernel cannot count connections
//! that are older than the counting.

use std::collections::BTreeMap;

/// First and last port of a policy.
type PortRange = (u16, u16);

/// What was seen of one policy around a walk through the socket table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    /// Live connections that the walk found.
    pub(super) found: u64,
    /// Connections counted by the kernel.
    pub(super) counted: u64,
    /// Nothing was judged, opened or closed during the walk.
    pub(super) quiet: bool,
    /// The kernel's count includes the connections that are older than the counting.
    pub(super) recounted: bool,
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
    /// At the first look the kernel's own counting is believed if it includes what is older; else the socket
    /// table, whatever moves. Later the counting is, unless the table twice shows the same difference while
    /// nothing moves: the table cannot be read at one moment, so while connections come and go it says little.
    ///
    /// The table also shows what this host itself opened from a port with a policy; a kernel that includes what
    /// is older is therefore corrected downwards only.
    pub(super) fn observe(&mut self, policy: PortRange, seen: Observation) -> Option<i64> {
        let most = if seen.recounted { 0 } else { i64::MAX };
        let difference = (signed(seen.found) - signed(seen.counted)).min(most);
        let Some(known) = self.policies.get_mut(&policy) else {
            let correction = difference.max(0);
            self.policies.insert(policy, Seen { correction, suspected: None });
            // Even 0 is news: the kernel may still have what an earlier daemon wrote.
            return Some(correction);
        };
        if !seen.quiet || difference == known.correction {
            known.suspected = None;
            return None;
        }
        if known.suspected != Some(difference) {
            known.suspected = Some(difference);
            return None;
        }
        *known = Seen { correction: difference, suspected: None };
        Some(difference)
    }

    /// Whether some correction stands or is suspected, so that the table should be looked at again soon.
    #[must_use]
    pub(super) fn is_restless(&self) -> bool {
        self.policies.values().any(|seen| seen.correction != 0 || seen.suspected.is_some())
    }

    /// Forgets policies that are no more.
    pub(super) fn keep(&mut self, policies: &[PortRange]) {
        self.policies.retain(|policy, _| policies.contains(policy));
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
        Observation { found, counted, quiet: true, recounted: false }
    }

    fn moving(found: u64, counted: u64) -> Observation {
        Observation { quiet: false, ..seen(found, counted) }
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
        let recounted = Observation { recounted: true, ..moving(7, 5) };
        assert_eq!(reconciler.observe(PORT, recounted), Some(0));
        assert!(!reconciler.is_restless());
        for _ in 0..3 {
            assert_eq!(reconciler.observe(PORT, Observation { quiet: true, ..recounted }), None);
        }
        let stuck = Observation { found: 4, quiet: true, ..recounted };
        assert_eq!(reconciler.observe(PORT, stuck), None);
        assert_eq!(reconciler.observe(PORT, stuck), Some(-1));
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
    fn a_policy_that_comes_back_is_new() {
        let mut reconciler = Reconciler::default();
        assert_eq!(reconciler.observe(PORT, seen(2, 0)), Some(2));
        reconciler.keep(&[]);
        assert!(reconciler.is_new(PORT));
        assert_eq!(reconciler.observe(PORT, seen(2, 0)), Some(2));
    }
}
