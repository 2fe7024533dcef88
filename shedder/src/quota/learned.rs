//! The rate of a port that has none of its own: what it admitted before it came under pressure.

use std::collections::VecDeque;
use std::time::Duration;

/// Time over which admissions are remembered.
pub const MEMORY: Duration = Duration::from_secs(10);

/// Least rate that is learned: an idle port is not closed by pressure.
pub const LEAST_PER_SECOND: f64 = 10.0;

/// Shortest history that says anything. A daemon that starts under pressure has none.
pub const LEAST_HISTORY: Duration = Duration::from_secs(5);

/// What one port admitted lately, and what is made of it.
#[derive(Clone, Debug, Default)]
pub struct LearnedRate {
    /// Times and totals, oldest first, without pressure; the first may be older than [`MEMORY`].
    admitted: VecDeque<(Duration, u64)>,
    /// What was learned when pressure came last; it holds where pressure comes again before as much is known anew.
    known: Option<f64>,
    pressed: bool,
}

impl LearnedRate {
    /// One tick: how many the port has admitted in all, `None` where that was not counted just now, and whether it is
    /// under pressure. Gives the rate per second to measure it against; `None` while there is no pressure, and where
    /// pressure came before anything was known: what has not been measured is no limit.
    pub fn update(&mut self, now: Duration, admitted_total: Option<u64>, pressed: bool) -> Option<f64> {
        let was_pressed = std::mem::replace(&mut self.pressed, pressed);
        let came = pressed && !was_pressed;
        // Under pressure the port admits what it is let, which is not what it can.
        if let Some(total) = admitted_total.filter(|_| came || !pressed) {
            self.remember(now, total);
        }
        if came {
            self.known = self.per_second().or(self.known);
            self.admitted.clear();
        }
        self.known.filter(|_| pressed)
    }

    /// Nothing was judged for a while, so that what was counted says nothing. What was learned lasts as long as the pressure
    /// that it was learned for: later it may be of any age.
    pub fn interrupt(&mut self) {
        self.admitted.clear();
        if !self.pressed {
            self.known = None;
        }
    }

    fn remember(&mut self, now: Duration, total: u64) {
        // Counters began anew.
        if self.admitted.back().is_some_and(|(_, last)| *last > total) {
            self.admitted.clear();
        }
        self.admitted.push_back((now, total));
        while self.admitted.get(1).is_some_and(|(time, _)| now.saturating_sub(*time) >= MEMORY) {
            self.admitted.pop_front();
        }
    }

