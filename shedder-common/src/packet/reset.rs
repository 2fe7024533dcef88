//! The RST that refuses a connection attempt (RFC 9293, 3.5.2, group 1: no connection exists and the segment
//! carries no acknowledgement): sequence 0, acknowledging all that the SYN took.

use super::checksum::Sum;
use super::parse::Attempt;
use super::{IPV4_LEN, IPV6_LEN, TCP_LEN, Window as _};
use crate::address::Address;

const IPV4_TOTAL_LEN: u16 = 40;
const IPV6_PAYLOAD_LEN: u16 = 20;
const _: () = assert!(IPV4_TOTAL_LEN as u32 == IPV4_LEN + TCP_LEN && IPV6_PAYLOAD_LEN as u32 == TCP_LEN);
const DATA_OFFSET_AND_FLAGS: u16 = 0x5014; // five words; RST and ACK
const HOP_LIMIT: u8 = 64;
const TCP: u8 = 6;

/// Whether a refusal may be answered. What cannot be a source did not ask, and the answer would go to many or to
/// somebody else: such a SYN is ignored (RFC 9293, MUST-63). `group_mac` is whether it came from a group address of the
/// link layer. Loopback addresses are sources only where it came through the loopback device.
#[must_use]
#[inline(always)]
pub fn may_answer(attempt: &Attempt, group_mac: bool, loopback: impl FnOnce() -> bool) -> bool {
    if group_mac {
        return false;
    }
    if !attempt.ipv6 {
        let [first, ..] = attempt.source.v4_octets();
        return match first {
            0 | 224.. => false,
            127 => loopback(),
            _ => true,
        };
    }
    let [a, b, c, d] = attempt.source.words;
    if a | b | c == 0 {
        // Unspecified, loopback, or what was an IPv4 address once.
        d == LAST_OF_LOOPBACK && loopback()
    } else {
        let [first, ..] = a.to_ne_bytes();
        first != 0xff && !attempt.source.is_v4()
    }
}

/// The last word of `::1`.
const LAST_OF_LOOPBACK: u32 = 1_u32.to_be();

/// Sequence number that the RST acknowledges: the SYN counts as one, its data (TFO) in full.
#[must_use]
#[inline(always)]
pub const fn acknowledgement(attempt: &Attempt) -> u32 {
    attempt.sequence.wrapping_add(1).wrapping_add(attempt.payload_len)
}

/// The TCP header of the RST, checksum included, as words in memory order.
#[must_use]
#[inline(always)]
pub const fn tcp_header(attempt: &Attempt) -> [u32; TCP_LEN as usize / 4] {
    let ports = halves(attempt.destination_port.to_be(), attempt.source_port.to_be());
    let acknowledgement = acknowledgement(attempt).to_be();
    let flags = halves(DATA_OFFSET_AND_FLAGS.to_be(), 0);
    let sum = pseudo_header(attempt, TCP_LEN).add_word(ports).add_word(acknowledgement).add_word(flags);
    [ports, 0, acknowledgement, flags, halves(sum.checksum_half(), 0)]
}

/// The checksum in a header that [`tcp_header`] made, as a number.
#[must_use]
#[inline(always)]
pub const fn checksum_of(header: &[u32; TCP_LEN as usize / 4]) -> u16 {
    let [.., last] = *header;
    let [high, low, ..] = last.to_ne_bytes();
    u16::from_be_bytes([high, low])
}

/// Sum of the pseudo-header of a segment of that many bytes. Its direction does not matter.
#[inline(always)]
const fn pseudo_header(attempt: &Attempt, segment_len: u32) -> Sum {
    let sum = Sum::new().add16(TCP as u16).add32(segment_len);
    if attempt.ipv6 {
        add_address(add_address(sum, &attempt.source), &attempt.destination)
    } else {
        let ([_, _, _, source], [_, _, _, destination]) = (attempt.source.words, attempt.destination.words);
        sum.add_word(source).add_word(destination)
    }
}

