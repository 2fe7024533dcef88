//! The load shedder: one way from sensors to the kernel, and one way back from counters to metrics.
#![cfg_attr(
    not(test),
    deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nobody reads")
)]

pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod datapath;
pub mod endpoint;
pub mod explain;
#[cfg(test)]
mod golden;
pub mod kernel;
pub mod levels;
pub mod locks;
pub mod log;
pub mod metrics;
pub mod net;
pub mod pinned_snapshot;
pub mod quota;
pub mod sensors;
mod slots;
pub mod snapshot;
pub mod snapshot_reader;
#[cfg(test)]
mod snapshot_sample;
pub mod trace;
pub mod words;
