//! From counters, quotas and facts to the snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use shedder_common::class::{CLASSES, Class};
use shedder_common::counters::{ClassCounters, Exempt, FailOpen, Unparsed, WAIT_BOUNDS_US};
use shedder_common::gate::Gate;
use shedder_common::gcra::UNITS_PER_SECOND;
use shedder_common::limits::{CLOSED, ClassLimits, DEPTH_ONE, PolicyLimits, RESET, Scope, UNLIMITED};

use super::recent::RecentFacts;
use crate::config::model::{Destinations, PortPolicy};
use crate::config::units;
use crate::datapath::{Counters, PolicyReading};
use crate::snapshot::{AcceptQueue, ClassQuota, ClassState, Histogram, PortState, SetLimit, Snapshot};

/// What the snapshot says of a port besides counters and quotas.
#[derive(Clone, Debug, Default)]
pub struct PortFacts {
    /// As spelled in the configuration; empty where it is not known.
    pub rate: String,
    /// As spelled in the configuration.
    pub to: String,
    /// The level's name.
    pub level: String,
    /// Of the fullest listener.
    pub accept_queue: Option<AcceptQueue>,
    /// What pressure makes of the port.
    pub pressure: PressureFacts,
    /// What happened lately.
    pub recent: RecentFacts,
    /// What an operator has set, by key.
    pub set: BTreeMap<String, SetLimit>,
}

/// What the snapshot says of a port's pressure.
#[derive(Clone, Debug, Default)]
pub struct PressureFacts {
    /// Cgroups that own its listeners, as scopes.
    pub workloads: Vec<String>,
    /// By class; `None` where nothing is known.
    pub shares: Option<[f64; CLASSES]>,
    /// Where it is learned and there is pressure.
    pub learned_rate_per_second: Option<f64>,
    /// Until the shares have climbed.
    pub ramp_remaining: Option<Duration>,
}

impl PortFacts {
    /// What the configuration says of a port.
    #[must_use]
    pub fn of(policy: &PortPolicy) -> Self {
        let to = match &policy.to {
            Destinations::Local => "local".to_owned(),
            Destinations::Any => "any".to_owned(),
            Destinations::Listed(cidrs) => {
                cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
        };
        Self { rate: units::show_rate(policy.rate), to, ..Self::default() }
    }
}

/// One port policy as the snapshot shows it.
#[must_use]
pub fn port_state(
    (first, last): (u16, u16),
    limits: &PolicyLimits,
    reading: &PolicyReading,
    facts: PortFacts,
) -> PortState {
    let port = if first == last { first.to_string() } else { format!("{first}-{last}") };
    let class = u8::try_from(limits.class).ok().and_then(Class::from_index).unwrap_or(Class::Interactive);
    let own_limits = limits.classes.get(class.index()).copied().unwrap_or_default();
    let action = if own_limits.flags & RESET != 0 { "reset" } else { "drop" };
    let mut classes = BTreeMap::new();
    for (class, (limits, counters)) in
        Class::ALL.into_iter().zip(limits.classes.iter().zip(&reading.counters.classes))
    {
        let state = ClassState {
            share: facts.pressure.shares.and_then(|shares| shares.get(class.index()).copied()),
            recently_refused: facts.recent.refused(class),
            ..class_state(limits, counters)
        };
        classes.insert(class.name().to_owned(), state);
    }
    let to = if facts.to.is_empty() { scope_word(limits.scope).to_owned() } else { facts.to };
    PortState {
        port,
        protocol: "tcp".to_owned(),
        class: class.name().to_owned(),
        action: action.to_owned(),
        to,
        level: facts.level,
        rate: facts.rate,
        active_connections: reading.active(),
        accept_queue: facts.accept_queue,
        accept_wait: Histogram {
            bounds_seconds: WAIT_BOUNDS_US.iter().map(|bound| f64::from(*bound) / 1e6).collect(),
            counts: reading.counters.wait_buckets.to_vec(),
            sum_seconds: reading.counters.wait_sum_us as f64 / 1e6,
        },
        classes,
        workloads: facts.pressure.workloads,
        learned_rate_per_second: facts.pressure.learned_rate_per_second,
        ramp_remaining_seconds: facts.pressure.ramp_remaining.map(|left| left.as_secs_f64()),
        recent: facts.recent.state(),
        set: facts.set,
    }
}

const fn scope_word(scope: u32) -> &'static str {
    if scope == Scope::Any as u32 {
        "any"
    } else if scope == Scope::Listed as u32 {
        "listed"
    } else {
        "local"
    }
}

fn class_state(limits: &ClassLimits, counters: &ClassCounters) -> ClassState {
    let by_gate = |counts: &[u64]| {
        Gate::ALL.into_iter().map(|gate| gate.name().to_owned()).zip(counts.iter().copied()).collect()
    };
    ClassState {
        quota: class_quota(limits),
        admitted: counters.admitted,
        shed: by_gate(&counters.shed),
        would_shed: by_gate(&counters.would_shed),
        exempt: counters.exempt,
        fail_open: counters.fail_open,
        resets_sent: counters.reset_sent,
        retransmits_admitted: counters.retransmits_admitted,
        retransmits_shed: counters.retransmits_shed,
        ..ClassState::default()
    }
}

fn class_quota(limits: &ClassLimits) -> ClassQuota {
    let rate = |interval: u64| (interval != 0).then(|| UNITS_PER_SECOND as f64 / interval as f64);
    ClassQuota {
        closed: limits.flags & CLOSED != 0,
        rate_per_second: rate(limits.interval),
        floor_per_second: rate(limits.floor_interval),
        connections: (limits.connections != UNLIMITED).then_some(limits.connections),
        queue_depth_ratio: (limits.queue_depth != UNLIMITED)
            .then(|| f64::from(limits.queue_depth) / f64::from(DEPTH_ONE)),
        queue_wait_seconds: (limits.queue_wait_us != UNLIMITED)
            .then(|| f64::from(limits.queue_wait_us) / 1e6),
    }
}

/// Fills in what the kernel counts outside of policies.
pub fn fill_global(snapshot: &mut Snapshot, counters: &Counters) {
    let global = &counters.global;
    snapshot.unparsed = named(Unparsed::ALL.map(Unparsed::name), &global.unparsed);
    snapshot.fail_open = named(FailOpen::ALL.map(FailOpen::name), &global.fail_open);
    snapshot.exempt = named(Exempt::ALL.map(Exempt::name), &global.exempt);
    snapshot.untracked_connections = global.untracked_connections;
    snapshot.resets_failed = global.reset_failed;
}

fn named<const N: usize>(names: [&str; N], counts: &[u64; N]) -> BTreeMap<String, u64> {
    names.into_iter().map(str::to_owned).zip(counts.iter().copied()).collect()
}
