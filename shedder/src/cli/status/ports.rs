//! The ports: what their own class sees, and what became of whom.

use std::collections::BTreeMap;

use shedder_common::class::Class;
use shedder_common::gate::Gate;

use super::words::counts;
use crate::cli::table::{Align, Table};
use crate::explain::set_by_operator;
use crate::snapshot::{AcceptQueue, ClassQuota, ClassState, PortState, Snapshot};
use crate::words::{number, percent, seconds};

/// A port on which an operator has set something is marked with `*`.
pub(super) fn ports(snapshot: &Snapshot) -> Table {
    let mut table = Table::new([
        ("PORT", Align::Left),
        ("CLASS", Align::Left),
        ("LEVEL", Align::Left),
        ("RATE", Align::Left),
        ("CONNECTIONS", Align::Left),
        ("ACCEPT QUEUE", Align::Left),
        ("OLDEST WAITS", Align::Left),
        ("ACTION", Align::Left),
        ("ADMITTED", Align::Right),
        ("SHED", Align::Right),
        ("WOULD SHED", Align::Right),
    ]);
    for port in &snapshot.ports {
        let own = port.classes.get(&port.class).cloned().unwrap_or_default();
        let quota = &own.quota;
        table.row([
            format!("{} {}{}", port.protocol, port.port, if port.set.is_empty() { "" } else { "*" }),
            port.class.clone(),
            port.level.clone(),
            rate(quota, &port.rate),
            format!(
                "{} ({})",
                port.active_connections,
                most(quota.connections.map(|limit| limit.to_string()))
            ),
            queue(port.accept_queue.as_ref(), quota, snapshot.daemon),
            oldest(port.recent.wait_seconds, quota),
            port.action.clone(),
            total(port, |class| class.admitted).to_string(),
            total(port, |class| sum(&class.shed)).to_string(),
            total(port, |class| sum(&class.would_shed)).to_string(),
        ]);
        if let Some(set) = set_by_operator(&port.set) {
            table.note(&format!("* {set}"));
        }
        if let Some(left) = port.ramp_remaining_seconds {
            table.note(&format!("after the step down, shares still climb for {}", seconds(left)));
        }
        for class in Class::ALL {
            if let Some(note) = port.classes.get(class.name()).and_then(refusals) {
                table.note(&format!("{}: {note}", class.name()));
            }
        }
    }
    table
}

fn rate(quota: &ClassQuota, configured: &str) -> String {
    let learned = if configured == "learned" { ", learned" } else { "" };
    if quota.closed {
        return match quota.floor_per_second {
            Some(floor) if floor > 0.0 => format!("closed but for {}/s", number(floor)),
            _ => "closed".to_owned(),
        };
    }
    format!("{}{learned}", most(quota.rate_per_second.map(|rate| format!("{}/s", number(rate)))))
}

/// Without a daemon nobody has looked at the listeners.
fn queue(queue: Option<&AcceptQueue>, quota: &ClassQuota, looked: bool) -> String {
    let limit = most(quota.queue_depth_ratio.map(percent));
    match queue {
        Some(queue) => format!("{} of {} ({limit})", queue.depth, queue.backlog),
        None if looked => "nobody listens".to_owned(),
        None => format!("not known ({limit})"),
    }
}

fn oldest(waited: Option<f64>, quota: &ClassQuota) -> String {
    let limit = most(quota.queue_wait_seconds.map(seconds));
    match waited {
        Some(waited) => format!("{} ({limit})", seconds(waited)),
        None => limit,
    }
}

/// What is to be known of the counts; empty where nothing is.
pub(super) fn about_counts(snapshot: &Snapshot) -> &'static str {
    let would_shed = |port: &PortState| total(port, |class| sum(&class.would_shed)) > 0;
    if snapshot.mode == "observe" && snapshot.ports.iter().any(would_shed) {
        "  WOULD SHED counts more than `enforce` would refuse: where nothing is refused, what is full stays full.\n"
    } else {
        ""
    }
}

fn most(limit: Option<String>) -> String {
    limit.map_or_else(|| "no limit".to_owned(), |limit| format!("max {limit}"))
}

/// What was refused, by gate; `None` where nothing was.
fn refusals(class: &ClassState) -> Option<String> {
    let gates = || Gate::ALL.map(Gate::name);
    let parts: Vec<String> = [("shed", &class.shed), ("would shed", &class.would_shed)]
        .into_iter()
        .map(|(verdict, by_gate)| (verdict, counts(gates(), by_gate)))
        .filter(|(_, by_gate)| !by_gate.is_empty())
        .map(|(verdict, by_gate)| format!("{verdict} by {by_gate}"))
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn total(port: &PortState, of: impl Fn(&ClassState) -> u64) -> u64 {
    port.classes.values().map(of).sum()
}

fn sum(totals: &BTreeMap<String, u64>) -> u64 {
    totals.values().sum()
}
