//! What is known at one moment: made when somebody asks, once in a tick at most, for metrics, `/status` and the command
//! line. Its JSON is the output of `shedder status --json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shedder_common::level::Level;

/// Version of the JSON shape; a field may be added without a new number, never removed or changed.
pub const SNAPSHOT_VERSION: u32 = 1;

/// Everything that shedder shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SNAPSHOT_VERSION`].
    pub version: u32,
    /// Version of the daemon; empty where no daemon runs.
    pub shedder_version: String,
    /// Whether a daemon made this; without one it is read from the pinned maps.
    pub daemon: bool,
    /// `observe`, `enforce` or `off`.
    pub mode: String,
    /// Until the kernel stops obeying the quotas, from the moment of the snapshot; 0 where it has stopped.
    pub lease_remaining_seconds: f64,
    /// The control loop.
    pub ticks: Ticks,
    /// Interfaces and how they are served.
    pub attachments: Vec<Attachment>,
    /// What an operator has set; `None` where the signals decide.
    #[serde(default)]
    pub pin: Option<Pin>,
    /// Levels by scope; the host first.
    pub levels: Vec<ScopeLevel>,
    /// Every signal at every scope.
    pub signals: Vec<SignalState>,
    /// Port policies in the order of the configuration.
    pub ports: Vec<PortState>,
    /// Packets that could not be parsed and passed, by reason.
    pub unparsed: BTreeMap<String, u64>,
    /// New connections that passed unjudged, by reason.
    pub fail_open: BTreeMap<String, u64>,
    /// New connections outside of every limit, by reason.
    pub exempt: BTreeMap<String, u64>,
    /// Connections that could not be counted.
    pub untracked_connections: u64,
    /// Resets that could not be sent; the packet was dropped instead.
    pub resets_failed: u64,
    /// What does not work as configured, one sentence each.
    pub warnings: Vec<String>,
}

impl Snapshot {
    /// The level of the host; `normal` where nothing is known.
    #[must_use]
    pub fn host_level(&self) -> Level {
        let host = self.levels.iter().find(|scope| scope.scope == "host");
        host.and_then(|host| Level::from_name(&host.level)).unwrap_or_default()
    }
}

/// A level that an operator has set for every scope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// The level.
    pub level: String,
    /// Until the signals decide again; `None` where that is when the operator says so.
    pub remaining_seconds: Option<f64>,
}

/// The control loop's own figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ticks {
    /// Configured pace.
    pub interval_seconds: f64,
    /// Ticks since the start.
    pub total: u64,
    /// How long ticks took: counts by upper bound of [`TICK_BOUNDS_SECONDS`], not cumulative; one more for the
    /// rest.
    pub buckets: Vec<u64>,
    /// Sum of the durations.
    pub sum_seconds: f64,
}

/// Upper bounds of [`Ticks::buckets`].
pub const TICK_BOUNDS_SECONDS: [f64; 9] = [0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1.0];

/// How an interface is served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    /// Name.
    pub interface: String,
    /// Index.
    pub ifindex: u32,
    /// `native`, `generic`, `tcx`, `clsact`, or `none` where it could not be attached.
    pub mode: String,
    /// Why this mode, or what went wrong and what to do.
    pub reason: String,
}

/// The level of one scope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScopeLevel {
    /// `host`, `cgroup:PATH` or `port:N`.
    pub scope: String,
    /// The level.
    pub level: String,
    /// For how long.
    pub held_seconds: f64,
    /// The signal that demands it; `operator` where it is pinned; empty at `normal`.
    pub signal: String,
    /// Steps so far.
    pub transitions: Vec<Transition>,
    /// The highest level that one of its signals demands, whatever a pin or a probe says.
    #[serde(default)]
    pub demanded: String,
    /// For how long no signal has demanded the level that its signals led to; `None` while one does.
    #[serde(default)]
    pub below_seconds: Option<f64>,
    /// `below_seconds` at which the level goes one step down.
    #[serde(default)]
    pub hold_seconds: f64,
    /// Whether the level was lowered although signals demand it, to see whether they get worse.
    #[serde(default)]
    pub probing: bool,
}

/// Steps of one scope from one level to another because of one signal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    /// From this level.
    pub from: String,
    /// To this one.
    pub to: String,
    /// Because of this signal.
    pub signal: String,
    /// How often.
    pub total: u64,
}

/// One signal at one scope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SignalState {
    /// Name.
    pub signal: String,
    /// `host`, `cgroup:PATH` or `port:N`.
    pub scope: String,
    /// `percent`, `ratio`, `per_second`, or what a signal of one's own is measured in: empty.
    pub unit: String,
    /// The reading; `None` where it is unavailable.
    pub value: Option<f64>,
    /// Why it is unavailable; empty where it is not.
    pub unavailable: String,
    /// Enter thresholds by level name.
    pub enter: BTreeMap<String, f64>,
    /// Exit thresholds by level name.
    pub exit: BTreeMap<String, f64>,
    /// The level that it demands.
    pub demands: String,
    /// For how long it has demanded that.
    pub since_seconds: f64,
    /// Failed reads so far.
    pub read_errors: u64,
    /// A level whose enter threshold the value has reached, but not for long enough yet.
    #[serde(default)]
    pub rising: Option<Rising>,
}

