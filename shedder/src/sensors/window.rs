//! The growth of a counter over a sliding window.

use std::collections::VecDeque;
use std::time::Duration;

use super::reading::Unavailable;

/// Values are kept this many to a window, however fast the ticks are.
const VALUES_PER_WINDOW: u32 = 64;

/// Why there is no growth before half a window has passed.
pub(crate) fn not_over() -> Unavailable {
    Unavailable::not_yet("the first window is not over yet")
}

/// A counter's recent past. A counter that falls (a reset, a new cgroup of the same name) starts afresh.
#[derive(Debug)]
pub(crate) struct CounterWindow {
    length: Duration,
    kept: VecDeque<Value>,
    last: Value,
}

/// What the counter was for some time. While it stands still it is one value, however often it is read.
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    since: Duration,
    until: Duration,
    total: u64,
}

impl CounterWindow {
    pub(crate) fn new(length: Duration) -> Self {
        Self { length, kept: VecDeque::new(), last: Value::default() }
    }

    /// Takes the counter's value and returns its growth per second over the window, as near to its length as what is kept
    /// allows; `None` before half a window has passed, since that little says nothing yet.
    pub(crate) fn push(&mut self, now: Duration, total: u64) -> Option<f64> {
        if total < self.last.total {
            self.kept.clear();
        }
        while self.kept.get(1).is_some_and(|value| now.saturating_sub(value.since) >= self.length) {
            self.kept.pop_front();
        }
        let rate = self.rate(now, total);
        self.keep(now, total);
        rate
    }

    /// As [`Self::push`] with the value of last time, where it is known not to have changed.
    pub(crate) fn stand_still(&mut self, now: Duration) -> Option<f64> {
        self.push(now, self.last.total)
    }

    /// The counter is known not to have changed since it was read last, until then.
    pub(crate) fn stood_still(&mut self, until: Duration) {
        self.keep(until, self.last.total);
    }

    fn keep(&mut self, now: Duration, total: u64) {
        if self.kept.is_empty() || total != self.last.total {
            self.last = Value { since: now, until: now, total };
        }
        self.last.until = now;
        match self.kept.back_mut() {
            Some(kept) if kept.total == total => kept.until = now,
            Some(kept) if now.saturating_sub(kept.since) <= self.length / VALUES_PER_WINDOW => {}
            _ => self.kept.push_back(self.last),
        }
    }

    fn rate(&self, now: Duration, total: u64) -> Option<f64> {
        let begin = now.saturating_sub(self.length);
        // After a gap the front may be far older than the window; its successor is then the better base.
        let (elapsed, base) = self
            .kept
            .iter()
            .take(2)
            .map(|value| (now.saturating_sub(begin.min(value.until).max(value.since)), value.total))
            .filter(|(elapsed, _)| !elapsed.is_zero() && *elapsed >= self.length / 2)
            .min_by_key(|(elapsed, _)| elapsed.abs_diff(self.length))?;
        Some(total.saturating_sub(base) as f64 / elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn growth_is_divided_by_the_time_it_took() {
        let mut window = CounterWindow::new(ms(1_000));
        assert_eq!(window.push(ms(0), 7_000), None);
        assert_eq!(window.push(ms(400), 7_000), None, "less than half a window");
        assert_eq!(window.push(ms(500), 7_100), Some(200.0));
        assert_eq!(window.push(ms(1_000), 7_500), Some(500.0));
        assert_eq!(window.push(ms(2_000), 7_500), Some(0.0));
    }

    #[test]
    fn a_step_shows_at_the_next_tick() {
        let mut window = CounterWindow::new(ms(1_000));
        for tick in 0..20 {
            window.push(ms(tick * 100), 0);
        }
        assert_eq!(window.push(ms(2_000), 50), Some(50.0));
        assert_eq!(window.push(ms(2_100), 150), Some(150.0));
    }

    #[test]
    fn a_counter_that_falls_starts_afresh() {
        let mut window = CounterWindow::new(ms(1_000));
        window.push(ms(0), 1_000_000);
        window.push(ms(1_000), 2_000_000);
        assert_eq!(window.push(ms(1_100), 5), None);
        assert_eq!(window.push(ms(2_100), 15), Some(10.0));
    }

    #[test]
    fn after_a_gap_the_past_before_it_is_soon_forgotten() {
        let mut window = CounterWindow::new(ms(1_000));
        window.push(ms(0), 0);
        assert_eq!(window.push(ms(30_000), 30_000), Some(1_000.0), "all there is");
        assert_eq!(window.push(ms(30_500), 30_000), Some(0.0));
    }

    #[test]
    fn a_counter_that_was_not_asked_while_it_stood_still_is_measured_as_if_it_had_been() {
        for still_ms in [100, 500, 700, 5_000] {
            let mut asked = CounterWindow::new(ms(1_000));
            let mut told = CounterWindow::new(ms(1_000));
            for window in [&mut asked, &mut told] {
                for tick in 0..=20 {
                    window.push(ms(tick * 100), tick);
                }
            }
            for at in (2_100..=2_000 + still_ms).step_by(100) {
                asked.push(ms(at), 20);
            }
            told.stood_still(ms(2_000 + still_ms));
            for at in (2_100 + still_ms..5_000 + still_ms).step_by(100) {
                let (asked, told) = (asked.push(ms(at), at).unwrap(), told.push(ms(at), at).unwrap());
                assert_eq!(asked, told, "at {at} after {still_ms}");
            }
        }
    }

    #[test]
    fn memory_is_bounded_however_fast_the_ticks_are() {
        let mut window = CounterWindow::new(ms(1_000));
        for tick in 0..10_000 {
            window.push(ms(tick), tick);
        }
        assert!(window.kept.len() <= 70, "{}", window.kept.len());
        for tick in 10_000..12_000 {
            window.push(ms(tick), 10_000);
        }
        assert!(window.kept.len() <= 2, "{}", window.kept.len());
    }

    proptest! {
        #[test]
        fn the_rate_never_exceeds_what_the_counter_can_grow(steps in prop::collection::vec((1u64..500, 0u64..=1_000), 1..200)) {
            let mut window = CounterWindow::new(ms(1_000));
            let (mut now, mut total) = (0, 0);
            for (step, per_mille) in steps {
                now += step;
                total += step * per_mille;
                if let Some(rate) = window.push(ms(now), total) {
                    prop_assert!((0.0..=1_000_000.5).contains(&rate), "{}", rate);
                }
            }
        }
    }
}
