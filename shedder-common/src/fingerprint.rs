//! What was judged lately, in one word for each slot of a direct-mapped array.
//!
//! A retransmitted SYN has the 4-tuple and the initial sequence number of the first; a new attempt differs in
//! at least one. A collision of slots forgets, it does not mistake: 31 more bits of the hash are compared. The hash
//! has a secret key, so that nobody can make attempts that pass for another that was admitted.

use crate::abi::FINGERPRINT_SLOTS;
use crate::address::Address;
use crate::opaque::low_half;
use crate::packet::parse::Attempt;

/// For how long a SYN is remembered: as long as Linux goes on retransmitting one by default
/// (`tcp_syn_retries` = 6, 127 s).
pub const MEMORY_NS: u64 = 127_000_000_000;

const TICK_SHIFT: u32 = 20; // about a millisecond
const REFUSED: u64 = 1 << 32;
const TAG_MASK: u64 = !0 << 33;

/// What the hash is made with: secret odd numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Key {
    multipliers: [u64; 5],
}

crate::abi::plain! { Key: 40 }

impl Key {
    /// A key from random words.
    #[must_use]
    pub const fn new(random: [u64; 5]) -> Self {
        let [a, b, c, d, e] = random;
        Self { multipliers: [a | 1, b | 1, c | 1, d | 1, e | 1] }
    }
}

/// Where an attempt is remembered and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Index into `FINGERPRINTS`.
    pub slot: u32,
    tag: u64,
}

/// What is remembered of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nothing.
    Unknown,
    /// It was admitted.
    Admitted,
    /// It was refused.
    Refused,
}

impl Fingerprint {
    /// The fingerprint of an attempt.
    #[must_use]
    #[inline(always)]
    pub const fn of(key: &Key, attempt: &Attempt) -> Self {
        let ports = ports(attempt.source_port, attempt.destination_port);
        let (source, destination, sequence) = (&attempt.source, &attempt.destination, attempt.sequence);
        if attempt.ipv6 {
            Self::of_ipv6(key, source, destination, ports, sequence)
        } else {
            Self::of_ipv4(key, source, destination, ports, sequence)
        }
    }

    /// The fingerprint of the attempt with that 4-tuple and initial sequence number.
    #[must_use]
    #[inline(always)]
    pub const fn of_tuple(
        key: &Key,
        source: &Address,
        destination: &Address,
        source_port: u16,
        destination_port: u16,
        sequence: u32,
    ) -> Self {
        let ports = ports(source_port, destination_port);
        if source.is_v4() && destination.is_v4() {
            Self::of_ipv4(key, source, destination, ports, sequence)
        } else {
            Self::of_ipv6(key, source, destination, ports, sequence)
        }
    }

    #[inline(always)]
    const fn of_ipv4(key: &Key, source: &Address, destination: &Address, ports: u32, sequence: u32) -> Self {
        let [a, _, _, _, e] = key.multipliers;
        let ([_, _, _, source], [_, _, _, destination]) = (source.words, destination.words);
        let addresses = source as u64 | (destination as u64) << 32;
        Self::of_sum(addresses.wrapping_mul(a).wrapping_add(rest(ports, sequence).wrapping_mul(e)), a ^ e)
    }

    #[inline(always)]
    const fn of_ipv6(key: &Key, source: &Address, destination: &Address, ports: u32, sequence: u32) -> Self {
        let [a, b, c, d, e] = key.multipliers;
        let [s0, s1] = source.halves();
        let [d0, d1] = destination.halves();
        // The products do not wait for each other.
        let sum = s0
            .wrapping_mul(a)
            .wrapping_add(s1.rotate_left(32).wrapping_mul(b))
            .wrapping_add(d0.wrapping_mul(c))
            .wrapping_add(d1.rotate_left(32).wrapping_mul(d))
            .wrapping_add(rest(ports, sequence).wrapping_mul(e));
        Self::of_sum(sum, a ^ e)
    }

    #[inline(always)]
    const fn of_sum(sum: u64, multiplier: u64) -> Self {
        let hash = sum ^ (sum >> 32);
        let hash = hash.wrapping_mul(multiplier | 1);
        Self { slot: low_half(hash >> 16) & (FINGERPRINT_SLOTS - 1), tag: hash & TAG_MASK }
    }

    /// What a slot's word remembers of this attempt.
    #[must_use]
    #[inline(always)]
    pub const fn recall(&self, word: u64, now_ns: u64) -> Memory {
        if word & TAG_MASK != self.tag || word == 0 {
            return Memory::Unknown;
        }
        let age = low_half(now_ns >> TICK_SHIFT).wrapping_sub(low_half(word));
        if age as u64 > MEMORY_NS >> TICK_SHIFT {
            Memory::Unknown
        } else if word & REFUSED != 0 {
            Memory::Refused
        } else {
            Memory::Admitted
        }
    }

