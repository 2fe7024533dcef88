//! One tick: read everything, decide once, write once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shedder_common::address::Address;
use shedder_common::control::Mode;
use shedder_common::counters::ClassCounters;
use shedder_common::gcra::Rate;
use shedder_common::level::Level;

use super::clock;
use super::interfaces::Interfaces;
use super::policies::Policies;
use super::pressure::Pressure;
use super::recent::Lately;
use super::reconcile::{Observation, Reconciler};
use super::report::{self, PortFacts};
use super::sources::source_table;
use crate::config::model::{Config, PortPolicy, RateLimit};
use crate::control::protocol::{Command, LevelChoice, Payload, Refusal};
use crate::control::{Recordings, TickReadings};
use crate::datapath::{Counters, Datapath, PolicyReading, Rules};
use crate::explain;
use crate::kernel::doctor::needs_reset;
use crate::kernel::support::KernelSupport;
use crate::levels::Update;
use crate::net::addresses;
use crate::net::changes::Changed;
use crate::net::sockets::{Listener, SocketTables};
use crate::quota::{self, Demand, QuotaTable};
use crate::snapshot::{AcceptQueue, SNAPSHOT_VERSION, Snapshot, TICK_BOUNDS_SECONDS, Ticks};

/// How often counters are read for learning rates; whoever looks at a snapshot has them read more often.
const COUNTERS_PERIOD: Duration = Duration::from_secs(1);

/// How often interfaces that could not be attached are tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

/// How long after the last look the memory for it is given back.
const MEMORY_AFTER: Duration = Duration::from_secs(1);

/// Everything that the daemon knows.
pub(super) struct ControlLoop {
    policies: Policies,
    /// `policies.effective()`, made again when something changed.
    config: Config,
    datapath: Datapath,
    support: KernelSupport,
    clock_resolution_ns: u64,
    sockets: Option<SocketTables>,
    interfaces: Interfaces,
    local: BTreeSet<Address>,
    reconciler: Reconciler,
    listeners: Vec<Listener>,
    mode: Mode,
    pressure: Pressure,
    written: Option<QuotaTable>,
    /// What that table follows from besides the configuration; `None` where it must be made anew.
    written_for: Option<(Vec<Demand>, Mode)>,
    /// The kernel has counted the connections that are older than the policy of their port.
    recounted: bool,
    counters: Counters,
    lately: Lately,
    recordings: Recordings,
    ticks: Ticks,
    tick_started: Duration,
    due: Due,
    dirty: Dirty,
    warnings: BTreeMap<&'static str, String>,
    /// What was made since the last change.
    fresh: Option<Arc<Snapshot>>,
}

/// When periodic work is due.
#[derive(Debug, Default)]
struct Due {
    counters: Duration,
    reconcile: Duration,
    retry: Duration,
    /// Set by a look.
    memory: Option<Duration>,
}

/// What must be looked at again.
#[derive(Debug, Default)]
struct Dirty {
    links: bool,
    addresses: bool,
}

impl ControlLoop {
    /// Attaches, passing; the first tick puts the first quota table in force.
    pub(super) fn start(
        config: Config,
        datapath: Datapath,
        support: KernelSupport,
        recordings: Recordings,
    ) -> Self {
        let now = clock::monotonic();
        let sockets = SocketTables::open().map_err(|error| tracing::warn!("{error}.")).ok();
        let ticks = Ticks {
            interval_seconds: config.daemon.tick.as_secs_f64(),
            buckets: vec![0; TICK_BOUNDS_SECONDS.len() + 1],
            ..Ticks::default()
        };
        let pressure = Pressure::new(now, Path::new("/"), &config);
        let mut control_loop = Self {
            mode: config.mode,
            policies: Policies::new(config.clone()),
            config,
            datapath,
            support,
            clock_resolution_ns: clock::nanoseconds(clock::coarse_resolution()),
            sockets,
            interfaces: Interfaces::default(),
            local: BTreeSet::new(),
            reconciler: Reconciler::default(),
            listeners: Vec::new(),
            pressure,
            written: None,
            written_for: None,
            recounted: false,
            counters: Counters::default(),
            lately: Lately::default(),
            recordings,
            ticks,
            tick_started: now,
            due: Due::default(),
            dirty: Dirty::default(),
            warnings: BTreeMap::new(),
            fresh: None,
        };
        if let Some(reason) = control_loop.datapath.uncounted().map(str::to_owned) {
            control_loop.warn("counting", reason);
        }
        control_loop.sync_addresses();
        control_loop.sync_sources();
        control_loop.sync_interfaces();
        if let Err(error) = control_loop.datapath.remove_leftovers() {
            tracing::warn!("What an earlier daemon left cannot be removed: {error:#}.");
        }
        control_loop
    }

