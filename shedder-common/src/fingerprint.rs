//! What was judged lately, in one word for each slot of a direct-mapped array.
//!
//! A retransmitted SYN has the 4-tuple and the initial sequence number of the first; a new attempt differs in
//! at least one. A collision of slots forgets, it does not mistake: 31 more bits of the hash are compared. The hash
//! has a secret key and a proven bound, so that nobody can choose attempts that pass for another that was admitted.

use crate::abi::FINGERPRINT_SLOTS;
use crate::address::Address;
use crate::opaque::low_half;
use crate::packet::parse::Attempt;

/// For how long a SYN is remembered: as long as Linux goes on retransmitting one by default
/// (`tcp_syn_retries` = 6, 127 s).
pub const MEMORY_NS: u64 = 127_000_000_000;

const TICK_SHIFT: u32 = 20; // about a millisecond
/// So that a slot which was never used is old just after the boot too.
const TICKS_AT_BOOT: u32 = 1 << 31;
const REFUSED: u64 = 1 << 32;
const TAG_MASK: u64 = !0 << 33;
/// First of the bits that are used of a sum.
const USED_SHIFT: u32 = 31;
const SLOT_BITS: u32 = FINGERPRINT_SLOTS.trailing_zeros();
const _: () = assert!(FINGERPRINT_SLOTS.is_power_of_two() && USED_SHIFT + 2 * SLOT_BITS <= u64::BITS);

/// Words of randomness that a [`Key`] is made from.
pub const KEY_WORDS: usize = 24;

/// The secret of the hash: two independent functions, one for the slot and one for the tag.
///
/// Each is MULTILINEAR-HM (Lemire and Kaser, "Strongly universal string hashing is fast", The Computer Journal 57(11),
/// 2014): a random word, plus for each pair of 32-bit words of the input the product of both, each with a random 64-bit
/// word added, modulo 2^64. Its 33 uppermost bits are strongly universal: whatever two different inputs are, their
/// values are independent of each other and uniform. So an attempt that somebody without the key chooses has slot and
/// tag of a given other by a chance of 2^-47. (The lower bits would not do: what is high in the input never reaches
/// them.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Key {
    slot: Lane,
    tag: Lane,
}

/// The secret of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Lane {
    /// What the sum begins with: over IPv4, over IPv6. Attempts of different families are independent by these.
    starts: [u64; 2],
    /// Of ports and sequence number.
    connection: [u64; 2],
    /// Of the words of source and destination, pair by pair; IPv4 has the last pair.
    addresses: [[u64; 2]; 4],
}

crate::abi::plain! { Lane: 96, Key: 192 }

impl Key {
    /// A key from random words.
    #[must_use]
    pub const fn new(random: [u64; KEY_WORDS]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, rest @ ..] = random;
        Self { slot: Lane::new([a, b, c, d, e, f, g, h, i, j, k, l]), tag: Lane::new(rest) }
    }
}

impl Lane {
    const fn new(random: [u64; KEY_WORDS / 2]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = random;
        Self { starts: [a, b], connection: [c, d], addresses: [[e, f], [g, h], [i, j], [k, l]] }
    }

    #[inline(always)]
    const fn of_ipv4(&self, tuple: &Tuple<'_>) -> u64 {
        let ([start, _], [.., last]) = (self.starts, &self.addresses);
        let ([.., source], [.., destination]) = (tuple.source.words, tuple.destination.words);
        start.wrapping_add(product(&self.connection, tuple.ports, tuple.sequence)).wrapping_add(product(
            last,
            source,
            destination,
        ))
    }

    #[inline(always)]
    const fn of_ipv6(&self, tuple: &Tuple<'_>) -> u64 {
        let ([_, start], [first, second, third, last]) = (self.starts, &self.addresses);
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (tuple.source.words, tuple.destination.words);
        // The products do not wait for each other.
        start
            .wrapping_add(product(&self.connection, tuple.ports, tuple.sequence))
            .wrapping_add(product(first, s0, d0))
            .wrapping_add(product(second, s1, d1))
            .wrapping_add(product(third, s2, d2))
            .wrapping_add(product(last, s3, d3))
    }
}

