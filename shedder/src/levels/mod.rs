//! Levels: how pressed the host and each workload are, from readings and rules.
//!
//! A pure state machine. Each signal at each scope is a Schmitt trigger (`enter`, `exit`) for each level; a scope's
//! level is the highest that any of its signals demands. It rises at once, or after `rise_after`, as far as demanded,
//! and falls one level at a time, each after `hold`. Time is a parameter; the order of readings is of no matter.

mod demand;
mod ladder;
mod report;

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use shedder_common::level::Level;

use self::demand::Demand;
use self::ladder::{Demanding, Ladder, Step};
use crate::config::model::{LevelRules, Signal, SignalSource};
use crate::sensors::reading::{CgroupPath, Reading, Scope};

/// Stands for the signal where an operator set the level.
pub const OPERATOR: &str = "operator";
/// Stands for the signal where a change of the rules ended a level.
pub const CONFIGURATION: &str = "configuration";

/// A scope has gone from one level to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionEvent {
    /// When.
    pub at: Duration,
    /// Whose level.
    pub scope: Scope,
    /// From this level.
    pub from: Level,
    /// To this one.
    pub to: Level,
    /// The signal that demands the new level or, on the way down, the one that had demanded the old one;
    /// [`OPERATOR`] or [`CONFIGURATION`].
    pub signal: Arc<str>,
}

/// A signal has become available or unavailable: worth one line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailabilityEvent {
    /// When.
    pub at: Duration,
    /// Which signal.
    pub signal: Arc<str>,
    /// At which scope.
    pub scope: Scope,
    /// Whether it is available now.
    pub available: bool,
    /// Why not; empty where it is.
    pub reason: String,
    /// A workload has never had this signal until now, as one without a memory limit: nothing is lost. A signal of the
    /// operator's own is expected at once.
    pub lacking: bool,
}

/// What a tick has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// In the order of scopes.
    pub transitions: Vec<TransitionEvent>,
    /// In the order of scopes and signals.
    pub availability: Vec<AvailabilityEvent>,
}

/// The levels of all scopes.
#[derive(Clone, Debug)]
pub struct Levels {
    rules: LevelRules,
    signals: Vec<(Arc<str>, Signal)>,
    places: HashMap<Arc<str>, usize>,
    scopes: BTreeMap<Scope, ScopeState>,
    tick: u64,
    pin: Option<Pin>,
    operator: Arc<str>,
    configuration: Arc<str>,
}

/// What an operator has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pin {
    level: Level,
    until: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
struct ScopeState {
    /// With the signal's place in the configuration, in that order.
    demands: Vec<(usize, Demand)>,
    ladder: Ladder,
    /// The level in force, which a pin may take elsewhere than the signals do.
    level: Level,
    since: Duration,
    transitions: BTreeMap<(Level, Level, Arc<str>), u64>,
    /// Something was read since the last judgement.
    read: bool,
    /// Until when nothing changes here unless something is read.
    rests_until: Duration,
}

/// A scope's demands with their rules, in the order of the configuration.
fn demanding<'a>(demands: &'a [(usize, Demand)], signals: &'a [(Arc<str>, Signal)]) -> Vec<Demanding<'a>> {
    demands.iter().filter_map(|(place, demand)| Some((*place, &signals.get(*place)?.1, demand))).collect()
}

/// Whether it is in order that a scope does not have a signal.
fn is_optional(scope: &Scope, signal: &Signal) -> bool {
    *scope != Scope::Host && !matches!(signal.source, SignalSource::File { .. })
}

impl ScopeState {
    fn demanded(&self) -> Level {
        self.demands.iter().map(|(_, demand)| demand.level()).max().unwrap_or_default()
    }

    /// What a signal demands here.
    fn demand(&self, place: usize) -> Option<&Demand> {
        let at = self.demands.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        self.demands.get(at).map(|(_, demand)| demand)
    }

    fn take(&mut self, now: Duration, tick: u64, place: usize, signal: &Signal, reading: &Reading) {
        self.read = true;
        let at = self.demands.binary_search_by_key(&place, |(place, _)| *place).unwrap_or_else(|at| {
            // Of thousands of scopes most have one signal, or always the same few.
            self.demands.reserve_exact(1);
            self.demands.insert(at, (place, Demand::new(now)));
            at
        });
        if let Some((_, demand)) = self.demands.get_mut(at) {
            demand.take(now, tick, signal, reading);
        }
    }

    /// Brings a level into force.
    fn set(
        &mut self,
        now: Duration,
        scope: &Scope,
        level: Level,
        signal: &Arc<str>,
    ) -> Option<TransitionEvent> {
        if level == self.level {
            return None;
        }
        let from = self.level;
        self.level = level;
        self.since = now;
        let count = self.transitions.entry((from, level, Arc::clone(signal))).or_default();
        *count = count.saturating_add(1);
        Some(TransitionEvent { at: now, scope: scope.clone(), from, to: level, signal: Arc::clone(signal) })
    }
}

