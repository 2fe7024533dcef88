//! The snapshot of what is pinned, where no daemon is there to make one.

use std::time::Duration;

use crate::daemon::report::{self, PortFacts};
use crate::datapath::Pinned;
use crate::snapshot::{Attachment, SNAPSHOT_VERSION, Snapshot};

/// What the pinned maps say at a moment of the monotonic clock. `name` gives the name of an interface in the network
/// namespace of the caller; the pins do not tell in which one the daemon ran.
pub fn of(pinned: &Pinned, now: Duration, name: impl Fn(u32) -> Option<String>) -> Snapshot {
    let lease = Duration::from_nanos(pinned.lease_expires_ns).saturating_sub(now);
    let attachments = pinned.links.iter().map(|(hook, ifindex)| {
        let left = format!(
            "left pinned by a daemon that does not run, at interface {ifindex} of its network namespace"
        );
        let (interface, reason) = match name(*ifindex) {
            Some(name) => (name, format!("{left}; the name is from this one")),
            None => (format!("interface {ifindex}, which is not here"), left),
        };
        Attachment { interface, ifindex: *ifindex, mode: hook.mode().to_owned(), reason }
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

#[cfg(test)]
mod tests {
    use shedder_common::control::Mode;

    use super::*;
    use crate::kernel::attachment::Hook;

    #[test]
    fn what_names_an_interface_says_where() {
        let pinned = Pinned {
            mode: Mode::Enforce,
            lease_expires_ns: 0,
            limits: Default::default(),
            counters: Default::default(),
            links: vec![(Hook::Tcx, 3), (Hook::Tcx, 4)],
        };
        let name = |ifindex: u32| (ifindex == 3).then(|| "ifb0".to_owned());
        let attachments = of(&pinned, Duration::ZERO, name).attachments;
        assert_eq!(
            (attachments[0].interface.as_str(), attachments[0].reason.as_str()),
            (
                "ifb0",
                "left pinned by a daemon that does not run, at interface 3 of its network namespace; the name is from this \
                 one"
            )
        );
        assert_eq!(attachments[1].interface, "interface 4, which is not here");
        assert!(attachments[1].reason.ends_with("at interface 4 of its network namespace"));
    }
}
