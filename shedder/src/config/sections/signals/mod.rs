//! `[signals.NAME]`

mod own;
mod thresholds;

use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::levels::expect_a_tick;
use crate::config::builtin::{self, BUILTIN, Builtin};
use crate::config::error::Problems;
use crate::config::model::{LevelRules, PsiWindow, Signal, SignalSource};
use crate::config::section::{Section, Setting};
use crate::config::suggest::unknown;
use crate::config::units::show_duration;
use crate::config::value::{self, Read};

pub(in crate::config) use self::thresholds::NEVER;

/// Keys that every signal may have.
const RULES: [&str; 7] = ["enabled", "moderate", "high", "emergency", "for", "stale_after", "on_loss"];

/// Keys of a signal of one's own.
const SOURCE: [&str; 3] = ["source", "path", "scope"];

const SHORTEST_WINDOW: Duration = Duration::from_millis(10);
const LONGEST_WINDOW: Duration = Duration::from_secs(300);

/// What signals inherit and are checked against.
struct Surroundings<'s> {
    levels: &'s LevelRules,
    tick: &'s Setting<Duration>,
}

/// The built-in signals in their order, then those of one's own by name.
pub(super) fn read(
    root: &Section<'_>,
    levels: &LevelRules,
    tick: &Setting<Duration>,
    problems: &mut Problems<'_>,
) -> Vec<Signal> {
    let Some(section) = root.open("signals", problems) else { return builtin::defaults(levels) };
    let around = Surroundings { levels, tick };
    let mut signals = Vec::new();
    for builtin in &BUILTIN {
        match section.open(builtin.name, problems) {
            Some(section) => signals.push(read_builtin(builtin, &section, &around, problems)),
            None if builtin.is_default() => signals.push(builtin.signal(levels)),
            None => {}
        }
    }
    for name in section.keys().filter(|name| builtin::find(name).is_none()) {
        signals.extend(own::read(name, &section, &around, problems));
    }
    signals
}

fn read_builtin(
    builtin: &Builtin,
    section: &Section<'_>,
    around: &Surroundings<'_>,
    problems: &mut Problems<'_>,
) -> Signal {
    let mut signal = builtin.signal(around.levels);
    for span in SOURCE.iter().filter_map(|key| section.key_span(key)) {
        let name = builtin.name;
        problems
            .at(span, format!("`{name}` is read by shedder itself: give a signal of your own another name"));
    }
    let mut keys = [&RULES[..], &SOURCE[..]].concat();
    if let SignalSource::Psi { window: window_of, .. } = &mut signal.source {
        keys.push("window");
        if let Some(given) = section.read("window", problems, window) {
            *window_of = given.into_inner();
        }
    }
    section.expect_keys(&keys, problems);
    read_rules(section, &mut signal, around, problems);
    signal
}

/// What every signal may say, on top of what `signal` already holds.
fn read_rules(
    section: &Section<'_>,
    signal: &mut Signal,
    around: &Surroundings<'_>,
    problems: &mut Problems<'_>,
) {
    signal.enabled = section.read_or("enabled", true, problems, value::boolean).value;
    signal.rise_after = section.read_or("for", signal.rise_after, problems, value::duration).value;
    signal.on_loss = section.read_or("on_loss", signal.on_loss, problems, value::on_loss).value;
    if let Some(given) = section.read("stale_after", problems, value::duration) {
        signal.stale_after = *given.get_ref();
        let given = Setting { value: *given.get_ref(), span: Some(given.span()) };
        expect_a_tick(&section.path_of("stale_after"), &given, around.tick, problems);
    }
    thresholds::read(section, signal, problems);
}

fn window(value: &DeValue<'_>) -> Read<PsiWindow> {
    match value.as_str() {
        Some("avg10") => return Ok(PsiWindow::Avg10),
        Some("avg60") => return Ok(PsiWindow::Avg60),
        Some("avg300") => return Ok(PsiWindow::Avg300),
        Some(word) if word.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            return Err(unknown("window", word, &["1s", "avg10", "avg60", "avg300"]));
        }
        _ => {}
    }
    let window = value::duration(value)?;
    if (SHORTEST_WINDOW..=LONGEST_WINDOW).contains(&window) {
        Ok(PsiWindow::Over(window))
    } else {
        Err(format!("{} is outside of 10ms..5m: choose within, such as \"1s\"", show_duration(window)))
    }
}

/// A value that was read, without its place.
fn plain<T>(read: Option<Spanned<T>>) -> Option<T> {
    read.map(Spanned::into_inner)
}
