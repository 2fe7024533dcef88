//! Sensors turn what the kernel and applications tell into [`Reading`]s. They know no threshold.
//!
//! Everything is read below an injected root. What is absent, refused or garbage is a named [`Unavailable`], never a
//! zero, and never stops the other sensors.

mod accept_queue;
mod conntrack;
pub mod context;
mod fds;
mod file;
mod kept;
#[cfg(test)]
mod kernels;
mod listen_overflows;
mod memory;
mod psi;
pub mod reading;
mod source;
mod tcp_mem;
#[cfg(test)]
mod testing;
mod turns;
mod window;
pub mod workloads;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use self::context::{Context, ListenerFact};
use self::reading::{Reading, Scope, Unavailable};
use self::turns::LONGEST;
use self::workloads::Workloads;
use crate::config::model::{Signal, SignalSource};

/// Reads the signals of one kind.
pub trait Sensor: fmt::Debug + Send {
    /// Appends one reading for each of its signals at each scope that is due now. Never blocks on a file that has
    /// no data and never fails as a whole.
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>);
}

/// Makes the sensor for those of the signals that are of its kind; `None` where there are none.
type Build = fn(&Path, &[Signal]) -> Option<Box<dyn Sensor>>;

/// Whether a sensor reads such a signal, how it is made, and how long it rests at least.
type Registered = (fn(&SignalSource) -> bool, Build, Duration);

/// Every sensor. A new one is a new file and a line here.
const SENSORS: [Registered; 8] = [
    (|source| matches!(source, SignalSource::Psi { .. }), psi::build, Duration::ZERO),
    (|source| matches!(source, SignalSource::Memory), memory::build, Duration::ZERO),
    (|source| matches!(source, SignalSource::Fds), fds::build, Duration::ZERO),
    (|source| matches!(source, SignalSource::AcceptQueue), accept_queue::build, Duration::ZERO),
    (|source| matches!(source, SignalSource::Conntrack), conntrack::build, EVERY_SECOND_TICK),
    (|source| matches!(source, SignalSource::TcpMem), tcp_mem::build, EVERY_SECOND_TICK),
    (|source| matches!(source, SignalSource::ListenOverflows), listen_overflows::build, Duration::ZERO),
    (|source| matches!(source, SignalSource::File { .. }), file::build, Duration::ZERO),
];

/// Of a tenth of a second; of longer ticks it is every one.
const EVERY_SECOND_TICK: Duration = Duration::from_millis(150);

/// A sensor and when it is due.
#[derive(Debug)]
struct Resting {
    sensor: Box<dyn Sensor>,
    /// Its signals.
    signals: Vec<Signal>,
    rest: Duration,
    due_at: Duration,
}

/// All sensors and what they share.
#[derive(Debug)]
pub struct Sensors {
    root: PathBuf,
    sensors: Vec<Resting>,
    listeners: Vec<ListenerFact>,
    pace: Duration,
    workloads: Workloads,
}

impl Sensors {
    /// Reads below `root`, which is `/` but in tests. Signals that are not enabled are not read.
    #[must_use]
    pub fn new(root: &Path, signals: &[Signal]) -> Self {
        let mut sensors = Self {
            root: root.to_owned(),
            sensors: Vec::new(),
            listeners: Vec::new(),
            pace: LONGEST,
            workloads: Workloads::new(root),
        };
        sensors.set_signals(signals);
        sensors
    }

    /// Reads these signals from now on. A sensor whose signals are read as before goes on, with all that it remembers.
    pub fn set_signals(&mut self, signals: &[Signal]) {
        let enabled: Vec<Signal> = signals.iter().filter(|signal| signal.enabled).cloned().collect();
        let stale_after = enabled.iter().map(|signal| signal.stale_after).min();
        self.pace = stale_after.map_or(LONGEST, |stale_after| LONGEST.min(stale_after / 3));
        self.workloads.set_pace(self.pace);
        let mut before = std::mem::take(&mut self.sensors);
        for (reads, build, rest) in &SENSORS {
            let signals: Vec<Signal> =
                enabled.iter().filter(|signal| reads(&signal.source)).cloned().collect();
            let same = |sensor: &Resting| are_read_alike(&sensor.signals, &signals);
            if let Some(place) = before.iter().position(same) {
                self.sensors.push(before.swap_remove(place));
            } else if let Some(sensor) = build(&self.root, &signals) {
                self.sensors.push(Resting { sensor, signals, rest: *rest, due_at: Duration::ZERO });
            }
        }
    }

