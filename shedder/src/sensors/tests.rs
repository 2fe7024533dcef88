use std::fs;
use std::os::unix::fs::MetadataExt;

use super::reading::{Cause, CgroupPath};
use super::testing::{Bench, signal};
use super::*;
use crate::config::model::{Config, FileScope, PsiResource, PsiWindow, Threshold};

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
        let expected: &[&str] = if ["accept_queue", "listen_overflows"].contains(&signal.name.as_str()) {
            &[]
        } else {
            &["host"]
        };
        assert_eq!(scopes, expected, "{}", signal.name);
    }
}

#[test]
fn each_signal_is_read_once_at_each_scope() {
    let mut bench = Bench::new(defaults());
    bench.write("proc/self/mountinfo", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    bench.write("sys/fs/cgroup/web/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
    let id = fs::metadata(bench.path("sys/fs/cgroup/web")).unwrap().ino();
    let listener = |port| ListenerFact {
        port,
        inode: 7,
        accept_queue: 1,
        backlog: 2,
        drops: Some(0),
        cgroup_id: Some(id),
    };
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
    let served: Vec<_> =
        bench.sensors().workloads().served(443..=443).flat_map(|(_, cgroups)| cgroups).collect();
    assert_eq!(served, [&CgroupPath::new(Path::new("/web"))]);
}

#[test]
fn a_cgroup_that_is_removed_meanwhile_is_named_and_hides_nothing() {
    let mut bench = Bench::new(defaults());
    bench.write("proc/self/mountinfo", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    bench.write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 50 kB\n");
    bench.write("sys/fs/cgroup/web/memory.current", "5\n");
    let pressure =
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
    bench.write("sys/fs/cgroup/web/memory.pressure", pressure);
    let id = fs::metadata(bench.path("sys/fs/cgroup/web")).unwrap().ino();
    bench.listeners = vec![ListenerFact {
        port: 80,
        inode: 7,
        accept_queue: 1,
        backlog: 2,
        drops: Some(0),
        cgroup_id: Some(id),
    }];
    bench.tick(0);
    fs::remove_dir_all(bench.path("sys/fs/cgroup/web")).unwrap();
    bench.tick(100);
    assert!(bench.value("memory", "cgroup:/web").is_err());
    assert!(bench.value("psi_memory_some", "cgroup:/web").is_err());
    assert_eq!(bench.value("memory", "host"), Ok(0.5));
}

#[test]
fn what_a_host_or_a_workload_does_not_have_is_no_failed_read() {
    let mut bench = Bench::new(defaults());
    bench.write("proc/self/mountinfo", "36 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    bench.write("proc/10/cgroup", "4:memory:/web\n");
    fs::create_dir_all(bench.path("proc/10/fd")).unwrap();
    std::os::unix::fs::symlink("socket:[7]", bench.path("proc/10/fd/3")).unwrap();
    bench.write(
        "proc/10/limits",
        "Max open files            unlimited            unlimited            files\n",
    );
    bench.write("proc/sys/fs/file-nr", "5\t0\t9223372036854775807\n");
    bench.write("sys/fs/cgroup/memory/web/memory.limit_in_bytes", "9223372036854771712\n");
    bench.write("sys/fs/cgroup/memory/web/memory.stat", "hierarchical_memory_limit 9223372036854771712\n");
    bench.listeners = vec![ListenerFact {
        port: 80,
        inode: 7,
        accept_queue: 1,
        backlog: 2,
        drops: Some(0),
        cgroup_id: None,
    }];
    let readings = bench.tick(0);
    let absent = [
        ("psi_memory_some", "host"),
        ("psi_cpu_some", "host"),
        ("psi_cpu_some", "cgroup:/web"),
        ("conntrack", "host"),
        ("memory", "cgroup:/web"),
        ("fds", "host"),
        ("fds", "port:80"),
    ];
    let cause = |signal: &str, scope: &str| {
        let mut readings = readings.iter();
        let reading = readings.find(|at| &*at.signal == signal && at.scope.to_string() == scope).unwrap();
        reading.value.as_ref().unwrap_err().cause
    };
    for (signal, scope) in absent {
        assert_eq!(cause(signal, scope), Cause::Absent, "{signal} at {scope}");
    }
    for signal in ["memory", "tcp_mem", "own"] {
        assert_eq!(cause(signal, "host"), Cause::Failed, "{signal}");
    }
}

#[test]
fn a_window_that_is_not_over_is_no_failed_read() {
    let mut bench = Bench::new(defaults());
    bench.write("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
    let readings = bench.tick(0);
    let cpu = readings.iter().find(|reading| &*reading.signal == "psi_cpu_some").unwrap();
    assert_eq!(cpu.value.as_ref().unwrap_err().cause, Cause::NotYet);
}

#[test]
fn a_number_that_nobody_writes_any_more_is_in_force_for_stale_after() {
    let path = PathBuf::from("/run/age");
    let mut own = signal("age", SignalSource::File { path, scope: FileScope::Host });
    own.thresholds[1] = Some(Threshold { enter: 1.0, exit: 0.5 });
    let mut levels = crate::levels::Levels::new(&Config::observe_default().levels, &[own.clone()]);
    let mut bench = Bench::new([own]);
    bench.write("run/age", "5");
    let written = fs::metadata(bench.path("run/age")).unwrap().modified().unwrap();
    let mut lost = None;
    for ms in (0..5_000).step_by(100) {
        bench.wall = written + Duration::from_millis(ms);
        if ms == 1_900 {
            // Neither does it hold longer if it goes before it is too old.
            fs::remove_file(bench.path("run/age")).unwrap();
        }
        let (now, readings) = (Duration::from_millis(ms), bench.tick(ms));
        levels.update(now, &readings, |_| false);
        let demands = &levels.signal_states(now)[0].demands;
        if lost.is_none() && demands == "normal" {
            lost = Some(ms);
        }
    }
    assert_eq!(lost, Some(2_000));
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
        let readings = sensors.read(Duration::from_millis(tick * 100), SystemTime::UNIX_EPOCH, None);
        for reading in &readings {
            if let Ok(value) = reading.value {
                assert!(value.is_finite() && value >= 0.0, "{reading:?}");
            }
        }
        let memory = readings.iter().find(|reading| &*reading.signal == "memory").unwrap();
        assert!(memory.value.is_ok(), "{memory:?}");
    }
}

/// A bench with so many workloads, each with pressure.
fn crowded(workloads: u16) -> Bench {
    let mut bench = Bench::new(defaults());
    bench.write("proc/self/mountinfo", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    for port in 1..=workloads {
        let path = format!("sys/fs/cgroup/{port}");
        bench.write(&format!("{path}/cpu.pressure"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
        let id = fs::metadata(bench.path(&path)).unwrap().ino();
        bench.listeners.push(ListenerFact {
            port,
            inode: 0,
            accept_queue: 1,
            backlog: 2,
            drops: Some(0),
            cgroup_id: Some(id),
        });
    }
    bench
}

/// Ticks for three seconds and asserts how long each workload waits at most for this signal, and how many of them are
/// read in one tick after the first.
#[track_caller]
fn assert_turns(workloads: u16, signal: &str, longest_ms: u64, most: usize) {
    let mut bench = crowded(workloads);
    let mut last_read = vec![0; usize::from(workloads) + 1];
    for tick in 0..30 {
        let now_ms = tick * 100;
        bench.write("proc/pressure/cpu", &format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={tick}\n"));
        bench.tick(now_ms);
        let scopes = bench.scopes(signal);
        assert!(scopes.contains(&"host"));
        let read: Vec<usize> =
            scopes.iter().filter_map(|scope| scope.strip_prefix("cgroup:/")?.parse().ok()).collect();
        let expected = if tick == 0 { last_read.len() - 1..=last_read.len() - 1 } else { 0..=most };
        assert!(expected.contains(&read.len()), "{} of {workloads} at {tick}", read.len());
        for workload in read {
            last_read[workload] = now_ms;
        }
        let longest = last_read[1..].iter().map(|at| now_ms - at).max().unwrap();
        assert!(longest < longest_ms, "{longest} ms of {workloads} at {tick}");
    }
}

#[test]
fn the_pressure_of_a_few_workloads_is_read_at_every_tick_and_of_more_at_every_second() {
    assert_turns(50, "psi_cpu_some", 100, 50);
    assert_turns(200, "psi_cpu_some", 200, 100);
}

#[test]
fn many_workloads_take_turns_and_none_becomes_stale() {
    assert_turns(16, "memory", 100, 16);
    assert_turns(100, "memory", 600, 35);
    assert_turns(600, "psi_cpu_some", 600, 230);
}

#[test]
fn a_reload_interrupts_no_window_that_it_does_not_change() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/pressure")).unwrap();
    let psi = |resource| SignalSource::Psi {
        resource,
        full: false,
        window: PsiWindow::Over(Duration::from_secs(30)),
    };
    let cpu = signal("psi_cpu_some", psi(PsiResource::Cpu));
    let mut sensors = Sensors::new(root.path(), std::slice::from_ref(&cpu));
    let read = |sensors: &mut Sensors, tick: u64| {
        let line = format!("some avg10=0 avg60=0 avg300=0 total={}\n", tick * 95_000);
        fs::write(root.path().join("proc/pressure/cpu"), line).unwrap();
        let readings = sensors.read(Duration::from_millis(tick * 100), SystemTime::UNIX_EPOCH, None);
        let of_cpu = |reading: &Reading| &*reading.signal == "psi_cpu_some";
        readings.into_iter().find(of_cpu).unwrap().value.map(f64::round)
    };
    (0..400).for_each(|tick| drop(read(&mut sensors, tick)));
    let own = |stale_ms| Signal {
        stale_after: Duration::from_millis(stale_ms),
        ..signal("own", SignalSource::File { path: PathBuf::from("/run/own"), scope: FileScope::Host })
    };
    let higher =
        Signal { thresholds: [None, None, None, Some(Threshold { enter: 99.0, exit: 1.0 })], ..cpu.clone() };
    for (tick, signals) in
        [vec![cpu.clone()], vec![higher, own(2_000)], vec![cpu.clone(), own(3_000)]].iter().enumerate()
    {
        sensors.set_signals(signals);
        assert_eq!(read(&mut sensors, 400 + tick as u64), Ok(95.0), "{signals:?}");
    }
    let shorter = Signal {
        source: SignalSource::Psi {
            resource: PsiResource::Cpu,
            full: false,
            window: PsiWindow::Over(Duration::from_secs(1)),
        },
        ..cpu
    };
    sensors.set_signals(&[shorter]);
    assert!(read(&mut sensors, 403).is_err(), "another window begins anew");
}
