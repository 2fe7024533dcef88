//! One `[[port]]`.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use crate::config::error::Problems;
use crate::config::model::{Destinations, PortPolicy};
use crate::config::range::PortRange;
use crate::config::section::Section;
use crate::config::suggest::{show, unknown};
use crate::config::value::{self, Read};

const KEYS: [&str; 12] = [
    "port",
    "shared",
    "protocol",
    "class",
    "rate",
    "burst",
    "connections",
    "queue_depth",
    "queue_wait",
    "action",
    "to",
    "override_guard",
];

/// One `[[port]]` as it stands in the file.
pub(super) struct Entry {
    pub(super) range: Spanned<PortRange>,
    /// The whole range shares one quota.
    pub(super) shared: bool,
    pub(super) override_guard: bool,
    /// The limits; its ports are those of the first.
    pub(super) policy: PortPolicy,
    /// Where `to` stands, if it does.
    pub(super) to_span: Option<Range<usize>>,
}

/// Reads an entry; `None` where its ports are not known.
pub(super) fn read(section: &Section<'_>, problems: &mut Problems<'_>) -> Option<Entry> {
    section.expect_keys(&KEYS, problems);
    section.read("protocol", problems, protocol);
    let range = section.require("port", "8080", problems, PortRange::read);
    let defaults = PortPolicy::of_port(range.as_ref().map_or(0, |range| range.get_ref().first));
    let policy = PortPolicy {
        class: section.read_or("class", defaults.class, problems, value::class).value,
        rate: section.read_or("rate", defaults.rate, problems, value::rate).value,
        burst: section.read("burst", problems, value::burst).map(Spanned::into_inner),
        connections: section.read_or("connections", defaults.connections, problems, value::connections).value,
        queue_depth: section.read_or("queue_depth", defaults.queue_depth, problems, value::queue_depth).value,
        queue_wait: section.read_or("queue_wait", defaults.queue_wait, problems, value::queue_wait).value,
        action: section.read_or("action", defaults.action, problems, value::action).value,
        to: destinations(section, problems),
        ..defaults
    };
    let shared = section.read_or("shared", false, problems, value::boolean).value;
    let override_guard = section.read_or("override_guard", false, problems, value::boolean).value;
    let to_span = section.value("to").map(Spanned::span);
    Some(Entry { range: range?, shared, override_guard, policy, to_span })
}

fn protocol(value: &DeValue<'_>) -> Read<()> {
    match value::text(value, "tcp")? {
        "tcp" => Ok(()),
        "udp" => Err("udp is not supported yet, tcp only: leave protocol out, or write \"tcp\"".to_owned()),
        other => Err(unknown("protocol", other, &["tcp"])),
    }
}

fn destinations(section: &Section<'_>, problems: &mut Problems<'_>) -> Destinations {
    let Some(value) = section.value("to") else { return Destinations::Local };
    if !value.get_ref().is_array() {
        return section.read_or("to", Destinations::Local, problems, destination_word).value;
    }
    let found_before = problems.count();
    let listed = section.read_list("to", problems, value::cidr).unwrap_or_default();
    if listed.is_empty() && problems.count() == found_before {
        problems.at(
            value.span(),
            "port.to is empty, so the policy covers nothing: write CIDRs, \"local\" or \"any\"",
        );
    }
    Destinations::Listed(listed.into_iter().map(Spanned::into_inner).collect())
}

fn destination_word(value: &DeValue<'_>) -> Read<Destinations> {
    match value::text(value, "local")? {
        "local" => Ok(Destinations::Local),
        "any" => Ok(Destinations::Any),
        other if other.contains(['/', '.', ':']) => {
            Err(format!("CIDRs stand in a list: write [\"{}\"]", show(other)))
        }
        other => Err(unknown("destination", other, &["local", "any"])),
    }
}
