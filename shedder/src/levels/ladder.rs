//! The level of one scope: up at once, down one step at a time, and the probe that ends a level held for nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use shedder_common::level::Level;

use super::demand::Demand;
use crate::config::model::{LevelRules, Signal};

/// By how much of the distance between `enter` and `exit` a value must rise during a probe to count as worse.
const WORSE: f64 = 0.25;

/// One signal of a scope: its place in the configuration, its rules and what it demands.
pub(super) type Demanding<'a> = (usize, &'a Signal, &'a Demand);

/// What a scope's level should be and which signal says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) level: Level,
    /// `None` at `normal`.
    pub(super) signal: Option<usize>,
}

/// A step that a scope has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) from: Level,
    pub(super) to: Level,
    pub(super) signal: Option<usize>,
}

/// The level of one scope by its signals.
#[derive(Clone, Debug, Default)]
pub(super) struct Ladder {
    level: Level,
    since: Duration,
    /// The signal that brought the level.
    signal: Option<usize>,
    /// Since when no signal demands the level.
    below_since: Option<Duration>,
    /// Since when what is offered lies below the quotas.
    calm_since: Option<Duration>,
    probe: Option<Probe>,
}

/// A level has been lowered although signals demand it, to see whether they get worse.
#[derive(Clone, Debug)]
struct Probe {
    /// The signals below demand no more than this while they get no worse.
    ceiling: Level,
    /// What each signal demanded, and its value, when the probe reached it.
    accepted: BTreeMap<usize, (Level, f64)>,
}

impl Ladder {
    pub(super) fn level(&self) -> Level {
        self.level
    }

    pub(super) fn signal(&self) -> Option<usize> {
        self.signal
    }

    /// Since when no signal demands the level.
    pub(super) fn below_since(&self) -> Option<Duration> {
        self.below_since
    }

    pub(super) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Whether a tick changes nothing while no signal demands anything. Since when what is offered lies below the quotas
    /// is then of no matter: it counts only where a level has been held for longer.
    pub(super) fn is_at_rest(&self) -> bool {
        self.level == Level::Normal && self.probe.is_none()
    }

