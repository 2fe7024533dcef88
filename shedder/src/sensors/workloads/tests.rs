use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;
use crate::sensors::testing::{Bench, RealCgroup};

const UNIFIED: &str = "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
const HYBRID: &str = "\
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
36 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";
const LEGACY: &str = "36 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

struct Host {
    bench: Bench,
    workloads: Workloads,
}

impl Host {
    fn new(mountinfo: &str) -> Self {
        let bench = Bench::new([]);
        bench.write("proc/self/mountinfo", mountinfo);
        let workloads = Workloads::new(&bench.path(""));
        Self { bench, workloads }
    }

    /// Makes a cgroup of v2 and returns its id.
    fn cgroup(&self, path: &str) -> u64 {
        let path = self.bench.path(path);
        fs::create_dir_all(&path).unwrap();
        fs::metadata(path).unwrap().ino()
    }

    fn process(&self, pid: u32, inode: u32, cgroup: &str) {
        self.bench.write(&format!("proc/{pid}/cgroup"), cgroup);
        fs::create_dir_all(self.bench.path(&format!("proc/{pid}/fd"))).unwrap();
        symlink(format!("socket:[{inode}]"), self.bench.path(&format!("proc/{pid}/fd/3"))).unwrap();
    }

    fn update(&mut self, seconds: u64, listeners: &[(u16, u32, Option<u64>)]) {
        let facts: Vec<ListenerFact> = listeners
            .iter()
            .map(|(port, inode, cgroup_id)| ListenerFact {
                port: *port,
                inode: *inode,
                accept_queue: 0,
                backlog: 1,
                drops: Some(0),
                cgroup_id: *cgroup_id,
            })
            .collect();
        self.workloads.set_listeners(&facts);
        self.workloads.update(Duration::from_secs(seconds));
    }

    fn cgroups(&self, port: u16) -> Vec<&str> {
        let served = self.workloads.served(port..=port).flat_map(|(_, cgroups)| cgroups);
        served.map(|path| path.as_path().to_str().unwrap()).collect()
    }
}

#[test]
fn cgroup_v2_by_the_id_of_the_socket() {
    let mut host = Host::new(UNIFIED);
    let id = host.cgroup("sys/fs/cgroup/system.slice/web.service");
    host.update(0, &[(80, 77, Some(id)), (81, 78, Some(id))]);
    assert_eq!(host.cgroups(80), ["/system.slice/web.service"]);
    assert_eq!(host.cgroups(81), ["/system.slice/web.service"]);
    let (_, workload) = host.workloads.iter().next().unwrap();
    assert_eq!(
        workload.unified.as_deref(),
        Some(&*host.bench.path("sys/fs/cgroup/system.slice/web.service"))
    );
    assert_eq!(workload.memory_v1, None);
    assert_eq!(host.workloads.iter().count(), 1, "one workload, however many listeners");
}

#[test]
fn cgroup_v2_by_the_process_where_the_kernel_names_no_id() {
    let mut host = Host::new(UNIFIED);
    host.cgroup("sys/fs/cgroup/web");
    host.process(10, 77, "0::/web\n");
    host.update(0, &[(80, 77, None), (81, 77, Some(u64::MAX))]);
    assert_eq!(host.cgroups(80), ["/web"]);
    assert_eq!(host.cgroups(81), ["/web"], "the id is of a cgroup that is gone");
    assert_eq!(host.workloads.processes_of(80), Ok(&BTreeSet::from([10])));
}

#[test]
fn a_socket_that_systemd_made_is_also_of_the_service_that_holds_it() {
    let mut host = Host::new(UNIFIED);
    let id = host.cgroup("sys/fs/cgroup/init.scope");
    host.process(1, 77, "0::/init.scope\n");
    host.process(10, 77, "0::/system.slice/web.service\n");
    host.update(0, &[(80, 77, Some(id))]);
    assert_eq!(host.cgroups(80), ["/init.scope", "/system.slice/web.service"]);
}

