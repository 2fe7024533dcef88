//! `shedder set`

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::Failure;
use super::duration::duration;
use super::socket::SocketArg;
use crate::control::protocol::Command;

/// Arguments of `shedder set`.
#[derive(Clone, Debug, Args)]
pub struct SetArgs {
    /// What to change.
    #[command(subcommand)]
    pub target: Target,
}

/// What can be changed.
#[derive(Clone, Debug, Subcommand)]
pub enum Target {
    /// Change the limits of a port policy, effective within 100 ms
    #[command(after_help = "Example: shedder set port 8080 rate=500/s connections=2000 --confirm 60s")]
    Port(PortArgs),
}

/// Arguments of `shedder set port`.
#[derive(Clone, Debug, Args)]
pub struct PortArgs {
    /// A port or range: 8080, 8000-8099; every policy within it is changed
    pub port: String,
    /// Limits by their keys in the configuration: rate=500/s, connections=2000, queue_wait=50ms
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = assignment)]
    pub assignments: Vec<(String, String)>,
    /// Roll back unless `shedder confirm` follows within this time, such as 60s; what is set without this stays
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub confirm: Option<Duration>,
    /// Where the daemon is.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// Changes limits through the daemon.
///
/// # Errors
/// No daemon, or its refusal.
pub fn set(args: SetArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let Target::Port(PortArgs { port, assignments, confirm, socket }) = args.target;
    let confirm_seconds = confirm.map(|time| time.as_secs_f64());
    socket.tell(Command::Set { port, assignments, confirm_seconds }, out)
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, such as rate=500/s".to_owned()),
    }
}
