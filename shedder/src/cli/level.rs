//! `shedder level`

use std::io::Write;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::Failure;
use super::duration::duration;
use super::socket::SocketArg;
use crate::control::protocol::{Command, LevelChoice};

/// Arguments of `shedder level`.
#[derive(Clone, Debug, Args)]
pub struct LevelArgs {
    /// The level to pin; `auto` lets the signals decide again
    #[arg(value_parser = PossibleValuesParser::new(["auto", "normal", "moderate", "high", "emergency"]).try_map(named))]
    pub level: LevelChoice,
    /// Let the signals decide again after this time, such as 5m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub for_time: Option<Duration>,
    /// Where the daemon is.
    #[command(flatten)]
    pub socket: SocketArg,
}

/// Pins the level through the daemon.
///
/// # Errors
/// No daemon, its refusal, or a time for `auto`.
pub fn level(args: &LevelArgs, out: &mut dyn Write) -> Result<(), Failure> {
    if args.level == LevelChoice::Auto && args.for_time.is_some() {
        return Err(Failure::wrong_use("`auto` has no end; leave --for out, or name the level to pin"));
    }
    let for_seconds = args.for_time.map(|time| time.as_secs_f64());
    args.socket.tell(Command::Level { level: args.level, for_seconds }, out)
}

#[expect(clippy::needless_pass_by_value, reason = "clap hands the word over")]
fn named(word: String) -> Result<LevelChoice, String> {
    LevelChoice::from_name(&word).ok_or_else(|| format!("no level is called {word}"))
}
