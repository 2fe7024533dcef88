//! `[classes.NAME]`

use shedder_common::class::{CLASSES, Class};
use shedder_common::level::LEVELS;
use toml::Spanned;

use crate::config::defaults;
use crate::config::error::Problems;
use crate::config::model::ClassRules;
use crate::config::section::Section;
use crate::config::value;

pub(super) fn read(root: &Section<'_>, problems: &mut Problems<'_>) -> [ClassRules; CLASSES] {
    let mut classes = defaults::classes();
    let Some(section) = root.open("classes", problems) else { return classes };
    section.expect_keys(&Class::ALL.map(Class::name), problems);
    for (class, rules) in Class::ALL.into_iter().zip(&mut classes) {
        if let Some(section) = section.open(class.name(), problems) {
            read_class(&section, rules, problems);
        }
    }
    classes
}

fn read_class(section: &Section<'_>, rules: &mut ClassRules, problems: &mut Problems<'_>) {
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
    rules.floor = section.read_or("floor", rules.floor, problems, value::ratio).value;
    rules.action = section.read("action", problems, value::action).map(Spanned::into_inner);
}
