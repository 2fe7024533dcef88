//! The quota table: all limits of all port policies at one moment. A pure function of configuration and demand.

pub mod learned;
pub mod ramp;

use shedder_common::class::{CLASSES, Class};
use shedder_common::gcra::{Rate, UNITS_PER_SECOND, units};
use shedder_common::level::Level;
use shedder_common::limits::{CLOSED, ClassLimits, DEPTH_ONE, PolicyLimits, RESET, Scope, UNLIMITED};

use crate::config::model::{Action, ClassRules, Config, Destinations, PortPolicy, RateLimit};

/// All limits at one moment. The datapath writes it in one piece.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuotaTable {
    /// One entry for each port policy, in the order of the configuration.
    pub policies: Vec<PolicyQuota>,
}

/// The limits of one port policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyQuota {
    /// First port.
    pub first: u16,
    /// Last port, inclusive.
    pub last: u16,
    /// CIDRs of a policy with [`shedder_common::limits::Scope::Listed`].
    pub destinations: Destinations,
    /// What the kernel reads.
    pub limits: PolicyLimits,
}

/// What pressure asks of one port policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// By [`Class::index`], 0..=1.
    pub shares: [f64; CLASSES],
    /// Rate per second to measure a port against whose own is learned; `None` is no limit yet.
    pub learned_rate: Option<f64>,
}

impl Demand {
    /// No pressure: the shares of level `normal`.
    #[must_use]
    pub fn normal(classes: &[ClassRules; CLASSES]) -> Self {
        Self { shares: shares(classes, Level::Normal), learned_rate: None }
    }
}

/// The part of every limit that each class sees at a level, by [`Class::index`].
#[must_use]
pub fn shares(classes: &[ClassRules; CLASSES], level: Level) -> [f64; CLASSES] {
    let mut shares = [1.0; CLASSES];
    for (share, rules) in shares.iter_mut().zip(classes) {
        *share = rules.shares.get(level.index()).copied().unwrap_or(1.0);
    }
    shares
}

/// The quota table that follows from configuration and demand, which is one entry for each port policy; a policy
/// without one is under no pressure. `clock_resolution_ns` is that of the clock by which the kernel measures rates.
#[must_use]
pub fn table(config: &Config, demands: &[Demand], clock_resolution_ns: u64) -> QuotaTable {
    let normal = Demand::normal(&config.classes);
    let demands = demands.iter().chain(std::iter::repeat(&normal));
    let policies = config.ports.iter().zip(demands).map(|(policy, demand)| PolicyQuota {
        first: policy.first,
        last: policy.last,
        destinations: policy.to.clone(),
        limits: policy_limits(policy, &config.classes, demand, clock_resolution_ns),
    });
    QuotaTable { policies: policies.collect() }
}

/// The limits of one port policy.
#[must_use]
pub fn policy_limits(
    policy: &PortPolicy,
    classes: &[ClassRules; CLASSES],
    demand: &Demand,
    clock_resolution_ns: u64,
) -> PolicyLimits {
    let rate = match policy.rate {
        RateLimit::PerSecond(rate) => Some(rate),
        RateLimit::Learned => demand.learned_rate,
        RateLimit::Unlimited => None,
    };
    // Pressure takes nothing from a class with the whole share: what the port admitted before is no limit that
    // anybody has set.
    let is_limit = |share: f64| policy.rate != RateLimit::Learned || share < 1.0;
    let admits_none = policy.admits_none();
    let burst = policy.burst.map_or_else(|| rate.map_or(1.0, |rate| (rate / 10.0).max(1.0)), f64::from);
    let mut limits = PolicyLimits::unlimited(policy.class);
    for (index, class) in Class::ALL.into_iter().enumerate() {
        let (Some(rules), Some(share)) = (classes.get(index), demand.shares.get(index).copied()) else {
            continue;
        };
        let share = share.clamp(0.0, 1.0);
        let mut class_limits = if admits_none || share <= 0.0 {
            ClassLimits { flags: CLOSED, ..PolicyLimits::unlimited(class).classes[0] }
        } else {
            share_of(policy, rate.filter(|_| is_limit(share)), burst, share, clock_resolution_ns)
        };
        if let (Some(rate), false) = (rate.filter(|_| is_limit(share)), admits_none) {
            let floor = gcra_rate(rate * rules.floor, (burst * rules.floor).max(1.0), clock_resolution_ns);
            class_limits.floor_interval = floor.map_or(0, |floor| floor.interval);
            class_limits.floor_tolerance = floor.map_or(0, |floor| floor.tolerance);
        }
        if rules.action.unwrap_or(policy.action) == Action::Reset {
            class_limits.flags |= RESET;
        }
        if let Some(entry) = limits.classes.get_mut(index) {
            *entry = class_limits;
        }
    }
    limits.rate_leader = rate_leaders(&limits.classes);
    limits.connections = policy.connections.unwrap_or(UNLIMITED);
    limits.queue_depth = policy.queue_depth.map_or(UNLIMITED, depth_fraction);
    limits.queue_wait_us = policy.queue_wait.map_or(UNLIMITED, |wait| to_u32(wait.as_secs_f64() * 1e6));
    limits.scope = match policy.to {
        Destinations::Local => Scope::Local,
        Destinations::Any => Scope::Any,
        Destinations::Listed(_) => Scope::Listed,
    } as u32;
    limits
}

