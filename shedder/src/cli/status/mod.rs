//! `shedder status`

mod ports;
mod render;
#[cfg(test)]
mod tests;
mod words;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::write_json;
use super::{Failure, Places, Style};
use crate::control::client::{self, CallError};
use crate::control::protocol::{Command, Payload};
use crate::snapshot::Snapshot;

pub use render::render;

/// Arguments of `shedder status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Print JSON of a stable shape instead of tables
    #[arg(long)]
    pub json: bool,
    /// Find socket and bpffs directory in this configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Talk to the daemon at this socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Shows the daemon's snapshot; where no daemon lives, what `read_pinned` finds in the bpffs directory.
///
/// # Errors
/// Neither of them is there, or the daemon does not answer.
pub fn status(
    args: &StatusArgs,
    places: impl FnOnce(Option<&Path>) -> Result<Places, Failure>,
    read_pinned: impl FnOnce(&Path) -> Result<Option<Snapshot>, Failure>,
    out: &mut dyn Write,
    style: Style,
) -> Result<(), Failure> {
    let Places { socket, bpffs } = places(args.config.as_deref())?;
    let socket = args.socket.as_ref().unwrap_or(&socket);
    let snapshot = match client::call(socket, Command::Status) {
        Ok(Payload::Status(snapshot)) => *snapshot,
        Ok(_) => {
            return Err(Failure::failed("the daemon answered something else than its status; restart it"));
        }
        Err(error @ CallError::NoDaemon { .. }) => match read_pinned(&bpffs) {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => {
                let place = bpffs.display();
                return Err(Failure::failed(format!("{error}. Nothing is pinned under {place} either")));
            }
            Err(Failure { exit, message }) => {
                return Err(Failure {
                    exit,
                    message: format!("{error}. Nor can it be read from the pins: {message}"),
                });
            }
        },
        Err(error) => return Err(error.into()),
    };
    if args.json {
        return write_json(out, &snapshot);
    }
    out.write_all(render(&snapshot, style).as_bytes())?;
    Ok(())
}
