//! `shedder mode`

use std::io::Write;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use shedder_common::control::Mode;

use super::Failure;
use super::socket::SocketArg;
use crate::control::protocol::Command;

/// Arguments of `shedder mode`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Observe, enforce, or switch off, until the daemon restarts or its configuration is read again.\n\n\
                  observe  decide and count, refuse nothing\n\
                  enforce  decide, count, refuse\n\
                  off      decide nothing, count nothing, pass everything"
)]
pub struct ModeArgs {
    /// The mode to take effect now
    #[arg(value_parser = PossibleValuesParser::new(["observe", "enforce", "off"]).try_map(named))]
    pub mode: Mode,
    /// Where the daemon is.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// Changes the mode through the daemon.
///
/// # Errors
/// No daemon, or its refusal.
pub fn mode(args: &ModeArgs, out: &mut dyn Write) -> Result<(), Failure> {
    args.socket.tell(Command::Mode { mode: args.mode }, out)
}

#[expect(clippy::needless_pass_by_value, reason = "clap hands the word over")]
fn named(word: String) -> Result<Mode, String> {
    Mode::from_name(&word).ok_or_else(|| format!("no mode is called {word}"))
}