/// Every limit of a policy times a share above 0.
fn share_of(
    policy: &PortPolicy,
    rate: Option<f64>,
    burst: f64,
    share: f64,
    clock_resolution_ns: u64,
) -> ClassLimits {
    let rate = rate.and_then(|rate| gcra_rate(rate * share, (burst * share).max(1.0), clock_resolution_ns));
    ClassLimits {
        interval: rate.map_or(0, |rate| rate.interval),
        tolerance: rate.map_or(0, |rate| rate.tolerance),
        floor_interval: 0,
        floor_tolerance: 0,
        // A share of a small limit still admits someone: only a share of 0 closes.
        connections: policy
            .connections
            .map_or(UNLIMITED, |connections| to_u32((f64::from(connections) * share).floor()).max(1)),
        queue_depth: policy.queue_depth.map_or(UNLIMITED, |depth| depth_fraction(depth * share).max(1)),
        queue_wait_us: policy
            .queue_wait
            .map_or(UNLIMITED, |wait| to_u32(wait.as_secs_f64() * 1e6 * share).max(1)),
        flags: 0,
    }
}

/// A rate as the kernel measures it; `None` where it is 0 or less.
///
/// The kernel's clock stands still for `clock_resolution_ns` at a time, in which all arrivals seem to come at
/// once: the tolerance is wider by that much, or a small burst would admit less than the rate. It widens no
/// second by more than that part of it.
#[must_use]
pub fn gcra_rate(per_second: f64, burst: f64, clock_resolution_ns: u64) -> Option<Rate> {
    if per_second <= 0.0 || !per_second.is_finite() {
        return None;
    }
    let interval = (UNITS_PER_SECOND as f64 / per_second).round().max(1.0);
    let tolerance = interval * (burst - 1.0).max(0.0) + units(clock_resolution_ns) as f64;
    Some(Rate { interval: to_u64(interval), tolerance: to_u64(tolerance) })
}

/// For each class the first with the same rate.
fn rate_leaders(classes: &[ClassLimits; CLASSES]) -> [u8; 8] {
    let mut leaders = [0; 8];
    for (index, (leader, class)) in leaders.iter_mut().zip(classes).enumerate() {
        let first = classes
            .iter()
            .position(|other| (other.interval, other.tolerance) == (class.interval, class.tolerance))
            .unwrap_or(index);
        *leader = u8::try_from(first).unwrap_or(0);
    }
    leaders
}

fn depth_fraction(depth: f64) -> u32 {
    to_u32(depth * f64::from(DEPTH_ONE))
}

/// Rounds to the nearest limit that is not [`UNLIMITED`].
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, NaN becomes 0")]
fn to_u32(value: f64) -> u32 {
    (value.round() as u32).min(UNLIMITED - 1)
}

/// A quarter of the range at most, so that sums in the kernel do not overflow.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, NaN becomes 0")]
fn to_u64(value: f64) -> u64 {
    (value.round() as u64).min(u64::MAX / 4)
}

#[cfg(test)]
mod tests;
