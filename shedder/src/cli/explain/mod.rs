//! `shedder explain`

mod render;
#[cfg(test)]
mod tests;

use std::io::Write;

use clap::Args;

use super::output::write_json;
use super::socket::SocketArg;
use super::{Failure, Style};
use crate::control::client;
use crate::control::protocol::{Command, Payload};
use crate::explain::Explanation;

pub use render::render;

/// Arguments of `shedder explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// Also tell what each class on this port sees now
    pub port: Option<String>,
    /// Print JSON of a stable shape instead of text
    #[arg(long)]
    pub json: bool,
    /// Where the daemon is.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// Asks the daemon and writes its answer.
///
/// # Errors
/// No daemon, or no policy for the port.
pub fn explain(args: &ExplainArgs, out: &mut dyn Write, style: Style) -> Result<(), Failure> {
    let strange = || Failure::failed("the daemon answered something else than an explanation; restart it");
    let command = Command::Explain { port: args.port.clone() };
    let Payload::Document(document) = client::call(&args.socket.socket, command)? else {
        return Err(strange());
    };
    let explanation: Explanation = serde_json::from_value(document).map_err(|_| strange())?;
    if args.json {
        return write_json(out, &explanation);
    }
    out.write_all(render(&explanation, style).as_bytes())?;
    Ok(())
}
