//! What holds where the file says nothing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use shedder_common::class::{CLASSES, Class};
use shedder_common::control::Mode;
use shedder_common::level::Level;

use super::builtin;
use super::model::{
    Action, Attach, ClassRules, Config, Daemon, Destinations, Guard, InterfacePattern, LevelRules, Metrics,
    OnExit, OnLoss, PortPolicy, RateLimit, Via,
};

/// Ports whose loss locks the operator out: SSH, etcd, the Kubernetes API and the kubelet.
const GUARDED_PORTS: [u16; 5] = [22, 2379, 2380, 6443, 10250];

impl Config {
    /// What `shedder run` obeys without a file: it observes the TCP ports that listen, with default signals and
    /// limits, on the interfaces of the default routes, and refuses nothing.
    #[must_use]
    pub fn observe_default() -> Self {
        let levels = levels();
        let metrics = metrics();
        Self {
            mode: Mode::Observe,
            attach: attach(),
            daemon: daemon(),
            guard: guard(&metrics),
            metrics,
            signals: builtin::defaults(&levels),
            levels,
            classes: classes(),
            sources: Vec::new(),
            ports: Vec::new(),
            follow_listeners: true,
        }
    }
}

impl PortPolicy {
    /// The policy of a port for which nothing but its number is configured.
    #[must_use]
    pub fn of_port(port: u16) -> Self {
        Self {
            first: port,
            last: port,
            class: Class::Interactive,
            rate: RateLimit::Learned,
            burst: None,
            connections: None,
            queue_depth: Some(0.9),
            queue_wait: Some(Duration::from_millis(100)),
            action: Action::Reset,
            to: Destinations::Local,
        }
    }
}

pub(super) fn attach() -> Attach {
    Attach { interfaces: vec![InterfacePattern::DefaultRoute], via: Via::Auto }
}

pub(super) fn daemon() -> Daemon {
    Daemon {
        tick: Duration::from_millis(100),
        lease: Duration::from_secs(3),
        socket: PathBuf::from("/run/shedder/control.sock"),
        bpffs: PathBuf::from("/sys/fs/bpf/shedder"),
        on_exit: OnExit::Detach,
    }
}

pub(super) fn metrics() -> Metrics {
    Metrics {
        listen: Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464)),
        admission_level: Level::High,
    }
}

pub(super) fn guard(metrics: &Metrics) -> Guard {
    let mut ports = GUARDED_PORTS.to_vec();
    ports.extend(metrics.listen.map(|address| address.port()));
    Guard { ports, sources: Vec::new(), rate: RateLimit::PerSecond(1000.0) }
}

pub(super) fn levels() -> LevelRules {
    LevelRules {
        hold: Duration::from_secs(10),
        max_hold: Duration::from_secs(300),
        ramp: Duration::from_secs(5),
        stale_after: Duration::from_secs(2),
        on_loss: OnLoss::Ignore,
    }
}

/// By [`Class::index`].
pub(super) fn classes() -> [ClassRules; CLASSES] {
    Class::ALL.map(|class| {
        let (shares, floor) = match class {
            Class::Control => ([1.0, 1.0, 1.0, 1.0], 0.0),
            Class::Core => ([1.0, 1.0, 1.0, 0.5], 0.05),
            Class::Interactive => ([1.0, 1.0, 0.7, 0.1], 0.02),
            Class::Optional => ([1.0, 0.5, 0.1, 0.0], 0.0),
            Class::Batch => ([1.0, 0.25, 0.0, 0.0], 0.0),
        };
        ClassRules { shares, floor, action: None }
    })
}
