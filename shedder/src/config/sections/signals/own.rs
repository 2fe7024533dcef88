//! A signal of one's own: a number that an application or script writes.

use std::time::Duration;

use shedder_common::level::LEVELS;

use super::{RULES, SOURCE, Surroundings, plain, read_rules};
use crate::config::builtin::BUILTIN;
use crate::config::error::Problems;
use crate::config::model::{FileScope, Signal, SignalSource};
use crate::config::scope;
use crate::config::section::Section;
use crate::config::suggest::{did_you_mean, show, unknown};
use crate::config::value;
use crate::levels::{CONFIGURATION, OPERATOR};
use crate::trace::OFFERED_BELOW_QUOTA;

/// Names that stand for something else where signals are named, and what for.
const RESERVED: [(&str, &str); 3] = [
    (OPERATOR, "levels that an operator set"),
    (CONFIGURATION, "levels that a change of the configuration ended"),
    (OFFERED_BELOW_QUOTA, "what clients offer, in traces"),
];

/// Longest name, in bytes.
const LONGEST_NAME: usize = 64;

/// Reads the signal of that name; `None` where there is too little to go on.
pub(super) fn read(
    name: &str,
    signals: &Section<'_>,
    around: &Surroundings<'_>,
    problems: &mut Problems<'_>,
) -> Option<Signal> {
    let name_span = signals.key_span(name)?;
    let section = signals.open(name, problems)?;
    if !section.has("source") {
        let meant = match did_you_mean(name, BUILTIN.iter().map(|builtin| builtin.name)) {
            Some(near) => format!(", did you mean `{near}`? A"),
            None => ": a".to_owned(),
        };
        let shown = show(name);
        problems.at(
            name_span,
            format!(
                "unknown signal `{shown}`{meant} signal of your own needs source = \"file\", path and a level"
            ),
        );
        return None;
    }
    if let Err(why) = check_name(name) {
        problems.at(name_span, why);
    }
    section.expect_keys(&[&SOURCE[..], &RULES[..]].concat(), problems);
    section.read("source", problems, |value| match value::text(value, "file")? {
        "file" => Ok(()),
        other => Err(unknown("source", other, &["file"])),
    });
    let path = section.require("path", "\"/run/app/queue_age_seconds\"", problems, |value| {
        value::absolute_path(value, "/run/app/queue_age_seconds")
    });
    let scope = section
        .read_or("scope", FileScope::Host, problems, |value| scope::read(value::text(value, "host")?))
        .value;
    let mut signal = Signal {
        name: name.to_owned(),
        source: SignalSource::File { path: plain(path).unwrap_or_default(), scope },
        enabled: true,
        thresholds: [None; LEVELS],
        rise_after: Duration::ZERO,
        stale_after: around.levels.stale_after,
        on_loss: around.levels.on_loss,
    };
    read_rules(&section, &mut signal, around, problems);
    Some(signal)
}

fn check_name(name: &str) -> Result<(), String> {
    let shown = show(name);
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if let Some((_, meaning)) = RESERVED.iter().find(|(reserved, _)| *reserved == name) {
        Err(format!("`{shown}` stands for {meaning}: choose another name for the signal"))
    } else if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(fits) {
        Err(format!("`{shown}` cannot name a signal: use lower-case letters, digits and _, a letter first"))
    } else if name.len() > LONGEST_NAME {
        Err(format!("`{shown}` is too long for a signal: use {LONGEST_NAME} characters at most"))
    } else {
        Ok(())
    }
}
