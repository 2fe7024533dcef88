//! `[[source]]`

use std::collections::HashMap;

use super::guard::{capacity, too_many};
use crate::config::error::Problems;
use crate::config::model::{Guard, SourceClass};
use crate::config::section::Section;
use crate::config::value;

pub(super) fn read(root: &Section<'_>, guard: &Guard, problems: &mut Problems<'_>) -> Vec<SourceClass> {
    let mut sources = Vec::new();
    let mut lines = HashMap::new();
    let free = capacity().saturating_sub(guard.sources.len());
    for (index, section) in root.open_each("source", problems).into_iter().enumerate() {
        section.expect_keys(&["cidr", "class"], problems);
        if index == free && guard.sources.len() <= capacity() {
            problems.at(section.span(), too_many());
        }
        let cidr = section.require("cidr", "\"10.20.0.0/16\"", problems, value::cidr);
        let class = section.require("class", "\"core\"", problems, value::class);
        let Some(cidr) = cidr else { continue };
        let line = problems.line_of(&cidr.span());
        if let Some(earlier) = lines.insert(*cidr.get_ref(), line) {
            let again = cidr.get_ref();
            problems
                .at(cidr.span(), format!("source.cidr: {again} has its class from line {earlier}: keep one"));
        }
        sources.extend(class.map(|class| SourceClass { cidr: cidr.into_inner(), class: class.into_inner() }));
    }
    sources
}
