//! The annotated example.

use std::time::Duration;

use super::read;
use crate::config::model::{Action, Config, FileScope, PortPolicy, RateLimit, SignalSource};

const EXAMPLE: &str = include_str!("../../../../deploy/shedder.toml");

/// The text with what is commented out without a space after the `#`.
pub(super) fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(example) if example.starts_with(|c: char| !c.is_whitespace()) => example.to_owned(),
        _ => line.to_owned(),
    };
    EXAMPLE.lines().map(|text| line(text) + "\n").collect()
}

fn defaults() -> Config {
    Config { follow_listeners: false, ..Config::observe_default() }
}

#[test]
fn whoever_copies_the_file_gets_the_defaults() {
    assert_eq!(read(EXAMPLE), defaults());
}

#[test]
fn the_examples_in_it_are_right() {
    let mut rest = read(&uncommented());
    let own = rest.signals.pop().unwrap();
    assert_eq!(
        own.source,
        SignalSource::File { path: "/run/checkout/queue_age_seconds".into(), scope: FileScope::Port(8080) }
    );
    assert_eq!(rest.classes[4].action.take(), Some(Action::Reset));
    assert_eq!(std::mem::take(&mut rest.sources).len(), 1);
    let ports = std::mem::take(&mut rest.ports);
    assert_eq!(rest, defaults());

    let limited = PortPolicy {
        rate: RateLimit::PerSecond(5000.0),
        burst: Some(1000),
        connections: Some(20_000),
        queue_wait: Some(Duration::from_millis(50)),
        ..PortPolicy::of_port(8080)
    };
    assert_eq!(ports, [limited, PortPolicy::of_port(8443)]);
}
