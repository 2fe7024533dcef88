//! How fast an application accepts, and so how long a connection will wait that joins the queue now.
//!
//! The age of the oldest connection tells what those waited who came long ago. It lags by the very wait that it
//! tells: judged by it alone, all that comes within the limit is admitted and then waits several times as long.

use crate::judge::Cell;
use crate::opaque::{blurred, low_half};

/// What is known of how a port is served; all zero is nothing. Connections are those of all listeners together: where
/// several share a port they seem to be served faster than each is, and mostly the age alone decides.
///
/// CPUs change the words at the same time. What they make of each other's is wrong for a span or a period at most.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Service<W> {
    /// Connections that have joined an accept queue, counted from socket states.
    pub established: W,
    /// Attempts that were admitted.
    pub admitted: W,
    /// When the span began that is being measured, microseconds; 0 while none is.
    pub mark_us: W,
    /// How many had been accepted then.
    pub mark_accepted: W,
    /// Mean time from one `accept` to the next while connections waited, nanoseconds; 0 is unknown.
    pub interval_ns: W,
    /// What a single span said, nanoseconds, which another must confirm; 0 where none did.
    pub unconfirmed_ns: W,
    /// When that was last measured, microseconds.
    pub measured_us: W,
    /// Who is on the way.
    pub approach: Approach<W>,
}

/// How many of those admitted are still on the way: their handshake is not complete. Time is cut into periods of
/// about one handshake.
///
/// Some never complete it, and nothing tells when one is lost: a flood from false addresses completes nothing, and
/// must not keep those out who do. So two numbers are compared, each of which is too high for another reason: of
/// those admitted lately the part that usually arrives, some of whom have; and how many more have been admitted
/// than established, less what was the least of that lately, because the lost only ever become more.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Approach<W> {
    /// Mean time from an attempt to its connection, microseconds; 0 is unknown.
    pub round_trip_us: W,
    /// When the present period began, microseconds.
    pub since_us: W,
    /// `admitted` then.
    pub admitted: W,
    /// `admitted` one period earlier.
    pub admitted_before: W,
    /// `established` when the present period began.
    pub established: W,
    /// The least `admitted` less `established` of this period, two's complement.
    pub least: W,
    /// That of the period before.
    pub least_before: W,
    /// How many are admitted in a period, mean of the last ones, times 4,096.
    pub mean_admitted: W,
    /// How many are established in a period.
    pub mean_established: W,
    /// Which part of those admitted is lost, in units of 1/4,096.
    pub lost: W,
}

/// The clock is too coarse for less.
const SPAN_MIN_US: u64 = 12_000;
const SPAN_MAX_US: u64 = 100_000;

/// A span that was not looked at for so long is none: nobody asked, or the application is stalled rather than slow.
/// The age tells of a stall; as a measure of speed it would be believed when the stall is over.
const SPANS_MAX: u64 = 4;

/// With so many accepts a span is believed at once. A short stall ends in a span with few, and all of a slow application's
/// have few: these another must confirm.
const SERVED_MANY: u64 = 8;

/// For how many spans a measurement is believed. An overload makes a new one with every span; where none is made,
/// the application may have become faster.
const BELIEVED_SPANS: u64 = 8;

/// For how many of them it is believed after the queue was empty.
const DOUBTED_SPANS: u64 = 3;

/// The clock is too coarse for less.
const PERIOD_MIN_US: u64 = 8_000;
const PERIOD_MAX_US: u64 = 250_000;

/// One in fixed point.
const ONE: u64 = 1 << 12;

impl<W: Cell> Service<W> {
    /// `depth` connections wait, the oldest of which was established at `oldest_us`, 0 where that is unknown.
    /// `limit_us` is the longest wait that anyone asks about.
    #[inline(always)]
    pub fn observe(&self, depth: u32, oldest_us: u64, now_us: u64, limit_us: u32) {
        let span_us = span_us(limit_us);
        if depth != 0 && oldest_us != 0 {
            let accepted = self.established.load().wrapping_sub(depth as u64);
            self.measure(accepted, oldest_us, now_us, span_us);
        } else if self.mark_us.load() != 0 {
            self.mark_us.store(0);
            if depth == 0 {
                self.doubt(now_us, span_us);
            }
        }
    }

