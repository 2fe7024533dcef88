//! `[daemon]`

use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use crate::config::defaults;
use crate::config::error::Problems;
use crate::config::model::{Daemon, LEVEL_FILE, OnExit};
use crate::config::section::{Section, Setting};
use crate::config::suggest::choose;
use crate::config::units::show_duration;
use crate::config::value::{self, Read};

const SHORTEST_TICK: Duration = Duration::from_millis(10);
const LONGEST_TICK: Duration = Duration::from_secs(10);

/// Ticks that may be late before the kernel stops to obey.
const LEASE_TICKS: u32 = 3;
const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// Longest path of a Unix socket, in bytes.
const LONGEST_SOCKET_PATH: usize = 107;

/// The section, and the tick with its place, against which others are checked.
pub(super) fn read(root: &Section<'_>, problems: &mut Problems<'_>) -> (Daemon, Setting<Duration>) {
    let defaults = defaults::daemon();
    let Some(section) = root.open("daemon", problems) else {
        let tick = Setting { value: defaults.tick, span: None };
        return (defaults, tick);
    };
    section.expect_keys(&["tick", "lease", "socket", "bpffs", "on_exit"], problems);
    // What is checked against a wrong tick is checked against the shortest, so that one mistake is one problem.
    let in_place_of_tick = if section.has("tick") { SHORTEST_TICK } else { defaults.tick };
    let tick = section.read_or("tick", in_place_of_tick, problems, tick_value);
    let lease = section.read_or("lease", defaults.lease, problems, lease_value);
    expect_lease_of_ticks(&section, &lease, &tick, problems);
    let daemon = Daemon {
        tick: tick.value,
        lease: lease.value,
        socket: section.read_or("socket", defaults.socket, problems, socket).value,
        bpffs: section
            .read_or("bpffs", defaults.bpffs, problems, |value| {
                value::absolute_path(value, "/sys/fs/bpf/shedder")
            })
            .value,
        on_exit: section.read_or("on_exit", defaults.on_exit, problems, on_exit).value,
    };
    (daemon, tick)
}

fn tick_value(value: &DeValue<'_>) -> Read<Duration> {
    let tick = value::duration(value)?;
    if (SHORTEST_TICK..=LONGEST_TICK).contains(&tick) {
        Ok(tick)
    } else {
        Err(format!("{} is outside of 10ms..10s: choose within, such as \"100ms\"", show_duration(tick)))
    }
}

fn lease_value(value: &DeValue<'_>) -> Read<Duration> {
    let lease = value::duration(value)?;
    if lease <= LONGEST_LEASE {
        Ok(lease)
    } else {
        let lease = show_duration(lease);
        Err(format!(
            "{lease} is longer than 60s, for which a dead daemon would go on refusing: choose \"60s\" at most"
        ))
    }
}

fn expect_lease_of_ticks(
    section: &Section<'_>,
    lease: &Setting<Duration>,
    tick: &Setting<Duration>,
    problems: &mut Problems<'_>,
) {
    let shortest = tick.value.saturating_mul(LEASE_TICKS);
    let lease_is_wrong = section.has("lease") && lease.span.is_none();
    if lease.value >= shortest || lease_is_wrong {
        return;
    }
    let (lease_shown, shortest) = (show_duration(lease.value), show_duration(shortest));
    let span = lease.span.clone().or_else(|| tick.span.clone()).unwrap_or_else(|| section.span());
    problems.at(
        span,
        format!(
            "daemon.lease ({lease_shown}) is shorter than {LEASE_TICKS} ticks ({shortest}): write lease = \"{shortest}\" \
             or more, or a shorter tick"
        ),
    );
}

fn socket(value: &DeValue<'_>) -> Read<PathBuf> {
    let path = value::absolute_path(value, "/run/shedder/control.sock")?;
    let bytes = path.as_os_str().len();
    if bytes > LONGEST_SOCKET_PATH {
        return Err(format!(
            "{bytes} bytes are too long for a socket: choose a path of {LONGEST_SOCKET_PATH} at most"
        ));
    }
    if path.file_name().is_some_and(|name| name == LEVEL_FILE) {
        return Err(format!(
            "`{LEVEL_FILE}` beside the socket is the file with the level: give the socket another name"
        ));
    }
    Ok(path)
}

fn on_exit(value: &DeValue<'_>) -> Read<OnExit> {
    choose("on_exit", value::text(value, "detach")?, &[("detach", OnExit::Detach), ("keep", OnExit::Keep)])
}
