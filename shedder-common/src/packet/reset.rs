//! The RST that refuses a connection attempt (RFC 9293, 3.5.2, group 1: no connection exists and the segment
//! carries no acknowledgement): sequence 0, acknowledging all that the SYN took.

use super::checksum::Sum;
use super::parse::Attempt;
use crate::address::Address;

/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;
/// Bytes of a TCP header without options.
pub const TCP_LEN: usize = 20;

const DATA_OFFSET_AND_FLAGS: u16 = 0x5014; // five words; RST and ACK
const HOP_LIMIT: u8 = 64;
const TCP: u8 = 6;

/// Sequence number that the RST acknowledges: the SYN counts as one, its data (TFO) in full.
#[must_use]
#[inline(always)]
pub const fn acknowledgement(attempt: &Attempt) -> u32 {
    attempt.sequence.wrapping_add(1).wrapping_add(attempt.payload_len)
}

/// The TCP header of the RST, checksum included.
#[must_use]
#[inline(always)]
pub const fn tcp_header(attempt: &Attempt) -> [u8; TCP_LEN] {
    let [s0, s1] = attempt.destination_port.to_be_bytes();
    let [d0, d1] = attempt.source_port.to_be_bytes();
    let [a0, a1, a2, a3] = acknowledgement(attempt).to_be_bytes();
    let [f0, f1] = DATA_OFFSET_AND_FLAGS.to_be_bytes();
    let [c0, c1] = tcp_checksum(attempt).to_be_bytes();
    [s0, s1, d0, d1, 0, 0, 0, 0, a0, a1, a2, a3, f0, f1, 0, 0, c0, c1, 0, 0]
}

/// The checksum of that header over its pseudo-header.
#[must_use]
#[inline(always)]
pub const fn tcp_checksum(attempt: &Attempt) -> u16 {
    pseudo_header(attempt, TCP_LEN as u32)
        .add16(attempt.source_port)
        .add16(attempt.destination_port)
        .add32(acknowledgement(attempt))
        .add16(DATA_OFFSET_AND_FLAGS)
        .checksum()
}

/// Sum of the pseudo-header of a segment of that many bytes. Its direction does not matter.
#[must_use]
#[inline(always)]
pub const fn pseudo_header(attempt: &Attempt, segment_len: u32) -> Sum {
    let sum = Sum::new().add16(TCP as u16).add32(segment_len);
    if attempt.ipv6 {
        add_address(add_address(sum, &attempt.source), &attempt.destination)
    } else {
        sum.add_bytes(attempt.source.v4_octets()).add_bytes(attempt.destination.v4_octets())
    }
}

#[inline(always)]
const fn add_address(sum: Sum, address: &Address) -> Sum {
    let [a, b, c, d] = address.words;
    sum.add_bytes(a.to_ne_bytes())
        .add_bytes(b.to_ne_bytes())
        .add_bytes(c.to_ne_bytes())
        .add_bytes(d.to_ne_bytes())
}

/// The IPv4 header of the RST, checksum included.
#[must_use]
#[inline(always)]
pub const fn ipv4_header(attempt: &Attempt) -> [u8; IPV4_LEN] {
    let [s0, s1, s2, s3] = attempt.destination.v4_octets();
    let [d0, d1, d2, d3] = attempt.source.v4_octets();
    let [l0, l1] = ((IPV4_LEN + TCP_LEN) as u16).to_be_bytes();
    let sum = Sum::new()
        .add16(0x4500)
        .add16((IPV4_LEN + TCP_LEN) as u16)
        .add16(0x4000)
        .add16(u16::from_be_bytes([HOP_LIMIT, TCP]))
        .add_bytes([s0, s1, s2, s3])
        .add_bytes([d0, d1, d2, d3]);
    let [c0, c1] = sum.checksum().to_be_bytes();
    [0x45, 0, l0, l1, 0, 0, 0x40, 0, HOP_LIMIT, TCP, c0, c1, s0, s1, s2, s3, d0, d1, d2, d3]
}

/// The first 8 bytes of the IPv6 header of the RST; source and destination follow.
#[must_use]
#[inline(always)]
pub const fn ipv6_start() -> [u8; 8] {
    let [l0, l1] = (TCP_LEN as u16).to_be_bytes();
    [0x60, 0, 0, 0, l0, l1, TCP, HOP_LIMIT]
}

/// Ethernet destination and source of the answer to a frame that has `header` first.
#[must_use]
#[inline(always)]
pub const fn swapped_macs(header: [u8; 12]) -> [u8; 12] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
    [g, h, i, j, k, l, a, b, c, d, e, f]
}

/// Length of the frame that answers, given where the IP header lies and how long the SYN's frame was. An
/// Ethernet frame that was long enough for the wire stays so, since not every driver pads.
#[must_use]
#[inline(always)]
pub const fn frame_len(attempt: &Attempt, link_header_len: u32, syn_len: u32) -> u32 {
    let ip_len = if attempt.ipv6 { IPV6_LEN } else { IPV4_LEN } as u32;
    let needed = attempt.network_offset + ip_len + TCP_LEN as u32;
    if link_header_len == 0 || needed >= MIN_ETHERNET_FRAME || syn_len < MIN_ETHERNET_FRAME {
        needed
    } else {
        MIN_ETHERNET_FRAME
    }
}

/// Shortest Ethernet frame on the wire, without its check sequence.
pub const MIN_ETHERNET_FRAME: u32 = 60;

/// The whole frame that answers `frame`, on the host: what the kernel programs make in place. Returns its
/// length in `reply`, or `None` where the attempt cannot be answered or `reply` is too short.
#[must_use]
pub fn build_frame(frame: &[u8], attempt: &Attempt, link_header_len: u32, reply: &mut [u8]) -> Option<usize> {
    if attempt.fragmented {
        return None;
    }
    let network_offset = attempt.network_offset as usize;
    let reply_len = frame_len(attempt, link_header_len, u32::try_from(frame.len()).ok()?);
    let reply = reply.get_mut(..reply_len as usize)?;
    reply.fill(0);
    reply.get_mut(..network_offset)?.copy_from_slice(frame.get(..network_offset)?);
    if link_header_len != 0 {
        let macs = frame.first_chunk::<12>()?;
        reply.first_chunk_mut::<12>()?.copy_from_slice(&swapped_macs(*macs));
    }
    let rest = reply.get_mut(network_offset..)?;
    let rest = if attempt.ipv6 {
        let (start, rest) = rest.split_first_chunk_mut::<8>()?;
        *start = ipv6_start();
        let (source, rest) = rest.split_first_chunk_mut::<16>()?;
        *source = attempt.destination.octets();
        let (destination, rest) = rest.split_first_chunk_mut::<16>()?;
        *destination = attempt.source.octets();
        rest
    } else {
        let (header, rest) = rest.split_first_chunk_mut::<IPV4_LEN>()?;
        *header = ipv4_header(attempt);
        rest
    };
    *rest.first_chunk_mut::<TCP_LEN>()? = tcp_header(attempt);
    Some(reply_len as usize)
}
