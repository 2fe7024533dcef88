//! `fds`: open file descriptors over what may be open; ratio.
//!
//! Host: `file-nr`. Port: of the processes that hold a listener of the port, the one that is nearest to its
//! `RLIMIT_NOFILE`, since a process at its limit can accept nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, ListenerFact};
use super::kept::Kept;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{Source, garbage, under};
use super::turns::{Due, Turns};
use super::{Sensor, names_of, ratio, report};
use crate::config::model::{Signal, SignalSource};

/// How often a process's limit is read again.
const LIMIT_REFRESH: Duration = Duration::from_secs(10);
/// How often descriptors are counted one by one, where the kernel does not tell their number.
const COUNT_REFRESH: Duration = Duration::from_secs(1);
/// Where counting one by one ends.
const COUNT_MAX: usize = 131_072;
/// The processes of so many ports are looked at in each tick; where there are more, ports take turns.
const PORTS_PER_TICK: usize = 16;

/// For the signals that count descriptors.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let names = names_of(signals, &SignalSource::Fds);
    (!names.is_empty()).then(|| Box::new(Fds::new(root, names)) as Box<dyn Sensor>)
}

#[derive(Debug)]
struct Fds {
    names: Vec<Arc<str>>,
    file_nr: Kept,
    proc: PathBuf,
    /// Since 6.2 the size of `/proc/PID/fd` is the number of open descriptors.
    size_counts: bool,
    source: Source,
    processes: BTreeMap<u32, Process>,
    ports: Vec<(u16, Due)>,
    turns: Turns,
}

/// What is kept of a process between ticks.
#[derive(Debug, Default)]
struct Process {
    limit: Option<(Duration, Result<u64, Unavailable>)>,
    counted: Option<(Duration, u64)>,
    /// When somebody asked for it last.
    asked_at: Duration,
}

impl Fds {
    fn new(root: &Path, names: Vec<Arc<str>>) -> Self {
        let mut source = Source::default();
        let release = source.read(&under(root, "proc/sys/kernel/osrelease")).ok().and_then(version);
        Self {
            names,
            file_nr: Kept::new(under(root, "proc/sys/fs/file-nr")),
            proc: under(root, "proc"),
            size_counts: release.is_some_and(|release| release >= (6, 2)),
            source,
            processes: BTreeMap::new(),
            ports: Vec::new(),
            turns: Turns::default(),
        }
    }

    /// The ports that somebody listens on now.
    fn follow(&mut self, listeners: &[ListenerFact]) {
        let mut ports: Vec<u16> = listeners.iter().map(|listener| listener.port).collect();
        ports.sort_unstable();
        ports.dedup();
        if !self.ports.iter().map(|(port, _)| port).eq(&ports) {
            let before: BTreeMap<u16, Due> = self.ports.drain(..).collect();
            self.ports = ports
                .into_iter()
                .map(|port| (port, before.get(&port).copied().unwrap_or_default()))
                .collect();
        }
    }

    fn of_port(
        &mut self,
        context: &Context<'_>,
        port: u16,
        known: &mut BTreeMap<u32, Result<f64, Unavailable>>,
    ) -> Result<f64, Unavailable> {
        let mut fullest: Option<Result<f64, Unavailable>> = None;
        for pid in context.workloads.processes_of(port)? {
            let value = known.entry(*pid).or_insert_with(|| self.of_process(context.now, *pid));
            fullest = match (fullest, value) {
                (Some(Ok(fullest)), Ok(value)) => Some(Ok(fullest.max(*value))),
                (Some(Ok(fullest)), Err(_)) => Some(Ok(fullest)),
                (_, value) => Some(value.clone()),
            };
        }
        fullest.unwrap_or_else(|| Err(Unavailable::absent("no process holds the listener")))
    }

    fn of_process(&mut self, now: Duration, pid: u32) -> Result<f64, Unavailable> {
        let process = self.processes.entry(pid).or_default();
        process.asked_at = now;
        let limit = match &process.limit {
            Some((at, limit)) if now.saturating_sub(*at) < LIMIT_REFRESH => limit.clone(),
            _ => {
                let limit = soft_limit(&mut self.source, &self.proc.join(format!("{pid}/limits")));
                process.limit = Some((now, limit.clone()));
                limit
            }
        }?;
        let directory = self.proc.join(format!("{pid}/fd"));
        let gone =
            || Unavailable::new("the descriptors of the process that holds the listener may not be read");
        let count = if self.size_counts {
            fs::metadata(&directory).map_err(|_| gone())?.len()
        } else if let Some((at, count)) = process.counted
            && now.saturating_sub(at) < COUNT_REFRESH
        {
            count
        } else {
            let entries = fs::read_dir(&directory).map_err(|_| gone())?;
            let count = u64::try_from(entries.take(COUNT_MAX).count()).unwrap_or(u64::MAX);
            process.counted = Some((now, count));
            count
        };
        Ok(ratio(count, limit))
    }
}

impl Sensor for Fds {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        let host = host(&mut self.source, &mut self.file_nr);
        report(&self.names, &Scope::Host, &host, out);
        if context.listeners_are_new {
            self.follow(context.listeners);
        }
        self.turns.next();
        let turns = self.ports.len().div_ceil(PORTS_PER_TICK);
        let mut ports = std::mem::take(&mut self.ports);
        let mut known = BTreeMap::new();
        for (place, (port, due)) in ports.iter_mut().enumerate() {
            if self.turns.is_due(place, turns, context.now, context.pace, due) {
                let value = self.of_port(context, *port, &mut known);
                report(&self.names, &Scope::Port(*port), &value, out);
            }
        }
        self.ports = ports;
        self.processes.retain(|_, process| context.now.saturating_sub(process.asked_at) < LIMIT_REFRESH);
    }
}

fn host(source: &mut Source, file: &mut Kept) -> Result<f64, Unavailable> {
    let text = file.read(source).map_err(|error| error.at(file.path()))?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (Some(Ok(allocated)), Some(Ok(_)), Some(Ok(max))) = (numbers.next(), numbers.next(), numbers.next())
    else {
        return Err(garbage(file.path(), "three numbers"));
    };
    match max {
        0 => Err(garbage(file.path(), "a limit above 0")),
        max if i64::try_from(max).map_or(true, |max| max == i64::MAX) => {
            Err(Unavailable::absent("fs.file-max sets no limit"))
        }
        max => Ok(ratio(allocated, max)),
    }
}

fn soft_limit(source: &mut Source, path: &Path) -> Result<u64, Unavailable> {
    let text = source.read(path).map_err(|_| {
        Unavailable::new(
            "the limits of the process that holds the listener may not be read: run with CAP_SYS_PTRACE",
        )
    })?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|line| line.split_ascii_whitespace().next()) {
        Some("unlimited") => {
            Err(Unavailable::absent("the process that holds the listener has no RLIMIT_NOFILE"))
        }
        Some(soft) => match soft.parse() {
            Ok(soft) if soft > 0 => Ok(soft),
            _ => Err(Unavailable::new(
                "RLIMIT_NOFILE of the process that holds the listener is not a number above 0",
            )),
        },
        None => {
            Err(Unavailable::new("the limits of the process that holds the listener lack `Max open files`"))
        }
    }
}

/// Major and minor of a kernel release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
