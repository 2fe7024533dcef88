//! Who owns the listening sockets of the policies' ports: cgroups and processes.

mod holders;
mod index;
pub(crate) mod layout;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use procfs::{FromBufRead, ProcessCGroups};

use self::holders::Holders;
use self::index::CgroupIndex;
use self::layout::Layout;
use super::context::ListenerFact;
use super::reading::{CgroupPath, Unavailable};
use super::source::{Source, under};
use super::turns::{Due, Turns};

/// How often the cgroups of a process are read again, and the mounts where no hierarchy was found.
const REFRESH: Duration = Duration::from_secs(10);
/// Processes whose cgroups are read in one tick.
const MEMBERSHIPS_PER_TICK: usize = 64;
/// So many workloads are read at every tick; where there are more, each takes its turn.
const EVERY_TICK: usize = 16;
/// Where workloads take turns, those first seen at once are read at this many different times.
const PHASES: u32 = 16;
/// The pressure of so many workloads is read at every tick.
const PRESSURE_EVERY_TICK: usize = 50;
/// That of so many at every second tick. With more, that of half as many in each, but none is left out for longer than
/// the pace.
const PRESSURE_EVERY_SECOND: usize = 200;

/// A cgroup that owns a listener of a policy's port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Its directory in cgroup v2.
    pub unified: Option<PathBuf>,
    /// Its directory in the memory controller of cgroup v1.
    pub memory_v1: Option<PathBuf>,
}

/// A workload and when its turn comes.
#[derive(Debug, Default)]
struct Tracked {
    workload: Workload,
    ports: BTreeSet<u16>,
    due_at: Option<Duration>,
    due: bool,
    pressure: Due,
    pressure_due: bool,
}

/// What `/proc/PID/cgroup` says, below the mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Membership {
    unified: Option<PathBuf>,
    memory_v1: Option<PathBuf>,
}

/// The owners of the listeners, kept up to date at a bounded cost per tick.
#[derive(Debug)]
pub struct Workloads {
    root: PathBuf,
    layout: Layout,
    layout_read: Option<Duration>,
    index: CgroupIndex,
    holders: Holders,
    /// When each is due to be read again.
    memberships: BTreeMap<u32, (Duration, Membership)>,
    memberships_due: Duration,
    listeners: Vec<(u16, u32, Option<u64>)>,
    /// Since the last update.
    same_listeners: bool,
    /// Of the listeners.
    inodes: BTreeSet<u32>,
    ids: BTreeSet<u64>,
    workloads: BTreeMap<CgroupPath, Tracked>,
    pace: Duration,
    turns: Turns,
    cgroups: BTreeMap<u16, BTreeSet<CgroupPath>>,
    processes: BTreeMap<u16, BTreeSet<u32>>,
    changes: u64,
}

