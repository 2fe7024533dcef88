//! `shedder simulate`

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use super::output::{clean, tell, write_text};
use crate::trace::Replay;

/// Arguments of `shedder simulate`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Replay a trace of signals through the level and quota code of the daemon, from `normal`.\n\n\
                        A trace has one reading per line of JSON; `shedder record` writes it, and so may you:\n\n  \
                        {\"t\":0.1,\"signal\":\"memory\",\"scope\":\"host\",\"value\":0.93}\n\n\
                        `value` is null where it was unavailable; lines with the same `t` are one tick."
)]
pub struct SimulateArgs {
    /// Judge by this configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The trace
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Print one line of JSON for each transition: t, scope, from, to, signal
    #[arg(long)]
    pub json: bool,
}

/// Writes the transitions and a timeline of what `replay` makes of configuration and trace.
///
/// # Errors
/// A wrong configuration or trace, with the line, is wrong use.
pub fn simulate(
    args: &SimulateArgs,
    replay: impl FnOnce(&Path, &Path) -> Result<Replay, Failure>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let replay = replay(&args.config, &args.trace)?;
    if let Some(warning) = replay.warning() {
        tell(&format!("shedder: {}: {warning}\n", clean(&args.trace.display().to_string())));
    }
    if args.json {
        let lines = replay.simulation.json_lines().map_err(Failure::failed)?;
        out.write_all(lines.as_bytes())?;
        return Ok(());
    }
    write_text(out, &replay.text())
}
