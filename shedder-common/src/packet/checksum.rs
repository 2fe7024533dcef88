//! The Internet checksum (RFC 1071).

/// Ones' complement sum of 16-bit words, not yet folded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// An empty sum.
    #[must_use]
    #[inline(always)]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds a 16-bit word.
    #[must_use]
    #[inline(always)]
    pub const fn add16(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// Adds a 32-bit word: both halves.
    #[must_use]
    #[inline(always)]
    pub const fn add32(self, word: u32) -> Self {
        Self(self.0 + (word >> 16) as u64 + (word & 0xffff) as u64)
    }

    /// Adds four bytes in network order.
    #[must_use]
    #[inline(always)]
    pub const fn add_bytes(self, bytes: [u8; 4]) -> Self {
        self.add32(u32::from_be_bytes(bytes))
    }

    /// The folded sum, without the final complement.
    #[must_use]
    #[inline(always)]
    pub const fn folded(self) -> u16 {
        let mut sum = self.0;
        sum = (sum & 0xffff_ffff) + (sum >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        (sum & 0xffff) as u16
    }

    /// The checksum: the complement of the folded sum.
    #[must_use]
    #[inline(always)]
    pub const fn checksum(self) -> u16 {
        !self.folded()
    }
}
