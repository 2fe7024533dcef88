//! The annotated example.

use std::time::Duration;

use super::read;
use crate::config::model::{Action, Config, FileScope, PortPolicy, RateLimit, SignalSource};

const EXAMPLE: &str = include_str!("../../../../deploy/shedder.toml");

#[test]
fn the_example_holds_the_defaults_where_it_says_so() {
    let example = read(EXAMPLE);
    let mut defaults = Config::observe_default();
    defaults.follow_listeners = false;

    let mut rest = example.clone();
    let own = rest.signals.pop().unwrap();
    assert_eq!(
        own.source,
        SignalSource::File { path: "/run/checkout/queue_age_seconds".into(), scope: FileScope::Port(8080) }
    );
    assert_eq!(rest.classes[4].action.take(), Some(Action::Reset));
    assert_eq!(std::mem::take(&mut rest.sources).len(), 1);
    let ports = std::mem::take(&mut rest.ports);
    assert_eq!(rest, defaults);

    let limited = PortPolicy {
        rate: RateLimit::PerSecond(5000.0),
        burst: Some(1000),
        connections: Some(20_000),
        queue_wait: Some(Duration::from_millis(50)),
        ..PortPolicy::of_port(8080)
    };
    assert_eq!(ports, [limited, PortPolicy::of_port(8443)]);
}
