//! `psi`: the share of wall time in which work was stalled for want of CPU, memory or I/O; percent.
//!
//! From the `total` counters over a sliding window, so that a stall shows within a tick or two; the kernel's own
//! averages follow ten seconds and more behind, and its triggers are slower still and often refused.
//!
//! The host's memory pressure counts while the host itself reclaims memory.
//!
//! A task that is stalled within a cgroup is stalled within the host too, on the same CPU and for the same time
//! (`psi_task_change` in `kernel/sched/psi.c` walks up to the system). So while the host's `some` counter of a resource
//! stands still, the counters of workloads do, and need not be read; all the same they are within the pace, since
//! the host's counter is an average over CPUs, rounded to microseconds, and a cgroup may go.

mod reclaim;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::reclaim::Reclaim;
use super::Sensor;
use super::context::Context;
use super::kept::Kept;
use super::reading::{CgroupPath, Reading, Scope, Unavailable};
use super::source::{ReadError, Source, under};
use super::window::{CounterWindow, not_over};
use crate::config::model::{PsiResource, PsiWindow, Signal, SignalSource};

/// For the signals that read pressure files.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let resources: Vec<Resource> = [PsiResource::Cpu, PsiResource::Memory, PsiResource::Io]
        .into_iter()
        .filter_map(|resource| Resource::new(root, resource, signals))
        .collect();
    (!resources.is_empty()).then(|| Box::new(Psi { source: Source::default(), resources }) as Box<dyn Sensor>)
}

#[derive(Debug)]
struct Psi {
    source: Source,
    resources: Vec<Resource>,
}

/// The signals that one pressure file serves: it is read once for all of them.
#[derive(Debug)]
struct Resource {
    name: &'static str,
    signals: Vec<Pressure>,
    host: Measured,
    /// For memory.
    reclaim: Option<Reclaim>,
    /// The host's `some` counter.
    host_total_us: Option<u64>,
    /// Counts up whenever stalls may have happened.
    growth: u64,
    workloads: BTreeMap<CgroupPath, Measured>,
    /// [`Workloads::changes`](super::workloads::Workloads::changes) as of which `workloads` is.
    followed: Option<u64>,
}

#[derive(Clone, Debug)]
struct Pressure {
    name: Arc<str>,
    full: bool,
    window: PsiWindow,
}

/// One pressure file.
#[derive(Debug)]
struct Measured {
    /// `None` where the scope has none.
    file: Option<Kept>,
    /// One for each signal; `None` where the kernel averages.
    windows: Vec<Option<CounterWindow>>,
    /// When it was read last without any failure, and [`Resource::growth`] then.
    good: Option<(Duration, u64)>,
    /// All that was told last was 0.
    calm: bool,
    /// Until when there is no use in looking for a file that the kernel does not have.
    rests_until: Option<Duration>,
    /// Until when the counters are known to have stood still without the windows having been told.
    still_until: Option<Duration>,
}

impl Sensor for Psi {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        for resource in &mut self.resources {
            resource.read(&mut self.source, context, out);
        }
    }
}

impl Resource {
    fn new(root: &Path, resource: PsiResource, signals: &[Signal]) -> Option<Self> {
        let name = match resource {
            PsiResource::Cpu => "cpu",
            PsiResource::Memory => "memory",
            PsiResource::Io => "io",
        };
        let signals: Vec<Pressure> = signals
            .iter()
            .filter_map(|signal| match signal.source {
                SignalSource::Psi { resource: of, full, window } if of == resource => {
                    Some(Pressure { name: Arc::from(signal.name.as_str()), full, window })
                }
                _ => None,
            })
            .collect();
        if signals.is_empty() {
            return None;
        }
        let file = Kept::new(under(root, format!("proc/pressure/{name}")));
        let host = Measured::new(Some(file), &signals);
        let reclaim = (resource == PsiResource::Memory).then(|| Reclaim::new(root));
        Some(Self {
            name,
            signals,
            host,
            reclaim,
            host_total_us: None,
            growth: 0,
            workloads: BTreeMap::new(),
            followed: None,
        })
    }

