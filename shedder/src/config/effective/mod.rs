//! The effective configuration as TOML again, every default spelled out.

mod ports;
mod signals;
mod write;

use std::fmt;

use shedder_common::class::Class;

use self::write::{float, floats, quoted, strings};
use super::model::{
    Attach, Config, Daemon, Guard, InterfacePattern, LevelRules, Metrics, OnExit, OnLoss, Via,
};
use super::units::{show_duration, show_rate};

/// Writes a configuration as TOML that [`parse`](super::parse) reads as an equal one. That policies follow the
/// listeners is no key of the file, so without a file it stands there as a comment.
#[must_use]
pub fn effective(config: &Config) -> String {
    let mut out = String::new();
    // A String takes whatever is written.
    let _infallible = write_all(&mut out, config);
    out
}

fn write_all(out: &mut String, config: &Config) -> fmt::Result {
    use fmt::Write as _;
    writeln!(out, "version = 1")?;
    writeln!(out, "mode = {}", quoted(config.mode.name()))?;
    if config.follow_listeners {
        writeln!(out, "# No file: the policies follow the TCP ports that listen, each with default limits.")?;
    }
    write_attach(out, &config.attach)?;
    write_daemon(out, &config.daemon)?;
    write_metrics(out, &config.metrics)?;
    write_guard(out, &config.guard)?;
    write_levels(out, &config.levels)?;
    signals::write(out, &config.signals)?;
    for (class, rules) in Class::ALL.into_iter().zip(&config.classes) {
        writeln!(out, "\n[classes.{}]", class.name())?;
        writeln!(out, "shares = {}", floats(&rules.shares))?;
        writeln!(out, "floor = {}", float(rules.floor))?;
        if let Some(action) = rules.action {
            writeln!(out, "action = {}", quoted(action.name()))?;
        }
    }
    for source in &config.sources {
        writeln!(out, "\n[[source]]")?;
        writeln!(out, "cidr = {}", quoted(&source.cidr.to_string()))?;
        writeln!(out, "class = {}", quoted(source.class.name()))?;
    }
    ports::write(out, &config.ports, &config.guard)
}

fn write_attach(out: &mut impl fmt::Write, attach: &Attach) -> fmt::Result {
    let interfaces = attach.interfaces.iter().map(|interface| match interface {
        InterfacePattern::DefaultRoute => "default-route",
        InterfacePattern::Name(text) | InterfacePattern::Glob(text) => text,
    });
    let via = match attach.via {
        Via::Auto => "auto",
        Via::Native => "native",
        Via::Generic => "generic",
        Via::Tc => "tc",
    };
    writeln!(out, "\n[attach]")?;
    writeln!(out, "interfaces = {}", strings(interfaces))?;
    writeln!(out, "via = {}", quoted(via))
}

fn write_daemon(out: &mut impl fmt::Write, daemon: &Daemon) -> fmt::Result {
    let on_exit = match daemon.on_exit {
        OnExit::Detach => "detach",
        OnExit::Keep => "keep",
    };
    writeln!(out, "\n[daemon]")?;
    writeln!(out, "tick = {}", quoted(&show_duration(daemon.tick)))?;
    writeln!(out, "lease = {}", quoted(&show_duration(daemon.lease)))?;
    writeln!(out, "socket = {}", quoted(&daemon.socket.to_string_lossy()))?;
    writeln!(out, "bpffs = {}", quoted(&daemon.bpffs.to_string_lossy()))?;
    writeln!(out, "on_exit = {}", quoted(on_exit))
}

fn write_metrics(out: &mut impl fmt::Write, metrics: &Metrics) -> fmt::Result {
    let listen = metrics.listen.map_or_else(|| "off".to_owned(), |address| address.to_string());
    writeln!(out, "\n[metrics]")?;
    writeln!(out, "listen = {}", quoted(&listen))?;
    writeln!(out, "admission_level = {}", quoted(metrics.admission_level.name()))
}

fn write_guard(out: &mut impl fmt::Write, guard: &Guard) -> fmt::Result {
    writeln!(out, "\n[guard]")?;
    writeln!(out, "ports = {:?}", guard.ports)?;
    writeln!(out, "sources = {}", strings(guard.sources.iter().map(ToString::to_string)))?;
    writeln!(out, "rate = {}", quoted(&show_rate(guard.rate)))
}

fn write_levels(out: &mut impl fmt::Write, levels: &LevelRules) -> fmt::Result {
    writeln!(out, "\n[levels]")?;
    writeln!(out, "hold = {}", quoted(&show_duration(levels.hold)))?;
    writeln!(out, "max_hold = {}", quoted(&show_duration(levels.max_hold)))?;
    writeln!(out, "ramp = {}", quoted(&show_duration(levels.ramp)))?;
    writeln!(out, "stale_after = {}", quoted(&show_duration(levels.stale_after)))?;
    writeln!(out, "on_loss = {}", quoted(on_loss_name(levels.on_loss)))
}

fn on_loss_name(on_loss: OnLoss) -> &'static str {
    match on_loss {
        OnLoss::Ignore => "ignore",
        OnLoss::Hold => "hold",
    }
}
