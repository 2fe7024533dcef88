//! Which policy slot serves which port, in both banks.

use std::collections::{BTreeMap, BTreeSet};

use shedder_common::abi::MAX_POLICIES;

/// First and last port of a policy: its identity across changes of its limits.
pub type PortRange = (u16, u16);

/// As many policies have a slot; slot 0 is none.
pub(super) const MOST_POLICIES: usize = MAX_POLICIES as usize - 1;

/// A mirror of the `PORTS` map, so that a change writes only what differs.
#[derive(Clone, Debug, Default)]
pub(super) struct PortTable {
    /// By bank: port → slot; ports without a policy are left out.
    banks: [BTreeMap<u16, u32>; 2],
    slots: BTreeMap<PortRange, u32>,
}

impl PortTable {
    /// Takes over what the banks hold.
    pub(super) fn adopt(&mut self, bank: usize, ports: BTreeMap<u16, u32>, in_force: bool) {
        if in_force {
            self.slots = ranges(&ports);
        }
        if let Some(mirror) = self.banks.get_mut(bank) {
            *mirror = ports;
        }
    }

    /// The slot of a policy.
    pub(super) fn slot(&self, range: PortRange) -> Option<u32> {
        self.slots.get(&range).copied()
    }

    /// Every policy and its slot.
    pub(super) fn slots(&self) -> impl Iterator<Item = (PortRange, u32)> + '_ {
        self.slots.iter().map(|(range, slot)| (*range, *slot))
    }

    /// Of these policies those that can be put in force while the others are. Where it is not all of them, the rest
    /// finds room once these alone are.
    pub(super) fn fitting(&self, policies: &[PortRange]) -> BTreeSet<PortRange> {
        let mut room = MOST_POLICIES.saturating_sub(self.slots.len());
        let mut fits = |range: &PortRange| {
            if self.slots.contains_key(range) {
                return true;
            }
            let fits = room > 0;
            room = room.saturating_sub(1);
            fits
        };
        policies.iter().copied().filter(|range| fits(range)).collect()
    }

    /// Gives each policy a slot: the one it has, or a fresh one that no policy in force has. `is_idle` says whether no
    /// connection is counted under a slot: such slots are preferred, and of these the ones that are in neither bank.
    /// Returns the slots that were handed out anew, or `None` where there are too few.
    pub(super) fn assign(
        &mut self,
        policies: &[PortRange],
        is_idle: impl Fn(u32) -> bool,
    ) -> Option<Vec<u32>> {
        let mut fresh = Vec::new();
        let mut free = None;
        let mut assigned = BTreeMap::new();
        for range in policies {
            let slot = match self.slots.get(range) {
                Some(slot) => *slot,
                None => {
                    let slot = free.get_or_insert_with(|| self.free(&is_idle)).next()?;
                    fresh.push(slot);
                    slot
                }
            };
            assigned.insert(*range, slot);
        }
        self.slots = assigned;
        Some(fresh)
    }

    /// The slots of no policy in force, best first.
    fn free(&self, is_idle: impl Fn(u32) -> bool) -> std::vec::IntoIter<u32> {
        let in_force: BTreeSet<u32> = self.slots.values().copied().collect();
        let in_a_bank: BTreeSet<u32> = self.banks.iter().flat_map(|bank| bank.values().copied()).collect();
        let mut free: Vec<u32> = (1..MAX_POLICIES).filter(|slot| !in_force.contains(slot)).collect();
        free.sort_by_cached_key(|slot| (!is_idle(*slot), in_a_bank.contains(slot)));
        free.into_iter()
    }

    /// What has to be written to make a bank hold the slots just assigned; 0 clears a port.
    pub(super) fn changes(&mut self, bank: usize) -> Vec<(u16, u32)> {
        let mut wanted = BTreeMap::new();
        for ((first, last), slot) in &self.slots {
            for port in *first..=*last {
                wanted.insert(port, *slot);
            }
        }
        let Some(mirror) = self.banks.get_mut(bank) else { return Vec::new() };
        let mut changes: Vec<_> =
            mirror.keys().filter(|port| !wanted.contains_key(port)).map(|port| (*port, 0)).collect();
        changes.extend(
            wanted
                .iter()
                .filter(|(port, slot)| mirror.get(port) != Some(slot))
                .map(|(port, slot)| (*port, *slot)),
        );
        *mirror = wanted;
        changes
    }
}

