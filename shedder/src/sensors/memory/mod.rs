//! `memory`: used memory over what there may be; ratio.
//!
//! Host: 1 − `MemAvailable` / `MemTotal`. Workload: the working set (usage without inactive file pages, which the
//! kernel gives up without pain) over the smallest finite limit of its cgroup and those above it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{ReadError, Source, garbage, keyed, under, whole_number};
use super::{Sensor, names_of, ratio, report};
use crate::config::model::{Signal, SignalSource};

/// How often the limits of a cgroup v2 and those above it are read again.
const LIMIT_REFRESH: Duration = Duration::from_secs(1);
/// Cgroups that are first seen in one tick have their limits read again at this many different times.
const LIMIT_PHASES: u32 = 16;

/// For the signals that read memory use.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let names = names_of(signals, &SignalSource::Memory);
    (!names.is_empty()).then(|| {
        let meminfo = under(root, "proc/meminfo");
        Box::new(Memory { names, meminfo, source: Source::default(), limits: BTreeMap::new() })
            as Box<dyn Sensor>
    })
}

#[derive(Debug)]
struct Memory {
    names: Vec<Arc<str>>,
    meminfo: PathBuf,
    source: Source,
    /// When each is due to be read again, and what it was.
    limits: BTreeMap<PathBuf, (Duration, Limit)>,
}

/// The smallest finite limit; `Ok(None)` where there is none.
type Limit = Result<Option<u64>, Unavailable>;

impl Sensor for Memory {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        let host = host(&mut self.source, &self.meminfo);
        report(&self.names, &Scope::Host, &host, out);
        self.limits.retain(|path, _| context.workloads.contains(path));
        for (path, workload) in context.workloads.due() {
            let value = match (&workload.memory_v1, &workload.unified) {
                // A controller is in one hierarchy only; where it is in v1 the directory of v2 has no such files.
                (Some(directory), _) => v1(&mut self.source, directory),
                (None, Some(directory)) => {
                    let limit = self.limit(context.now, path, directory);
                    v2(&mut self.source, directory, limit)
                }
                (None, None) => Err(Unavailable::new("the cgroup is in no hierarchy that is mounted here")),
            };
            report(&self.names, &Scope::Cgroup(path.to_owned()), &value, out);
        }
    }
}

impl Memory {
    /// The limit of a cgroup v2, as of a second ago or so.
    fn limit(&mut self, now: Duration, path: &Path, directory: &Path) -> Limit {
        let mut pause = LIMIT_REFRESH;
        if let Some((due_at, limit)) = self.limits.get(path) {
            if now < *due_at {
                return limit.clone();
            }
        } else {
            let phase = u32::try_from(self.limits.len()).unwrap_or_default() % LIMIT_PHASES;
            pause = LIMIT_REFRESH * (phase + 1) / LIMIT_PHASES;
        }
        let limit = limit_v2(&mut self.source, path, directory);
        self.limits.insert(path.to_owned(), (now.saturating_add(pause), limit.clone()));
        limit
    }
}

fn host(source: &mut Source, path: &Path) -> Result<f64, Unavailable> {
    let text = source.read(path).map_err(|error| error.at(path))?;
    let field = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let kibibytes = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kibibytes.ok_or_else(|| garbage(path, &format!("a `{key}` line in kB")))
    };
    match (field("MemTotal")?, field("MemAvailable")?) {
        (0, _) => Err(garbage(path, "a `MemTotal` above 0")),
        (total, available) => Ok(1.0 - ratio(available.min(total), total)),
    }
}

/// The memory controller of cgroup v2.
fn v2(source: &mut Source, directory: &Path, limit: Limit) -> Result<f64, Unavailable> {
    let current = directory.join("memory.current");
    let usage = match source.read(&current) {
        Ok(text) => whole_number(text, &current)?,
        Err(error) if error.is_not_found() && directory.join("cgroup.procs").exists() => {
            return Err(Unavailable::new("the memory controller is not enabled for this cgroup"));
        }
        Err(error) => return Err(error.at(&current)),
    };
    let limit = limit?;
    let stat = directory.join("memory.stat");
    let text = source.read(&stat).map_err(|error| error.at(&stat))?;
    let inactive = keyed(text, "inactive_file").ok_or_else(|| garbage(&stat, "`inactive_file`"))?;
    working_set(usage, inactive, limit)
}

/// The smallest finite `memory.max` from this cgroup up to the mount.
fn limit_v2(source: &mut Source, path: &Path, directory: &Path) -> Limit {
    let depth = path.components().count();
    let mut limit = None;
    for ancestor in directory.ancestors().take(depth) {
        let file = ancestor.join("memory.max");
        match source.read(&file) {
            Ok(text) if text.trim() == "max" => {}
            Ok(text) => limit = smaller(limit, whole_number(text, &file)?),
            // The root of the hierarchy has none.
            Err(ReadError::Io(_)) if ancestor != directory => {}
            Err(error) => return Err(error.at(&file)),
        }
    }
    Ok(limit)
}

/// cgroup v1 spells "no limit" as the largest number of whole pages; a page has 64 KiB at most.
const V1_UNLIMITED: u64 = i64::MAX as u64 - 0xffff;

/// The memory controller of cgroup v1.
fn v1(source: &mut Source, directory: &Path) -> Result<f64, Unavailable> {
    let usage_file = directory.join("memory.usage_in_bytes");
    let usage = whole_number(source.read(&usage_file).map_err(|error| error.at(&usage_file))?, &usage_file)?;
    let limit_file = directory.join("memory.limit_in_bytes");
    let own = whole_number(source.read(&limit_file).map_err(|error| error.at(&limit_file))?, &limit_file)?;
    let stat = directory.join("memory.stat");
    let text = source.read(&stat).map_err(|error| error.at(&stat))?;
    let inactive = keyed(text, "total_inactive_file").or_else(|| keyed(text, "inactive_file"));
    let inactive = inactive.ok_or_else(|| garbage(&stat, "`total_inactive_file`"))?;
    // The kernel itself takes the smallest up the hierarchy, also beyond what a container may see.
    let limits = [Some(own), keyed(text, "hierarchical_memory_limit")];
    let limit = limits.into_iter().flatten().filter(|limit| *limit < V1_UNLIMITED).fold(None, smaller);
    working_set(usage, inactive, limit)
}

fn smaller(limit: Option<u64>, other: u64) -> Option<u64> {
    Some(limit.map_or(other, |limit| limit.min(other)))
}

fn working_set(usage: u64, inactive_file: u64, limit: Option<u64>) -> Result<f64, Unavailable> {
    match limit {
        None => Err(Unavailable::new("no memory limit is set; the host's memory counts alone")),
        Some(0) => Err(Unavailable::new("the memory limit is 0")),
        Some(limit) => Ok(ratio(usage.saturating_sub(inactive_file), limit)),
    }
}

#[cfg(test)]
mod tests;
