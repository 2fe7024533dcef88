use std::fs;
use std::os::unix::fs::MetadataExt;

use super::testing::{Bench, signal};
use super::*;
use crate::config::model::{FileScope, PsiResource, PsiWindow};

fn defaults() -> Vec<Signal> {
    let psi = |resource, full| SignalSource::Psi {
        resource,
        full,
        window: PsiWindow::Over(Duration::from_secs(1)),
    };
    vec![
        signal("psi_memory_some", psi(PsiResource::Memory, false)),
        signal("psi_memory_full", psi(PsiResource::Memory, true)),
        signal("psi_io_full", psi(PsiResource::Io, true)),
        signal("psi_cpu_some", psi(PsiResource::Cpu, false)),
        signal("memory", SignalSource::Memory),
        signal("fds", SignalSource::Fds),
        signal("accept_queue", SignalSource::AcceptQueue),
        signal("conntrack", SignalSource::Conntrack),
        signal("tcp_mem", SignalSource::TcpMem),
        signal("listen_overflows", SignalSource::ListenOverflows),
        signal("own", SignalSource::File { path: PathBuf::from("/run/own"), scope: FileScope::Host }),
    ]
}

#[test]
fn on_an_empty_host_every_signal_is_named_and_unavailable() {
    let mut bench = Bench::new(defaults());
    let readings = bench.tick(0);
    assert!(readings.iter().all(|reading| reading.value.is_err()));
    for signal in defaults() {
        let scopes = bench.scopes(&signal.name);
        let expected: &[&str] = if signal.name == "accept_queue" { &[] } else { &["host"] };
        assert_eq!(scopes, expected, "{}", signal.name);
    }
}

#[test]
fn each_signal_is_read_once_at_each_scope() {
    let mut bench = Bench::new(defaults());
    bench.write("proc/self/mountinfo", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    bench.write("sys/fs/cgroup/web/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
    let id = fs::metadata(bench.path("sys/fs/cgroup/web")).unwrap().ino();
    let listener = |port| ListenerFact { port, inode: 7, accept_queue: 1, backlog: 2, cgroup_id: Some(id) };
    bench.listeners = vec![listener(80), listener(80), listener(443)];
    let readings = bench.tick(0);
    let mut keys: Vec<_> = readings.iter().map(|reading| (&reading.signal, &reading.scope)).collect();
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), all);
    assert_eq!(bench.scopes("psi_cpu_some"), ["cgroup:/web", "host"]);
    assert_eq!(bench.scopes("memory"), ["cgroup:/web", "host"]);
    assert_eq!(bench.scopes("fds"), ["host", "port:443", "port:80"]);
    assert_eq!(bench.scopes("accept_queue"), ["port:443", "port:80"]);
    let cgroups: Vec<_> = bench.sensors().workloads().cgroups_of(443).collect();
    assert_eq!(cgroups, [Path::new("/web")]);
}

#[test]
fn a_cgroup_that_is_removed_meanwhile_is_named_and_hides_nothing() {
    let mut bench = Bench::new(defaults());
    bench.write("proc/self/mountinfo", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    bench.write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 50 kB\n");
    bench.write("sys/fs/cgroup/web/memory.current", "5\n");
    let id = fs::metadata(bench.path("sys/fs/cgroup/web")).unwrap().ino();
    bench.listeners =
        vec![ListenerFact { port: 80, inode: 7, accept_queue: 1, backlog: 2, cgroup_id: Some(id) }];
    bench.tick(0);
    fs::remove_dir_all(bench.path("sys/fs/cgroup/web")).unwrap();
    bench.tick(100);
    assert!(bench.value("memory", "cgroup:/web").is_err());
    assert!(bench.value("psi_memory_some", "cgroup:/web").is_err());
    assert_eq!(bench.value("memory", "host"), Ok(0.5));
}

#[test]
fn signals_switched_off_are_not_read() {
    let mut signals = defaults();
    for signal in &mut signals {
        signal.enabled = signal.name == "memory";
    }
    let mut bench = Bench::new(signals);
    bench.tick(0);
    assert_eq!(bench.scopes("memory"), ["host"]);
    assert!(bench.scopes("fds").is_empty());
}

#[test]
fn two_names_may_stand_for_one_source() {
    let mut bench = Bench::new([signal("a", SignalSource::Memory), signal("b", SignalSource::Memory)]);
    bench.write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 25 kB\n");
    bench.tick(0);
    assert_eq!(bench.value("a", "host"), Ok(0.75));
    assert_eq!(bench.value("b", "host"), Ok(0.75));
}

#[test]
fn every_value_of_the_running_host_is_finite() {
    let mut sensors = Sensors::new(Path::new("/"), &defaults());
    for tick in 0..20 {
        let readings = sensors.read(Duration::from_millis(tick * 100), SystemTime::UNIX_EPOCH, &[]);
        for reading in &readings {
            if let Ok(value) = reading.value {
                assert!(value.is_finite() && value >= 0.0, "{reading:?}");
            }
        }
        let memory = readings.iter().find(|reading| &*reading.signal == "memory").unwrap();
        assert!(memory.value.is_ok(), "{memory:?}");
    }
}

#[test]
fn many_workloads_take_turns_and_none_becomes_stale() {
    let mut bench = Bench::new(defaults());
    bench.write("proc/self/mountinfo", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    for port in 1..=100 {
        let path = format!("sys/fs/cgroup/{port}");
        bench.write(&format!("{path}/cpu.pressure"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
        let id = fs::metadata(bench.path(&path)).unwrap().ino();
        bench.listeners.push(ListenerFact {
            port,
            inode: 0,
            accept_queue: 1,
            backlog: 2,
            cgroup_id: Some(id),
        });
    }
    let mut last_read = [0; 101];
    for tick in 0..50 {
        let now_ms = tick * 100;
        bench.tick(now_ms);
        let scopes = bench.scopes("psi_cpu_some");
        assert!(scopes.contains(&"host"));
        let read: Vec<usize> =
            scopes.iter().filter_map(|scope| scope.strip_prefix("cgroup:/")?.parse().ok()).collect();
        assert_eq!(bench.scopes("memory").len(), read.len() + 1, "all sensors keep the same turns");
        assert!(if tick == 0 { read.len() == 100 } else { read.len() <= 35 }, "{} at {tick}", read.len());
        for workload in read {
            last_read[workload] = now_ms;
        }
        assert!(last_read[1..].iter().all(|at| now_ms - at < 600), "{last_read:?}");
    }
}
