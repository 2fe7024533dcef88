//! Useful answers of a server at up to a hundred times its capacity: without limits, behind shedder, and behind
//! nftables with the same capacity.

mod analysis;
mod limits;
mod net;
mod picture;
mod plan;
mod report;
mod services;
mod watch;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use xtask::testbed::{Live, Load, Pace, StatelessLoad, cpus};

use self::analysis::Measured;
use self::limits::{Limiter, Variant};
use self::net::Net;
use self::plan::{Planned, plan, schedule};
use self::report::{Report, Run, ScenarioReport};
pub(crate) use self::services::Scenario;
use self::services::Service;
use self::watch::{Cpus, watch};
use super::{write, write_json};
use crate::workspace::build_shedder;
use crate::{host, progress, setup};

/// What the command line says.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Short steps: to see that it works, not to quote
    #[arg(long)]
    quick: bool,
    /// Only this server; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<Scenario>,
    /// Also draw a picture
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
}

const PATIENCE: Duration = Duration::from_millis(250);
/// Enough to keep every server busy, too few to wait long.
const CAPACITY_CONNECTIONS: usize = 64;
const CAPACITY_PATIENCE: Duration = Duration::from_secs(10);

/// How long things are measured.
#[derive(Clone, Copy, Debug)]
struct Times {
    capacity: Duration,
    step: Duration,
}

/// `cargo xtask bench goodput`
pub(crate) fn goodput(options: &Options) -> anyhow::Result<()> {
    host::mount_bpffs()?;
    host::raise_open_files()?;
    setup::services()?;
    let scenarios = if options.only.is_empty() { Scenario::ALL.to_vec() } else { options.only.clone() };
    for scenario in &scenarios {
        scenario.set_up()?;
    }
    let stop = host::stop_on_signals()?;
    let seconds = |full, quick| Duration::from_secs(if options.quick { quick } else { full });
    let times = Times { capacity: seconds(5, 2), step: seconds(5, 2) };
    let allowed = cpus()?;
    let cpus = Cpus { load: allowed.last().copied(), server: allowed.first().copied() };
    let bench = Bench { shedder: build_shedder()?, stop, cpus, times };
    let mut report = Report::new(options.quick, cpus.load == cpus.server);
    for scenario in scenarios {
        let scenario = bench.scenario(scenario)?;
        println!("\n{scenario}");
        report.scenarios.push(scenario);
    }
    let file = write_json("bench-goodput.json", &report)?;
    println!("The same as data: {}", file.display());
    if let Some(path) = &options.svg {
        write(path, &picture::svg(&report))?;
        println!("As a picture: {}", path.display());
    }
    println!("\n{}", report.requirements_text());
    report.verdict()
}

struct Bench {
    shedder: PathBuf,
    stop: Arc<AtomicBool>,
    cpus: Cpus,
    times: Times,
}

impl Bench {
    fn scenario(&self, scenario: Scenario) -> anyhow::Result<ScenarioReport> {
        let capacity_per_second = self.capacity(scenario)?;
        let plan = plan(capacity_per_second, self.times.step);
        let mut runs = Vec::new();
        for variant in Variant::ALL {
            let name = format!("{}, {}", scenario.name(), variant.name());
            let measured = self.run(scenario, variant, &plan, capacity_per_second, &name)?;
            runs.push(Run::new(variant, &measured, &plan, capacity_per_second));
        }
        Ok(ScenarioReport::new(scenario, capacity_per_second, runs))
    }

    /// Requests per second of the server alone.
    fn capacity(&self, scenario: Scenario) -> anyhow::Result<f64> {
        let net = Net::new()?;
        let _service = Service::start(scenario, &net, self.cpus.server, &self.stop)?;
        let pace = Pace::Closed { connections: CAPACITY_CONNECTIONS };
        let load = Load {
            sources: net.sources.clone(),
            duration: self.times.capacity,
            patience: CAPACITY_PATIENCE,
            cpu: self.cpus.load,
            ..Load::new(net.target.into(), pace)
        };
        let live = self.live();
        let name = format!("{}, capacity", scenario.name());
        let outcome = progress::shown(&name, load.duration, &live, || load.run_in(&net.client, &live));
        let capacity = analysis::capacity(&explain(outcome)?.records, load.duration);
        anyhow::ensure!(
            capacity >= 1.0,
            "{}: the server answers nobody even when it is alone",
            scenario.name()
        );
        Ok(capacity)
    }

    fn run(
        &self,
        scenario: Scenario,
        variant: Variant,
        plan: &[Planned],
        capacity_per_second: f64,
        name: &str,
    ) -> anyhow::Result<Measured> {
        let net = Net::new()?;
        let service = Service::start(scenario, &net, self.cpus.server, &self.stop)?;
        let limiter =
            Limiter::start(variant, scenario, &net, &self.shedder, capacity_per_second, &self.stop)?;
        let measured = self.load(&net, plan, variant, name)?;
        limiter.stop()?;
        drop(service);
        Ok(measured)
    }

    fn load(&self, net: &Net, plan: &[Planned], variant: Variant, name: &str) -> anyhow::Result<Measured> {
        let duration = plan.last().map(Planned::end).unwrap_or_default();
        let with_sockets = Load {
            sources: net.sources.clone(),
            duration,
            patience: PATIENCE,
            cpu: self.cpus.load,
            ..Load::new(
                net.target.into(),
                Pace::Steps(schedule(plan, |planned| planned.with_sockets_per_second)),
            )
        };
        let stateless = StatelessLoad {
            target: net.target,
            sources: net.stateless.clone(),
            schedule: schedule(plan, |planned| planned.stateless_per_second),
            patience: PATIENCE,
            cpu: self.cpus.load,
        };
        let ends: Vec<_> = plan.iter().map(Planned::end).collect();
        let live = self.live();
        let work = || {
            thread::scope(|scope| {
                let stateless = scope.spawn(|| stateless.run_in(&net.client, &ends, &live));
                let watched = scope.spawn(|| {
                    let has_daemon = variant == Variant::Shedder;
                    net.server.enter(|| watch(plan, self.cpus, has_daemon, &self.stop))?
                });
                let with_sockets = with_sockets.run_in(&net.client, &live);
                (with_sockets, stateless.join(), watched.join())
            })
        };
        let (with_sockets, stateless, observed) = progress::shown(name, duration, &live, work);
        let panicked = || anyhow::anyhow!("a thread of the load panicked");
        Ok(Measured {
            with_sockets: explain(with_sockets)?,
            stateless: explain(stateless.map_err(|_| panicked())?)?,
            observed: explain(observed.map_err(|_| panicked())?)?,
        })
    }

    fn live(&self) -> Live {
        Live { stop: Arc::clone(&self.stop), ..Live::default() }
    }
}

fn explain<T>(outcome: io::Result<T>) -> anyhow::Result<T> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => anyhow::bail!("stopped by a signal"),
        outcome => outcome.context("the load"),
    }
}
