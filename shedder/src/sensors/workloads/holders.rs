//! Which processes hold a listening socket.
//!
//! `/proc/PID/fd` is searched a bounded number of descriptors per tick; what was found is kept and checked now and
//! then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::vec;

/// What a tick may spend; one is about one system call.
const STEPS_PER_TICK: usize = 256;
/// Steps for opening a process's directory.
const OPEN_STEPS: usize = 4;
/// Descriptors searched in one process. Servers open their listeners early, so these have low numbers.
const DESCRIPTORS_PER_PROCESS: usize = 4_096;
/// Holders kept for one socket: a prefork server's workers all hold it.
const HOLDERS_PER_SOCKET: usize = 64;
/// Known holders checked at once, and how long then none is.
const CHECKS_AT_ONCE: usize = 4;
const CHECK_REST: Duration = Duration::from_millis(450);
/// Least time between two rounds while a socket has no known holder.
const RETRY: Duration = Duration::from_secs(2);
/// Time between two rounds otherwise; they find workers that started later.
const REPEAT: Duration = Duration::from_secs(30);

/// Processes by socket inode.
#[derive(Debug)]
pub(super) struct Holders {
    proc: PathBuf,
    /// Socket inode, then process, then the descriptor.
    known: BTreeMap<u32, BTreeMap<u32, u32>>,
    round: Option<Round>,
    last_round: Option<Duration>,
    /// Before this none is due unless something changes.
    round_due: Duration,
    /// Sockets for which a whole round has looked.
    searched: BTreeSet<u32>,
    /// Processes whose descriptors the last round was not allowed to read.
    denied: usize,
    next_check: (u32, u32),
    check_due: Duration,
}

#[derive(Debug)]
struct Round {
    wanted: BTreeSet<u32>,
    processes: vec::IntoIter<u32>,
    current: Option<(u32, fs::ReadDir, usize)>,
    denied: usize,
}

impl Holders {
    pub(super) fn new(proc: PathBuf) -> Self {
        Self {
            proc,
            known: BTreeMap::new(),
            round: None,
            last_round: None,
            round_due: Duration::ZERO,
            searched: BTreeSet::new(),
            denied: 0,
            next_check: (0, 0),
            check_due: Duration::ZERO,
        }
    }

    /// The processes that hold this socket.
    pub(super) fn of(&self, inode: u32) -> impl Iterator<Item = u32> + '_ {
        self.known.get(&inode).into_iter().flat_map(|holders| holders.keys().copied())
    }

    /// Whether a whole round has looked for this socket.
    pub(super) fn has_searched(&self, inode: u32) -> bool {
        self.searched.contains(&inode)
    }

    /// Processes whose descriptors could not be read for want of permission.
    pub(super) fn denied(&self) -> usize {
        self.denied
    }

    /// Spends one tick's steps. `same_wanted` says that the same sockets were wanted last time. Returns whether any
    /// answer changed.
    pub(super) fn update(&mut self, now: Duration, wanted: &BTreeSet<u32>, same_wanted: bool) -> bool {
        if !same_wanted {
            self.known.retain(|inode, _| wanted.contains(inode));
            self.searched.retain(|inode| wanted.contains(inode));
        }
        let mut changed = false;
        if now >= self.check_due {
            self.check_due = now.saturating_add(CHECK_REST);
            changed = self.check();
        }
        if wanted.is_empty() {
            self.round = None;
            return changed;
        }
        // Otherwise nothing is missing that was not missing before.
        if self.round.is_none() && (now >= self.round_due || !same_wanted || changed) {
            self.begin(now, wanted);
        }
        changed | self.search()
    }

    /// Begins a round where one is due.
    fn begin(&mut self, now: Duration, wanted: &BTreeSet<u32>) {
        let missing = |inode: &u32| !self.known.contains_key(inode);
        let pause = if wanted.iter().any(missing) { RETRY } else { REPEAT };
        let fresh = wanted.iter().any(|inode| missing(inode) && !self.searched.contains(inode));
        self.round_due = self.last_round.map_or(now, |at| at.saturating_add(pause));
        if fresh || now >= self.round_due {
            self.last_round = Some(now);
            self.round_due = now.saturating_add(RETRY);
            self.round = Some(Round {
                wanted: wanted.clone(),
                processes: processes(&self.proc).into_iter(),
                current: None,
                denied: 0,
            });
        }
    }

    /// Drops holders that have closed the socket or ended.
    fn check(&mut self) -> bool {
        let first = self.next_check;
        let each = |(inode, holders): (&u32, &BTreeMap<u32, u32>)| {
            let inode = *inode;
            holders.iter().map(move |(pid, fd)| (inode, *pid, *fd)).collect::<Vec<_>>()
        };
        let after = self.known.range(first.0..).flat_map(each);
        let after = after.filter(|(inode, pid, _)| (*inode, *pid) >= first);
        let before = self.known.iter().flat_map(each).take_while(|(inode, pid, _)| (*inode, *pid) < first);
        let next: Vec<(u32, u32, u32)> = after.chain(before).take(CHECKS_AT_ONCE).collect();
        let mut changed = false;
        for (inode, pid, fd) in next {
            self.next_check = (inode, pid.saturating_add(1));
            if socket_of(&self.proc.join(format!("{pid}/fd/{fd}"))) == Some(inode) {
                continue;
            }
            changed = true;
            if let Some(of_socket) = self.known.get_mut(&inode) {
                of_socket.remove(&pid);
                if of_socket.is_empty() {
                    self.known.remove(&inode);
                    // Whoever holds it now is looked for at once.
                    self.searched.remove(&inode);
                }
            }
        }
        changed
    }

    fn search(&mut self) -> bool {
        let Some(mut round) = self.round.take() else { return false };
        let mut changed = false;
        let mut steps = STEPS_PER_TICK;
        while steps > 0 {
            let Some((pid, mut entries, seen)) = round.current.take() else {
                let Some(pid) = round.processes.next() else {
                    changed |= self.searched != round.wanted || self.denied != round.denied;
                    self.searched = round.wanted;
                    self.denied = round.denied;
                    return changed;
                };
                steps = steps.saturating_sub(OPEN_STEPS);
                match fs::read_dir(self.proc.join(format!("{pid}/fd"))) {
                    Ok(entries) => round.current = Some((pid, entries, 0)),
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => round.denied += 1,
                    // It has ended.
                    Err(_) => {}
                }
                continue;
            };
            steps -= 1;
            let Some(Ok(entry)) = entries.next() else { continue };
            if let Some(inode) = socket_of(&entry.path())
                && round.wanted.contains(&inode)
                && let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok())
            {
                changed |= self.add(inode, pid, fd);
            }
            if seen < DESCRIPTORS_PER_PROCESS {
                round.current = Some((pid, entries, seen + 1));
            }
        }
        self.round = Some(round);
        changed
    }

    fn add(&mut self, inode: u32, pid: u32, fd: u32) -> bool {
        let holders = self.known.entry(inode).or_default();
        if holders.len() >= HOLDERS_PER_SOCKET && !holders.contains_key(&pid) {
            return false;
        }
        holders.insert(pid, fd).is_none()
    }
}

