//! Following interfaces, addresses and listeners.

use std::time::Duration;

use super::ControlLoop;
use crate::daemon::sources::source_table;
use crate::kernel::doctor::needs_reset;
use crate::net::addresses;

/// So many listeners are looked at in every tick, and in every second one: the kernel needs two microseconds for each.
const LISTENERS_EVERY_TICK: usize = 32;
const LISTENERS_EVERY_SECOND_TICK: usize = 64;

/// How often interfaces that could not be attached are tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

impl ControlLoop {
    pub(super) fn follow_network(&mut self, now: Duration) {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.addresses {
            self.sync_addresses();
        }
        if dirty.links || now >= self.due.retry {
            self.due.retry = now + RETRY_PERIOD;
            self.sync_interfaces();
        }
    }

    pub(super) fn sync_interfaces(&mut self) {
        let reset = self.config.follow_listeners || needs_reset(&self.config);
        match self.interfaces.sync(&mut self.datapath, &self.config.attach, reset, &self.support) {
            Ok(()) => {
                self.warnings.remove("interfaces");
            }
            Err(error) => self.warn("interfaces", error.to_string()),
        }
    }

    pub(super) fn sync_addresses(&mut self) {
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

    pub(super) fn sync_sources(&mut self) {
        match self.datapath.set_sources(&source_table(&self.config)) {
            Ok(()) => {
                self.warnings.remove("sources");
            }
            Err(error) => self.warn("sources", format!("sources are not known to the kernel: {error:#}")),
        }
        self.written_for = None;
    }

    /// Where there are many listeners they are not looked at in every tick. Returns whether they were. (Their queues are
    /// judged in the kernel at every attempt; what is seen here moves levels.)
    pub(super) fn look_at_listeners(&mut self) -> bool {
        let listeners = self.listeners.len();
        let turns: u8 = if listeners <= LISTENERS_EVERY_TICK {
            1
        } else if listeners <= LISTENERS_EVERY_SECOND_TICK {
            2
        } else {
            4
        };
        // What is stale within so many ticks has none to wait for.
        let may_rest = self.pressure.pace() >= self.config.daemon.tick * u32::from(turns - 1);
        if may_rest && !self.ticks.total.is_multiple_of(turns.into()) && !self.policies_are_new {
            return false;
        }
        let Some(sockets) = &mut self.sockets else { return false };
        match sockets.listeners() {
            Ok(listeners) => {
                self.listeners = listeners;
                self.warnings.remove("listeners");
            }
            Err(error) => {
                self.warn("listeners", error.to_string());
                return false;
            }
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
        true
    }
}
