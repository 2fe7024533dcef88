//! What was judged lately, in one word for each slot of a direct-mapped array.
//!
//! A retransmitted SYN has the 4-tuple and the initial sequence number of the first; a new attempt differs in
//! at least one. A collision forgets, it never mistakes: 31 more bits of the hash are compared.

use crate::abi::FINGERPRINT_SLOTS;
use crate::address::Address;
use crate::packet::parse::Attempt;

/// For how long a SYN is remembered: as long as Linux goes on retransmitting one by default
/// (`tcp_syn_retries` = 6, 127 s).
pub const MEMORY_NS: u64 = 127_000_000_000;

const TICK_SHIFT: u32 = 20; // about a millisecond
const REFUSED: u64 = 1 << 32;
const TAG_MASK: u64 = !0 << 33;

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
    pub const fn of(attempt: &Attempt) -> Self {
        Self::of_tuple(
            &attempt.source,
            &attempt.destination,
            attempt.source_port,
            attempt.destination_port,
            attempt.sequence,
        )
    }

    /// The fingerprint of the attempt with that 4-tuple and initial sequence number.
    #[must_use]
    #[inline(always)]
    pub const fn of_tuple(
        source: &Address,
        destination: &Address,
        source_port: u16,
        destination_port: u16,
        sequence: u32,
    ) -> Self {
        let [s0, s1] = source.halves();
        let [d0, d1] = destination.halves();
        let ports = source_port as u64 | (destination_port as u64) << 16;
        let mut hash = mix(s0 ^ 0x9e37_79b9_7f4a_7c15, s1);
        hash = mix(hash ^ d0, d1);
        hash = mix(hash ^ ports, sequence as u64 | 1 << 63);
        Self { slot: (hash as u32) & (FINGERPRINT_SLOTS - 1), tag: hash & TAG_MASK }
    }

    /// What a slot's word remembers of this attempt.
    #[must_use]
    #[inline(always)]
    pub const fn recall(&self, word: u64, now_ns: u64) -> Memory {
        if word & TAG_MASK != self.tag || word == 0 {
            return Memory::Unknown;
        }
        let age = ((now_ns >> TICK_SHIFT) as u32).wrapping_sub(word as u32);
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
        self.tag | if refused { REFUSED } else { 0 } | (now_ns >> TICK_SHIFT) as u32 as u64
    }

    /// Whether a slot's word speaks of this attempt.
    #[must_use]
    #[inline(always)]
    pub const fn matches(&self, word: u64) -> bool {
        word & TAG_MASK == self.tag
    }
}

/// Two rounds of multiply and fold; good enough to spread, not meant to resist an attacker, who could only
/// make shedder forget.
#[inline(always)]
const fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ (a >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let y = (x ^ (x >> 32) ^ b).wrapping_mul(0xd6e8_feb8_6659_fd93);
    y ^ (y >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        }
    }

    #[test]
    fn a_repeat_is_recalled_until_it_is_too_old() {
        let now = 50_000_000_000_000;
        let fingerprint = Fingerprint::of(&attempt(1, 2));
        assert_eq!(fingerprint.recall(0, now), Memory::Unknown);
        for (refused, memory) in [(false, Memory::Admitted), (true, Memory::Refused)] {
            let word = fingerprint.word(refused, now);
            assert_eq!(fingerprint.recall(word, now), memory);
            assert_eq!(fingerprint.recall(word, now + 126_000_000_000), memory);
            assert_eq!(fingerprint.recall(word, now + 130_000_000_000), Memory::Unknown);
            assert_eq!(Fingerprint::of(&attempt(1, 3)).recall(word, now), Memory::Unknown);
            assert_eq!(Fingerprint::of(&attempt(2, 2)).recall(word, now), Memory::Unknown);
        }
    }

    #[test]
    fn slots_are_spread() {
        let mut used = std::collections::HashSet::new();
        for port in 0..60_000 {
            used.insert(Fingerprint::of(&attempt(port, 7)).slot);
        }
        // 60,000 balls in 65,536 bins fill 60 % of them.
        assert!(used.len() > 38_000, "{}", used.len());
    }
}
