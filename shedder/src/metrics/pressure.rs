//! Levels and the signals behind them.

use std::collections::BTreeMap;
use std::fmt;

use shedder_common::level::Level;

use super::family::Families;
use crate::levels::{CONFIGURATION, OPERATOR};
use crate::snapshot::{ScopeLevel, SignalState, Snapshot};

pub(super) fn encode(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    levels(families, snapshot)?;
    readings(families, snapshot)?;
    thresholds(families, snapshot)
}

fn levels(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    families.gauge(
        "shedder_level",
        "Level of the scope: 0 normal, 1 moderate, 2 high, 3 emergency",
        |gauge| {
            for scope in &snapshot.levels {
                let level = Level::from_name(&scope.level).map_or(f64::NAN, |level| f64::from(level as u8));
                gauge.add(&[("scope", scope.scope.as_str())], level)?;
            }
            Ok(())
        },
    )?;
    families.counter(
        "shedder_level_transitions",
        "Steps from one level to another, by the signal that caused them",
        |counter| {
            for scope in &snapshot.levels {
                for ((from, to, signal), total) in transitions(scope, snapshot) {
                    let labels =
                        [("scope", scope.scope.as_str()), ("from", from), ("to", to), ("signal", signal)];
                    counter.add(&labels, total)?;
                }
            }
            Ok(())
        },
    )?;
    families.gauge("shedder_level_held_seconds", "For how long the scope has been at its level", |gauge| {
        for scope in &snapshot.levels {
            gauge.add(&[("scope", scope.scope.as_str())], scope.held_seconds)?;
        }
        Ok(())
    })
}

/// Steps of a scope by from, to and signal: those that were taken, and zeros for those that its signals or an operator
/// may yet bring, so that no first step escapes `increase()`. Cgroups come and go by the thousand, so they have only
/// what they took.
fn transitions<'a>(
    scope: &'a ScopeLevel,
    snapshot: &'a Snapshot,
) -> BTreeMap<(&'a str, &'a str, &'a str), u64> {
    let mut steps = BTreeMap::new();
    if !scope.scope.starts_with("cgroup:") {
        for signal in snapshot.signals.iter().filter(|signal| signal.scope == scope.scope) {
            let demanded = Level::ALL.into_iter().filter(|level| signal.enter.contains_key(level.name()));
            for level in demanded {
                let below = Level::ALL.into_iter().filter(|from| *from < level);
                let rises = below.map(|from| (from, level));
                // Down one step at a time, from wherever the signal led.
                let falls = Level::ALL.into_iter().filter(|from| (Level::Moderate..=level).contains(from));
                for (from, to) in rises.chain(falls.map(|from| (from, from.down()))) {
                    steps.insert((from.name(), to.name(), signal.signal.as_str()), 0);
                }
            }
        }
        let pairs = Level::ALL.into_iter().flat_map(|from| Level::ALL.map(|to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            steps.insert((from.name(), to.name(), OPERATOR), 0);
            if to < from {
                steps.insert((from.name(), to.name(), CONFIGURATION), 0);
            }
        }
    }
    for step in &scope.transitions {
        steps.insert((step.from.as_str(), step.to.as_str(), step.signal.as_str()), step.total);
    }
    steps
}

fn readings(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    families.gauge(
        "shedder_signal_value",
        "Reading of the signal in its own unit; NaN where it is unavailable",
        |gauge| {
            for signal in &snapshot.signals {
                gauge.add(&labels(signal), signal.value.unwrap_or(f64::NAN))?;
            }
            Ok(())
        },
    )?;
    families.gauge("shedder_signal_up", "1 where the signal can be read, else 0", |gauge| {
        for signal in &snapshot.signals {
            gauge.add_count(&labels(signal), u64::from(signal.value.is_some()))?;
        }
        Ok(())
    })?;
    families.counter("shedder_signal_read_errors", "Failed reads of the signal", |counter| {
        for signal in &snapshot.signals {
            counter.add(&labels(signal), signal.read_errors)?;
        }
        Ok(())
    })
}

fn thresholds(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    by_level(
        families,
        snapshot,
        "shedder_signal_enter_threshold",
        "At or above this value the signal demands the level",
        |signal| &signal.enter,
    )?;
    by_level(
        families,
        snapshot,
        "shedder_signal_exit_threshold",
        "At or below this value the signal's demand for the level ends",
        |signal| &signal.exit,
    )
}

fn by_level(
    families: &mut Families<'_>,
    snapshot: &Snapshot,
    name: &str,
    help: &str,
    of: fn(&SignalState) -> &BTreeMap<String, f64>,
) -> fmt::Result {
    families.gauge(name, help, |gauge| {
        for signal in &snapshot.signals {
            let [name, scope] = labels(signal);
            for level in Level::ALL {
                if let Some(value) = of(signal).get(level.name()) {
                    gauge.add(&[name, scope, ("level", level.name())], *value)?;
                }
            }
        }
        Ok(())
    })
}

fn labels(signal: &SignalState) -> [(&str, &str); 2] {
    [("signal", signal.signal.as_str()), ("scope", signal.scope.as_str())]
}
