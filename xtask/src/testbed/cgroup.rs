//! Control groups that go when their value goes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;

const STEP: Duration = Duration::from_millis(20);
/// How often it is tried to remove a group whose last process has just ended.
const REMOVE_STEPS: u32 = 100;

/// A control group below the root of cgroup v2, named `shedder-<pid>-<n>`; where the memory controller belongs to
/// cgroup v1, one of the same name there. On drop it is removed: its processes must have been waited for.
#[derive(Debug)]
pub struct Cgroup {
    directories: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes one whose processes may use this much memory together, page cache included.
    ///
    /// # Errors
    /// Without root, cgroup v2 or a memory controller.
    pub fn with_memory(limit_bytes: u64) -> anyhow::Result<Self> {
        let mounts = Mounts::read()?;
        let mut cgroup = Self::at(&mounts.unified)?;
        let limit = if let Some(mount) = &mounts.memory_v1 {
            let directory = cgroup.add_directory(mount)?;
            directory.join("memory.limit_in_bytes")
        } else {
            let control = mounts.unified.join("cgroup.subtree_control");
            fs::write(&control, "+memory")
                .with_context(|| format!("write +memory to {}", control.display()))?;
            cgroup.unified().join("memory.max")
        };
        fs::write(&limit, limit_bytes.to_string())
            .with_context(|| format!("write {limit_bytes} to {}", limit.display()))?;
        Ok(cgroup)
    }

    /// Makes one without limits.
    ///
    /// # Errors
    /// Without root or cgroup v2.
    pub fn new() -> anyhow::Result<Self> {
        Self::at(&Mounts::read()?.unified)
    }

    fn at(mount: &Path) -> anyhow::Result<Self> {
        let mut cgroup = Self { directories: Vec::new() };
        cgroup.add_directory(mount)?;
        Ok(cgroup)
    }

    fn add_directory(&mut self, mount: &Path) -> anyhow::Result<PathBuf> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        remove_abandoned(mount);
        let directory = mount.join(format!("shedder-{}-{number}", std::process::id()));
        fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
        self.directories.push(directory.clone());
        Ok(directory)
    }

    /// Its directory in cgroup v2.
    #[must_use]
    pub fn unified(&self) -> &Path {
        self.directories.first().map_or(Path::new("/"), PathBuf::as_path)
    }

    /// Its directory where the memory controller is.
    #[must_use]
    pub fn memory(&self) -> &Path {
        self.directories.last().map_or(Path::new("/"), PathBuf::as_path)
    }

    /// Moves a process here; the sockets that it opens from now on belong here too.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add(&self, pid: u32) -> anyhow::Result<()> {
        for directory in &self.directories {
            let procs = directory.join("cgroup.procs");
            fs::write(&procs, pid.to_string())
                .with_context(|| format!("write {pid} to {}", procs.display()))?;
        }
        Ok(())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            if let Err(error) = remove(directory) {
                eprintln!("remove {}: {error}", directory.display());
            }
        }
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    let mut result = Ok(());
    for _ in 0..REMOVE_STEPS {
        result = fs::remove_dir(directory);
        match &result {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(STEP),
            _ => break,
        }
    }
    result
}

/// Removes what runs left that were killed. One that cannot be removed still has processes and stays.
fn remove_abandoned(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix("shedder-")?.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            fs::remove_dir(entry.path()).ok();
        }
    }
}

/// Where the hierarchies are.
#[derive(Debug, PartialEq, Eq)]
struct Mounts {
    unified: PathBuf,
    memory_v1: Option<PathBuf>,
}

impl Mounts {
    fn read() -> anyhow::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?)
            .context("cgroup v2 is not mounted")
    }

    fn parse(mounts: &str) -> Option<Self> {
        let mut unified = None;
        let mut memory_v1 = None;
        for line in mounts.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            let [_, point, kind, options, ..] = fields.as_slice() else { continue };
            match *kind {
                "cgroup2" => unified = Some(PathBuf::from(point)),
                "cgroup" if options.split(',').any(|option| option == "memory") => {
                    memory_v1 = Some(PathBuf::from(point));
                }
                _ => {}
            }
        }
        Some(Self { unified: unified?, memory_v1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_where_it_is_mounted() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let mounts = Mounts::parse(hybrid).unwrap();
        assert_eq!(mounts.unified, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(mounts.memory_v1.as_deref(), Some(Path::new("/sys/fs/cgroup/memory")));
        let unified = Mounts::parse("cgroup2 /sys/fs/cgroup cgroup2 rw,memory_recursiveprot 0 0\n").unwrap();
        assert_eq!(unified.memory_v1, None);
        assert_eq!(Mounts::parse("proc /proc proc rw 0 0\n"), None);
    }
}
