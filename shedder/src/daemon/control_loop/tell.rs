//! What is said in the log about levels and signals: one line for each change, never one for each refusal, and few for
//! what many workloads lack.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::levels::{AvailabilityEvent, TransitionEvent, Update};

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

/// One line for each step.
pub(super) fn tell_steps(steps: &[TransitionEvent]) {
    for step in steps {
        let (from, to) = (step.from.name(), step.to.name());
        tracing::warn!("The level of {} goes from {from} to {to} because of {}.", step.scope, step.signal);
    }
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
    use super::*;

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
