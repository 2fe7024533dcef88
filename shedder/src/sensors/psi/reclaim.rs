//! Whether it is the host that is short of memory.
//!
//! The kernel counts the stalls of a control group at its own limit among those of the host. What it reclaims for the
//! host's sake it counts apart: `pgscan_kswapd` and `pgscan_direct` of `/proc/vmstat` do not grow while it reclaims
//! for a control group (`cgroup_reclaim()` in `mm/vmscan.c`).

use std::path::Path;
use std::time::Duration;

use super::{Pressure, PsiWindow};
use crate::sensors::kept::Kept;
use crate::sensors::reading::Reading;
use crate::sensors::source::{Source, keyed, under};

/// Fragmented memory stalls without a scan.
const COUNTERS: [&str; 3] = ["pgscan_kswapd", "pgscan_direct", "compact_stall"];

/// What the host reclaims.
#[derive(Debug)]
pub(super) struct Reclaim {
    vmstat: Kept,
    source: Source,
    /// When it was last looked at, and how much had been reclaimed by then.
    seen: Option<(Duration, u64)>,
    /// When it last was more than before, and for how long nobody had looked then.
    grown: Option<(Duration, Duration)>,
}

impl Reclaim {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            vmstat: Kept::new(under(root, "proc/vmstat")),
            source: Source::default(),
            seen: None,
            grown: None,
        }
    }

    /// Takes out of the host's readings, which stand in the order of the signals, what is not the host's own.
    pub(super) fn take_out(&mut self, now: Duration, signals: &[Pressure], readings: &mut [Reading]) {
        let stalled = |reading: &Reading| reading.value.as_ref().is_ok_and(|value| *value > 0.0);
        // Where nothing stalls it is enough to know from when on it does.
        if !readings.iter().any(stalled) && !self.is_due(now, signals) {
            return;
        }
        let counted = self.counted();
        if let Some(counted) = counted
            && let Some((at, before)) = self.seen.replace((now, counted))
            && counted > before
        {
            self.grown = Some((now, now.saturating_sub(at)));
        }
        for (signal, reading) in signals.iter().zip(readings) {
            if counted.is_some() && stalled(reading) && !self.is_the_hosts(now, length(signal.window)) {
                reading.value = Ok(0.0);
            }
        }
    }

    /// Twice in the shortest window.
    fn is_due(&self, now: Duration, signals: &[Pressure]) -> bool {
        let shortest = signals.iter().map(|signal| length(signal.window)).min().unwrap_or_default();
        self.seen.is_none_or(|(at, _)| now.saturating_sub(at) >= shortest / 2)
    }

    /// `None` where the kernel does not tell.
    pub(super) fn counted(&mut self) -> Option<u64> {
        let text = self.vmstat.read(&mut self.source).ok()?;
        COUNTERS.iter().filter_map(|name| keyed(text, name)).reduce(u64::saturating_add)
    }

    /// What had grown since the last look, however long ago that was, may have grown just now.
    fn is_the_hosts(&self, now: Duration, window: Duration) -> bool {
        self.grown.is_some_and(|(at, unseen)| now.saturating_sub(at) <= window.max(unseen))
    }
}

const fn length(window: PsiWindow) -> Duration {
    match window {
        PsiWindow::Over(length) => length,
        PsiWindow::Avg10 => Duration::from_secs(10),
        PsiWindow::Avg60 => Duration::from_secs(60),
        PsiWindow::Avg300 => Duration::from_secs(300),
    }
}
