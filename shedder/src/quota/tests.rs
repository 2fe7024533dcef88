use std::time::Duration;

use super::*;
use crate::config::model::Config;
use proptest::prelude::*;

const TICK_NS: u64 = 4_000_000;

fn port(rate: RateLimit) -> PortPolicy {
    PortPolicy { rate, ..PortPolicy::of_port(8080) }
}

fn classes() -> [ClassRules; CLASSES] {
    Config::observe_default().classes
}

fn limits(policy: &PortPolicy, shares: [f64; CLASSES], learned_rate: Option<f64>) -> PolicyLimits {
    policy_limits(policy, &classes(), &Demand { shares, learned_rate }, TICK_NS)
}

fn per_second(interval: u64) -> f64 {
    UNITS_PER_SECOND as f64 / interval as f64
}

#[test]
fn a_share_is_the_part_of_every_limit_that_a_class_sees() {
    let policy = PortPolicy {
        connections: Some(1000),
        queue_depth: Some(0.8),
        queue_wait: Some(Duration::from_millis(50)),
        burst: Some(100),
        ..port(RateLimit::PerSecond(2000.0))
    };
    let limits = limits(&policy, [1.0, 1.0, 0.5, 0.1, 0.0], None);
    let [control, core, interactive, optional, batch] = limits.classes;
    assert!((per_second(interactive.interval) - 1000.0).abs() < 0.01);
    assert!((per_second(optional.interval) - 200.0).abs() < 0.01);
    assert_eq!(interactive.tolerance, interactive.interval * 49 + units(TICK_NS));
    assert_eq!((interactive.connections, optional.connections), (500, 100));
    assert_eq!(interactive.queue_depth, DEPTH_ONE * 4 / 10);
    assert_eq!((interactive.queue_wait_us, optional.queue_wait_us), (25_000, 5_000));
    assert_eq!(batch.flags & CLOSED, CLOSED);
    assert_eq!([control, core, interactive, optional].map(|class| class.flags & CLOSED), [0; 4]);
    // The limits themselves, which no floor exceeds.
    assert_eq!((limits.connections, limits.queue_wait_us), (1000, 50_000));
    // Control and core see the same rate and share its state.
    assert_eq!(limits.rate_leader[..5], [0, 0, 2, 3, 4]);
}

#[test]
fn a_floor_is_a_part_of_the_ports_rate_whatever_the_share() {
    let limits = limits(&port(RateLimit::PerSecond(1000.0)), [1.0, 0.5, 0.0, 0.0, 0.0], None);
    let floor = |class: Class| limits.classes[class.index()].floor_interval;
    assert!((per_second(floor(Class::Core)) - 50.0).abs() < 0.01);
    assert!((per_second(floor(Class::Interactive)) - 20.0).abs() < 0.01);
    assert_eq!((floor(Class::Control), floor(Class::Batch)), (0, 0));
}

#[test]
fn zero_admits_none_not_even_a_floor() {
    let zeros = [
        port(RateLimit::PerSecond(0.0)),
        PortPolicy { connections: Some(0), ..port(RateLimit::PerSecond(100.0)) },
        PortPolicy { queue_depth: Some(0.0), ..port(RateLimit::PerSecond(100.0)) },
        PortPolicy { queue_wait: Some(Duration::ZERO), ..port(RateLimit::PerSecond(100.0)) },
    ];
    for policy in zeros {
        for class in limits(&policy, [1.0; CLASSES], None).classes {
            assert_eq!((class.flags & CLOSED, class.floor_interval), (CLOSED, 0), "{policy:?}");
        }
    }
}

#[test]
fn no_limit_is_no_limit() {
    let policy = PortPolicy { queue_depth: None, queue_wait: None, ..port(RateLimit::Unlimited) };
    let limits = limits(&policy, [1.0; CLASSES], None);
    for class in limits.classes {
        assert_eq!((class.interval, class.connections), (0, UNLIMITED));
        assert_eq!((class.queue_depth, class.queue_wait_us), (UNLIMITED, UNLIMITED));
    }
    assert_eq!(limits.connections & limits.queue_depth & limits.queue_wait_us, UNLIMITED);
}

#[test]
fn a_learned_rate_is_a_limit_only_for_classes_without_the_whole_share() {
    let limits = limits(&port(RateLimit::Learned), [1.0, 1.0, 1.0, 0.5, 0.25], Some(400.0));
    let [control, core, interactive, optional, batch] = limits.classes;
    assert_eq!([control, core, interactive].map(|class| class.interval), [0; 3]);
    assert!((per_second(optional.interval) - 200.0).abs() < 0.01);
    assert!((per_second(batch.interval) - 100.0).abs() < 0.01);
    // At normal nothing is learned and nothing is limited.
    let free = policy_limits(&port(RateLimit::Learned), &classes(), &Demand::normal(&classes()), TICK_NS);
    assert!(free.classes.iter().all(|class| class.interval == 0));
}

#[test]
fn the_action_is_the_classs_or_else_the_ports() {
    let mut rules = classes();
    rules[Class::Batch.index()].action = Some(Action::Drop);
    let demand = Demand::normal(&rules);
    let limits = policy_limits(&port(RateLimit::Unlimited), &rules, &demand, TICK_NS);
    let reset = |class: Class| limits.classes[class.index()].flags & RESET != 0;
    assert!(reset(Class::Interactive) && !reset(Class::Batch));
}

#[test]
fn a_small_share_of_a_small_limit_still_admits_someone() {
    let policy = PortPolicy {
        connections: Some(3),
        queue_wait: Some(Duration::from_micros(2)),
        ..port(RateLimit::PerSecond(1.0))
    };
    let class = limits(&policy, [0.01; CLASSES], None).classes[2];
    assert_eq!((class.connections, class.queue_wait_us), (1, 1));
    assert_ne!(class.interval, 0);
    assert_eq!(class.flags & CLOSED, 0);
}

proptest! {
    #[test]
    fn a_smaller_share_never_sees_a_larger_limit(
        rate in 0.1..1e6_f64, connections in 1_u32..1_000_000, low in 0.0..1.0_f64, more in 0.0..1.0_f64,
    ) {
        let policy = PortPolicy { connections: Some(connections), ..port(RateLimit::PerSecond(rate)) };
        let high = (low + more).min(1.0);
        let limits = limits(&policy, [high, low, low, low, low], None);
        let [wide, narrow, ..] = limits.classes;
        if narrow.flags & CLOSED == 0 {
            prop_assert!(narrow.interval >= wide.interval);
            prop_assert!(narrow.connections <= wide.connections);
            prop_assert!(narrow.queue_wait_us <= wide.queue_wait_us);
            prop_assert!(narrow.queue_depth <= wide.queue_depth);
        }
    }

    #[test]
    fn any_rate_is_measured_without_overflow(rate in 0.0..1e12_f64, burst in 0.0..1e12_f64, tick_ns in 0..u32::MAX) {
        if let Some(rate) = gcra_rate(rate, burst, u64::from(tick_ns)) {
            prop_assert!(rate.interval >= 1);
            prop_assert!(rate.charged(u64::MAX / 2, 0) > 0);
        }
    }
}
