//! What lies in bpffs: `<bpffs>/abi-<N>/<MAP>` and `<bpffs>/abi-<N>/links/<hook>-<ifindex>`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use aya::maps::MapInfo;
use aya_obj::Object;
use shedder_common::abi::{ABI_VERSION, map};

use super::object::{MapShape, OBJECT, map_shape};
use crate::kernel::attachment::Hook;
use crate::kernel::support::is_in_bpffs;

/// The directory of one daemon in bpffs.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    root: PathBuf,
}

/// Holds the directory for one process.
#[derive(Debug)]
pub(super) struct PinLock {
    _directory: File,
}

impl Pins {
    /// The pins under a bpffs directory.
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Makes the directories and takes them for this process.
    ///
    /// # Errors
    ///
    /// bpffs is not mounted there, or another daemon holds it.
    pub(super) fn lock(&self) -> Result<PinLock> {
        fs::create_dir_all(&self.root).with_context(|| {
            format!(
                "cannot make {}: is bpffs mounted? `mount -t bpf bpf /sys/fs/bpf` mounts it",
                self.root.display()
            )
        })?;
        self.check_filesystem()?;
        self.take()
    }

    /// Takes the directories for this process where they exist; `None` where they do not.
    ///
    /// # Errors
    ///
    /// A daemon holds it, or this user may not open it.
    pub(super) fn lock_existing(&self) -> Result<Option<PinLock>> {
        match fs::metadata(&self.root) {
            Ok(_) => self.take().map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("look at {}", self.root.display())),
        }
    }

    fn take(&self) -> Result<PinLock> {
        let directory = File::open(&self.root).with_context(|| format!("open {}", self.root.display()))?;
        match rustix::fs::flock(&directory, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(PinLock { _directory: directory }),
            Err(rustix::io::Errno::WOULDBLOCK) => bail!(
                "another shedder uses {}: stop it or name its socket, or give this one another daemon.bpffs and \
                 daemon.socket",
                self.root.display()
            ),
            Err(error) => Err(error).with_context(|| format!("lock {}", self.root.display())),
        }
    }

    /// # Errors
    ///
    /// The directory lies on another filesystem.
    fn check_filesystem(&self) -> Result<()> {
        if !self.in_bpffs() {
            bail!(
                "{} is not on bpffs: mount it with `mount -t bpf bpf /sys/fs/bpf`, or set daemon.bpffs to a \
                 directory on it",
                self.root.display()
            );
        }
        Ok(())
    }

    /// Whether the directory, or the nearest one above it that exists, lies in a bpffs.
    pub(super) fn in_bpffs(&self) -> bool {
        is_in_bpffs(&self.root)
    }

    fn current(&self) -> PathBuf {
        self.root.join(format!("abi-{ABI_VERSION}"))
    }

    /// Where a map is pinned.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.current().join(name)
    }

    /// Where the link of an interface is pinned. bpffs allows no dot in a name, so it is not the interface's.
    pub(super) fn interface_link(&self, hook: Hook, ifindex: u32) -> PathBuf {
        self.current().join("links").join(link_name(hook, ifindex))
    }

    /// Where the link of a program on the tracepoint is pinned.
    pub(super) fn track_link(&self, program: &str) -> PathBuf {
        self.current().join("links").join(program)
    }

    /// Makes the directories of this ABI.
    pub(super) fn create(&self) -> Result<()> {
        let links = self.current().join("links");
        fs::create_dir_all(&links).with_context(|| format!("cannot make {}", links.display()))
    }

    /// Pins of interface links of this and of other ABI versions, with what their names say.
    pub(super) fn interface_links(&self) -> Vec<(Hook, u32, PathBuf)> {
        let mut links = Vec::new();
        for abi in self.abi_directories() {
            for path in entries(&abi.join("links")) {
                if let Some((hook, ifindex)) =
                    path.file_name().and_then(|name| name.to_str()).and_then(parse_link_name)
                {
                    links.push((hook, ifindex, path));
                }
            }
        }
        links
    }

    /// Whether maps of this ABI are pinned.
    pub(super) fn has_maps(&self) -> bool {
        map::ALL.into_iter().any(|name| self.map(name).exists())
    }

    /// Why the pinned maps of this ABI cannot be used; `None` where they can, or where there is none.
    pub(super) fn unusable_maps(&self) -> Result<Option<String>> {
        let object = Object::parse(OBJECT).context("parse the compiled kernel side")?;
        let (mut found, mut missing) = (false, None);
        for name in map::ALL {
            let path = self.map(name);
            if !path.exists() {
                missing = Some(name);
                continue;
            }
            found = true;
            let shape = match pinned_shape(&path) {
                Ok(shape) => shape,
                Err(error) => return Ok(Some(format!("{name}: {error:#}"))),
            };
            let expected =
                map_shape(&object, name).with_context(|| format!("the object has no map {name}"))?;
            if shape != expected {
                return Ok(Some(format!("{name} is {shape:?}, this build needs {expected:?}")));
            }
        }
        Ok(missing.filter(|_| found).map(|name| format!("{name} is missing among the others")))
    }

    /// Unpins every map of this ABI version.
    pub(super) fn remove_maps(&self) -> Result<()> {
        for path in entries(&self.current()) {
            if path.is_file() {
                remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Unpins whatever other ABI versions left.
    pub(super) fn remove_other_versions(&self) -> Result<()> {
        for directory in self.abi_directories() {
            if directory != self.current() {
                remove_directory(&directory)?;
            }
        }
        Ok(())
    }

    /// Unpins everything. Returns the pins that were removed.
    pub(super) fn remove_all(&self) -> Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        for directory in self.abi_directories() {
            removed.extend(remove_directory(&directory)?);
        }
        match fs::remove_dir(&self.root) {
            Ok(()) => {}
            // bpffs itself, or a directory in which others have pins too.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::DirectoryNotEmpty
                        | io::ErrorKind::ResourceBusy
                        | io::ErrorKind::PermissionDenied
                ) => {}
            Err(error) => return Err(error).with_context(|| format!("remove {}", self.root.display())),
        }
        Ok(removed)
    }

    fn abi_directories(&self) -> Vec<PathBuf> {
        entries(&self.root)
            .into_iter()
            .filter(|path| {
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                    name.strip_prefix("abi-").is_some_and(|version| version.parse::<u32>().is_ok())
                })
            })
            .collect()
    }
}