    fn read(&mut self, source: &mut Source, context: &Context<'_>, out: &mut Vec<Reading>) {
        self.follow(context);
        let first = out.len();
        let total_us = self.host.read(&Scope::Host, &self.signals, source, context, self.growth, out);
        if let (Some(reclaim), Some(readings)) = (&mut self.reclaim, out.get_mut(first..)) {
            reclaim.take_out(context.now, &self.signals, readings);
        }
        if total_us.is_none() || total_us != self.host_total_us {
            self.host_total_us = total_us;
            self.growth = self.growth.wrapping_add(1);
        }
        // Both are in the order of their paths, and `follow` has made them the same.
        for ((path, measured), due) in self.workloads.iter_mut().zip(context.workloads.due_for_pressure()) {
            if !due {
                continue;
            }
            let scope = Scope::Cgroup(path.clone());
            if measured.stands_still(context, self.growth) {
                measured.repeat(&scope, &self.signals, context, out);
            } else {
                measured.read(&scope, &self.signals, source, context, self.growth, out);
            }
        }
    }

    /// The workloads that there are now.
    fn follow(&mut self, context: &Context<'_>) {
        let changes = context.workloads.changes();
        if self.followed.replace(changes) == Some(changes) {
            return;
        }
        self.workloads.retain(|path, _| context.workloads.contains(path));
        for (path, workload) in context.workloads.iter() {
            let file =
                workload.unified.as_ref().map(|directory| directory.join(format!("{}.pressure", self.name)));
            let known = self.workloads.get(path).map(|measured| measured.file.as_ref().map(Kept::path));
            if known != Some(file.as_deref()) {
                self.workloads.insert(path.clone(), Measured::new(file.map(Kept::new), &self.signals));
            }
        }
    }
}

impl Measured {
    fn new(file: Option<Kept>, signals: &[Pressure]) -> Self {
        let window = |signal: &Pressure| match signal.window {
            PsiWindow::Over(length) => Some(CounterWindow::new(length)),
            PsiWindow::Avg10 | PsiWindow::Avg60 | PsiWindow::Avg300 => None,
        };
        Self {
            file,
            windows: signals.iter().map(window).collect(),
            good: None,
            calm: false,
            rests_until: None,
            still_until: None,
        }
    }

    /// Whether the counters are what they were. The kernel's averages fall without them.
    fn stands_still(&self, context: &Context<'_>, growth: u64) -> bool {
        let lately = |at| context.now.saturating_sub(at) < context.pace;
        self.good.is_some_and(|(at, then)| then == growth && lately(at))
            && self.windows.iter().all(Option::is_some)
    }

    /// Tells what follows from the counters' standing still; nothing where it is what was told.
    fn repeat(&mut self, scope: &Scope, signals: &[Pressure], context: &Context<'_>, out: &mut Vec<Reading>) {
        if self.calm {
            self.still_until = Some(context.now);
            return;
        }
        self.calm = true;
        for (signal, window) in signals.iter().zip(self.windows.iter_mut().flatten()) {
            let value = percent(window.stand_still(context.now));
            self.calm &= value == Ok(0.0);
            out.push(Reading::of_now(&signal.name, scope, value));
        }
    }

