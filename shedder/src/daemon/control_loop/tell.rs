//! What is said in the log about levels and signals: one line for each change, never one for each refusal, and few for
//! what many workloads lack.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::levels::{AvailabilityEvent, CONFIGURATION, OPERATOR, TransitionEvent, Update};

/// What was said before.
#[derive(Debug, Default)]
pub(super) struct Teller {
    /// By signal: how many workloads and ports were said to lack it.
    lacking: BTreeMap<Arc<str>, usize>,
}

impl Teller {
    /// Tells what a tick changed. `lacking` says how many workloads and ports lack a signal now.
    pub(super) fn tell(&mut self, update: &Update, lacking: impl Fn(&str) -> usize) {
        tell_steps(&update.transitions);
        let mut examples: BTreeMap<&Arc<str>, &AvailabilityEvent> = BTreeMap::new();
        for change in &update.availability {
            tell_availability(change);
            if change.lacking && !change.available {
                examples.entry(&change.signal).or_insert(change);
            }
        }
        for (signal, example) in examples {
            let count = lacking(signal);
            if self.is_news(signal, count) {
                tracing::info!(
                    "The signal {signal} is unavailable for {count} workloads or ports and demands nothing there, \
                     for example for {}: {}.",
                    example.scope,
                    example.reason
                );
            }
        }
    }

    /// Pods come and go: another line is due only when twice as many lack the signal.
    fn is_news(&mut self, signal: &Arc<str>, count: usize) -> bool {
        let told = self.lacking.entry(Arc::clone(signal)).or_default();
        let is_news = count >= told.saturating_mul(2).max(1);
        if is_news {
            *told = count;
        }
        is_news
    }
}

/// One line for each step; only what signals lead up to is a warning.
pub(super) fn tell_steps(steps: &[TransitionEvent]) {
    for step in steps {
        let sentence = sentence(step);
        if is_alarming(step) {
            tracing::warn!("{sentence}");
        } else {
            tracing::info!("{sentence}");
        }
    }
}

fn is_alarming(step: &TransitionEvent) -> bool {
    step.to > step.from && &*step.signal != OPERATOR
}

fn sentence(step: &TransitionEvent) -> String {
    let (scope, from, to) = (&step.scope, step.from.name(), step.to.name());
    let why = match &*step.signal {
        OPERATOR => " by an operator's choice".to_owned(),
        CONFIGURATION => " since the configuration changed".to_owned(),
        signal if step.to > step.from => format!(" because of {signal}"),
        // It may be probed although the signal still demands it.
        signal => format!("; {signal} had held it up"),
    };
    format!("The level of {scope} goes from {from} to {to}{why}.")
}

fn tell_availability(change: &AvailabilityEvent) {
    let AvailabilityEvent { signal, scope, reason, .. } = change;
    match (change.available, change.lacking) {
        (true, false) => tracing::info!("The signal {signal} of {scope} is there."),
        (true, true) => tracing::debug!("The signal {signal} of {scope} is there."),
        (false, false) => {
            tracing::warn!("The signal {signal} of {scope} is unavailable and demands nothing: {reason}.");
        }
        (false, true) => tracing::debug!("The signal {signal} of {scope} is unavailable: {reason}."),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shedder_common::level::Level::{self, High, Moderate, Normal};

    use super::*;
    use crate::sensors::reading::Scope;

    #[test]
    fn steps_say_why_and_only_those_up_by_signals_warn() {
        let step = |from: Level, to: Level, signal: &str| {
            let (at, scope, signal) = (Duration::ZERO, Scope::Host, Arc::from(signal));
            let step = TransitionEvent { at, scope, from, to, signal };
            (is_alarming(&step), sentence(&step))
        };
        for (from, to, signal, warns, why) in [
            (Normal, High, "memory", true, "from normal to high because of memory."),
            (High, Moderate, "memory", false, "from high to moderate; memory had held it up."),
            (Normal, High, OPERATOR, false, "from normal to high by an operator's choice."),
            (High, Normal, OPERATOR, false, "from high to normal by an operator's choice."),
            (High, Normal, CONFIGURATION, false, "from high to normal since the configuration changed."),
        ] {
            assert_eq!(step(from, to, signal), (warns, format!("The level of host goes {why}")));
        }
    }

    #[test]
    fn what_more_and_more_workloads_lack_is_told_a_few_times() {
        let mut teller = Teller::default();
        let signal = Arc::from("memory");
        let told: Vec<usize> = (1..=1_000).filter(|count| teller.is_news(&signal, *count)).collect();
        assert_eq!(told, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert!(!teller.is_news(&signal, 5), "fewer are no news");
        assert!(teller.is_news(&Arc::from("psi_cpu_some"), 12));
    }
}
