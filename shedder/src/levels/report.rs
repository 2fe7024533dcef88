//! Levels and signals as the snapshot shows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shedder_common::level::Level;

use super::demand::Demand;
use super::{Levels, ScopeState};
use crate::config::model::{Signal, SignalSource, Threshold};
use crate::sensors::reading::Scope;
use crate::sensors::unit;
use crate::snapshot::{Pin, Rising, ScopeLevel, SignalState, Transition};

impl Levels {
    /// What an operator has set.
    #[must_use]
    pub fn pin_state(&self, now: Duration) -> Option<Pin> {
        self.pinned().map(|(level, until)| Pin {
            level: level.name().to_owned(),
            remaining_seconds: until.map(|until| until.saturating_sub(now).as_secs_f64()),
        })
    }

    /// Every scope, the host first.
    #[must_use]
    pub fn scope_levels(&self, now: Duration) -> Vec<ScopeLevel> {
        self.scopes.iter().map(|(scope, state)| self.scope_level(now, scope, state)).collect()
    }

    fn scope_level(&self, now: Duration, scope: &Scope, state: &ScopeState) -> ScopeLevel {
        let name = |place: usize| self.signals.get(place).map(|(name, _)| Arc::clone(name));
        let signal = match self.pin {
            Some(_) => Some(Arc::clone(&self.operator)),
            None if state.level == Level::Normal => None,
            // A removed signal's level lasts for `hold`.
            None => state.ladder.signal().and_then(name).or_else(|| Some(Arc::clone(&self.configuration))),
        };
        let transitions = state.transitions.iter().map(|((from, to, signal), total)| Transition {
            from: from.name().to_owned(),
            to: to.name().to_owned(),
            signal: signal.to_string(),
            total: *total,
        });
        ScopeLevel {
            scope: scope.to_string(),
            level: self.level(scope).name().to_owned(),
            held_seconds: now.saturating_sub(state.since).as_secs_f64(),
            signal: signal.map(|signal| signal.to_string()).unwrap_or_default(),
            transitions: transitions.collect(),
            demanded: state.demanded().name().to_owned(),
            below_seconds: state.ladder.below_since().map(|since| now.saturating_sub(since).as_secs_f64()),
            hold_seconds: self.rules.hold.as_secs_f64(),
            probing: state.ladder.is_probing(),
        }
    }

    /// Every enabled signal at every scope at which it is read, in the order of the configuration and then of scopes.
    /// A signal that is read nowhere is shown once, unavailable.
    #[must_use]
    pub fn signal_states(&self, now: Duration) -> Vec<SignalState> {
        let mut states = Vec::new();
        for (place, (_, signal)) in self.signals.iter().enumerate() {
            let before = states.len();
            states.extend(self.scopes.iter().filter_map(|(scope, state)| {
                state.demand(place).map(|demand| read(now, signal, scope, demand))
            }));
            if states.len() == before {
                states.push(unread(signal));
            }
        }
        states
    }
}

fn read(now: Duration, signal: &Signal, scope: &Scope, demand: &Demand) -> SignalState {
    SignalState {
        scope: scope.to_string(),
        value: demand.value(),
        unavailable: demand.unavailable(),
        demands: demand.level().name().to_owned(),
        since_seconds: now.saturating_sub(demand.since()).as_secs_f64(),
        read_errors: demand.read_errors(),
        rising: demand.rising().map(|(level, since)| Rising {
            level: level.name().to_owned(),
            seconds: now.saturating_sub(since).as_secs_f64(),
            for_seconds: signal.rise_after.as_secs_f64(),
        }),
        ..unread(signal)
    }
}

/// A signal that has no reading at any scope.
fn unread(signal: &Signal) -> SignalState {
    let (scope, unavailable) = match &signal.source {
        SignalSource::File { scope, .. } => (Scope::from(scope).to_string(), "it has not been read yet"),
        // Its scopes are the ports that somebody listens on.
        SignalSource::AcceptQueue | SignalSource::ListenOverflows => {
            (String::new(), "nobody listens on a port with a policy")
        }
        _ => (Scope::Host.to_string(), "it has not been read yet"),
    };
    SignalState {
        signal: signal.name.clone(),
        scope,
        unit: unit(&signal.source).to_owned(),
        unavailable: unavailable.to_owned(),
        enter: by_level(signal, |threshold| threshold.enter),
        exit: by_level(signal, |threshold| threshold.exit),
        demands: Level::Normal.name().to_owned(),
        ..SignalState::default()
    }
}

fn by_level(signal: &Signal, value: impl Fn(&Threshold) -> f64) -> BTreeMap<String, f64> {
    let named = Level::ALL.into_iter().zip(&signal.thresholds);
    named
        .filter_map(|(level, threshold)| Some((level.name().to_owned(), value(threshold.as_ref()?))))
        .collect()
}