    /// One tick: every enabled signal at every scope that there is, but where workloads are many those whose turn it
    /// is. `now` is monotonic, `wall` is compared with file times; `listeners` are the listening sockets of the
    /// policies' ports, `None` where nobody has looked at them since.
    ///
    /// What is promised: the pressure, memory and descriptors of the host are read at every tick, the rest of it at every
    /// second one. Of up to 200 workloads the pressure is read at every second
    /// tick at least, of up to 50 at every tick; the rest of up to 16 workloads at every tick. Whatever the numbers,
    /// everything is read within half a second, or a third of `stale_after` where that is shorter.
    pub fn read(
        &mut self,
        now: Duration,
        wall: SystemTime,
        listeners: Option<Vec<ListenerFact>>,
    ) -> Vec<Reading> {
        let listeners_are_new = listeners.is_some();
        if let Some(listeners) = listeners {
            self.listeners = listeners;
            self.workloads.set_listeners(&self.listeners);
        }
        self.workloads.update(now);
        let context = Context {
            now,
            wall,
            listeners: &self.listeners,
            listeners_are_new,
            pace: self.pace,
            workloads: &self.workloads,
        };
        let mut readings = Vec::new();
        for Resting { sensor, rest, due_at, .. } in &mut self.sensors {
            if now >= *due_at {
                *due_at = now.saturating_add(self.pace.min(*rest));
                sensor.read(&context, &mut readings);
            }
        }
        readings
    }

    /// How long it takes at most until anything is read again.
    #[must_use]
    pub const fn pace(&self) -> Duration {
        self.pace
    }

    /// Who owns the listeners, as of the last tick.
    #[must_use]
    pub fn workloads(&self) -> &Workloads {
        &self.workloads
    }
}

/// What a sensor knows of a signal.
fn reading(signal: &Signal) -> (&str, &SignalSource, Duration) {
    (&signal.name, &signal.source, signal.stale_after)
}

/// Whether a sensor has no reason to tell these from those: it knows no threshold.
fn are_read_alike(these: &[Signal], those: &[Signal]) -> bool {
    these.iter().map(reading).eq(those.iter().map(reading))
}

/// The unit of a signal's values: `percent`, `ratio`, `per_second`; empty where only its owner knows.
#[must_use]
pub fn unit(source: &SignalSource) -> &'static str {
    match source {
        SignalSource::Psi { .. } => "percent",
        SignalSource::Memory
        | SignalSource::Fds
        | SignalSource::AcceptQueue
        | SignalSource::Conntrack
        | SignalSource::TcpMem => "ratio",
        SignalSource::ListenOverflows => "per_second",
        SignalSource::File { .. } => "",
    }
}

/// The names of the signals that come from `source`; a file may give one number to more than one name.
fn names_of(signals: &[Signal], source: &SignalSource) -> Vec<Arc<str>> {
    signals
        .iter()
        .filter(|signal| signal.source == *source)
        .map(|signal| Arc::from(signal.name.as_str()))
        .collect()
}

/// The same value under each name.
fn report(names: &[Arc<str>], scope: &Scope, value: &Result<f64, Unavailable>, out: &mut Vec<Reading>) {
    for signal in names {
        let value = match value {
            Ok(value) if !value.is_finite() => Err(Unavailable::new("the value is not a finite number")),
            other => other.clone(),
        };
        out.push(Reading::of_now(signal, scope, value));
    }
}

/// `part` over `whole`.
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests;
