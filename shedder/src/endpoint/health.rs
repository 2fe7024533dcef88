//! Whether the daemon is alive, and whether it does its work. Pure: ages and snapshots come as arguments.

use std::time::Duration;

use crate::snapshot::Snapshot;

/// Ticks that may be missed.
const MISSED_TICKS: f64 = 10.0;
/// The loop counts as turning for at least this long after a tick.
const PATIENCE_SECONDS: f64 = 2.0;

/// `Ok` while the loop turns, else a sentence that says what is wrong.
pub(super) fn alive(tick_age: Option<Duration>, tick_interval: Duration) -> Result<(), String> {
    let patience = (tick_interval.as_secs_f64() * MISSED_TICKS).max(PATIENCE_SECONDS);
    match tick_age {
        None => Err("The control loop has not turned yet.".to_owned()),
        Some(age) if age.as_secs_f64() < patience => Ok(()),
        Some(age) => Err(format!(
            "The control loop last turned {:.1} s ago, more than {patience:.1} s: new connections pass once the lease \
             has ended.",
            age.as_secs_f64()
        )),
    }
}

/// `Ok` once programs are attached and the first tick is done, else a sentence that says what is missing.
pub(super) fn ready(snapshot: &Snapshot) -> Result<(), String> {
    if snapshot.ticks.total == 0 {
        return Err("The first tick is not done yet.".to_owned());
    }
    if snapshot.attachments.iter().any(|attachment| attachment.mode != "none") {
        return Ok(());
    }
    if snapshot.attachments.is_empty() {
        return Err("No interface matches attach.interfaces.".to_owned());
    }
    let reasons: Vec<String> = snapshot
        .attachments
        .iter()
        .map(|attachment| format!("{}: {}", attachment.interface, attachment.reason))
        .collect();
    Err(format!("No interface could be attached ({}).", reasons.join("; ")))
}
