//! What a run that was killed left behind: found by name, told apart from what a living run still uses.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::namespace;
use super::pins;

/// Things with names of ours that no living process owns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Network namespaces `shedder-*`.
    pub namespaces: Vec<String>,
    /// Entries `/sys/fs/bpf/shedder*`.
    pub pins: Vec<PathBuf>,
    /// Interfaces `sd-*` in the namespace of this process; those of the testbed never live here.
    pub links: Vec<String>,
    /// Processes named `shedder` whose parent is gone: adopted by init, or by this process where it is a
    /// subreaper.
    pub processes: Vec<u32>,
}

impl Leftovers {
    /// Looks at this machine.
    ///
    /// # Errors
    /// When one of the directories is there but cannot be read.
    pub fn find() -> io::Result<Self> {
        let abandoned = |name: &str| owner(name).is_none_or(|pid| !is_alive(pid));
        Ok(Self {
            namespaces: names(Path::new(namespace::DIRECTORY))?
                .into_iter()
                .filter(|name| name.starts_with("shedder-") && abandoned(name))
                .collect(),
            pins: names(Path::new(pins::BPFFS))?
                .into_iter()
                .filter(|name| name.starts_with("shedder") && abandoned(name))
                .map(|name| Path::new(pins::BPFFS).join(name))
                .collect(),
            links: names(Path::new("/sys/class/net"))?
                .into_iter()
                .filter(|name| name.starts_with("sd-"))
                .collect(),
            processes: orphans("shedder")?,
        })
    }

    /// Removes the namespaces and pins among [`Leftovers::find`] that name an owner: that owner is dead, so
    /// they serve nobody. What names none may be somebody's and stays.
    ///
    /// # Errors
    /// When something cannot be read or removed.
    pub fn remove_abandoned() -> io::Result<()> {
        let found = Self::find()?;
        for name in found.namespaces.iter().filter(|name| owner(name).is_some()) {
            namespace::delete(name)?;
        }
        let named = |path: &&PathBuf| path.file_name().and_then(OsStr::to_str).and_then(owner).is_some();
        for path in found.pins.iter().filter(named) {
            pins::remove(path)?;
        }
        Ok(())
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in &self.namespaces {
            writeln!(f, "  network namespace {name}: remove it with `ip netns delete {name}`")?;
        }
        for path in &self.pins {
            writeln!(f, "  pins {0}: remove them with `shedder unload` or `rm -r {0}`", path.display())?;
        }
        for name in &self.links {
            writeln!(f, "  interface {name}: remove it with `ip link delete {name}`")?;
        }
        for pid in &self.processes {
            writeln!(f, "  process shedder {pid}: stop it with `kill {pid}`")?;
        }
        Ok(())
    }
}

/// The owner that a name such as `shedder-demo-1234-0` speaks of: its first number.
fn owner(name: &str) -> Option<u32> {
    name.split('-').find_map(|part| part.parse().ok())
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// The names in a directory; one that is missing has none.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

fn orphans(command: &str) -> io::Result<Vec<u32>> {
    let adopters = [1, std::process::id()];
    let pids = names(Path::new("/proc"))?.into_iter().filter_map(|name| name.parse::<u32>().ok());
    Ok(pids
        .filter(|pid| {
            // A process that ended meanwhile is no leftover.
            fs::read_to_string(format!("/proc/{pid}/stat"))
                .ok()
                .and_then(|stat| command_and_parent(&stat).map(|(name, parent)| (name == command, parent)))
                .is_some_and(|(same, parent)| same && adopters.contains(&parent))
        })
        .collect())
}

/// From `/proc/<pid>/stat`; the command stands in parentheses and may hold anything.
fn command_and_parent(stat: &str) -> Option<(&str, u32)> {
    let (_, rest) = stat.split_once('(')?;
    let (command, rest) = rest.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    // A zombie waits for its parent and holds nothing.
    if fields.next()? == "Z" {
        return None;
    }
    Some((command, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_the_first_number() {
        assert_eq!(owner("shedder-1234-0"), Some(1234));
        assert_eq!(owner("shedder-demo-77-3"), Some(77));
        assert_eq!(owner("shedder"), None);
        assert_eq!(owner("shedder-mine"), None);
    }

    #[test]
    fn the_command_may_hold_spaces_and_parentheses() {
        assert_eq!(command_and_parent("12 (shedder) S 1 12 12"), Some(("shedder", 1)));
        assert_eq!(command_and_parent("12 (a (b) c) R 7 12"), Some(("a (b) c", 7)));
        assert_eq!(command_and_parent("12 (shedder) Z 1 12 12"), None);
        assert_eq!(command_and_parent("12 shedder"), None);
    }

    #[test]
    fn this_process_is_alive_and_pid_0_is_not() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(0));
    }

    #[test]
    fn every_leftover_comes_with_what_removes_it() {
        let all = Leftovers {
            namespaces: vec!["shedder-1-0".to_owned()],
            pins: vec!["/sys/fs/bpf/shedder".into()],
            links: vec!["sd-0a".to_owned()],
            processes: vec![7],
        };
        assert!(!all.is_empty());
        let text = all.to_string();
        for part in
            ["ip netns delete shedder-1-0", "rm -r /sys/fs/bpf/shedder", "ip link delete sd-0a", "kill 7"]
        {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(Leftovers::default().to_string(), "");
    }
}