    /// One tick.
    pub(super) fn step(
        &mut self,
        now: Duration,
        rules: &LevelRules,
        demands: &[Demanding<'_>],
        offered_below_quota: bool,
    ) -> Option<Step> {
        if offered_below_quota {
            self.calm_since.get_or_insert(now);
        } else {
            self.calm_since = None;
            // Demand is back: what the signals say counts in full.
            self.probe = None;
        }
        self.review_probe(demands);
        let target = self.target(demands);
        if target.level > self.level {
            return Some(self.rise(now, target));
        }
        if target.level < self.level {
            let below = *self.below_since.get_or_insert(now);
            return (now.saturating_sub(below) >= rules.hold).then(|| self.fall(now, target));
        }
        self.below_since = None;
        self.signal = target.signal;
        self.is_held_for_nothing(now, rules).then(|| self.probe_down(now, demands))
    }

    /// The highest demand. The signal that brought the level is kept while it demands as much; else the first in the
    /// configuration, so that the order of readings is of no matter.
    pub(super) fn target(&self, demands: &[Demanding<'_>]) -> Target {
        let level_of = |(index, _, demand): &Demanding<'_>| match &self.probe {
            Some(probe) if probe.accepted.contains_key(index) => demand.level().min(probe.ceiling),
            _ => demand.level(),
        };
        let level = demands.iter().map(level_of).max().unwrap_or_default();
        if level == Level::Normal {
            return Target::default();
        }
        let mut demanding =
            demands.iter().filter(|signal| level_of(signal) == level).map(|(index, _, _)| *index);
        let signal = if self.signal.is_some_and(|current| demanding.clone().any(|index| index == current)) {
            self.signal
        } else {
            demanding.next()
        };
        Target { level, signal }
    }

    fn rise(&mut self, now: Duration, target: Target) -> Step {
        let from = self.level;
        self.moved(now, target.level);
        self.signal = target.signal;
        Step { from, to: self.level, signal: self.signal }
    }

    fn fall(&mut self, now: Duration, target: Target) -> Step {
        let (from, signal) = (self.level, self.signal);
        self.moved(now, from.down());
        if self.level <= target.level {
            self.signal = target.signal;
        } else {
            self.below_since = Some(now);
        }
        Step { from, to: self.level, signal }
    }

    fn moved(&mut self, now: Duration, level: Level) {
        self.level = level;
        self.since = now;
        self.below_since = None;
    }

    fn is_held_for_nothing(&self, now: Duration, rules: &LevelRules) -> bool {
        // Once a probe has done no harm, the next step need not wait for as long; above it another signal holds the
        // level.
        let least = if self.is_probed() { rules.hold } else { rules.max_hold.max(rules.hold) };
        self.level > Level::Normal
            && now.saturating_sub(self.since) >= least
            && self.calm_since.is_some_and(|calm| now.saturating_sub(calm) >= rules.hold)
    }

    /// Whether it is a probe that brought the level here.
    fn is_probed(&self) -> bool {
        self.probe.as_ref().is_some_and(|probe| probe.ceiling == self.level)
    }

    fn probe_down(&mut self, now: Duration, demands: &[Demanding<'_>]) -> Step {
        let (from, signal) = (self.level, self.signal);
        let ceiling = from.down();
        let mut accepted = self.probe.take().map(|probe| probe.accepted).unwrap_or_default();
        for (index, _, demand) in demands {
            if let Some(value) = demand.last_value()
                && demand.level() > ceiling
            {
                accepted.entry(*index).or_insert((demand.level(), value));
            }
        }
        self.probe = Some(Probe { ceiling, accepted });
        self.moved(now, ceiling);
        self.signal = self.target(demands).signal;
        Step { from, to: self.level, signal }
    }

    /// Ends the probe where a signal has become worse, and takes out the signals that no longer need it.
    fn review_probe(&mut self, demands: &[Demanding<'_>]) {
        let Some(probe) = &mut self.probe else { return };
        let ceiling = probe.ceiling;
        let worse = demands.iter().any(|(index, signal, demand)| {
            probe.accepted.get(index).is_some_and(|(level, value)| {
                let now_at = demand.last_value().unwrap_or(*value);
                demand.level() > *level || now_at > value + margin(signal, *level)
            })
        });
        probe.accepted.retain(|index, _| {
            demands.iter().any(|(other, _, demand)| other == index && demand.level() > ceiling)
        });
        if worse || probe.accepted.is_empty() {
            self.probe = None;
        }
    }

    /// The rules have changed, and with them the demand: a level that they no longer demand ends at once.
    pub(super) fn rejudge(
        &mut self,
        now: Duration,
        before: Level,
        demands: &[Demanding<'_>],
    ) -> Option<Step> {
        let target = self.target(demands);
        let step = (target.level < before && target.level < self.level).then(|| {
            let from = self.level;
            self.moved(now, target.level);
            Step { from, to: self.level, signal: None }
        });
        self.signal = target.signal.or(self.signal).filter(|_| self.level > Level::Normal);
        step
    }

    /// Signals have new places in the configuration; `place` tells them.
    pub(super) fn renumber(&mut self, place: impl Fn(usize) -> Option<usize>) {
        self.signal = self.signal.and_then(&place);
        if let Some(probe) = &mut self.probe {
            let accepted = std::mem::take(&mut probe.accepted);
            probe.accepted = accepted.into_iter().filter_map(|(old, was)| Some((place(old)?, was))).collect();
        }
    }
}

fn margin(signal: &Signal, level: Level) -> f64 {
    let threshold = signal.thresholds.get(level.index()).copied().flatten();
    threshold.map_or(0.0, |threshold| WORSE * (threshold.enter - threshold.exit))
}
