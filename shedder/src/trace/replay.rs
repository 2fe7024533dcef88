//! A trace under a whole configuration: its steps, and what the classes on each port would have seen.

use std::io::BufRead;

use super::shares::Shares;
use super::simulate::{Simulation, TraceError, simulate};
use crate::config::model::Config;

/// What a replay under a configuration brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// The steps.
    pub simulation: Simulation,
    shares: Shares,
}

/// Replays a trace through the level and share code of the daemon, from `normal`.
///
/// # Errors
/// [`TraceError`] at the first line that cannot be replayed.
pub fn replay(trace: impl BufRead, config: &Config) -> Result<Replay, TraceError> {
    let mut shares = Shares::new(config);
    let simulation = simulate(trace, &config.levels, &config.signals, |now, levels| {
        shares.follow(now, levels, config);
    })?;
    Ok(Replay { simulation, shares })
}

impl Replay {
    /// The steps and timelines of [`Simulation::text`], and below them the shares on each port that was not left alone.
    #[must_use]
    pub fn text(&self) -> String {
        self.simulation.text() + &self.shares.text(self.simulation.end)
    }
}
