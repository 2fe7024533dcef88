//! Facts about the running kernel and about what this process may do in it. Nothing here fails: what cannot be
//! read is a fact of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use procfs::process::MountInfo;
use rustix::time::{ClockId, clock_getres};

/// Magic of bpffs in `statfs`.
const BPF_FS_MAGIC: rustix::fs::FsWord = 0xcafe_4a11;

/// Controllers of cgroup v1 by which a mount is recognised.
const V1_CONTROLLERS: [&str; 7] = ["cpu", "cpuacct", "memory", "blkio", "pids", "cpuset", "freezer"];

/// What the kernel, its file systems and the privileges of this process allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSupport {
    /// Release as the kernel spells it; `unknown` where it cannot be read.
    pub release: String,
    /// Major and minor number of the release.
    pub version: Option<(u32, u32)>,
    /// The kernel carries its own type information.
    pub btf: bool,
    /// Programs are compiled.
    pub bpf_jit: Jit,
    /// XDP programs may be loaded for packets in several buffers, so that a large MTU does not refuse them
    /// (since 5.18).
    pub xdp_frags: bool,
    /// TCX links (since 6.6).
    pub tcx: bool,
    /// The coarse clock is there for programs (since 5.11).
    pub coarse_clock: bool,
    /// Step of the coarse clock.
    pub coarse_clock_resolution_ns: u64,
    /// A bpffs is mounted where the configuration pins.
    pub bpffs_mounted: bool,
    /// Pressure stall information.
    pub psi: Psi,
    /// Where cgroups are mounted.
    pub cgroups: Cgroups,
    /// Effective capabilities; `None` where they cannot be read.
    pub capabilities: Option<Capabilities>,
    /// The effective user is root.
    pub is_root: bool,
    /// Whether the process lives in the initial user namespace, outside of which capabilities do not count for
    /// BPF; `None` where that cannot be read.
    pub initial_user_namespace: Option<bool>,
    /// `none`, `integrity` or `confidentiality`; `None` where the kernel has no lockdown.
    pub lockdown: Option<String>,
}

/// Whether BPF programs are compiled to machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jit {
    /// They are.
    On,
    /// They are interpreted.
    Off,
    /// It cannot be read, and why.
    Unknown(String),
}

/// Whether the kernel measures pressure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Psi {
    /// It does.
    Available,
    /// It could, but was started without.
    Disabled,
    /// It does not, and why.
    Absent(String),
}

/// How cgroups are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// No cgroup file system is mounted.
    #[default]
    None,
    /// Controllers of version 1 only.
    V1,
    /// Version 2 only.
    V2,
    /// Controllers of version 1, and version 2 beside them.
    Hybrid,
}

/// The cgroup file systems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// Which versions there are.
    pub layout: Layout,
    /// Mount point of version 2.
    pub unified: Option<PathBuf>,
    /// Mount points of version 1 by controller.
    pub controllers: BTreeMap<String, PathBuf>,
}

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

/// The capabilities that matter here; the value is the bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Attach programs to interfaces, ask `sock_diag` about everyone's sockets.
    NetAdmin = 12,
    /// Everything that the newer two were split from.
    SysAdmin = 21,
    /// Exceed limits.
    SysResource = 24,
    /// Read kernel memory from programs.
    Perfmon = 38,
    /// Load programs, make maps.
    Bpf = 39,
}

impl Capabilities {
    /// Whether the set holds that one.
    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }

    /// What is lacking to load and attach shedder's programs, by name.
    #[must_use]
    pub fn lacking(self) -> Vec<&'static str> {
        let admin = self.has(Capability::SysAdmin);
        [
            ("CAP_BPF", admin || self.has(Capability::Bpf)),
            ("CAP_PERFMON", admin || self.has(Capability::Perfmon)),
            ("CAP_NET_ADMIN", self.has(Capability::NetAdmin)),
        ]
        .into_iter()
        .filter_map(|(name, there)| (!there).then_some(name))
        .collect()
    }
}

