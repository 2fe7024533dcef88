//! Writing and reading the maps.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, Map, MapData, MapError, PerCpuArray};
use ipnet::IpNet;
use rustix::thread::{MembarrierCommand, membarrier};
use shedder_common::abi::{ADDRESS_BUCKETS, BANKS, MAX_NAMESPACES, limits_slot, map, port_slot};
use shedder_common::address::{Address, MAPPED_PREFIX_BITS};
use shedder_common::control::{Control, HAS_SOURCES};
use shedder_common::counters::{GlobalCounters, PolicyCounters};
use shedder_common::limits::{PolicyAddress, PolicyLimits, PolicyState, SourceRule};
use shedder_common::local_addresses::{AddressBucket, bucket};

use super::Rules;
use super::counters::{Counters, PolicyReading, sum_global};
use super::pins::Pins;
use super::ports::{MOST_POLICIES, PortRange, PortTable};
use super::prefixes::Change;
use super::wire::Wire;
use crate::config::model::Destinations;
use crate::quota::{PolicyQuota, QuotaTable};

const NAMESPACE: u32 = 0;
const _: () = assert!(NAMESPACE < MAX_NAMESPACES);

/// A source CIDR and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceEntry {
    /// Who.
    pub cidr: IpNet,
    /// As what.
    pub rule: SourceRule,
}

/// The maps that the daemon writes and reads.
pub(super) struct Maps {
    control: Array<MapData, Wire<Control>>,
    ports: Array<MapData, u32>,
    limits: Array<MapData, Wire<PolicyLimits>>,
    state: Array<MapData, Wire<PolicyState>>,
    corrections: Array<MapData, i64>,
    counters: PerCpuArray<MapData, Wire<PolicyCounters>>,
    global_counters: PerCpuArray<MapData, Wire<GlobalCounters>>,
    local_addresses: Array<MapData, Wire<AddressBucket>>,
    sources: LpmTrie<MapData, Wire<Address>, u32>,
    destinations: DestinationTrie,
    table: PortTable,
    bank: u32,
    has_sources: bool,
    written_buckets: BTreeMap<u32, AddressBucket>,
}