/// The policies that a bank describes: runs of ports with one slot.
fn ranges(ports: &BTreeMap<u16, u32>) -> BTreeMap<PortRange, u32> {
    let mut by_slot: BTreeMap<u32, Vec<u16>> = BTreeMap::new();
    for (port, slot) in ports {
        by_slot.entry(*slot).or_default().push(*port);
    }
    let mut ranges = BTreeMap::new();
    for (slot, ports) in by_slot {
        if let (Some(first), Some(last)) = (ports.first().copied(), ports.last().copied())
            && usize::from(last - first) + 1 == ports.len()
        {
            ranges.insert((first, last), slot);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_keeps_its_slot_and_a_fresh_one_takes_an_idle_slot() {
        let mut table = PortTable::default();
        assert_eq!(table.assign(&[(80, 80), (8000, 8002)], |_| true), Some(vec![1, 2]));
        assert_eq!(table.changes(0), vec![(80, 1), (8000, 2), (8001, 2), (8002, 2)]);
        assert_eq!(table.assign(&[(8000, 8002), (443, 443)], |slot| slot != 3), Some(vec![4]));
        assert_eq!(table.changes(1), vec![(443, 4), (8000, 2), (8001, 2), (8002, 2)]);
        // A packet may still look at bank 0, which serves port 80 with slot 1.
        assert_eq!(table.assign(&[(443, 443), (22, 22)], |_| true), Some(vec![3]));
        assert_eq!(table.changes(0), vec![(80, 0), (8000, 0), (8001, 0), (8002, 0), (22, 3), (443, 4)]);
    }

    #[test]
    fn a_bank_in_force_is_adopted_with_its_slots() {
        let mut table = PortTable::default();
        table.adopt(1, BTreeMap::from([(80, 7), (90, 9), (91, 9)]), true);
        assert_eq!(table.slot((80, 80)), Some(7));
        assert_eq!(table.slot((90, 91)), Some(9));
        assert_eq!(table.assign(&[(80, 80)], |_| true), Some(vec![]));
        assert_eq!(table.changes(1), vec![(90, 0), (91, 0)]);
        assert_eq!(table.changes(0), vec![(80, 7)]);
    }

    #[test]
    fn more_policies_than_slots_are_refused() {
        let policies: Vec<_> = (1..=1024).map(|port| (port, port)).collect();
        assert_eq!(PortTable::default().assign(&policies, |_| true), None);
        assert!(PortTable::default().assign(&policies[..1023], |_| true).is_some());
    }

    fn ports(from: u16, count: u16) -> Vec<PortRange> {
        (from..from + count).map(|port| (port, port)).collect()
    }

    #[test]
    fn what_only_the_idle_bank_holds_is_free() {
        let mut table = PortTable::default();
        for (bank, from) in [(0, 1000), (1, 2000), (0, 3000)] {
            assert_eq!(table.assign(&ports(from, 400), |_| true).map(|fresh| fresh.len()), Some(400));
            table.changes(bank);
        }
        let slots: BTreeSet<u32> = table.slots().map(|(_, slot)| slot).collect();
        // 223 that were in neither bank, and then those of the bank that was idle.
        assert_eq!(slots, (1..=177).chain(801..=1023).collect());
    }

    #[test]
    fn slots_without_connections_come_first() {
        let mut table = PortTable::default();
        table.assign(&ports(1000, 1), |_| true);
        table.changes(0);
        table.assign(&[], |_| true);
        table.changes(1);
        // Only slot 1 of the idle bank has no connections.
        assert_eq!(table.assign(&ports(2000, 2), |slot| slot == 1), Some(vec![1, 2]));
    }

    #[test]
    fn policies_that_do_not_fit_beside_those_in_force_fit_after_a_step() {
        for (before, after) in [(ports(1000, 601), ports(5000, 600)), (ports(1000, 1023), ports(1500, 1023))]
        {
            let mut table = PortTable::default();
            table.assign(&before, |_| true);
            table.changes(0);
            assert_eq!(table.clone().assign(&after, |_| true), None);
            let step: Vec<_> = table.fitting(&after).into_iter().collect();
            assert!(step.len() < after.len());
            assert!(table.assign(&step, |_| true).is_some());
            table.changes(1);
            assert_eq!(table.fitting(&after).len(), after.len());
            assert!(table.assign(&after, |_| true).is_some());
        }
    }
}
