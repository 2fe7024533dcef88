//! The command line. One file for each verb; [`dispatch()`] joins them to the rest of the program.

pub mod check;
pub mod completions;
pub mod confirm;
mod dispatch;
pub mod doctor;
mod duration;
pub mod explain;
mod failure;
pub mod level;
pub mod mode;
mod output;
pub mod record;
pub mod run;
pub mod set;
pub mod simulate;
mod socket;
pub mod status;
mod table;
#[cfg(test)]
mod tests;
pub mod unload;

use clap::{Parser, Subcommand};

pub use dispatch::{Parts, Places, dispatch};
pub use failure::{Exit, Failure};
pub use output::{Style, tell};

/// What was typed.
#[derive(Debug, Parser)]
#[command(
    name = "shedder",
    version,
    about = "Refuse new connections before they cost anything",
    long_about = "Refuse new connections before they cost anything.\n\n\
                  A program in the kernel judges each new connection by quotas that the daemon keeps; the daemon \
                  lowers them as the host comes under pressure. It refuses nothing until its mode is `enforce`.",
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong use.",
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the daemon
    ///
    /// Without --config it observes the TCP ports that listen, on the interfaces of the default routes, and refuses
    /// nothing.
    Run(run::RunArgs),
    /// Validate a configuration file and print what it comes to
    Check(check::CheckArgs),
    /// Show mode, levels, signals, ports and interfaces
    Status(status::StatusArgs),
    /// Tell why the levels are what they are and what a class on a port sees
    Explain(explain::ExplainArgs),
    /// Change limits until the daemon restarts or its configuration is read again
    Set(set::SetArgs),
    /// Keep what `set --confirm` changed, until the daemon restarts or its configuration is read again
    Confirm(confirm::ConfirmArgs),
    /// Observe, enforce, or switch off
    #[command(
        long_about = "Observe, enforce, or switch off, until the daemon restarts or its configuration is read \
                            again.\n\n\
                            observe  decide and count, refuse nothing\n\
                            enforce  decide, count, refuse\n\
                            off      decide nothing, count nothing, pass everything"
    )]
    Mode(mode::ModeArgs),
    /// Pin the level of the host and of everything on it, or let the signals decide again
    Level(level::LevelArgs),
    /// Write the live signals as a trace
    Record(record::RecordArgs),
    /// Replay a trace through the daemon's level and quota code
    Simulate(simulate::SimulateArgs),
    /// Remove every program, link, map and pin, with or without a daemon
    ///
    /// The daemon ends with code 0. A supervisor that restarts it even so attaches everything again.
    Unload(unload::UnloadArgs),
    /// Show what this host allows and what shedder will therefore do
    ///
    /// The exit code is 1 where something is missing without which the daemon cannot work. What it can wait for, such
    /// as an interface that is not there yet, is no failure.
    Doctor(doctor::DoctorArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}
