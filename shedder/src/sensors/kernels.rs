//! Every sensor against the files of real kernels.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::context::ListenerFact;
use super::testing::{Bench, signal};
use crate::config::model::{PsiResource, PsiWindow, Signal, SignalSource};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sensors/fixtures")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn signals() -> Vec<Signal> {
    let psi = |resource, full, window| SignalSource::Psi { resource, full, window };
    vec![
        signal("cpu_some", psi(PsiResource::Cpu, false, PsiWindow::Avg10)),
        signal("cpu_full", psi(PsiResource::Cpu, true, PsiWindow::Avg10)),
        signal("cpu_total", psi(PsiResource::Cpu, false, PsiWindow::Over(Duration::from_secs(1)))),
        signal("memory_full", psi(PsiResource::Memory, true, PsiWindow::Avg300)),
        signal("io_some", psi(PsiResource::Io, false, PsiWindow::Avg60)),
        signal("memory", SignalSource::Memory),
        signal("fds", SignalSource::Fds),
        signal("tcp_mem", SignalSource::TcpMem),
        signal("listen_overflows", SignalSource::ListenOverflows),
        signal("conntrack", SignalSource::Conntrack),
    ]
}

const UNIFIED: &str = "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
const LEGACY: &str = "36 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
const HYBRID: &str = "\
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
36 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";

/// A host with this kernel's files, on which process 100 listens on port 80 with five descriptors.
fn bench(kernel: &str, mountinfo: &str) -> Bench {
    let mut bench = Bench::new(signals());
    let files = fixtures().join(kernel);
    copy(&files.join("proc"), &bench.path("proc"));
    bench.write("proc/self/mountinfo", mountinfo);
    bench.write(
        "proc/100/cgroup",
        if mountinfo == UNIFIED { "0::/web\n" } else { "4:memory:/web\n0::/web\n" },
    );
    fs::create_dir(bench.path("proc/100/fd")).unwrap();
    for fd in 0..5 {
        let target = if fd == 3 { "socket:[77]" } else { "/dev/null" };
        symlink(target, bench.path(&format!("proc/100/fd/{fd}"))).unwrap();
    }
    let unified = match mountinfo {
        UNIFIED => Some("sys/fs/cgroup"),
        HYBRID => Some("sys/fs/cgroup/unified"),
        _ => None,
    };
    let cgroup_id = unified.map(|mount| {
        copy(&files.join("unified"), &bench.path(mount));
        fs::metadata(bench.path(mount).join("web")).unwrap().ino()
    });
    if mountinfo != UNIFIED {
        copy(&files.join("memory"), &bench.path("sys/fs/cgroup/memory"));
    }
    bench.listeners =
        vec![ListenerFact { port: 80, inode: 77, accept_queue: 0, backlog: 128, drops: Some(0), cgroup_id }];
    bench.tick(0);
    bench.tick(1_000);
    bench
}

#[track_caller]
fn assert_near(value: Result<f64, String>, expected: f64) {
    let value = value.unwrap();
    assert!((value - expected).abs() < 0.000_5, "{value} is not {expected}");
}

/// Kernel, host memory, pages of TCP over their pressure limit, `some avg10` of the cgroup's CPU, bytes that it uses in
/// cgroup v2 and v1.
type Expected = (&'static str, f64, f64, f64, u64, Option<u64>);

const KERNELS: [Expected; 5] = [
    ("linux-5.10", 1.0 - 459_172.0 / 487_148.0, 682.0 / 7_410.0, 4.00, 20_324_352, Some(20_324_352)),
    ("linux-5.15", 1.0 - 446_244.0 / 479_204.0, 682.0 / 7_274.0, 4.15, 20_316_160, Some(20_324_352)),
    ("linux-6.1", 1.0 - 448_596.0 / 481_296.0, 512.0 / 7_306.0, 5.93, 20_459_520, Some(20_459_520)),
    ("linux-6.8", 1.0 - 430_052.0 / 469_440.0, 512.0 / 7_145.0, 6.67, 20_443_136, Some(20_447_232)),
    ("linux-6.12", 1.0 - 439_708.0 / 475_860.0, 512.0 / 7_242.0, 5.04, 20_447_232, None),
];

const LIMIT: f64 = (64 << 20) as f64;

#[test]
fn every_kernel_with_cgroup_v2() {
    for (kernel, memory, tcp_mem, cpu_some, used, _) in KERNELS {
        let bench = bench(kernel, UNIFIED);
        eprintln!("{kernel}");
        assert_near(bench.value("memory", "host"), memory);
        assert_near(bench.value("tcp_mem", "host"), tcp_mem);
        assert_near(bench.value("cpu_some", "cgroup:/web"), cpu_some);
        assert_near(bench.value("memory", "cgroup:/web"), used as f64 / LIMIT);
        assert_eq!(bench.value("cpu_full", "host").is_ok(), kernel != "linux-5.10");
        for scope in ["host", "cgroup:/web"] {
            assert!(bench.value("memory_full", scope).is_ok());
            assert!(bench.value("io_some", scope).is_ok());
            assert_eq!(bench.value("cpu_total", scope), Ok(0.0), "the counter stood still");
        }
        assert_eq!(bench.value("listen_overflows", "port:80"), Ok(0.0));
        assert!(bench.value("fds", "host").is_ok_and(|ratio| ratio > 0.0));
        assert!(bench.value("conntrack", "host").is_err());
    }
}

#[test]
fn every_kernel_with_cgroup_v1() {
    for (kernel, _, _, _, _, used) in KERNELS {
        let Some(used) = used else { continue };
        let bench = bench(kernel, LEGACY);
        assert_near(bench.value("memory", "cgroup:/web"), used as f64 / LIMIT);
        assert!(bench.value("cpu_some", "cgroup:/web").unwrap_err().contains("cgroup v2"));
        assert!(bench.value("cpu_some", "host").is_ok());
    }
}

#[test]
fn a_hybrid_kernel_has_memory_from_one_hierarchy_and_pressure_from_the_other() {
    let bench = bench("linux-6.18", HYBRID);
    assert_near(bench.value("memory", "cgroup:/web"), (667_648.0 - 4_096.0) / LIMIT);
    assert!(bench.value("cpu_some", "cgroup:/web").is_ok());
    let absent = self::bench("linux-6.18", UNIFIED);
    assert!(absent.value("memory", "cgroup:/web").is_err());
}

#[test]
fn descriptors_are_counted_where_the_kernel_does_not_tell_their_number() {
    for kernel in ["linux-5.10", "linux-5.15", "linux-6.1"] {
        assert_near(bench(kernel, UNIFIED).value("fds", "port:80"), 5.0 / 1_024.0);
    }
}

#[test]
fn overflows_of_every_kernel_are_found() {
    for (kernel, ..) in KERNELS {
        let mut bench = bench(kernel, UNIFIED);
        let text = fs::read_to_string(bench.path("proc/net/netstat")).unwrap();
        // Both counters stood at 18: one more overflow, and a hundred other drops.
        bench.write("proc/net/netstat", &text.replace(" 18 18 ", " 19 118 "));
        bench.listeners[0].drops = Some(2);
        bench.tick(2_000);
        assert_eq!(bench.value("listen_overflows", "port:80"), Ok(1.0), "{kernel}");
    }
}