impl Maps {
    /// Takes the maps of a loaded object. What they hold stays.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self> {
        Self::from(|name| ebpf.take_map(name).with_context(|| format!("the object has no map {name}")))
    }

    /// Opens pinned maps.
    pub(super) fn open(pins: &Pins) -> Result<Self> {
        Self::from(|name| {
            let data = MapData::from_pin(pins.map(name)).with_context(|| format!("open {name}"))?;
            Ok(Map::from_map_data(data)?)
        })
    }

    fn from(mut take: impl FnMut(&str) -> Result<Map>) -> Result<Self> {
        let mut maps = Self {
            control: take(map::CONTROL)?.try_into()?,
            ports: take(map::PORTS)?.try_into()?,
            limits: take(map::LIMITS)?.try_into()?,
            state: take(map::STATE)?.try_into()?,
            corrections: take(map::CORRECTIONS)?.try_into()?,
            counters: take(map::COUNTERS)?.try_into()?,
            global_counters: take(map::GLOBAL_COUNTERS)?.try_into()?,
            local_addresses: take(map::LOCAL_ADDRESSES)?.try_into()?,
            sources: take(map::SOURCES)?.try_into()?,
            destinations: take(map::DESTINATIONS)?.try_into()?,
            table: PortTable::default(),
            bank: 0,
            has_sources: false,
            written_buckets: BTreeMap::new(),
        };
        maps.adopt()?;
        Ok(maps)
    }

    /// Learns what the maps of an earlier daemon hold.
    fn adopt(&mut self) -> Result<()> {
        let control = self.control.get(&0, 0)?.0;
        self.bank = control.bank & 1;
        self.has_sources = control.flags & HAS_SOURCES != 0;
        // A map that was never in force is all zero; its ports need no reading.
        if control == Control::default() {
            return Ok(());
        }
        for bank in 0..BANKS {
            let mut ports = BTreeMap::new();
            for port in 1..=u16::MAX {
                let slot = self.ports.get(&port_slot(NAMESPACE, bank, port), 0)?;
                if slot != 0 {
                    ports.insert(port, slot);
                }
            }
            self.table.adopt(bank as usize, ports, bank == self.bank);
        }
        for index in 0..ADDRESS_BUCKETS {
            let bucket = self.local_addresses.get(&index, 0)?.0;
            if bucket != AddressBucket::default() {
                self.written_buckets.insert(index, bucket);
            }
        }
        Ok(())
    }

    /// Returns whether any connection may belong to another policy than before.
    pub(super) fn write(&mut self, table: &QuotaTable, rules: &Rules) -> Result<bool> {
        let policies = ranges(table);
        ensure!(
            policies.len() <= MOST_POLICIES,
            "{} port policies are more than the {MOST_POLICIES} that fit: give ranges `shared = true`",
            policies.len()
        );
        let fitting = self.table.fitting(&policies);
        if fitting.len() == policies.len() {
            return self.flip(table, rules);
        }
        // The slots of those that go are free for the rest as soon as nothing looks at them any more.
        let fits = |policy: &&PolicyQuota| fitting.contains(&(policy.first, policy.last));
        self.flip(&QuotaTable { policies: table.policies.iter().filter(fits).cloned().collect() }, rules)?;
        wait_for_programs();
        self.flip(table, rules)?;
        Ok(true)
    }

    /// Writes the bank that is not in force and puts it in force.
    fn flip(&mut self, table: &QuotaTable, rules: &Rules) -> Result<bool> {
        let idle = 1 - self.bank;
        let mut assigned = self.table.clone();
        let state = &self.state;
        let is_idle = |slot| state.get(&slot, 0).is_ok_and(|state| state.0.active == 0);
        let fresh = assigned.assign(&ranges(table), is_idle).context("too few slots are free")?;
        for slot in fresh {
            self.clear(slot)?;
        }
        let mut wanted = BTreeMap::new();
        for policy in &table.policies {
            let slot = assigned.slot((policy.first, policy.last)).context("a policy has no slot")?;
            self.limits.set(limits_slot(idle, slot), Wire(policy.limits), 0)?;
            if let Destinations::Listed(cidrs) = &policy.destinations {
                wanted.extend(cidrs.iter().map(|cidr| (destination_key(slot, cidr), 1)));
            }
        }
        let held = self.held_destinations()?;
        let destinations = Change::between(&held, &wanted);
        let remove = |trie: &mut DestinationTrie, keys: &[DestinationKey]| {
            keys.iter().try_for_each(|(bits, key)| {
                ignore_missing(trie.remove(&Key::new(*bits, Wire(plain_key(*key)))))
            })
        };
        // The policies that have them cover less for a moment.
        remove(&mut self.destinations, &destinations.first_removed)?;
        for ((bits, key), value) in &destinations.inserted {
            self.destinations.insert(&Key::new(*bits, Wire(plain_key(*key))), *value, 0)?;
        }
        for (port, slot) in assigned.changes(idle as usize) {
            self.ports.set(port_slot(NAMESPACE, idle, port), slot, 0)?;
        }
        let moved = !self.table.slots().eq(assigned.slots()) || wanted != held;
        self.table = assigned;
        self.set_control(idle, rules)?;
        self.bank = idle;
        remove(&mut self.destinations, &destinations.last_removed)?;
        Ok(moved)
    }

    pub(super) fn renew(&mut self, rules: &Rules) -> Result<()> {
        self.set_control(self.bank, rules)
    }

    fn set_control(&mut self, bank: u32, rules: &Rules) -> Result<()> {
        let control = Control {
            lease_expires_ns: rules.lease_expires_ns,
            mode: rules.mode as u32,
            bank,
            flags: if self.has_sources { HAS_SOURCES } else { 0 },
            reserved: 0,
            exempt_interval: rules.exempt_rate.map_or(0, |rate| rate.interval),
            exempt_tolerance: rules.exempt_rate.map_or(0, |rate| rate.tolerance),
        };
        self.control.set(0, Wire(control), 0).context("write the control words")
    }

    /// Empties a slot that is not in force. Connections that are counted under it stay so until their sockets are asked
    /// again or close, which takes them off.
    fn clear(&mut self, slot: u32) -> Result<()> {
        let active = self.state.get(&slot, 0)?.0.active;
        self.state.set(slot, Wire(PolicyState { active, ..PolicyState::default() }), 0)?;
        self.corrections.set(slot, 0, 0)?;
        let cpus = self.counters.get(&slot, 0)?.len();
        let zero = vec![Wire(PolicyCounters::default()); cpus];
        self.counters.set(slot, aya::maps::PerCpuValues::try_from(zero)?, 0)?;
        Ok(())
    }

    pub(super) fn set_local_addresses(&mut self, addresses: &[Address]) -> Result<Vec<Address>> {
        let mut buckets: BTreeMap<u32, AddressBucket> = BTreeMap::new();
        let mut left_out = Vec::new();
        for address in addresses.iter().collect::<BTreeSet<_>>() {
            if !buckets.entry(bucket(address)).or_default().insert(address) {
                left_out.push(*address);
            }
        }
        for (index, bucket) in &buckets {
            if self.written_buckets.get(index) != Some(bucket) {
                self.local_addresses.set(*index, Wire(*bucket), 0)?;
            }
        }
        for index in self.written_buckets.keys().filter(|index| !buckets.contains_key(index)) {
            self.local_addresses.set(*index, Wire(AddressBucket::default()), 0)?;
        }
        self.written_buckets = buckets;
        Ok(left_out)
    }

    pub(super) fn set_sources(&mut self, sources: &[SourceEntry]) -> Result<()> {
        let wanted: BTreeMap<SourceKey, u32> =
            sources.iter().map(|entry| (source_key(&entry.cidr), entry.rule.to_word())).collect();
        let held: BTreeMap<SourceKey, u32> = self
            .sources
            .iter()
            .map(|entry| entry.map(|(key, word)| ((key.prefix_len(), key.data().0.octets()), word)))
            .collect::<Result<_, MapError>>()?;
        let change = Change::between(&held, &wanted);
        let key = |(bits, octets): &SourceKey| Key::new(*bits, Wire(Address::from_v6(*octets)));
        for removed in &change.first_removed {
            ignore_missing(self.sources.remove(&key(removed)))?;
        }
        let inserted =
            change.inserted.iter().try_for_each(|(new, word)| self.sources.insert(&key(new), *word, 0));
        // Nobody stays exempt for what could not be added.
        for removed in &change.last_removed {
            ignore_missing(self.sources.remove(&key(removed)))?;
        }
        self.has_sources = !wanted.is_empty();
        Ok(inserted?)
    }

    pub(super) fn set_correction(&mut self, range: PortRange, connections: i64) -> Result<()> {
        if let Some(slot) = self.table.slot(range) {
            self.corrections.set(slot, connections, 0)?;
        }
        Ok(())
    }

    /// The control words.
    pub(super) fn control(&self) -> Result<Control> {
        Ok(self.control.get(&0, 0)?.0)
    }

    /// The limits in force.
    pub(super) fn limits(&self) -> Result<BTreeMap<PortRange, PolicyLimits>> {
        let entry = |(range, slot)| Ok((range, self.limits.get(&limits_slot(self.bank, slot), 0)?.0));
        self.table.slots().map(entry).collect()
    }

    pub(super) fn read(&self) -> Result<Counters> {
        let mut counters = Counters::default();
        for (range, slot) in self.table.slots() {
            let state = self.state.get(&slot, 0)?.0;
            let mut reading = PolicyReading {
                counted: state.active,
                established: state.established(),
                correction: self.corrections.get(&slot, 0)?,
                ..PolicyReading::default()
            };
            self.read_policy(slot, &mut reading)?;
            counters.policies.insert(range, reading);
        }
        counters.global = sum_global(self.global_counters.get(&0, 0)?.iter().map(|cpu| &cpu.0));
        Ok(counters)
    }

    pub(super) fn read_decisions(&self, counters: &mut Counters) -> Result<()> {
        counters.policies.retain(|range, _| self.table.slot(*range).is_some());
        for (range, slot) in self.table.slots() {
            self.read_policy(slot, counters.policies.entry(range).or_default())?;
        }
        Ok(())
    }

    fn read_policy(&self, slot: u32, reading: &mut PolicyReading) -> Result<()> {
        reading.set_decisions(self.counters.get(&slot, 0)?.iter().map(|cpu| &cpu.0));
        Ok(())
    }

    fn held_destinations(&self) -> Result<BTreeMap<DestinationKey, u32>> {
        let keys = self.destinations.keys().map(|key| {
            key.map(|key| {
                let data = key.data().0;
                ((key.prefix_len(), (data.policy, data.address.octets())), 1)
            })
        });
        Ok(keys.collect::<Result<_, MapError>>()?)
    }
}

