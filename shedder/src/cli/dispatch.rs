//! From verbs to the parts of the program that do them.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::doctor::Examination;
use super::run::RunArgs;
use super::{Cli, Failure, Style, Verb};
use super::{
    check, completions, confirm, doctor, explain, level, mode, record, set, simulate, status, unload,
};
use crate::snapshot::Snapshot;
use crate::trace::Replay;

/// Where a daemon's things are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// `daemon.socket`
    pub socket: PathBuf,
    /// `daemon.bpffs`
    pub bpffs: PathBuf,
}

/// The parts of the program that verbs need beyond the control socket.
pub trait Parts {
    /// Runs the daemon until it is told to stop.
    ///
    /// # Errors
    /// An invalid configuration is wrong use; everything else has failed.
    fn run(&self, args: &RunArgs) -> Result<(), Failure>;

    /// The effective configuration of a file, as TOML.
    ///
    /// # Errors
    /// An invalid configuration is wrong use.
    fn check(&self, file: &Path) -> Result<String, Failure>;

    /// Where the things of the daemon with this configuration are; of one without a file where `None`.
    ///
    /// # Errors
    /// An invalid configuration is wrong use.
    fn places(&self, config: Option<&Path>) -> Result<Places, Failure>;

    /// What the pinned maps say; `None` where nothing is pinned.
    ///
    /// # Errors
    /// They cannot be read.
    fn read_pinned(&self, bpffs: &Path) -> Result<Option<Snapshot>, Failure>;

    /// Removes every program, link, map and pin; says what there was. Nothing to remove is no error.
    ///
    /// # Errors
    /// Something could not be removed.
    fn unload(&self, bpffs: &Path) -> Result<String, Failure>;

    /// The replay of a trace by a configuration.
    ///
    /// # Errors
    /// An invalid configuration or trace is wrong use.
    fn simulate(&self, config: &Path, trace: &Path) -> Result<Replay, Failure>;

    /// What this host allows and what shedder would do with this configuration.
    ///
    /// # Errors
    /// An invalid configuration is wrong use.
    fn doctor(&self, config: Option<&Path>) -> Result<Examination, Failure>;
}

/// Does what was typed.
///
/// # Errors
/// Why it was not done, with the exit code.
pub fn dispatch(cli: Cli, parts: &dyn Parts, out: &mut dyn Write, style: Style) -> Result<(), Failure> {
    match cli.verb {
        Verb::Run(args) => parts.run(&args)?,
        Verb::Check(args) => check::check(&args, |file| parts.check(file), out)?,
        Verb::Status(args) => {
            let places = |config: Option<&Path>| parts.places(config);
            status::status(&args, places, |bpffs| parts.read_pinned(bpffs), out, style)?;
        }
        Verb::Explain(args) => explain::explain(&args, out, style)?,
        Verb::Record(args) => record::record(&args, out)?,
        Verb::Simulate(args) => {
            simulate::simulate(&args, |config, trace| parts.simulate(config, trace), out)?;
        }
        Verb::Set(args) => set::set(args, out)?,
        Verb::Confirm(args) => confirm::confirm(&args, out)?,
        Verb::Mode(args) => mode::mode(&args, out)?,
        Verb::Level(args) => level::level(&args, out)?,
        Verb::Unload(args) => {
            unload::unload(&args, |config| parts.places(config), |bpffs| parts.unload(bpffs), out)?;
        }
        Verb::Doctor(args) => doctor::doctor(&args, |config| parts.doctor(config), out)?,
        Verb::Completions(args) => completions::completions(&args, out)?,
    }
    out.flush()?;
    Ok(())
}
