//! `[guard]`

use shedder_common::abi::MAX_CIDRS;
use toml::Spanned;
use toml::de::DeValue;

use crate::config::defaults;
use crate::config::error::Problems;
use crate::config::model::{Guard, Metrics, RateLimit};
use crate::config::section::Section;
use crate::config::value::{self, Read};

pub(super) fn read(root: &Section<'_>, metrics: &Metrics, problems: &mut Problems<'_>) -> Guard {
    let mut guard = defaults::guard(metrics);
    let Some(section) = root.open("guard", problems) else { return guard };
    section.expect_keys(&["ports", "sources", "rate"], problems);
    if let Some(ports) = section.read_list("ports", problems, value::port) {
        guard.ports.clear();
        let endpoint = metrics.listen.map(|address| address.port());
        for port in ports.into_iter().map(Spanned::into_inner).chain(endpoint) {
            if !guard.ports.contains(&port) {
                guard.ports.push(port);
            }
        }
    }
    if let Some(sources) = section.read_list("sources", problems, value::cidr) {
        if let Some(beyond) = sources.get(capacity()) {
            problems.at(beyond.span(), too_many());
        }
        guard.sources = sources.into_iter().map(Spanned::into_inner).collect();
    }
    guard.rate = section.read_or("rate", guard.rate, problems, rate).value;
    guard
}

/// Most CIDRs in `guard.sources` and `[[source]]` together.
pub(super) fn capacity() -> usize {
    usize::try_from(MAX_CIDRS).unwrap_or(usize::MAX)
}

pub(super) fn too_many() -> String {
    format!(
        "more than {MAX_CIDRS} CIDRs in guard.sources and [[source]] together: merge some into shorter prefixes"
    )
}

fn rate(value: &DeValue<'_>) -> Read<RateLimit> {
    match value::rate(value)? {
        RateLimit::Learned => {
            Err("exempt sources have no port to learn from: write \"1000/s\" or \"unlimited\"".to_owned())
        }
        rate => Ok(rate),
    }
}
