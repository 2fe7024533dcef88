//! What the kernel holds of whom.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::maps::MapData;
use aya::programs::loaded_programs;
use aya::programs::tc::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use xtask::testbed::Namespace;

use super::eventually;

/// The product's object; besides its own programs it has two that pass everything, which here are somebody
/// else's.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/shedder.bpf.o"));

/// The programs that pass everything, not loaded into the kernel yet.
pub fn foreign() -> Ebpf {
    EbpfLoader::new().load(OBJECT).unwrap()
}

/// Ids of kernel objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub programs: BTreeSet<u32>,
    pub maps: BTreeSet<u32>,
    pub links: BTreeSet<u32>,
}

/// What a process holds open.
pub fn held(pid: u32) -> Held {
    let mut held = Held::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
        // A descriptor may be closed meanwhile.
        let Ok(text) = fs::read_to_string(entry.unwrap().path()) else { continue };
        let info = fields(&text);
        let id = |key: &str| info.get(key).and_then(|value| value.parse::<u32>().ok());
        held.programs.extend(id("prog_id"));
        held.maps.extend(id("map_id"));
        held.links.extend(id("link_id"));
    }
    held
}

/// Links to interfaces that a process holds open: by link id, interface index.
pub fn interface_links(pid: u32) -> BTreeMap<u32, u32> {
    let mut links = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
        let Ok(text) = fs::read_to_string(entry.unwrap().path()) else { continue };
        let info = fields(&text);
        let number = |key: &str| info.get(key).and_then(|value| value.parse::<u32>().ok());
        if let (Some(link), Some(ifindex)) = (number("link_id"), number("ifindex")) {
            links.insert(link, ifindex);
        }
    }
    links
}

fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect()
}

/// Waits until the kernel holds none of these; it frees them after the last reference is gone.
pub fn eventually_gone(held: &Held) {
    assert!(!held.programs.is_empty() && !held.maps.is_empty() && !held.links.is_empty(), "{held:?}");
    eventually("programs, maps and links are gone from the kernel", || {
        let programs =
            loaded_programs().filter_map(Result::ok).any(|info| held.programs.contains(&info.id()));
        let maps = aya::maps::loaded_maps().filter_map(Result::ok).any(|info| held.maps.contains(&info.id()));
        let links =
            aya::programs::loaded_links().filter_map(Result::ok).any(|info| held.links.contains(&info.id()));
        !(programs || maps || links)
    });
}

/// Names of the programs on the TCX ingress hook of an interface, first to last.
pub fn tcx(namespace: &Namespace, interface: &str) -> Vec<String> {
    let (_, programs) =
        namespace.enter(|| SchedClassifier::query_tcx(interface, TcAttachType::Ingress).unwrap()).unwrap();
    programs.iter().map(|program| program.name_as_str().unwrap_or_default().to_owned()).collect()
}

/// Id of the XDP program on an interface.
pub fn xdp(namespace: &Namespace, interface: &str) -> Option<u32> {
    let links = namespace.enter(shedder::net::links::list).unwrap().unwrap();
    links.into_iter().find(|link| link.name == interface).unwrap().xdp_attached
}

/// Has the kernel refuse whatever a process would write into a map from now on.
#[expect(unsafe_code, reason = "the library has no such call")]
pub fn freeze(map: &MapData) {
    const BPF_MAP_FREEZE: libc::c_long = 22;
    let mut descriptor = map.fd().as_fd().as_raw_fd();
    // SAFETY: the call reads the descriptor, which is all that this command takes.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_FREEZE, &raw mut descriptor, size_of_val(&descriptor))
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
