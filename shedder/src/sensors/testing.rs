//! A directory that stands for `/`, and sensors that read below it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use shedder_common::level::LEVELS;
use tempfile::TempDir;

use super::Sensors;
use super::context::ListenerFact;
use super::reading::Reading;
use super::workloads::layout::{Layout, Mount};
use crate::config::model::{OnLoss, Signal, SignalSource};

/// A signal that is only read.
pub(crate) fn signal(name: &str, source: SignalSource) -> Signal {
    Signal {
        name: name.to_owned(),
        source,
        enabled: true,
        thresholds: [None; LEVELS],
        rise_after: Duration::ZERO,
        stale_after: Duration::from_secs(2),
        on_loss: OnLoss::Ignore,
    }
}

/// Sensors under test.
pub(crate) struct Bench {
    root: TempDir,
    signals: Vec<Signal>,
    sensors: Option<Sensors>,
    pub(crate) listeners: Vec<ListenerFact>,
    pub(crate) wall: SystemTime,
    last: BTreeMap<(String, String), Result<f64, String>>,
}

impl Bench {
    pub(crate) fn new(signals: impl IntoIterator<Item = Signal>) -> Self {
        let root = tempfile::tempdir().unwrap();
        // What the test writes is neither old nor from the future.
        let wall = fs::metadata(root.path()).unwrap().modified().unwrap();
        let signals = signals.into_iter().collect();
        Self { root, signals, sensors: None, listeners: Vec::new(), wall, last: BTreeMap::new() }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Reads everything at this monotonic time.
    pub(crate) fn tick(&mut self, ms: u64) -> Vec<Reading> {
        let sensors = self.sensors.get_or_insert_with(|| Sensors::new(self.root.path(), &self.signals));
        let readings = sensors.read(Duration::from_millis(ms), self.wall, Some(self.listeners.clone()));
        self.last = readings
            .iter()
            .map(|reading| {
                let key = (reading.signal.to_string(), reading.scope.to_string());
                (key, reading.value.clone().map_err(|error| error.reason.into_owned()))
            })
            .collect();
        readings
    }

    /// What the last tick read.
    #[track_caller]
    pub(crate) fn value(&self, signal: &str, scope: &str) -> Result<f64, String> {
        match self.last.get(&(signal.to_owned(), scope.to_owned())) {
            Some(value) => value.clone(),
            None => panic!("no reading of {signal} at {scope}: {:?}", self.last),
        }
    }

    /// The scopes that the last tick read this signal at.
    pub(crate) fn scopes(&self, signal: &str) -> Vec<&str> {
        self.last.keys().filter(|(name, _)| name == signal).map(|(_, scope)| scope.as_str()).collect()
    }

    pub(crate) fn sensors(&self) -> &Sensors {
        self.sensors.as_ref().unwrap()
    }
}

/// A cgroup of the running kernel, removed at the end.
pub(crate) struct RealCgroup(PathBuf);

impl RealCgroup {
    /// In cgroup v2.
    pub(crate) fn unified(name: &str) -> Self {
        Self::below(Layout::detect(Path::new("/")).unified, name)
    }

    /// In the memory controller of cgroup v1.
    pub(crate) fn memory_v1(name: &str) -> Self {
        Self::below(Layout::detect(Path::new("/")).memory_v1, name)
    }

    fn below(mount: Option<Mount>, name: &str) -> Self {
        let mount =
            mount.expect("these tests need cgroup v2, and the memory controller of cgroup v1 beside it");
        let path = mount.point.join(format!("shedder-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("these tests make cgroups: run them as root");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RealCgroup {
    fn drop(&mut self) {
        let removed = fs::remove_dir(&self.0);
        assert!(
            removed.is_ok() || std::thread::panicking(),
            "{} is left behind: {removed:?}",
            self.0.display()
        );
    }
}
