//! `memory`: used memory over what there may be; ratio.
//!
//! Host: 1 − `MemAvailable` / `MemTotal`. Workload: the working set (usage without inactive file pages, which the
//! kernel gives up without pain) over the smallest finite limit of its cgroup and those above it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::kept::Kept;
use super::reading::{CgroupPath, Reading, Scope, Unavailable};
use super::source::{ReadError, Source, garbage, keyed, under, whole_number};
use super::workloads::Workload;
use super::{Sensor, names_of, ratio, report};
use crate::config::model::{Signal, SignalSource};

/// How often the limits of a cgroup and those above it are read again, where [`LIMITS_PER_REFRESH`] cgroups have
/// one; with more it takes so much longer.
const LIMIT_REFRESH: Duration = Duration::from_secs(1);
const LIMITS_PER_REFRESH: usize = 256;
/// Where there is no limit it takes so many times longer: most of those never get one.
const NO_LIMIT_REFRESH: u32 = 4;
/// Cgroups that are first seen in one tick have their limits read again at this many different times.
const LIMIT_PHASES: u32 = 16;

/// For the signals that read memory use.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let names = names_of(signals, &SignalSource::Memory);
    (!names.is_empty()).then(|| {
        Box::new(Memory {
            names,
            meminfo: Kept::new(under(root, "proc/meminfo")),
            source: Source::default(),
            cgroups: BTreeMap::new(),
            followed: None,
        }) as Box<dyn Sensor>
    })
}

#[derive(Debug)]
struct Memory {
    names: Vec<Arc<str>>,
    meminfo: Kept,
    source: Source,
    cgroups: BTreeMap<CgroupPath, Cgroup>,
    /// [`Workloads::changes`](super::workloads::Workloads::changes) as of which `cgroups` is.
    followed: Option<u64>,
}

/// The smallest finite limit; `Ok(None)` where there is none.
type Limit = Result<Option<u64>, Unavailable>;

impl Sensor for Memory {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        let host = host(&mut self.source, &mut self.meminfo);
        report(&self.names, &Scope::Host, &host, out);
        let changes = context.workloads.changes();
        if self.followed.replace(changes) != Some(changes) {
            self.cgroups.retain(|path, cgroup| context.workloads.get(path) == Some(&cgroup.workload));
        }
        let crowd = u32::try_from(context.workloads.count().div_ceil(LIMITS_PER_REFRESH)).unwrap_or(u32::MAX);
        let refresh = LIMIT_REFRESH.saturating_mul(crowd.max(1));
        // Many cgroups lie below the same few.
        let mut above = HashMap::new();
        for (path, workload) in context.workloads.due() {
            let phase = u32::try_from(self.cgroups.len()).unwrap_or_default() % LIMIT_PHASES;
            let cgroup = self.cgroups.entry(path.clone()).or_insert_with(|| Cgroup::new(workload, phase));
            let value = cgroup.value(&mut self.source, context.now, refresh, path.as_path(), &mut above);
            report(&self.names, &Scope::Cgroup(path.clone()), &value, out);
        }
    }
}

/// The files of a cgroup.
#[derive(Debug)]
struct Cgroup {
    workload: Workload,
    files: Option<Files>,
    /// At which part of the time to the second look the limit is read again.
    phase: u32,
    /// When the limit is due to be read again, and what it was.
    limit: Option<(Duration, Limit)>,
}

#[derive(Debug)]
struct Files {
    hierarchy: Hierarchy,
    directory: PathBuf,
    usage: Kept,
    stat: Kept,
}

#[derive(Clone, Copy, Debug)]
enum Hierarchy {
    V1,
    V2,
}

impl Cgroup {
    fn new(workload: &Workload, phase: u32) -> Self {
        // A controller is in one hierarchy only; where it is in v1 the directory of v2 has no such files.
        let place = match (&workload.memory_v1, &workload.unified) {
            (Some(directory), _) => Some((Hierarchy::V1, directory)),
            (None, Some(directory)) => Some((Hierarchy::V2, directory)),
            (None, None) => None,
        };
        let files = place.map(|(hierarchy, directory)| Files::new(hierarchy, directory));
        Self { workload: workload.clone(), files, phase, limit: None }
    }

    fn value(
        &mut self,
        source: &mut Source,
        now: Duration,
        refresh: Duration,
        path: &Path,
        above: &mut Above,
    ) -> Result<f64, Unavailable> {
        let Some(files) = &mut self.files else {
            return Err(Unavailable::absent("the cgroup is in no hierarchy that is mounted here"));
        };
        let limit = match &self.limit {
            Some((due_at, limit)) if now < *due_at => limit.clone(),
            known => {
                let phases = if known.is_some() { LIMIT_PHASES } else { self.phase + 1 };
                let limit = files.limit(source, path, above);
                let refresh = if limit == Ok(None) { refresh * NO_LIMIT_REFRESH } else { refresh };
                self.limit = Some((now.saturating_add(refresh * phases / LIMIT_PHASES), limit.clone()));
                limit
            }
        };
        // Without a limit, nothing need be known of the use.
        match limit? {
            None => Err(Unavailable::absent("no memory limit is set; the host's memory counts alone")),
            Some(0) => Err(Unavailable::absent("the memory limit is 0")),
            Some(limit) => Ok(ratio(files.working_set(source)?, limit)),
        }
    }
}

