//! `[[port]]`; policies that differ in nothing but a run of ports are one range again.

use std::fmt;

use super::write::{float, quoted, strings};
use crate::config::model::{Destinations, Guard, PortPolicy};
use crate::config::units::{UNLIMITED, show_duration, show_rate};

pub(super) fn write(out: &mut impl fmt::Write, policies: &[PortPolicy], guard: &Guard) -> fmt::Result {
    policies
        .chunk_by(continues)
        .filter_map(|run| Some((run.first()?, run.last()?)))
        .try_for_each(|(first, last)| write_run(out, first, last.last, guard))
}

/// Whether `next` is the same policy for the port after that of `policy`.
fn continues(policy: &PortPolicy, next: &PortPolicy) -> bool {
    let singles = policy.first == policy.last && next.first == next.last;
    singles
        && policy.last.checked_add(1) == Some(next.first)
        && *next == PortPolicy { first: next.first, last: next.last, ..policy.clone() }
}

/// Writes `policy` for its ports up to `last`; one quota for all of them where the policy itself is a range.
fn write_run(out: &mut impl fmt::Write, policy: &PortPolicy, last: u16, guard: &Guard) -> fmt::Result {
    let first = policy.first;
    writeln!(out, "\n[[port]]")?;
    if first == last {
        writeln!(out, "port = {first}")?;
    } else {
        writeln!(out, "port = {}", quoted(&format!("{first}-{last}")))?;
        writeln!(out, "shared = {}", policy.first != policy.last)?;
    }
    if guard.ports.iter().any(|port| (first..=last).contains(port)) {
        writeln!(out, "override_guard = true")?;
    }
    writeln!(out, "protocol = \"tcp\"")?;
    writeln!(out, "class = {}", quoted(policy.class.name()))?;
    writeln!(out, "rate = {}", quoted(&show_rate(policy.rate)))?;
    match policy.burst {
        Some(burst) => writeln!(out, "burst = {burst}")?,
        None => writeln!(out, "# burst: a tenth of a second's worth of rate, 1 at least")?,
    }
    writeln!(out, "connections = {}", or_unlimited(policy.connections.map(|most| most.to_string())))?;
    writeln!(out, "queue_depth = {}", or_unlimited(policy.queue_depth.map(float)))?;
    writeln!(
        out,
        "queue_wait = {}",
        or_unlimited(policy.queue_wait.map(|wait| quoted(&show_duration(wait))))
    )?;
    writeln!(out, "action = {}", quoted(policy.action.name()))?;
    match &policy.to {
        Destinations::Local => writeln!(out, "to = \"local\""),
        Destinations::Any => writeln!(out, "to = \"any\""),
        Destinations::Listed(listed) => {
            writeln!(out, "to = {}", strings(listed.iter().map(ToString::to_string)))
        }
    }
}

fn or_unlimited(limit: Option<String>) -> String {
    limit.unwrap_or_else(|| quoted(UNLIMITED))
}