impl KernelSupport {
    /// Reads the facts under `root`, which is `/` but in tests. `bpffs` is the directory that the configuration
    /// pins in.
    #[must_use]
    pub fn read(root: &Path, bpffs: &Path) -> Self {
        let release = text(root, "proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into());
        let version = version(&release);
        let since = |major, minor| version.is_some_and(|version| version >= (major, minor));
        let status = text(root, "proc/self/status").unwrap_or_default();
        Self {
            btf: root.join("sys/kernel/btf/vmlinux").is_file(),
            bpf_jit: jit(text(root, "proc/sys/net/core/bpf_jit_enable")),
            xdp_frags: since(5, 18),
            tcx: since(6, 6),
            coarse_clock: since(5, 11),
            coarse_clock_resolution_ns: coarse_clock_resolution_ns(),
            bpffs_mounted: is_in_bpffs(&below(root, bpffs)),
            psi: psi(root, text(root, "proc/pressure/cpu")),
            cgroups: text(root, "proc/self/mountinfo").map(|text| cgroups(&text)).unwrap_or_default(),
            capabilities: capabilities(&status),
            is_root: effective_user(&status) == Some(0),
            initial_user_namespace: text(root, "proc/self/uid_map").ok().map(|map| maps_everyone(&map)),
            lockdown: text(root, "sys/kernel/security/lockdown").ok().and_then(|text| chosen(&text)),
            release,
            version,
        }
    }

    /// Whether the kernel is at least of that version. One that does not tell is taken for an old one.
    #[must_use]
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        self.version.is_some_and(|version| version >= (major, minor))
    }
}

fn text(root: &Path, path: &str) -> io::Result<String> {
    std::fs::read_to_string(root.join(path)).map(|text| text.trim_end().to_owned())
}

/// An absolute path below the root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Major and minor number of `6.18.44-anything`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn jit(setting: io::Result<String>) -> Jit {
    match setting.as_deref() {
        Ok("0") => Jit::Off,
        Ok("1" | "2") => Jit::On,
        Ok(other) => Jit::Unknown(format!("bpf_jit_enable is \"{other}\"")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Jit::Unknown(
            "there is no bpf_jit_enable: a kernel without JIT, or not the initial network namespace".into(),
        ),
        Err(error) => Jit::Unknown(format!("bpf_jit_enable: {error}")),
    }
}

fn coarse_clock_resolution_ns() -> u64 {
    let step = clock_getres(ClockId::MonotonicCoarse);
    u64::try_from(step.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(step.tv_nsec).unwrap_or(0))
}

/// Whether a directory, or the nearest one above it that exists, lies in a bpffs.
#[must_use]
pub fn is_in_bpffs(path: &Path) -> bool {
    path.ancestors()
        .find_map(|directory| rustix::fs::statfs(directory).ok())
        .is_some_and(|stat| stat.f_type == BPF_FS_MAGIC)
}

fn psi(root: &Path, reading: io::Result<String>) -> Psi {
    match reading {
        Ok(_) => Psi::Available,
        // Kernels before 5.13 show files that refuse to be read, later ones show none.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Psi::Disabled,
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Psi::Absent(format!("/proc/pressure/cpu: {error}"))
        }
        Err(_) => match kernel_has_symbol(root, "psi_show") {
            Ok(true) => Psi::Disabled,
            Ok(false) => Psi::Absent("the kernel was built without CONFIG_PSI".into()),
            Err(error) => Psi::Absent(format!(
                "there is no /proc/pressure, and whether the kernel could measure it is unknown (/proc/kallsyms: \
                 {error})"
            )),
        },
    }
}

