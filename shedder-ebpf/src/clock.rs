//! The coarse monotonic clock. It moves with the jiffies, so one reading serves until they move: a call costs as
//! much as all gates together, the jiffies cost one load.

use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns};

use crate::maps;

/// When the clock was read and what it said.
#[repr(C)]
pub struct Reading {
    jiffies: u64,
    now_ns: u64,
}

/// Nanoseconds of the monotonic clock. Stands still between two ticks, and may lag by one more where the tick
/// comes between the two clocks.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: the helper has no precondition.
    let jiffies = unsafe { bpf_jiffies64() };
    let Some(reading) = maps::CLOCK.get_ptr_mut(0) else {
        // SAFETY: as above.
        return unsafe { bpf_ktime_get_coarse_ns() };
    };
    // SAFETY: the entry is this CPU's. Whoever comes between the two writes sees the old jiffies and reads the
    // clock anew.
    unsafe {
        if (&raw const (*reading).jiffies).read_volatile() != jiffies {
            (&raw mut (*reading).now_ns).write_volatile(bpf_ktime_get_coarse_ns());
            (&raw mut (*reading).jiffies).write_volatile(jiffies);
        }
        (&raw const (*reading).now_ns).read_volatile()
    }
}
