//! `--socket`, which every verb has that talks to the daemon.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::output::write_payload;
use crate::control::protocol::Command;
use crate::control::{DEFAULT_SOCKET, client};

/// Where the daemon is.
#[derive(Clone, Debug, Args)]
pub struct SocketArg {
    /// Talk to the daemon at this socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

impl SocketArg {
    /// Sends a command and writes the answer.
    pub(super) fn tell(&self, command: Command, out: &mut dyn Write) -> Result<(), Failure> {
        write_payload(out, &client::call(&self.socket, command)?)
    }
}
