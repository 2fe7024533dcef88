//! `file`: a number that an application or a script writes: its queue age, loop lag, pool use.
//!
//! The writer replaces the file atomically (writes another and renames it). What is empty, garbage, too old or gone is
//! unavailable.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Sensor;
use super::context::Context;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{ReadError, Source, under};
use super::turns::{Due, LONGEST, Turns};
use crate::config::model::{Signal, SignalSource};

/// No number needs more.
const BYTES_MAX: u64 = 256;

/// A file that was changed at most so long ago is read again even where its times are what they were: the clock by
/// which the kernel marks changes stands still for up to 10 ms (HZ=100).
const TIMES_SETTLE: Duration = Duration::from_millis(50);

/// So many files are looked at in each tick; where there are more, they take turns.
const LOOKS_PER_TICK: usize = 100;

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
                due: Due::default(),
                known: None,
            }),
            _ => None,
        })
        .collect();
    (!numbers.is_empty()).then(|| {
        Box::new(Files { numbers, turns: Turns::default(), source: Source::default() }) as Box<dyn Sensor>
    })
}

#[derive(Debug)]
struct Files {
    numbers: Vec<Number>,
    turns: Turns,
    source: Source,
}

#[derive(Debug)]
struct Number {
    name: Arc<str>,
    path: PathBuf,
    scope: Scope,
    stale_after: Duration,
    due: Due,
    /// What was read last, and of which file.
    known: Option<(Version, Result<f64, Unavailable>)>,
}

/// What tells a file from another, and from itself as it was.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: SystemTime,
    changed: (i64, i64),
}

impl Version {
    /// `None` where it may change once more without another version.
    fn of(metadata: &Metadata, modified: SystemTime, wall: SystemTime) -> Option<Self> {
        let settled = wall.duration_since(modified).is_ok_and(|age| age >= TIMES_SETTLE);
        settled.then(|| Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified,
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl Sensor for Files {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        self.turns.next();
        let turns = self.numbers.len().div_ceil(LOOKS_PER_TICK);
        for (place, number) in self.numbers.iter_mut().enumerate() {
            let longest = LONGEST.min(number.stale_after / 3);
            if !self.turns.is_due(place, turns, context.now, longest, &mut number.due) {
                continue;
            }
            let (value, age) = match number.value(&mut self.source, context.wall) {
                Ok((value, age)) => (Ok(value), age),
                Err(error) => (Err(error), Duration::ZERO),
            };
            out.push(Reading { age, ..Reading::of_now(&number.name, &number.scope, value) });
        }
    }
}

impl Number {
    /// The value and how long ago it was written.
    fn value(&mut self, source: &mut Source, wall: SystemTime) -> Result<(f64, Duration), Unavailable> {
        let failed = |error| ReadError::Io(error).at(&self.path);
        let metadata = fs::metadata(&self.path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(ReadError::NotRegular.at(&self.path));
        }
        let seen = metadata.modified().map_err(failed)?;
        let version = Version::of(&metadata, seen, wall);
        if let Some((known, value)) = &self.known
            && version.as_ref() == Some(known)
        {
            return self.unless_stale(seen, wall).and_then(|age| Ok((value.clone()?, age)));
        }
        let (text, modified) =
            source.read_at_most(&self.path, BYTES_MAX).map_err(|error| error.at(&self.path))?;
        let value = self.number(text);
        // Another file may have come between the look and the reading.
        self.known = version.filter(|_| modified == seen).map(|version| (version, value.clone()));
        self.unless_stale(modified, wall).and_then(|age| Ok((value?, age)))
    }

    /// The age of a file that was written at that time; 0 for one from the future.
    fn unless_stale(&self, modified: SystemTime, wall: SystemTime) -> Result<Duration, Unavailable> {
        let (distance, age, side) = match wall.duration_since(modified) {
            Ok(age) => (age, age, "older than"),
            // A file from the future would never grow old.
            Err(ahead) => (ahead.duration(), Duration::ZERO, "in the future by more than"),
        };
        if distance < self.stale_after {
            return Ok(age);
        }
        let limit = self.stale_after.as_secs_f64();
        Err(Unavailable::new(format!("{} is {side} {limit} s", self.path.display())))
    }

    fn number(&self, text: &str) -> Result<f64, Unavailable> {
        let path = self.path.display();
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
    fn a_number_is_as_old_as_its_file() {
        let mut bench = bench();
        bench.write(PATH, "1");
        let modified = fs::metadata(bench.path(PATH)).unwrap().modified().unwrap();
        for (at, age_ms) in [(0, 300), (100, 1_500), (200, 1_900)] {
            bench.wall = modified + Duration::from_millis(age_ms);
            assert_eq!(bench.tick(at)[0].age, Duration::from_millis(age_ms), "read or known");
        }
        bench.wall = modified - Duration::from_secs(1);
        assert_eq!(bench.tick(300)[0].age, Duration::ZERO);
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

    #[test]
    fn a_file_that_is_written_again_is_read_again_whatever_its_size() {
        let mut bench = bench();
        bench.write(PATH, "1");
        let set = |bench: &Bench, age: Duration| {
            let file = fs::File::options().write(true).open(bench.path(PATH)).unwrap();
            file.set_modified(bench.wall - age).unwrap();
        };
        set(&bench, Duration::from_secs(1));
        bench.tick(0);
        bench.tick(100);
        assert_eq!(bench.value("age", "port:8080"), Ok(1.0));
        // Over itself, with the same size and, since the change, the same time.
        bench.write(PATH, "2");
        set(&bench, Duration::from_secs(1));
        bench.tick(200);
        assert_eq!(bench.value("age", "port:8080"), Ok(2.0), "by its time of change");
        bench.wall += Duration::from_secs(1);
        bench.tick(300);
        assert!(bench.value("age", "port:8080").unwrap_err().contains("older than"), "known or not");
    }

    #[test]
    fn many_files_take_turns() {
        let file = |number: u16| {
            let path = PathBuf::from(format!("/run/{number}"));
            signal(&number.to_string(), SignalSource::File { path, scope: FileScope::Port(number) })
        };
        let mut bench = Bench::new((1..=300).map(file));
        for number in 1..=300 {
            bench.write(&format!("run/{number}"), "1");
        }
        let seen: Vec<usize> = (0..7).map(|tick| bench.tick(tick * 100).len()).collect();
        assert_eq!(seen, [300, 100, 100, 100, 100, 100, 100]);
    }
}
