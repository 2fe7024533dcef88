//! `shedder unload`

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::output::{write_payload, write_text};
use super::{Failure, Places};
use crate::control::client::{self, CallError};
use crate::control::protocol::{Command, Payload};

/// Arguments of `shedder unload`.
#[derive(Clone, Debug, Args)]
pub struct UnloadArgs {
    /// Find socket and bpffs directory in this configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Talk to the daemon at this socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Tells the daemon to remove everything and exit; where none lives, `remove` does it by the pins in the bpffs
/// directory and says what it found.
///
/// # Errors
/// A daemon that refuses or does not answer, or what `remove` could not do.
pub fn unload(
    args: &UnloadArgs,
    places: impl FnOnce(Option<&Path>) -> Result<Places, Failure>,
    remove: impl FnOnce(&Path) -> Result<String, Failure>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Places { socket, bpffs } = places(args.config.as_deref())?;
    let socket = args.socket.as_ref().unwrap_or(&socket);
    match call_until_it_ended(socket) {
        Ok(payload) => write_payload(out, &payload),
        Err(CallError::NoDaemon { .. }) => write_text(out, &remove(&bpffs)?),
        Err(error @ CallError::Broken { .. }) => Err(Failure::failed(format!(
            "{error}. Where it hangs, kill it with `kill -9` and unload again; the kernel passes everything once its \
             lease has ended"
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Asks the daemon; one that is ending already may leave its pins, so it is waited for.
fn call_until_it_ended(socket: &Path) -> Result<Payload, CallError> {
    for _ in 0..ENDING_TRIES {
        match client::call(socket, Command::Unload) {
            Err(error) if error.is_ending() => std::thread::sleep(ENDING_PAUSE),
            answer => return answer,
        }
    }
    client::call(socket, Command::Unload)
}

/// How long a daemon that is ending is waited for: ten seconds.
const ENDING_TRIES: u32 = 100;
const ENDING_PAUSE: Duration = Duration::from_millis(100);
