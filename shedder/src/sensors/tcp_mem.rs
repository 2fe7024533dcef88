//! `tcp_mem`: pages that TCP holds over the limit from which on the kernel economises; ratio, host. May exceed 1.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::kept::Kept;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{Source, garbage, under};
use super::{Sensor, names_of, ratio, report};
use crate::config::model::{Signal, SignalSource};

/// How often the limit, which is an operator's, is read again.
const LIMIT_REFRESH: Duration = Duration::from_secs(1);

/// For the signals that look at TCP memory.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let names = names_of(signals, &SignalSource::TcpMem);
    (!names.is_empty()).then(|| {
        Box::new(TcpMem {
            names,
            sockstat: Kept::new(under(root, "proc/net/sockstat")),
            limits: Kept::new(under(root, "proc/sys/net/ipv4/tcp_mem")),
            limit: None,
            source: Source::default(),
        }) as Box<dyn Sensor>
    })
}

#[derive(Debug)]
struct TcpMem {
    names: Vec<Arc<str>>,
    sockstat: Kept,
    limits: Kept,
    limit: Option<(Duration, Result<u64, Unavailable>)>,
    source: Source,
}

impl TcpMem {
    fn pages(&mut self) -> Result<u64, Unavailable> {
        let file = &mut self.sockstat;
        let text = file.read(&mut self.source).map_err(|error| error.at(file.path()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
        let mut words = line.unwrap_or_default().split_ascii_whitespace();
        let pages = words.find(|word| *word == "mem").and_then(|_| words.next()?.parse().ok());
        pages.ok_or_else(|| garbage(file.path(), "`mem` on the `TCP:` line"))
    }

    fn pressure_limit(&mut self, now: Duration) -> Result<u64, Unavailable> {
        match &self.limit {
            Some((at, limit)) if now.saturating_sub(*at) < LIMIT_REFRESH => limit.clone(),
            _ => {
                let limit = self.read_pressure_limit();
                self.limit = Some((now, limit.clone()));
                limit
            }
        }
    }

    fn read_pressure_limit(&mut self) -> Result<u64, Unavailable> {
        let file = &mut self.limits;
        let text = file.read(&mut self.source).map_err(|error| error.at(file.path()))?;
        let limit = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
        limit.filter(|limit| *limit > 0).ok_or_else(|| garbage(file.path(), "a pressure limit above 0"))
    }
}

impl Sensor for TcpMem {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        let value = self.pages().and_then(|pages| Ok(ratio(pages, self.pressure_limit(context.now)?)));
        report(&self.names, &Scope::Host, &value, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::testing::{Bench, signal};

    const SOCKSTAT: &str = "\
sockets: used 1874
TCP: inuse 641 orphan 12 tw 4931 alloc 702 mem 95966
UDP: inuse 6 mem 3
UDPLITE: inuse 0
RAW: inuse 0
FRAG: inuse 0 memory 0
";

    fn value(sockstat: &str, limits: &str) -> Result<f64, String> {
        let mut bench = Bench::new([signal("tcp_mem", SignalSource::TcpMem)]);
        bench.write("proc/net/sockstat", sockstat);
        bench.write("proc/sys/net/ipv4/tcp_mem", limits);
        bench.tick(0);
        bench.value("tcp_mem", "host")
    }

    #[test]
    fn pages_over_the_pressure_limit() {
        assert_eq!(value(SOCKSTAT, "287898\t383864\t575796\n"), Ok(0.25));
        assert_eq!(value(SOCKSTAT, "1\t47983\t575796\n"), Ok(2.0));
    }

    #[test]
    fn what_is_cut_short_is_no_zero() {
        assert!(value("sockets: used 1874\nTCP: inuse 641 orphan 12 tw", "1 2 3").is_err());
        assert!(value("", "1 2 3").is_err());
        assert!(value(SOCKSTAT, "287898").is_err());
        assert!(value(SOCKSTAT, "0 0 0").is_err());
        assert!(value("UDP: inuse 6 mem 3\nTCP: inuse 1 mem x\n", "1 2 3").is_err());
    }
}
