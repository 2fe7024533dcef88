//! Levels and the signals behind them.

use std::collections::BTreeMap;
use std::fmt;

use shedder_common::level::Level;

use super::family::Families;
use crate::snapshot::{SignalState, Snapshot};

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
                for step in &scope.transitions {
                    let labels = [
                        ("scope", scope.scope.as_str()),
                        ("from", step.from.as_str()),
                        ("to", step.to.as_str()),
                        ("signal", step.signal.as_str()),
                    ];
                    counter.add(&labels, step.total)?;
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