    fn per_second(&self) -> Option<f64> {
        let ((began, first), (ended, last)) = (self.admitted.front()?, self.admitted.back()?);
        let history = ended.saturating_sub(*began);
        let rate = last.saturating_sub(*first) as f64 / history.as_secs_f64();
        (history >= LEAST_HISTORY).then_some(rate.max(LEAST_PER_SECOND))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// Ticks at a steady rate; returns the last time and total.
    fn steady(
        learned: &mut LearnedRate,
        from: Duration,
        total: u64,
        ticks: u32,
        per_tick: u64,
    ) -> (Duration, u64) {
        let (mut now, mut total) = (from, total);
        for _ in 0..ticks {
            now += TICK;
            total += per_tick;
            assert_eq!(learned.update(now, Some(total), false), None);
        }
        (now, total)
    }

    #[test]
    fn the_last_ten_seconds_before_pressure_count() {
        let mut learned = LearnedRate::default();
        let (now, total) = steady(&mut learned, Duration::ZERO, 0, 300, 500);
        let (now, total) = steady(&mut learned, now, total, 100, 20);
        let rate = learned.update(now, Some(total), true).unwrap();
        assert!((rate - 200.0).abs() < 5.0, "{rate}");
        // What is admitted under pressure teaches nothing.
        for tick in 1..100 {
            assert_eq!(learned.update(now + TICK * tick, Some(total + 7), true), Some(rate));
        }
        assert_eq!(learned.update(now + TICK * 100, Some(total + 7), false), None);
    }

    #[test]
    fn an_idle_port_learns_the_least_rate_and_one_that_is_not_known_none() {
        let mut learned = LearnedRate::default();
        let (now, total) = steady(&mut learned, Duration::ZERO, 0, 300, 0);
        assert_eq!(learned.update(now, Some(total), true), Some(LEAST_PER_SECOND));
        // A daemon that starts under pressure.
        let mut learned = LearnedRate::default();
        for second in 0..60 {
            assert_eq!(learned.update(Duration::from_secs(second), Some(second * 500), true), None);
        }
        let mut learned = LearnedRate::default();
        let (now, total) = steady(&mut learned, Duration::ZERO, 5_000_000, 49, 50);
        assert_eq!(learned.update(now, Some(total), true), None);
    }

    #[test]
    fn pressure_that_comes_again_at_once_meets_what_was_learned_before() {
        for pause_ticks in [0, 1, 3, 9, 30, 48] {
            let mut learned = LearnedRate::default();
            let (now, total) = steady(&mut learned, Duration::ZERO, 0, 300, 50);
            assert_eq!(learned.update(now, Some(total), true), Some(500.0));
            // It is let 20 per second for a while, then as many as come, which are few at first.
            let (now, total) = (now + Duration::from_secs(60), total + 20 * 60);
            assert_eq!(learned.update(now, Some(total), true), Some(500.0));
            let (now, total) = steady(&mut learned, now, total, pause_ticks, 2);
            assert_eq!(learned.update(now + TICK, Some(total), true), Some(500.0), "after {pause_ticks}");
        }
    }

    #[test]
    fn what_comes_after_pressure_is_learned_anew() {
        let mut learned = LearnedRate::default();
        let (now, total) = steady(&mut learned, Duration::ZERO, 0, 300, 50);
        learned.update(now, Some(total), true);
        let (now, total) = steady(&mut learned, now + Duration::from_secs(9), total, 60, 20);
        let rate = learned.update(now, Some(total), true).unwrap();
        assert!((rate - 200.0).abs() < 5.0, "{rate}");
    }

    #[test]
    fn time_in_which_nothing_was_judged_is_no_history() {
        let mut learned = LearnedRate::default();
        let (now, total) = steady(&mut learned, Duration::ZERO, 0, 300, 50);
        learned.interrupt();
        assert_eq!(learned.update(now + Duration::from_secs(60), Some(total), true), None);
    }

    #[test]
    fn what_was_learned_outlives_an_interruption_only_under_the_same_pressure() {
        let mut learned = LearnedRate::default();
        let (now, total) = steady(&mut learned, Duration::ZERO, 0, 300, 50);
        assert_eq!(learned.update(now, Some(total), true), Some(500.0));
        learned.interrupt();
        assert_eq!(learned.update(now + TICK, None, true), Some(500.0));
        assert_eq!(learned.update(now + TICK * 2, Some(total), false), None);
        learned.interrupt();
        assert_eq!(learned.update(now + TICK * 3, Some(total), true), None, "it may be of yesterday");
    }

    #[test]
    fn pressure_between_two_counts_lowers_no_rate() {
        let mut learned = LearnedRate::default();
        for second in 0..20 {
            learned.update(Duration::from_secs(second), Some(second * 100), false);
            learned.update(Duration::from_secs(second) + TICK, None, false);
        }
        assert_eq!(learned.update(Duration::from_millis(19_900), None, true), Some(100.0));
    }

    #[test]
    fn counters_that_begin_anew_do_no_harm() {
        let mut learned = LearnedRate::default();
        let (now, _) = steady(&mut learned, Duration::ZERO, 1_000_000, 50, 100);
        let (now, total) = steady(&mut learned, now, 0, 60, 10);
        let rate = learned.update(now, Some(total), true).unwrap();
        assert!((90.0..=110.0).contains(&rate), "{rate}");
    }
}