/// Whether the kernel itself has a function of that name.
fn kernel_has_symbol(root: &Path, name: &str) -> io::Result<bool> {
    let mut symbols = BufReader::new(File::open(root.join("proc/kallsyms"))?);
    let mut line = String::new();
    let mut empty = true;
    while symbols.read_line(&mut line)? != 0 {
        empty = false;
        // address, type, name, and for modules the module.
        if line.split_ascii_whitespace().nth(2) == Some(name) {
            return Ok(true);
        }
        line.clear();
    }
    if empty { Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty")) } else { Ok(false) }
}

fn cgroups(mountinfo: &str) -> Cgroups {
    let mut found = Cgroups::default();
    for mount in mountinfo.lines().filter_map(|line| MountInfo::from_line(line).ok()) {
        match mount.fs_type.as_str() {
            "cgroup2" if found.unified.is_none() => found.unified = Some(mount.mount_point),
            "cgroup" => {
                for controller in V1_CONTROLLERS {
                    if mount.super_options.contains_key(controller) {
                        found
                            .controllers
                            .entry(controller.into())
                            .or_insert_with(|| mount.mount_point.clone());
                    }
                }
            }
            _ => {}
        }
    }
    found.layout = match (found.controllers.is_empty(), found.unified.is_some()) {
        (true, true) => Layout::V2,
        (false, true) => Layout::Hybrid,
        (false, false) => Layout::V1,
        (true, false) => Layout::None,
    };
    found
}

/// The value behind a key of `/proc/self/status`.
fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

fn capabilities(status: &str) -> Option<Capabilities> {
    u64::from_str_radix(field(status, "CapEff")?, 16).ok().map(Capabilities)
}

/// The second of real, effective, saved and file system user.
fn effective_user(status: &str) -> Option<u32> {
    field(status, "Uid")?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The initial user namespace maps every user onto itself.
fn maps_everyone(uid_map: &str) -> bool {
    uid_map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// The word in brackets.
fn chosen(words: &str) -> Option<String> {
    words
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .map(str::to_owned)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A modern kernel where everything is allowed.
    pub(crate) fn capable() -> KernelSupport {
        KernelSupport {
            release: "6.12.0-test".into(),
            version: Some((6, 12)),
            btf: true,
            bpf_jit: Jit::On,
            xdp_frags: true,
            tcx: true,
            coarse_clock: true,
            coarse_clock_resolution_ns: 4_000_000,
            bpffs_mounted: true,
            psi: Psi::Available,
            cgroups: Cgroups {
                layout: Layout::V2,
                unified: Some("/sys/fs/cgroup".into()),
                controllers: BTreeMap::new(),
            },
            capabilities: Some(Capabilities(u64::MAX)),
            is_root: true,
            initial_user_namespace: Some(true),
            lockdown: None,
        }
    }

    fn fixture(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn read(files: &[(&str, &str)]) -> KernelSupport {
        KernelSupport::read(fixture(files).path(), Path::new("/sys/fs/bpf/shedder"))
    }

    #[test]
    fn an_empty_root_is_named_facts_and_no_error() {
        let support = read(&[]);
        assert_eq!((support.release.as_str(), support.version), ("unknown", None));
        assert!(!support.btf && !support.tcx && !support.xdp_frags && !support.coarse_clock);
        assert!(!support.bpffs_mounted && !support.is_root);
        assert!(matches!(&support.bpf_jit, Jit::Unknown(why) if why.contains("bpf_jit_enable")));
        assert!(matches!(&support.psi, Psi::Absent(why) if why.contains("kallsyms")));
        assert_eq!(support.cgroups, Cgroups::default());
        assert_eq!((support.capabilities, support.initial_user_namespace), (None, None));
        assert!(!support.at_least(2, 6));
    }

    #[test]
    fn features_follow_the_release() {
        let of = |release: &str| {
            let support = read(&[("proc/sys/kernel/osrelease", release)]);
            (support.coarse_clock, support.xdp_frags, support.tcx)
        };
        assert_eq!(of("5.10.0-28-amd64\n"), (false, false, false));
        assert_eq!(of("5.11.0\n"), (true, false, false));
        assert_eq!(of("5.18-rc1\n"), (true, true, false));
        assert_eq!(of("6.5.13\n"), (true, true, false));
        assert_eq!(of("6.6.0\n"), (true, true, true));
        assert_eq!(of("10.0.1\n"), (true, true, true));
        assert_eq!(of("strange\n"), (false, false, false));
    }

    #[test]
    fn privileges_come_from_status() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t0\nCapInh:\t0000000000000000\nCapEff:\t000000c000001000\n";
        let support = read(&[
            ("proc/self/status", status),
            ("proc/self/uid_map", "         0     100000      65536\n"),
        ]);
        assert!(support.is_root);
        assert_eq!(support.initial_user_namespace, Some(false));
        let capabilities = support.capabilities.unwrap();
        assert!(capabilities.lacking().is_empty());
        assert!(!capabilities.has(Capability::SysAdmin) && !capabilities.has(Capability::SysResource));
        assert_eq!(Capabilities(0).lacking(), ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"]);
        assert_eq!(Capabilities(1 << 21).lacking(), ["CAP_NET_ADMIN"]);
        assert!(maps_everyone("         0          0 4294967295\n"));
    }

    #[test]
    fn psi_is_there_or_switched_off_or_not_built_in() {
        let symbols = |name: &str| format!("ffffffff81000000 T _text\nffffffff813dd1d0 T {name}\n");
        let available = read(&[("proc/pressure/cpu", "some avg10=0.00\n")]);
        assert_eq!(available.psi, Psi::Available);
        assert_eq!(read(&[("proc/kallsyms", &symbols("psi_show"))]).psi, Psi::Disabled);
        assert!(
            matches!(read(&[("proc/kallsyms", &symbols("other"))]).psi, Psi::Absent(why) if why.contains("CONFIG_PSI"))
        );
        let refused = |errno| psi(Path::new("/nonexistent"), Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(refused(libc::EOPNOTSUPP), Psi::Disabled);
        assert!(matches!(refused(libc::EACCES), Psi::Absent(why) if why.contains("ermission")));
    }

    #[test]
    fn cgroup_layouts_are_told_apart() {
        let v2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let memory = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
        let cpu = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:7 - cgroup cgroup rw,cpu,cpuacct\n";
        let systemd = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        let unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let layout = |text: String| cgroups(&text);
        assert_eq!(layout(v2.into()).layout, Layout::V2);
        assert_eq!(layout(format!("{v2}{systemd}")).layout, Layout::V2);
        let hybrid = layout(format!("{memory}{cpu}{systemd}{unified}"));
        assert_eq!(hybrid.layout, Layout::Hybrid);
        assert_eq!(hybrid.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(hybrid.controllers["cpuacct"], Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(layout(memory.into()).layout, Layout::V1);
        assert_eq!(layout("22 27 0:21 / /proc rw - proc proc rw\n".into()).layout, Layout::None);
    }

    #[test]
    fn lockdown_and_jit_are_read() {
        let support = read(&[
            ("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
            ("proc/sys/net/core/bpf_jit_enable", "1\n"),
            ("sys/kernel/btf/vmlinux", ""),
        ]);
        assert_eq!(support.lockdown.as_deref(), Some("integrity"));
        assert_eq!((support.bpf_jit, support.btf), (Jit::On, true));
        assert_eq!(jit(Ok("0".into())), Jit::Off);
        assert!(matches!(jit(Ok("x".into())), Jit::Unknown(_)));
    }

    #[test]
    fn the_running_kernel_is_described() {
        let support = KernelSupport::read(Path::new("/"), Path::new("/sys/fs/bpf/shedder"));
        let release = rustix::system::uname();
        assert_eq!(support.release, release.release().to_str().unwrap());
        assert_eq!(support.is_root, rustix::process::geteuid().is_root());
        assert!(support.coarse_clock_resolution_ns >= 1_000, "{}", support.coarse_clock_resolution_ns);
        let bpffs = std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" /sys/fs/bpf ");
        assert_eq!(support.bpffs_mounted, bpffs);
        assert!(!is_in_bpffs(Path::new("/proc/self")));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "\\PC*", lines in "([a-zA-Z0-9:/ ,=-]{0,40}\n){0,8}") {
            version(&text);
            capabilities(&text);
            effective_user(&lines);
            cgroups(&lines);
            cgroups(&text);
            chosen(&text);
        }
    }
}