    /// Gives the datapath back.
    pub(super) fn into_datapath(self) -> Datapath {
        self.datapath
    }

    /// Says in the log what runs.
    pub(super) fn announce(&self) {
        tracing::info!(
            "shedder {} runs in mode {}; policies: {}{}.",
            env!("CARGO_PKG_VERSION"),
            self.mode.name(),
            self.config.ports.len(),
            if self.config.follow_listeners { ", following the ports that listen" } else { "" }
        );
    }

    /// Why an interface that is there is not served, as a sentence.
    pub(super) fn refused_attachment(&self) -> Option<String> {
        self.interfaces.refused()
    }

    /// The level of the host.
    pub(super) fn host_level(&self) -> Level {
        self.pressure.host_level()
    }

    /// What does not work as configured.
    fn warnings(&self) -> Vec<String> {
        self.interfaces.warnings().into_iter().chain(self.warnings.values().cloned()).collect()
    }

    /// Notes that the network changed; the next tick looks.
    pub(super) const fn network_changed(&mut self, changed: Changed) {
        self.dirty.links |= changed.links || changed.routes;
        self.dirty.addresses |= changed.addresses || changed.links;
    }

    /// Takes a new configuration. What needs a restart is said and left as it is.
    pub(super) fn reload(&mut self, config: Config) {
        let running = self.policies.config();
        if (&config.daemon, &config.metrics) != (&running.daemon, &running.metrics) {
            tracing::warn!(
                "[daemon] and [metrics] are read at the start only: restart shedder to change them."
            );
        }
        let config = Config { daemon: running.daemon.clone(), metrics: running.metrics.clone(), ..config };
        self.mode = config.mode;
        self.policies.reload(config);
        self.apply_policies();
        let transitions = self.pressure.set_config(clock::monotonic(), &self.config);
        tell(&Update { transitions, availability: Vec::new() });
        self.sync_sources();
        self.dirty.links = true;
        tracing::info!("The configuration is read again; mode {}.", self.mode.name());
    }

    /// One turn of the loop.
    pub(super) fn tick(&mut self, now: Duration) {
        self.fresh = None;
        self.note_stall(now);
        self.tick_started = now;
        self.follow_network(now);
        if self.policies.expire(now) {
            tracing::warn!("A change was not confirmed in time and is taken back.");
            self.apply_policies();
            self.dirty.links = true;
        }
        if now >= self.due.counters {
            self.due.counters = now + COUNTERS_PERIOD;
            self.read_counters(now);
        }
        self.look_at_listeners();
        let readings = self.pressure.read(now, clock::wall(), &self.listeners, &self.config);
        let update = self.pressure.judge(now, &readings, &self.config, &self.counters);
        tell(&update);
        self.write_quotas(now);
        self.recordings.publish(|| TickReadings {
            now,
            readings,
            offered_below_quota: self.pressure.quiet().clone(),
        });
        if now >= self.due.reconcile || self.has_new_policies() {
            let begun = clock::monotonic();
            self.reconcile();
            let look = clock::monotonic().saturating_sub(begun);
            self.due.reconcile = now + self.reconciler.pause(look);
        }
        self.ticks.total += 1;
    }

