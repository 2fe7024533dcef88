use super::*;
use crate::sensors::testing::{Bench, RealCgroup, signal};

const MEMINFO_5_15: &str = include_str!("fixtures/meminfo_5_15");
const MEMINFO_6_18: &str = include_str!("../fixtures/linux-6.18/proc/meminfo");
const V2_STAT: &str = include_str!("fixtures/v2_stat_6_1");
/// With a limit, which the tests take away.
const V1_STAT_LIMITED: &str = include_str!("../fixtures/linux-5.15/memory/web/memory.stat");

const MIB: u64 = 1 << 20;

fn v1_stat(limit: &str) -> String {
    V1_STAT_LIMITED
        .replace("hierarchical_memory_limit 67108864", &format!("hierarchical_memory_limit {limit}"))
}

fn meminfo(text: &str) -> Result<f64, String> {
    let mut bench = Bench::new([signal("memory", SignalSource::Memory)]);
    bench.write("proc/meminfo", text);
    bench.tick(0);
    bench.value("memory", "host")
}

#[test]
fn the_host_uses_what_is_not_available() {
    assert_eq!(meminfo(MEMINFO_5_15), Ok(0.95));
    let used = meminfo(MEMINFO_6_18).unwrap();
    assert!((0.0..1.0).contains(&used), "{used}");
    assert_eq!(meminfo("MemTotal: 10 kB\nMemAvailable: 11 kB\n"), Ok(0.0), "never below nothing");
}

#[test]
fn a_host_that_does_not_tell_is_unavailable() {
    for (text, reason) in [
        ("", "MemTotal"),
        ("MemTotal:       0 kB\nMemAvailable:   0 kB\n", "MemTotal"),
        ("MemTotal:       16384000 kB\nMemFree:  1 kB\n", "MemAvailable"),
        ("MemTotal:       16384000 kB\nMemAvailable:     819", "MemAvailable"),
        ("MemTotal:       16384000 kB\nMemAvailable:     -5 kB\n", "MemAvailable"),
        ("MemTotal:       16384000 MB\nMemAvailable:     5 MB\n", "MemTotal"),
    ] {
        assert!(meminfo(text).unwrap_err().contains(reason), "{text:?}");
    }
}

/// A cgroup of v2 below a bench's root.
struct V2 {
    bench: Bench,
    source: Source,
}

impl V2 {
    fn new() -> Self {
        let bench = Bench::new([]);
        for path in ["cgroup.procs", "pods/cgroup.procs", "pods/a/cgroup.procs"] {
            bench.write(path, "");
        }
        bench.write("pods/a/memory.current", &format!("{}\n", 900 * MIB));
        bench.write("pods/a/memory.stat", V2_STAT);
        Self { bench, source: Source::default() }
    }

    fn value(&mut self) -> Result<f64, String> {
        let directory = self.bench.path("pods/a");
        let workload = Workload { unified: Some(directory), memory_v1: None };
        read(&mut self.source, &workload, "/pods/a")
    }
}

fn read(source: &mut Source, workload: &Workload, path: &str) -> Result<f64, String> {
    Cgroup::new(workload, 0)
        .value(source, Duration::ZERO, LIMIT_REFRESH, Path::new(path), &mut HashMap::new())
        .map_err(|error| error.reason.into_owned())
}

fn read_v1(directory: &Path) -> Result<f64, String> {
    let workload = Workload { unified: None, memory_v1: Some(directory.to_owned()) };
    read(&mut Source::default(), &workload, "/a")
}

#[test]
fn the_working_set_leaves_inactive_file_pages_out() {
    let mut cgroup = V2::new();
    cgroup.bench.write("pods/memory.max", "max\n");
    cgroup.bench.write("pods/a/memory.max", &format!("{}\n", 1_000 * MIB));
    assert_eq!(cgroup.value(), Ok(0.7));
}

#[test]
fn the_smallest_limit_up_the_hierarchy_counts() {
    let mut cgroup = V2::new();
    cgroup.bench.write("pods/a/memory.max", "max\n");
    cgroup.bench.write("pods/memory.max", &format!("{}\n", 875 * MIB));
    assert_eq!(cgroup.value(), Ok(0.8));
    cgroup.bench.write("pods/a/memory.max", &format!("{}\n", 1_400 * MIB));
    assert_eq!(cgroup.value(), Ok(0.8));
    cgroup.bench.write("pods/memory.max", &format!("{}\n", 2_000 * MIB));
    assert_eq!(cgroup.value(), Ok(0.5));
    cgroup.bench.write("memory.max", &format!("{}\n", 700 * MIB));
    assert_eq!(cgroup.value(), Ok(1.0), "the root of a mount within a container has a limit");
}

#[test]
fn no_limit_is_no_reading() {
    let mut cgroup = V2::new();
    cgroup.bench.write("pods/a/memory.max", "max\n");
    cgroup.bench.write("pods/memory.max", "max\n");
    assert!(cgroup.value().unwrap_err().contains("no memory limit"));
    cgroup.bench.write("pods/a/memory.max", "0\n");
    assert!(cgroup.value().unwrap_err().contains("limit is 0"));
}

