//! `moderate`, `high` and `emergency` of a signal.

use std::ops::Range;

use shedder_common::level::Level;

use crate::config::error::Problems;
use crate::config::model::{Signal, Threshold};
use crate::config::section::{Section, type_name};
use crate::config::value;

/// Instead of a threshold: the signal does not demand the level, although by default it would.
pub(in crate::config) const NEVER: &str = "never";

/// A level that is demanded, and where the file says so.
struct Demand {
    level: Level,
    threshold: Threshold,
    span: Option<Range<usize>>,
}

/// Reads the thresholds that the file gives over those that `signal` has.
pub(super) fn read(section: &Section<'_>, signal: &mut Signal, problems: &mut Problems<'_>) {
    let found_before = problems.count();
    let mut demands = Vec::new();
    for (level, threshold) in Level::ALL.into_iter().zip(&mut signal.thresholds).skip(1) {
        let mut span = None;
        if let Some(value) = section.value(level.name()) {
            span = Some(value.span());
            *threshold = read_one(section, level, *threshold, problems);
        }
        demands.extend(threshold.map(|threshold| Demand { level, threshold, span }));
    }
    if problems.count() == found_before {
        expect_rise(section, &demands, problems);
        if demands.is_empty() && signal.enabled {
            let name = &signal.name;
            problems.at(
                section.span(),
                format!(
                    "signal `{name}` demands no level: add one such as `high = {{ enter = 10, exit = 5 }}`, or \
                     `enabled = false`"
                ),
            );
        }
    }
}

/// The threshold of a level that the file names.
fn read_one(
    section: &Section<'_>,
    level: Level,
    default: Option<Threshold>,
    problems: &mut Problems<'_>,
) -> Option<Threshold> {
    let value = section.value(level.name())?;
    if value.get_ref().as_str() == Some(NEVER) {
        return None;
    }
    let path = section.path_of(level.name());
    if !value.get_ref().is_table() {
        let found = type_name(value.get_ref());
        problems.at(
            value.span(),
            format!("{path}: expected {{ enter = 10, exit = 5 }} or \"{NEVER}\", found {found}"),
        );
        return None;
    }
    let section = section.open(level.name(), problems)?;
    section.expect_keys(&["enter", "exit"], problems);
    let mut read = |key, default: Option<f64>| {
        let given = match default {
            None => section.require(key, "10", problems, value::number),
            Some(_) => section.read(key, problems, value::number),
        };
        let span = given.as_ref().map(toml::Spanned::span);
        let wrong = given.is_none() && section.has(key);
        let number = given.map(toml::Spanned::into_inner).or(default).filter(|_| !wrong)?;
        Some((number, span))
    };
    let enter = read("enter", default.map(|default| default.enter));
    let exit = read("exit", default.map(|default| default.exit));
    let ((enter, enter_span), (exit, exit_span)) = (enter?, exit?);
    if enter > exit {
        return Some(Threshold { enter, exit });
    }
    problems.at(
        enter_span.or(exit_span).unwrap_or_else(|| section.span()),
        format!("{path}: enter ({enter}) is not above exit ({exit}): raise enter or lower exit"),
    );
    None
}

/// A higher level must not be demanded sooner, nor end later, than a lower one.
fn expect_rise(section: &Section<'_>, demands: &[Demand], problems: &mut Problems<'_>) {
    for pair in demands.windows(2) {
        let [lower, upper] = pair else { continue };
        let fallen = [
            ("enter", lower.threshold.enter, upper.threshold.enter),
            ("exit", lower.threshold.exit, upper.threshold.exit),
        ];
        let Some((key, below, above)) = fallen.into_iter().find(|(_, below, above)| above < below) else {
            continue;
        };
        let span = upper.span.clone().or_else(|| lower.span.clone()).unwrap_or_else(|| section.span());
        let path = section.path_of(upper.level.name());
        let lower = lower.level.name();
        problems.at(
            span,
            format!(
                "{path}: {key} ({above}) is below that of {lower} ({below}): thresholds rise with the level"
            ),
        );
    }
}
