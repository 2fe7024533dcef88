//! Shares that fall at once and climb slowly.

use std::time::Duration;

use shedder_common::class::CLASSES;

/// The shares of one port on their way to where the level wants them.
#[derive(Clone, Debug)]
pub struct Ramp {
    from: [f64; CLASSES],
    target: [f64; CLASSES],
    since: Duration,
}

impl Ramp {
    /// Starts at these shares.
    #[must_use]
    pub const fn new(shares: [f64; CLASSES]) -> Self {
        Self { from: shares, target: shares, since: Duration::ZERO }
    }

    /// The shares in force now. A share that should be lower is so at once; one that should be higher climbs there
    /// over `ramp`, so that clients that were held back do not come all at once.
    pub fn update(&mut self, now: Duration, target: [f64; CLASSES], ramp: Duration) -> [f64; CLASSES] {
        if target != self.target {
            self.from = self.at(now, ramp);
            self.target = target;
            self.since = now;
        }
        self.at(now, ramp)
    }

    /// Whether shares are still climbing.
    #[must_use]
    pub fn is_climbing(&self, now: Duration, ramp: Duration) -> bool {
        now.saturating_sub(self.since) < ramp
            && self.from.iter().zip(&self.target).any(|(from, target)| from < target)
    }

    /// Until the shares have climbed to their target; `None` where none climbs.
    #[must_use]
    pub fn remaining(&self, now: Duration, ramp: Duration) -> Option<Duration> {
        self.is_climbing(now, ramp).then(|| ramp.saturating_sub(now.saturating_sub(self.since)))
    }

    fn at(&self, now: Duration, ramp: Duration) -> [f64; CLASSES] {
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= ramp {
            return self.target;
        }
        let climbed = elapsed.as_secs_f64() / ramp.as_secs_f64();
        let mut shares = self.target;
        for (share, from) in shares.iter_mut().zip(&self.from) {
            if from < share {
                *share = (from + (*share - from) * climbed).min(*share);
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RAMP: Duration = Duration::from_secs(5);

    #[test]
    fn shares_fall_at_once_and_climb_over_the_ramp() {
        let at = Duration::from_secs_f64;
        let mut ramp = Ramp::new([1.0; CLASSES]);
        assert_eq!(ramp.update(at(1.0), [0.2; CLASSES], RAMP), [0.2; CLASSES]);
        assert_eq!(ramp.update(at(10.0), [1.0; CLASSES], RAMP), [0.2; CLASSES]);
        let half = ramp.update(at(12.5), [1.0; CLASSES], RAMP)[0];
        assert!((half - 0.6).abs() < 1e-9, "{half}");
        assert!(ramp.is_climbing(at(12.5), RAMP));
        assert_eq!(ramp.remaining(at(12.5), RAMP), Some(at(2.5)));
        // A fall on the way up is at once, the next climb starts from there.
        assert_eq!(ramp.update(at(13.0), [0.5; CLASSES], RAMP), [0.5; CLASSES]);
        assert_eq!(ramp.update(at(20.0), [0.5; CLASSES], RAMP), [0.5; CLASSES]);
        assert!(!ramp.is_climbing(at(20.0), RAMP));
    }

    proptest! {
        #[test]
        fn a_share_never_exceeds_its_target_and_gets_there(
            steps in proptest::collection::vec((0.0..1.0_f64, 0_u64..8000), 1..30),
        ) {
            let mut ramp = Ramp::new([1.0; CLASSES]);
            let mut now = Duration::ZERO;
            for (target, wait_ms) in steps {
                now += Duration::from_millis(wait_ms);
                for share in ramp.update(now, [target; CLASSES], RAMP) {
                    prop_assert!((0.0..=target).contains(&share));
                }
                prop_assert_eq!(ramp.update(now + RAMP, [target; CLASSES], RAMP), [target; CLASSES]);
            }
        }
    }
}
