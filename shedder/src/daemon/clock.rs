//! The daemon's clock: the only place that reads one.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_getres, clock_gettime};

/// The clock that the kernel's programs compare leases and rates with: `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// For how long the programs' clock stands still: the resolution of `CLOCK_MONOTONIC_COARSE`.
#[must_use]
pub fn coarse_resolution() -> Duration {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    Duration::new(
        u64::try_from(resolution.tv_sec).unwrap_or(0),
        u32::try_from(resolution.tv_nsec).unwrap_or(0),
    )
}

/// Wall time, to be compared with the times of files and nothing else.
#[must_use]
pub fn wall() -> SystemTime {
    let now = clock_gettime(ClockId::Realtime);
    let since_epoch =
        Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0));
    SystemTime::UNIX_EPOCH + since_epoch
}

/// Nanoseconds, as the kernel counts them.
#[must_use]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
