//! `[classes.NAME]`

use std::ops::Range;

use shedder_common::class::{CLASSES, Class};
use shedder_common::level::LEVELS;
use toml::Spanned;

use crate::config::defaults;
use crate::config::error::Problems;
use crate::config::model::ClassRules;
use crate::config::section::Section;
use crate::config::value;

/// Sums of decimals are not exact.
const ROUNDING: f64 = 1e-9;

pub(super) fn read(root: &Section<'_>, problems: &mut Problems<'_>) -> [ClassRules; CLASSES] {
    let mut classes = defaults::classes();
    let Some(section) = root.open("classes", problems) else { return classes };
    section.expect_keys(&Class::ALL.map(Class::name), problems);
    let mut last_floor = None;
    for (class, rules) in Class::ALL.into_iter().zip(&mut classes) {
        if let Some(section) = section.open(class.name(), problems) {
            last_floor = read_class(&section, rules, problems).or(last_floor);
        }
    }
    if let Some(span) = last_floor {
        expect_room(&classes, span, problems);
    }
    classes
}

/// What the classes keep of a rate whatever the others do cannot be more than the rate.
fn expect_room(classes: &[ClassRules; CLASSES], span: Range<usize>, problems: &mut Problems<'_>) {
    let floors = Class::ALL.into_iter().zip(classes).filter(|(_, rules)| rules.floor > 0.0);
    let sum: f64 = floors.clone().map(|(_, rules)| rules.floor).sum();
    if sum <= 1.0 + ROUNDING {
        return;
    }
    let named: Vec<String> =
        floors.map(|(class, rules)| format!("{} {}", class.name(), rules.floor)).collect();
    problems.at(
        span,
        format!(
            "the floors of all classes together are {:.3} ({}), more than the rate that they are parts of: lower them to \
             1 at most",
            sum,
            named.join(", ")
        ),
    );
}

/// Returns where the file sets the floor.
fn read_class(
    section: &Section<'_>,
    rules: &mut ClassRules,
    problems: &mut Problems<'_>,
) -> Option<Range<usize>> {
    section.expect_keys(&["shares", "floor", "action"], problems);
    let found_before = problems.count();
    if let Some(shares) = section.read_list("shares", problems, value::ratio) {
        let shares: Vec<f64> = shares.into_iter().map(Spanned::into_inner).collect();
        let given = shares.len();
        if let Ok(shares) = shares.try_into() {
            rules.shares = shares;
        } else if problems.count() == found_before {
            let span = section.value("shares").map_or(section.span(), Spanned::span);
            let path = section.path_of("shares");
            problems.at(
                span,
                format!(
                    "{path} has {given} values: write {LEVELS}, for normal, moderate, high and emergency"
                ),
            );
        }
    }
    let floor = section.read_or("floor", rules.floor, problems, value::ratio);
    rules.floor = floor.value;
    rules.action = section.read("action", problems, value::action).map(Spanned::into_inner);
    floor.span
}
