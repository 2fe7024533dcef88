//! `file`: a number that an application or a script writes: its queue age, loop lag, pool use.
//!
//! The writer replaces the file atomically (writes another and renames it). What is empty, garbage, too old or gone is
//! unavailable.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Sensor;
use super::context::Context;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{Source, under};
use crate::config::model::{Signal, SignalSource};

/// No number needs more.
const BYTES_MAX: u64 = 256;

/// For the signals that are read from files of their own.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let numbers: Vec<Number> = signals
        .iter()
        .filter_map(|signal| match &signal.source {
            SignalSource::File { path, scope } => Some(Number {
                name: Arc::from(signal.name.as_str()),
                path: under(root, path),
                scope: scope.into(),
                stale_after: signal.stale_after,
            }),
            _ => None,
        })
        .collect();
    (!numbers.is_empty()).then(|| Box::new(Files { numbers, source: Source::default() }) as Box<dyn Sensor>)
}

#[derive(Debug)]
struct Files {
    numbers: Vec<Number>,
    source: Source,
}

#[derive(Debug)]
struct Number {
    name: Arc<str>,
    path: PathBuf,
    scope: Scope,
    stale_after: Duration,
}

impl Sensor for Files {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        for number in &self.numbers {
            let value = number.value(&mut self.source, context.wall);
            out.push(Reading { signal: Arc::clone(&number.name), scope: number.scope.clone(), value });
        }
    }
}

impl Number {
    fn value(&self, source: &mut Source, wall: SystemTime) -> Result<f64, Unavailable> {
        let path = self.path.display();
        let (text, modified) =
            source.read_at_most(&self.path, BYTES_MAX).map_err(|error| error.at(&self.path))?;
        let (distance, side) = match wall.duration_since(modified) {
            Ok(age) => (age, "older than"),
            // A file from the future would never grow old.
            Err(ahead) => (ahead.duration(), "in the future by more than"),
        };
        if distance >= self.stale_after {
            let limit = self.stale_after.as_secs_f64();
            return Err(Unavailable::new(format!("{path} is {side} {limit} s")));
        }
        let text = text.trim();
        if text.is_empty() {
            return Err(Unavailable::new(format!("{path} is empty")));
        }
        let number: Option<f64> = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| Unavailable::new(format!("{path} does not hold one finite number")))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::model::FileScope;
    use crate::sensors::testing::{Bench, signal};

    const PATH: &str = "run/checkout/age";

    fn bench() -> Bench {
        let path = PathBuf::from("/run/checkout/age");
        Bench::new([signal("age", SignalSource::File { path, scope: FileScope::Port(8080) })])
    }

    fn of(text: &str) -> Result<f64, String> {
        let mut bench = bench();
        bench.write(PATH, text);
        bench.tick(0);
        bench.value("age", "port:8080")
    }

    #[test]
    fn one_number_with_white_space_around_it() {
        for (text, value) in [("0.05", 0.05), (" 12\n", 12.0), ("-3.5\r\n", -3.5), ("1e-3", 0.001)] {
            assert_eq!(of(text), Ok(value), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_finite_number_is_refused() {
        for text in ["", "\n", "NaN", "inf", "-inf", "infinity", "1e999", "1 2", "0x10", "5%", "fast"] {
            let reason = of(text).unwrap_err();
            assert!(reason.contains("run/checkout/age"), "{text:?}: {reason}");
        }
        assert!(of(&" ".repeat(257)).unwrap_err().contains("longer than 256 bytes"));
    }

    #[test]
    fn a_vanished_file_is_unavailable_and_its_replacement_is_read() {
        let mut bench = bench();
        bench.write(PATH, "1");
        bench.tick(0);
        assert_eq!(bench.value("age", "port:8080"), Ok(1.0));
        fs::remove_file(bench.path(PATH)).unwrap();
        bench.tick(100);
        assert!(bench.value("age", "port:8080").is_err());
        bench.write("run/checkout/new", "2");
        fs::rename(bench.path("run/checkout/new"), bench.path(PATH)).unwrap();
        bench.tick(200);
        assert_eq!(bench.value("age", "port:8080"), Ok(2.0));
    }

    #[test]
    fn a_file_too_old_or_from_the_future_is_unavailable() {
        let mut bench = bench();
        bench.write(PATH, "1");
        let modified = fs::metadata(bench.path(PATH)).unwrap().modified().unwrap();
        for (wall, available) in [
            (modified, true),
            (modified + Duration::from_millis(1_999), true),
            (modified + Duration::from_secs(2), false),
            (modified - Duration::from_millis(1_999), true),
            (modified - Duration::from_secs(2), false),
        ] {
            bench.wall = wall;
            bench.tick(0);
            assert_eq!(bench.value("age", "port:8080").is_ok(), available, "{wall:?}");
        }
    }

    #[test]
    fn what_is_no_file_neither_blocks_nor_counts() {
        let mut bench = bench();
        fs::create_dir_all(bench.path(PATH)).unwrap();
        bench.tick(0);
        assert!(bench.value("age", "port:8080").unwrap_err().contains("not a regular file"));
        fs::remove_dir(bench.path(PATH)).unwrap();
        let fifo = bench.path(PATH);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        bench.tick(100);
        assert!(bench.value("age", "port:8080").unwrap_err().contains("not a regular file"));
    }

    #[test]
    fn every_scope_is_spoken_for() {
        let path = PathBuf::from("/run/n");
        let file = |scope| SignalSource::File { path: path.clone(), scope };
        let mut bench = Bench::new([
            signal("a", file(FileScope::Host)),
            signal("b", file(FileScope::Cgroup(PathBuf::from("system.slice/x.service")))),
        ]);
        bench.write("run/n", "7");
        bench.tick(0);
        assert_eq!(bench.value("a", "host"), Ok(7.0));
        assert_eq!(bench.value("b", "cgroup:/system.slice/x.service"), Ok(7.0));
    }
}
