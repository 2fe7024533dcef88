//! The `key=value` assignments of `shedder set port`.

use std::collections::BTreeSet;

use super::limits;
use super::model::PortPolicy;
use super::suggest::{show as show_text, unknown};
use super::units::{self, UNLIMITED};

/// The keys that may be set while the daemon runs.
pub const KEYS: [&str; 7] = ["rate", "burst", "connections", "queue_depth", "queue_wait", "action", "class"];

/// Refuses what sets a limit twice.
///
/// # Errors
///
/// A sentence that names the limit.
pub fn check_distinct<V>(assignments: &[(String, V)]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match assignments.iter().find(|(key, _)| !seen.insert(key)) {
        Some((key, _)) => Err(format!("`{}` is set twice: keep one", show_text(key))),
        None => Ok(()),
    }
}

/// Sets one limit of a policy, with the units of the configuration file. On error the policy is as it was.
///
/// # Errors
///
/// A sentence that says what is wrong and what to write instead.
pub fn apply(policy: &mut PortPolicy, key: &str, value: &str) -> Result<(), String> {
    let outcome = match key {
        "rate" => units::rate(value).map(|rate| policy.rate = rate),
        "burst" => limits::burst(value).map(|burst| policy.burst = Some(burst)),
        "connections" => limits::connections(value).map(|connections| policy.connections = connections),
        "queue_depth" => limits::queue_depth(value).map(|depth| policy.queue_depth = depth),
        "queue_wait" => limits::queue_wait(value).map(|wait| policy.queue_wait = wait),
        "action" => limits::action(value).map(|action| policy.action = action),
        "class" => limits::class(value).map(|class| policy.class = class),
        _ => return Err(unknown("key", key, &KEYS)),
    };
    outcome.map_err(|why| format!("{key}: {why}"))
}

/// One limit of a policy as [`apply`] reads it.
#[must_use]
pub fn show(policy: &PortPolicy, key: &str) -> String {
    let or_unlimited = |limit: Option<String>| limit.unwrap_or_else(|| UNLIMITED.to_owned());
    match key {
        "rate" => units::show_rate(policy.rate),
        "burst" => policy
            .burst
            .map_or_else(|| "a tenth of a second's worth of rate".to_owned(), |burst| burst.to_string()),
        "connections" => or_unlimited(policy.connections.map(|limit| limit.to_string())),
        "queue_depth" => or_unlimited(policy.queue_depth.map(|limit| limit.to_string())),
        "queue_wait" => or_unlimited(policy.queue_wait.map(units::show_duration)),
        "action" => policy.action.name().to_owned(),
        "class" => policy.class.name().to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use shedder_common::class::Class;

    use super::*;
    use crate::config::model::{Action, RateLimit};

    #[test]
    fn every_key_sets_its_limit() {
        let mut policy = PortPolicy::of_port(8080);
        for (key, value) in [
            ("rate", "500/s"),
            ("burst", "50"),
            ("connections", "2000"),
            ("queue_depth", "0.5"),
            ("queue_wait", "50ms"),
            ("action", "drop"),
            ("class", "core"),
        ] {
            apply(&mut policy, key, value).unwrap();
            assert_eq!(show(&policy, key), value);
        }
        assert_eq!(
            policy,
            PortPolicy {
                rate: RateLimit::PerSecond(500.0),
                burst: Some(50),
                connections: Some(2000),
                queue_depth: Some(0.5),
                queue_wait: Some(Duration::from_millis(50)),
                action: Action::Drop,
                class: Class::Core,
                ..PortPolicy::of_port(8080)
            }
        );
    }

    #[test]
    fn no_limit_is_unlimited_and_zero_admits_none() {
        let mut policy = PortPolicy::of_port(8080);
        for key in ["connections", "queue_depth", "queue_wait", "rate"] {
            apply(&mut policy, key, "unlimited").unwrap();
            assert_eq!(show(&policy, key), "unlimited");
        }
        assert_eq!(
            (policy.connections, policy.queue_depth, policy.queue_wait, policy.rate),
            (None, None, None, RateLimit::Unlimited)
        );
        for (key, value) in
            [("connections", "0"), ("queue_depth", "0"), ("queue_wait", "0s"), ("rate", "0/s")]
        {
            apply(&mut policy, key, value).unwrap();
        }
        assert_eq!(
            (policy.connections, policy.queue_depth, policy.queue_wait, policy.rate),
            (Some(0), Some(0.0), Some(Duration::ZERO), RateLimit::PerSecond(0.0))
        );
    }

    #[test]
    fn wrong_assignments_say_why_and_change_nothing() {
        let mut policy = PortPolicy::of_port(8080);
        for (key, value, part) in [
            ("rat", "5/s", "unknown key `rat`, did you mean `rate`?"),
            ("to", "any", "unknown key `to`"),
            ("rate", "500", "rate: `500` has no unit: write \"500/s\""),
            ("burst", "0", "burst: 0 would never admit anything"),
            ("burst", "-1", "burst: -1 is no number"),
            ("connections", "many", "connections: many is no number"),
            ("connections", "4294967295", "is no number from 0 to 4294967294"),
            ("connections", "unlimted", "did you mean `unlimited`?"),
            ("queue_depth", "90", "90 is outside of 0..1"),
            ("queue_depth", "NaN", "NaN is outside of 0..1"),
            ("queue_depth", "full", "`full` is no number"),
            ("queue_wait", "50", "`50` has no unit: write \"50ms\""),
            ("queue_wait", "2h", "longer than an hour"),
            ("queue_wait", "unlimitted", "did you mean `unlimited`?"),
            ("action", "rst", "unknown action `rst`"),
            ("class", "cor", "unknown class `cor`, did you mean `core`?"),
        ] {
            let why = apply(&mut policy, key, value).unwrap_err();
            assert!(why.contains(part), "{key}={value}: {why}");
        }
        assert_eq!(policy, PortPolicy::of_port(8080));
    }

    proptest! {
        #[test]
        fn any_text_is_applied_or_refused(key in 0..KEYS.len(), value in "\\PC{0,24}|[0-9./a-z-]{0,24}") {
            let mut policy = PortPolicy::of_port(8080);
            if apply(&mut policy, KEYS[key], &value).is_err() {
                prop_assert_eq!(policy, PortPolicy::of_port(8080));
            }
        }
    }
}
