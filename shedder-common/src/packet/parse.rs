//! From bytes to "someone wants a new TCP connection".

use super::PacketBytes;
use crate::address::Address;
use crate::counters::Unparsed;

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_LEN: u32 = 14;

/// Most IPv6 extension headers that are walked; real traffic has two at most.
pub const MAX_EXTENSION_HEADERS: usize = 6;

const MAX_VLAN_TAGS: usize = 2;
const VLAN_TAG_LEN: usize = 4;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const PROTOCOL_TCP: u8 = 6;
const IPV4_MORE_FRAGMENTS: u16 = 0x2000;
const IPV4_FRAGMENT_OFFSET: u16 = 0x1fff;
const NEXT_HOP_BY_HOP: u8 = 0;
const NEXT_ROUTING: u8 = 43;
const NEXT_FRAGMENT: u8 = 44;
const NEXT_DESTINATION: u8 = 60;
const TCP_LEN: usize = 20;
const FLAG_FIN: u8 = 0x01;
const FLAG_SYN: u8 = 0x02;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;

/// A new TCP connection attempt: a SYN without ACK, RST and FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Who asks.
    pub source: Address,
    /// Whom.
    pub destination: Address,
    /// From this port, host order.
    pub source_port: u16,
    /// To this port, host order.
    pub destination_port: u16,
    /// Initial sequence number, host order.
    pub sequence: u32,
    /// Bytes of TCP header and data by the IP header, never by the frame, which may be padded.
    pub segment_len: u32,
    /// Bytes of data of those (TFO).
    pub payload_len: u32,
    /// Offset of the IP header in the frame.
    pub network_offset: u32,
    /// Offset of the TCP header in the frame.
    pub transport_offset: u32,
    /// Over IPv6.
    pub ipv6: bool,
    /// The segment goes on in later fragments, so its length is unknown and it cannot be answered.
    pub fragmented: bool,
}

/// What a packet is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Nothing that is ever refused.
    Other,
    /// Cannot be parsed; it passes.
    Unparsed(Unparsed),
    /// A new connection attempt.
    Attempt(Attempt),
}

