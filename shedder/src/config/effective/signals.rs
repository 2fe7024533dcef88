//! `[signals.NAME]`

use std::fmt;

use shedder_common::level::Level;

use super::on_loss_name;
use super::write::{float, quoted};
use crate::config::builtin;
use crate::config::model::{FileScope, PsiWindow, Signal, SignalSource};
use crate::config::sections::NEVER;
use crate::config::units::show_duration;

pub(super) fn write(out: &mut impl fmt::Write, signals: &[Signal]) -> fmt::Result {
    signals.iter().try_for_each(|signal| write_signal(out, signal))
}

fn write_signal(out: &mut impl fmt::Write, signal: &Signal) -> fmt::Result {
    writeln!(out, "\n[signals.{}]", signal.name)?;
    match &signal.source {
        SignalSource::Psi { window, .. } => {
            let window = match window {
                PsiWindow::Over(time) => show_duration(*time),
                PsiWindow::Avg10 => "avg10".to_owned(),
                PsiWindow::Avg60 => "avg60".to_owned(),
                PsiWindow::Avg300 => "avg300".to_owned(),
            };
            writeln!(out, "window = {}", quoted(&window))?;
        }
        SignalSource::File { path, scope } => {
            let scope = match scope {
                FileScope::Host => "host".to_owned(),
                FileScope::Port(port) => format!("port:{port}"),
                FileScope::Cgroup(path) => format!("cgroup:{}", path.to_string_lossy()),
            };
            writeln!(out, "source = \"file\"")?;
            writeln!(out, "path = {}", quoted(&path.to_string_lossy()))?;
            writeln!(out, "scope = {}", quoted(&scope))?;
        }
        _ => {}
    }
    writeln!(out, "enabled = {}", signal.enabled)?;
    write_thresholds(out, signal)?;
    writeln!(out, "for = {}", quoted(&show_duration(signal.rise_after)))?;
    writeln!(out, "stale_after = {}", quoted(&show_duration(signal.stale_after)))?;
    writeln!(out, "on_loss = {}", quoted(on_loss_name(signal.on_loss)))
}

/// A level that is not demanded is left out, except where the default would come back.
fn write_thresholds(out: &mut impl fmt::Write, signal: &Signal) -> fmt::Result {
    let defaults = builtin::find(&signal.name).map(|builtin| builtin.thresholds).unwrap_or_default();
    for ((level, threshold), default) in Level::ALL.into_iter().zip(&signal.thresholds).zip(defaults).skip(1)
    {
        let level = level.name();
        match threshold {
            Some(threshold) => {
                let (enter, exit) = (float(threshold.enter), float(threshold.exit));
                writeln!(out, "{level} = {{ enter = {enter}, exit = {exit} }}")?;
            }
            None if default.is_some() => writeln!(out, "{level} = {}", quoted(NEVER))?,
            None => {}
        }
    }
    Ok(())
}
