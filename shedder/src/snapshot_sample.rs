//! A snapshot with something of everything, for tests.

use std::collections::BTreeMap;

use crate::snapshot::{
    AcceptQueue, Attachment, ClassQuota, ClassState, GoesBack, Histogram, PortState, Recent,
    SNAPSHOT_VERSION, ScopeLevel, SetLimit, SignalState, Snapshot, Ticks, Transition,
};

/// A daemon in `observe` with two ports under moderate pressure.
pub(crate) fn snapshot() -> Snapshot {
    Snapshot {
        version: SNAPSHOT_VERSION,
        shedder_version: "0.1.0".to_owned(),
        daemon: true,
        mode: "observe".to_owned(),
        lease_remaining_seconds: 2.95,
        ticks: Ticks {
            interval_seconds: 0.1,
            total: 1200,
            buckets: vec![0, 700, 400, 90, 8, 1, 1, 0, 0, 0],
            sum_seconds: 0.75,
        },
        attachments: vec![
            Attachment {
                interface: "eth0".to_owned(),
                ifindex: 2,
                mode: "native".to_owned(),
                reason: "the driver runs XDP".to_owned(),
            },
            Attachment {
                interface: "veth7".to_owned(),
                ifindex: 9,
                mode: "none".to_owned(),
                reason: "another XDP program is attached; detach it or set attach.via to \"tc\"".to_owned(),
            },
        ],
        pin: None,
        levels: vec![
            ScopeLevel {
                scope: "host".to_owned(),
                level: "moderate".to_owned(),
                held_seconds: 12.5,
                signal: "psi_memory_some".to_owned(),
                transitions: vec![Transition {
                    from: "normal".to_owned(),
                    to: "moderate".to_owned(),
                    signal: "psi_memory_some".to_owned(),
                    total: 3,
                }],
                demanded: "moderate".to_owned(),
                hold_seconds: 10.0,
                ..ScopeLevel::default()
            },
            ScopeLevel {
                scope: "cgroup:/kube/\"odd\\pod\"\n".to_owned(),
                level: "normal".to_owned(),
                held_seconds: 90.0,
                ..ScopeLevel::default()
            },
        ],
        signals: signals(),
        ports: vec![checkout(), PortState { port: "8000-8099".to_owned(), ..quiet() }],
        unparsed: names([("vlan_depth", 4)]),
        fail_open: names([("lease_expired", 6)]),
        exempt: names([("source", 11)]),
        untracked_connections: 1,
        resets_failed: 2,
        warnings: vec!["veth7 is not served: another XDP program is attached.".to_owned()],
    }
}

fn signals() -> Vec<SignalState> {
    vec![
        SignalState {
            signal: "psi_memory_some".to_owned(),
            scope: "host".to_owned(),
            unit: "percent".to_owned(),
            value: Some(12.5),
            enter: names([("moderate", 10.0), ("high", 25.0), ("emergency", 50.0)]),
            exit: names([("moderate", 5.0), ("high", 15.0), ("emergency", 30.0)]),
            demands: "moderate".to_owned(),
            since_seconds: 12.5,
            ..SignalState::default()
        },
        SignalState {
            signal: "conntrack".to_owned(),
            scope: "host".to_owned(),
            unit: "ratio".to_owned(),
            unavailable: "/proc/sys/net/netfilter/nf_conntrack_count does not exist".to_owned(),
            enter: names([("moderate", 0.8)]),
            exit: names([("moderate", 0.7)]),
            demands: "normal".to_owned(),
            read_errors: 5,
            ..SignalState::default()
        },
    ]
}

fn checkout() -> PortState {
    let interactive = ClassState {
        quota: ClassQuota {
            rate_per_second: Some(5000.0),
            floor_per_second: Some(100.0),
            connections: Some(20_000),
            queue_depth_ratio: Some(0.9),
            queue_wait_seconds: Some(0.05),
            ..ClassQuota::default()
        },
        admitted: 123_456,
        would_shed: names([("queue_wait", 17), ("rate", 3)]),
        resets_sent: 8,
        retransmits_admitted: 5,
        retransmits_shed: 2,
        share: Some(1.0),
        recently_refused: names([("queue_wait", 3)]),
        ..ClassState::default()
    };
    let batch = ClassState {
        quota: ClassQuota { closed: true, ..ClassQuota::default() },
        shed: names([("closed", 40)]),
        resets_sent: 40,
        share: Some(0.0),
        ..ClassState::default()
    };
    let set = SetLimit {
        value: "20000".to_owned(),
        configured: "unlimited".to_owned(),
        goes_back: Some(GoesBack { to: "unlimited".to_owned(), remaining_seconds: 7.4 }),
    };
    PortState {
        port: "8080".to_owned(),
        protocol: "tcp".to_owned(),
        class: "interactive".to_owned(),
        action: "reset".to_owned(),
        to: "local".to_owned(),
        level: "moderate".to_owned(),
        rate: "5000/s".to_owned(),
        active_connections: 312,
        accept_queue: Some(AcceptQueue { depth: 256, backlog: 1024, depth_ratio: 0.25 }),
        accept_wait: Histogram {
            bounds_seconds: vec![0.001, 0.05, 1.0],
            counts: vec![10, 5, 1, 2],
            sum_seconds: 7.25,
        },
        classes: names([("interactive", interactive), ("batch", batch)]),
        workloads: vec!["cgroup:/kube/\"odd\\pod\"\n".to_owned()],
        ramp_remaining_seconds: Some(2.5),
        recent: Recent { seconds: 3.2, admitted_per_second: 4_200.0, wait_seconds: Some(0.012) },
        set: names([("connections", set)]),
        ..PortState::default()
    }
}

/// A port that nobody listens on and nobody asks for.
fn quiet() -> PortState {
    PortState {
        protocol: "tcp".to_owned(),
        class: "optional".to_owned(),
        action: "drop".to_owned(),
        to: "any".to_owned(),
        level: "normal".to_owned(),
        rate: "learned".to_owned(),
        ..PortState::default()
    }
}

fn names<T, const N: usize>(entries: [(&str, T); N]) -> BTreeMap<String, T> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
