//! `/pressure`: levels for applications that degrade before they are shed.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::snapshot::Snapshot;

/// What `/pressure` answers.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Pressure<'a> {
    /// Version of this shape; a field may be added without a new number, never removed or changed.
    version: u32,
    /// The host's level.
    level: &'a str,
    /// Whether an operator has pinned the levels.
    pinned: bool,
    /// The level of each scope: `host`, `cgroup:PATH`, `port:N`.
    scopes: BTreeMap<&'a str, &'a str>,
    /// The level of each port policy, `8080` or `8000-8099`: the highest of the scopes that bear on it.
    ports: BTreeMap<&'a str, &'a str>,
}

impl<'a> Pressure<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        Self {
            version: 1,
            level: snapshot.host_level().name(),
            pinned: snapshot.pin.is_some(),
            scopes: snapshot
                .levels
                .iter()
                .map(|scope| (scope.scope.as_str(), scope.level.as_str()))
                .collect(),
            ports: snapshot.ports.iter().map(|port| (port.port.as_str(), port.level.as_str())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot_sample;

    #[test]
    fn every_scope_and_port_has_its_level() {
        let snapshot = snapshot_sample::snapshot();
        assert_eq!(
            serde_json::to_string(&Pressure::of(&snapshot)).unwrap(),
            "{\"version\":1,\"level\":\"moderate\",\"pinned\":false,\
             \"scopes\":{\"cgroup:/kube/\\\"odd\\\\pod\\\"\\n\":\"normal\",\"host\":\"moderate\"},\
             \"ports\":{\"8000-8099\":\"normal\",\"8080\":\"moderate\"}}"
        );
        assert_eq!(Pressure::of(&Snapshot::default()).level, "normal");
    }
}
