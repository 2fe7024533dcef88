//! Where the cgroup hierarchies are mounted.

use std::path::{Component, Path, PathBuf};

use procfs::process::MountInfo;

use crate::sensors::source::{Source, under};

/// One mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The mount point, under the injected root.
    pub(crate) point: PathBuf,
    /// Which cgroup is seen there: `/` unless a container sees only its own part.
    root: PathBuf,
}

impl Mount {
    /// The path below the mount of a cgroup that `/proc/PID/cgroup` names; `None` where it is not to be seen.
    pub(crate) fn below(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.root).ok()?;
        let inside = below.components().all(|part| matches!(part, Component::Normal(_)));
        inside.then(|| Path::new("/").join(below))
    }
}

/// The hierarchies that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// cgroup v2.
    pub(crate) unified: Option<Mount>,
    /// The memory controller of cgroup v1.
    pub(crate) memory_v1: Option<Mount>,
}

/// Hosts with many containers have thousands of mounts.
const MOUNTINFO_BYTES_MAX: u64 = 16 * 1024 * 1024;

impl Layout {
    /// Reads `/proc/self/mountinfo`. What cannot be read is not there.
    pub(crate) fn detect(root: &Path) -> Self {
        let mut source = Source::default();
        let text = source.read_at_most(&under(root, "proc/self/mountinfo"), MOUNTINFO_BYTES_MAX);
        text.map_or_else(|_| Self::default(), |(text, _)| Self::from_mountinfo(root, text))
    }

    fn from_mountinfo(root: &Path, text: &str) -> Self {
        let mut layout = Self::default();
        for line in text.lines().filter(|line| line.contains("cgroup")) {
            let Ok(info) = MountInfo::from_line(line) else { continue };
            let slot = match info.fs_type.as_str() {
                "cgroup2" => &mut layout.unified,
                "cgroup" if info.super_options.contains_key("memory") => &mut layout.memory_v1,
                _ => continue,
            };
            let mount = Mount { point: under(root, &info.mount_point), root: PathBuf::from(info.root) };
            // The same hierarchy may be mounted more than once; the widest view wins.
            if slot.as_ref().is_none_or(|known| mount.root.as_os_str().len() < known.root.as_os_str().len()) {
                *slot = Some(mount);
            }
        }
        layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "\
24 1 0:22 / /proc rw,nosuid - proc proc rw
33 24 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";
    const HYBRID: &str = "\
30 23 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw,nosuid shared:11 - cgroup cgroup rw,xattr,name=systemd
36 30 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:16 - cgroup cgroup rw,memory
";
    const CONTAINER: &str = "\
700 600 0:28 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw
";

    fn mount(point: &str, root: &str) -> Option<Mount> {
        Some(Mount { point: PathBuf::from(point), root: PathBuf::from(root) })
    }

    #[test]
    fn each_layout_is_recognised() {
        let root = Path::new("/r");
        let unified = Layout::from_mountinfo(root, UNIFIED);
        assert_eq!(unified, Layout { unified: mount("/r/sys/fs/cgroup", "/"), memory_v1: None });
        let hybrid = Layout::from_mountinfo(root, HYBRID);
        assert_eq!(hybrid.unified, mount("/r/sys/fs/cgroup/unified", "/"));
        assert_eq!(hybrid.memory_v1, mount("/r/sys/fs/cgroup/memory", "/"));
        let legacy: String =
            HYBRID.lines().filter(|line| !line.contains("cgroup2")).flat_map(|l| [l, "\n"]).collect();
        assert_eq!(Layout::from_mountinfo(root, &legacy).unified, None);
        assert_eq!(Layout::from_mountinfo(root, "cgroup garbage\n\n1 2 cgroup2"), Layout::default());
    }

    #[test]
    fn the_widest_view_of_a_hierarchy_wins() {
        let both = format!("{CONTAINER}{UNIFIED}{CONTAINER}");
        assert_eq!(Layout::from_mountinfo(Path::new("/"), &both).unified, mount("/sys/fs/cgroup", "/"));
    }

    #[test]
    fn paths_are_taken_below_the_root_of_the_mount() {
        let layout = Layout::from_mountinfo(Path::new("/"), CONTAINER);
        let mount = layout.unified.unwrap();
        assert_eq!(mount.below(Path::new("/docker/abc/x")), Some(PathBuf::from("/x")));
        assert_eq!(mount.below(Path::new("/docker/abc")), Some(PathBuf::from("/")));
        assert_eq!(mount.below(Path::new("/docker/abcd")), None);
        assert_eq!(mount.below(Path::new("/../x")), None, "outside of the cgroup namespace");
    }

    #[test]
    fn the_running_kernel_is_understood() {
        let layout = Layout::detect(Path::new("/"));
        for mount in [layout.unified, layout.memory_v1].into_iter().flatten() {
            assert!(mount.point.join("cgroup.procs").exists(), "{mount:?}");
        }
    }
}
