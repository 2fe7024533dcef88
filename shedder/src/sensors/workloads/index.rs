//! From the id of a cgroup v2 to its path.
//!
//! The id is the inode of the cgroup's directory. Directories are walked a bounded number of entries per tick, and
//! only while an id is unknown.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Directory entries read per tick. A cgroup has some sixty files.
const ENTRIES_PER_TICK: usize = 2_048;
/// Directories that wait to be walked; hosts with more cgroups than this leave ids unknown.
const PENDING_MAX: usize = 65_536;
/// A walk that left an id unknown is repeated after this time, since the cgroup may be newer than the walk.
const RETRY: Duration = Duration::from_secs(5);

/// Paths by id.
#[derive(Debug, Default)]
pub(super) struct CgroupIndex {
    known: HashMap<u64, PathBuf>,
    /// Directories that the current walk has still to read, below the mount.
    pending: VecDeque<PathBuf>,
    /// Where the walk stands within the first of `pending`.
    reading: Option<fs::ReadDir>,
    started: Option<Duration>,
    /// Ids that the last complete walk did not find.
    missing: BTreeSet<u64>,
    /// Every id that was wanted last is known.
    complete: bool,
}

impl CgroupIndex {
    /// The path below the mount, with a leading slash.
    pub(super) fn path(&self, id: u64) -> Option<&Path> {
        self.known.get(&id).map(PathBuf::as_path)
    }

    /// Forgets ids that are no longer wanted and looks for those that are unknown. Returns whether any answer
    /// changed. `same_wanted` says that the same ids were wanted last time.
    pub(super) fn update(
        &mut self,
        now: Duration,
        mount: &Path,
        wanted: &BTreeSet<u64>,
        same_wanted: bool,
    ) -> bool {
        if same_wanted && self.complete {
            return false;
        }
        self.known.retain(|id, _| wanted.contains(id));
        self.missing.retain(|id| wanted.contains(id));
        self.complete = wanted.iter().all(|id| self.known.contains_key(id));
        if self.complete {
            self.stop();
            return false;
        }
        if self.reading.is_none() && self.pending.is_empty() {
            let fresh = wanted.iter().any(|id| !self.known.contains_key(id) && !self.missing.contains(id));
            let due = self.started.is_none_or(|at| now.saturating_sub(at) >= RETRY);
            // A new id is looked for at once; ids that were sought in vain must not be sought all the time.
            if !fresh && !due {
                return false;
            }
            self.started = Some(now);
            self.start(mount, wanted);
        }
        self.walk(mount, wanted)
    }

    fn start(&mut self, mount: &Path, wanted: &BTreeSet<u64>) {
        self.pending.push_back(PathBuf::from("/"));
        if let Ok(metadata) = fs::metadata(mount)
            && wanted.contains(&metadata.ino())
        {
            self.known.insert(metadata.ino(), PathBuf::from("/"));
        }
    }

    fn stop(&mut self) {
        self.pending.clear();
        self.reading = None;
    }

    fn walk(&mut self, mount: &Path, wanted: &BTreeSet<u64>) -> bool {
        let before = (self.known.len(), self.missing.clone());
        let mut budget = ENTRIES_PER_TICK;
        while let Some(parent) = self.pending.front().cloned() {
            let opened = self.reading.take().map_or_else(|| fs::read_dir(below(mount, &parent)), Ok);
            let Ok(mut entries) = opened else {
                // Removed since it was seen.
                self.pending.pop_front();
                continue;
            };
            for entry in entries.by_ref() {
                budget = budget.saturating_sub(1);
                if let Ok(entry) = entry
                    && entry.file_type().is_ok_and(|kind| kind.is_dir())
                {
                    self.visit(&parent, entry.file_name(), entry.ino(), wanted);
                }
                if budget == 0 {
                    break;
                }
            }
            if budget == 0 {
                self.reading = Some(entries);
                break;
            }
            self.pending.pop_front();
        }
        if self.pending.is_empty() {
            self.missing = wanted.iter().filter(|id| !self.known.contains_key(id)).copied().collect();
        }
        before != (self.known.len(), self.missing.clone())
    }

