//! What is said in the log about levels and signals.

use crate::levels::Update;

/// One line for each change of a level and of what can be read; never one for each refusal.
pub(super) fn tell(update: &Update) {
    for step in &update.transitions {
        let (from, to) = (step.from.name(), step.to.name());
        tracing::warn!("The level of {} goes from {from} to {to} because of {}.", step.scope, step.signal);
    }
    for change in &update.availability {
        if change.available {
            tracing::info!("The signal {} of {} is there.", change.signal, change.scope);
        } else {
            tracing::warn!(
                "The signal {} of {} is unavailable and demands nothing: {}.",
                change.signal,
                change.scope,
                change.reason
            );
        }
    }
}
