//! The `shedder` command.

use std::io::{self, BufWriter};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use shedder::cli::run::RunArgs;
use shedder::cli::{Cli, Exit, Failure, Parts, Places, Style, dispatch};
use shedder::snapshot::Snapshot;

fn main() -> ExitCode {
    let mut out = BufWriter::new(io::stdout());
    let exit = match dispatch(Cli::parse(), &Program, &mut out, Style::of_stdout()) {
        Ok(()) => Exit::Done,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("shedder: {failure}");
            }
            failure.exit
        }
    };
    exit.into()
}

/// The parts that this build has.
struct Program;

/// A verb that this build cannot do; it says so rather than do half of it.
fn absent<T>(part: &str) -> Result<T, Failure> {
    Err(Failure::failed(format!("this build of shedder has no {part}")))
}

impl Parts for Program {
    fn run(&self, _: &RunArgs) -> Result<(), Failure> {
        absent("daemon")
    }

    fn check(&self, _: &Path) -> Result<String, Failure> {
        absent("configuration reader")
    }

    fn places(&self, config: Option<&Path>) -> Result<Places, Failure> {
        match config {
            Some(_) => absent("configuration reader"),
            None => Ok(Places {
                socket: shedder::control::DEFAULT_SOCKET.into(),
                bpffs: "/sys/fs/bpf/shedder".into(),
            }),
        }
    }

    fn read_pinned(&self, _: &Path) -> Result<Option<Snapshot>, Failure> {
        absent("datapath")
    }

    fn unload(&self, _: &Path) -> Result<String, Failure> {
        absent("datapath")
    }

    fn doctor(&self, _: Option<&Path>) -> Result<String, Failure> {
        absent("doctor")
    }
}