    /// The word that remembers an attempt.
    #[must_use]
    #[inline(always)]
    pub const fn word(&self, refused: bool, now_ns: u64) -> u64 {
        self.tag | if refused { REFUSED } else { 0 } | low_half(now_ns >> TICK_SHIFT) as u64
    }

    /// Whether a slot's word speaks of this attempt.
    #[must_use]
    #[inline(always)]
    pub const fn matches(&self, word: u64) -> bool {
        word & TAG_MASK == self.tag
    }
}

#[inline(always)]
const fn ports(source: u16, destination: u16) -> u32 {
    source as u32 | (destination as u32) << 16
}

#[inline(always)]
const fn rest(ports: u32, sequence: u32) -> u64 {
    ports as u64 | (sequence as u64) << 32
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "cuts numbers into bytes")]
mod tests {
    use std::collections::HashSet;
    use std::vec::Vec;

    use super::*;

    const KEY: Key = Key::new([
        0x9e37_79b9_7f4a_7c15,
        0xd6e8_feb8_6659_fd93,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xc2b2_ae3d_27d4_eb4f,
    ]);

    fn attempt(source_port: u16, sequence: u32) -> Attempt {
        Attempt {
            source: Address::from_v4([192, 0, 2, 1]),
            destination: Address::from_v4([192, 0, 2, 2]),
            source_port,
            destination_port: 80,
            sequence,
            segment_len: 20,
            payload_len: 0,
            network_offset: 14,
            transport_offset: 34,
            ipv6: false,
            fragmented: false,
            reserved: 0,
        }
    }

    #[test]
    fn a_repeat_is_recalled_until_it_is_too_old() {
        let now = 50_000_000_000_000;
        let fingerprint = Fingerprint::of(&KEY, &attempt(1, 2));
        assert_eq!(fingerprint.recall(0, now), Memory::Unknown);
        for (refused, memory) in [(false, Memory::Admitted), (true, Memory::Refused)] {
            let word = fingerprint.word(refused, now);
            assert_eq!(fingerprint.recall(word, now), memory);
            assert_eq!(fingerprint.recall(word, now + 126_000_000_000), memory);
            assert_eq!(fingerprint.recall(word, now + 130_000_000_000), Memory::Unknown);
            assert_eq!(Fingerprint::of(&KEY, &attempt(1, 3)).recall(word, now), Memory::Unknown);
            assert_eq!(Fingerprint::of(&KEY, &attempt(2, 2)).recall(word, now), Memory::Unknown);
        }
    }

    /// What differs little must differ in the fingerprint, be it in the first bits or the last.
    #[test]
    fn slots_and_tags_are_spread() {
        let ports: fn(u32) -> Attempt = |i| attempt(i as u16, 7);
        let sequences: fn(u32) -> Attempt = |i| attempt(1, i);
        let high_sequences: fn(u32) -> Attempt = |i| attempt(1, i << 16);
        let hosts: fn(u32) -> Attempt = |i| {
            let [_, _, high, low] = i.to_be_bytes();
            Attempt { source: Address::from_v4([10, 0, high, low]), ..attempt(1, 2) }
        };
        let networks: fn(u32) -> Attempt = |i| {
            let [_, _, high, low] = i.to_be_bytes();
            Attempt { destination: Address::from_v4([high, low, 0, 1]), ..attempt(1, 2) }
        };
        let ipv6: fn(u32) -> Attempt = |i| {
            let mut octets = [0xfd; 16];
            (octets[7], octets[15]) = ((i >> 8) as u8, i as u8);
            Attempt { source: Address::from_v6(octets), ipv6: true, ..attempt(1, 2) }
        };
        for (name, make) in [
            ("ports", ports),
            ("sequences", sequences),
            ("high sequences", high_sequences),
            ("hosts", hosts),
            ("networks", networks),
            ("ipv6", ipv6),
        ] {
            let prints: Vec<Fingerprint> = (0..60_000).map(|i| Fingerprint::of(&KEY, &make(i))).collect();
            let slots: HashSet<u32> = prints.iter().map(|print| print.slot).collect();
            let whole: HashSet<(u32, u64)> = prints.iter().map(|print| (print.slot, print.tag)).collect();
            // 60,000 balls in 65,536 bins fill 60 % of them or little less.
            assert!(slots.len() > 36_000, "{name}: {} slots", slots.len());
            assert_eq!(whole.len(), prints.len(), "{name}");
        }
    }

    #[test]
    fn a_tuple_has_the_fingerprint_of_its_attempt() {
        for ipv6 in [false, true] {
            let source = if ipv6 { Address::from_v6([0x20; 16]) } else { Address::from_v4([192, 0, 2, 9]) };
            let attempt = Attempt { source, ipv6, ..attempt(3, 4) };
            let Attempt { destination, source_port, destination_port, sequence, .. } = attempt;
            let by_tuple =
                Fingerprint::of_tuple(&KEY, &source, &destination, source_port, destination_port, sequence);
            assert_eq!(by_tuple, Fingerprint::of(&KEY, &attempt));
        }
    }
}
