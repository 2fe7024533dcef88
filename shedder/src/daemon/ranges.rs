//! Which policy a port has.

use crate::config::model::PortPolicy;
pub(super) use crate::datapath::PortRange;

/// The ports of the policies, in their order. No two policies share a port.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Vec<PortRange>);

impl Ranges {
    pub(super) fn of(policies: &[PortPolicy]) -> Self {
        let mut ranges: Vec<PortRange> = policies.iter().map(range_of).collect();
        ranges.sort_unstable();
        Self(ranges)
    }

    /// The policy of a port, by its range.
    pub(super) fn find(&self, port: u16) -> Option<PortRange> {
        let after = self.0.partition_point(|(first, _)| *first <= port);
        let range = self.0.get(after.checked_sub(1)?)?;
        (port <= range.1).then_some(*range)
    }

    /// Whether a policy has exactly these ports.
    pub(super) fn contains(&self, range: PortRange) -> bool {
        self.0.binary_search(&range).is_ok()
    }
}

pub(super) const fn range_of(policy: &PortPolicy) -> PortRange {
    (policy.first, policy.last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_of_a_port_is_found_at_the_edges_and_not_beside_them() {
        let policies = [(8_000, 8_099), (80, 80), (443, 444)]
            .map(|(first, last)| PortPolicy { last, ..PortPolicy::of_port(first) });
        let ranges = Ranges::of(&policies);
        for (port, range) in [
            (79, None),
            (80, Some((80, 80))),
            (81, None),
            (443, Some((443, 444))),
            (444, Some((443, 444))),
            (445, None),
            (7_999, None),
            (8_000, Some((8_000, 8_099))),
            (8_099, Some((8_000, 8_099))),
            (8_100, None),
            (u16::MAX, None),
        ] {
            assert_eq!(ranges.find(port), range, "{port}");
        }
        assert!(ranges.contains((443, 444)));
        assert!(!ranges.contains((443, 443)));
        assert_eq!(Ranges::default().find(80), None);
    }
}
