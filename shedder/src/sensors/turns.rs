//! Taking turns where there is more to read than one tick should.

use std::time::Duration;

/// How long anything waits for its turn at most, unless it is stale sooner.
pub(crate) const LONGEST: Duration = Duration::from_millis(500);

/// Counts ticks and says whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    tick: usize,
}

/// When one of many is due whatever the ticks are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Due(Option<Duration>);

impl Turns {
    pub(crate) fn next(&mut self) {
        self.tick = self.tick.wrapping_add(1);
    }

    /// Whether it is the turn of the one at `place`, where each has one turn in `turns` ticks but waits for no longer
    /// than `longest`.
    pub(crate) fn is_due(
        &self,
        place: usize,
        turns: usize,
        now: Duration,
        longest: Duration,
        due: &mut Due,
    ) -> bool {
        let turns = turns.max(1);
        let is_due = place % turns == self.tick % turns || due.0.is_none_or(|at| now >= at);
        if is_due {
            due.0 = Some(now.saturating_add(longest));
        }
        is_due
    }
}
