//! A load that changes its rate at known times.

use std::time::Duration;

/// A stretch of a load with one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Attempts per second; 0 makes a pause.
    pub per_second: u32,
    /// For how long.
    pub duration: Duration,
}

/// Steps one after the other. Every attempt has its number and its time, whatever became of the earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    planned: Vec<Planned>,
    duration: Duration,
    total: u64,
}

/// A step with its start and the number of its first attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Planned {
    step: Step,
    start: Duration,
    first: u64,
    count: u64,
}

impl Schedule {
    /// Lays the steps end to end.
    #[must_use]
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let mut schedule = Self::default();
        for step in steps {
            let count = step.duration.as_nanos() * u128::from(step.per_second) / 1_000_000_000;
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            schedule.planned.push(Planned { step, start: schedule.duration, first: schedule.total, count });
            schedule.duration += step.duration;
            schedule.total += count;
        }
        schedule
    }

    /// From the first attempt to the end of the last step.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// How many attempts there are.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// When an attempt shall start; `None` after the last.
    #[must_use]
    pub fn intended(&self, attempt: u64) -> Option<Duration> {
        let planned = self.planned.iter().rfind(|planned| planned.count > 0 && planned.first <= attempt)?;
        let index = attempt - planned.first;
        (index < planned.count).then(|| {
            let ns = u128::from(index) * 1_000_000_000 / u128::from(planned.step.per_second.max(1));
            planned.start + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
        })
    }

    /// How many attempts are to be made until `now`, those at `now` included.
    #[must_use]
    pub fn due(&self, now: Duration) -> u64 {
        let Some(planned) = self.planned.iter().rfind(|planned| planned.start <= now) else { return 0 };
        let elapsed = (now - planned.start).as_nanos();
        // The times are rounded down, so one more nanosecond is what makes this the inverse of `intended`.
        let index = (elapsed + 1) * u128::from(planned.step.per_second);
        let due = u64::try_from(index.div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
        planned.first + due.min(planned.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn step(per_second: u32, ms: u64) -> Step {
        Step { per_second, duration: Duration::from_millis(ms) }
    }

    #[test]
    fn steps_follow_each_other() {
        let schedule = Schedule::new([step(10, 1000), step(0, 500), step(100, 100)]);
        assert_eq!(schedule.duration(), Duration::from_millis(1600));
        assert_eq!(schedule.total(), 20);
        assert_eq!(schedule.intended(0), Some(Duration::ZERO));
        assert_eq!(schedule.intended(9), Some(Duration::from_millis(900)));
        assert_eq!(schedule.intended(10), Some(Duration::from_millis(1500)));
        assert_eq!(schedule.intended(19), Some(Duration::from_millis(1590)));
        assert_eq!(schedule.intended(20), None);
        assert_eq!(schedule.due(Duration::ZERO), 1);
        assert_eq!(schedule.due(Duration::from_millis(1400)), 10);
        assert_eq!(schedule.due(Duration::from_secs(9)), 20);
    }

    #[test]
    fn no_step_is_no_attempt() {
        let schedule = Schedule::new([]);
        assert_eq!((schedule.total(), schedule.due(Duration::from_secs(1))), (0, 0));
        assert_eq!(schedule.intended(0), None);
    }

    proptest! {
        #[test]
        fn what_is_due_is_what_is_intended(
            steps in prop::collection::vec((0_u32..200_000, 1_u64..3000), 1..6),
            pick in any::<prop::sample::Index>(),
        ) {
            let schedule = Schedule::new(steps.into_iter().map(|(rate, ms)| step(rate, ms)));
            prop_assume!(schedule.total() > 0);
            let attempt = u64::try_from(pick.index(usize::try_from(schedule.total()).unwrap())).unwrap();
            let intended = schedule.intended(attempt).unwrap();
            prop_assert!(schedule.due(intended) > attempt);
            if let Some(before) = intended.checked_sub(Duration::from_nanos(1)) {
                prop_assert!(schedule.due(before) <= attempt);
            }
            prop_assert!(intended < schedule.duration());
        }
    }
}