    /// All that is known. The counters are read now, but no more than once in a tick.
    pub(super) fn snapshot(&mut self, now: Duration) -> Arc<Snapshot> {
        if let Some(fresh) = &self.fresh {
            return Arc::clone(fresh);
        }
        self.read_counters(now);
        self.due.memory = Some(now + MEMORY_AFTER);
        let snapshot = Arc::new(self.make_snapshot(now));
        self.fresh = Some(Arc::clone(&snapshot));
        snapshot
    }

    fn read_counters(&mut self, now: Duration) {
        match self.datapath.read() {
            Ok(counters) => {
                self.counters = counters;
                self.lately.update(now, &self.counters);
                self.warnings.remove("counters");
            }
            Err(error) => self.warn("counters", format!("counters cannot be read: {error:#}")),
        }
    }

    /// Says so when the loop stood still for longer than the lease, for example in a stopped or starved process:
    /// the kernel has passed everything meanwhile.
    fn note_stall(&self, now: Duration) {
        let stood_still = now.saturating_sub(self.tick_started);
        if self.ticks.total > 0 && stood_still > self.config.daemon.lease {
            tracing::warn!(
                "The control loop stood still for {:.1} s, longer than the lease: the kernel passed everything until \
                 now.",
                stood_still.as_secs_f64()
            );
        }
    }

    /// Whether a look is over whose memory can be given back; says so once.
    pub(super) fn has_spare_memory(&mut self, now: Duration) -> bool {
        self.due.memory.take_if(|due| now >= *due).is_some()
    }

