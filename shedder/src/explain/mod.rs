//! Why the level is what it is and what a class sees: a pure function of a [`Snapshot`]. Its JSON is the output of
//! `shedder explain --json`.

mod ports;
mod scopes;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{limits, range};
use crate::control::protocol::{Payload, Refusal};
use crate::snapshot::{Pin, PortState, SetLimit, Snapshot};

pub use words::{limit_value, set_by_operator, signal_value};

/// Version of the JSON shape; a field may be added without a new number, never removed or changed.
pub const EXPLANATION_VERSION: u32 = 1;

/// The whole answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// [`EXPLANATION_VERSION`].
    pub version: u32,
    /// `observe`, `enforce` or `off`.
    pub mode: String,
    /// What an operator has set; `None` where the signals decide.
    pub pin: Option<Pin>,
    /// Every scope, or those that bear on the port that was asked for; the host first.
    pub scopes: Vec<ScopeExplanation>,
    /// The port that was asked for.
    pub port: Option<PortExplanation>,
}

/// Why a scope is at its level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScopeExplanation {
    /// `host`, `cgroup:PATH` or `port:N`; empty for signals that are read nowhere.
    pub scope: String,
    /// The level in force.
    pub level: String,
    /// For how long.
    pub held_seconds: f64,
    /// The signal that demands it; `operator` where it is pinned; empty at `normal`.
    pub signal: String,
    /// One sentence: why it is at this level.
    pub why: String,
    /// One sentence: what would change it.
    pub next: String,
    /// What is measured there.
    pub signals: Vec<SignalExplanation>,
}

/// What one signal says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SignalExplanation {
    /// Name.
    pub signal: String,
    /// The reading; `None` where it is unavailable.
    pub value: Option<f64>,
    /// `percent`, `ratio`, `per_second`, or what a signal of one's own is measured in: empty.
    pub unit: String,
    /// Enter thresholds by level name.
    pub enter: BTreeMap<String, f64>,
    /// Exit thresholds by level name.
    pub exit: BTreeMap<String, f64>,
    /// The level that it demands.
    pub demands: String,
    /// For how long.
    pub since_seconds: f64,
    /// One sentence: why it demands this level and none above.
    pub verdict: String,
}

/// What a port does with new connections now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortExplanation {
    /// `8080` or `8000-8099`.
    pub port: String,
    /// `tcp`.
    pub protocol: String,
    /// Class of whoever has none by source.
    pub class: String,
    /// The level in force.
    pub level: String,
    /// The scopes whose level that is; empty at `normal`.
    pub given_by: Vec<String>,
    /// One sentence: where the rate comes from.
    pub rate: String,
    /// What an operator has set, by key of `[[port]]`; empty where all is as configured.
    #[serde(default)]
    pub set: BTreeMap<String, SetLimit>,
    /// Until the shares have climbed to what the level allows; `None` where none climbs.
    pub ramp_remaining_seconds: Option<f64>,
    /// The span of everything recent.
    pub recent_seconds: f64,
    /// Every class, the most important first.
    pub classes: Vec<ClassExplanation>,
}

/// What one class sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassExplanation {
    /// Name.
    pub class: String,
    /// The part of every limit that it sees, 0..1.
    pub share: Option<f64>,
    /// What it keeps of the rate whatever its share, per second.
    pub floor_per_second: Option<f64>,
    /// Each limit beside what it is compared with.
    pub limits: Vec<LimitExplanation>,
    /// Gates that bind: they refused lately or would refuse now.
    pub binding: Vec<String>,
    /// One sentence: what becomes of a new connection.
    pub verdict: String,
}

/// One limit as a class sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitExplanation {
    /// The gate: `rate`, `connections`, `queue_depth`, `queue_wait`.
    pub gate: String,
    /// `per_second`, `connections`, `ratio` or `seconds`.
    pub unit: String,
    /// From this value on the class is refused; `None` is no limit.
    pub limit: Option<f64>,
    /// The value; `None` where it is not known.
    pub now: Option<f64>,
    /// How they compare.
    pub state: LimitState,
    /// Refusals lately.
    pub recently_refused: u64,
}

/// How a value stands to its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitState {
    /// There is no limit.
    #[default]
    NoLimit,
    /// The class is closed, so that nothing is compared.
    Closed,
    /// There is no value.
    Unknown,
    /// Below 80 % of it.
    Clear,
    /// From 80 % of it on.
    Near,
    /// At it or above.
    Over,
}

/// Explains the levels and, where one is named, a port: a number that a policy covers, or a policy's range.
///
/// # Errors
/// A sentence, where no policy covers the port.
pub fn explain(snapshot: &Snapshot, port: Option<&str>) -> Result<Explanation, String> {
    let port = match port {
        Some(port) => Some(find(snapshot, port)?),
        None => None,
    };
    Ok(Explanation {
        version: EXPLANATION_VERSION,
        mode: snapshot.mode.clone(),
        pin: snapshot.pin.clone(),
        scopes: scopes::explain(snapshot, port),
        port: port.map(|port| ports::explain(snapshot, port)),
    })
}

/// The answer to [`Command::Explain`](crate::control::protocol::Command::Explain).
///
/// # Errors
/// No policy covers the port.
pub fn answer(snapshot: &Snapshot, port: Option<&str>) -> Result<Payload, Refusal> {
    let explanation = explain(snapshot, port).map_err(Refusal::wrong_use)?;
    serde_json::to_value(explanation)
        .map(Payload::Document)
        .map_err(|error| Refusal::failed(error.to_string()))
}

fn find<'a>(snapshot: &'a Snapshot, port: &str) -> Result<&'a PortState, String> {
    let number: Option<u16> = port.parse().ok().filter(|_| limits::is_plain_number(port));
    let is_meant =
        |state: &&PortState| state.port == port || number.is_some_and(|number| state.covers(number));
    if let Some(state) = snapshot.ports.iter().find(is_meant) {
        return Ok(state);
    }
    // Spelled so that `set` refuses it too.
    if let Err(why) = range::PortRange::parse(port)
        && port.parse::<u16>().is_ok_and(|number| number != 0)
    {
        return Err(why);
    }
    let ranges: Vec<(u16, u16)> = snapshot.ports.iter().filter_map(PortState::range).collect();
    if let Ok(asked) = range::PortRange::parse(port)
        && let Some((first, _)) =
            ranges.iter().find(|(first, last)| asked.contains(*first) && asked.contains(*last))
    {
        return Err(format!(
            "{} is not the range of one policy: name a port, such as {first}",
            asked.label()
        ));
    }
    let port = crate::config::suggest::show(port);
    let those =
        if ranges.is_empty() { "no port has one".to_owned() } else { range::list(ranges.iter().copied()) };
    Err(format!("no policy covers port {port}, so nothing on it is judged; ports with a policy: {those}"))
}
