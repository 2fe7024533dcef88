//! Counters as they come from the kernel, summed over CPUs.

use std::collections::BTreeMap;

use shedder_common::class::CLASSES;
use shedder_common::counters::{GlobalCounters, PolicyCounters};

use super::ports::PortRange;

/// All counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// By first and last port of the policy.
    pub policies: BTreeMap<PortRange, PolicyReading>,
    /// What belongs to no policy.
    pub global: GlobalCounters,
}

/// What is read of one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyReading {
    /// Sums over CPUs.
    pub counters: PolicyCounters,
    /// Of these, new attempts that were admitted, or passed because nothing was obeyed.
    pub admitted: u64,
    /// Of these, by [`Class::index`](shedder_common::class::Class::index), attempts that were refused or, in `observe`,
    /// would have been, repeats included.
    pub refused: [u64; CLASSES],
    /// Live connections that the kernel has counted.
    pub counted: u64,
    /// Connections that the kernel has seen come, counted or not.
    pub established: u64,
    /// What is added to `counted`, see [`super::Datapath::set_correction`].
    pub correction: i64,
}

impl PolicyReading {
    /// Takes what was decided.
    pub(super) fn set_decisions<'a>(&mut self, cpus: impl Iterator<Item = &'a PolicyCounters>) {
        self.counters = sum_policy(cpus);
        // While it is at hand: every second this is asked of a thousand policies.
        self.admitted = self.counters.classes.iter().map(|class| class.admitted + class.fail_open).sum();
        self.refused = self
            .counters
            .classes
            .map(|class| class.shed.iter().chain(&class.would_shed).sum::<u64>() + class.retransmits_shed);
    }

    /// Live connections. As in the kernel a sum below 0, which is wrong for a moment or because something was not seen
    /// to come, is none.
    #[must_use]
    pub const fn active(&self) -> u64 {
        let sum = self.counted.cast_signed().wrapping_add(self.correction);
        if sum < 0 { 0 } else { sum.cast_unsigned() }
    }
}

fn sum_policy<'a>(cpus: impl Iterator<Item = &'a PolicyCounters>) -> PolicyCounters {
    let mut sum = PolicyCounters::default();
    for cpu in cpus {
        for (total, class) in sum.classes.iter_mut().zip(&cpu.classes) {
            total.admitted += class.admitted;
            add(&mut total.shed, &class.shed);
            add(&mut total.would_shed, &class.would_shed);
            total.exempt += class.exempt;
            total.fail_open += class.fail_open;
            total.reset_sent += class.reset_sent;
            total.retransmits_admitted += class.retransmits_admitted;
            total.retransmits_shed += class.retransmits_shed;
        }
        add(&mut sum.wait_buckets, &cpu.wait_buckets);
        sum.wait_sum_us += cpu.wait_sum_us;
    }
    sum
}

pub(super) fn sum_global<'a>(cpus: impl Iterator<Item = &'a GlobalCounters>) -> GlobalCounters {
    let mut sum = GlobalCounters::default();
    for cpu in cpus {
        add(&mut sum.unparsed, &cpu.unparsed);
        add(&mut sum.fail_open, &cpu.fail_open);
        add(&mut sum.exempt, &cpu.exempt);
        sum.untracked_connections += cpu.untracked_connections;
        sum.reset_failed += cpu.reset_failed;
    }
    sum
}

fn add<const N: usize>(total: &mut [u64; N], more: &[u64; N]) {
    for (total, more) in total.iter_mut().zip(more) {
        *total += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_below_zero_is_none() {
        let active = |counted: i64, correction| {
            PolicyReading { counted: counted.cast_unsigned(), correction, ..PolicyReading::default() }
                .active()
        };
        assert_eq!((active(7, 0), active(7, -3), active(7, -9), active(7, 3)), (7, 4, 0, 10));
        // A close that was seen and an opening that was not.
        assert_eq!((active(-1, 0), active(-1, 3), active(-5, -1)), (0, 2, 0));
    }
}
