//! Replaying a trace.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use shedder_common::level::Level;

use super::{Line, OFFERED_BELOW_QUOTA};
use crate::config::model::{LevelRules, Signal, SignalSource};
use crate::levels::{Levels, TransitionEvent};
use crate::sensors::context::SLOWEST_PACE;
use crate::sensors::reading::{Reading, Scope, Unavailable};
use crate::words::clean;

/// A line that is one.
const EXAMPLE: &str = r#"{"t":0.1,"signal":"memory","scope":"host","value":0.93}"#;
/// No line of a trace is longer.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// What is there is read again sooner: within the slowest pace and a tick.
const AWAY: Duration = SLOWEST_PACE.saturating_mul(2);
/// Width of the timeline, characters.
pub(super) const TIMELINE_COLUMNS: usize = 60;

/// A trace that cannot be replayed, with the line.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("line {line}: {source}")]
    Io {
        /// Where reading ended.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// There is no reading in it.
    #[error("the trace is empty")]
    Empty,
    /// A line is no reading.
    #[error("line {line}: {reason}")]
    Malformed {
        /// Which.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration has no such signal.
    #[error("line {line}: unknown signal `{signal}`; {advice}")]
    UnknownSignal {
        /// Which line.
        line: u64,
        /// The name.
        signal: String,
        /// The nearest name, or where to add this one.
        advice: String,
    },
    /// The configuration reads that signal somewhere else.
    #[error(
        "line {line}: `{signal}` is of {scope} here and of {configured} in the configuration: change the line, or \
         signals.{signal}.scope"
    )]
    OtherScope {
        /// Which line.
        line: u64,
        /// The signal.
        signal: String,
        /// Where the line says it was read.
        scope: String,
        /// Where the configuration says it is.
        configured: String,
    },
    /// Time runs backwards.
    #[error("line {line}: time goes back from {before} s to {t} s; sort the trace by `t`")]
    ReversedTime {
        /// Which line.
        line: u64,
        /// Its time, seconds.
        t: f64,
        /// The time before it, seconds.
        before: f64,
    },
    /// For too long nothing was read.
    #[error(
        "line {line}: a gap of {gap} s before {t} s: signals are stale after {stale_after} s, so what happened \
         meanwhile is not known; cut the trace there"
    )]
    Gap {
        /// Which line.
        line: u64,
        /// Its time, seconds.
        t: f64,
        /// How long nothing was read, seconds.
        gap: f64,
        /// The shortest `stale_after`, seconds.
        stale_after: f64,
    },
    /// A signal is stale sooner than it was read again.
    #[error(
        "line {line}: `{signal}` at {scope} was read after {gap} s, at the pace of the configuration that it was recorded \
         with, and is stale after {stale_after} s here: record with this configuration, or raise stale_after"
    )]
    Pace {
        /// Which line.
        line: u64,
        /// The signal.
        signal: String,
        /// Where.
        scope: String,
        /// How long it was not read, seconds.
        gap: f64,
        /// Its `stale_after`, seconds.
        stale_after: f64,
    },
}

/// What a replay brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Simulation {
    /// Every step of every scope; times are those of the trace.
    pub transitions: Vec<TransitionEvent>,
    /// Time of the last tick.
    pub end: Duration,
    /// Number of ticks.
    pub ticks: u64,
    /// Every port that was read anything of.
    pub ports: BTreeSet<u16>,
}

/// Replays a trace through the level code of the daemon, from `normal`. `each_tick` sees the levels after each tick.
///
/// # Errors
/// [`TraceError`] at the first line that cannot be replayed.
pub fn simulate(
    trace: impl BufRead,
    rules: &LevelRules,
    signals: &[Signal],
    mut each_tick: impl FnMut(Duration, &Levels),
) -> Result<Simulation, TraceError> {
    let mut reader = Reader::new(trace, signals);
    let mut levels = Levels::new(rules, signals);
    let mut simulation = Simulation::default();
    while let Some(tick) = reader.tick()? {
        simulation.ports.extend(tick.readings.iter().filter_map(|reading| match reading.scope {
            Scope::Port(port) => Some(port),
            Scope::Host | Scope::Cgroup(_) => None,
        }));
        let update = levels.update(tick.at, &tick.readings, |scope| tick.below_quota.contains(scope));
        simulation.transitions.extend(update.transitions);
        simulation.end = tick.at;
        simulation.ticks = simulation.ticks.saturating_add(1);
        each_tick(tick.at, &levels);
    }
    if simulation.ticks == 0 { Err(TraceError::Empty) } else { Ok(simulation) }
}

/// The lines with the same `t`.
#[derive(Debug, Default)]
struct Tick {
    at: Duration,
    readings: Vec<Reading>,
    below_quota: BTreeSet<Scope>,
}

/// When each signal had a value last at each scope, of those that are stale sooner than a daemon may take to read a signal
/// again: a daemon with this configuration would have read it in time.
#[derive(Debug, Default)]
struct Paces {
    stale_after: BTreeMap<String, Duration>,
    read: BTreeMap<(Arc<str>, Scope), Duration>,
}

