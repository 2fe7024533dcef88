//! How fast an application accepts, and so how long a connection will wait that joins the queue now.
//!
//! The age of the oldest connection tells what those waited who came long ago. It lags by the very wait that it
//! tells: judged by it alone, all that comes within the limit is admitted and then waits several times as long.

use crate::judge::Cell;

/// What is known of how a port is served; all zero is nothing. Connections are those of all listeners together: where
/// several share a port they seem to be served faster than each is, and the age alone decides.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Service<W> {
    /// Connections that have joined an accept queue, counted from socket states.
    pub established: W,
    /// When the span began that is being measured, microseconds; 0 while none is.
    pub mark_us: W,
    /// How many had been accepted then.
    pub mark_accepted: W,
    /// Mean time from one `accept` to the next while connections waited, nanoseconds; 0 is unknown.
    pub interval_ns: W,
    /// When that was last measured, microseconds.
    pub measured_us: W,
}

/// For how long a measurement is believed. It is only made where connections wait; where none does for longer, the
/// application may have become faster.
const BELIEVED_US: u64 = 1_000_000;

/// The clock is too coarse for less.
const SPAN_MIN_US: u64 = 12_000;
const SPAN_MAX_US: u64 = 100_000;

impl<W: Cell> Service<W> {
    /// Nobody waits: what is measured ends here.
    #[inline(always)]
    pub fn idle(&self) {
        if self.mark_us.load() != 0 {
            self.mark_us.store(0);
        }
    }

    /// How long a connection will wait that comes behind `depth` others, the oldest of which was established at
    /// `oldest_us`; 0 is unknown. `limit_us` is the longest wait that anyone asks about.
    ///
    /// Time is measured only where the application had work throughout: the oldest connection already waited when
    /// the span began.
    #[inline(always)]
    pub fn expected_us(&self, depth: u32, oldest_us: u64, now_us: u64, limit_us: u32) -> u64 {
        let accepted = self.established.load().wrapping_sub(depth as u64);
        let mark_us = self.mark_us.load();
        let mut interval_ns = self.interval_ns.load();
        let elapsed_us = now_us.wrapping_sub(mark_us);
        if mark_us == 0 || oldest_us > mark_us || now_us < mark_us {
            self.begin(now_us, accepted);
        } else if elapsed_us >= span_us(limit_us) {
            let served = accepted.wrapping_sub(self.mark_accepted.load());
            // None yet, or the counts do not fit: the age decides.
            if served != 0 && served <= u32::MAX as u64 {
                let sample_ns = elapsed_us.wrapping_mul(1000) / served;
                interval_ns = if interval_ns == 0 { sample_ns } else { (interval_ns * 3 + sample_ns) >> 2 };
                self.interval_ns.store(interval_ns);
                self.measured_us.store(now_us);
                self.begin(now_us, accepted);
            }
        }
        if now_us.wrapping_sub(self.measured_us.load()) > BELIEVED_US {
            return 0;
        }
        (depth as u64).wrapping_mul(interval_ns & u32::MAX as u64) / 1000
    }

    #[inline(always)]
    fn begin(&self, now_us: u64, accepted: u64) {
        self.mark_accepted.store(accepted);
        self.mark_us.store(now_us);
    }
}

/// A third of the limit: an oldest connection near the limit has waited that long.
#[inline(always)]
const fn span_us(limit_us: u32) -> u64 {
    let third = limit_us as u64 / 3;
    if third < SPAN_MIN_US {
        SPAN_MIN_US
    } else if third > SPAN_MAX_US {
        SPAN_MAX_US
    } else {
        third
    }
}
