//! What one signal demands at one scope: a Schmitt trigger for each level, and the loss of the signal.

use std::time::Duration;

use shedder_common::level::{LEVELS, Level};

use crate::config::model::{OnLoss, Signal};
use crate::sensors::reading::{Reading, Unavailable};

/// One signal at one scope.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    last: Option<Known>,
    /// When it was first spoken of, and when last, with a value or without.
    first_seen: Duration,
    last_seen: Duration,
    /// The tick of the newest reading.
    tick: u64,
    /// Why the newest reading has no value.
    missing: Option<Unavailable>,
    /// Since when the value stands at or above `enter`, by level.
    above: [Option<Duration>; LEVELS],
    /// Since when it is lost.
    lost: Option<Duration>,
    up: bool,
    /// It was available before.
    was_up: bool,
    level: Level,
    since: Duration,
    read_errors: u64,
}

/// The last good value.
#[derive(Clone, Copy, Debug)]
struct Known {
    value: f64,
    read_at: Duration,
    /// [`Reading::age`] then.
    age: Duration,
}

impl Known {
    /// For how long the value has been so, at most.
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.read_at).saturating_add(self.age)
    }

    /// When it is stale, if nothing else is read.
    fn stale_at(&self, signal: &Signal) -> Duration {
        self.read_at.saturating_add(signal.stale_after.saturating_sub(self.age))
    }
}

