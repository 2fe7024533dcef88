//! The Internet checksum (RFC 1071). It does not depend on byte order (RFC 1071, 2 (B)), so words are added as they
//! lie in memory and the result is written as it is.

/// Ones' complement sum, not yet folded. Holds a sum of four thousand million words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// An empty sum.
    #[must_use]
    #[inline(always)]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds a number of 16 bits that is sent in network order.
    #[must_use]
    #[inline(always)]
    pub const fn add16(self, number: u16) -> Self {
        Self(self.0 + number.to_be() as u64)
    }

    /// Adds a number of 32 bits that is sent in network order.
    #[must_use]
    #[inline(always)]
    pub const fn add32(self, number: u32) -> Self {
        self.add_word(number.to_be())
    }

    /// Adds four bytes as they lie in memory.
    #[must_use]
    #[inline(always)]
    pub const fn add_word(self, word: u32) -> Self {
        Self(self.0 + word as u64)
    }

    /// The folded sum as a number, without the final complement.
    #[must_use]
    #[inline(always)]
    pub const fn folded(self) -> u16 {
        u16::from_be(self.folded_half())
    }

    /// The checksum as a number: the complement of the folded sum.
    #[must_use]
    #[inline(always)]
    pub const fn checksum(self) -> u16 {
        !self.folded()
    }

    /// The checksum as it lies in memory.
    #[must_use]
    #[inline(always)]
    pub const fn checksum_half(self) -> u16 {
        !self.folded_half()
    }

    #[inline(always)]
    const fn folded_half(self) -> u16 {
        let mut sum = self.0;
        sum = (sum & 0xffff_ffff) + (sum >> 32);
        sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        (sum & 0xffff) as u16
    }
}
