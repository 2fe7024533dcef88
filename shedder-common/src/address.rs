//! One form for IPv4 and IPv6 addresses, so that both share one table and one budget.

/// An address of either family: 16 bytes in network order, IPv4 as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct Address {
    /// The bytes in network order, as four words in memory order.
    pub words: [u32; 4],
}

/// Bits of the prefix that marks an IPv4 address in the common form.
pub const MAPPED_PREFIX_BITS: u32 = 96;

const MAPPED_MARK: u32 = 0x0000_ffff_u32.to_be();

impl Address {
    /// An IPv4 address in the common form.
    #[must_use]
    #[inline(always)]
    pub const fn from_v4(octets: [u8; 4]) -> Self {
        Self { words: [0, 0, MAPPED_MARK, u32::from_ne_bytes(octets)] }
    }

    /// An IPv6 address; a mapped one is the IPv4 address that it stands for.
    #[must_use]
    #[inline(always)]
    pub const fn from_v6(octets: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = octets;
        Self {
            words: [
                u32::from_ne_bytes([a, b, c, d]),
                u32::from_ne_bytes([e, f, g, h]),
                u32::from_ne_bytes([i, j, k, l]),
                u32::from_ne_bytes([m, n, o, p]),
            ],
        }
    }

    /// The 16 bytes in network order.
    #[must_use]
    pub const fn octets(&self) -> [u8; 16] {
        let [w, x, y, z] = self.words;
        let [a, b, c, d] = w.to_ne_bytes();
        let [e, f, g, h] = x.to_ne_bytes();
        let [i, j, k, l] = y.to_ne_bytes();
        let [m, n, o, p] = z.to_ne_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    /// Whether the address is an IPv4 one.
    #[must_use]
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        let [a, b, mark, _] = self.words;
        a == 0 && b == 0 && mark == MAPPED_MARK
    }

    /// The four bytes of an IPv4 address in network order; of an IPv6 address the last four.
    #[must_use]
    #[inline(always)]
    pub const fn v4_octets(&self) -> [u8; 4] {
        self.words[3].to_ne_bytes()
    }

    /// The address as two 64-bit words, for comparing and hashing.
    #[must_use]
    #[inline(always)]
    pub const fn halves(&self) -> [u64; 2] {
        let [a, b, c, d] = self.words;
        [(a as u64) | ((b as u64) << 32), (c as u64) | ((d as u64) << 32)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_equals_its_mapped_form() {
        let plain = Address::from_v4([192, 0, 2, 7]);
        let mapped = Address::from_v6([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(plain, mapped);
        assert!(plain.is_v4());
        assert_eq!(plain.v4_octets(), [192, 0, 2, 7]);
        assert_eq!(plain.octets()[10..], [0xff, 0xff, 192, 0, 2, 7]);
        assert!(!Address::from_v6([0x20; 16]).is_v4());
    }
}
