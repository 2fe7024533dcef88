//! `listen_overflows`: finished handshakes refused because an accept queue was full; per second, host.
//!
//! `ListenOverflows` alone: `ListenDrops` also counts what was dropped for want of memory or by a filter.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::kept::Kept;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{Source, garbage, under};
use super::window::CounterWindow;
use super::{Sensor, names_of, report};
use crate::config::model::{Signal, SignalSource};

/// A single overflow must not look like many a second.
const WINDOW: Duration = Duration::from_secs(1);

/// For the signals that count overflows.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let names = names_of(signals, &SignalSource::ListenOverflows);
    (!names.is_empty()).then(|| {
        Box::new(ListenOverflows {
            names,
            netstat: Kept::new(under(root, "proc/net/netstat")),
            window: CounterWindow::new(WINDOW),
            source: Source::default(),
        }) as Box<dyn Sensor>
    })
}

#[derive(Debug)]
struct ListenOverflows {
    names: Vec<Arc<str>>,
    netstat: Kept,
    window: CounterWindow,
    source: Source,
}

impl ListenOverflows {
    fn value(&mut self, now: Duration) -> Result<f64, Unavailable> {
        let text = self.netstat.read(&mut self.source).map_err(|error| error.at(self.netstat.path()))?;
        let total = overflows(text)
            .ok_or_else(|| garbage(self.netstat.path(), "`ListenOverflows` under `TcpExt`"))?;
        let rate = self.window.push(now, total);
        rate.ok_or_else(|| Unavailable::new("the first window is not over yet"))
    }
}

/// A line of names, then a line of values.
fn overflows(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let position = lines.next()?.split_ascii_whitespace().position(|name| name == "ListenOverflows")?;
    lines.next()?.split_ascii_whitespace().nth(position)?.parse().ok()
}

impl Sensor for ListenOverflows {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        let value = self.value(context.now);
        report(&self.names, &Scope::Host, &value, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::testing::{Bench, signal};

    fn netstat(overflows: u64, drops: u64) -> String {
        format!(
            "TcpExt: SyncookiesSent SyncookiesRecv ListenOverflows ListenDrops TCPHPHits\n\
             TcpExt: 0 0 {overflows} {drops} 1234\n\
             IpExt: InNoRoutes ListenOverflows\nIpExt: 0 999\n"
        )
    }

    fn bench() -> Bench {
        Bench::new([signal("listen_overflows", SignalSource::ListenOverflows)])
    }

    #[test]
    fn overflows_per_second_and_no_other_drops() {
        let mut bench = bench();
        for tick in 0..=20 {
            bench.write("proc/net/netstat", &netstat(100 + tick, 100 + 50 * tick));
            bench.tick(tick * 100);
        }
        assert_eq!(bench.value("listen_overflows", "host"), Ok(10.0));
        for tick in 21..=40 {
            bench.write("proc/net/netstat", &netstat(120, 10_000 + 50 * tick));
            bench.tick(tick * 100);
        }
        assert_eq!(bench.value("listen_overflows", "host"), Ok(0.0));
    }

    #[test]
    fn a_reset_counter_is_no_burst() {
        let mut bench = bench();
        for (ms, total) in [(0, 5_000), (1_000, 5_000), (1_200, 3), (2_200, 3)] {
            bench.write("proc/net/netstat", &netstat(total, 0));
            bench.tick(ms);
            assert_ne!(bench.value("listen_overflows", "host").map(|rate| rate > 0.0), Ok(true), "at {ms}");
        }
        assert_eq!(bench.value("listen_overflows", "host"), Ok(0.0));
    }

    #[test]
    fn a_file_cut_short_is_no_zero() {
        let text = netstat(5, 6);
        for end in 0..text.find(" 5 ").unwrap() {
            assert_eq!(overflows(&text[..end]), None, "{end}");
        }
        assert_eq!(overflows(&text), Some(5));
    }

    #[test]
    fn the_running_kernel_is_understood() {
        let text = std::fs::read_to_string("/proc/net/netstat").unwrap();
        assert!(overflows(&text).is_some());
    }
}
