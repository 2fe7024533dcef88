use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use super::*;
use crate::sensors::testing::{Bench, RealCgroup, signal};

const V6_18: &str = include_str!("../fixtures/linux-6.18/proc/pressure/memory");
/// Before 5.13 the CPU file has no `full` line.
const CPU_5_10: &str = include_str!("../fixtures/linux-5.10/unified/web/cpu.pressure");

fn psi(resource: PsiResource, full: bool, window: PsiWindow) -> SignalSource {
    SignalSource::Psi { resource, full, window }
}

fn over(seconds: u64) -> PsiWindow {
    PsiWindow::Over(Duration::from_secs(seconds))
}

fn lines(some_us: u64, full_us: u64) -> String {
    format!(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total={some_us}\n\
         full avg10=0.00 avg60=0.00 avg300=0.00 total={full_us}\n"
    )
}

fn memory_bench() -> Bench {
    Bench::new([
        signal("some", psi(PsiResource::Memory, false, over(1))),
        signal("full", psi(PsiResource::Memory, true, over(1))),
    ])
}

#[test]
fn stall_time_over_the_window_in_percent() {
    let mut bench = memory_bench();
    for tick in 0..=10 {
        bench.write("proc/pressure/memory", &lines(5_000_000 + tick * 25_000, 7_000 + tick * 10_000));
        bench.tick(tick * 100);
        assert_eq!(bench.value("some", "host").is_ok(), tick >= 5, "half a window first");
    }
    assert_eq!(bench.value("some", "host"), Ok(25.0));
    assert_eq!(bench.value("full", "host"), Ok(10.0));
}

#[test]
fn a_stall_shows_within_two_ticks() {
    let mut bench = memory_bench();
    for tick in 0..=20 {
        bench.write("proc/pressure/memory", &lines(0, 0));
        bench.tick(tick * 100);
    }
    bench.write("proc/pressure/memory", &lines(100_000, 50_000));
    bench.tick(2_100);
    assert_eq!(bench.value("some", "host"), Ok(10.0), "the moderate threshold");
    assert_eq!(bench.value("full", "host"), Ok(5.0));
}

/// A host that stalls for a fifth of the time, and what it has reclaimed by a tick.
fn stalls_at_every_tick(
    bench: &mut Bench,
    ticks: std::ops::RangeInclusive<u64>,
    vmstat: impl Fn(u64) -> String,
) {
    for tick in ticks {
        bench.write("proc/pressure/memory", &lines(tick * 20_000, tick * 10_000));
        bench.write("proc/vmstat", &vmstat(tick));
        bench.tick(tick * 100);
    }
}

#[test]
fn a_stall_is_the_hosts_while_the_host_reclaims() {
    let mut bench = memory_bench();
    let vmstat = |kswapd, direct| {
        format!(
            "nr_free_pages 7\npgsteal_kswapd 3\npgscan_kswapd {kswapd}\npgscan_direct {direct}\ncompact_stall 0\n"
        )
    };
    stalls_at_every_tick(&mut bench, 0..=20, |_| vmstat(500, 9));
    assert_eq!(bench.value("some", "host"), Ok(0.0), "a control group at its own limit");
    assert_eq!(bench.value("full", "host"), Ok(0.0));
    stalls_at_every_tick(&mut bench, 21..=21, |_| vmstat(501, 9));
    assert_eq!(bench.value("some", "host"), Ok(20.0), "at once");
    assert_eq!(bench.value("full", "host"), Ok(10.0));
    stalls_at_every_tick(&mut bench, 22..=31, |_| vmstat(501, 9));
    assert_eq!(bench.value("some", "host"), Ok(20.0), "for the length of the window");
    stalls_at_every_tick(&mut bench, 32..=32, |_| vmstat(501, 9));
    assert_eq!(bench.value("some", "host"), Ok(0.0));
    stalls_at_every_tick(&mut bench, 33..=40, |tick| vmstat(501, tick));
    assert_eq!(bench.value("some", "host"), Ok(20.0));
}

