//! `psi`: the share of wall time in which work was stalled for want of CPU, memory or I/O; percent.
//!
//! From the `total` counters over a sliding window, so that a stall shows within a tick or two; the kernel's own
//! averages follow ten seconds and more behind, and its triggers are slower still and often refused.
//!
//! The host's memory pressure counts while the host itself reclaims memory.

mod reclaim;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::reclaim::Reclaim;
use super::context::Context;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{ReadError, Source, under};
use super::window::CounterWindow;
use super::{Sensor, report};
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
    workloads: BTreeMap<PathBuf, Measured>,
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
    path: Option<PathBuf>,
    /// One for each signal; `None` where the kernel averages.
    windows: Vec<Option<CounterWindow>>,
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
        let host = Measured::new(Some(under(root, format!("proc/pressure/{name}"))), &signals);
        let reclaim = (resource == PsiResource::Memory).then(|| Reclaim::new(root));
        Some(Self { name, signals, host, reclaim, workloads: BTreeMap::new(), followed: None })
    }

    fn read(&mut self, source: &mut Source, context: &Context<'_>, out: &mut Vec<Reading>) {
        self.follow(context);
        let first = out.len();
        self.host.read(&Scope::Host, &self.signals, source, context, out);
        if let (Some(reclaim), Some(readings)) = (&mut self.reclaim, out.get_mut(first..)) {
            reclaim.take_out(context.now, &self.signals, readings);
        }
        for (path, _) in context.workloads.due() {
            if let Some(measured) = self.workloads.get_mut(path) {
                measured.read(&Scope::Cgroup(path.to_owned()), &self.signals, source, context, out);
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
            if self.workloads.get(path).is_none_or(|measured| measured.path != file) {
                self.workloads.insert(path.to_owned(), Measured::new(file, &self.signals));
            }
        }
    }
}

impl Measured {
    fn new(path: Option<PathBuf>, signals: &[Pressure]) -> Self {
        let window = |signal: &Pressure| match signal.window {
            PsiWindow::Over(length) => Some(CounterWindow::new(length)),
            PsiWindow::Avg10 | PsiWindow::Avg60 | PsiWindow::Avg300 => None,
        };
        Self { path, windows: signals.iter().map(window).collect() }
    }

    fn read(
        &mut self,
        scope: &Scope,
        signals: &[Pressure],
        source: &mut Source,
        context: &Context<'_>,
        out: &mut Vec<Reading>,
    ) {
        let text = match &self.path {
            Some(path) => source.read(path).map(|text| (path, text)).map_err(|error| explain(&error, path)),
            None => {
                Err(Unavailable::new("cgroup v1 has no pressure files: PSI of a workload needs cgroup v2"))
            }
        };
        for (signal, window) in signals.iter().zip(&mut self.windows) {
            let value = match &text {
                Ok((path, text)) => signal.value(text, path, window.as_mut(), context),
                Err(error) => Err(error.clone()),
            };
            report(std::slice::from_ref(&signal.name), scope, &value, out);
        }
    }
}

impl Pressure {
    fn value(
        &self,
        text: &str,
        path: &Path,
        window: Option<&mut CounterWindow>,
        context: &Context<'_>,
    ) -> Result<f64, Unavailable> {
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
        let Some(window) = window else {
            let percent: Option<f64> = value.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
            return percent.ok_or_else(|| unreadable(path, kind, field));
        };
        let total_us: u64 = value.parse().map_err(|_| unreadable(path, kind, field))?;
        let stalled_us_per_second = window
            .push(context.now, total_us)
            .ok_or_else(|| Unavailable::new("the first window is not over yet"))?;
        // The kernel's clock and ours are not read at the same instant.
        Ok((stalled_us_per_second / 10_000.0).min(100.0))
    }
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
        Unavailable::new(format!("{path_text}: PSI is switched off: boot with psi=1"))
    } else if error.is_not_found() {
        Unavailable::new(format!(
            "{path_text} is not there: the kernel has no PSI (CONFIG_PSI, psi=1), or the cgroup is gone or has \
             cgroup.pressure off"
        ))
    } else {
        error.at(path)
    }
}

#[cfg(test)]
mod tests;
