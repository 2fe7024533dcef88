//! `shedder check`

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;

/// Arguments of `shedder check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The configuration file
    pub file: PathBuf,
}

/// Writes the effective configuration, which `load` makes of the file. An error in the file is wrong use.
///
/// # Errors
/// What `load` found.
pub fn check(
    args: &CheckArgs,
    load: impl FnOnce(&Path) -> Result<String, Failure>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let effective = load(&args.file)?;
    out.write_all(effective.as_bytes())?;
    if !effective.ends_with('\n') {
        writeln!(out)?;
    }
    Ok(())
}