    /// How long a connection will wait that is admitted now and comes behind `depth` others, nanoseconds; 0 is
    /// unknown.
    #[inline(always)]
    pub fn expected_ns(&self, depth: u32, now_us: u64, limit_us: u32) -> u64 {
        let approaching = self.approach.count(self.admitted.load(), self.established.load(), now_us);
        let round_trip_us = self.approach.round_trip_us.load() & u32::MAX as u64;
        if !self.is_believed(now_us, span_us(limit_us) * BELIEVED_SPANS + round_trip_us) {
            return 0;
        }
        // While it is on the way itself, others are served.
        let before = (depth as u64 + approaching).wrapping_mul(self.interval_ns.load() & u32::MAX as u64);
        before.saturating_sub(round_trip_us * 1000)
    }

    #[inline(always)]
    fn is_believed(&self, now_us: u64, believed_us: u64) -> bool {
        now_us.wrapping_sub(self.measured_us.load()) <= believed_us
    }

    /// Time is measured only where the application had work throughout: the oldest connection already waited when
    /// the span began.
    #[inline(always)]
    fn measure(&self, accepted: u64, oldest_us: u64, now_us: u64, span_us: u64) {
        let mark_us = self.mark_us.load();
        let elapsed_us = now_us.wrapping_sub(mark_us);
        if mark_us == 0 || oldest_us > mark_us || elapsed_us >= span_us * SPANS_MAX {
            self.unconfirmed_ns.store(0);
        } else if elapsed_us >= span_us {
            let served = accepted.wrapping_sub(self.mark_accepted.load());
            // Beyond that the counts do not fit.
            if served == 0 || served > u32::MAX as u64 {
                return;
            }
            self.sample(elapsed_us.wrapping_mul(1000) / served, served, now_us, span_us);
        } else {
            return;
        }
        self.mark_accepted.store(accepted);
        self.mark_us.store(now_us);
    }

    #[inline(always)]
    fn sample(&self, sample_ns: u64, served: u64, now_us: u64, span_us: u64) {
        let known_ns = self.interval_ns.load();
        let unconfirmed_ns = self.unconfirmed_ns.load();
        let interval_ns = if known_ns != 0 && self.is_believed(now_us, span_us * BELIEVED_SPANS) {
            // What seems to be slower at once may be a stall.
            let most_ns = known_ns.wrapping_mul(2);
            (known_ns * 3 + if sample_ns < most_ns { sample_ns } else { most_ns }) >> 2
        } else if unconfirmed_ns != 0 {
            if unconfirmed_ns < sample_ns { unconfirmed_ns } else { sample_ns }
        } else if served >= SERVED_MANY {
            sample_ns
        } else {
            self.unconfirmed_ns.store(sample_ns);
            return;
        };
        self.interval_ns.store(interval_ns & u32::MAX as u64);
        self.measured_us.store(now_us);
    }

    /// The application has caught up. How slow it was is believed only until it can be measured again, if more
    /// come than it can serve.
    #[inline(always)]
    fn doubt(&self, now_us: u64, span_us: u64) {
        let doubtful_us = now_us.wrapping_sub(span_us * (BELIEVED_SPANS - DOUBTED_SPANS));
        let measured_us = self.measured_us.load();
        if measured_us > doubtful_us {
            self.measured_us.store(doubtful_us);
        }
    }
}

impl<W: Cell> Approach<W> {
    /// A handshake took that long.
    #[inline(always)]
    pub fn observe(&self, round_trip_us: u64) {
        let mean_us = self.round_trip_us.load();
        let sample_us = if round_trip_us > PERIOD_MAX_US { PERIOD_MAX_US } else { round_trip_us };
        self.round_trip_us.store(if mean_us == 0 { sample_us } else { (mean_us * 7 + sample_us) >> 3 });
    }