#[test]
fn a_cgroup_without_the_controller_or_gone_is_named() {
    let mut cgroup = V2::new();
    assert!(cgroup.value().unwrap_err().contains("not enabled"), "no memory.max");
    std::fs::remove_dir_all(cgroup.bench.path("pods/a")).unwrap();
    assert!(cgroup.value().unwrap_err().contains("memory.max"));
}

#[test]
fn truncated_files_are_unavailable() {
    let mut cgroup = V2::new();
    cgroup.bench.write("pods/a/memory.max", &format!("{}\n", 1_000 * MIB));
    cgroup.bench.write("pods/a/memory.stat", "anon 5\nfile 6\n");
    assert!(cgroup.value().unwrap_err().contains("inactive_file"));
    cgroup.bench.write("pods/a/memory.stat", V2_STAT);
    cgroup.bench.write("pods/a/memory.current", "");
    assert!(cgroup.value().unwrap_err().contains("memory.current"));
    cgroup.bench.write("pods/a/memory.max", "");
    assert!(cgroup.value().unwrap_err().contains("memory.max"));
}

fn v1_value(usage: u64, limit: &str, stat: &str) -> Result<f64, String> {
    let bench = Bench::new([]);
    bench.write("a/memory.usage_in_bytes", &format!("{usage}\n"));
    bench.write("a/memory.limit_in_bytes", limit);
    bench.write("a/memory.stat", stat);
    read_v1(&bench.path("a"))
}

#[test]
fn cgroup_v1_tells_the_hierarchys_limit_itself() {
    let stat = format!(
        "inactive_file 1\nhierarchical_memory_limit {}\ntotal_inactive_file {}\n",
        800 * MIB,
        100 * MIB
    );
    assert_eq!(v1_value(500 * MIB, "9223372036854771712\n", &stat), Ok(0.5));
    assert_eq!(v1_value(500 * MIB, &format!("{}\n", 400 * MIB), &stat), Ok(1.0));
}

#[test]
fn cgroup_v1_without_a_limit_is_unavailable_with_pages_of_any_size() {
    for unlimited in ["9223372036854771712", "9223372036854710272"] {
        let error = v1_value(5, &format!("{unlimited}\n"), &v1_stat(unlimited)).unwrap_err();
        assert!(error.contains("no memory limit"), "{error}");
    }
    assert!(v1_value(5, "x\n", &v1_stat("5")).unwrap_err().contains("limit_in_bytes"));
    assert!(v1_value(5, "10\n", "cache 5\n").unwrap_err().contains("total_inactive_file"));
}

#[test]
fn a_real_cgroup_is_read() {
    let cgroup = RealCgroup::memory_v1("memory");
    let value = || read_v1(cgroup.path());
    assert!(value().unwrap_err().contains("no memory limit"));
    std::fs::write(cgroup.path().join("memory.limit_in_bytes"), "67108864").unwrap();
    assert_eq!(value(), Ok(0.0), "nothing runs in it");
}

#[test]
fn a_changed_limit_is_seen_within_a_second_and_not_all_in_one_tick() {
    use std::os::unix::fs::MetadataExt;

    use crate::sensors::context::ListenerFact;

    let mut bench = Bench::new([signal("memory", SignalSource::Memory)]);
    bench.write("proc/self/mountinfo", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    let limit = |bench: &Bench, pod: u16, bytes: u64| {
        bench.write(&format!("sys/fs/cgroup/{pod}/memory.max"), &format!("{bytes}\n"));
    };
    for pod in 1..=40 {
        limit(&bench, pod, 1_000);
        bench.write(&format!("sys/fs/cgroup/{pod}/memory.current"), "500\n");
        bench.write(&format!("sys/fs/cgroup/{pod}/memory.stat"), "inactive_file 100\n");
        let id = std::fs::metadata(bench.path(&format!("sys/fs/cgroup/{pod}"))).unwrap().ino();
        bench.listeners.push(ListenerFact {
            port: pod,
            inode: 0,
            accept_queue: 0,
            backlog: 1,
            drops: Some(0),
            cgroup_id: Some(id),
        });
    }
    bench.tick(0);
    for pod in 1..=40 {
        assert_eq!(bench.value("memory", &format!("cgroup:/{pod}")), Ok(0.4), "each from the first tick on");
        limit(&bench, pod, 500);
    }
    let seen = |bench: &Bench| {
        (1..=40).filter(|pod| bench.value("memory", &format!("cgroup:/{pod}")) == Ok(0.8)).count()
    };
    bench.tick(500);
    assert!((15..=25).contains(&seen(&bench)), "half of them, not all in one tick: {}", seen(&bench));
    bench.tick(1_000);
    for pod in 1..=40 {
        assert_eq!(bench.value("memory", &format!("cgroup:/{pod}")), Ok(0.8));
    }
}
