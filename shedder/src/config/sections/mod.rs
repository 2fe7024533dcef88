//! One file for each section of the configuration; each reads its keys, fills in defaults and notes problems.

mod attach;
mod classes;
mod daemon;
mod guard;
mod levels;
mod metrics;
mod ports;
mod signals;
mod sources;

use shedder_common::control::Mode;

use super::error::Problems;
use super::model::Config;
use super::section::Section;
use super::value;

pub(super) use self::signals::NEVER;

/// The version of the file format.
const VERSION: i64 = 1;

const KEYS: [&str; 11] = [
    "version", "mode", "attach", "daemon", "metrics", "guard", "levels", "signals", "classes", "source",
    "port",
];

/// Reads the whole file. The result means something only where no problem was noted.
pub(super) fn read(root: &Section<'_>, problems: &mut Problems<'_>) -> Config {
    root.expect_keys(&KEYS, problems);
    version(root, problems);
    let mode = root.read_or("mode", Mode::Observe, problems, value::mode).value;
    let attach = attach::read(root, problems);
    let (daemon, tick) = daemon::read(root, problems);
    let metrics = metrics::read(root, problems);
    let guard = guard::read(root, &metrics, problems);
    let levels = levels::read(root, &tick, problems);
    let signals = signals::read(root, &levels, &tick, problems);
    let classes = classes::read(root, problems);
    let sources = sources::read(root, &guard, problems);
    let ports = ports::read(root, &guard, problems);
    Config {
        mode,
        attach,
        daemon,
        metrics,
        guard,
        levels,
        signals,
        classes,
        sources,
        ports,
        follow_listeners: false,
    }
}

fn version(root: &Section<'_>, problems: &mut Problems<'_>) {
    root.require("version", "1", problems, |value| match value::integer(value)? {
        VERSION => Ok(()),
        other => {
            Err(format!("{other} is not known to this shedder: write {VERSION}, or install a newer shedder"))
        }
    });
}
