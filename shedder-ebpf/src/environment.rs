//! The decision's environment in the kernel: maps, the coarse clock, and the socket table.

use core::ffi::c_void;

use aya_ebpf::btf_maps::lpm_trie::Key;
use shedder_common::abi;
use shedder_common::address::{Address, MAPPED_PREFIX_BITS};
use shedder_common::control::Control;
use shedder_common::fingerprint;
use shedder_common::judge::{
    Cell as _, Decision, Environment, Key as GateKey, Now, Socket, Standing, State, Wanted,
};
use shedder_common::limits::{PolicyAddress, PolicyLimits, SourceRule};
use shedder_common::local_addresses;
use shedder_common::packet::parse::Attempt;

use crate::clock;
use crate::gates::{self, pack};
use crate::globals::{self, NAMESPACE_ID};
use crate::maps;
use crate::socket;
use crate::word::Word;

const ADDRESS_BITS: u32 = MAPPED_PREFIX_BITS + 32;

/// The environment of a program with this context, which looking up sockets needs.
pub struct Kernel(pub Option<*mut c_void>);

/// Whether an address is one of this host's.
#[inline(always)]
pub fn is_local(address: &Address) -> bool {
    match maps::LOCAL_ADDRESSES.get(local_addresses::bucket(address)) {
        Some(bucket) => bucket.contains(address),
        None => false,
    }
}

/// Whether a policy lists a destination.
#[inline(always)]
pub fn is_listed(policy: u32, address: &Address) -> bool {
    let key = Key::new(32 + ADDRESS_BITS, PolicyAddress { policy, address: *address });
    maps::DESTINATIONS.get(&key).is_some()
}

/// The control words.
#[inline(always)]
pub fn control() -> Option<&'static Control> {
    maps::CONTROL.get(0)
}

/// The policy slot of a port; 0 is none.
#[inline(always)]
pub fn policy(bank: u32, port: u16) -> u32 {
    maps::PORTS.get(abi::port_slot(NAMESPACE_ID.load(), bank, port)).copied().unwrap_or(0)
}

/// The limits of a policy.
#[inline(always)]
pub fn limits(bank: u32, policy: u32) -> Option<&'static PolicyLimits> {
    maps::LIMITS.get(abi::limits_slot(bank, policy))
}

/// The state of a policy.
#[inline(always)]
pub fn state(policy: u32) -> Option<&'static State<Word>> {
    const {
        assert!(size_of::<State<Word>>() == size_of::<shedder_common::limits::PolicyState>());
    }
    // SAFETY: same layout (the assertion, and both repr(C) with words of eight bytes); map values of arrays live
    // as long as the program.
    maps::STATE.get_ptr(policy).map(|state| unsafe { &*state.cast::<State<Word>>() })
}

/// The word of a fingerprint slot.
#[inline(always)]
pub fn fingerprint(slot: u32) -> Option<&'static Word> {
    // SAFETY: a Word is a u64; map values of arrays live as long as the program.
    maps::FINGERPRINTS.get_ptr(slot).map(|word| unsafe { &*word.cast::<Word>() })
}

impl Environment for Kernel {
    type Word = Word;

    #[inline(always)]
    fn control(&self) -> Option<&Control> {
        control()
    }

    #[inline(always)]
    fn now(&self) -> Now {
        clock::now()
    }

    #[inline(always)]
    fn policy(&self, bank: u32, port: u16) -> u32 {
        policy(bank, port)
    }

    #[inline(always)]
    fn limits(&self, bank: u32, policy: u32) -> Option<&PolicyLimits> {
        limits(bank, policy)
    }

    #[inline(always)]
    fn is_local(&self, attempt: &Attempt) -> bool {
        is_local(&attempt.destination)
    }

    #[inline(always)]
    fn is_listed(&self, policy: u32, attempt: &Attempt) -> bool {
        is_listed(policy, &attempt.destination)
    }

    #[inline(always)]
    fn source_rule(&self, attempt: &Attempt) -> SourceRule {
        match maps::SOURCES.get(&Key::new(ADDRESS_BITS, attempt.source)) {
            Some(word) => SourceRule::from_word(*word),
            None => SourceRule::default(),
        }
    }

    #[inline(always)]
    fn fingerprint_key(&self) -> &fingerprint::Key {
        globals::fingerprint_key()
    }

    #[inline(always)]
    fn fingerprint(&self, slot: u32) -> Option<&Word> {
        fingerprint(slot)
    }

    #[inline(always)]
    fn state(&self, policy: u32) -> Option<&State<Word>> {
        state(policy)
    }

    #[inline(always)]
    fn correction(&self, policy: u32) -> u64 {
        // SAFETY: a Word is a u64; map values of arrays live as long as the program.
        maps::CORRECTIONS.get_ptr(policy).map_or(0, |word| unsafe { &*word.cast::<Word>() }.load())
    }

    #[inline(always)]
    fn socket(&self, attempt: &Attempt, wanted: Wanted) -> Socket {
        match self.0 {
            Some(context) => socket::find(context, attempt, wanted),
            None => Socket::Unknown,
        }
    }

    #[inline(always)]
    fn charge_all(&self, key: GateKey, now_ns: u64, standing: Standing) -> Decision {
        Decision::from_word(gates::charge_by_word(pack(key), now_ns, standing.word()) as u32)
    }
}