impl Levels {
    /// Everything is at `normal`. Signals that are not enabled demand nothing.
    #[must_use]
    pub fn new(rules: &LevelRules, signals: &[Signal]) -> Self {
        let mut levels = Self {
            rules: rules.clone(),
            signals: Vec::new(),
            places: HashMap::new(),
            scopes: BTreeMap::from([(Scope::Host, ScopeState::default())]),
            tick: 0,
            pin: None,
            operator: Arc::from(OPERATOR),
            configuration: Arc::from(CONFIGURATION),
        };
        levels.place(signals);
        levels
    }

    /// Says since when the host is at `normal`; without it, since the clock began.
    #[must_use]
    pub fn since(mut self, now: Duration) -> Self {
        for state in self.scopes.values_mut() {
            state.since = now;
        }
        self
    }

    fn place(&mut self, signals: &[Signal]) {
        let enabled = signals.iter().filter(|signal| signal.enabled);
        self.signals = enabled.map(|signal| (Arc::from(signal.name.as_str()), signal.clone())).collect();
        self.places =
            self.signals.iter().enumerate().map(|(place, (name, _))| (Arc::clone(name), place)).collect();
    }

    /// One tick. Readings of unknown signals are passed over; of several readings of one signal at one scope the
    /// highest counts.
    ///
    /// `offered_below_quota` tells for a scope whether what clients offer it lies below the quotas that are in force
    /// there: only then is a level that is held for long probed.
    pub fn update(
        &mut self,
        now: Duration,
        readings: &[Reading],
        offered_below_quota: impl Fn(&Scope) -> bool,
    ) -> Update {
        let mut update = Update::default();
        self.expire_pin(now, &mut update);
        self.take(now, readings);
        let mut forgets = false;
        for (scope, state) in &mut self.scopes {
            if !std::mem::take(&mut state.read) && now < state.rests_until {
                continue;
            }
            state.rests_until = Duration::MAX;
            forgets |= state.demands.is_empty();
            for (place, demand) in &mut state.demands {
                let Some((name, signal)) = self.signals.get(*place) else { continue };
                demand.judge(now, signal, self.rules.max_hold);
                forgets |= demand.is_over(now, signal);
                state.rests_until = state.rests_until.min(demand.stays_until(now, signal));
                if let Some(available) = demand.availability_change(now, signal) {
                    update.availability.push(AvailabilityEvent {
                        at: now,
                        signal: Arc::clone(name),
                        scope: scope.clone(),
                        available,
                        reason: demand.unavailable(),
                        lacking: is_optional(scope, signal) && demand.is_first(),
                    });
                }
            }
            if state.ladder.is_at_rest() && state.demanded() == Level::Normal {
                continue;
            }
            state.rests_until = Duration::ZERO;
            let below = self.pin.is_none() && offered_below_quota(scope);
            let demands = demanding(&state.demands, &self.signals);
            let step = state.ladder.step(now, &self.rules, &demands, below);
            if let Some(Step { to, signal, .. }) = step
                && self.pin.is_none()
            {
                let name = signal.and_then(|place| self.signals.get(place)).map(|(name, _)| name);
                update.transitions.extend(state.set(now, scope, to, name.unwrap_or(&self.configuration)));
            }
        }
        if forgets {
            self.forget(now);
        }
        update
    }

    /// At how many scopes beside the host a signal is said to be unavailable and has never been there.
    #[must_use]
    pub fn lacking(&self, signal: &str) -> usize {
        let Some(place) = self.places.get(signal) else { return 0 };
        let lacks = |(scope, state): &(&Scope, &ScopeState)| {
            **scope != Scope::Host
                && state.demand(*place).is_some_and(|demand| demand.is_down() && demand.is_first())
        };
        self.scopes.iter().filter(lacks).count()
    }

    fn take(&mut self, now: Duration, readings: &[Reading]) {
        self.tick = self.tick.wrapping_add(1);
        // A sensor tells of one signal at many scopes after one another, and shares its name.
        let mut latest: Option<(&Arc<str>, Option<usize>)> = None;
        for reading in readings {
            let place = match latest {
                Some((name, place)) if Arc::ptr_eq(name, &reading.signal) => place,
                _ => self.places.get(&reading.signal).copied(),
            };
            latest = Some((&reading.signal, place));
            let Some(place) = place else { continue };
            let Some((_, signal)) = self.signals.get(place) else { continue };
            if let Some(state) = self.scopes.get_mut(&reading.scope) {
                state.take(now, self.tick, place, signal, reading);
            } else {
                let level = self.pin.map(|pin| pin.level).unwrap_or_default();
                let mut state = ScopeState { level, since: now, ..ScopeState::default() };
                state.take(now, self.tick, place, signal, reading);
                self.scopes.insert(reading.scope.clone(), state);
            }
        }
    }

