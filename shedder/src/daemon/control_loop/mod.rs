//! One tick: read everything, decide once, write once.

mod commands;
mod counts;
mod following;
mod looks;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shedder_common::address::Address;
use shedder_common::control::{Mode, NOBODY_EXEMPT};
use shedder_common::gcra::Rate;
use shedder_common::level::Level;

use self::tell::Teller;
use super::clock;
use super::interfaces::Interfaces;
use super::policies::Policies;
use super::pressure::Pressure;
use super::ranges::Ranges;
use super::recent::Lately;
use super::reconcile::Reconciler;
use crate::config::model::{Config, RateLimit};
use crate::control::{Recordings, TickReadings};
use crate::datapath::{Counters, Datapath, Rules};
use crate::kernel::support::KernelSupport;
use crate::net::changes::Changed;
use crate::net::sockets::{Listener, SocketTables};
use crate::quota::{self, QuotaTable};
use crate::snapshot::{Snapshot, TICK_BOUNDS_SECONDS, Ticks};

/// How often decisions are counted for learning rates; whoever looks at a snapshot has all counters read more often.
const COUNTERS_PERIOD: Duration = Duration::from_secs(1);

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
    /// [`Pressure::changes`] and mode of that table; `None` where it must be made anew.
    written_for: Option<(u64, Mode)>,
    /// The kernel has counted the connections that are older than the policy of their port.
    recounted: bool,
    /// A policy may never have been reconciled.
    policies_are_new: bool,
    counters: Counters,
    /// They were read since the last judgement.
    counters_are_new: bool,
    lately: Lately,
    recordings: Recordings,
    teller: Teller,
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
            policies_are_new: true,
            counters: Counters::default(),
            counters_are_new: false,
            lately: Lately::default(),
            recordings,
            teller: Teller::default(),
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

    /// One turn of the loop.
    pub(super) fn tick(&mut self, now: Duration) {
        self.fresh = None;
        self.note_stall(now);
        self.tick_started = now;
        self.follow_network(now);
        self.take_back_unconfirmed(now);
        if now >= self.due.counters {
            self.due.counters = now + COUNTERS_PERIOD;
            let read = self.datapath.read_decisions(&mut self.counters);
            self.counters_were_read(now, read);
        }
        let looked = self.look_at_listeners();
        let readings = self.pressure.read(now, clock::wall(), looked.then_some(&self.listeners[..]));
        // What passed unjudged says nothing.
        let counters_say = std::mem::take(&mut self.counters_are_new) && self.mode != Mode::Off;
        let counters = counters_say.then_some(&self.counters);
        let update = self.pressure.judge(now, &readings, &self.config, counters);
        self.teller.tell(&update, |signal| self.pressure.lacking(signal));
        self.write_quotas(now);
        self.recordings.publish(|| TickReadings {
            now,
            readings,
            offered_below_quota: self.pressure.quiet(),
        });
        self.reconcile_when_due(now);
        self.ticks.total += 1;
    }

    /// Reads all counters.
    fn read_counters(&mut self, now: Duration) {
        let read = self.datapath.read().map(|counters| self.counters = counters);
        self.counters_were_read(now, read);
    }

    fn counters_were_read(&mut self, now: Duration, read: anyhow::Result<()>) {
        match read {
            Ok(()) => {
                self.counters_are_new = true;
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

    /// Notes how long the tick took.
    pub(super) fn took(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.tick_started).as_secs_f64();
        let bucket = TICK_BOUNDS_SECONDS.iter().take_while(|bound| seconds > **bound).count();
        if let Some(count) = self.ticks.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.ticks.sum_seconds += seconds;
    }

    fn set_mode(&mut self, mode: Mode) {
        if self.mode != mode && [self.mode, mode].contains(&Mode::Off) {
            self.pressure.interrupt();
        }
        self.mode = mode;
    }

    /// Takes what the policies have become.
    fn apply_policies(&mut self) {
        self.config = self.policies.effective();
        self.pressure.set_policies(&self.config);
        self.policies_are_new = true;
        self.written_for = None;
    }

    fn write_quotas(&mut self, now: Duration) {
        let rules = Rules {
            mode: self.mode,
            lease_expires_ns: clock::nanoseconds(now + self.config.daemon.lease),
            exempt_rate: self.exempt_rate(),
        };
        let wanted = Some((self.pressure.changes(), self.mode));
        let result = if self.written_for == wanted {
            self.datapath.renew(&rules)
        } else {
            let demands = self.pressure.demands(&self.config);
            let table = quota::table(&self.config, &demands, self.clock_resolution_ns);
            let ranges = Ranges::of(&self.config.ports);
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
            Err(error) => self.keep_quotas(&rules, &error),
        }
        if self.datapath.uncounted().is_none() {
            self.recount();
        }
    }

    /// What could not be replaced stays in force.
    fn keep_quotas(&mut self, rules: &Rules, error: &anyhow::Error) {
        let kept = if self.written.is_none() {
            "nothing is refused until they are".to_owned()
        } else if let Err(error) = self.datapath.renew(rules) {
            format!("nothing is refused once the lease has ended, which cannot be renewed: {error:#}")
        } else {
            "those before stay in force".to_owned()
        };
        self.warn("quotas", format!("quotas cannot be written: {error:#}; {kept}"));
    }

    /// No rate is no limit; a rate of 0 exempts nobody.
    fn exempt_rate(&self) -> Option<Rate> {
        match self.config.guard.rate {
            RateLimit::PerSecond(rate) => Some(
                quota::gcra_rate(rate, (rate / 10.0).max(1.0), self.clock_resolution_ns)
                    .unwrap_or(Rate { interval: NOBODY_EXEMPT, tolerance: 0 }),
            ),
            RateLimit::Learned | RateLimit::Unlimited => None,
        }
    }

    /// Logs a trouble when it comes or changes, and shows it until it is gone.
    fn warn(&mut self, topic: &'static str, message: String) {
        if self.warnings.get(topic) != Some(&message) {
            tracing::warn!("{message}.");
            self.warnings.insert(topic, message);
        }
    }
}
