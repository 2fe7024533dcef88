//! The rate of a port that has none of its own: what it admitted before it came under pressure.

use std::collections::VecDeque;
use std::time::Duration;

/// Time over which admissions are remembered.
pub const MEMORY: Duration = Duration::from_secs(10);

/// Least rate that is learned: an idle port is not closed by pressure.
pub const LEAST_PER_SECOND: f64 = 10.0;

/// Shortest history that says anything; a daemon that starts under pressure has none.
const LEAST_HISTORY: Duration = Duration::from_secs(1);

/// What one port admitted lately, and what is made of it.
#[derive(Clone, Debug, Default)]
pub struct LearnedRate {
    /// Times and totals, oldest first; the first may be older than [`MEMORY`].
    admitted: VecDeque<(Duration, u64)>,
    learned: Option<f64>,
}

impl LearnedRate {
    /// One tick: how many the port has admitted in all, `None` where that was not counted just now, and whether it is
    /// under pressure. Gives the rate per second to measure it against; `None` while there is no pressure.
    pub fn update(&mut self, now: Duration, admitted_total: Option<u64>, pressed: bool) -> Option<f64> {
        if !pressed {
            self.learned = None;
        }
        if self.learned.is_none() {
            // Under pressure the port admits what it is let, which is not what it can.
            if let Some(total) = admitted_total {
                self.remember(now, total);
            }
            if pressed {
                self.learned = Some(self.per_second().max(LEAST_PER_SECOND));
                self.admitted.clear();
            }
        }
        self.learned
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

    fn per_second(&self) -> f64 {
        let (Some((began, first)), Some((ended, last))) = (self.admitted.front(), self.admitted.back())
        else {
            return 0.0;
        };
        let history = ended.saturating_sub(*began).max(LEAST_HISTORY);
        last.saturating_sub(*first) as f64 / history.as_secs_f64()
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
    fn an_idle_port_and_a_fresh_daemon_learn_the_least_rate() {
        assert_eq!(LearnedRate::default().update(TICK, Some(0), true), Some(LEAST_PER_SECOND));
        let mut learned = LearnedRate::default();
        let (now, total) = steady(&mut learned, Duration::ZERO, 0, 300, 0);
        assert_eq!(learned.update(now, Some(total), true), Some(LEAST_PER_SECOND));
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
        let (now, total) = steady(&mut learned, now, 0, 50, 10);
        let rate = learned.update(now, Some(total), true).unwrap();
        assert!((90.0..=110.0).contains(&rate), "{rate}");
    }
}