#[test]
fn what_was_reclaimed_before_anything_stalled_says_nothing_of_the_stall() {
    let mut bench = memory_bench();
    stalls_at_every_tick(&mut bench, 0..=10, |_| "pgscan_direct 5\n".to_owned());
    for tick in 11..=40 {
        bench.write("proc/pressure/memory", &lines(200_000, 100_000));
        if tick == 25 {
            bench.write("proc/vmstat", "pgscan_direct 4000\n");
        }
        bench.tick(tick * 100);
        if tick > 20 {
            assert_eq!(bench.value("some", "host"), Ok(0.0), "the kernel counts no stall");
        }
    }
    bench.write("proc/pressure/memory", &lines(300_000, 100_000));
    bench.tick(4_100);
    assert_eq!(bench.value("some", "host"), Ok(0.0));
}

#[test]
fn a_stall_shorter_than_a_tick_is_the_hosts_if_the_host_reclaimed_in_that_tick() {
    let mut bench = memory_bench();
    stalls_at_every_tick(&mut bench, 0..=10, |_| "pgscan_direct 5\n".to_owned());
    for tick in 11..=40 {
        bench.write("proc/pressure/memory", &lines(200_000, 100_000));
        bench.tick(tick * 100);
    }
    bench.write("proc/vmstat", "pgscan_direct 4000\n");
    bench.write("proc/pressure/memory", &lines(300_000, 100_000));
    bench.tick(4_100);
    assert_eq!(bench.value("some", "host"), Ok(10.0));
}

#[test]
fn ticks_longer_than_the_window_see_what_the_host_reclaims() {
    let mut bench = memory_bench();
    for tick in 0..=5 {
        bench.write("proc/pressure/memory", &lines(tick * 600_000, tick * 300_000));
        bench.write("proc/vmstat", &format!("pgscan_direct {tick}\n"));
        bench.tick(tick * 3_000);
    }
    assert_eq!(bench.value("some", "host"), Ok(20.0));
}

#[test]
fn the_running_kernel_tells_what_it_reclaims() {
    assert!(Reclaim::new(Path::new("/")).counted().is_some());
}

#[test]
fn where_the_kernel_does_not_tell_every_stall_is_the_hosts() {
    let mut bench = memory_bench();
    stalls_at_every_tick(&mut bench, 0..=20, |_| "nr_free_pages 7\n".to_owned());
    assert_eq!(bench.value("some", "host"), Ok(20.0));
}

#[test]
fn more_than_the_whole_time_is_the_whole_time() {
    let mut bench = memory_bench();
    bench.write("proc/pressure/memory", &lines(0, 0));
    bench.tick(0);
    bench.write("proc/pressure/memory", &lines(1_000_900, 0));
    bench.tick(1_000);
    assert_eq!(bench.value("some", "host"), Ok(100.0));
}

#[test]
fn the_kernels_averages_are_passed_on() {
    let mut bench = Bench::new([
        signal("ten", psi(PsiResource::Io, false, PsiWindow::Avg10)),
        signal("sixty", psi(PsiResource::Io, true, PsiWindow::Avg60)),
        signal("long", psi(PsiResource::Io, false, PsiWindow::Avg300)),
    ]);
    bench.write(
        "proc/pressure/io",
        "some avg10=71.43 avg60=37.41 avg300=11.39 total=95\nfull avg10=60.02 avg60=33.36 avg300=10.05 total=80\n",
    );
    bench.tick(0);
    assert_eq!(bench.value("ten", "host"), Ok(71.43));
    assert_eq!(bench.value("sixty", "host"), Ok(33.36));
    assert_eq!(bench.value("long", "host"), Ok(11.39));
}

#[test]
fn a_cpu_file_without_a_full_line_is_no_zero() {
    let mut bench = Bench::new([
        signal("some", psi(PsiResource::Cpu, false, PsiWindow::Avg10)),
        signal("full", psi(PsiResource::Cpu, true, PsiWindow::Avg10)),
    ]);
    bench.write("proc/pressure/cpu", CPU_5_10);
    bench.tick(0);
    assert_eq!(bench.value("some", "host"), Ok(4.0));
    assert!(bench.value("full", "host").unwrap_err().contains("`full` line"));
}

