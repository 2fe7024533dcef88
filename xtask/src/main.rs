//! The project's own commands: `cargo xtask help`.

mod bench;
mod checks;
mod daemon;
mod demo;
mod host;
mod kernels;
mod progress;
mod setup;
mod tests;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install what is missing; every other command does this first
    Setup,
    /// Build the daemon and its kernel side
    Build {
        /// With optimisation
        #[arg(long)]
        release: bool,
    },
    /// Run all tests, those of the kernel side in network namespaces of their own (needs root)
    Test,
    /// Check format, lints, licences and documentation
    Lint,
    /// Run all tests, then all checks, then the programs on other kernels (needs root)
    Ci,
    /// Show a server that collapses under load, and the same server behind shedder (needs root)
    Demo,
    /// Load and run the programs on Linux 6.1 and 6.12 of Debian, in an emulator
    Kernels,
    /// Be the init of such a machine
    #[command(hide = true)]
    Guest,
    /// Do what hurts, as the benchmark of reactions says through standard input
    #[command(hide = true)]
    Stall(bench::reaction::stall::Stall),
    /// Measure (needs root)
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// The cost of each decision in the kernel, per packet
    Packets,
    /// The processor time of a tick and the memory of the daemon, with many ports and cgroups
    Tick,
    /// Useful answers of three servers at up to a hundred times their capacity, with and without shedder
    Goodput(bench::goodput::Options),
    /// The time from a stall to other quotas, and back
    Reaction(bench::reaction::Options),
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> anyhow::Result<()> {
    if matches!(verb, Verb::Test | Verb::Ci | Verb::Demo | Verb::Bench { .. }) {
        host::require_root()?;
    }
    if !matches!(verb, Verb::Stall(_) | Verb::Guest) {
        setup::setup()?;
    }
    match verb {
        Verb::Setup => Ok(()),
        Verb::Build { release } => checks::build(release),
        Verb::Test => tests::test(),
        Verb::Lint => checks::lint(),
        Verb::Ci => tests::test().and_then(|()| checks::lint()).and_then(|()| kernels::kernels()),
        Verb::Demo => demo::demo(),
        Verb::Kernels => kernels::kernels(),
        Verb::Guest => kernels::guest::guest(),
        Verb::Bench { what: Bench::Packets } => checks::bench("packets"),
        Verb::Bench { what: Bench::Tick } => checks::bench("tick"),
        Verb::Bench { what: Bench::Goodput(options) } => bench::goodput::goodput(&options),
        Verb::Bench { what: Bench::Reaction(options) } => bench::reaction::reaction(&options),
        Verb::Stall(stall) => bench::reaction::stall::run(stall),
    }
}
