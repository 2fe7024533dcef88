//! The one place where decisions are counted.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use shedder_common::class::Class;
use shedder_common::counters::{ClassCounters, GlobalCounters, PolicyCounters, Unparsed, wait_bucket};
use shedder_common::judge::{Judgement, NO_WAIT};

use crate::maps;

/// Counts a packet that could not be parsed.
#[inline(always)]
pub fn unparsed(reason: Unparsed) {
    count_globally(|global| global.unparsed.get_mut(reason.index()));
}

/// Counts a decision.
#[inline(always)]
pub fn judgement(judgement: &Judgement) {
    let Some(counters) = maps::COUNTERS.get_ptr_mut(judgement.policy) else { return };
    // SAFETY: the entry is this CPU's, and what counts here runs where packets come in, which do not interrupt each
    // other.
    let counters = unsafe { &mut *counters };
    if judgement.wait_us != NO_WAIT {
        observe_wait(counters, judgement.wait_us);
    }
    let Some(class) = counters.classes.get_mut(judgement.class.index()) else { return };
    // SAFETY: the counters are words and nothing else.
    let words = unsafe { &mut *(&raw mut *class).cast::<[u64; CLASS_COUNTERS]>() };
    if let Some(counter) = words.get_mut(judgement.counter() as usize) {
        *counter += 1;
    }
    if let Some(reason) = judgement.exempt() {
        count_globally(|global| global.exempt.get_mut(reason));
    }
    if let Some(reason) = judgement.fail_open() {
        count_globally(|global| global.fail_open.get_mut(reason));
    }
}

const CLASS_COUNTERS: usize = size_of::<ClassCounters>() / size_of::<u64>();

#[inline(always)]
fn count_globally(counter: impl FnOnce(&'static mut GlobalCounters) -> Option<&'static mut u64>) {
    if let Some(global) = maps::GLOBAL_COUNTERS.get_ptr_mut(0)
        // SAFETY: as above.
        && let Some(counter) = counter(unsafe { &mut *global })
    {
        *counter += 1;
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

/// Counts a connection for which the kernel gave no socket storage. Unlike packets, connections are counted in system
/// calls too, which packets and others that count connections interrupt.
#[inline(always)]
pub fn untracked() {
    if let Some(global) = maps::GLOBAL_COUNTERS.get_ptr_mut(0) {
        // SAFETY: the pointer is to a live, aligned map value; this word is only ever changed here, at once.
        unsafe {
            let counter = &raw mut (*global).untracked_connections;
            let _: u64 = atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(counter, 1);
        }
    }
}

#[inline(always)]
fn observe_wait(counters: &mut PolicyCounters, wait_us: u32) {
    if let Some(counter) = counters.wait_buckets.get_mut(wait_bucket(wait_us)) {
        *counter += 1;
    }
    counters.wait_sum_us += u64::from(wait_us);
}
