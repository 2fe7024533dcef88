//! The ports: what their own class sees, and what became of whom.

use std::collections::BTreeMap;

use shedder_common::class::Class;
use shedder_common::gate::Gate;

use super::words::{counts, number, percent, seconds};
use crate::cli::table::{Align, Table};
use crate::snapshot::{AcceptQueue, ClassQuota, ClassState, PortState};

pub(super) fn ports(ports: &[PortState]) -> Table {
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
    for port in ports {
        let own = port.classes.get(&port.class).cloned().unwrap_or_default();
        let quota = &own.quota;
        table.row([
            format!("{} {}", port.protocol, port.port),
            port.class.clone(),
            port.level.clone(),
            rate(quota, &port.rate),
            format!(
                "{} ({})",
                port.active_connections,
                most(quota.connections.map(|limit| limit.to_string()))
            ),
            queue(port.accept_queue.as_ref(), quota),
            most(quota.queue_wait_seconds.map(seconds)),
            port.action.clone(),
            total(port, |class| class.admitted).to_string(),
            total(port, |class| sum(&class.shed)).to_string(),
            total(port, |class| sum(&class.would_shed)).to_string(),
        ]);
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

fn queue(queue: Option<&AcceptQueue>, quota: &ClassQuota) -> String {
    let limit = most(quota.queue_depth_ratio.map(percent));
    match queue {
        Some(queue) => format!("{} of {} ({limit})", queue.depth, queue.backlog),
        None => "nobody listens".to_owned(),
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