#[inline(always)]
const fn product(key: &[u64; 2], left: u32, right: u32) -> u64 {
    let [a, b] = *key;
    a.wrapping_add(left as u64).wrapping_mul(b.wrapping_add(right as u64))
}

/// What the hash is of.
struct Tuple<'a> {
    source: &'a Address,
    destination: &'a Address,
    ports: u32,
    sequence: u32,
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
        let (source, destination) = (&attempt.source, &attempt.destination);
        let tuple = Tuple { source, destination, ports, sequence: attempt.sequence };
        if attempt.ipv6 { Self::of_ipv6(key, &tuple) } else { Self::of_ipv4(key, &tuple) }
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
        let tuple = Tuple { source, destination, ports: ports(source_port, destination_port), sequence };
        if source.is_v4() && destination.is_v4() {
            Self::of_ipv4(key, &tuple)
        } else {
            Self::of_ipv6(key, &tuple)
        }
    }

    #[inline(always)]
    const fn of_ipv4(key: &Key, tuple: &Tuple<'_>) -> Self {
        Self::of_sums(key.slot.of_ipv4(tuple), key.tag.of_ipv4(tuple))
    }

    #[inline(always)]
    const fn of_ipv6(key: &Key, tuple: &Tuple<'_>) -> Self {
        Self::of_sums(key.slot.of_ipv6(tuple), key.tag.of_ipv6(tuple))
    }

    #[inline(always)]
    const fn of_sums(slot: u64, tag: u64) -> Self {
        // Two parts of the sum, as numbers that follow each other make sums in even steps, and one part of those can
        // leave out most slots.
        let slot = (slot >> (u64::BITS - SLOT_BITS)) ^ (slot >> USED_SHIFT);
        Self { slot: low_half(slot) & (FINGERPRINT_SLOTS - 1), tag: tag & TAG_MASK }
    }

    /// What a slot's word remembers of this attempt.
    #[must_use]
    #[inline(always)]
    pub const fn recall(&self, word: u64, now_ns: u64) -> Memory {
        if word & TAG_MASK != self.tag || !is_fresh(word, now_ns) {
            Memory::Unknown
        } else if word & REFUSED != 0 {
            Memory::Refused
        } else {
            Memory::Admitted
        }
    }

    /// The word of a slot after this attempt was admitted.
    #[must_use]
    #[inline(always)]
    pub const fn after_admission(&self, now_ns: u64) -> u64 {
        self.tag | now(now_ns)
    }

    /// The word of a slot, which was that before, after this attempt was refused. An attempt that was admitted and may
    /// come again keeps its place: otherwise whoever floods a closed port makes it forgotten, and it would be refused.
    #[must_use]
    #[inline(always)]
    pub const fn after_refusal(&self, before: u64, now_ns: u64) -> u64 {
        if before & REFUSED != 0 || !is_fresh(before, now_ns) {
            self.tag | REFUSED | now(now_ns)
        } else {
            before
        }
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
const fn is_fresh(word: u64, now_ns: u64) -> bool {
    age(word, now_ns) <= MEMORY_NS >> TICK_SHIFT
}

#[inline(always)]
const fn age(word: u64, now_ns: u64) -> u64 {
    low_half(now(now_ns)).wrapping_sub(low_half(word)) as u64
}

#[inline(always)]
const fn now(now_ns: u64) -> u64 {
    low_half(now_ns >> TICK_SHIFT).wrapping_add(TICKS_AT_BOOT) as u64
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "cuts numbers into bytes")]
mod tests {
    use std::collections::HashSet;
    use std::vec::Vec;

    use super::*;

    const KEY: Key = key(0x9e37_79b9_7f4a_7c15);

