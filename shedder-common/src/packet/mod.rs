//! Packet bytes: how they are read, what a new connection attempt looks like, and the RST that answers one.

pub mod checksum;
pub mod parse;
pub mod reset;

#[cfg(test)]
mod frames;
#[cfg(test)]
mod parse_tests;
#[cfg(test)]
mod reset_tests;

/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: u32 = 20;
/// Bytes of an IPv6 header.
pub const IPV6_LEN: u32 = 40;
/// Bytes of a TCP header without options.
pub const TCP_LEN: u32 = 20;

/// Packet bytes that can be read at an offset.
pub trait PacketBytes {
    /// `N` bytes whose bounds were checked.
    type Window<const N: usize>: Window<N>;

    /// The `N` bytes at `offset`, or `None` where what can be read of the packet ends before.
    fn window<const N: usize>(&self, offset: usize) -> Option<Self::Window<N>>;

    /// Whether the packet is at least that long, be it readable or not.
    fn holds(&self, len: usize) -> bool;
}

/// `N` bytes of a packet, whose fields are read at offsets that the compiler checks.
pub trait Window<const N: usize>: Copy {
    /// The byte at `AT`.
    fn byte<const AT: usize>(&self) -> u8;
    /// The two bytes at `AT` as they lie in memory.
    fn half<const AT: usize>(&self) -> u16;
    /// The four bytes at `AT` as they lie in memory.
    fn word<const AT: usize>(&self) -> u32;

    /// The two bytes at `AT`, sent in network order.
    #[inline(always)]
    fn be16<const AT: usize>(&self) -> u16 {
        u16::from_be(self.half::<AT>())
    }

    /// The four bytes at `AT`, sent in network order.
    #[inline(always)]
    fn be32<const AT: usize>(&self) -> u32 {
        u32::from_be(self.word::<AT>())
    }
}

impl PacketBytes for [u8] {
    type Window<const N: usize> = [u8; N];

    fn window<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..)?.first_chunk::<N>().copied()
    }

    fn holds(&self, len: usize) -> bool {
        self.len() >= len
    }
}

#[expect(clippy::indexing_slicing, reason = "the offsets are constants that the compiler compares with N")]
impl<const N: usize> Window<N> for [u8; N] {
    fn byte<const AT: usize>(&self) -> u8 {
        const { assert!(AT < N) };
        self[AT]
    }

    fn half<const AT: usize>(&self) -> u16 {
        const { assert!(AT + 2 <= N) };
        u16::from_ne_bytes([self[AT], self[AT + 1]])
    }

    fn word<const AT: usize>(&self) -> u32 {
        const { assert!(AT + 4 <= N) };
        u32::from_ne_bytes([self[AT], self[AT + 1], self[AT + 2], self[AT + 3]])
    }
}