/// Parses a frame. `link_header_len` is [`ETHERNET_LEN`], or 0 where frames begin with the IP header.
#[inline(always)]
pub fn parse<P: PacketBytes + ?Sized>(packet: &P, link_header_len: u32) -> Parsed {
    match find_network_header(packet, link_header_len) {
        Ok(Some((Family::V4, offset))) => parse_ipv4(packet, offset),
        Ok(Some((Family::V6, offset))) => parse_ipv6(packet, offset),
        Ok(None) => Parsed::Other,
        Err(reason) => Parsed::Unparsed(reason),
    }
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

#[inline(always)]
fn find_network_header<P: PacketBytes + ?Sized>(
    packet: &P,
    link_header_len: u32,
) -> Result<Option<(Family, usize)>, Unparsed> {
    if link_header_len == 0 {
        let Some([first]) = packet.read::<1>(0) else { return Err(Unparsed::TruncatedLink) };
        return Ok(match first >> 4 {
            4 => Some((Family::V4, 0)),
            6 => Some((Family::V6, 0)),
            _ => None,
        });
    }
    let Some(header) = packet.read::<14>(0) else { return Err(Unparsed::TruncatedLink) };
    let [first_octet, .., type_high, type_low] = header;
    // A group address is no address of ours: such a SYN starts no connection and must not be answered.
    if first_octet & 1 != 0 {
        return Ok(None);
    }
    let mut ethertype = u16::from_be_bytes([type_high, type_low]);
    let mut offset = ETHERNET_LEN as usize;
    for _ in 0..MAX_VLAN_TAGS {
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_QINQ {
            break;
        }
        let Some([_, _, high, low]) = packet.read::<VLAN_TAG_LEN>(offset) else {
            return Err(Unparsed::TruncatedLink);
        };
        ethertype = u16::from_be_bytes([high, low]);
        offset += VLAN_TAG_LEN;
    }
    match ethertype {
        ETHERTYPE_IPV4 => Ok(Some((Family::V4, offset))),
        ETHERTYPE_IPV6 => Ok(Some((Family::V6, offset))),
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => Err(Unparsed::VlanDepth),
        _ => Ok(None),
    }
}

#[inline(always)]
fn parse_ipv4<P: PacketBytes + ?Sized>(packet: &P, network_offset: usize) -> Parsed {
    let Some(header) = packet.read::<20>(network_offset) else {
        return Parsed::Unparsed(Unparsed::TruncatedIp);
    };
    let [version_ihl, _, len_high, len_low, _, _, frag_high, frag_low, _, protocol, _, _, addresses @ ..] =
        header;
    if protocol != PROTOCOL_TCP {
        return Parsed::Other;
    }
    let header_len = u32::from(version_ihl & 0x0f) * 4;
    let total_len = u32::from(u16::from_be_bytes([len_high, len_low]));
    if version_ihl >> 4 != 4 || header_len < 20 || total_len < header_len {
        return Parsed::Unparsed(Unparsed::BadIp);
    }
    let fragment = u16::from_be_bytes([frag_high, frag_low]);
    if fragment & IPV4_FRAGMENT_OFFSET != 0 {
        return Parsed::Unparsed(Unparsed::LaterFragment);
    }
    let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
    parse_tcp(
        packet,
        &Segment {
            source: Address::from_v4([s0, s1, s2, s3]),
            destination: Address::from_v4([d0, d1, d2, d3]),
            network_offset,
            transport_offset: network_offset + header_len as usize,
            len: total_len - header_len,
            ipv6: false,
            fragmented: fragment & IPV4_MORE_FRAGMENTS != 0,
        },
    )
}

#[inline(always)]
fn parse_ipv6<P: PacketBytes + ?Sized>(packet: &P, network_offset: usize) -> Parsed {
    let Some(header) = packet.read::<8>(network_offset) else {
        return Parsed::Unparsed(Unparsed::TruncatedIp);
    };
    let [version, _, _, _, len_high, len_low, mut next, _] = header;
    if version >> 4 != 6 {
        return Parsed::Unparsed(Unparsed::BadIp);
    }
    let mut len = u32::from(u16::from_be_bytes([len_high, len_low]));
    let mut offset = network_offset + 40;
    let mut fragmented = false;
    for _ in 0..MAX_EXTENSION_HEADERS {
        let extension_len = match next {
            NEXT_HOP_BY_HOP | NEXT_ROUTING | NEXT_DESTINATION => {
                let Some([following, words]) = packet.read::<2>(offset) else {
                    return Parsed::Unparsed(Unparsed::TruncatedExtension);
                };
                next = following;
                (u32::from(words) + 1) * 8
            }
            NEXT_FRAGMENT => {
                let Some([following, _, high, low]) = packet.read::<4>(offset) else {
                    return Parsed::Unparsed(Unparsed::TruncatedExtension);
                };
                let fragment = u16::from_be_bytes([high, low]);
                if fragment & 0xfff8 != 0 {
                    return Parsed::Unparsed(Unparsed::LaterFragment);
                }
                fragmented = fragmented || fragment & 1 != 0;
                next = following;
                8
            }
            _ => break,
        };
        if len < extension_len {
            return Parsed::Unparsed(Unparsed::BadIp);
        }
        len -= extension_len;
        offset += extension_len as usize;
    }
    match next {
        PROTOCOL_TCP => {}
        NEXT_HOP_BY_HOP | NEXT_ROUTING | NEXT_DESTINATION | NEXT_FRAGMENT => {
            return Parsed::Unparsed(Unparsed::ExtensionHeaders);
        }
        _ => return Parsed::Other,
    }
    let Some(source) = packet.read::<16>(network_offset + 8) else {
        return Parsed::Unparsed(Unparsed::TruncatedIp);
    };
    let Some(destination) = packet.read::<16>(network_offset + 24) else {
        return Parsed::Unparsed(Unparsed::TruncatedIp);
    };
    parse_tcp(
        packet,
        &Segment {
            source: Address::from_v6(source),
            destination: Address::from_v6(destination),
            network_offset,
            transport_offset: offset,
            len,
            ipv6: true,
            fragmented,
        },
    )
}

struct Segment {
    source: Address,
    destination: Address,
    network_offset: usize,
    transport_offset: usize,
    len: u32,
    ipv6: bool,
    fragmented: bool,
}

#[inline(always)]
fn parse_tcp<P: PacketBytes + ?Sized>(packet: &P, segment: &Segment) -> Parsed {
    // The flags alone decide for nearly every packet.
    let Some([data_offset, flags]) = packet.read::<2>(segment.transport_offset + 12) else {
        return Parsed::Unparsed(Unparsed::TruncatedTcp);
    };
    if flags & (FLAG_FIN | FLAG_SYN | FLAG_RST | FLAG_ACK) != FLAG_SYN {
        return Parsed::Other;
    }
    let Some([sp0, sp1, dp0, dp1, q0, q1, q2, q3]) = packet.read::<8>(segment.transport_offset) else {
        return Parsed::Unparsed(Unparsed::TruncatedTcp);
    };
    let header_len = u32::from(data_offset >> 4) * 4;
    if (header_len as usize) < TCP_LEN || header_len > segment.len {
        return Parsed::Unparsed(Unparsed::BadTcp);
    }
    Parsed::Attempt(Attempt {
        source: segment.source,
        destination: segment.destination,
        source_port: u16::from_be_bytes([sp0, sp1]),
        destination_port: u16::from_be_bytes([dp0, dp1]),
        sequence: u32::from_be_bytes([q0, q1, q2, q3]),
        segment_len: segment.len,
        payload_len: segment.len - header_len,
        network_offset: segment.network_offset as u32,
        transport_offset: segment.transport_offset as u32,
        ipv6: segment.ipv6,
        fragmented: segment.fragmented,
    })
}