impl Paces {
    fn new(signals: &[Signal]) -> Self {
        let hasty = signals.iter().filter(|signal| signal.enabled && signal.stale_after < AWAY);
        let stale_after = hasty.map(|signal| (signal.name.clone(), signal.stale_after)).collect();
        Self { stale_after, read: BTreeMap::new() }
    }

    fn check(&mut self, line: u64, at: Duration, reading: &Reading) -> Result<(), TraceError> {
        let Some(stale_after) = self.stale_after.get(&*reading.signal) else { return Ok(()) };
        let key = (Arc::clone(&reading.signal), reading.scope.clone());
        let before = match reading.value {
            Ok(_) => self.read.insert(key, at),
            // Nothing is lost by what is not there.
            Err(_) => self.read.remove(&key),
        };
        let gap = at.saturating_sub(before.unwrap_or(at));
        // What was away for longer was not there to be read, and a daemon would have lost it too.
        if gap <= *stale_after || gap > AWAY {
            return Ok(());
        }
        Err(TraceError::Pace {
            line,
            signal: reading.signal.to_string(),
            scope: shown(&reading.scope),
            gap: gap.as_secs_f64(),
            stale_after: stale_after.as_secs_f64(),
        })
    }
}

struct Reader<R> {
    trace: R,
    names: BTreeMap<String, Arc<str>>,
    /// Of signals that have one by configuration.
    scopes: BTreeMap<String, Scope>,
    /// The shortest.
    stale_after: Option<Duration>,
    paces: Paces,
    line: u64,
    buffer: Vec<u8>,
    /// The tick that is being read, complete once a line of a later one is seen.
    current: Option<Tick>,
}

impl<R: BufRead> Reader<R> {
    fn new(trace: R, signals: &[Signal]) -> Self {
        let names = signals.iter().map(|signal| (signal.name.clone(), Arc::from(signal.name.as_str())));
        let scopes = signals.iter().filter_map(|signal| match &signal.source {
            SignalSource::File { scope, .. } => Some((signal.name.clone(), Scope::from(scope))),
            _ => None,
        });
        let enabled = signals.iter().filter(|signal| signal.enabled);
        Self {
            trace,
            names: names.collect(),
            scopes: scopes.collect(),
            stale_after: enabled.map(|signal| signal.stale_after).min(),
            paces: Paces::new(signals),
            line: 0,
            buffer: Vec::new(),
            current: None,
        }
    }

    fn tick(&mut self) -> Result<Option<Tick>, TraceError> {
        while let Some(line) = self.next_line()? {
            let at = self.time(&line)?;
            let reading = self.reading(&line)?;
            self.paces.check(self.line, at, &reading)?;
            let complete = match &self.current {
                Some(tick) if tick.at == at => None,
                _ => self.current.replace(Tick { at, ..Tick::default() }),
            };
            if let Some(tick) = &mut self.current {
                if &*reading.signal == OFFERED_BELOW_QUOTA {
                    if reading.value.is_ok_and(|value| value >= 1.0) {
                        tick.below_quota.insert(reading.scope);
                    }
                } else {
                    tick.readings.push(reading);
                }
            }
            if complete.is_some() {
                return Ok(complete);
            }
        }
        Ok(self.current.take())
    }

    /// The next line that is not blank.
    fn next_line(&mut self) -> Result<Option<Line>, TraceError> {
        loop {
            self.buffer.clear();
            self.line = self.line.saturating_add(1);
            let mut bounded = self.trace.by_ref().take(LINE_BYTES_MAX);
            let read = bounded.read_until(b'\n', &mut self.buffer);
            let read = read.map_err(|source| TraceError::Io { line: self.line, source })?;
            if read == 0 {
                return Ok(None);
            }
            if u64::try_from(read).is_ok_and(|read| read >= LINE_BYTES_MAX) {
                return Err(self.malformed(format!("longer than {LINE_BYTES_MAX} bytes")));
            }
            if without_mark(self.line, &self.buffer).trim_ascii().is_empty() {
                continue;
            }
            let text = without_mark(self.line, &self.buffer).trim_ascii_end();
            // An array of the fields would do for serde.
            if text.trim_ascii_start().starts_with(b"[") {
                let column = text.len() - text.trim_ascii_start().len() + 1;
                return Err(self.malformed(format!("column {column}: expected a line such as {EXAMPLE}")));
            }
            return match serde_json::from_slice(text) {
                Ok(line) => Ok(Some(line)),
                Err(error) => {
                    Err(self.malformed(format!("column {}: {}", error.column(), without_place(&error))))
                }
            };
        }
    }

    fn malformed(&self, reason: impl Into<String>) -> TraceError {
        TraceError::Malformed { line: self.line, reason: reason.into() }
    }

