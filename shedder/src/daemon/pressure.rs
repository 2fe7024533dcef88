//! From readings to what pressure asks of each port: sensors, levels, learned rates and ramps, once per tick.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use shedder_common::level::Level;

use super::report::PressureFacts;
use crate::config::model::{Config, PortPolicy, RateLimit};
use crate::datapath::Counters;
use crate::levels::{Levels, TransitionEvent, Update};
use crate::net::sockets::Listener;
use crate::quota::learned::LearnedRate;
use crate::quota::ramp::Ramp;
use crate::quota::{self, Demand};
use crate::sensors::Sensors;
use crate::sensors::context::ListenerFact;
use crate::sensors::reading::{Reading, Scope};
use crate::snapshot::{Pin, ScopeLevel, SignalState};

/// First and last port of a policy.
type PortRange = (u16, u16);

/// Over which time a port that sheds nothing is said to be offered less than its quotas.
const QUIET: Duration = Duration::from_secs(2);

/// What the daemon knows of pressure.
#[derive(Debug)]
pub(super) struct Pressure {
    sensors: Sensors,
    levels: Levels,
    ports: BTreeMap<PortRange, Port>,
    /// Of the last judgement.
    quiet: BTreeSet<Scope>,
}

#[derive(Debug)]
struct Port {
    level: Level,
    learned: LearnedRate,
    ramp: Ramp,
    demand: Demand,
    shed_total: u64,
    last_shed: Option<Duration>,
}

impl Pressure {
    /// Everything at `normal`; files are read below `root`.
    pub(super) fn new(now: Duration, root: &Path, config: &Config) -> Self {
        Self {
            sensors: Sensors::new(root, &config.signals),
            levels: Levels::new(&config.levels, &config.signals).since(now),
            ports: BTreeMap::new(),
            quiet: BTreeSet::new(),
        }
    }

    /// Other rules and signals hold from now on.
    pub(super) fn set_config(&mut self, now: Duration, config: &Config) -> Vec<TransitionEvent> {
        self.sensors.set_signals(&config.signals);
        self.levels.set_rules(now, &config.levels, &config.signals)
    }

    /// Reads every signal.
    pub(super) fn read(
        &mut self,
        now: Duration,
        wall: SystemTime,
        listeners: &[Listener],
        config: &Config,
    ) -> Vec<Reading> {
        let has_policy =
            |port| config.ports.iter().any(|policy| (policy.first..=policy.last).contains(&port));
        let facts: Vec<ListenerFact> = listeners
            .iter()
            .filter(|listener| has_policy(listener.port))
            .map(|listener| ListenerFact {
                port: listener.port,
                inode: listener.inode,
                accept_queue: listener.accept_queue,
                backlog: listener.backlog,
                cgroup_id: listener.cgroup_id,
            })
            .collect();
        self.sensors.read(now, wall, &facts)
    }

    /// Judges the readings and works out what they ask of each port.
    pub(super) fn judge(
        &mut self,
        now: Duration,
        readings: &[Reading],
        config: &Config,
        counters: &Counters,
    ) -> Update {
        self.count_sheds(now, config, counters);
        self.quiet = self.quiet_scopes(now);
        let update = self.levels.update(now, readings, |scope| self.quiet.contains(scope));
        self.follow_levels(now, config, counters);
        update
    }

    /// An operator sets the level of every scope, or leaves it to the signals again.
    pub(super) fn pin(
        &mut self,
        now: Duration,
        level: Option<Level>,
        until: Option<Duration>,
    ) -> Vec<TransitionEvent> {
        self.levels.pin(now, level, until)
    }

    /// Works out anew what the levels ask of each port.
    pub(super) fn follow_levels(&mut self, now: Duration, config: &Config, counters: &Counters) {
        let (levels, workloads) = (&self.levels, self.sensors.workloads());
        self.ports.retain(|range, _| config.ports.iter().any(|policy| range_of(policy) == *range));
        for policy in &config.ports {
            let range = range_of(policy);
            let cgroups = workloads.served(policy.first..=policy.last).flat_map(|(_, cgroups)| cgroups);
            let level = levels.policy_level(policy.first..=policy.last, cgroups);
            let target = quota::shares(&config.classes, level);
            let port = self.ports.entry(range).or_insert_with(|| Port::new(config));
            port.level = level;
            let shares = port.ramp.update(now, target, config.levels.ramp);
            // The learned rate lasts until the shares have climbed back, or they would have nothing to climb on.
            let pressed = level > Level::Normal || port.ramp.is_climbing(now, config.levels.ramp);
            let admitted = counters.policies.get(&range).map_or(0, |reading| {
                reading.counters.classes.iter().map(|class| class.admitted).sum::<u64>()
            });
            let learned_rate = port.learned.update(now, admitted, pressed);
            port.demand =
                Demand { shares, learned_rate: learned_rate.filter(|_| policy.rate == RateLimit::Learned) };
        }
    }