fn ranges(table: &QuotaTable) -> Vec<PortRange> {
    table.policies.iter().map(|policy| (policy.first, policy.last)).collect()
}

/// Waits until every program that runs now has ended: they read the maps as an RCU reader does.
fn wait_for_programs() {
    // Some kernels refuse it; then a packet may be judged by limits that are being replaced.
    if let Err(error) = membarrier(MembarrierCommand::Global) {
        tracing::debug!("Running programs are not waited for: {error}.");
    }
}

/// A CIDR in the common form: bits and address.
fn prefix(cidr: &IpNet) -> (u32, Address) {
    match cidr {
        IpNet::V4(cidr) => {
            (MAPPED_PREFIX_BITS + u32::from(cidr.prefix_len()), Address::from_v4(cidr.network().octets()))
        }
        IpNet::V6(cidr) => (u32::from(cidr.prefix_len()), Address::from_v6(cidr.network().octets())),
    }
}

/// Prefix bits, then address.
type SourceKey = (u32, [u8; 16]);

fn source_key(cidr: &IpNet) -> SourceKey {
    let (bits, address) = prefix(cidr);
    (bits, address.octets())
}

type DestinationTrie = LpmTrie<MapData, Wire<PolicyAddress>, u32>;

/// Prefix bits, then policy slot and address.
type DestinationKey = (u32, (u32, [u8; 16]));

fn destination_key(slot: u32, cidr: &IpNet) -> DestinationKey {
    let (bits, address) = prefix(cidr);
    (32 + bits, (slot, address.octets()))
}

fn plain_key((policy, octets): (u32, [u8; 16])) -> PolicyAddress {
    PolicyAddress { policy, address: Address::from_v6(octets) }
}

fn ignore_missing(result: Result<(), MapError>) -> Result<()> {
    match result {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