    /// How many will come that were admitted and are not yet established; below 2^32.
    #[inline(always)]
    fn count(&self, admitted: u64, established: u64, now_us: u64) -> u64 {
        let missing = admitted.wrapping_sub(established);
        let round_trip_us = self.round_trip_us.load();
        let period_us = if round_trip_us < PERIOD_MIN_US { PERIOD_MIN_US } else { round_trip_us };
        let since_us = self.since_us.load();
        let elapsed_us = now_us.wrapping_sub(since_us);
        if elapsed_us >= period_us {
            // One CPU does it.
            if self.since_us.compare_exchange(since_us, now_us) {
                self.end_period(admitted, established, elapsed_us < 2 * period_us);
            }
        } else if is_less(missing, self.least.load()) {
            self.least.store(missing);
        }
        let (least, before) = (self.least.load(), self.least_before.load());
        let excess = beyond(missing, if is_less(before, least) { before } else { least });

        let (begun, begun_before) = (self.admitted.load(), self.admitted_before.load());
        let earlier = beyond(begun, begun_before) >> u64::from(elapsed_us >= period_us / 2);
        let lately = (beyond(admitted, begun) + earlier) & (u32::MAX >> 8) as u64;
        let arriving = lately.wrapping_mul(ONE - (self.lost.load() & (ONE - 1))) / ONE;
        let approaching = if excess < arriving { excess } else { arriving };
        u64::from(blurred::<{ 1 << 32 }>(low_half(approaching)))
    }

    #[inline(always)]
    fn end_period(&self, admitted: u64, established: u64, just_now: bool) {
        let missing = admitted.wrapping_sub(established);
        if just_now {
            let asked = admitted.wrapping_sub(self.admitted.load());
            let came = established.wrapping_sub(self.established.load());
            self.estimate_lost(mean(&self.mean_admitted, asked), mean(&self.mean_established, came));
            self.least_before.store(self.least.load());
            self.admitted_before.store(self.admitted.load());
        } else {
            // What happened before nobody looked is too old to say anything.
            self.mean_admitted.store(0);
            self.mean_established.store(0);
            self.lost.store(0);
            self.least_before.store(missing);
            self.admitted_before.store(admitted);
        }
        self.least.store(missing);
        self.admitted.store(admitted);
        self.established.store(established);
    }

    #[inline(always)]
    fn estimate_lost(&self, mean_admitted: u64, mean_established: u64) {
        let sample = if mean_established < mean_admitted {
            (mean_admitted - mean_established) * (ONE - 1) / mean_admitted
        } else {
            0
        };
        let lost = self.lost.load() & (ONE - 1);
        // Sooner down than up: what an overload drops at its beginning is not lost for ever.
        self.lost.store(if sample < lost {
            lost - ((lost - sample) >> 2)
        } else {
            lost + ((sample - lost + 7) >> 3)
        });
    }
}

#[inline(always)]
fn mean<W: Cell>(word: &W, sample: u64) -> u64 {
    let sample = if sample > u32::MAX as u64 { 0 } else { sample };
    let mean = ((word.load() & (u64::MAX >> 16)) * 7 + sample * ONE) >> 3;
    word.store(mean);
    mean
}

/// How far one count is beyond another. It may seem to lie behind, where another CPU has gone on meanwhile.
#[inline(always)]
const fn beyond(count: u64, other: u64) -> u64 {
    let difference = count.wrapping_sub(other);
    if difference.cast_signed() < 0 { 0 } else { difference & u32::MAX as u64 }
}

/// Of two's complement numbers.
#[inline(always)]
const fn is_less(left: u64, right: u64) -> bool {
    left.cast_signed() < right.cast_signed()
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

#[cfg(test)]
mod tests {
    use std::cell::Cell as StdCell;

    use super::*;

    /// A word whose exchange another CPU always wins.
    #[derive(Debug, Default)]
    struct Raced(StdCell<u64>);

    impl Cell for Raced {
        fn load(&self) -> u64 {
            self.0.get()
        }

        fn compare_exchange(&self, _old: u64, _new: u64) -> bool {
            false
        }

        fn store(&self, value: u64) {
            self.0.set(value);
        }

        fn add(&self, amount: u64) {
            self.0.set(self.0.get().wrapping_add(amount));
        }
    }

    /// The other admitted one more and began the period, after this one had loaded the counts.
    #[test]
    fn counts_that_another_cpu_has_moved_on_make_nobody_wait() {
        let (service, now_us) = (Service::<Raced>::default(), 1_000_000_000);
        service.approach.since_us.store(now_us - 20_000);
        service.approach.admitted.store(101);
        service.approach.admitted_before.store(101);
        service.approach.established.store(100);
        service.approach.least.store(1);
        service.approach.least_before.store(1);
        service.admitted.store(100);
        service.established.store(100);
        service.interval_ns.store(1000);
        service.measured_us.store(now_us);
        assert_eq!(service.expected_ns(0, now_us, 100_000), 0);
    }
}
