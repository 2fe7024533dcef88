//! Keeping the count of live connections true.

use std::collections::BTreeMap;
use std::time::Duration;

use shedder_common::counters::ClassCounters;

use super::ControlLoop;
use crate::daemon::clock;
use crate::daemon::ranges::{PortRange, Ranges, range_of};
use crate::daemon::reconcile::Observation;
use crate::datapath::{Counters, PolicyReading};

impl ControlLoop {
    /// Compares the kernel's counts with the socket table, where that is due.
    pub(super) fn reconcile_when_due(&mut self, now: Duration) {
        if self.policies_are_new {
            // Where reconciling fails there still are.
            self.policies_are_new = self.has_new_policies();
        }
        if now >= self.due.reconcile || self.policies_are_new {
            let begun = clock::monotonic();
            self.reconcile();
            let look = clock::monotonic().saturating_sub(begun);
            self.due.reconcile = now + self.reconciler.pause(look);
        }
    }

    /// Has the kernel count what is older than the policy of its port, where there may be such.
    pub(super) fn recount(&mut self) {
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

    fn ranges(&self) -> Vec<PortRange> {
        self.config.ports.iter().map(range_of).collect()
    }

    fn has_new_policies(&self) -> bool {
        self.config.ports.iter().any(|policy| self.reconciler.is_new(range_of(policy)))
    }

    /// Compares the kernel's counts with the socket table.
    fn reconcile(&mut self) {
        // A correction of what is not counted would stand still while connections come and go.
        if self.datapath.uncounted().is_some() {
            return;
        }
        let ranges = Ranges::of(&self.config.ports);
        let Some(sockets) = &mut self.sockets else { return };
        let has_policy = |port: u16| ranges.find(port).is_some();
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
        let mut found_by_policy: BTreeMap<PortRange, u64> = BTreeMap::new();
        for (port, count) in found {
            if let Some(range) = ranges.find(port) {
                *found_by_policy.entry(range).or_default() += u64::from(count);
            }
        }
        for range in self.ranges() {
            let (first, last) = range;
            let found = found_by_policy.get(&range).copied().unwrap_or_default();
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
}

/// Attempts that passed and may have become connections.
fn passed(reading: &PolicyReading) -> u64 {
    let of_class = |class: &ClassCounters| {
        let would_shed: u64 = class.would_shed.iter().sum();
        class.admitted + class.retransmits_admitted + class.exempt + class.fail_open + would_shed
    };
    reading.counters.classes.iter().map(of_class).sum()
}
