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

/// Writes what `examine` found for the configuration; works with and without a daemon.
///
/// # Errors
/// What `examine` could not do.
pub fn doctor(
    args: &DoctorArgs,
    examine: impl FnOnce(Option<&Path>) -> Result<String, Failure>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    write_text(out, &examine(args.config.as_deref())?)
}
