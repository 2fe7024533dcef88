//! Removing everything, with or without a daemon.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::attach;
use super::pins::Pins;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unloaded {
    /// Pins, and with them the programs, maps and links that nothing else holds.
    pub pins: Vec<PathBuf>,
    /// Whether the directory lies, or would lie, in a bpffs; elsewhere nothing can be pinned.
    pub in_bpffs: bool,
}

/// Unpins everything under a bpffs directory and removes clsact filters of ours from these interfaces. Doing it
/// again finds nothing and is no error.
///
/// # Errors
///
/// A daemon holds the directory: its programs would stay attached without their pins. Or a pin or filter cannot
/// be removed.
pub fn unload(bpffs: &Path, interfaces: &[String]) -> Result<Unloaded> {
    let pins = Pins::new(bpffs);
    let _lock = pins.lock_existing()?;
    let in_bpffs = pins.in_bpffs();
    let pins = pins.remove_all()?;
    for interface in interfaces {
        attach::remove_clsact_filter(interface)?;
    }
    Ok(Unloaded { pins, in_bpffs })
}