impl Workloads {
    /// Reads below `root`, which is `/` but in tests.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            layout: Layout::default(),
            layout_read: None,
            index: CgroupIndex::default(),
            holders: Holders::new(under(root, "proc")),
            memberships: BTreeMap::new(),
            memberships_due: Duration::ZERO,
            listeners: Vec::new(),
            same_listeners: true,
            inodes: BTreeSet::new(),
            ids: BTreeSet::new(),
            workloads: BTreeMap::new(),
            pace: Duration::ZERO,
            turns: Turns::default(),
            cgroups: BTreeMap::new(),
            processes: BTreeMap::new(),
            changes: 0,
        }
    }

    /// Every workload by its path below the cgroup mount. The root of a hierarchy is the host and not among them.
    pub fn iter(&self) -> impl Iterator<Item = (&CgroupPath, &Workload)> {
        self.workloads.iter().map(|(path, tracked)| (path, &tracked.workload))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workloads.len()
    }

    /// The workloads whose turn to be read is in this tick: all of them unless they are more than sixteen, and then
    /// each of them within the pace.
    pub fn due(&self) -> impl Iterator<Item = (&CgroupPath, &Workload)> {
        let due = self.workloads.iter().filter(|(_, tracked)| tracked.due);
        due.map(|(path, tracked)| (path, &tracked.workload))
    }

    /// For each workload, in the order of [`Workloads::iter`], whether its pressure is read in this tick: of up to 200
    /// each at least at every second one, of more each within the pace.
    pub fn due_for_pressure(&self) -> impl Iterator<Item = bool> {
        self.workloads.values().map(|tracked| tracked.pressure_due)
    }

    /// How long a workload's turn may be away where they are many. Below the time from which a reading is stale.
    pub fn set_pace(&mut self, pace: Duration) {
        self.pace = pace;
    }

    /// Counts up whenever anything here may have changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether a workload of this path is there.
    #[must_use]
    pub fn contains(&self, path: &CgroupPath) -> bool {
        self.workloads.contains_key(path)
    }

    /// The workload of this path.
    #[must_use]
    pub fn get(&self, path: &CgroupPath) -> Option<&Workload> {
        self.workloads.get(path).map(|tracked| &tracked.workload)
    }

    /// The ports that a workload serves.
    pub fn ports_of(&self, path: &CgroupPath) -> impl Iterator<Item = u16> {
        self.workloads.get(path).into_iter().flat_map(|tracked| tracked.ports.iter().copied())
    }

    /// The ports among these that a workload serves, each with its workloads; with a hybrid layout one listener may have
    /// two.
    pub fn served(
        &self,
        ports: RangeInclusive<u16>,
    ) -> impl Iterator<Item = (u16, impl Iterator<Item = &CgroupPath>)> {
        self.cgroups.range(ports).map(|(port, cgroups)| (*port, cgroups.iter()))
    }

    /// The processes that hold a listener of this port.
    ///
    /// # Errors
    /// Where none is known: that it is still being looked for, or why it was not found.
    pub fn processes_of(&self, port: u16) -> Result<&BTreeSet<u32>, Unavailable> {
        if let Some(processes) = self.processes.get(&port) {
            return Ok(processes);
        }
        let mut inodes = self.listeners.iter().filter(|(of, _, _)| *of == port).map(|(_, inode, _)| *inode);
        Err(if !inodes.all(|inode| self.holders.has_searched(inode)) {
            Unavailable::not_yet("the process that holds the listener is still being looked for")
        } else if self.holders.denied() > 0 {
            Unavailable::new(
                "no process found that holds the listener; some may not be read: run with CAP_SYS_PTRACE",
            )
        } else {
            Unavailable::absent(
                "no process found that holds the listener; it may run in another PID namespace: run with hostPID",
            )
        })
    }

    /// The listeners that there are from now on.
    pub fn set_listeners(&mut self, listeners: &[ListenerFact]) {
        let mut keys: Vec<_> = listeners.iter().map(|fact| (fact.port, fact.inode, fact.cgroup_id)).collect();
        keys.sort_unstable();
        keys.dedup();
        if self.listeners != keys {
            self.inodes = keys.iter().map(|(_, inode, _)| *inode).filter(|inode| *inode != 0).collect();
            self.ids = keys.iter().filter_map(|(_, _, id)| *id).collect();
            self.listeners = keys;
            self.same_listeners = false;
        }
    }

    /// Follows who owns the listeners.
    pub fn update(&mut self, now: Duration) {
        let same_listeners = std::mem::replace(&mut self.same_listeners, true);
        let mut changed = self.find_layout(now) || !same_listeners;
        changed |= self.holders.update(now, &self.inodes, same_listeners);
        if let Some(mount) = &self.layout.unified {
            changed |= self.index.update(now, &mount.point, &self.ids, same_listeners);
        }
        if changed || now >= self.memberships_due {
            changed |= self.read_memberships(now);
        }
        if changed {
            self.rebuild();
        }
        self.take_turns(now);
    }

    fn take_turns(&mut self, now: Duration) {
        self.turns.next();
        let count = self.workloads.len();
        let few = count <= EVERY_TICK;
        let turns = if count <= PRESSURE_EVERY_TICK {
            1
        } else if count <= PRESSURE_EVERY_SECOND {
            2
        } else {
            count.div_ceil(PRESSURE_EVERY_SECOND / 2)
        };
        for ((place, phase), tracked) in (0..count).zip((0..PHASES).cycle()).zip(self.workloads.values_mut())
        {
            tracked.due = few || tracked.due_at.is_none_or(|at| now >= at);
            if tracked.due {
                let first = tracked.due_at.is_none();
                let pause = if first { self.pace * (phase + 1) / PHASES } else { self.pace };
                tracked.due_at = Some(now.saturating_add(pause));
            }
            tracked.pressure_due = self.turns.is_due(place, turns, now, self.pace, &mut tracked.pressure);
        }
    }

    fn find_layout(&mut self, now: Duration) -> bool {
        let known = self.layout != Layout::default();
        if known || self.layout_read.is_some_and(|at| now.saturating_sub(at) < REFRESH) {
            return false;
        }
        self.layout_read = Some(now);
        self.layout = Layout::detect(&self.root);
        self.layout != Layout::default()
    }

    /// The cgroups of the processes that hold a listener, so many in a tick.
    fn read_memberships(&mut self, now: Duration) -> bool {
        let holding: BTreeSet<u32> =
            self.listeners.iter().flat_map(|(_, inode, _)| self.holders.of(*inode)).collect();
        let before = self.memberships.len();
        self.memberships.retain(|pid, _| holding.contains(pid));
        let mut changed = before != self.memberships.len();
        let mut source = Source::default();
        let mut left = MEMBERSHIPS_PER_TICK;
        self.memberships_due = now.saturating_add(REFRESH);
        for (phase, pid) in (0..PHASES).cycle().zip(holding) {
            let known = self.memberships.get(&pid);
            if let Some((due_at, _)) = known
                && now < *due_at
            {
                self.memberships_due = self.memberships_due.min(*due_at);
                continue;
            }
            let Some(fewer) = left.checked_sub(1) else {
                self.memberships_due = now;
                break;
            };
            left = fewer;
            let path = under(&self.root, format!("proc/{pid}/cgroup"));
            let membership = source
                .read(&path)
                .map_or_else(|_| Membership::default(), |text| self.layout.membership(text));
            changed |= known.is_none_or(|(_, known)| *known != membership);
            let phases = if known.is_some() { PHASES } else { phase + 1 };
            let due_at = now.saturating_add(REFRESH * phases / PHASES);
            self.memberships_due = self.memberships_due.min(due_at);
            self.memberships.insert(pid, (due_at, membership));
        }
        changed
    }

    fn rebuild(&mut self) {
        self.changes = self.changes.wrapping_add(1);
        let mut before = std::mem::take(&mut self.workloads);
        self.cgroups.clear();
        self.processes.clear();
        for (port, inode, id) in self.listeners.clone() {
            let holders: Vec<u32> = self.holders.of(inode).collect();
            let memberships: Vec<Membership> =
                holders.iter().filter_map(|pid| Some(self.memberships.get(pid)?.1.clone())).collect();
            let by_id = id.and_then(|id| self.index.path(id)).map(Path::to_owned);
            // The socket belongs to the cgroup that made it, which with socket activation is systemd's and not the
            // service's: so whoever holds it counts too.
            let by_process = memberships.iter().filter_map(|membership| membership.unified.as_deref());
            for path in by_id.as_deref().into_iter().chain(by_process) {
                self.add_unified(port, path);
            }
            for path in memberships.iter().filter_map(|membership| membership.memory_v1.as_deref()) {
                self.add_memory_v1(port, path);
            }
            if !holders.is_empty() {
                self.processes.entry(port).or_default().extend(holders);
            }
        }
        for (path, tracked) in &mut self.workloads {
            if let Some(before) = before.remove(path) {
                tracked.due_at = before.due_at;
                tracked.pressure = before.pressure;
            }
        }
    }

    fn add_unified(&mut self, port: u16, path: &Path) {
        let Some(mount) = &self.layout.unified else { return };
        let directory = under(&mount.point, path);
        if let Some(workload) = self.workload(port, path) {
            workload.unified = Some(directory);
        }
    }

    fn add_memory_v1(&mut self, port: u16, path: &Path) {
        let Some(mount) = &self.layout.memory_v1 else { return };
        let directory = under(&mount.point, path);
        if let Some(workload) = self.workload(port, path) {
            workload.memory_v1 = Some(directory);
        }
    }

    fn workload(&mut self, port: u16, path: &Path) -> Option<&mut Workload> {
        if path == Path::new("/") {
            return None;
        }
        let path = CgroupPath::new(path);
        self.cgroups.entry(port).or_default().insert(path.clone());
        let tracked = self.workloads.entry(path).or_default();
        tracked.ports.insert(port);
        Some(&mut tracked.workload)
    }
}

impl Layout {
    fn membership(&self, text: &str) -> Membership {
        let mut membership = Membership::default();
        let Ok(cgroups) = ProcessCGroups::from_buf_read(text.as_bytes()) else { return membership };
        for cgroup in cgroups {
            let path = Path::new(&cgroup.pathname);
            if cgroup.hierarchy == 0 {
                membership.unified = self.unified.as_ref().and_then(|mount| mount.below(path));
            } else if cgroup.controllers.iter().any(|controller| controller == "memory") {
                membership.memory_v1 = self.memory_v1.as_ref().and_then(|mount| mount.below(path));
            }
        }
        membership
    }
}

#[cfg(test)]
mod tests;
