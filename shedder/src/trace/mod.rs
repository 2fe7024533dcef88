//! Traces: live readings as JSON lines, and their replay through the same level code.
//!
//! One reading per line, `value` null where it was unavailable; lines with the same `t` are one tick:
//!
//! ```text
//! {"t":0.1,"signal":"memory","scope":"host","value":0.93}
//! ```
//!
//! `age` says for how many seconds the value had been so, where that is not 0: a file may have been written a while ago.
//!
//! A line of the signal [`OFFERED_BELOW_QUOTA`] with the value 1 says that what the scope was offered lay below its
//! quotas, on which the probes of long-held levels depend.

mod record;
mod replay;
mod shares;
mod simulate;

pub use record::{Recorded, Recorder};
pub use replay::{Replay, replay};
use serde::{Deserialize, Serialize};
pub use simulate::{Simulation, TraceError, simulate};

/// Name under which a trace tells that what is offered lies below the quotas.
pub const OFFERED_BELOW_QUOTA: &str = "offered_below_quota";

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Seconds since the start of the trace.
    t: f64,
    signal: String,
    scope: String,
    // Without a deserializer of its own a line that lacks the value would pass for an unavailable one.
    #[serde(deserialize_with = "Option::deserialize")]
    value: Option<f64>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    age: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(age: &f64) -> bool {
    *age == 0.0
}

#[cfg(test)]
mod tests;
