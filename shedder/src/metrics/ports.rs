//! The data path: what was asked, admitted and refused.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use shedder_common::class::Class;
use shedder_common::counters::{Exempt, FailOpen, Unparsed, WAIT_BOUNDS_US};
use shedder_common::gate::Gate;

use super::family::{Counter, Families};
use crate::snapshot::{ClassQuota, ClassState, PortState, Snapshot};

pub(super) fn encode(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    connections(families, snapshot)?;
    refusals(families, snapshot)?;
    passed(families, snapshot)?;
    quotas(families, snapshot)?;
    queues(families, snapshot)
}

/// A class of a port; zeros where the snapshot has none, so that every series is there from the first scrape.
fn class_of(port: &PortState, class: Class) -> &ClassState {
    static NONE: LazyLock<ClassState> = LazyLock::new(ClassState::default);
    port.classes.get(class.name()).unwrap_or(&NONE)
}

fn connections(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    families.counter(
        "shedder_connections",
        "New connection attempts by verdict; reason is the gate that refused",
        |counter| {
            for port in &snapshot.ports {
                for class in Class::ALL {
                    let state = class_of(port, class);
                    let mut add = |verdict: &str, reason: &str, total: u64| {
                        let labels = [
                            ("port", port.port.as_str()),
                            ("protocol", port.protocol.as_str()),
                            ("class", class.name()),
                            ("verdict", verdict),
                            ("reason", reason),
                        ];
                        counter.add(&labels, total)
                    };
                    add("admitted", "", state.admitted)?;
                    for (verdict, by_gate) in [("shed", &state.shed), ("would_shed", &state.would_shed)] {
                        for gate in Gate::ALL {
                            add(verdict, gate.name(), count(by_gate, gate.name()))?;
                        }
                    }
                }
            }
            Ok(())
        },
    )
}

fn refusals(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    families.counter("shedder_resets_sent", "RST segments sent", |counter| {
        for port in &snapshot.ports {
            for class in Class::ALL {
                let labels = [("port", port.port.as_str()), ("class", class.name())];
                counter.add(&labels, class_of(port, class).resets_sent)?;
            }
        }
        Ok(())
    })?;
    families.counter(
        "shedder_resets_failed",
        "Resets that could not be sent; the packet was dropped instead",
        |counter| counter.add(&[], snapshot.resets_failed),
    )?;
    families.counter(
        "shedder_retransmits",
        "Repeated attempts by the verdict that the first one got",
        |counter| {
            for port in &snapshot.ports {
                let sum = |of: fn(&ClassState) -> u64| port.classes.values().map(of).sum();
                let label = ("port", port.port.as_str());
                counter.add(&[label, ("verdict", "admitted")], sum(|class| class.retransmits_admitted))?;
                counter.add(&[label, ("verdict", "shed")], sum(|class| class.retransmits_shed))?;
            }
            Ok(())
        },
    )
}

fn passed(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    families.counter("shedder_exempt", "New connections outside of every limit, by reason", |counter| {
        by_reason(counter, Exempt::ALL.map(Exempt::name), &snapshot.exempt)
    })?;
    families.counter(
        "shedder_unparsed",
        "Packets that could not be parsed and passed, by reason",
        |counter| by_reason(counter, Unparsed::ALL.map(Unparsed::name), &snapshot.unparsed),
    )?;
    families.counter("shedder_fail_open", "New connections that passed unjudged, by reason", |counter| {
        by_reason(counter, FailOpen::ALL.map(FailOpen::name), &snapshot.fail_open)
    })
}

fn quotas(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    families.gauge(
        "shedder_quota_rate_per_second",
        "New connections per second of the port from which on the class is refused; 0 where the class is closed",
        |gauge| {
            each_quota(snapshot, |labels, quota| {
                gauge.add(&labels, limit(quota, quota.rate_per_second))
            })
        },
    )?;
    families.gauge(
        "shedder_quota_connections",
        "Open connections of the port from which on the class is refused; 0 where the class is closed",
        |gauge| {
            each_quota(snapshot, |labels, quota| {
                gauge.add(&labels, limit(quota, quota.connections.map(f64::from)))
            })
        },
    )
}

fn queues(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    families.gauge("shedder_active_connections", "Live connections", |gauge| {
        for port in &snapshot.ports {
            gauge.add_count(&[("port", port.port.as_str())], port.active_connections)?;
        }
        Ok(())
    })?;
    families.counter(
        "shedder_untracked_connections",
        "Connections that could not be counted as live",
        |counter| counter.add(&[], snapshot.untracked_connections),
    )?;
    families.gauge(
        "shedder_accept_queue_depth_ratio",
        "Accept queue of the fullest listener over its backlog; NaN where nobody listens",
        |gauge| {
            for port in &snapshot.ports {
                let ratio = port.accept_queue.as_ref().map_or(f64::NAN, |queue| queue.depth_ratio);
                gauge.add(&[("port", port.port.as_str())], ratio)?;
            }
            Ok(())
        },
    )?;
    families.histogram(
        "shedder_accept_wait_seconds",
        "How long the oldest unaccepted connection had waited when a new one asked",
        |histogram| {
            let default_bounds = WAIT_BOUNDS_US.map(|bound| f64::from(bound) / 1e6);
            for port in &snapshot.ports {
                let wait = &port.accept_wait;
                let bounds = if wait.bounds_seconds.is_empty() {
                    &default_bounds[..]
                } else {
                    &wait.bounds_seconds[..]
                };
                histogram.add(&[("port", port.port.as_str())], bounds, &wait.counts, wait.sum_seconds)?;
            }
            Ok(())
        },
    )
}

fn each_quota(
    snapshot: &Snapshot,
    mut add: impl FnMut([(&str, &str); 2], &ClassQuota) -> fmt::Result,
) -> fmt::Result {
    for port in &snapshot.ports {
        for class in Class::ALL {
            let labels = [("port", port.port.as_str()), ("class", class.name())];
            add(labels, &class_of(port, class).quota)?;
        }
    }
    Ok(())
}

fn limit(quota: &ClassQuota, limit: Option<f64>) -> f64 {
    if quota.closed { 0.0 } else { limit.unwrap_or(f64::INFINITY) }
}

fn by_reason<const N: usize>(
    counter: &mut Counter<'_>,
    reasons: [&str; N],
    totals: &BTreeMap<String, u64>,
) -> fmt::Result {
    for reason in reasons {
        counter.add(&[("reason", reason)], count(totals, reason))?;
    }
    Ok(())
}

fn count(totals: &BTreeMap<String, u64>, name: &str) -> u64 {
    totals.get(name).copied().unwrap_or_default()
}