#[test]
fn a_hybrid_layout_has_memory_in_v1_and_pressure_in_v2() {
    let mut host = Host::new(HYBRID);
    let id = host.cgroup("sys/fs/cgroup/unified/system.slice/web");
    host.process(10, 77, "4:memory:/system.slice/web\n1:name=systemd:/x\n0::/system.slice/web\n");
    host.process(11, 78, "4:memory:/docker/abc\n0::/\n");
    let root = host.cgroup("sys/fs/cgroup/unified");
    host.update(0, &[(80, 77, Some(id)), (81, 78, Some(root))]);
    assert_eq!(host.cgroups(80), ["/system.slice/web"]);
    assert_eq!(host.cgroups(81), ["/docker/abc"], "the root of v2 is the host");
    let all: Vec<_> = host.workloads.iter().map(|(_, workload)| workload.clone()).collect();
    assert_eq!(all[0].unified, None);
    assert_eq!(all[0].memory_v1, Some(host.bench.path("sys/fs/cgroup/memory/docker/abc")));
    assert_eq!(all[1].unified, Some(host.bench.path("sys/fs/cgroup/unified/system.slice/web")));
    assert_eq!(all[1].memory_v1, Some(host.bench.path("sys/fs/cgroup/memory/system.slice/web")));
}

#[test]
fn cgroup_v1_alone_knows_the_workload_by_its_memory() {
    let mut host = Host::new(LEGACY);
    host.process(10, 77, "4:memory,cpu:/web\n");
    host.update(0, &[(80, 77, Some(5))]);
    assert_eq!(host.cgroups(80), ["/web"]);
}

#[test]
fn workloads_come_and_go_with_their_listeners() {
    let mut host = Host::new(UNIFIED);
    let (a, b) = (host.cgroup("sys/fs/cgroup/a"), host.cgroup("sys/fs/cgroup/b"));
    host.update(0, &[(80, 77, Some(a))]);
    host.update(1, &[(80, 77, Some(a)), (80, 78, Some(b))]);
    assert_eq!(host.cgroups(80), ["/a", "/b"]);
    host.update(2, &[(80, 78, Some(b))]);
    assert_eq!(host.cgroups(80), ["/b"]);
    host.update(3, &[]);
    assert!(host.cgroups(80).is_empty());
    assert_eq!(host.workloads.iter().count(), 0);
}

#[test]
fn a_process_that_moves_is_followed() {
    let mut host = Host::new(UNIFIED);
    host.process(10, 77, "0::/a\n");
    host.update(0, &[(80, 77, None)]);
    assert_eq!(host.cgroups(80), ["/a"]);
    host.bench.write("proc/10/cgroup", "0::/b\n");
    host.update(REFRESH.as_secs(), &[(80, 77, None)]);
    assert_eq!(host.cgroups(80), ["/b"]);
}

#[test]
fn an_owner_that_cannot_be_seen_is_named() {
    let mut host = Host::new(UNIFIED);
    host.bench.write("proc/1/cgroup", "0::/\n");
    host.update(0, &[(80, 77, None)]);
    host.update(1, &[(80, 77, None)]);
    assert!(host.cgroups(80).is_empty());
    assert!(host.workloads.processes_of(80).unwrap_err().reason.contains("no process found"));
}

#[test]
fn a_hierarchy_mounted_later_is_found() {
    let mut host = Host::new("24 1 0:22 / /proc rw - proc proc rw\n");
    let id = host.cgroup("sys/fs/cgroup/a");
    host.update(0, &[(80, 77, Some(id))]);
    assert!(host.cgroups(80).is_empty());
    host.bench.write("proc/self/mountinfo", UNIFIED);
    host.update(REFRESH.as_secs(), &[(80, 77, Some(id))]);
    assert_eq!(host.cgroups(80), ["/a"]);
}

#[test]
fn the_id_of_a_real_cgroup_is_its_inode() {
    let cgroup = RealCgroup::unified("index");
    let id = fs::metadata(cgroup.path()).unwrap().ino();
    let mut workloads = Workloads::new(Path::new("/"));
    let listener =
        ListenerFact { port: 80, inode: 0, accept_queue: 0, backlog: 1, drops: Some(0), cgroup_id: Some(id) };
    for second in 0..1_000 {
        workloads.set_listeners(&[listener]);
        workloads.update(Duration::from_secs(second));
        if workloads.iter().next().is_some() {
            break;
        }
    }
    let (path, workload) = workloads.iter().next().expect("found");
    assert_eq!(path.as_path().file_name(), cgroup.path().file_name());
    assert_eq!(workload.unified.as_deref(), Some(cgroup.path()));
}
