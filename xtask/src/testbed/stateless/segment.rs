//! TCP over IPv4, as bytes.

use std::net::{Ipv4Addr, SocketAddrV4};

const IP_HEADER: usize = 20;
const TCP_HEADER: usize = 20;
const TCP: u8 = 6;
/// MSS 1460, as every client on Ethernet says.
const MSS: [u8; 4] = [2, 4, 0x05, 0xb4];
const WINDOW: u16 = 64_240;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

/// A segment without options but the MSS of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment<'a> {
    pub(super) from: SocketAddrV4,
    pub(super) to: SocketAddrV4,
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    pub(super) flags: u8,
    pub(super) payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads a packet that starts with its IP header; `None` for anything but a whole segment. Checksums are not
    /// looked at: a virtual link leaves them unfinished.
    pub(super) fn parse(packet: &'a [u8]) -> Option<Self> {
        let ihl = usize::from(packet.first()? & 0x0f) * 4;
        if packet.first()? >> 4 != 4 || *packet.get(9)? != TCP || ihl < IP_HEADER {
            return None;
        }
        let total = usize::from(u16::from_be_bytes(array(packet, 2)?));
        let tcp = packet.get(ihl..total)?;
        let offset = usize::from(tcp.get(12)? >> 4) * 4;
        let address = |at| Some(Ipv4Addr::from(array::<4>(packet, at)?));
        let port = |at| Some(u16::from_be_bytes(array(tcp, at)?));
        Some(Self {
            from: SocketAddrV4::new(address(12)?, port(0)?),
            to: SocketAddrV4::new(address(16)?, port(2)?),
            sequence: u32::from_be_bytes(array(tcp, 4)?),
            acknowledgement: u32::from_be_bytes(array(tcp, 8)?),
            flags: *tcp.get(13)?,
            payload: tcp.get(offset.max(TCP_HEADER)..)?,
        })
    }

    /// The packet. Its identification is 0, since it may not be fragmented.
    pub(super) fn packet(&self) -> Vec<u8> {
        let options: &[u8] = if self.flags & SYN == 0 { &[] } else { &MSS };
        let header = TCP_HEADER + options.len();
        let length = header + self.payload.len();
        let total = u16::try_from(IP_HEADER + length).unwrap_or(u16::MAX).to_be_bytes();
        let mut packet = Vec::with_capacity(IP_HEADER + length);
        packet.extend([0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, TCP, 0, 0]);
        packet.extend(self.from.ip().octets());
        packet.extend(self.to.ip().octets());
        packet.extend(self.from.port().to_be_bytes());
        packet.extend(self.to.port().to_be_bytes());
        packet.extend(self.sequence.to_be_bytes());
        packet.extend(self.acknowledgement.to_be_bytes());
        // The length of the header in words of four bytes stands in the upper half.
        packet.extend([u8::try_from(header * 4).unwrap_or(u8::MAX), self.flags]);
        packet.extend(WINDOW.to_be_bytes());
        packet.extend([0, 0, 0, 0]);
        packet.extend(options);
        packet.extend(self.payload);
        let header_checksum = folded(words(packet.get(..IP_HEADER).unwrap_or_default()));
        if let Some(field) = packet.get_mut(10..12) {
            field.copy_from_slice(&header_checksum.to_be_bytes());
        }
        let checksum = self.checksum(packet.get(IP_HEADER..).unwrap_or_default());
        if let Some(field) = packet.get_mut(IP_HEADER + 16..IP_HEADER + 18) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
        packet
    }

    fn checksum(&self, tcp: &[u8]) -> u16 {
        let length = u32::try_from(tcp.len()).unwrap_or(u32::MAX);
        let addresses = words(&self.from.ip().octets()) + words(&self.to.ip().octets());
        folded(addresses + u32::from(TCP) + length + words(tcp))
    }
}

/// The sum of words of two bytes.
fn words(bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(0, |sum, pair| {
        let word = pair.first().copied().zip(Some(pair.get(1).copied().unwrap_or(0)));
        sum + word.map_or(0, |(high, low)| u32::from(high) << 8 | u32::from(low))
    })
}

/// The checksum of a sum of words.
fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(flags: u8, payload: &[u8]) -> Segment<'_> {
        Segment {
            from: SocketAddrV4::new([198, 18, 1, 7].into(), 40_000),
            to: SocketAddrV4::new([10, 77, 0, 2].into(), 8080),
            sequence: 0x0102_0304,
            acknowledgement: 0xa0b0_c0d0,
            flags,
            payload,
        }
    }

    #[test]
    fn a_syn_says_its_mss() {
        let packet = segment(SYN, b"").packet();
        assert_eq!(packet.len(), 44);
        assert_eq!(packet[2..4], [0, 44]);
        assert_eq!(packet[32] >> 4, 6, "six words of header");
        assert_eq!(packet[40..44], MSS);
    }

    #[test]
    fn the_checksum_is_right() {
        for payload in [&b""[..], b"odd", b"even"] {
            let segment = segment(ACK | PSH, payload);
            let packet = segment.packet();
            // Over a segment with its checksum in place the sum is all ones, so its complement is zero.
            assert_eq!(segment.checksum(&packet[20..]), 0, "{payload:?}");
            assert_eq!(folded(words(&packet[..20])), 0, "{payload:?}");
        }
    }

    #[test]
    fn what_is_no_whole_segment_is_left_alone() {
        let packet = segment(ACK, b"data").packet();
        for length in 0..packet.len() {
            assert_eq!(Segment::parse(&packet[..length]), None, "{length}");
        }
        let mut udp = packet;
        udp[9] = 17;
        assert_eq!(Segment::parse(&udp), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            flags in 0_u8..64,
            sequence: u32,
            acknowledgement: u32,
            payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let segment = Segment { sequence, acknowledgement, ..segment(flags, &payload) };
            let packet = segment.packet();
            let read = Segment::parse(&packet).unwrap();
            // The MSS of a SYN is an option and no payload.
            prop_assert_eq!(read, segment);
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            Segment::parse(&bytes);
        }
    }
}
