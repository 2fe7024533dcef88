//! From readings to what pressure asks of each port: sensors, levels, learned rates and ramps, once per tick.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use shedder_common::class::CLASSES;
use shedder_common::level::Level;

use super::ranges::{PortRange, Ranges, range_of};
use super::report::PressureFacts;
use crate::config::model::{Config, RateLimit};
use crate::datapath::Counters;
use crate::levels::{Levels, TransitionEvent, Update};
use crate::net::sockets::Listener;
use crate::quota::learned::LearnedRate;
use crate::quota::ramp::Ramp;
use crate::quota::{self, Demand};
use crate::sensors::Sensors;
use crate::sensors::context::ListenerFact;
use crate::sensors::reading::{CgroupPath, Reading, Scope};
use crate::sensors::workloads::Workloads;
use crate::snapshot::{Pin, ScopeLevel, SignalState};

/// Over which time a port that sheds nothing because of pressure is said to be offered less than its quotas.
const QUIET: Duration = Duration::from_secs(2);

/// What the daemon knows of pressure.
#[derive(Debug)]
pub(super) struct Pressure {
    sensors: Sensors,
    levels: Levels,
    ranges: Ranges,
    ports: BTreeMap<PortRange, Port>,
    /// The policies that have shed lately because of pressure, as of the last judgement.
    loud: BTreeSet<PortRange>,
    /// What the ports are asked follows from more than has changed since.
    followed: Option<Followed>,
    /// Counts up whenever anything else is asked of a port.
    changes: u64,
}

/// What was known when the levels were followed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Followed {
    /// [`Workloads::changes`].
    workloads: u64,
    /// A port is under pressure, or its shares still climb: what it is asked changes with time.
    restless: bool,
}

#[derive(Debug)]
struct Port {
    level: Level,
    learned: LearnedRate,
    ramp: Ramp,
    demand: Demand,
    /// As of [`PolicyReading::refused`](crate::datapath::PolicyReading::refused).
    refused: [u64; CLASSES],
    /// When pressure last refused what would be admitted without it.
    last_shed: Option<Duration>,
}

impl Pressure {
    /// Everything at `normal`; files are read below `root`.
    pub(super) fn new(now: Duration, root: &Path, config: &Config) -> Self {
        Self {
            sensors: Sensors::new(root, &config.signals),
            levels: Levels::new(&config.levels, &config.signals).since(now),
            ranges: Ranges::of(&config.ports),
            ports: BTreeMap::new(),
            loud: BTreeSet::new(),
            followed: None,
            changes: 0,
        }
    }

    /// Other policies hold from now on.
    pub(super) fn set_policies(&mut self, config: &Config) {
        self.ranges = Ranges::of(&config.ports);
        let ranges = &self.ranges;
        self.ports.retain(|range, _| ranges.contains(*range));
        self.loud.retain(|range| ranges.contains(*range));
        self.followed = None;
    }

    /// Other rules and signals hold from now on.
    pub(super) fn set_config(&mut self, now: Duration, config: &Config) -> Vec<TransitionEvent> {
        self.followed = None;
        self.sensors.set_signals(&config.signals);
        self.levels.set_rules(now, &config.levels, &config.signals)
    }

    /// Reads every signal. `listeners` are `None` where nobody has looked at them since.
    pub(super) fn read(
        &mut self,
        now: Duration,
        wall: SystemTime,
        listeners: Option<&[Listener]>,
    ) -> Vec<Reading> {
        let facts = listeners.map(|listeners| self.facts_of(listeners));
        self.sensors.read(now, wall, facts)
    }

    fn facts_of(&self, listeners: &[Listener]) -> Vec<ListenerFact> {
        listeners
            .iter()
            .filter(|listener| self.ranges.find(listener.port).is_some())
            .map(|listener| ListenerFact {
                port: listener.port,
                inode: listener.inode,
                accept_queue: listener.accept_queue,
                backlog: listener.backlog,
                drops: listener.drops,
                cgroup_id: listener.cgroup_id,
            })
            .collect()
    }