    /// Notes how long the tick took.
    pub(super) fn took(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.tick_started).as_secs_f64();
        let bucket = TICK_BOUNDS_SECONDS.iter().take_while(|bound| seconds > **bound).count();
        if let Some(count) = self.ticks.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.ticks.sum_seconds += seconds;
    }

    /// Does what a control client asks, at once.
    pub(super) fn command(&mut self, command: Command, now: Duration) -> Result<Payload, Refusal> {
        self.fresh = None;
        match command {
            Command::Set { port, assignments, confirm_seconds } => {
                self.set(&port, &assignments, confirm_seconds, now)
            }
            Command::Confirm => {
                if self.policies.confirm() {
                    Ok(Payload::Message("the change stays".to_owned()))
                } else {
                    Err(Refusal::failed("nothing waits for confirmation"))
                }
            }
            Command::Mode { mode } => {
                let before = std::mem::replace(&mut self.mode, mode);
                self.write_quotas(now);
                tracing::info!("Mode {} is now {}.", before.name(), mode.name());
                Ok(Payload::Message(format!("mode is {}, it was {}", mode.name(), before.name())))
            }
            Command::Level { level, for_seconds } => {
                self.pin_level(level, for_seconds, now);
                self.write_quotas(now);
                Ok(Payload::Message(match level {
                    LevelChoice::Auto => "the signals decide the level again".to_owned(),
                    LevelChoice::Pinned(level) => {
                        let until = for_seconds.map_or_else(
                            || "until told otherwise".to_owned(),
                            |seconds| format!("for {seconds} s, then the signals decide again"),
                        );
                        format!("level is {} {until}", level.name())
                    }
                }))
            }
            Command::Explain { port } => explain::answer(&self.snapshot(now), port.as_deref()),
            // Those the server answers itself, and after an unload there is no loop that could.
            Command::Status | Command::Record { .. } | Command::Unload => {
                Err(Refusal::failed("this daemon does not know that command"))
            }
        }
    }

    fn set(
        &mut self,
        port: &str,
        assignments: &[(String, String)],
        confirm_seconds: Option<f64>,
        now: Duration,
    ) -> Result<Payload, Refusal> {
        let confirm_until = match confirm_seconds.map(Duration::try_from_secs_f64) {
            None => None,
            Some(Ok(time)) => Some(now + time),
            Some(Err(error)) => return Err(Refusal::wrong_use(format!("--confirm: {error}"))),
        };
        self.policies.set(port, assignments, confirm_until).map_err(Refusal::wrong_use)?;
        self.apply_policies();
        // The first policy that answers with RST may need another hook.
        self.dirty.links = true;
        self.write_quotas(now);
        let changes: Vec<String> = assignments.iter().map(|(key, value)| format!("{key}={value}")).collect();
        tracing::info!("Port {port}: {}.", changes.join(" "));
        let confirm = confirm_seconds.map_or_else(String::new, |seconds| {
            format!("; it goes back in {seconds} s unless `shedder confirm` keeps it")
        });
        Ok(Payload::Message(format!("port {port}: {}{confirm}", changes.join(" "))))
    }

    fn pin_level(&mut self, level: LevelChoice, for_seconds: Option<f64>, now: Duration) {
        let level = match level {
            LevelChoice::Auto => None,
            LevelChoice::Pinned(level) => Some(level),
        };
        let until =
            for_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).map(|time| now + time);
        let transitions = self.pressure.pin(now, level, until);
        self.read_counters(now);
        self.pressure.follow_levels(now, &self.config, &self.counters);
        tell(&Update { transitions, availability: Vec::new() });
    }

    fn follow_network(&mut self, now: Duration) {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.addresses {
            self.sync_addresses();
        }
        if dirty.links || now >= self.due.retry {
            self.due.retry = now + RETRY_PERIOD;
            self.sync_interfaces();
        }
    }

    fn sync_interfaces(&mut self) {
        let reset = self.config.follow_listeners || needs_reset(&self.config);
        match self.interfaces.sync(&mut self.datapath, &self.config.attach, reset, &self.support) {
            Ok(()) => {
                self.warnings.remove("interfaces");
            }
            Err(error) => self.warn("interfaces", error.to_string()),
        }
    }

    fn sync_addresses(&mut self) {
        let addresses = match addresses::local() {
            Ok(addresses) => addresses,
            Err(error) => return self.warn("addresses", error.to_string()),
        };
        match self.datapath.set_local_addresses(&addresses) {
            Ok(left_out) if left_out.is_empty() => {
                self.warnings.remove("addresses");
            }
            Ok(left_out) => self.warn(
                "addresses",
                format!(
                    "{} of {} local addresses find no place in the kernel's table; policies with to = \"local\" \
                     do not cover them",
                    left_out.len(),
                    addresses.len()
                ),
            ),
            Err(error) => self.warn("addresses", format!("local addresses are not followed: {error:#}")),
        }
        self.local = addresses.into_iter().collect();
    }

    fn sync_sources(&mut self) {
        match self.datapath.set_sources(&source_table(&self.config)) {
            Ok(()) => {
                self.warnings.remove("sources");
            }
            Err(error) => self.warn("sources", format!("sources are not known to the kernel: {error:#}")),
        }
        self.written_for = None;
    }

    /// Takes what the policies have become.
    fn apply_policies(&mut self) {
        self.config = self.policies.effective();
        self.written_for = None;
    }

    fn look_at_listeners(&mut self) {
        let Some(sockets) = &mut self.sockets else { return };
        match sockets.listeners() {
            Ok(listeners) => {
                self.listeners = listeners;
                self.warnings.remove("listeners");
            }
            Err(error) => return self.warn("listeners", error.to_string()),
        }
        if self.policies.config().follow_listeners {
            let ports = self.listeners.iter().map(|listener| listener.port).collect();
            let (changed, left_out) = self.policies.follow(&ports);
            if changed {
                self.apply_policies();
            }
            if left_out > 0 {
                self.warn(
                    "follow",
                    format!("{left_out} more ports listen than are followed without a configuration file"),
                );
            } else {
                self.warnings.remove("follow");
            }
        }
    }

    fn write_quotas(&mut self, now: Duration) {
        let rules = Rules {
            mode: self.mode,
            lease_expires_ns: clock::nanoseconds(now + self.config.daemon.lease),
            exempt_rate: self.exempt_rate(),
        };
        let wanted = Some((self.pressure.demands(&self.config), self.mode));
        let result = if self.written_for == wanted {
            self.datapath.renew(&rules)
        } else {
            let demands = wanted.as_ref().map_or(&[][..], |(demands, _)| demands);
            let table = quota::table(&self.config, demands, self.clock_resolution_ns);
            let ranges = self.ranges();
            self.datapath.write(&table, &rules).map(|()| {
                self.written = Some(table);
                self.written_for = wanted;
                // A policy that goes and comes back is another one to the kernel.
                self.reconciler.keep(&ranges);
            })
        };
        match result {
            Ok(()) => {
                self.warnings.remove("quotas");
            }
            Err(error) => self.warn("quotas", format!("quotas cannot be written: {error:#}")),
        }
        if self.datapath.uncounted().is_none() {
            self.recount();
        }
    }

    /// Has the kernel count what is older than the policy of its port, where there may be such.
    fn recount(&mut self) {
        self.recounted = match self.datapath.recount() {
            Ok(()) => {
                self.warnings.remove("recount");
                true
            }
            Err(error) => {
                let message =
                    "connections that are older than the policy of their port are counted with delay";
                self.warn("recount", format!("{message}: {error:#}"));
                false
            }
        };
    }

    /// No rate is no limit; a rate of 0 exempts nobody, which an interval longer than any uptime says.
    fn exempt_rate(&self) -> Option<Rate> {
        match self.config.guard.rate {
            RateLimit::PerSecond(rate) => Some(
                quota::gcra_rate(rate, (rate / 10.0).max(1.0), self.clock_resolution_ns)
                    .unwrap_or(Rate { interval: u64::MAX / 4, tolerance: 0 }),
            ),
            RateLimit::Learned | RateLimit::Unlimited => None,
        }
    }

    fn ranges(&self) -> Vec<(u16, u16)> {
        self.config.ports.iter().map(|policy| (policy.first, policy.last)).collect()
    }

    fn has_new_policies(&self) -> bool {
        self.config.ports.iter().any(|policy| self.reconciler.is_new((policy.first, policy.last)))
    }

    /// Compares the kernel's counts with the socket table.
    fn reconcile(&mut self) {
        // A correction of what is not counted would stand still while connections come and go.
        if self.datapath.uncounted().is_some() {
            return;
        }
        let ranges = self.ranges();
        let Some(sockets) = &mut self.sockets else { return };
        let has_policy = |port: u16| ranges.iter().any(|(first, last)| (*first..=*last).contains(&port));
        let looked = (|| {
            let before = self.datapath.read()?;
            let found = sockets.count_connections(&has_policy, &|address| self.local.contains(address))?;
            anyhow::Ok((before, found, self.datapath.read()?))
        })();
        let (before, found, after) = match looked {
            Ok(looked) => looked,
            Err(error) => return self.warn("reconcile", format!("counts are not reconciled: {error:#}")),
        };
        self.warnings.remove("reconcile");
        for range in ranges {
            let (first, last) = range;
            let found = found
                .iter()
                .filter(|(port, _)| (first..=last).contains(*port))
                .map(|(_, count)| u64::from(*count))
                .sum();
            let reading = |counters: &Counters| counters.policies.get(&range).copied().unwrap_or_default();
            let (before, after) = (reading(&before), reading(&after));
            let seen = Observation {
                counted_before: before.counted,
                found,
                counted_after: after.counted,
                // Who passed earlier may have completed the handshake only now.
                opened: passed(&after)
                    .saturating_sub(passed(&before))
                    .max(after.established.saturating_sub(before.established)),
                recounted: self.recounted,
            };
            let Some(correction) = self.reconciler.observe(range, seen) else { continue };
            if correction != 0 {
                tracing::info!(
                    "The count of connections of ports {first} to {last} is corrected by {correction}."
                );
            }
            if let Err(error) = self.datapath.set_correction(first, last, correction) {
                return self.warn("reconcile", format!("counts are not reconciled: {error:#}"));
            }
        }
    }

    /// Logs a trouble when it comes or changes, and shows it until it is gone.
    fn warn(&mut self, topic: &'static str, message: String) {
        if self.warnings.get(topic) != Some(&message) {
            tracing::warn!("{message}.");
            self.warnings.insert(topic, message);
        }
    }

    fn make_snapshot(&self, now: Duration) -> Snapshot {
        let mut snapshot = Snapshot {
            version: SNAPSHOT_VERSION,
            shedder_version: env!("CARGO_PKG_VERSION").to_owned(),
            daemon: true,
            mode: self.mode.name().to_owned(),
            lease_remaining_seconds: self.config.daemon.lease.as_secs_f64(),
            ticks: self.ticks.clone(),
            attachments: self.interfaces.attachments(),
            pin: self.pressure.pin_state(now),
            levels: self.pressure.scope_levels(now),
            signals: self.pressure.signal_states(now),
            ports: self.port_states(now),
            warnings: self.warnings(),
            ..Snapshot::default()
        };
        report::fill_global(&mut snapshot, &self.counters);
        snapshot
    }

    fn port_states(&self, now: Duration) -> Vec<crate::snapshot::PortState> {
        let Some(table) = &self.written else { return Vec::new() };
        let facts: BTreeMap<(u16, u16), &PortPolicy> =
            self.config.ports.iter().map(|policy| ((policy.first, policy.last), policy)).collect();
        let state = |policy: &quota::PolicyQuota| {
            let range = (policy.first, policy.last);
            let facts = PortFacts {
                level: self.pressure.level(range).name().to_owned(),
                accept_queue: self.fullest_listener(range),
                pressure: self.pressure.facts(now, range, self.config.levels.ramp),
                recent: self.lately.of(now, range, &self.counters),
                ..facts.get(&range).map(|policy| PortFacts::of(policy)).unwrap_or_default()
            };
            let reading = self.counters.policies.get(&range).copied().unwrap_or_default();
            report::port_state(range, &policy.limits, &reading, facts)
        };
        table.policies.iter().map(state).collect()
    }

    fn fullest_listener(&self, (first, last): (u16, u16)) -> Option<AcceptQueue> {
        self.listeners
            .iter()
            .filter(|listener| (first..=last).contains(&listener.port))
            .map(|listener| AcceptQueue {
                depth: listener.accept_queue,
                backlog: listener.backlog,
                // A listener with backlog 0 holds one connection.
                depth_ratio: (f64::from(listener.accept_queue) / f64::from(listener.backlog.max(1))).min(1.0),
            })
            .max_by(|left, right| left.depth_ratio.total_cmp(&right.depth_ratio))
    }
}

/// One line for each change of a level and of what can be read; never one for each refusal.
fn tell(update: &Update) {
    for step in &update.transitions {
        let (from, to) = (step.from.name(), step.to.name());
        tracing::warn!("The level of {} goes from {from} to {to} because of {}.", step.scope, step.signal);
    }
    for change in &update.availability {
        if change.available {
            tracing::info!("The signal {} of {} is there.", change.signal, change.scope);
        } else {
            tracing::warn!(
                "The signal {} of {} is unavailable and demands nothing: {}.",
                change.signal,
                change.scope,
                change.reason
            );
        }
    }
}

/// Attempts that passed and may have become connections.
fn passed(reading: &PolicyReading) -> u64 {
    let of_class = |class: &ClassCounters| {
        let would_shed: u64 = class.would_shed.iter().sum();
        class.admitted + class.retransmits_admitted + class.exempt + class.fail_open + would_shed
    };
    reading.counters.classes.iter().map(of_class).sum()
}