impl Files {
    fn new(hierarchy: Hierarchy, directory: &Path) -> Self {
        let usage = match hierarchy {
            Hierarchy::V1 => "memory.usage_in_bytes",
            Hierarchy::V2 => "memory.current",
        };
        Self {
            hierarchy,
            directory: directory.to_owned(),
            usage: Kept::new(directory.join(usage)),
            stat: Kept::new(directory.join("memory.stat")),
        }
    }

    fn limit(&mut self, source: &mut Source, path: &Path, above: &mut Above) -> Limit {
        match self.hierarchy {
            Hierarchy::V1 => limit_v1(source, &self.directory, &mut self.stat),
            Hierarchy::V2 => limit_v2(source, path, &self.directory, above),
        }
    }

    /// Usage without inactive file pages.
    fn working_set(&mut self, source: &mut Source) -> Result<u64, Unavailable> {
        let text = self.usage.read(source).map_err(|error| error.at(self.usage.path()))?;
        let usage = whole_number(text, self.usage.path())?;
        let text = self.stat.read(source).map_err(|error| error.at(self.stat.path()))?;
        let key = match self.hierarchy {
            Hierarchy::V1 => "total_inactive_file",
            Hierarchy::V2 => "inactive_file",
        };
        // Without use_hierarchy, which is a thing of the past, cgroup v1 has no totals.
        let inactive = keyed(text, key).or_else(|| keyed(text, "inactive_file"));
        let inactive = inactive.ok_or_else(|| garbage(self.stat.path(), &format!("`{key}`")))?;
        Ok(usage.saturating_sub(inactive))
    }
}

fn host(source: &mut Source, meminfo: &mut Kept) -> Result<f64, Unavailable> {
    let text = meminfo.read(source).map_err(|error| error.at(meminfo.path()))?;
    let field = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let kibibytes = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kibibytes.ok_or_else(|| garbage(meminfo.path(), &format!("a `{key}` line in kB")))
    };
    match (field("MemTotal")?, field("MemAvailable")?) {
        (0, _) => Err(garbage(meminfo.path(), "a `MemTotal` above 0")),
        (total, available) => Ok(1.0 - ratio(available.min(total), total)),
    }
}

/// The own limits of the cgroups above those that are read, as of this tick.
type Above = HashMap<PathBuf, Limit>;

/// The smallest finite `memory.max` from this cgroup up to the mount.
fn limit_v2(source: &mut Source, path: &Path, directory: &Path, above: &mut Above) -> Limit {
    let mut limit = own_limit_v2(source, directory, directory)?;
    for ancestor in directory.ancestors().take(path.components().count()).skip(1) {
        let own = match above.get(ancestor) {
            Some(own) => own.clone(),
            None => {
                let own = own_limit_v2(source, ancestor, directory);
                above.insert(ancestor.to_owned(), own.clone());
                own
            }
        };
        limit = own?.map_or(limit, |own| smaller(limit, own));
    }
    Ok(limit)
}

fn own_limit_v2(source: &mut Source, directory: &Path, of: &Path) -> Limit {
    let file = directory.join("memory.max");
    match source.read(&file) {
        Ok(text) if text.trim() == "max" => Ok(None),
        Ok(text) => whole_number(text, &file).map(Some),
        // The root of the hierarchy has none.
        Err(ReadError::Io(_)) if directory != of => Ok(None),
        Err(error) if error.is_not_found() && directory.join("cgroup.procs").exists() => {
            Err(Unavailable::absent("the memory controller is not enabled for this cgroup"))
        }
        Err(error) => Err(error.at(&file)),
    }
}

/// cgroup v1 spells "no limit" as the largest number of whole pages; a page has 64 KiB at most.
const V1_UNLIMITED: u64 = i64::MAX as u64 - 0xffff;

/// The smallest finite limit up the hierarchy, which the kernel itself tells, also beyond what a container may see.
fn limit_v1(source: &mut Source, directory: &Path, stat: &mut Kept) -> Limit {
    let file = directory.join("memory.limit_in_bytes");
    let own = whole_number(source.read(&file).map_err(|error| error.at(&file))?, &file)?;
    let text = stat.read(source).map_err(|error| error.at(stat.path()))?;
    let limits = [Some(own), keyed(text, "hierarchical_memory_limit")];
    Ok(limits.into_iter().flatten().filter(|limit| *limit < V1_UNLIMITED).fold(None, smaller))
}

fn smaller(limit: Option<u64>, other: u64) -> Option<u64> {
    Some(limit.map_or(other, |limit| limit.min(other)))
}

#[cfg(test)]
mod tests;
