//! The addresses of this host as buckets of an array: one lookup and four compares for each packet.

use crate::abi::ADDRESS_BUCKETS;
use crate::address::Address;

/// Addresses in a bucket.
pub const BUCKET_SIZE: usize = 4;

/// One bucket; an unused place holds the unspecified address, which no host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AddressBucket {
    /// The addresses, each as [`Address::halves`].
    halves: [[u64; 2]; BUCKET_SIZE],
}

crate::abi::plain! { AddressBucket: 64 }

/// The bucket of an address.
#[must_use]
#[inline(always)]
pub const fn bucket(address: &Address) -> u32 {
    let [a, b] = address.halves();
    let hash = (a ^ b.rotate_left(31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 32) as u32 & (ADDRESS_BUCKETS - 1)
}

impl AddressBucket {
    /// Whether the bucket holds an address.
    #[must_use]
    #[inline(always)]
    pub const fn contains(&self, address: &Address) -> bool {
        let [a, b, c, d] = &self.halves;
        let halves = address.halves();
        let [first, second] = halves;
        first | second != 0 && (same(a, halves) || same(b, halves) || same(c, halves) || same(d, halves))
    }

    /// Puts an address into a free place; false where there is none.
    #[must_use]
    pub fn insert(&mut self, address: &Address) -> bool {
        match self.halves.iter_mut().find(|place| **place == [0; 2]) {
            Some(place) => *place = address.halves(),
            None => return false,
        }
        true
    }
}

#[inline(always)]
const fn same(left: &[u64; 2], right: [u64; 2]) -> bool {
    let ([a, b], [c, d]) = (left, right);
    *a == c && *b == d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_was_put_in_and_no_free_place() {
        let unspecified = Address::from_v6([0; 16]);
        let mut bucket = AddressBucket::default();
        assert!(!bucket.contains(&unspecified));
        for host in 1..=4 {
            let address = Address::from_v4([192, 0, 2, host]);
            assert!(!bucket.contains(&address));
            assert!(bucket.insert(&address));
            assert!(bucket.contains(&address) && !bucket.contains(&unspecified));
        }
        assert!(!bucket.insert(&Address::from_v4([192, 0, 2, 5])), "it is full");
    }
}