    fn time(&self, line: &Line) -> Result<Duration, TraceError> {
        let at = Duration::try_from_secs_f64(line.t)
            .map_err(|_| self.malformed(format!("`t` is {}, not seconds from the start", line.t)))?;
        let Some(before) = self.current.as_ref().map(|tick| tick.at) else { return Ok(at) };
        let Some(gap) = at.checked_sub(before) else {
            return Err(TraceError::ReversedTime {
                line: self.line,
                t: line.t,
                before: before.as_secs_f64(),
            });
        };
        match self.stale_after {
            Some(stale_after) if gap > stale_after => Err(TraceError::Gap {
                line: self.line,
                t: line.t,
                gap: gap.as_secs_f64(),
                stale_after: stale_after.as_secs_f64(),
            }),
            _ => Ok(at),
        }
    }

    fn reading(&self, line: &Line) -> Result<Reading, TraceError> {
        let signal = match self.names.get(&line.signal) {
            Some(name) => Arc::clone(name),
            None if line.signal == OFFERED_BELOW_QUOTA => Arc::from(OFFERED_BELOW_QUOTA),
            None => return Err(self.unknown(&line.signal)),
        };
        let scope = line.scope.parse().map_err(|error| self.malformed(format!("`scope`: {error}")))?;
        if let Some(configured) = self.scopes.get(&line.signal)
            && *configured != scope
        {
            return Err(TraceError::OtherScope {
                line: self.line,
                signal: line.signal.clone(),
                scope: shown(&scope),
                configured: shown(configured),
            });
        }
        let value = line.value.ok_or_else(|| Unavailable::new("unavailable when it was recorded"));
        let age = Duration::try_from_secs_f64(line.age)
            .map_err(|_| self.malformed(format!("`age` is {}, not seconds", line.age)))?;
        Ok(Reading { signal, scope, value, age })
    }

    fn unknown(&self, signal: &str) -> TraceError {
        let distance = |name: &&String| strsim::damerau_levenshtein(name, signal);
        let nearest = self.names.keys().min_by_key(distance).filter(|name| distance(name) <= 3);
        let advice = match nearest {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("add [signals.{}] to the configuration or take its lines out", clean(signal)),
        };
        TraceError::UnknownSignal { line: self.line, signal: clean(signal), advice }
    }
}

/// A line without the byte order mark that an editor may have put before the first one.
fn without_mark(line: u64, text: &[u8]) -> &[u8] {
    match text.strip_prefix("\u{feff}".as_bytes()) {
        Some(rest) if line == 1 => rest,
        _ => text,
    }
}

/// serde_json appends the place within the text it was given, which is one line.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rfind(" at line ").and_then(|end| text.get(..end)).unwrap_or(&text).to_owned()
}

/// A scope on one line: a cgroup's name may hold anything.
fn shown(scope: &Scope) -> String {
    clean(&scope.to_string())
}

/// A transition as `--json` prints it.
#[derive(Serialize)]
struct TransitionLine<'a> {
    t: f64,
    scope: String,
    from: &'static str,
    to: &'static str,
    signal: &'a str,
}

impl Simulation {
    /// One line of JSON per transition: `{"t", "scope", "from", "to", "signal"}`.
    ///
    /// # Errors
    /// Never for what a replay brought; a number that JSON cannot hold would be one.
    pub fn json_lines(&self) -> serde_json::Result<String> {
        let mut lines = String::new();
        for event in &self.transitions {
            lines.push_str(&serde_json::to_string(&TransitionLine {
                t: event.at.as_secs_f64(),
                scope: event.scope.to_string(),
                from: event.from.name(),
                to: event.to.name(),
                signal: &event.signal,
            })?);
            lines.push('\n');
        }
        Ok(lines)
    }

    /// The transitions and, for each scope that has any, a timeline: `.` normal, `m` moderate, `H` high, `E` emergency.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for event in &self.transitions {
            let (t, from, to) = (event.at.as_secs_f64(), event.from.name(), event.to.name());
            let (scope, signal) = (shown(&event.scope), clean(&event.signal));
            lines.push(format!("{t:>12.3} s  {scope}  {from} -> {to}  ({signal})"));
        }
        let scopes: BTreeSet<&Scope> = self.transitions.iter().map(|event| &event.scope).collect();
        lines.extend(scopes.into_iter().map(|scope| format!("{}  {}", self.timeline(scope), shown(scope))));
        let (seconds, steps) = (self.end.as_secs_f64(), self.transitions.len());
        lines.push(format!("{} ticks in {seconds:.3} s, {steps} transitions\n", self.ticks));
        lines.join("\n")
    }

    /// The highest level of the scope in each slice of the trace.
    fn timeline(&self, scope: &Scope) -> String {
        let mut events = self.transitions.iter().filter(|event| event.scope == *scope).peekable();
        let mut level = Level::Normal;
        let mut line = String::with_capacity(TIMELINE_COLUMNS);
        for column in 1..=TIMELINE_COLUMNS {
            let until = self.end.mul_f64(column as f64 / TIMELINE_COLUMNS as f64);
            let mut highest = level;
            while let Some(event) = events.next_if(|event| event.at <= until || column == TIMELINE_COLUMNS) {
                level = event.to;
                highest = highest.max(level);
            }
            line.push(match highest {
                Level::Normal => '.',
                Level::Moderate => 'm',
                Level::High => 'H',
                Level::Emergency => 'E',
            });
        }
        line
    }
}
