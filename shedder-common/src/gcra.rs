//! Rates by the generic cell rate algorithm: one timestamp for each rate, the theoretical arrival time (TAT).
//!
//! Times are in *units* of 1/64 ns, so that the remainder of a division by the rate is kept; an unsigned 64-bit
//! count of them lasts nine years from boot. Nothing is lost while a rate is idle: a TAT in the past is a full
//! burst, however old it is.

/// Units per nanosecond, as a shift.
pub const UNIT_SHIFT: u32 = 6;

/// Units per second.
pub const UNITS_PER_SECOND: u64 = 1_000_000_000 << UNIT_SHIFT;

/// The time in units.
#[must_use]
#[inline(always)]
pub const fn units(ns: u64) -> u64 {
    ns << UNIT_SHIFT
}

/// By how much the clock may lag behind what other CPUs charged by: two ticks of the slowest timer.
const CLOCK_LAG: u64 = units(20_000_000);

/// One rate: `interval` units between two conforming arrivals in the long run, and `tolerance` units by which
/// an arrival may come early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Emission interval, units.
    pub interval: u64,
    /// Burst tolerance, units.
    pub tolerance: u64,
}

impl Rate {
    /// Whether an arrival conforms.
    #[must_use]
    #[inline(always)]
    pub const fn admits(&self, tat: u64, now: u64) -> bool {
        let ahead = tat.saturating_sub(now);
        // Ahead of what any charge under these limits can reach: left by other limits, so it says nothing.
        ahead <= self.tolerance || ahead > self.ceiling().wrapping_add(CLOCK_LAG)
    }

    /// The TAT after an admitted arrival. It is bounded, so that arrivals which another limit admitted cannot
    /// close this one for longer than a burst takes to refill.
    #[must_use]
    #[inline(always)]
    pub const fn charged(&self, tat: u64, now: u64) -> u64 {
        let ahead = tat.saturating_sub(now);
        let ceiling = self.ceiling();
        let before = if ahead > ceiling.wrapping_add(CLOCK_LAG) { self.tolerance } else { ahead };
        let after = before.wrapping_add(self.interval);
        now.wrapping_add(if after > ceiling { ceiling } else { after })
    }

    /// Limits are far from overflowing this; a sum that wraps admits.
    #[inline(always)]
    const fn ceiling(&self) -> u64 {
        self.tolerance.wrapping_mul(2).wrapping_add(self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(per_second: u64, burst: u64) -> Rate {
        let interval = UNITS_PER_SECOND / per_second;
        Rate { interval, tolerance: interval * (burst - 1) }
    }

    fn admitted(rate: Rate, arrivals: impl Iterator<Item = u64>) -> u64 {
        let (mut tat, mut count) = (0, 0);
        for now_ns in arrivals {
            let now = units(now_ns);
            if rate.admits(tat, now) {
                tat = rate.charged(tat, now);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn a_minute_slightly_over_the_rate_admits_the_rate() {
        let start = 5_000_000_000;
        let count = admitted(rate(1000, 5), (0..66_000).map(|i| start + i * 1_000_000_000 / 1100));
        assert!((59_990..=60_010).contains(&count), "{count}");
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_keeps_its_remainder() {
        let count = admitted(rate(70_000, 2), (0..20_000_000).map(|i| 1_000_000 + i * 500));
        assert!((699_990..=700_010).contains(&count), "{count}");
    }

    #[test]
    fn idleness_of_any_length_refills_the_burst_and_no_more() {
        for idle_ns in [4_000_000_000, 3_600_000_000_000, 5 * 365 * 86_400 * 1_000_000_000] {
            let rate = rate(10_000, 500);
            let drained = (0..2000).map(|_| 7_000_000_000);
            assert_eq!(admitted(rate, drained.clone()), 500);
            let again = (0..2000).map(|_| 7_000_000_000 + idle_ns);
            assert_eq!(admitted(rate, drained.chain(again)), 1000, "{idle_ns}");
        }
    }

    #[test]
    fn a_tat_left_by_a_slower_rate_does_not_close_a_faster_one() {
        let now = units(1_000_000_000);
        let slow = rate(1, 60);
        let tat = (0..60).fold(0, |tat, _| slow.charged(tat, now));
        let fast = rate(5000, 1);
        assert!(fast.admits(tat, now));
        assert!(!fast.admits(fast.charged(tat, now), now));
    }

    #[test]
    fn a_clock_that_lags_opens_nothing() {
        let now = units(1_000_000_000_000);
        for rate in [rate(250, 25), rate(100_000, 1), rate(1, 1)] {
            // Others admit, as long as it takes.
            let tat = (0..1000).fold(0, |tat, _| rate.charged(tat, now));
            for lag_ns in [0, 1, 4_000_000, 10_000_000, 20_000_000] {
                let then = now - units(lag_ns);
                assert!(!rate.admits(tat, then), "{lag_ns} ns");
                assert!(!rate.admits(rate.charged(tat, then), then), "{lag_ns} ns");
            }
        }
    }

    proptest! {
        #[test]
        fn no_window_admits_more_than_rate_and_burst(
            per_second in 1_u64..200_000,
            burst in 1_u64..1000,
            gaps_ns in proptest::collection::vec(0_u64..5_000_000, 1..400),
        ) {
            let rate = rate(per_second, burst);
            let mut now_ns = 1_000_000_000;
            let arrivals: std::vec::Vec<u64> = gaps_ns.iter().map(|gap| { now_ns += gap; now_ns }).collect();
            let span_ns = arrivals.last().unwrap() - arrivals[0];
            let count = admitted(rate, arrivals.into_iter());
            let most = burst + u64::try_from(u128::from(span_ns) * u128::from(per_second) / 1_000_000_000).unwrap() + 1;
            prop_assert!(count <= most, "{count} > {most}");
        }

        #[test]
        fn charges_by_others_never_close_for_longer_than_twice_the_burst(
            per_second in 1_u64..100_000, burst in 1_u64..100, charges in 0_usize..1000,
        ) {
            let rate = rate(per_second, burst);
            let now = units(10_000_000_000);
            let tat = (0..charges).fold(0, |tat, _| rate.charged(tat, now));
            prop_assert!(rate.admits(tat, now + rate.tolerance + rate.interval));
        }

        #[test]
        fn no_input_overflows(interval: u64, tolerance: u64, tat: u64, now: u64) {
            let rate = Rate { interval, tolerance };
            std::hint::black_box((rate.admits(tat, now), rate.charged(tat, now)));
        }
    }
}
