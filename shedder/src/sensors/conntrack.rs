//! `conntrack`: connection-tracking entries over their limit; ratio, host.

use std::path::Path;
use std::sync::Arc;

use super::context::Context;
use super::kept::Kept;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{Source, under, whole_number};
use super::{Sensor, names_of, ratio, report};
use crate::config::model::{Signal, SignalSource};

/// For the signals that look at connection tracking.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let names = names_of(signals, &SignalSource::Conntrack);
    (!names.is_empty()).then(|| {
        Box::new(Conntrack {
            names,
            count: Kept::new(under(root, "proc/sys/net/netfilter/nf_conntrack_count")),
            max: Kept::new(under(root, "proc/sys/net/netfilter/nf_conntrack_max")),
            source: Source::default(),
        }) as Box<dyn Sensor>
    })
}

#[derive(Debug)]
struct Conntrack {
    names: Vec<Arc<str>>,
    count: Kept,
    max: Kept,
    source: Source,
}

impl Conntrack {
    fn number(source: &mut Source, file: &mut Kept) -> Result<u64, Unavailable> {
        match file.read(source) {
            Ok(text) => whole_number(text, file.path()),
            Err(error) if error.is_not_found() => {
                Err(Unavailable::absent("connection tracking is not loaded (nf_conntrack)"))
            }
            Err(error) => Err(error.at(file.path())),
        }
    }

    fn value(&mut self) -> Result<f64, Unavailable> {
        let count = Self::number(&mut self.source, &mut self.count)?;
        match Self::number(&mut self.source, &mut self.max)? {
            0 => Err(Unavailable::absent("nf_conntrack_max sets no limit")),
            max => Ok(ratio(count, max)),
        }
    }
}

impl Sensor for Conntrack {
    fn read(&mut self, _context: &Context<'_>, out: &mut Vec<Reading>) {
        let value = self.value();
        report(&self.names, &Scope::Host, &value, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::testing::{Bench, signal};

    const COUNT: &str = "proc/sys/net/netfilter/nf_conntrack_count";
    const MAX: &str = "proc/sys/net/netfilter/nf_conntrack_max";

    fn value(count: Option<&str>, max: Option<&str>) -> Result<f64, String> {
        let mut bench = Bench::new([signal("conntrack", SignalSource::Conntrack)]);
        for (path, text) in [(COUNT, count), (MAX, max)] {
            if let Some(text) = text {
                bench.write(path, text);
            }
        }
        bench.tick(0);
        bench.value("conntrack", "host")
    }

    #[test]
    fn count_over_max() {
        assert_eq!(value(Some("196608\n"), Some("262144\n")), Ok(0.75));
        assert_eq!(value(Some("0\n"), Some("262144\n")), Ok(0.0));
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert!(value(None, None).unwrap_err().contains("not loaded"));
        assert!(value(Some("5\n"), Some("0\n")).unwrap_err().contains("no limit"));
        assert!(value(Some(""), Some("10\n")).unwrap_err().contains("nf_conntrack_count"));
        assert!(value(Some("5\n"), Some("-1\n")).unwrap_err().contains("nf_conntrack_max"));
    }
}