/// A demand in the making.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rising {
    /// The level.
    pub level: String,
    /// For how long the value has stood at or above its enter threshold.
    pub seconds: f64,
    /// For how long it must.
    pub for_seconds: f64,
}

/// One port policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortState {
    /// `8080` or `8000-8099`.
    pub port: String,
    /// `tcp`.
    pub protocol: String,
    /// Class of whoever has none by source.
    pub class: String,
    /// `drop` or `reset`.
    pub action: String,
    /// `local`, `any` or the CIDRs.
    pub to: String,
    /// The higher of the host's level and its workload's.
    pub level: String,
    /// Configured rate: a number per second, `learned` or `unlimited`.
    pub rate: String,
    /// Live connections.
    pub active_connections: u64,
    /// Connections that wait for `accept`, of the fullest listener; `None` where nobody listens.
    pub accept_queue: Option<AcceptQueue>,
    /// How long the oldest unaccepted connection had waited when a new one asked.
    pub accept_wait: Histogram,
    /// Quotas and counts by class name.
    pub classes: BTreeMap<String, ClassState>,
    /// Cgroups that own its listeners, as scopes (`cgroup:PATH`).
    #[serde(default)]
    pub workloads: Vec<String>,
    /// What the port is measured against under pressure where its rate is learned; `None` without pressure.
    #[serde(default)]
    pub learned_rate_per_second: Option<f64>,
    /// Until the shares have climbed to what the level allows; `None` where none climbs.
    #[serde(default)]
    pub ramp_remaining_seconds: Option<f64>,
    /// What happened lately.
    #[serde(default)]
    pub recent: Recent,
    /// What an operator has set with `shedder set`, by key of `[[port]]`; empty where all is as configured.
    #[serde(default)]
    pub set: BTreeMap<String, SetLimit>,
}

impl PortState {
    /// First and last port; `None` where `port` is no port or range.
    #[must_use]
    pub fn range(&self) -> Option<(u16, u16)> {
        let (first, last) = self.port.split_once('-').unwrap_or((&self.port, &self.port));
        Some((first.parse().ok()?, last.parse().ok()?))
    }

    /// Whether the policy covers this port.
    #[must_use]
    pub fn covers(&self, port: u16) -> bool {
        self.range().is_some_and(|(first, last)| (first..=last).contains(&port))
    }
}

/// A limit that an operator has set. Values are spelled as in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetLimit {
    /// What holds.
    pub value: String,
    /// What the configuration says.
    pub configured: String,
    /// Where it waits for `shedder confirm`; `None` where it stays.
    #[serde(default)]
    pub goes_back: Option<GoesBack>,
}

/// What becomes of a limit that is not confirmed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GoesBack {
    /// This value.
    pub to: String,
    /// Until then.
    pub remaining_seconds: f64,
}

/// What happened at a port within the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recent {
    /// Within how many; 0 where nothing has been measured yet.
    pub seconds: f64,
    /// New connections admitted per second.
    pub admitted_per_second: f64,
    /// How long the oldest unaccepted connection had waited when a new one asked, on average; `None` where none asked
    /// or nothing listened.
    pub wait_seconds: Option<f64>,
}

/// The accept queue of one listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AcceptQueue {
    /// Connections that wait.
    pub depth: u32,
    /// The listen backlog.
    pub backlog: u32,
    /// `depth` over `backlog`, 1 at most.
    pub depth_ratio: f64,
}

/// Counts by bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds, seconds.
    pub bounds_seconds: Vec<f64>,
    /// One count for each bound and one more for the rest; not cumulative.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum_seconds: f64,
}

/// One class at one port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassState {
    /// What the class sees now.
    pub quota: ClassQuota,
    /// New attempts that were admitted.
    pub admitted: u64,
    /// New attempts that were refused, by gate name.
    pub shed: BTreeMap<String, u64>,
    /// New attempts that `enforce` would have refused, by gate name.
    pub would_shed: BTreeMap<String, u64>,
    /// Attempts of exempt sources.
    pub exempt: u64,
    /// Attempts passed unjudged.
    pub fail_open: u64,
    /// RST segments sent.
    pub resets_sent: u64,
    /// Repeats of admitted attempts.
    pub retransmits_admitted: u64,
    /// Repeats of refused attempts, refused again.
    pub retransmits_shed: u64,
    /// The part of every limit that the class sees now, 0..1; `None` where it is not known.
    #[serde(default)]
    pub share: Option<f64>,
    /// New attempts refused (or, in `observe`, judged so) within [`PortState::recent`], by gate name, without zeros.
    #[serde(default)]
    pub recently_refused: BTreeMap<String, u64>,
}

/// The limits that a class sees; `None` is no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassQuota {
    /// Whether nothing but the floor is admitted.
    pub closed: bool,
    /// New connections per second of the port from which on the class is refused.
    pub rate_per_second: Option<f64>,
    /// What the class always keeps of the rate.
    pub floor_per_second: Option<f64>,
    /// Open connections of the port from which on the class is refused.
    pub connections: Option<u32>,
    /// Part of the listen backlog from which on the class is refused.
    pub queue_depth_ratio: Option<f64>,
    /// Age of the oldest unaccepted connection from which on the class is refused.
    pub queue_wait_seconds: Option<f64>,
}
