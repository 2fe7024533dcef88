//! What is told to whoever looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::ControlLoop;
use crate::config::model::PortPolicy;
use crate::daemon::report::{self, PortFacts};
use crate::quota;
use crate::sensors::context::depth_ratio;
use crate::snapshot::{AcceptQueue, PortState, SNAPSHOT_VERSION, Snapshot};

/// How long after the last look the memory for it is given back.
const MEMORY_AFTER: Duration = Duration::from_secs(1);

impl ControlLoop {
    /// All that is known. The counters are read now, but no more than once in a tick.
    pub(in crate::daemon) fn snapshot(&mut self, now: Duration) -> Arc<Snapshot> {
        if let Some(fresh) = &self.fresh {
            return Arc::clone(fresh);
        }
        self.read_counters(now);
        self.due.memory = Some(now + MEMORY_AFTER);
        let snapshot = Arc::new(self.make_snapshot(now));
        self.fresh = Some(Arc::clone(&snapshot));
        snapshot
    }

    /// Whether a look is over whose memory can be given back; says so once.
    pub(in crate::daemon) fn has_spare_memory(&mut self, now: Duration) -> bool {
        self.due.memory.take_if(|due| now >= *due).is_some()
    }

    fn make_snapshot(&self, now: Duration) -> Snapshot {
        let mut snapshot = Snapshot {
            version: SNAPSHOT_VERSION,
            shedder_version: env!("CARGO_PKG_VERSION").to_owned(),
            daemon: true,
            mode: self.mode.name().to_owned(),
            lease_remaining_seconds: self.config.daemon.lease.as_secs_f64(),
            ticks: self.ticks.clone(),
            attachments: self.interfaces.attachments(),
            pin: self.pressure.pin_state(now),
            levels: self.pressure.scope_levels(now),
            signals: self.pressure.signal_states(now),
            ports: self.port_states(now),
            warnings: self.warnings(),
            ..Snapshot::default()
        };
        report::fill_global(&mut snapshot, &self.counters);
        snapshot
    }

    fn port_states(&self, now: Duration) -> Vec<PortState> {
        let Some(table) = &self.written else { return Vec::new() };
        let facts: BTreeMap<(u16, u16), &PortPolicy> =
            self.config.ports.iter().map(|policy| ((policy.first, policy.last), policy)).collect();
        let mut set = self.policies.set_limits(now);
        let mut state = |policy: &quota::PolicyQuota| {
            let range = (policy.first, policy.last);
            let facts = PortFacts {
                level: self.pressure.level(range).name().to_owned(),
                accept_queue: self.fullest_listener(range),
                pressure: self.pressure.facts(now, range, self.config.levels.ramp),
                recent: self.lately.of(now, range, &self.counters),
                set: set.remove(&range).unwrap_or_default(),
                ..facts.get(&range).map(|policy| PortFacts::of(policy)).unwrap_or_default()
            };
            let reading = self.counters.policies.get(&range).copied().unwrap_or_default();
            report::port_state(range, &policy.limits, &reading, facts)
        };
        table.policies.iter().map(&mut state).collect()
    }

    fn fullest_listener(&self, (first, last): (u16, u16)) -> Option<AcceptQueue> {
        self.listeners
            .iter()
            .filter(|listener| (first..=last).contains(&listener.port))
            .map(|listener| AcceptQueue {
                depth: listener.accept_queue,
                backlog: listener.backlog,
                depth_ratio: depth_ratio(listener.accept_queue, listener.backlog),
            })
            .max_by(|left, right| left.depth_ratio.total_cmp(&right.depth_ratio))
    }
}
