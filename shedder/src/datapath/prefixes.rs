//! How a table of CIDRs becomes another one.

use std::collections::BTreeMap;

use shedder_common::abi::MAX_CIDRS;

/// What has to be done to a table, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change<K> {
    /// What must go before there is room for what comes.
    pub(super) first_removed: Vec<K>,
    /// What comes, or has another value.
    pub(super) inserted: Vec<(K, u32)>,
    /// What goes when all is there that is wanted.
    pub(super) last_removed: Vec<K>,
}

impl<K: Copy + Ord> Change<K> {
    /// From what a table holds to what it is to hold. Where both together do not fit, what goes goes first.
    pub(super) fn between(held: &BTreeMap<K, u32>, wanted: &BTreeMap<K, u32>) -> Self {
        let gone = held.keys().filter(|key| !wanted.contains_key(key)).copied();
        let inserted: Vec<_> = wanted
            .iter()
            .filter(|(key, value)| held.get(key) != Some(value))
            .map(|(key, value)| (*key, *value))
            .collect();
        let new = inserted.iter().filter(|(key, _)| !held.contains_key(key)).count();
        if held.len() + new < MAX_CIDRS as usize {
            return Self { first_removed: Vec::new(), inserted, last_removed: gone.collect() };
        }
        // Many kernels do not even replace a value in a table that is full.
        let replaced = inserted.iter().map(|(key, _)| *key).filter(|key| held.contains_key(key));
        Self { first_removed: gone.chain(replaced).collect(), inserted, last_removed: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(keys: std::ops::Range<u32>, value: u32) -> BTreeMap<u32, u32> {
        keys.map(|key| (key, value)).collect()
    }

    #[test]
    fn what_goes_goes_last_where_there_is_room() {
        let held = BTreeMap::from([(1, 7), (2, 7), (3, 7)]);
        let wanted = BTreeMap::from([(2, 7), (3, 8), (4, 7)]);
        assert_eq!(
            Change::between(&held, &wanted),
            Change { first_removed: vec![], inserted: vec![(3, 8), (4, 7)], last_removed: vec![1] }
        );
    }

    #[test]
    fn what_goes_goes_first_where_there_is_none() {
        let (held, wanted) = (table(0..9_000, 1), table(9_000..18_000, 1));
        let change = Change::between(&held, &wanted);
        assert_eq!((change.first_removed.len(), change.inserted.len()), (9_000, 9_000));
        assert!(change.last_removed.is_empty());
        // A full one, of which every value is another.
        let full = Change::between(&table(0..MAX_CIDRS, 1), &table(0..MAX_CIDRS, 2));
        assert_eq!((full.first_removed.len(), full.inserted.len()), (MAX_CIDRS as usize, MAX_CIDRS as usize));
        assert_eq!(
            Change::between(&held, &held),
            Change { first_removed: vec![], inserted: vec![], last_removed: vec![] }
        );
    }
}