#[inline(always)]
const fn add_address(sum: Sum, address: &Address) -> Sum {
    let [a, b, c, d] = address.words;
    sum.add_word(a).add_word(b).add_word(c).add_word(d)
}

/// The IPv4 header of the RST, checksum included, as words in memory order.
#[must_use]
#[inline(always)]
pub const fn ipv4_header(attempt: &Attempt) -> [u32; IPV4_LEN as usize / 4] {
    let ([_, _, _, source], [_, _, _, destination]) = (attempt.destination.words, attempt.source.words);
    let start = halves(0x4500_u16.to_be(), IPV4_TOTAL_LEN.to_be());
    let fragment = halves(0, 0x4000_u16.to_be());
    let protocol = u16::from_be_bytes([HOP_LIMIT, TCP]).to_be();
    let sum = Sum::new()
        .add_word(start)
        .add_word(fragment)
        .add_word(halves(protocol, 0))
        .add_word(source)
        .add_word(destination);
    [start, fragment, halves(protocol, sum.checksum_half()), source, destination]
}

/// The IPv6 header of the RST as words in memory order.
#[must_use]
#[inline(always)]
pub const fn ipv6_header(attempt: &Attempt) -> [u32; IPV6_LEN as usize / 4] {
    let start = 0x6000_0000_u32.to_be();
    let rest = halves(IPV6_PAYLOAD_LEN.to_be(), u16::from_be_bytes([TCP, HOP_LIMIT]).to_be());
    let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (attempt.destination.words, attempt.source.words);
    [start, rest, s0, s1, s2, s3, d0, d1, d2, d3]
}

/// A word of two halves, each as it lies in memory.
#[inline(always)]
const fn halves(first: u16, second: u16) -> u32 {
    if cfg!(target_endian = "little") {
        first as u32 | (second as u32) << 16
    } else {
        (first as u32) << 16 | second as u32
    }
}

/// Ethernet destination and source of the answer to a frame that begins with these words in memory order.
#[must_use]
#[inline(always)]
pub const fn swapped_macs(header: [u32; 3]) -> [u32; 3] {
    let [a, b, c] = header;
    let ([b0, b1, b2, b3], [c0, c1, c2, c3]) = (b.to_ne_bytes(), c.to_ne_bytes());
    let [a0, a1, a2, a3] = a.to_ne_bytes();
    [
        u32::from_ne_bytes([b2, b3, c0, c1]),
        u32::from_ne_bytes([c2, c3, a0, a1]),
        u32::from_ne_bytes([a2, a3, b0, b1]),
    ]
}

/// Length of the frame that answers, given where the IP header lies and how long the SYN's frame was. An
/// Ethernet frame that was long enough for the wire stays so, since not every driver pads.
#[must_use]
#[inline(always)]
pub const fn frame_len(attempt: &Attempt, link_header_len: u32, syn_len: u32) -> u32 {
    let ip_len = if attempt.ipv6 { IPV6_LEN } else { IPV4_LEN };
    let needed = attempt.network_offset + ip_len + TCP_LEN;
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
        let words = [macs.word::<0>(), macs.word::<4>(), macs.word::<8>()];
        write_words(reply, &swapped_macs(words))?;
    }
    let headers = reply.get_mut(network_offset..)?;
    let tcp = if attempt.ipv6 {
        write_words(headers, &ipv6_header(attempt))?
    } else {
        write_words(headers, &ipv4_header(attempt))?
    };
    write_words(tcp, &tcp_header(attempt))?;
    Some(reply_len as usize)
}

/// Writes words as they lie in memory; what follows them is left.
fn write_words<'a>(mut bytes: &'a mut [u8], words: &[u32]) -> Option<&'a mut [u8]> {
    for word in words {
        let (place, rest) = bytes.split_first_chunk_mut::<4>()?;
        *place = word.to_ne_bytes();
        bytes = rest;
    }
    Some(bytes)
}
