//! What right configurations mean.

use std::time::Duration;

use shedder_common::class::Class;
use shedder_common::control::Mode;
use shedder_common::level::Level;

use super::read;
use crate::config::builtin;
use crate::config::model::{
    Action, Config, Destinations, FileScope, InterfacePattern, OnExit, OnLoss, PortPolicy, PsiResource,
    PsiWindow, RateLimit, Signal, SignalSource, Threshold, Via,
};

fn signal(config: &Config, name: &str) -> Signal {
    config.signals.iter().find(|signal| signal.name == name).unwrap().clone()
}

#[test]
fn an_empty_configuration_is_the_default_without_ports() {
    let config = read("version = 1");
    assert_eq!(config, Config { follow_listeners: false, ..Config::observe_default() });
    assert_eq!(config.mode, Mode::Observe);
    assert_eq!(config.guard.ports, [22, 2379, 2380, 6443, 10250, 9464]);
    let names: Vec<_> = config.signals.iter().map(|signal| signal.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "psi_memory_some",
            "psi_memory_full",
            "psi_io_full",
            "psi_cpu_some",
            "memory",
            "fds",
            "accept_queue",
            "conntrack",
            "tcp_mem",
            "listen_overflows",
        ]
    );
}

#[test]
fn the_sections_are_read() {
    let config = read(
        r#"
        version = 1
        mode = "enforce"
        attach = { interfaces = ["eth0", "bond*", "default-route"], via = "tc" }
        [daemon]
        tick = "50ms"
        lease = "150ms"
        socket = "/run/s.sock"
        bpffs = "/sys/fs/bpf/other"
        on_exit = "keep"
        [metrics]
        listen = "[::1]:9000"
        admission_level = "emergency"
        [guard]
        ports = [22, 9000, 22]
        sources = ["192.0.2.0/24", "2001:db8::/32"]
        rate = "unlimited"
        [levels]
        hold = "1s"
        max_hold = "1m"
        ramp = "0s"
        stale_after = "500ms"
        on_loss = "hold"
        [classes.batch]
        shares = [1, 0.5, 0, 0]
        floor = 0.5
        action = "drop"
        [[source]]
        cidr = "::/0"
        class = "batch"
        "#,
    );
    assert_eq!(config.mode, Mode::Enforce);
    assert_eq!(
        config.attach.interfaces,
        [
            InterfacePattern::Name("eth0".into()),
            InterfacePattern::Glob("bond*".into()),
            InterfacePattern::DefaultRoute
        ]
    );
    assert_eq!(config.attach.via, Via::Tc);
    assert_eq!(
        (config.daemon.tick, config.daemon.lease),
        (Duration::from_millis(50), Duration::from_millis(150))
    );
    assert_eq!(config.daemon.on_exit, OnExit::Keep);
    assert_eq!(config.metrics.listen, Some("[::1]:9000".parse().unwrap()));
    assert_eq!(config.metrics.admission_level, Level::Emergency);
    assert_eq!(config.guard.ports, [22, 9000]);
    assert_eq!((config.guard.sources.len(), config.guard.rate), (2, RateLimit::Unlimited));
    assert_eq!((config.levels.ramp, config.levels.on_loss), (Duration::ZERO, OnLoss::Hold));
    assert!(config.signals.iter().all(|signal| signal.stale_after == Duration::from_millis(500)));
    assert!(config.signals.iter().all(|signal| signal.on_loss == OnLoss::Hold));
    let batch = config.classes[Class::Batch.index()];
    assert_eq!((batch.shares, batch.floor, batch.action), ([1.0, 0.5, 0.0, 0.0], 0.5, Some(Action::Drop)));
    assert_eq!(config.sources[0].class, Class::Batch);
}

#[test]
fn an_endpoint_that_is_off_guards_no_port() {
    let config = read("version = 1\nmetrics.listen = \"off\"\n[guard]\nports = []\n[[port]]\nport = 9464");
    assert_eq!(config.metrics.listen, None);
    assert!(config.guard.ports.is_empty());
    assert_eq!(config.ports, [PortPolicy::of_port(9464)]);
}