    /// Scopes that nothing speaks of any more, once their level has come down.
    fn forget(&mut self, now: Duration) {
        for state in self.scopes.values_mut() {
            state.demands.retain(|(place, demand)| {
                self.signals.get(*place).is_some_and(|(_, signal)| !demand.is_over(now, signal))
            });
        }
        self.scopes.retain(|scope, state| {
            *scope == Scope::Host || !state.demands.is_empty() || state.ladder.level() > Level::Normal
        });
    }

    /// New rules hold from now on. A level that only an old rule demanded ends at once rather than after `hold`:
    /// hysteresis is against noise, not against an operator.
    pub fn set_rules(
        &mut self,
        now: Duration,
        rules: &LevelRules,
        signals: &[Signal],
    ) -> Vec<TransitionEvent> {
        let old = std::mem::take(&mut self.signals);
        self.rules = rules.clone();
        self.place(signals);
        // A signal with another source is another signal.
        let place = |old_place: usize| {
            let (name, was) = old.get(old_place)?;
            let place = *self.places.get(name)?;
            self.signals.get(place).filter(|(_, is)| is.source == was.source).map(|_| place)
        };
        let mut transitions = Vec::new();
        for (scope, state) in &mut self.scopes {
            state.rests_until = Duration::ZERO;
            let before = state.ladder.target(&demanding(&state.demands, &old)).level;
            let demands = std::mem::take(&mut state.demands);
            state.demands =
                demands.into_iter().filter_map(|(old, demand)| Some((place(old)?, demand))).collect();
            state.demands.sort_unstable_by_key(|(place, _)| *place);
            state.ladder.renumber(place);
            for (place, demand) in &mut state.demands {
                if let Some((_, signal)) = self.signals.get(*place) {
                    demand.judge(now, signal, rules.max_hold);
                }
            }
            let step = state.ladder.rejudge(now, before, &demanding(&state.demands, &self.signals));
            if let Some(step) = step
                && self.pin.is_none()
            {
                transitions.extend(state.set(now, scope, step.to, &self.configuration));
            }
        }
        transitions
    }

    /// An operator sets the level of every scope, until a time or until told otherwise; `None` leaves it to the
    /// signals again, which go on being judged meanwhile.
    pub fn pin(
        &mut self,
        now: Duration,
        level: Option<Level>,
        until: Option<Duration>,
    ) -> Vec<TransitionEvent> {
        self.pin = level.map(|level| Pin { level, until });
        let mut transitions = Vec::new();
        for (scope, state) in &mut self.scopes {
            let level = level.unwrap_or(state.ladder.level());
            transitions.extend(state.set(now, scope, level, &self.operator));
        }
        transitions
    }

    fn expire_pin(&mut self, now: Duration, update: &mut Update) {
        if self.pin.is_some_and(|pin| pin.until.is_some_and(|until| now >= until)) {
            update.transitions = self.pin(now, None, None);
        }
    }

    /// What an operator has set, and until when.
    #[must_use]
    pub fn pinned(&self) -> Option<(Level, Option<Duration>)> {
        self.pin.map(|pin| (pin.level, pin.until))
    }

    /// The level in force at one scope alone.
    #[must_use]
    pub fn level(&self, scope: &Scope) -> Level {
        match self.pin {
            Some(pin) => pin.level,
            None => self.scopes.get(scope).map_or(Level::Normal, |state| state.level),
        }
    }

    /// The highest level in force at any scope.
    #[must_use]
    pub fn highest(&self) -> Level {
        match self.pin {
            Some(pin) => pin.level,
            None => self.scopes.values().map(|state| state.level).max().unwrap_or_default(),
        }
    }

    /// The level of a port policy: the highest of the host's, its workloads' and its ports' own.
    pub fn policy_level<'a>(
        &self,
        ports: RangeInclusive<u16>,
        workloads: impl IntoIterator<Item = &'a CgroupPath>,
    ) -> Level {
        let workloads = workloads.into_iter().map(|path| self.level(&Scope::Cgroup(path.clone())));
        let ports = self.ports(ports).map(|port| self.level(&Scope::Port(port)));
        workloads.chain(ports).fold(self.level(&Scope::Host), Level::max)
    }

    /// The ports among these that some signal speaks of.
    pub fn ports(&self, ports: RangeInclusive<u16>) -> impl Iterator<Item = u16> {
        // A range of the map may not end before it begins.
        let range = (!ports.is_empty()).then(|| Scope::Port(*ports.start())..=Scope::Port(*ports.end()));
        let scopes = range.map(|range| self.scopes.range(range)).into_iter().flatten();
        scopes.filter_map(|(scope, _)| match scope {
            Scope::Port(port) => Some(*port),
            Scope::Host | Scope::Cgroup(_) => None,
        })
    }
}

#[cfg(test)]
mod tests;
