//! `shedder completions`

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Failure};

/// Arguments of `shedder completions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: shedder completions bash > /etc/bash_completion.d/shedder")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Writes the script.
///
/// # Errors
/// The output cannot be written.
pub fn completions(args: &CompletionsArgs, out: &mut dyn Write) -> Result<(), Failure> {
    // The generator panics where its output fails, so it gets one that does not.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "shedder", &mut script);
    out.write_all(&script)?;
    Ok(())
}