    /// What pressure asks of each port policy, in their order.
    pub(super) fn demands(&self, config: &Config) -> Vec<Demand> {
        let normal = Demand::normal(&config.classes);
        let demand = |policy| self.ports.get(&range_of(policy)).map_or(normal, |port| port.demand);
        config.ports.iter().map(demand).collect()
    }

    /// The level of a port.
    pub(super) fn level(&self, range: PortRange) -> Level {
        self.ports.get(&range).map_or(Level::Normal, |port| port.level)
    }

    /// The levels of all scopes, the host first.
    pub(super) fn scope_levels(&self, now: Duration) -> Vec<ScopeLevel> {
        self.levels.scope_levels(now)
    }

    /// Every signal at every scope.
    pub(super) fn signal_states(&self, now: Duration) -> Vec<SignalState> {
        self.levels.signal_states(now)
    }

    /// The level of the host.
    pub(super) fn host_level(&self) -> Level {
        self.levels.level(&Scope::Host)
    }

    /// What an operator has set.
    pub(super) fn pin_state(&self, now: Duration) -> Option<Pin> {
        self.levels.pin_state(now)
    }

    /// What the snapshot says of a port's pressure.
    pub(super) fn facts(&self, now: Duration, (first, last): PortRange, ramp: Duration) -> PressureFacts {
        let cgroups: BTreeSet<&Path> =
            self.sensors.workloads().served(first..=last).flat_map(|(_, cgroups)| cgroups).collect();
        let port = self.ports.get(&(first, last));
        PressureFacts {
            workloads: cgroups.into_iter().map(|path| Scope::cgroup(path).to_string()).collect(),
            shares: port.map(|port| port.demand.shares),
            learned_rate_per_second: port.and_then(|port| port.demand.learned_rate),
            ramp_remaining: port.and_then(|port| port.ramp.remaining(now, ramp)),
        }
    }

    /// The scopes at which what is offered lay below the quotas at the last judgement, as a trace records it.
    pub(super) fn quiet(&self) -> &BTreeSet<Scope> {
        &self.quiet
    }

    /// The scopes at which what is offered lies below the quotas.
    fn quiet_scopes(&self, now: Duration) -> BTreeSet<Scope> {
        let is_quiet = |port: &Port| port.last_shed.is_none_or(|shed| now.saturating_sub(shed) >= QUIET);
        let mut quiet = BTreeSet::new();
        if self.ports.values().all(is_quiet) {
            quiet.insert(Scope::Host);
        }
        let workloads = self.sensors.workloads();
        let mut loud_cgroups: BTreeSet<Scope> = BTreeSet::new();
        let mut cgroups: BTreeSet<Scope> = BTreeSet::new();
        for ((first, last), port) in &self.ports {
            let of_port =
                workloads.served(*first..=*last).flat_map(|(_, cgroups)| cgroups).map(Scope::cgroup);
            if is_quiet(port) {
                // Whether somebody listens here or the host forwards them elsewhere.
                quiet.extend(self.levels.ports(*first..=*last).map(Scope::Port));
                cgroups.extend(of_port);
            } else {
                loud_cgroups.extend(of_port);
            }
        }
        quiet.extend(cgroups.difference(&loud_cgroups).cloned());
        quiet
    }

    fn count_sheds(&mut self, now: Duration, config: &Config, counters: &Counters) {
        for policy in &config.ports {
            let range = range_of(policy);
            let port = self.ports.entry(range).or_insert_with(|| Port::new(config));
            let Some(reading) = counters.policies.get(&range) else { continue };
            let total = reading
                .counters
                .classes
                .iter()
                .map(|class| class.shed.iter().chain(&class.would_shed).sum::<u64>() + class.retransmits_shed)
                .sum();
            if total > port.shed_total {
                port.last_shed = Some(now);
            }
            port.shed_total = total;
        }
    }
}

impl Port {
    fn new(config: &Config) -> Self {
        let demand = Demand::normal(&config.classes);
        Self {
            level: Level::Normal,
            learned: LearnedRate::default(),
            ramp: Ramp::new(demand.shares),
            demand,
            shed_total: 0,
            last_shed: None,
        }
    }
}

const fn range_of(policy: &PortPolicy) -> PortRange {
    (policy.first, policy.last)
}
