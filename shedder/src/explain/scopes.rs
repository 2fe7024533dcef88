//! Scopes and their signals.

use shedder_common::level::Level;

use super::words::signal_value;
use super::{ScopeExplanation, SignalExplanation};
use crate::levels::{CONFIGURATION, OPERATOR};
use crate::snapshot::{Pin, PortState, ScopeLevel, SignalState, Snapshot};
use crate::words::{reading, seconds, threshold};

/// Every scope, or those that bear on the port.
pub(super) fn explain(snapshot: &Snapshot, port: Option<&PortState>) -> Vec<ScopeExplanation> {
    let bears = |scope: &str| port.is_none_or(|port| bears_on(scope, port));
    let mut scopes: Vec<ScopeExplanation> = snapshot
        .levels
        .iter()
        .filter(|level| bears(&level.scope))
        .map(|level| scope(level, snapshot))
        .collect();
    // A signal that has not been read yet may be the only one of its scope.
    for signal in &snapshot.signals {
        if !bears(&signal.scope) || scopes.iter().any(|known| known.scope == signal.scope) {
            continue;
        }
        let signals = snapshot.signals.iter().filter(|other| other.scope == signal.scope);
        scopes.push(ScopeExplanation {
            scope: signal.scope.clone(),
            level: Level::Normal.name().to_owned(),
            why: "nothing has been read here".to_owned(),
            next: "a reading may raise it".to_owned(),
            signals: signals.map(self::signal).collect(),
            ..ScopeExplanation::default()
        });
    }
    scopes
}

/// Whether a scope's level counts for a port.
pub(super) fn bears_on(scope: &str, port: &PortState) -> bool {
    let of_port = || scope.strip_prefix("port:").and_then(|number| number.parse().ok());
    scope == "host"
        || port.workloads.iter().any(|workload| workload == scope)
        || of_port().is_some_and(|number| port.covers(number))
}

fn scope(state: &ScopeLevel, snapshot: &Snapshot) -> ScopeExplanation {
    let signals: Vec<&SignalState> =
        snapshot.signals.iter().filter(|signal| signal.scope == state.scope).collect();
    ScopeExplanation {
        scope: state.scope.clone(),
        level: state.level.clone(),
        held_seconds: state.held_seconds,
        signal: state.signal.clone(),
        why: why(state, snapshot.pin.as_ref()),
        next: next(state, snapshot.pin.as_ref(), &signals),
        signals: signals.into_iter().map(signal).collect(),
    }
}

fn why(state: &ScopeLevel, pin: Option<&Pin>) -> String {
    if let Some(pin) = pin {
        let until = pin.remaining_seconds.map_or_else(
            || "until `shedder level auto`".to_owned(),
            |left| format!("for {} more", seconds(left)),
        );
        return format!("an operator pinned it {until}; its signals demand {}", word(&state.demanded));
    }
    if state.level == Level::Normal.name() {
        return if state.probing {
            "it is probed: its signals demand more, but what is offered lies below the quotas".to_owned()
        } else {
            "no signal has led higher".to_owned()
        };
    }
    match state.signal.as_str() {
        OPERATOR => "an operator set it".to_owned(),
        CONFIGURATION | "" => "a signal demanded it that is no longer configured or read".to_owned(),
        signal if state.below_seconds.is_some() => format!("{signal} demanded it and has let go"),
        signal => format!("{signal} demands it"),
    }
}

fn next(state: &ScopeLevel, pin: Option<&Pin>, signals: &[&SignalState]) -> String {
    if pin.is_some() {
        return "`shedder level auto` leaves it to the signals again".to_owned();
    }
    let level = Level::from_name(&state.level).unwrap_or_default();
    if let Some(below) = state.below_seconds {
        let left = seconds((state.hold_seconds - below).max(0.0));
        let down = level.down().name();
        return format!("down to {down} in {left}, unless a signal demands {} again", level.name());
    }
    if state.probing {
        return "up again if its signals get worse or more is offered than the quotas admit".to_owned();
    }
    if level == Level::Normal {
        return "up as soon as a signal reaches the enter threshold of a level".to_owned();
    }
    let hold = seconds(state.hold_seconds);
    let down = level.down().name();
    let leave = signals
        .iter()
        .filter(|signal| signal.demands == level.name())
        .map(|signal| match signal.exit.get(level.name()) {
            Some(exit) => format!("{} is at or below {}", signal.signal, threshold(*exit, &signal.unit)),
            None => format!("{} demands less", signal.signal),
        })
        .collect::<Vec<_>>();
    if leave.is_empty() {
        return format!("down to {down} once no signal demands more for {hold}");
    }
    format!("down to {down} once {} for {hold}", leave.join(" and "))
}

fn signal(state: &SignalState) -> SignalExplanation {
    SignalExplanation {
        signal: state.signal.clone(),
        value: state.value,
        unit: state.unit.clone(),
        enter: state.enter.clone(),
        exit: state.exit.clone(),
        demands: state.demands.clone(),
        since_seconds: state.since_seconds,
        verdict: verdict(state),
    }
}

/// Why it demands its level, and why none above.
fn verdict(state: &SignalState) -> String {
    let demanded = Level::from_name(&state.demands).unwrap_or_default();
    let Some(value) = state.value else {
        return if demanded == Level::Normal {
            format!("unavailable, so it demands nothing: {}", state.unavailable)
        } else {
            let demanded = demanded.name();
            format!("unavailable; on_loss = \"hold\" keeps {demanded} for a time: {}", state.unavailable)
        };
    };
    let shown = |value: f64| threshold(value, &state.unit);
    let enter = |level: Level| state.enter.get(level.name()).copied();
    let mut parts = Vec::new();
    match (enter(demanded), state.exit.get(demanded.name())) {
        (Some(enter), _) if value >= enter => {
            parts.push(format!("at or above {}, where {} begins", shown(enter), demanded.name()));
        }
        (Some(enter), Some(exit)) => parts.push(format!(
            "above {}, where {} ends; it began at {}",
            shown(*exit),
            demanded.name(),
            shown(enter)
        )),
        _ => {}
    }
    let above = Level::ALL
        .into_iter()
        .filter(|level| *level > demanded)
        .find_map(|level| Some((level, enter(level)?)));
    match (&state.rising, above) {
        (Some(rising), _) => {
            let begins = state.enter.get(&rising.level).map_or_else(String::new, |enter| shown(*enter));
            let (seconds, of) = (seconds(rising.seconds), seconds(rising.for_seconds));
            parts.push(format!(
                "at or above {begins} for {seconds} of the {of} after which {} begins",
                rising.level
            ));
        }
        (None, Some((level, enter))) => {
            // What rounds to the threshold and is below it is shown in full.
            let value = if reading(value, &state.unit) == shown(enter) {
                format!("{value} is ")
            } else {
                String::new()
            };
            parts.push(format!("{value}below {}, where {} begins", shown(enter), level.name()));
        }
        (None, None) if demanded == Level::Normal => parts.push("it has no thresholds".to_owned()),
        (None, None) => parts.push("it demands no more than that".to_owned()),
    }
    format!("{}: {}", signal_value(value, &state.unit), parts.join("; "))
}

fn word(level: &str) -> &str {
    if level.is_empty() { "normal" } else { level }
}
