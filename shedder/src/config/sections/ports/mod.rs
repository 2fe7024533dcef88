//! `[[port]]`

mod policy;

use std::collections::BTreeMap;

use shedder_common::abi::{MAX_CIDRS, MAX_POLICIES};

use self::policy::Entry;
use crate::config::error::Problems;
use crate::config::model::{Destinations, Guard, PortPolicy};
use crate::config::range::PortRange;
use crate::config::section::Section;

/// Most policies; slot 0 means "no policy".
const MOST_POLICIES: u32 = MAX_POLICIES - 1;

pub(super) fn read(root: &Section<'_>, guard: &Guard, problems: &mut Problems<'_>) -> Vec<PortPolicy> {
    let mut policies = Policies::default();
    for section in root.open_each("port", problems) {
        let Some(entry) = policy::read(&section, problems) else { continue };
        expect_unguarded(&entry, guard, problems);
        if policies.expect_free(&entry, problems) {
            policies.add(entry, problems);
        }
    }
    policies.made
}

/// A policy must not lock the operator out by oversight.
fn expect_unguarded(entry: &Entry, guard: &Guard, problems: &mut Problems<'_>) {
    let range = entry.range.get_ref();
    let Some(port) = guard.ports.iter().find(|port| range.contains(**port)).filter(|_| !entry.override_guard)
    else {
        return;
    };
    problems.at(
        entry.range.span(),
        format!("port.port: {port} is guarded and never shed: leave it out, or add `override_guard = true`"),
    );
}

/// The policies made so far, and what they take up.
#[derive(Default)]
struct Policies {
    made: Vec<PortPolicy>,
    /// By first port: last port and line. They do not overlap.
    covered: BTreeMap<u16, (PortRange, usize)>,
    /// Including those beyond the limit.
    policies: usize,
    destinations: usize,
}

impl Policies {
    /// Notes a problem where an earlier policy already covers a port of this one.
    fn expect_free(&mut self, entry: &Entry, problems: &mut Problems<'_>) -> bool {
        let range = *entry.range.get_ref();
        let nearest = self.covered.range(..=range.last).next_back();
        if let Some((_, (earlier, line))) = nearest.filter(|(_, (earlier, _))| earlier.last >= range.first) {
            let (label, earlier) = (range.label(), earlier.label());
            problems.at(
                entry.range.span(),
                format!("port.port: {label} overlaps with {earlier} of line {line}: a port has one policy"),
            );
            return false;
        }
        self.covered.insert(range.first, (range, problems.line_of(&entry.range.span())));
        true
    }

    /// Adds one policy, or one for each port of a range, as long as they fit into the kernel's tables.
    fn add(&mut self, entry: Entry, problems: &mut Problems<'_>) {
        let range = *entry.range.get_ref();
        let count = if entry.shared { 1 } else { range.width() };
        let fitted = fits(self.policies, MOST_POLICIES) && fits(self.destinations, MAX_CIDRS);
        self.policies = self.policies.saturating_add(count);
        if let Destinations::Listed(listed) = &entry.policy.to {
            self.destinations = self.destinations.saturating_add(listed.len().saturating_mul(count));
        }
        let total = self.policies;
        if !fits(total, MOST_POLICIES) {
            if fitted {
                problems.at(
                    entry.range.span(),
                    format!(
                        "port.port: {} makes {total} policies, {MOST_POLICIES} fit: add `shared = true` to wide ranges, \
                         so that each takes one quota instead of one for each port",
                        range.label()
                    ),
                );
            }
            return;
        }
        if !fits(self.destinations, MAX_CIDRS) {
            if fitted {
                let total = self.destinations;
                problems.at(
                    entry.to_span.unwrap_or_else(|| entry.range.span()),
                    format!(
                        "port.to: {total} destination CIDRs over all policies, {MAX_CIDRS} fit: merge some into shorter \
                         prefixes, or add `shared = true` to ranges"
                    ),
                );
            }
            return;
        }
        if entry.shared {
            self.made.push(PortPolicy { first: range.first, last: range.last, ..entry.policy });
        } else {
            let ports = range.first..=range.last;
            self.made.extend(ports.map(|port| PortPolicy {
                first: port,
                last: port,
                ..entry.policy.clone()
            }));
        }
    }
}

fn fits(count: usize, most: u32) -> bool {
    u32::try_from(count).is_ok_and(|count| count <= most)
}
