//! `shedder run`

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Arguments of `shedder run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Obey this configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Log what the kernel programs say, from this level on
    #[arg(long, value_name = "LEVEL")]
    pub bpf_log: Option<BpfLogLevel>,
}

/// Levels of the kernel programs' log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BpfLogLevel {
    /// What went wrong.
    Error,
    /// What looks wrong.
    Warn,
    /// What happened.
    Info,
    /// How it happened.
    Debug,
    /// Everything.
    Trace,
}
