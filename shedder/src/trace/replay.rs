//! A trace under a whole configuration: its steps, and what the classes on each port would have seen.

use std::collections::BTreeSet;
use std::io::BufRead;

use super::shares::Shares;
use super::simulate::{Simulation, TraceError, simulate};
use crate::config::model::Config;
use crate::config::range;

/// What a replay under a configuration brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// The steps.
    pub simulation: Simulation,
    shares: Shares,
    /// Ports of the trace that no policy covers.
    uncovered: BTreeSet<u16>,
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
    // Without a file the ports that listen would have policies.
    let covered = |port: &u16| {
        config.follow_listeners
            || config.ports.iter().any(|policy| (policy.first..=policy.last).contains(port))
    };
    let uncovered = simulation.ports.iter().copied().filter(|port| !covered(port)).collect();
    Ok(Replay { simulation, shares, uncovered })
}

impl Replay {
    /// The steps and timelines of [`Simulation::text`], and below them the shares on each port that was not left alone.
    #[must_use]
    pub fn text(&self) -> String {
        self.simulation.text() + &self.shares.text(self.simulation.end)
    }

    /// What the trace holds that changes no limit, as a sentence; `None` where there is nothing of that kind.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let ports = range::list(self.uncovered.iter().map(|port| (*port, *port)));
        (!ports.is_empty()).then(|| {
            format!("the trace has readings of ports without a policy, which change no limit: {ports}")
        })
    }
}