#[test]
fn a_kernel_without_psi_is_told_from_one_where_it_is_off() {
    let mut bench = memory_bench();
    bench.tick(0);
    assert!(bench.value("some", "host").unwrap_err().contains("CONFIG_PSI"));
    let off = ReadError::Io(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    assert!(explain(&off, Path::new("/proc/pressure/cpu")).reason.contains("psi=1"));
}

#[test]
fn pressure_that_is_not_there_is_looked_for_at_the_pace() {
    let mut bench = memory_bench();
    let told: Vec<u64> = (0..20).filter(|tick| !bench.tick(tick * 100).is_empty()).collect();
    assert_eq!(told, [0, 5, 10, 15], "twice a second, and often enough not to be forgotten");
    bench.write("proc/pressure/memory", &lines(0, 0));
    for tick in 20..30 {
        bench.tick(tick * 100);
    }
    assert_eq!(bench.value("some", "host"), Ok(0.0), "PSI may come");
}

#[test]
fn a_workload_without_pressure_is_looked_at_at_the_pace() {
    let mut bench = workload_bench();
    bench.tick(0);
    fs::remove_file(bench.path(WORKLOAD)).unwrap();
    let mut stalled_us = 0;
    let mut told = Vec::new();
    for tick in 1..=15 {
        stalled_us += 1;
        bench.write("proc/pressure/memory", &lines(stalled_us, 0));
        bench.tick(tick * 100);
        if bench.scopes("some").contains(&"cgroup:/web") {
            told.push(tick);
        }
    }
    assert_eq!(told, [1, 6, 11]);
}

#[test]
fn a_failing_file_hides_no_other() {
    let mut bench = Bench::new([
        signal("memory", psi(PsiResource::Memory, false, PsiWindow::Avg10)),
        signal("io", psi(PsiResource::Io, false, PsiWindow::Avg10)),
    ]);
    bench.write("proc/pressure/io", V6_18);
    symlink("/proc/self/mem", bench.path("proc/pressure/memory")).unwrap();
    bench.tick(0);
    assert!(bench.value("memory", "host").unwrap_err().contains("os error 5"));
    assert!(bench.value("io", "host").is_ok());
    fs::remove_file(bench.path("proc/pressure/memory")).unwrap();
    fs::create_dir(bench.path("proc/pressure/memory")).unwrap();
    bench.tick(100);
    assert!(bench.value("memory", "host").unwrap_err().contains("os error 21"), "EISDIR");
}

#[test]
fn every_truncation_is_unavailable_or_right() {
    let mut bench = Bench::new([signal("full", psi(PsiResource::Memory, true, PsiWindow::Avg300))]);
    let text =
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=9.00 avg60=9.00 avg300=12.50 total=12\n";
    let complete = text.find("12.50").unwrap();
    for end in 0..complete {
        bench.write("proc/pressure/memory", &text[..end]);
        bench.tick(0);
        assert!(bench.value("full", "host").is_err(), "{end}");
    }
    bench.write("proc/pressure/memory", text);
    bench.tick(0);
    assert_eq!(bench.value("full", "host"), Ok(12.5));
}

#[test]
fn garbage_is_refused() {
    for value in ["NaN", "inf", "-1.00", "101.00", "", "x"] {
        let mut bench = Bench::new([signal("some", psi(PsiResource::Cpu, false, PsiWindow::Avg10))]);
        bench.write("proc/pressure/cpu", &format!("some avg10={value} avg60=0.00 avg300=0.00 total=0\n"));
        bench.tick(0);
        assert!(bench.value("some", "host").is_err(), "{value}");
    }
}

#[test]
fn one_file_is_read_once_for_all_its_signals_and_each_has_its_own_window() {
    let mut bench = Bench::new([
        signal("fast", psi(PsiResource::Cpu, false, over(1))),
        signal("slow", psi(PsiResource::Cpu, false, over(10))),
    ]);
    for tick in 0..=100 {
        let stalled_us = tick.max(90) * 100_000;
        bench.write("proc/pressure/cpu", &lines(stalled_us, 0));
        bench.tick(tick * 100);
    }
    assert_eq!(bench.value("fast", "host"), Ok(100.0));
    assert_eq!(bench.value("slow", "host"), Ok(10.0));
}

#[test]
fn the_running_kernel_is_understood_or_says_why_not() {
    let signals = [signal("cpu", psi(PsiResource::Cpu, false, PsiWindow::Avg10))];
    let mut sensors = crate::sensors::Sensors::new(Path::new("/"), &signals);
    let readings = sensors.read(Duration::ZERO, std::time::UNIX_EPOCH, None);
    match &readings[0].value {
        Ok(percent) => assert!((0.0..=100.0).contains(percent)),
        Err(error) => assert!(error.reason.contains("PSI"), "{error}"),
    }
}

#[test]
fn a_real_cgroup_is_read_and_says_when_its_pressure_is_off() {
    let cgroup = RealCgroup::unified("psi");
    let file = cgroup.path().join("cpu.pressure");
    let signal = Pressure { name: Arc::from("cpu"), full: false, window: PsiWindow::Avg10 };
    let workloads = crate::sensors::workloads::Workloads::new(Path::new("/"));
    let context = Context {
        now: Duration::ZERO,
        wall: std::time::UNIX_EPOCH,
        listeners: &[],
        listeners_are_new: true,
        pace: Duration::ZERO,
        workloads: &workloads,
    };
    let mut source = Source::default();
    match source.read(&file) {
        Ok(text) => assert!(signal.read(text, &file, None, &context, &mut true).is_ok()),
        Err(error) => assert!(explain(&error, &file).reason.contains("PSI")),
    }
    // Since 6.1 it can be switched off for one cgroup.
    if fs::write(cgroup.path().join("cgroup.pressure"), "0").is_ok() {
        let error = source.read(&file).unwrap_err();
        assert!(explain(&error, &file).reason.contains("cgroup.pressure"), "{error:?}");
    }
}

/// A host and one workload with memory pressure.
fn workload_bench() -> Bench {
    let mut bench = memory_bench();
    bench.write("proc/self/mountinfo", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    bench.write("proc/pressure/memory", &lines(1_000_000, 0));
    bench.write(WORKLOAD, &lines(0, 0));
    let id =
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(bench.path(WORKLOAD).parent().unwrap()).unwrap());
    bench.listeners = vec![crate::sensors::context::ListenerFact {
        port: 80,
        inode: 0,
        accept_queue: 0,
        backlog: 1,
        drops: Some(0),
        cgroup_id: Some(id),
    }];
    bench
}

const WORKLOAD: &str = "sys/fs/cgroup/web/memory.pressure";

#[test]
fn a_workloads_stall_shows_at_the_tick_at_which_the_hosts_does() {
    let mut bench = workload_bench();
    for tick in 0..=20 {
        bench.tick(tick * 100);
    }
    assert_eq!(bench.value("some", "cgroup:/web"), Ok(0.0));
    bench.write(WORKLOAD, &lines(100_000, 50_000));
    bench.write("proc/pressure/memory", &lines(1_000_001, 0));
    bench.tick(2_100);
    let near = |value: Result<f64, String>, percent: f64| (value.unwrap() / percent - 1.0).abs() < 0.02;
    assert!(near(bench.value("some", "cgroup:/web"), 10.0));
    assert!(near(bench.value("full", "cgroup:/web"), 5.0));
    let over = (22..=32).find(|tick| {
        bench.tick(tick * 100);
        bench.scopes("some").contains(&"cgroup:/web") && bench.value("some", "cgroup:/web") == Ok(0.0)
    });
    assert!(over.is_some_and(|tick| tick > 30), "a second later it is over, read or not: {over:?}");
}

#[test]
fn a_workload_is_read_again_although_the_host_stands_still() {
    let mut bench = workload_bench();
    for tick in 0..=20 {
        bench.tick(tick * 100);
    }
    bench.write(WORKLOAD, &lines(100_000, 0));
    let shown = (21..=25).find(|tick| {
        bench.tick(tick * 100);
        bench.scopes("some").contains(&"cgroup:/web") && bench.value("some", "cgroup:/web") != Ok(0.0)
    });
    assert!(shown.is_some(), "within half a second");
    fs::remove_file(bench.path(WORKLOAD)).unwrap();
    let lost = (26..=32).find(|tick| {
        bench.tick(tick * 100);
        bench.scopes("some").contains(&"cgroup:/web") && bench.value("some", "cgroup:/web").is_err()
    });
    assert!(lost.is_some());
}

#[test]
fn where_the_host_tells_nothing_every_workload_is_read() {
    let mut bench = workload_bench();
    fs::remove_file(bench.path("proc/pressure/memory")).unwrap();
    for tick in 0..=20 {
        bench.tick(tick * 100);
    }
    bench.write(WORKLOAD, &lines(100_000, 0));
    bench.tick(2_100);
    assert_eq!(bench.value("some", "cgroup:/web"), Ok(10.0));
}