fn processes(proc: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(proc) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The inode of the socket that a descriptor's link names.
fn socket_of(link: &Path) -> Option<u32> {
    let target = fs::read_link(link).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    fn descriptor(proc: &Path, pid: u32, fd: u32, target: &str) {
        let directory = proc.join(format!("{pid}/fd"));
        fs::create_dir_all(&directory).unwrap();
        symlink(target, directory.join(fd.to_string())).unwrap();
    }

    fn pids(holders: &Holders, inode: u32) -> Vec<u32> {
        holders.of(inode).collect()
    }

    #[test]
    fn every_process_of_a_shared_socket_is_found_and_dropped_when_it_ends() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("sys")).unwrap();
        descriptor(proc.path(), 10, 3, "socket:[77]");
        descriptor(proc.path(), 11, 3, "socket:[77]");
        descriptor(proc.path(), 11, 4, "socket:[78]");
        descriptor(proc.path(), 11, 5, "/dev/null");
        let wanted = BTreeSet::from([77]);
        let mut holders = Holders::new(proc.path().to_owned());
        assert!(holders.update(Duration::ZERO, &wanted, false));
        assert_eq!(pids(&holders, 77), [10, 11]);
        assert!(holders.of(78).next().is_none(), "nobody asked");
        fs::remove_dir_all(proc.path().join("10")).unwrap();
        assert!(holders.update(CHECK_REST, &wanted, false));
        assert_eq!(pids(&holders, 77), [11]);
    }

    #[test]
    fn a_descriptor_that_is_reused_is_no_longer_the_socket() {
        let proc = tempfile::tempdir().unwrap();
        descriptor(proc.path(), 10, 3, "socket:[77]");
        let wanted = BTreeSet::from([77]);
        let mut holders = Holders::new(proc.path().to_owned());
        holders.update(Duration::ZERO, &wanted, false);
        fs::remove_file(proc.path().join("10/fd/3")).unwrap();
        descriptor(proc.path(), 10, 3, "socket:[99]");
        holders.update(CHECK_REST, &wanted, false);
        assert!(pids(&holders, 77).is_empty());
    }

    #[test]
    fn a_large_process_is_searched_over_several_ticks() {
        let proc = tempfile::tempdir().unwrap();
        for fd in 0..u32::try_from(STEPS_PER_TICK).unwrap() * 3 {
            descriptor(proc.path(), 10, fd, "/dev/null");
        }
        descriptor(proc.path(), 11, 3, "socket:[77]");
        let wanted = BTreeSet::from([77]);
        let mut holders = Holders::new(proc.path().to_owned());
        let ticks = (0..10).take_while(|_| {
            holders.update(Duration::ZERO, &wanted, false);
            pids(&holders, 77).is_empty() || !holders.has_searched(77)
        });
        let ticks = ticks.count();
        assert!((2..10).contains(&ticks), "{ticks}");
    }

    #[test]
    fn a_socket_without_a_holder_is_sought_again_after_a_pause() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("1")).unwrap();
        let wanted = BTreeSet::from([77]);
        let mut holders = Holders::new(proc.path().to_owned());
        holders.update(Duration::ZERO, &wanted, false);
        assert!(holders.has_searched(77));
        descriptor(proc.path(), 10, 3, "socket:[77]");
        holders.update(RETRY / 2, &wanted, false);
        assert!(pids(&holders, 77).is_empty());
        holders.update(RETRY, &wanted, false);
        assert_eq!(pids(&holders, 77), [10]);
    }

    #[test]
    fn the_holder_of_a_real_socket_is_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = socket_of(&PathBuf::from(format!("/proc/self/fd/{}", listener.as_raw_fd()))).unwrap();
        let mut holders = Holders::new(PathBuf::from("/proc"));
        let wanted = BTreeSet::from([inode]);
        for _ in 0..10_000 {
            holders.update(Duration::ZERO, &wanted, false);
            if holders.has_searched(inode) {
                break;
            }
        }
        assert!(pids(&holders, inode).contains(&std::process::id()));
    }
}