fn pinned_shape(path: &Path) -> Result<MapShape> {
    let info = MapInfo::from_pin(path)?;
    Ok(MapShape {
        map_type: info.map_type()? as u32,
        key_size: info.key_size(),
        value_size: info.value_size(),
        max_entries: info.max_entries(),
        flags: info.map_flags(),
    })
}

fn link_name(hook: Hook, ifindex: u32) -> String {
    format!("{}-{ifindex}", hook_word(hook))
}

const fn hook_word(hook: Hook) -> &'static str {
    match hook {
        Hook::XdpNative => "xdp_native",
        Hook::XdpGeneric => "xdp_generic",
        Hook::Tcx => "tcx",
        Hook::Clsact => "clsact",
    }
}

fn parse_link_name(name: &str) -> Option<(Hook, u32)> {
    let (word, ifindex) = name.rsplit_once('-')?;
    let hook =
        [Hook::XdpNative, Hook::XdpGeneric, Hook::Tcx].into_iter().find(|hook| hook_word(*hook) == word)?;
    Some((hook, ifindex.parse().ok()?))
}

/// Entries of a directory; none where it does not exist.
fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default()
}

/// Removes a file that may be gone already.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("unpin {}", path.display())),
    }
}

/// Removes links first, so that nothing runs on maps that are going away.
fn remove_directory(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    let links = directory.join("links");
    for path in entries(&links).into_iter().chain(entries(directory)) {
        if path != links {
            remove_file(&path)?;
            removed.push(path);
        }
    }
    for path in [links, directory.to_path_buf()] {
        match fs::remove_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("remove {}", path.display())),
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_round_trip() {
        for hook in [Hook::XdpNative, Hook::XdpGeneric, Hook::Tcx] {
            assert_eq!(parse_link_name(&link_name(hook, 17)), Some((hook, 17)));
        }
        for name in ["track", "tcx", "tcx-", "tcx-x", "other-3"] {
            assert_eq!(parse_link_name(name), None);
        }
    }
}
