//! Packet bytes: how they are read, what a new connection attempt looks like, and the RST that answers one.

pub mod checksum;
pub mod parse;
pub mod reset;

/// Packet bytes that can be read at an offset. Every read checks its own bounds.
pub trait PacketBytes {
    /// The `N` bytes at `offset`, or `None` where the packet ends before.
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;
}

impl PacketBytes for [u8] {
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..)?.first_chunk::<N>().copied()
    }
}