    /// Judges the readings and works out what they ask of each port. `counters` are `None` where they are those of
    /// last time.
    pub(super) fn judge(
        &mut self,
        now: Duration,
        readings: &[Reading],
        config: &Config,
        counters: Option<&Counters>,
    ) -> Update {
        if let Some(counters) = counters {
            self.count_sheds(now, config, counters);
        }
        self.loud.retain(|range| !self.ports.get(range).is_none_or(|port| port.is_quiet(now)));
        let quiet = Quiet::new(&self.loud, self.sensors.workloads(), &self.ranges);
        let update = self.levels.update(now, readings, |scope| quiet.contains(scope));
        let at_rest = Followed { workloads: self.sensors.workloads().changes(), restless: false };
        if counters.is_some() || !update.transitions.is_empty() || self.followed != Some(at_rest) {
            self.follow_levels(now, config, counters);
        }
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

    /// Works out anew what the levels ask of each port. `counters` are `None` where they are those of last time.
    pub(super) fn follow_levels(&mut self, now: Duration, config: &Config, counters: Option<&Counters>) {
        let (levels, workloads) = (&self.levels, self.sensors.workloads());
        let mut followed = Followed { workloads: workloads.changes(), restless: false };
        let mut changed = self.followed.is_none();
        let calm = levels.highest() == Level::Normal;
        for policy in &config.ports {
            let range = range_of(policy);
            let level = if calm {
                Level::Normal
            } else {
                let cgroups = workloads.served(policy.first..=policy.last).flat_map(|(_, cgroups)| cgroups);
                levels.policy_level(policy.first..=policy.last, cgroups)
            };
            let target = quota::shares(&config.classes, level);
            let port = self.ports.entry(range).or_insert_with(|| Port::new(config));
            port.level = level;
            let shares = port.ramp.update(now, target, config.levels.ramp);
            // The learned rate lasts until the shares have climbed back, or they would have nothing to climb on.
            let pressed = level > Level::Normal || port.ramp.is_climbing(now, config.levels.ramp);
            followed.restless |= pressed;
            let admitted = counters.and_then(|counters| Some(counters.policies.get(&range)?.admitted));
            let learned_rate = port.learned.update(now, admitted, pressed);
            let demand =
                Demand { shares, learned_rate: learned_rate.filter(|_| policy.rate == RateLimit::Learned) };
            changed |= port.demand != demand;
            port.demand = demand;
        }
        self.followed = Some(followed);
        if changed {
            self.changes = self.changes.wrapping_add(1);
        }
    }

    /// Counts up whenever [`Pressure::demands`] may be others.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// What pressure asks of each port policy, in their order.
    pub(super) fn demands(&self, config: &Config) -> Vec<Demand> {
        let normal = Demand::normal(&config.classes);
        let demand = |policy| self.ports.get(&range_of(policy)).map_or(normal, |port| port.demand);
        config.ports.iter().map(demand).collect()
    }

    /// Nothing was judged for a while: what was counted before does not go on.
    pub(super) fn interrupt(&mut self) {
        self.ports.values_mut().for_each(|port| port.learned.interrupt());
    }

    /// How long it takes at most until anything is read again.
    pub(super) const fn pace(&self) -> Duration {
        self.sensors.pace()
    }

    /// How many workloads and ports lack a signal.
    pub(super) fn lacking(&self, signal: &str) -> usize {
        self.levels.lacking(signal)
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
        let cgroups: BTreeSet<&CgroupPath> =
            self.sensors.workloads().served(first..=last).flat_map(|(_, cgroups)| cgroups).collect();
        let port = self.ports.get(&(first, last));
        PressureFacts {
            workloads: cgroups.into_iter().map(|path| Scope::Cgroup(path.clone()).to_string()).collect(),
            shares: port.map(|port| port.demand.shares),
            learned_rate_per_second: port.and_then(|port| port.demand.learned_rate),
            ramp_remaining: port.and_then(|port| port.ramp.remaining(now, ramp)),
        }
    }

    /// The scopes at which what is offered lay below the quotas at the last judgement, as a trace records it.
    pub(super) fn quiet(&self) -> BTreeSet<Scope> {
        let workloads = self.sensors.workloads();
        let quiet = Quiet::new(&self.loud, workloads, &self.ranges);
        // Whether somebody listens here or the host forwards them elsewhere.
        let ports = self.levels.ports(0..=u16::MAX).map(Scope::Port);
        let cgroups = workloads.iter().map(|(path, _)| Scope::Cgroup(path.clone()));
        std::iter::once(Scope::Host)
            .chain(ports)
            .chain(cgroups)
            .filter(|scope| quiet.contains(scope))
            .collect()
    }

    /// Notes the policies whose clients offer more than pressure lets them.
    fn count_sheds(&mut self, now: Duration, config: &Config, counters: &Counters) {
        let normal = quota::shares(&config.classes, Level::Normal);
        for policy in &config.ports {
            let range = range_of(policy);
            let port = self.ports.entry(range).or_insert_with(|| Port::new(config));
            let Some(reading) = counters.policies.get(&range) else { continue };
            let before = std::mem::replace(&mut port.refused, reading.refused);
            // What is refused with the whole share, or by a port that its owner closed, no lower level would admit.
            let by_share = before
                .iter()
                .zip(&reading.refused)
                .zip(port.demand.shares.iter().zip(&normal))
                .any(|((before, after), (share, normal))| after > before && share < normal);
            if by_share && !policy.admits_none() {
                port.last_shed = Some(now);
                self.loud.insert(range);
            }
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
            refused: [0; CLASSES],
            last_shed: None,
        }
    }

    fn is_quiet(&self, now: Duration) -> bool {
        self.last_shed.is_none_or(|shed| now.saturating_sub(shed) >= QUIET)
    }
}

/// Tells the scopes at which what is offered lies below the quotas.
struct Quiet<'a> {
    loud: &'a BTreeSet<PortRange>,
    workloads: &'a Workloads,
    ranges: &'a Ranges,
}

impl<'a> Quiet<'a> {
    const fn new(loud: &'a BTreeSet<PortRange>, workloads: &'a Workloads, ranges: &'a Ranges) -> Self {
        Self { loud, workloads, ranges }
    }

    fn contains(&self, scope: &Scope) -> bool {
        match scope {
            Scope::Host => self.loud.is_empty(),
            Scope::Port(port) => self.is_quiet(*port) == Some(true),
            Scope::Cgroup(path) => {
                let mut served =
                    self.workloads.ports_of(path).filter_map(|port| self.is_quiet(port)).peekable();
                served.peek().is_some() && served.all(|quiet| quiet)
            }
        }
    }

    /// `None` where the port has no policy.
    fn is_quiet(&self, port: u16) -> Option<bool> {
        self.ranges.find(port).map(|range| !self.loud.contains(&range))
    }
}
