//! Experiments with a real daemon, real servers and real pressure.

pub(crate) mod goodput;
pub(crate) mod reaction;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::workspace::root;

/// Writes a report as data below `target` and says where.
fn write_json(name: &str, report: &impl Serialize) -> anyhow::Result<PathBuf> {
    let path = root().join("target").join(name);
    write(&path, &(serde_json::to_string_pretty(report)? + "\n"))?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}
