//! The decision's environment in memory, for tests.

use std::cell::Cell;
use std::collections::HashMap;
use std::vec::Vec;

use shedder_common::address::Address;
use shedder_common::control::{Control, HAS_SOURCES, Mode};
use shedder_common::fingerprint::Key;
use shedder_common::judge::{self, Environment, Now, Socket, State, Wanted};
use shedder_common::limits::{PolicyLimits, SourceRule};
use shedder_common::packet::parse::Attempt;

/// A word of state of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word(Cell<u64>);

impl judge::Cell for Word {
    fn load(&self) -> u64 {
        self.0.get()
    }

    fn compare_exchange(&self, old: u64, new: u64) -> bool {
        let unchanged = self.0.get() == old;
        if unchanged {
            self.0.set(new);
        }
        unchanged
    }

    fn store(&self, value: u64) {
        self.0.set(value);
    }

    fn add(&self, amount: u64) {
        self.0.set(self.0.get().wrapping_add(amount));
    }
}

/// All that a decision reads and changes.
pub(crate) struct Memory {
    /// Mode, lease, bank.
    pub(crate) control: Control,
    /// The clock.
    pub(crate) now_ns: u64,
    /// Policy of a port, in either bank.
    pub(crate) ports: HashMap<u16, u32>,
    /// Limits of a policy, in either bank.
    pub(crate) limits: HashMap<u32, PolicyLimits>,
    /// Addresses of the host.
    pub(crate) local: Vec<Address>,
    /// Destinations of policies: address and bits.
    pub(crate) listed: Vec<(u32, Address, u32)>,
    /// Sources: address and bits.
    pub(crate) sources: Vec<(Address, u32, SourceRule)>,
    /// What is added to the count of live connections.
    pub(crate) correction: i64,
    /// What every look-up finds.
    pub(crate) socket: Socket,
    /// Number of look-ups.
    pub(crate) lookups: Cell<u32>,
    /// The key of fingerprints.
    pub(crate) key: Key,
    fingerprints: Vec<Word>,
    states: Vec<State<Word>>,
}

impl Memory {
    /// In force for ever, at a time when nothing has happened yet.
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            control: Control { mode: mode as u32, lease_expires_ns: u64::MAX, ..Control::default() },
            now_ns: 1_000_000_000_000,
            ports: HashMap::new(),
            limits: HashMap::new(),
            local: Vec::new(),
            listed: Vec::new(),
            sources: Vec::new(),
            correction: 0,
            socket: Socket::Unknown,
            lookups: Cell::new(0),
            key: Key::new(random_words()),
            fingerprints: (0..shedder_common::abi::FINGERPRINT_SLOTS).map(|_| Word::default()).collect(),
            states: (0..16).map(|_| State::default()).collect(),
        }
    }

    /// Adds a source, most specific first.
    pub(crate) fn add_source(&mut self, address: Address, bits: u32, rule: SourceRule) {
        self.control.flags |= HAS_SOURCES;
        self.sources.push((address, bits, rule));
        self.sources.sort_by_key(|(_, bits, _)| core::cmp::Reverse(*bits));
    }

    /// The state of a policy.
    pub(crate) fn state_of(&self, policy: u32) -> &State<Word> {
        &self.states[policy as usize]
    }
}

/// Words that look random and are the same each time.
fn random_words<const N: usize>() -> [u64; N] {
    let mut word = 0x243f_6a88_85a3_08d3_u64;
    std::array::from_fn(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    })
}

fn within(address: &Address, network: &Address, bits: u32) -> bool {
    let [address, network] = [address, network].map(|address| u128::from_be_bytes(address.octets()));
    bits == 0 || (address ^ network) >> (128 - bits) == 0
}

impl Environment for Memory {
    type Word = Word;

    fn control(&self) -> Option<&Control> {
        Some(&self.control)
    }

    fn now(&self) -> Now {
        Now { ns: self.now_ns, us: self.now_ns / 1000 }
    }

    fn policy(&self, _bank: u32, port: u16) -> u32 {
        self.ports.get(&port).copied().unwrap_or(0)
    }

    fn limits(&self, _bank: u32, policy: u32) -> Option<&PolicyLimits> {
        self.limits.get(&policy)
    }

    fn is_local(&self, attempt: &Attempt) -> bool {
        self.local.contains(&attempt.destination)
    }

    fn is_listed(&self, policy: u32, attempt: &Attempt) -> bool {
        self.listed
            .iter()
            .any(|(of, network, bits)| *of == policy && within(&attempt.destination, network, *bits))
    }

    fn source_rule(&self, attempt: &Attempt) -> SourceRule {
        let found = self.sources.iter().find(|(network, bits, _)| within(&attempt.source, network, *bits));
        found.map_or_else(SourceRule::default, |(_, _, rule)| *rule)
    }

    fn fingerprint_key(&self) -> &Key {
        &self.key
    }

    fn fingerprint(&self, slot: u32) -> Option<&Word> {
        self.fingerprints.get(slot as usize)
    }

    fn state(&self, policy: u32) -> Option<&State<Word>> {
        self.states.get(policy as usize)
    }

    fn correction(&self, _policy: u32) -> u64 {
        self.correction.cast_unsigned()
    }

    fn socket(&self, _attempt: &Attempt, _wanted: Wanted) -> Socket {
        self.lookups.set(self.lookups.get() + 1);
        self.socket
    }
}