#[test]
fn naming_a_signal_changes_only_what_is_said() {
    let config = read(
        r#"
        version = 1
        [signals.memory]
        moderate = { exit = 0.5 }
        emergency = "never"
        for = "2s"
        on_loss = "hold"
        [signals.fds]
        enabled = false
        [signals.psi_memory_some]
        window = "avg10"
        [signals.psi_io_some]
        window = "10s"
        high = { enter = 40, exit = 20 }
        "#,
    );
    let defaults = Config::observe_default();
    let memory = signal(&config, "memory");
    assert_eq!(
        memory.thresholds,
        [None, Some(Threshold { enter: 0.92, exit: 0.5 }), Some(Threshold { enter: 0.95, exit: 0.90 }), None]
    );
    assert_eq!((memory.rise_after, memory.on_loss), (Duration::from_secs(2), OnLoss::Hold));
    assert_eq!(signal(&config, "fds"), Signal { enabled: false, ..signal(&defaults, "fds") });
    assert_eq!(signal(&config, "conntrack"), signal(&defaults, "conntrack"));
    assert_eq!(
        signal(&config, "psi_memory_some").source,
        SignalSource::Psi { resource: PsiResource::Memory, full: false, window: PsiWindow::Avg10 }
    );
    assert_eq!(
        signal(&config, "psi_io_some").source,
        SignalSource::Psi {
            resource: PsiResource::Io,
            full: false,
            window: PsiWindow::Over(Duration::from_secs(10))
        }
    );
    assert!(builtin::find("psi_io_some").is_some_and(|builtin| !builtin.is_default()));
}

#[test]
fn signals_of_ones_own_come_last_by_name() {
    let config = read(
        r#"
        version = 1
        [signals.b_lag]
        source = "file"
        path = "/run/b"
        moderate = { enter = -1, exit = -2.5 }
        [signals.a_lag]
        source = "file"
        path = "/run/a"
        scope = "cgroup:/system.slice/app.service"
        stale_after = "1m"
        emergency = { enter = 1, exit = 0 }
        "#,
    );
    let names: Vec<_> = config.signals.iter().rev().take(2).map(|signal| signal.name.as_str()).collect();
    assert_eq!(names, ["b_lag", "a_lag"]);
    let own = signal(&config, "a_lag");
    assert_eq!(
        own.source,
        SignalSource::File {
            path: "/run/a".into(),
            scope: FileScope::Cgroup("system.slice/app.service".into())
        }
    );
    assert_eq!(own.stale_after, Duration::from_secs(60));
    assert_eq!(
        signal(&config, "b_lag").source,
        SignalSource::File { path: "/run/b".into(), scope: FileScope::Host }
    );
}

#[test]
fn ranges_are_one_policy_for_each_port_unless_shared() {
    let config = read(
        r#"
        version = 1
        [[port]]
        port = "8000-8002"
        rate = "300/min"
        to = ["192.0.2.0/24"]
        [[port]]
        port = "1-21"
        shared = true
        connections = 0
        queue_depth = "unlimited"
        queue_wait = "unlimited"
        "#,
    );
    let labels: Vec<_> = config.ports.iter().map(PortPolicy::label).collect();
    assert_eq!(labels, ["8000", "8001", "8002", "1-21"]);
    for (port, policy) in (8000..).zip(&config.ports[..3]) {
        assert_eq!(
            *policy,
            PortPolicy {
                rate: RateLimit::PerSecond(5.0),
                to: Destinations::Listed(vec!["192.0.2.0/24".parse().unwrap()]),
                ..PortPolicy::of_port(port)
            }
        );
    }
    let shared = &config.ports[3];
    assert_eq!((shared.connections, shared.queue_depth, shared.queue_wait), (Some(0), None, None));
}

#[test]
fn a_guarded_port_is_covered_where_the_guard_is_overridden() {
    let config = read("version = 1\n[[port]]\nport = \"20-23\"\noverride_guard = true");
    assert_eq!(config.ports.len(), 4);
}

#[test]
fn as_many_policies_as_slots_are_accepted() {
    let config = read("version = 1\n[[port]]\nport = \"30000-31022\"");
    assert_eq!(config.ports.len(), 1023);
}