    /// Returns the `some` counter. What the kernel does not have is looked for at the pace, not at every tick.
    fn read(
        &mut self,
        scope: &Scope,
        signals: &[Pressure],
        source: &mut Source,
        context: &Context<'_>,
        growth: u64,
        out: &mut Vec<Reading>,
    ) -> Option<u64> {
        if self.rests_until.is_some_and(|until| context.now < until) {
            return None;
        }
        let text = match &mut self.file {
            Some(file) => match file.read(source) {
                Ok(text) => Ok((file.path(), text)),
                Err(error) => Err(explain(&error, file.path())),
            },
            None => {
                Err(Unavailable::absent("cgroup v1 has no pressure files: PSI of a workload needs cgroup v2"))
            }
        };
        if let Some(until) = self.still_until.take() {
            self.windows.iter_mut().flatten().for_each(|window| window.stood_still(until));
        }
        let absent = text.as_ref().is_err_and(|error| !error.is_failure());
        self.rests_until = absent.then(|| context.now.saturating_add(context.pace));
        let mut good = text.is_ok();
        self.calm = good;
        for (signal, window) in signals.iter().zip(&mut self.windows) {
            let value = match &text {
                Ok((path, text)) => signal.read(text, path, window.as_mut(), context, &mut good),
                Err(error) => Err(error.clone()),
            };
            self.calm &= value == Ok(0.0);
            out.push(Reading::of_now(&signal.name, scope, value));
        }
        self.good = good.then_some((context.now, growth));
        text.ok().and_then(|(_, text)| find(text, "some", "total")?.parse().ok())
    }
}

impl Pressure {
    /// `good` stays as it is where the counter was read, whether or not the window says something yet.
    fn read(
        &self,
        text: &str,
        path: &Path,
        window: Option<&mut CounterWindow>,
        context: &Context<'_>,
        good: &mut bool,
    ) -> Result<f64, Unavailable> {
        match (self.number(text, path), window) {
            (Ok(Number::Percent(percent)), _) => Ok(percent),
            (Ok(Number::TotalUs(total_us)), Some(window)) => percent(window.push(context.now, total_us)),
            (Ok(Number::TotalUs(_)), None) => Err(not_over()),
            (Err(error), _) => {
                *good = false;
                Err(error)
            }
        }
    }

    fn number(&self, text: &str, path: &Path) -> Result<Number, Unavailable> {
        let kind = if self.full { "full" } else { "some" };
        let field = match self.window {
            PsiWindow::Over(_) => "total",
            PsiWindow::Avg10 => "avg10",
            PsiWindow::Avg60 => "avg60",
            PsiWindow::Avg300 => "avg300",
        };
        let value = find(text, kind, field).ok_or_else(|| {
            Unavailable::new(format!("{} has no `{field}` on a `{kind}` line", path.display()))
        })?;
        let number = match self.window {
            PsiWindow::Over(_) => value.parse().ok().map(Number::TotalUs),
            _ => value.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).map(Number::Percent),
        };
        number.ok_or_else(|| unreadable(path, kind, field))
    }
}

/// What a pressure file says for a signal.
enum Number {
    Percent(f64),
    TotalUs(u64),
}

fn percent(stalled_us_per_second: Option<f64>) -> Result<f64, Unavailable> {
    // The kernel's clock and ours are not read at the same instant.
    stalled_us_per_second.map(|us| (us / 10_000.0).min(100.0)).ok_or_else(not_over)
}

fn find<'t>(text: &'t str, kind: &str, field: &str) -> Option<&'t str> {
    let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
    line.split_ascii_whitespace().find_map(|part| part.strip_prefix(field)?.strip_prefix('='))
}

fn unreadable(path: &Path, kind: &str, field: &str) -> Unavailable {
    Unavailable::new(format!(
        "{}: `{field}` on the `{kind}` line is not a number in its range",
        path.display()
    ))
}

fn explain(error: &ReadError, path: &Path) -> Unavailable {
    let path_text = path.display();
    if error.is_unsupported() {
        Unavailable::absent(format!("{path_text}: PSI is switched off: boot with psi=1"))
    } else if error.is_not_found() {
        Unavailable::absent(format!(
            "{path_text} is not there: the kernel has no PSI (CONFIG_PSI, psi=1), or the cgroup is gone or has \
             cgroup.pressure off"
        ))
    } else {
        error.at(path)
    }
}

#[cfg(test)]
mod tests;
