//! A snapshot as text for a terminal.

use std::collections::BTreeMap;

use shedder_common::counters::{Exempt, FailOpen, Unparsed};
use shedder_common::level::Level;

use super::ports::{about_counts, ports};
use super::words::{counts, scope};
use crate::cli::Style;
use crate::cli::output::clean;
use crate::cli::table::{Align, Table};
use crate::snapshot::{SignalState, Snapshot};
use crate::words::{reading, seconds, threshold as configured};

/// Tables of everything in the snapshot; the mode first, the warnings last.
#[must_use]
pub fn render(snapshot: &Snapshot, style: Style) -> String {
    let mut text = heading(snapshot, style);
    let mut section = |title: &str, empty: bool, body: String| {
        if !empty {
            text.push('\n');
            text.push_str(&style.strong(title));
            text.push('\n');
            text.push_str(&body);
        }
    };
    section("INTERFACES", false, or_none(snapshot.attachments.is_empty(), &interfaces(snapshot)));
    section("LEVELS", snapshot.levels.is_empty(), levels(snapshot).text());
    section("SIGNALS, with enter/exit thresholds", snapshot.signals.is_empty(), signals(snapshot).text());
    section(
        "PORTS, limits of all sources together, IPv4 and IPv6, as the port's class sees them",
        false,
        or_none(snapshot.ports.is_empty(), &ports(snapshot)) + about_counts(snapshot),
    );
    let exceptions = exceptions(snapshot);
    section("EXCEPTIONS", exceptions.is_empty(), exceptions);
    let warnings: String =
        snapshot.warnings.iter().map(|warning| format!("  {}\n", clean(warning))).collect();
    section("WARNINGS", warnings.is_empty(), warnings);
    text
}

fn or_none(empty: bool, table: &Table) -> String {
    if empty { "  none\n".to_owned() } else { table.text() }
}

fn heading(snapshot: &Snapshot, style: Style) -> String {
    let name = if snapshot.shedder_version.is_empty() {
        "shedder".to_owned()
    } else {
        format!("shedder {}", clean(&snapshot.shedder_version))
    };
    let mode = style.strong(&format!("mode {}", clean(&snapshot.mode).to_uppercase()));
    let leased = snapshot.lease_remaining_seconds > 0.0;
    let serves = snapshot.attachments.iter().any(|attachment| attachment.mode != "none");
    let meaning = match snapshot.mode.as_str() {
        "observe" if !serves => {
            "it REFUSES NOTHING, and counts nothing either, because no interface is served"
        }
        "observe" => "it decides and counts, and REFUSES NOTHING; `shedder mode enforce` makes it refuse",
        "enforce" if !leased => "it REFUSES NOTHING, because its lease has ended",
        "enforce" if !serves => "it REFUSES NOTHING, because no interface is served",
        "enforce" => "it refuses what the limits do not admit",
        "off" => "it decides nothing, counts nothing, passes everything",
        _ => "this `shedder` does not know that mode",
    };
    let mut text = format!("{name}, {mode}: {meaning}\n");
    if !snapshot.daemon {
        text.push_str("no daemon: this is what the pinned maps say; start one with `shedder run`\n");
    }
    if leased {
        let left = seconds(snapshot.lease_remaining_seconds);
        text.push_str(&format!(
            "lease: {left} left; unless it is renewed, the kernel then passes everything\n"
        ));
    } else {
        text.push_str("lease: ended; the kernel passes everything\n");
    }
    let ticks = &snapshot.ticks;
    if ticks.total > 0 {
        // A mean to show; no need for more than 52 bits of a count.
        #[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
        let mean = ticks.sum_seconds / ticks.total as f64;
        text.push_str(&format!(
            "loop: {} ticks, one every {}, {} of work each\n",
            ticks.total,
            seconds(ticks.interval_seconds),
            seconds(mean)
        ));
    }
    text
}

fn interfaces(snapshot: &Snapshot) -> Table {
    let mut table = Table::new([("NAME", Align::Left), ("SERVED BY", Align::Left), ("WHY", Align::Left)]);
    for attachment in &snapshot.attachments {
        let mode = if attachment.mode == "none" { "NOTHING" } else { &attachment.mode };
        table.row([attachment.interface.clone(), mode.to_owned(), attachment.reason.clone()]);
    }
    table
}

fn levels(snapshot: &Snapshot) -> Table {
    let mut table = Table::new([
        ("SCOPE", Align::Left),
        ("LEVEL", Align::Left),
        ("FOR", Align::Right),
        ("BECAUSE OF", Align::Left),
    ]);
    for level in &snapshot.levels {
        table.row([
            scope(&level.scope),
            level.level.clone(),
            seconds(level.held_seconds),
            if level.signal.is_empty() { "-".to_owned() } else { level.signal.clone() },
        ]);
    }
    table
}

fn signals(snapshot: &Snapshot) -> Table {
    let mut table = Table::new([
        ("SIGNAL", Align::Left),
        ("SCOPE", Align::Left),
        ("VALUE", Align::Right),
        ("MODERATE", Align::Left),
        ("HIGH", Align::Left),
        ("EMERGENCY", Align::Left),
        ("DEMANDS", Align::Left),
        ("FOR", Align::Right),
    ]);
    for signal in &snapshot.signals {
        table.row([
            signal.signal.clone(),
            scope(&signal.scope),
            signal.value.map_or_else(|| "unavailable".to_owned(), |value| reading(value, &signal.unit)),
            threshold(signal, Level::Moderate),
            threshold(signal, Level::High),
            threshold(signal, Level::Emergency),
            signal.demands.clone(),
            seconds(signal.since_seconds),
        ]);
        if signal.value.is_none() && !signal.unavailable.is_empty() {
            table.note(&format!("unavailable: {}", signal.unavailable));
        }
    }
    table
}

fn threshold(signal: &SignalState, level: Level) -> String {
    // All thresholds of a signal have the unit of its value.
    let of =
        |by_level: &BTreeMap<String, f64>| by_level.get(level.name()).map(|value| configured(*value, ""));
    match (of(&signal.enter), of(&signal.exit)) {
        (None, None) => "-".to_owned(),
        (enter, exit) => format!("{}/{}", enter.unwrap_or_default(), exit.unwrap_or_default()),
    }
}

/// What passed without a judgement and what could not be done, without zeros; empty where there is nothing.
fn exceptions(snapshot: &Snapshot) -> String {
    let lines = [
        ("passed on doubt", counts(FailOpen::ALL.map(FailOpen::name), &snapshot.fail_open)),
        ("not parsed", counts(Unparsed::ALL.map(Unparsed::name), &snapshot.unparsed)),
        ("exempt", counts(Exempt::ALL.map(Exempt::name), &snapshot.exempt)),
        ("not counted as live", nonzero(snapshot.untracked_connections)),
        ("dropped for want of a reset", nonzero(snapshot.resets_failed)),
    ];
    lines
        .into_iter()
        .filter(|(_, counts)| !counts.is_empty())
        .map(|(what, counts)| format!("  {what}: {counts}\n"))
        .collect()
}

fn nonzero(count: u64) -> String {
    if count == 0 { String::new() } else { count.to_string() }
}
