//! What is offered when.

use std::time::Duration;

use xtask::testbed::{Schedule, Step};

/// How much longer the last step is: a level is held for ten seconds.
const LAST_STEPS: u32 = 4;

/// Of the capacity. The last step shows the recovery.
const FACTORS: [f64; 7] = [0.5, 1.0, 1.4, 2.5, 10.0, 100.0, 0.5];

/// Beyond this rate clients with sockets would be limited by this machine; the rest comes from a client without.
const WITH_SOCKETS_PER_SECOND_MAX: u32 = 4000;

/// One step of the staircase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Planned {
    /// Of the capacity.
    pub(super) factor: f64,
    pub(super) with_sockets_per_second: u32,
    pub(super) stateless_per_second: u32,
    pub(super) start: Duration,
    pub(super) duration: Duration,
}

impl Planned {
    pub(super) fn end(&self) -> Duration {
        self.start + self.duration
    }

    pub(super) fn contains(&self, time: Duration) -> bool {
        (self.start..self.end()).contains(&time)
    }
}

/// The staircase for a capacity, each step but the last as long as the others.
pub(super) fn plan(capacity_per_second: f64, step: Duration) -> Vec<Planned> {
    let mut start = Duration::ZERO;
    let last = FACTORS.len() - 1;
    let planned = FACTORS.into_iter().enumerate().map(|(index, factor)| {
        let duration = if index == last { step * LAST_STEPS } else { step };
        let total = whole(capacity_per_second * factor);
        let with_sockets_per_second = total.min(WITH_SOCKETS_PER_SECOND_MAX);
        let planned = Planned {
            factor,
            with_sockets_per_second,
            stateless_per_second: total - with_sockets_per_second,
            start,
            duration,
        };
        start += duration;
        planned
    });
    planned.collect()
}

/// A rate or count to the nearest whole one, within `u32`.
pub(super) fn whole(value: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    let whole = value.round().clamp(0.0, f64::from(u32::MAX)) as u32;
    whole
}

pub(super) fn schedule(plan: &[Planned], per_second: impl Fn(&Planned) -> u32) -> Schedule {
    Schedule::new(
        plan.iter().map(|planned| Step { per_second: per_second(planned), duration: planned.duration }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sockets_cannot_offer_the_other_client_does() {
        let plan = plan(1600.0, Duration::from_secs(2));
        let offered: Vec<_> =
            plan.iter().map(|step| (step.with_sockets_per_second, step.stateless_per_second)).collect();
        let expected = [(800, 0), (1600, 0), (2240, 0), (4000, 0), (4000, 12_000), (4000, 156_000), (800, 0)];
        assert_eq!(offered, expected);
        assert_eq!(plan.last().unwrap().end(), Duration::from_secs(20));
        assert!(plan[1].contains(Duration::from_secs(2)) && !plan[1].contains(Duration::from_secs(4)));
    }

    #[test]
    fn no_capacity_offers_nothing() {
        assert_eq!(plan(0.0, Duration::from_secs(1))[5].stateless_per_second, 0);
        assert_eq!(whole(f64::NAN), 0);
        assert_eq!(whole(1e12), u32::MAX);
    }
}