impl Demand {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            last: None,
            first_seen: now,
            last_seen: now,
            tick: 0,
            missing: None,
            above: [None; LEVELS],
            lost: Some(now),
            // Taken for granted until it fails.
            up: true,
            was_up: false,
            level: Level::Normal,
            since: now,
            read_errors: 0,
        }
    }

    /// The level that it demands.
    pub(super) fn level(&self) -> Level {
        self.level
    }

    /// Since when it demands that.
    pub(super) fn since(&self) -> Duration {
        self.since
    }

    /// The last good value, whatever its age.
    pub(super) fn last_value(&self) -> Option<f64> {
        self.last.map(|known| known.value)
    }

    /// The value, where it is available.
    pub(super) fn value(&self) -> Option<f64> {
        if self.lost.is_some() { None } else { self.last_value() }
    }

    /// Why there is no value; empty where there is one.
    pub(super) fn unavailable(&self) -> String {
        match &self.missing {
            _ if self.value().is_some() => String::new(),
            Some(missing) => missing.reason.clone().into_owned(),
            None => "it is no longer read".to_owned(),
        }
    }

    pub(super) fn read_errors(&self) -> u64 {
        self.read_errors
    }

    /// Takes a reading of a tick, which is never 0. A value that is not finite is none. Of several readings of one tick
    /// the highest value counts, and a value before none.
    pub(super) fn take(&mut self, now: Duration, tick: u64, signal: &Signal, reading: &Reading) {
        self.last_seen = now;
        let again = self.tick == tick;
        self.tick = tick;
        match &reading.value {
            Ok(value) if value.is_finite() => {
                let value = Known { value: *value, read_at: now, age: reading.age };
                self.take_value(again, signal, value);
            }
            Ok(_) => self.fail(again, &Unavailable::new("the value is not a finite number")),
            Err(error) => self.fail(again, error),
        }
    }

    fn take_value(&mut self, again: bool, signal: &Signal, new: Known) {
        let missing = self.missing.take();
        if again && missing.as_ref().is_some_and(Unavailable::is_failure) {
            self.read_errors = self.read_errors.saturating_sub(1);
        }
        if let Some(known) = self.last {
            let higher = known.value.total_cmp(&new.value).then(new.age.cmp(&known.age));
            if again && missing.is_none() && higher.is_ge() {
                return;
            }
            // It was lost meanwhile, whether or not anybody looked.
            if known.age(new.read_at).saturating_sub(new.age) >= signal.stale_after {
                self.above = [None; LEVELS];
            }
        }
        self.last = Some(new);
    }

    fn fail(&mut self, again: bool, error: &Unavailable) {
        let before = if again { self.missing.as_ref() } else { None };
        // Nothing was missing in this tick so far, or something graver was.
        if again && before.is_none_or(|before| before >= error) {
            return;
        }
        if error.is_failure() && !before.is_some_and(Unavailable::is_failure) {
            self.read_errors = self.read_errors.saturating_add(1);
        }
        if self.missing.as_ref() != Some(error) {
            self.missing = Some(error.clone());
        }
    }

    /// Judges the last value by these rules.
    pub(super) fn judge(&mut self, now: Duration, signal: &Signal, max_hold: Duration) {
        let fresh = self.last.filter(|known| known.age(now) < signal.stale_after);
        let level = match fresh {
            Some(Known { value, read_at, .. }) => {
                self.lost = None;
                self.risen(read_at, value, signal).max(self.sustained(value, signal))
            }
            None => {
                self.above = [None; LEVELS];
                let lost = *self.lost.get_or_insert(now);
                let held = signal.on_loss == OnLoss::Hold && now.saturating_sub(lost) < max_hold;
                // What a rule no longer names cannot be held.
                if held && signal.enabled && threshold(signal, self.level).is_some() {
                    self.level
                } else {
                    Level::Normal
                }
            }
        };
        if level != self.level {
            self.level = level;
            self.since = now;
        }
    }

    /// The highest level whose `enter` the value has stood at for `rise_after`, from reading to reading: no level rises
    /// on what has not been read.
    fn risen(&mut self, read_at: Duration, value: f64, signal: &Signal) -> Level {
        let mut risen = Level::Normal;
        for level in Level::ALL {
            let entered = threshold(signal, level).is_some_and(|(enter, _)| value >= enter);
            let Some(above) = self.above.get_mut(level.index()) else { continue };
            if !entered {
                *above = None;
            } else if read_at.saturating_sub(*above.get_or_insert(read_at)) >= signal.rise_after {
                risen = level;
            }
        }
        risen
    }

    /// A level above the one that is demanded, the highest, whose `enter` the value has reached, and since when.
    pub(super) fn rising(&self) -> Option<(Level, Duration)> {
        let above = Level::ALL.into_iter().zip(self.above).rev().find_map(|(level, at)| Some((level, at?)));
        above.filter(|(level, _)| *level > self.level)
    }

    /// The highest level, up to the one that is demanded, that the value has not fallen out of.
    fn sustained(&self, value: f64, signal: &Signal) -> Level {
        let sustained = Level::ALL
            .into_iter()
            .filter(|level| *level <= self.level)
            .rfind(|level| threshold(signal, *level).is_some_and(|(_, exit)| value > exit));
        sustained.unwrap_or(Level::Normal)
    }

    /// Whether the signal has become available or unavailable since this was last asked.
    pub(super) fn availability_change(&mut self, now: Duration, signal: &Signal) -> Option<bool> {
        // A signal that has yet to be read for the first time has some time for it.
        let starting = self.last.is_none() && now.saturating_sub(self.first_seen) < signal.stale_after;
        // A scope that is gone is no failure; nobody speaks of it any more.
        let gone = now.saturating_sub(self.last_seen) >= signal.stale_after;
        let up = self.lost.is_none() || ((starting || gone) && self.up);
        self.was_up |= self.lost.is_none() && self.up;
        (up != self.up).then(|| {
            self.up = up;
            up
        })
    }

    /// Whether it has never been available, up to the change that was told last.
    pub(super) fn is_first(&self) -> bool {
        !self.was_up
    }

    /// Whether it was said to be unavailable.
    pub(super) fn is_down(&self) -> bool {
        !self.up
    }

    /// Until when nothing changes here without another reading, where nothing is demanded.
    pub(super) fn stays_until(&self, now: Duration, signal: &Signal) -> Duration {
        // Stale, or no longer starting, or gone.
        let seen = [self.first_seen, self.last_seen].map(|at| at.saturating_add(signal.stale_after));
        let ends = seen.into_iter().chain(self.last.map(|known| known.stale_at(signal)));
        ends.filter(|end| *end > now).min().unwrap_or(now)
    }

    /// Whether nothing speaks of this signal any more and nothing hangs on it.
    pub(super) fn is_over(&self, now: Duration, signal: &Signal) -> bool {
        self.lost.is_some()
            && self.level == Level::Normal
            && now.saturating_sub(self.last_seen) >= signal.stale_after
    }
}

/// `enter` and `exit` of a level.
fn threshold(signal: &Signal, level: Level) -> Option<(f64, f64)> {
    let threshold = signal.thresholds.get(level.index()).copied().flatten()?;
    Some((threshold.enter, threshold.exit))
}
