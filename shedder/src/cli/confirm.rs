//! `shedder confirm`

use std::io::Write;

use clap::Args;

use super::Failure;
use super::socket::SocketArg;
use crate::control::protocol::Command;

/// Arguments of `shedder confirm`.
#[derive(Clone, Debug, Args)]
pub struct ConfirmArgs {
    /// Where the daemon is.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// Keeps what `set --confirm` changed.
///
/// # Errors
/// No daemon, or its refusal.
pub fn confirm(args: &ConfirmArgs, out: &mut dyn Write) -> Result<(), Failure> {
    args.socket.tell(Command::Confirm, out)
}
