//! `shedder doctor`

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use super::output::write_text;

/// Arguments of `shedder doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Judge by this configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// What was found on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// For the person at the terminal.
    pub text: String,
    /// Whether `shedder run` can work there.
    pub can_run: bool,
}

/// Writes what `examine` found for the configuration; works with and without a daemon.
///
/// # Errors
/// What `examine` could not do; something that shedder needs is missing.
pub fn doctor(
    args: &DoctorArgs,
    examine: impl FnOnce(Option<&Path>) -> Result<Examination, Failure>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Examination { text, can_run } = examine(args.config.as_deref())?;
    write_text(out, &text)?;
    out.flush()?;
    // The text has said why.
    if can_run { Ok(()) } else { Err(Failure::failed("")) }
}