    fn visit(&mut self, parent: &Path, name: OsString, inode: u64, wanted: &BTreeSet<u64>) {
        let path = parent.join(name);
        if wanted.contains(&inode) {
            self.known.insert(inode, path.clone());
            self.missing.remove(&inode);
        }
        if self.pending.len() < PENDING_MAX {
            self.pending.push_back(path);
        }
    }
}

fn below(mount: &Path, path: &Path) -> PathBuf {
    mount.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn ids_are_found_forgotten_and_found_again() {
        let mount = tempfile::tempdir().unwrap();
        let deep = mount.path().join("a/b/c.service");
        fs::create_dir_all(&deep).unwrap();
        let mut index = CgroupIndex::default();
        let wanted = BTreeSet::from([id(&deep), id(mount.path())]);
        assert!(index.update(Duration::ZERO, mount.path(), &wanted, false));
        assert_eq!(index.path(id(&deep)), Some(Path::new("/a/b/c.service")));
        assert_eq!(index.path(id(mount.path())), Some(Path::new("/")));
        assert!(!index.update(Duration::ZERO, mount.path(), &wanted, false), "nothing new");
        index.update(Duration::ZERO, mount.path(), &BTreeSet::new(), false);
        assert_eq!(index.path(id(&deep)), None);
        index.update(Duration::ZERO, mount.path(), &wanted, false);
        assert_eq!(index.path(id(&deep)), Some(Path::new("/a/b/c.service")));
    }

    #[test]
    fn a_large_tree_is_walked_over_several_ticks() {
        let mount = tempfile::tempdir().unwrap();
        for number in 0..ENTRIES_PER_TICK + 10 {
            fs::create_dir(mount.path().join(number.to_string())).unwrap();
        }
        let last = fs::read_dir(mount.path()).unwrap().last().unwrap().unwrap();
        let wanted = BTreeSet::from([last.ino()]);
        let mut index = CgroupIndex::default();
        index.update(Duration::ZERO, mount.path(), &wanted, false);
        assert_eq!(index.path(last.ino()), None, "the budget of one tick is spent");
        index.update(Duration::ZERO, mount.path(), &wanted, false);
        assert!(index.path(last.ino()).is_some());
    }

    #[test]
    fn an_id_sought_in_vain_is_sought_again_only_later() {
        let mount = tempfile::tempdir().unwrap();
        let mut index = CgroupIndex::default();
        let absent = BTreeSet::from([u64::MAX]);
        assert!(index.update(Duration::ZERO, mount.path(), &absent, false));
        assert!(index.missing.contains(&u64::MAX));
        let new = mount.path().join("new");
        fs::create_dir(&new).unwrap();
        let both = BTreeSet::from([u64::MAX, id(&new)]);
        index.update(Duration::ZERO, mount.path(), &both, false);
        assert_eq!(index.path(id(&new)), Some(Path::new("/new")), "a new id is sought at once");
        let newer = mount.path().join("newer");
        fs::create_dir(&newer).unwrap();
        index.missing.insert(id(&newer));
        let all = BTreeSet::from([u64::MAX, id(&newer)]);
        index.update(RETRY / 2, mount.path(), &all, false);
        assert_eq!(index.path(id(&newer)), None);
        index.update(RETRY, mount.path(), &all, false);
        assert_eq!(index.path(id(&newer)), Some(Path::new("/newer")));
    }

    #[test]
    fn a_mount_that_is_not_there_ends_the_walk() {
        let mut index = CgroupIndex::default();
        index.update(Duration::ZERO, Path::new("/nonexistent"), &BTreeSet::from([5]), false);
        assert!(index.missing.contains(&5));
    }
}