    /// A key from xorshift64.
    const fn key(mut seed: u64) -> Key {
        let mut words = [0; KEY_WORDS];
        let mut index = 0;
        while index < KEY_WORDS {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            words[index] = seed;
            index += 1;
        }
        Key::new(words)
    }

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
        for (word, memory) in [
            (fingerprint.after_admission(now), Memory::Admitted),
            (fingerprint.after_refusal(0, now), Memory::Refused),
        ] {
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

    /// Whoever knows no key chooses what differs, and a difference that passes for the same must not do so with every
    /// key, or with many. The first bits of words are those that a product modulo a power of two loses.
    #[test]
    fn no_difference_passes_for_the_same_with_many_keys() {
        let v6 = |first: u32, last: u32| {
            let mut octets = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
            octets[8..12].copy_from_slice(&first.to_be_bytes());
            octets[12..].copy_from_slice(&last.to_be_bytes());
            Attempt { source: Address::from_v6(octets), ipv6: true, ..attempt(40_000, 0x0102_0304) }
        };
        let v4 = |host: u32| Attempt {
            source: Address::from_v4((0xc000_0201 ^ host).to_be_bytes()),
            ..attempt(40_000, 0x0102_0304)
        };
        let mut same = 0;
        for bit in 0..32 {
            for other_bit in 0..32 {
                let (flip, other_flip) = (1 << bit, 1 << other_bit);
                let sequence = 0x0102_0304 ^ other_flip;
                let pairs = [
                    (v6(0, 0), Attempt { sequence, ..v6(flip, 0) }),
                    (v6(0, 0), Attempt { sequence, ..v6(0, flip) }),
                    (v6(0, 0), v6(flip, other_flip)),
                    (v4(0), Attempt { sequence, ..v4(flip) }),
                    (v4(0), Attempt { source_port: 40_000 ^ flip as u16, sequence, ..v4(0) }),
                ];
                for (seed, (one, other)) in (1..=20_u64).flat_map(|seed| pairs.map(|pair| (seed, pair))) {
                    let key = key(seed.wrapping_mul(0xd6e8_feb8_6659_fd93));
                    same += u32::from(Fingerprint::of(&key, &one) == Fingerprint::of(&key, &other));
                }
            }
        }
        assert_eq!(same, 0);
    }

    /// By the bound slots are the same for one of 2^16 keys, and 15 bits of tags for one of 2^15, whatever differs.
    #[test]
    fn slots_and_tags_of_others_are_independent() {
        const KEYS: u64 = 1 << 20;
        let one = attempt(40_000, 0);
        for other in [
            attempt(40_000, 1 << 31),
            attempt(40_000, 1),
            Attempt { source: Address::from_v4([64, 0, 2, 1]), ..one },
        ] {
            let (mut slots, mut tags) = (0, 0);
            for seed in 1..=KEYS {
                let key = key(seed.wrapping_mul(0xd6e8_feb8_6659_fd93));
                let (one, other) = (Fingerprint::of(&key, &one), Fingerprint::of(&key, &other));
                slots += u32::from(one.slot == other.slot);
                tags += u32::from((one.tag ^ other.tag) >> 49 == 0);
            }
            // 16 and 32 are expected; their standard deviations are 4 and 6.
            assert!((2..=40).contains(&slots), "{slots} slots");
            assert!((6..=64).contains(&tags), "{tags} tags");
        }
    }

    #[test]
    fn a_refusal_takes_the_place_of_what_is_refused_or_old_only() {
        let now = 50_000_000_000_000;
        let [one, other] = [2, 3].map(|sequence| Fingerprint::of(&KEY, &attempt(1, sequence)));
        let recalls = |before, now| other.recall(other.after_refusal(before, now), now) == Memory::Refused;
        assert!(recalls(0, now));
        assert!(recalls(0, 1), "just after the boot");
        assert!(recalls(one.after_refusal(0, now), now));
        let admitted = one.after_admission(now);
        for later in [0, 1, 126_000_000_000] {
            assert_eq!(other.after_refusal(admitted, now + later), admitted);
        }
        assert!(recalls(admitted, now + 130_000_000_000));
        assert!(recalls(one.after_admission(0), 130_000_000_000));
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
