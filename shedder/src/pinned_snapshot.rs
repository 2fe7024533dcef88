//! The snapshot of what is pinned, where no daemon is there to make one.

use std::time::Duration;

use crate::daemon::report::{self, PortFacts};
use crate::datapath::Pinned;
use crate::snapshot::{Attachment, SNAPSHOT_VERSION, Snapshot};

/// What the pinned maps say at a moment of the monotonic clock. `name` gives the name of an interface.
pub fn of(pinned: &Pinned, now: Duration, name: impl Fn(u32) -> Option<String>) -> Snapshot {
    let lease = Duration::from_nanos(pinned.lease_expires_ns).saturating_sub(now);
    let attachments = pinned.links.iter().map(|(hook, ifindex)| Attachment {
        interface: name(*ifindex).unwrap_or_else(|| format!("interface {ifindex}, which is gone")),
        ifindex: *ifindex,
        mode: hook.mode().to_owned(),
        reason: "left pinned by a daemon that does not run".to_owned(),
    });
    let ports = pinned.limits.iter().map(|(range, limits)| {
        let reading = pinned.counters.policies.get(range).copied().unwrap_or_default();
        report::port_state(*range, limits, &reading, PortFacts::default())
    });
    let mut snapshot = Snapshot {
        version: SNAPSHOT_VERSION,
        mode: pinned.mode.name().to_owned(),
        lease_remaining_seconds: lease.as_secs_f64(),
        attachments: attachments.collect(),
        ports: ports.collect(),
        ..Snapshot::default()
    };
    report::fill_global(&mut snapshot, &pinned.counters);
    snapshot
}
