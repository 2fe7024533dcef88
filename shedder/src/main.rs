//! The `shedder` command.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::Path;
use std::process::ExitCode;

use aya_log::Level;
use clap::Parser;
use shedder::cli::doctor::Examination;
use shedder::cli::run::{BpfLogLevel, RunArgs};
use shedder::cli::{Cli, Exit, Failure, Parts, Places, Style, dispatch, tell};
use shedder::config::model::Config;
use shedder::daemon::{self, Options, clock};
use shedder::datapath::{self, Pinned};
use shedder::kernel::doctor::{self, Wants};
use shedder::locks;
use shedder::net::links;
use shedder::snapshot::Snapshot;
use shedder::trace::{self, Replay};
use shedder::{config, pinned_snapshot};

fn main() -> ExitCode {
    let mut out = BufWriter::new(io::stdout());
    let exit = match dispatch(Cli::parse(), &Program, &mut out, Style::of_stdout()) {
        Ok(()) => Exit::Done,
        Err(failure) => {
            if !failure.message.is_empty() {
                tell(&format!("shedder: {failure}\n"));
            }
            failure.exit
        }
    };
    exit.into()
}

struct Program;

fn configuration(file: Option<&Path>) -> Result<Config, Failure> {
    match file {
        Some(file) => config::load(file).map_err(Failure::wrong_use),
        None => Ok(Config::observe_default()),
    }
}

fn failed(error: &anyhow::Error) -> Failure {
    Failure::failed(format!("{error:#}"))
}

impl Parts for Program {
    fn run(&self, args: &RunArgs) -> Result<(), Failure> {
        let config = configuration(args.config.as_deref())?;
        let bpf_log = args.bpf_log.map(|level| match level {
            BpfLogLevel::Error => Level::Error,
            BpfLogLevel::Warn => Level::Warn,
            BpfLogLevel::Info => Level::Info,
            BpfLogLevel::Debug => Level::Debug,
            BpfLogLevel::Trace => Level::Trace,
        });
        daemon::run(Options { config_file: args.config.clone(), config, bpf_log })
            .map_err(|error| failed(&error))
    }

    fn check(&self, file: &Path) -> Result<String, Failure> {
        Ok(config::effective(&configuration(Some(file))?))
    }

    fn places(&self, config: Option<&Path>) -> Result<Places, Failure> {
        let daemon = configuration(config)?.daemon;
        Ok(Places { socket: daemon.socket, bpffs: daemon.bpffs })
    }

    fn read_pinned(&self, bpffs: &Path) -> Result<Option<Snapshot>, Failure> {
        let pinned = Pinned::read(bpffs).map_err(|error| failed(&error))?;
        let links = links::list().map_err(Failure::failed)?;
        let name = |ifindex| links.iter().find(|link| link.ifindex == ifindex).map(|link| link.name.clone());
        Ok(pinned.map(|pinned| pinned_snapshot::of(&pinned, clock::monotonic(), name)))
    }

    fn unload(&self, bpffs: &Path) -> Result<String, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::failed(
                "shedder unload must be root to see and remove what is pinned: use sudo",
            ));
        }
        let interfaces: Vec<String> =
            links::list().map_err(Failure::failed)?.into_iter().map(|link| link.name).collect();
        let removed = datapath::unload(bpffs, &interfaces).map_err(|error| match locks::holder(bpffs) {
            Some(pid) => Failure::failed(format!("{error:#} (process {pid} holds it)")),
            None => failed(&error),
        })?;
        Ok(match removed.pins.len() {
            0 if !removed.in_bpffs => format!(
                "no bpffs is mounted where {} would be, so nothing is pinned there; where shedder runs in another mount \
                 namespace or container, unload it there",
                bpffs.display()
            ),
            0 => format!("nothing of shedder is pinned under {}", bpffs.display()),
            pins => format!(
                "{pins} pins under {} are removed, and with them programs, maps and links",
                bpffs.display()
            ),
        })
    }

    fn simulate(&self, config: &Path, trace: &Path) -> Result<Replay, Failure> {
        let config = configuration(Some(config))?;
        let of_trace = |error: &dyn fmt::Display| Failure::wrong_use(format!("{}: {error}", trace.display()));
        let file = File::open(trace).map_err(|error| of_trace(&error))?;
        trace::replay(BufReader::new(file), &config).map_err(|error| of_trace(&error))
    }

    fn doctor(&self, config: Option<&Path>) -> Result<Examination, Failure> {
        let wants = Wants::of(&configuration(config)?);
        let lines = doctor::report(&doctor::gather(&wants), &wants);
        Ok(Examination { text: doctor::render(&lines), can_run: doctor::can_run(&lines) })
    }
}
