//! What became of one attempt.

use std::time::Duration;

/// One attempt of a load, all times from the load's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place among the load's sources, 0 where there are none.
    pub source: usize,
    /// When it should have started.
    pub intended: Duration,
    /// When it did.
    pub started: Duration,
    /// When it was over.
    pub ended: Duration,
    /// How it ended.
    pub fate: Fate,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// With a complete answer in time.
    Useful,
    /// With a RST.
    Refused,
    /// Without a complete answer when patience ended.
    GaveUp,
    /// Otherwise.
    Failed,
}

impl Record {
    /// What its user waited.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.ended.saturating_sub(self.intended)
    }
}
