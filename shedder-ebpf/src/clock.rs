//! The coarse monotonic clock. It moves with the jiffies, so one reading serves until they move: a call costs as
//! much as all gates together, the jiffies cost one load.

use core::intrinsics::{AtomicOrdering, atomic_xchg};

use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns};
use shedder_common::judge::Now;

/// When the clock was read and what it said.
#[repr(C)]
struct Reading {
    jiffies: u64,
    now_ns: u64,
    now_us: u64,
}

/// The last reading. All CPUs share it: it is written once in a tick, or a few times if they do so at once.
static mut LAST: Reading = Reading { jiffies: 0, now_ns: 0, now_us: 0 };

/// The monotonic clock. Stands still between two ticks, and may lag by one more where the tick comes between the
/// two clocks.
#[inline(always)]
pub fn now() -> Now {
    // SAFETY: the helper has no precondition.
    let jiffies = unsafe { bpf_jiffies64() };
    let reading = &raw mut LAST;
    // SAFETY: aligned words, each read and written at once. Whoever comes between the writes of another sees the
    // old jiffies and reads the clock anew; the exchange keeps them in order. (A machine that reorders reads may still
    // give the time of the reading before.)
    unsafe {
        if (&raw const (*reading).jiffies).read_volatile() != jiffies {
            let now = read();
            (&raw mut (*reading).now_ns).write_volatile(now.ns);
            (&raw mut (*reading).now_us).write_volatile(now.us);
            let _: u64 = atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*reading).jiffies, jiffies);
            return now;
        }
        Now {
            ns: (&raw const (*reading).now_ns).read_volatile(),
            us: (&raw const (*reading).now_us).read_volatile(),
        }
    }
}

#[inline(always)]
fn read() -> Now {
    // SAFETY: the helper has no precondition.
    let ns = unsafe { bpf_ktime_get_coarse_ns() };
    Now { ns, us: ns / 1000 }
}
