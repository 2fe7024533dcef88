//! What a port does with new connections.

use shedder_common::class::Class;
use shedder_common::gate::Gate;
use shedder_common::level::Level;

use super::words::limit_value;
use super::{ClassExplanation, LimitExplanation, LimitState, PortExplanation, scopes};
use crate::quota::learned::LEAST_PER_SECOND;
use crate::snapshot::{ClassState, PortState, Snapshot};
use crate::words::{number, seconds};

/// From this part of a limit on a value is near it.
const NEAR: f64 = 0.8;

pub(super) fn explain(snapshot: &Snapshot, port: &PortState) -> PortExplanation {
    let gives = |scope: &str, level: &str| level == port.level && scopes::bears_on(scope, port);
    let given_by = if port.level == Level::Normal.name() {
        Vec::new()
    } else {
        let giving = snapshot.levels.iter().filter(|scope| gives(&scope.scope, &scope.level));
        giving.map(|scope| scope.scope.clone()).collect()
    };
    let classes = Class::ALL
        .into_iter()
        .filter_map(|class| Some((class, port.classes.get(class.name())?)))
        .map(|(class, state)| class_explanation(&snapshot.mode, port, class, state));
    PortExplanation {
        port: port.port.clone(),
        protocol: port.protocol.clone(),
        class: port.class.clone(),
        level: port.level.clone(),
        given_by,
        rate: rate(port),
        set: port.set.clone(),
        ramp_remaining_seconds: port.ramp_remaining_seconds,
        recent_seconds: port.recent.seconds,
        classes: classes.collect(),
    }
}

fn rate(port: &PortState) -> String {
    let by = if port.set.contains_key("rate") { "set by an operator" } else { "by configuration" };
    match (port.rate.as_str(), port.learned_rate_per_second) {
        ("learned", Some(learned)) => {
            let learned = if learned <= LEAST_PER_SECOND {
                format!("{}/s, the least, since no more were admitted before the pressure", number(learned))
            } else {
                format!("{}/s were admitted before the pressure", number(learned))
            };
            format!("learned: {learned}; classes that see less than all of it see a share of that")
        }
        ("learned", None) if port.level != Level::Normal.name() => {
            "learned: no limit, since the pressure came before five seconds of calm had been seen".to_owned()
        }
        ("learned", None) => format!(
            "learned: no limit without pressure, then what was admitted before it, {}/s at least",
            number(LEAST_PER_SECOND)
        ),
        ("unlimited", _) => format!("unlimited, {by}"),
        ("", _) => "not known".to_owned(),
        (rate, _) => format!("{rate}, {by}"),
    }
}

fn class_explanation(mode: &str, port: &PortState, class: Class, state: &ClassState) -> ClassExplanation {
    let limits = limits(port, state);
    let is_binding = |gate: &str| {
        state.recently_refused.contains_key(gate)
            || limits.iter().any(|limit| limit.gate == gate && limit.state == LimitState::Over)
            || (gate == Gate::Closed.name() && state.quota.closed)
    };
    let binding = Gate::ALL.map(Gate::name).into_iter().filter(|gate| is_binding(gate)).map(str::to_owned);
    ClassExplanation {
        class: class.name().to_owned(),
        share: state.share,
        floor_per_second: state.quota.floor_per_second,
        binding: binding.collect(),
        verdict: verdict(mode, port, state, &limits),
        limits,
    }
}

fn limits(port: &PortState, state: &ClassState) -> Vec<LimitExplanation> {
    let quota = &state.quota;
    let measured = port.recent.seconds > 0.0;
    // A count to show, whose last bits do not matter.
    #[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
    let active = port.active_connections as f64;
    let depth = port.accept_queue.as_ref().map(|queue| queue.depth_ratio);
    [
        (
            Gate::Rate,
            "per_second",
            quota.rate_per_second,
            measured.then_some(port.recent.admitted_per_second),
        ),
        (Gate::Connections, "connections", quota.connections.map(f64::from), Some(active)),
        (Gate::QueueDepth, "ratio", quota.queue_depth_ratio, depth),
        (Gate::QueueWait, "seconds", quota.queue_wait_seconds, port.recent.wait_seconds),
    ]
    .into_iter()
    .map(|(gate, unit, limit, now)| LimitExplanation {
        gate: gate.name().to_owned(),
        unit: unit.to_owned(),
        limit,
        now,
        state: if quota.closed { LimitState::Closed } else { compare(limit, now) },
        recently_refused: state.recently_refused.get(gate.name()).copied().unwrap_or_default(),
    })
    .collect()
}

fn compare(limit: Option<f64>, now: Option<f64>) -> LimitState {
    match (limit, now) {
        (None, _) => LimitState::NoLimit,
        (_, None) => LimitState::Unknown,
        (Some(limit), Some(now)) if now >= limit => LimitState::Over,
        (Some(limit), Some(now)) if now >= limit * NEAR => LimitState::Near,
        _ => LimitState::Clear,
    }
}

/// What becomes of a new connection.
fn verdict(mode: &str, port: &PortState, state: &ClassState, limits: &[LimitExplanation]) -> String {
    if mode == "off" {
        return "admitted: mode is off, nothing is judged".to_owned();
    }
    let observed = if mode == "observe" { ", if mode were enforce" } else { "" };
    if state.quota.closed {
        return match state.quota.floor_per_second {
            Some(floor) if floor > 0.0 => {
                format!("refused but for its floor of {}/s{observed}", number(floor))
            }
            _ => format!("refused: it has no share at this level{observed}"),
        };
    }
    let refused = recently_refused(port, state);
    let of = |wanted: LimitState| {
        let those = limits.iter().filter(|limit| limit.state == wanted);
        those.map(compared).collect::<Vec<_>>().join(", ")
    };
    // What stands now is the same for every class with these limits; who was refused lately depends on who asked.
    let (over, near) = (of(LimitState::Over), of(LimitState::Near));
    if !over.is_empty() {
        let only_rate =
            limits.iter().all(|limit| limit.state != LimitState::Over || limit.gate == Gate::Rate.name());
        // Where the rate is reached, the rate is still admitted.
        let partly = if only_rate { "partly refused" } else { "refused" };
        let lately = refused.map_or_else(String::new, |refused| format!("; {refused}"));
        return format!("{partly} now{observed}: {over}{lately}");
    }
    if let Some(refused) = refused {
        return format!("partly refused{observed}: {refused}");
    }
    if !near.is_empty() {
        return format!("admitted, near a limit: {near}");
    }
    "admitted, no limit is near".to_owned()
}

/// `3 by rate in the last 3.2 s`; `None` where none was.
fn recently_refused(port: &PortState, state: &ClassState) -> Option<String> {
    let refused: Vec<String> = Gate::ALL
        .into_iter()
        .filter_map(|gate| Some(format!("{} by {}", state.recently_refused.get(gate.name())?, gate.name())))
        .collect();
    let span = seconds(port.recent.seconds);
    (!refused.is_empty()).then(|| format!("{} in the last {span}", refused.join(", ")))
}

fn compared(limit: &LimitExplanation) -> String {
    let shown = |value: Option<f64>| value.map_or_else(String::new, |value| limit_value(value, &limit.unit));
    format!("{} {} of {}", limit.gate, shown(limit.now), shown(limit.limit))
}
