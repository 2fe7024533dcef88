//! Which policies `shedder set port` means.

use crate::config::model::PortPolicy;
use crate::config::range::{self, PortRange};
use crate::daemon::ranges::range_of;

/// The policies that lie within a port or range as the command line spells it, one at least.
///
/// # Errors
///
/// No policy lies there, or one lies there in part: it has one limit for all of its ports.
pub(super) fn meant<'p>(policies: &'p [PortPolicy], spelled: &str) -> Result<Vec<&'p PortPolicy>, String> {
    let asked = PortRange::parse(spelled)?;
    let touched: Vec<&PortPolicy> =
        policies.iter().filter(|policy| policy.first <= asked.last && asked.first <= policy.last).collect();
    let within = |policy: &&&PortPolicy| asked.contains(policy.first) && asked.contains(policy.last);
    if let Some(shared) = touched.iter().find(|policy| !within(policy)) {
        let covers_all = shared.first <= asked.first && asked.last <= shared.last;
        let is = if covers_all { "is covered by" } else { "covers a part of" };
        return Err(format!("{} {is} {}, which shares one limit: set that", asked.label(), shared.label()));
    }
    if touched.is_empty() {
        return Err(nothing(policies, asked));
    }
    Ok(touched)
}

fn nothing(policies: &[PortPolicy], asked: PortRange) -> String {
    let asked = asked.label();
    if policies.is_empty() {
        return format!(
            "no port has a policy, so {asked} cannot be set; add a [[port]] to the configuration"
        );
    }
    format!("port {asked} has no policy; those with one: {}", range::list(policies.iter().map(range_of)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies() -> Vec<PortPolicy> {
        let shared = PortPolicy { last: 9010, ..PortPolicy::of_port(9000) };
        (8000..=8099).chain([80, 443]).map(PortPolicy::of_port).chain([shared]).collect()
    }

    #[test]
    fn a_range_means_every_policy_within_it() {
        let policies = policies();
        let meant =
            |spelled| meant(&policies, spelled).unwrap().into_iter().map(range_of).collect::<Vec<_>>();
        assert_eq!(meant("80"), [(80, 80)]);
        assert_eq!(meant("8000-8099"), (8000..=8099).map(|port| (port, port)).collect::<Vec<_>>());
        assert_eq!(meant("8001-8002"), [(8001, 8001), (8002, 8002)]);
        assert_eq!(meant("9000-9010"), [(9000, 9010)]);
        assert_eq!(meant("8099-9999"), [(8099, 8099), (9000, 9010)]);
    }

    #[test]
    fn a_part_of_a_shared_policy_and_nothing_are_refused_with_what_can_be_set() {
        let policies = policies();
        for (spelled, expected) in [
            ("9005", "9005 is covered by 9000-9010, which shares one limit: set that"),
            ("9001-9010", "9001-9010 is covered by 9000-9010, which shares one limit: set that"),
            ("9005-9999", "9005-9999 covers a part of 9000-9010, which shares one limit: set that"),
            ("8099-9000", "8099-9000 covers a part of 9000-9010, which shares one limit: set that"),
            ("81", "port 81 has no policy; those with one: 80, 443, 8000-8099, 9000-9010"),
            ("http", "`http` is no range of ports: write one such as \"8000-8099\""),
            ("080", "`080` is no range of ports: write one such as \"8000-8099\""),
            ("0", "0 is no port: choose 1 to 65535"),
        ] {
            assert_eq!(meant(&policies, spelled).unwrap_err(), expected);
        }
        assert!(meant(&[], "80").unwrap_err().contains("add a [[port]]"));
    }
}
