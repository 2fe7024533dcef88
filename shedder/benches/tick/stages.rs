//! The parts of a tick, one after the other at the daemon's pace, in this process: by processor time of the thread.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use shedder::config;
use shedder::config::model::Config;
use shedder::daemon::clock;
use shedder::datapath::{LoadOptions, Rules, TestBench};
use shedder::kernel::offsets::{KernelTypes, VMLINUX_BTF, read_types};
use shedder::levels::Levels;
use shedder::net::namespace;
use shedder::net::sockets::SocketTables;
use shedder::quota;
use shedder::sensors::Sensors;
use shedder::sensors::context::ListenerFact;
use shedder_common::control::Mode;
use shedder_common::packet::parse::ETHERNET_LEN;
use xtask::testbed::PinDirectory;

use super::TICK_MS;
use super::host::Host;

const WARM_TICKS: u32 = 50;
const TICKS: u32 = 100;
const TABLES: u32 = 20;

#[derive(Default)]
pub(crate) struct Stages {
    listeners_ms: f64,
    sensors_ms: f64,
    levels_ms: f64,
    quotas_ms: f64,
    pub(crate) quota_table_ms: f64,
}

impl Stages {
    pub(crate) fn each(&self) -> [(&'static str, f64); 4] {
        [
            ("listeners", self.listeners_ms),
            ("sensors", self.sensors_ms),
            ("levels", self.levels_ms),
            ("quotas: the lease", self.quotas_ms),
        ]
    }
}

pub(crate) fn measure(host: &Host) -> Result<Stages> {
    let config = config::load(&host.config)?;
    let pins = PinDirectory::new("bench-stages");
    host.namespace.enter(|| run(&config, pins.path()))?
}

fn run(config: &Config, pins: &Path) -> Result<Stages> {
    let KernelTypes { offsets, cast, .. } = read_types(Path::new(VMLINUX_BTF))?;
    let options = LoadOptions { namespace_inode: namespace::inode()?, offsets, cast, bpf_log: None };
    let mut datapath = TestBench::load(pins, options, ETHERNET_LEN)?;
    let rules = Rules { mode: Mode::Observe, lease_expires_ns: 0, exempt_rate: None };
    let mut stages = Stages::default();
    for _ in 0..TABLES {
        stages.quota_table_ms +=
            cost_ms(|| datapath.write(&quota::table(config, &[], 0), &rules))?.0 / f64::from(TABLES);
    }
    let mut sockets = SocketTables::open()?;
    let mut sensors = Sensors::new(Path::new("/"), &config.signals);
    let mut levels = Levels::new(&config.levels, &config.signals);
    for tick in 0..WARM_TICKS + TICKS {
        let now = clock::monotonic();
        let (listeners_ms, listeners) = cost_ms(|| sockets.listeners())?;
        let facts: Vec<ListenerFact> = listeners
            .iter()
            .map(|listener| ListenerFact {
                port: listener.port,
                inode: listener.inode,
                accept_queue: listener.accept_queue,
                backlog: listener.backlog,
                drops: listener.drops,
                cgroup_id: listener.cgroup_id,
            })
            .collect();
        let (sensors_ms, readings) = cost_ms(|| anyhow::Ok(sensors.read(now, clock::wall(), Some(facts))))?;
        let (levels_ms, _) = cost_ms(|| anyhow::Ok(levels.update(now, &readings, |_| true)))?;
        let (quotas_ms, ()) = cost_ms(|| datapath.renew(&rules))?;
        if tick >= WARM_TICKS {
            for (sum, ms) in [
                (&mut stages.listeners_ms, listeners_ms),
                (&mut stages.sensors_ms, sensors_ms),
                (&mut stages.levels_ms, levels_ms),
                (&mut stages.quotas_ms, quotas_ms),
            ] {
                *sum += ms / f64::from(TICKS);
            }
        }
        sleep(Duration::from_secs_f64(TICK_MS / 1e3).saturating_sub(clock::monotonic() - now));
    }
    Ok(stages)
}

fn cost_ms<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(f64, T), E> {
    let before = clock_gettime(ClockId::ThreadCPUTime);
    let result = work()?;
    let after = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = (after.tv_sec - before.tv_sec) as f64;
    Ok((seconds * 1e3 + (after.tv_nsec - before.tv_nsec) as f64 / 1e6, result))
}
