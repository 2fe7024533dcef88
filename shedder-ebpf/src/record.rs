//! The one place where decisions are counted.

use shedder_common::class::Class;
use shedder_common::counters::{PolicyCounters, Unparsed, WAIT_BOUNDS_US};
use shedder_common::judge::{Judgement, NO_WAIT, Outcome};

use crate::maps;

/// Counts a packet that could not be parsed.
#[inline(always)]
pub fn unparsed(reason: Unparsed) {
    if let Some(counters) = maps::GLOBAL_COUNTERS.get_ptr_mut(0) {
        // SAFETY: the entry is this CPU's, and programs on one CPU do not interrupt each other here.
        let counters = unsafe { &mut *counters };
        if let Some(counter) = counters.unparsed.get_mut(reason.index()) {
            *counter += 1;
        }
    }
}

/// Counts a decision.
#[inline(always)]
pub fn judgement(judgement: &Judgement) {
    let Some(counters) = maps::COUNTERS.get_ptr_mut(judgement.policy) else { return };
    // SAFETY: as above.
    let counters = unsafe { &mut *counters };
    if judgement.wait_us != NO_WAIT {
        observe_wait(counters, judgement.wait_us);
    }
    let Some(class) = counters.classes.get_mut(judgement.class.index()) else { return };
    match judgement.outcome() {
        Outcome::Admit => class.admitted += 1,
        Outcome::Repeat => class.retransmits_admitted += 1,
        Outcome::ShedAgain(_) => class.retransmits_shed += 1,
        Outcome::Shed(gate) => {
            let by_gate = if judgement.enforce() { &mut class.shed } else { &mut class.would_shed };
            if let Some(counter) = by_gate.get_mut(gate.index()) {
                *counter += 1;
            }
        }
        Outcome::Exempt(reason) => {
            class.exempt += 1;
            if let Some(global) = maps::GLOBAL_COUNTERS.get_ptr_mut(0) {
                // SAFETY: as above.
                if let Some(counter) = unsafe { &mut *global }.exempt.get_mut(reason.index()) {
                    *counter += 1;
                }
            }
        }
        Outcome::FailOpen(reason) => {
            class.fail_open += 1;
            if let Some(global) = maps::GLOBAL_COUNTERS.get_ptr_mut(0) {
                // SAFETY: as above.
                if let Some(counter) = unsafe { &mut *global }.fail_open.get_mut(reason.index()) {
                    *counter += 1;
                }
            }
        }
    }
}

/// Counts whether a RST was sent for a class at a policy.
#[inline(always)]
pub fn reset(policy: u32, class: Class, sent: bool) {
    if sent {
        let Some(counters) = maps::COUNTERS.get_ptr_mut(policy) else { return };
        // SAFETY: as above.
        let counters = unsafe { &mut *counters };
        if let Some(class) = counters.classes.get_mut(class.index()) {
            class.reset_sent += 1;
        }
    } else if let Some(global) = maps::GLOBAL_COUNTERS.get_ptr_mut(0) {
        // SAFETY: as above.
        unsafe { (*global).reset_failed += 1 };
    }
}

/// Counts a connection for which the kernel gave no socket storage.
#[inline(always)]
pub fn untracked() {
    if let Some(global) = maps::GLOBAL_COUNTERS.get_ptr_mut(0) {
        // SAFETY: as above.
        unsafe { (*global).untracked_connections += 1 };
    }
}

#[inline(always)]
fn observe_wait(counters: &mut PolicyCounters, wait_us: u32) {
    // Arithmetic and not branches: the verifier would walk what follows anew for each bucket.
    let mut bucket = 0;
    for bound_us in WAIT_BOUNDS_US {
        bucket += u64::from(bound_us).wrapping_sub(u64::from(wait_us)) >> 63;
    }
    if let Some(counter) = counters.wait_buckets.get_mut(bucket as usize) {
        *counter += 1;
    }
    counters.wait_sum_us += u64::from(wait_us);
}
