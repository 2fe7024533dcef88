//! What the machine and the daemon do while a load runs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use xtask::testbed::http_get;

use super::analysis::Observed;
use super::plan::Planned;
use crate::daemon::ENDPOINT;

const LOOK: Duration = Duration::from_millis(20);
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Which CPU does what.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpus {
    pub(super) load: Option<usize>,
    pub(super) server: Option<usize>,
}

/// Looks at the end of every step, from within the server's namespace.
pub(super) fn watch(
    plan: &[Planned],
    cpus: Cpus,
    has_daemon: bool,
    stop: &AtomicBool,
) -> io::Result<Vec<Observed>> {
    let start = now();
    let mut before = cpu_times()?;
    let mut observed = Vec::new();
    for planned in plan {
        while start.elapsed() < planned.end() && !stop.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
        let after = cpu_times()?;
        let busy = |cpu: Option<usize>| {
            let cpu = cpu?;
            before.get(&cpu).zip(after.get(&cpu)).and_then(|(before, after)| before.busy_until(after))
        };
        observed.push(Observed {
            load_cpu_busy_ratio: busy(cpus.load),
            server_cpu_busy_ratio: busy(cpus.server),
            level: has_daemon.then(level).flatten(),
        });
        before = after;
    }
    Ok(observed)
}

#[expect(clippy::disallowed_methods, reason = "a load runs in real time")]
fn now() -> Instant {
    Instant::now()
}

fn level() -> Option<String> {
    let (_, body) = http_get(SocketAddr::from(ENDPOINT), "/status", STATUS_TIMEOUT).ok()?;
    let status: serde_json::Value = serde_json::from_str(&body).ok()?;
    let word = |value: &serde_json::Value, key| Some(value.get(key)?.as_str()?.to_owned());
    let level = word(status.get("ports")?.get(0)?, "level")?;
    let signals = status.get("levels")?.as_array()?.iter().filter_map(|scope| word(scope, "signal"));
    let mut signals: Vec<_> = signals.filter(|signal| !signal.is_empty()).collect();
    signals.dedup();
    Some(if signals.is_empty() { level } else { format!("{level} ({})", signals.join(", ")) })
}

/// Since boot, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTimes {
    idle: u64,
    total: u64,
}

impl CpuTimes {
    fn busy_until(&self, later: &Self) -> Option<f64> {
        let total = later.total.checked_sub(self.total).filter(|total| *total > 0)?;
        let idle = later.idle.saturating_sub(self.idle).min(total);
        Some(1.0 - idle as f64 / total as f64)
    }
}

fn cpu_times() -> io::Result<BTreeMap<usize, CpuTimes>> {
    Ok(parse(&fs::read_to_string("/proc/stat")?))
}

fn parse(stat: &str) -> BTreeMap<usize, CpuTimes> {
    let line = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        // The line of all CPUs together has no number.
        let cpu = fields.next()?.parse().ok()?;
        // user nice system idle iowait irq softirq steal; guest is within user.
        let times: Vec<u64> = fields.take(8).map_while(|field| field.parse().ok()).collect();
        let idle = times.get(3)? + times.get(4)?;
        Some((cpu, CpuTimes { idle, total: times.iter().sum() }))
    };
    stat.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_busy() {
        let before = parse(
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 10 70 5 0 5 0 0 0\ncpu1 0 0 0 1 0 0 0 0 0 0\nintr 5\n",
        );
        let after = parse("cpu0 40 0 10 90 5 0 5 0 0 0\n");
        assert_eq!(before.len(), 2);
        assert_eq!(before[&0], CpuTimes { idle: 75, total: 100 });
        assert_eq!(before[&0].busy_until(&after[&0]), Some(0.6));
        assert_eq!(after[&0].busy_until(&before[&0]), None);
    }
}
