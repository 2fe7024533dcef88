//! From bytes to "someone wants a new TCP connection".

use core::mem::MaybeUninit;

use super::{IPV4_LEN, IPV6_LEN, PacketBytes, TCP_LEN, Window as _};
use crate::address::Address;
use crate::counters::Unparsed;
use crate::opaque::{blurred, written};

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_LEN: u32 = 14;

/// Most IPv6 extension headers that are walked; real traffic has two at most.
pub const MAX_EXTENSION_HEADERS: u32 = 6;

/// Bytes of a VLAN tag.
pub const VLAN_TAG_LEN: u32 = 4;

/// Most bytes of a frame that are walked before the TCP options.
pub const MAX_WALKED_LEN: u32 =
    MAX_NETWORK_OFFSET + IPV6_LEN + MAX_EXTENSION_HEADERS * MAX_EXTENSION_LEN + TCP_LEN;

const MAX_VLAN_TAGS: u32 = 2;
const MAX_NETWORK_OFFSET: u32 = ETHERNET_LEN + MAX_VLAN_TAGS * VLAN_TAG_LEN;
const MAX_EXTENSION_LEN: u32 = 2048;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const PROTOCOL_TCP: u8 = 6;
const IPV4_MORE_FRAGMENTS: u16 = 0x2000;
const IPV4_FRAGMENT_OFFSET: u16 = 0x1fff;
const IPV6_MORE_FRAGMENTS: u16 = 1;
const IPV6_FRAGMENT_OFFSET: u16 = 0xfff8;
const NEXT_HOP_BY_HOP: u8 = 0;
const NEXT_ROUTING: u8 = 43;
const NEXT_FRAGMENT: u8 = 44;
const NEXT_DESTINATION: u8 = 60;
const IPV4_PLAIN: u8 = 0x45; // version 4, no options
const FLAG_FIN: u8 = 0x01;
const FLAG_SYN: u8 = 0x02;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;
const FLAGS: u8 = FLAG_FIN | FLAG_SYN | FLAG_RST | FLAG_ACK;

/// Above every offset of an IP header.
const NETWORK_OFFSETS: u32 = 32;
/// Above every offset of a TCP header.
const TRANSPORT_OFFSETS: u32 = 1 << 14;
const _: () = assert!(MAX_NETWORK_OFFSET < NETWORK_OFFSETS && MAX_WALKED_LEN < TRANSPORT_OFFSETS);

/// A new TCP connection attempt: a SYN without ACK, RST and FIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
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
    /// Keeps the layout free of implicit padding.
    pub reserved: u16,
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

/// What a packet is at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// As [`Parsed::Other`].
    Other,
    /// As [`Parsed::Attempt`].
    Attempt,
    /// Only [`parse`] can tell.
    Unclear,
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

/// Parses what nearly every frame is: Ethernet without tags, IP without options, extension headers and
/// fragments. An attempt is written where it was found, which spares the program a copy of it.
#[inline(always)]
pub fn parse_plain<P: PacketBytes + ?Sized>(
    packet: &P,
    link_header_len: u32,
    found: &mut MaybeUninit<Attempt>,
) -> Glance {
    const IPV4_AT: usize = ETHERNET_LEN as usize;
    const IPV4_TCP_AT: usize = IPV4_AT + IPV4_LEN as usize;
    const IPV6_TCP_AT: usize = IPV4_AT + IPV6_LEN as usize;
    if link_header_len != ETHERNET_LEN {
        return Glance::Unclear;
    }
    let Some(start) = packet.window::<IPV4_TCP_AT>(0) else { return Glance::Unclear };
    match start.be16::<12>() {
        ETHERTYPE_IPV4 => {
            if start.byte::<{ IPV4_AT + 9 }>() != PROTOCOL_TCP {
                return Glance::Other;
            }
            let fragment = start.be16::<{ IPV4_AT + 6 }>();
            if start.byte::<IPV4_AT>() != IPV4_PLAIN
                || fragment & (IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS) != 0
            {
                return Glance::Unclear;
            }
            let Some(tcp) = packet.window::<{ TCP_LEN as usize }>(IPV4_TCP_AT) else {
                return Glance::Unclear;
            };
            if tcp.byte::<13>() & FLAGS != FLAG_SYN {
                return Glance::Other;
            }
            if start.byte::<0>() & 1 != 0 {
                return Glance::Unclear;
            }
            let segment = Segment {
                source: Address::from_v4(start.word::<{ IPV4_AT + 12 }>().to_ne_bytes()),
                destination: Address::from_v4(start.word::<{ IPV4_AT + 16 }>().to_ne_bytes()),
                network_offset: ETHERNET_LEN,
                transport_offset: ETHERNET_LEN + IPV4_LEN,
                len: u32::from(start.be16::<{ IPV4_AT + 2 }>()).saturating_sub(IPV4_LEN),
                ipv6: false,
                fragmented: false,
            };
            write::<4>(found, attempt(packet, &segment, tcp))
        }
        ETHERTYPE_IPV6 => {
            if start.byte::<IPV4_AT>() >> 4 != 6 || start.byte::<{ IPV4_AT + 6 }>() != PROTOCOL_TCP {
                return Glance::Unclear;
            }
            let Some(tcp) = packet.window::<{ TCP_LEN as usize }>(IPV6_TCP_AT) else {
                return Glance::Unclear;
            };
            if tcp.byte::<13>() & FLAGS != FLAG_SYN {
                return Glance::Other;
            }
            if start.byte::<0>() & 1 != 0 {
                return Glance::Unclear;
            }
            let Some((source, destination)) = ipv6_addresses(packet, ETHERNET_LEN) else {
                return Glance::Unclear;
            };
            let segment = Segment {
                source,
                destination,
                network_offset: ETHERNET_LEN,
                transport_offset: ETHERNET_LEN + IPV6_LEN,
                len: u32::from(start.be16::<{ IPV4_AT + 4 }>()),
                ipv6: true,
                fragmented: false,
            };
            write::<6>(found, attempt(packet, &segment, tcp))
        }
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => Glance::Unclear,
        _ => Glance::Other,
    }
}

#[inline(always)]
fn write<const FAMILY: u8>(place: &mut MaybeUninit<Attempt>, found: Option<Attempt>) -> Glance {
    match found {
        Some(found) => {
            place.write(found);
            written::<FAMILY>();
            Glance::Attempt
        }
        None => Glance::Unclear,
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
) -> Result<Option<(Family, u32)>, Unparsed> {
    if link_header_len == 0 {
        let Some(first) = packet.window::<1>(0) else { return Err(Unparsed::TruncatedLink) };
        return Ok(match first.byte::<0>() >> 4 {
            4 => Some((Family::V4, 0)),
            6 => Some((Family::V6, 0)),
            _ => None,
        });
    }
    let Some(header) = packet.window::<{ ETHERNET_LEN as usize }>(0) else {
        return Err(Unparsed::TruncatedLink);
    };
    // A group address is no address of ours: such a SYN starts no connection and must not be answered.
    if header.byte::<0>() & 1 != 0 {
        return Ok(None);
    }
    let mut ethertype = header.be16::<12>();
    let mut offset = ETHERNET_LEN;
    for _ in 0..MAX_VLAN_TAGS {
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_QINQ {
            break;
        }
        let Some(tag) = packet.window::<{ VLAN_TAG_LEN as usize }>(offset as usize) else {
            return Err(Unparsed::TruncatedLink);
        };
        ethertype = tag.be16::<2>();
        offset += VLAN_TAG_LEN;
    }
    let offset = blurred::<{ NETWORK_OFFSETS as u64 }>(offset);
    match ethertype {
        ETHERTYPE_IPV4 => Ok(Some((Family::V4, offset))),
        ETHERTYPE_IPV6 => Ok(Some((Family::V6, offset))),
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => Err(Unparsed::VlanDepth),
        _ => Ok(None),
    }
}

#[inline(always)]
fn parse_ipv4<P: PacketBytes + ?Sized>(packet: &P, network_offset: u32) -> Parsed {
    let Some(header) = packet.window::<{ IPV4_LEN as usize }>(network_offset as usize) else {
        return Parsed::Unparsed(Unparsed::TruncatedIp);
    };
    if header.byte::<9>() != PROTOCOL_TCP {
        return Parsed::Other;
    }
    let version_ihl = header.byte::<0>();
    let header_len = u32::from(version_ihl & 0x0f) * 4;
    let total_len = u32::from(header.be16::<2>());
    if version_ihl >> 4 != 4 || header_len < IPV4_LEN {
        return Parsed::Unparsed(Unparsed::BadIp);
    }
    let fragment = header.be16::<6>();
    if fragment & IPV4_FRAGMENT_OFFSET != 0 {
        return Parsed::Unparsed(Unparsed::LaterFragment);
    }
    parse_tcp(
        packet,
        &Segment {
            source: Address::from_v4(header.word::<12>().to_ne_bytes()),
            destination: Address::from_v4(header.word::<16>().to_ne_bytes()),
            network_offset,
            transport_offset: network_offset + header_len,
            len: total_len.saturating_sub(header_len),
            ipv6: false,
            fragmented: fragment & IPV4_MORE_FRAGMENTS != 0,
        },
    )
}

#[inline(always)]
fn parse_ipv6<P: PacketBytes + ?Sized>(packet: &P, network_offset: u32) -> Parsed {
    let Some(header) = packet.window::<8>(network_offset as usize) else {
        return Parsed::Unparsed(Unparsed::TruncatedIp);
    };
    if header.byte::<0>() >> 4 != 6 {
        return Parsed::Unparsed(Unparsed::BadIp);
    }
    let mut len = u32::from(header.be16::<4>());
    let mut next = header.byte::<6>();
    let mut offset = network_offset + IPV6_LEN;
    let mut fragmented = false;
    for _ in 0..MAX_EXTENSION_HEADERS {
        let extension_len = match next {
            NEXT_HOP_BY_HOP | NEXT_ROUTING | NEXT_DESTINATION => {
                let Some(extension) = packet.window::<4>(offset as usize) else {
                    return Parsed::Unparsed(Unparsed::TruncatedExtension);
                };
                // Segments are left: the destination is a stop on its way, and the header holds the next.
                if next == NEXT_ROUTING && extension.byte::<3>() != 0 {
                    return Parsed::Other;
                }
                next = extension.byte::<0>();
                (u32::from(extension.byte::<1>()) + 1) * 8
            }
            NEXT_FRAGMENT => {
                let Some(extension) = packet.window::<4>(offset as usize) else {
                    return Parsed::Unparsed(Unparsed::TruncatedExtension);
                };
                let fragment = extension.be16::<2>();
                if fragment & IPV6_FRAGMENT_OFFSET != 0 {
                    return Parsed::Unparsed(Unparsed::LaterFragment);
                }
                fragmented = fragmented || fragment & IPV6_MORE_FRAGMENTS != 0;
                next = extension.byte::<0>();
                8
            }
            _ => break,
        };
        if len < extension_len {
            return Parsed::Unparsed(Unparsed::BadIp);
        }
        len -= extension_len;
        offset = blurred::<{ TRANSPORT_OFFSETS as u64 }>(offset + extension_len);
    }
    match next {
        PROTOCOL_TCP => {}
        NEXT_HOP_BY_HOP | NEXT_ROUTING | NEXT_DESTINATION | NEXT_FRAGMENT => {
            return Parsed::Unparsed(Unparsed::ExtensionHeaders);
        }
        _ => return Parsed::Other,
    }
    let Some((source, destination)) = ipv6_addresses(packet, network_offset) else {
        return Parsed::Unparsed(Unparsed::TruncatedIp);
    };
    parse_tcp(
        packet,
        &Segment {
            source,
            destination,
            network_offset,
            transport_offset: offset,
            len,
            ipv6: true,
            fragmented,
        },
    )
}

#[inline(always)]
fn ipv6_addresses<P: PacketBytes + ?Sized>(packet: &P, network_offset: u32) -> Option<(Address, Address)> {
    let header = packet.window::<{ IPV6_LEN as usize }>(network_offset as usize)?;
    let source = [header.word::<8>(), header.word::<12>(), header.word::<16>(), header.word::<20>()];
    let destination = [header.word::<24>(), header.word::<28>(), header.word::<32>(), header.word::<36>()];
    Some((Address { words: source }, Address { words: destination }))
}

struct Segment {
    source: Address,
    destination: Address,
    network_offset: u32,
    transport_offset: u32,
    len: u32,
    ipv6: bool,
    fragmented: bool,
}

#[inline(always)]
fn parse_tcp<P: PacketBytes + ?Sized>(packet: &P, segment: &Segment) -> Parsed {
    // The flags alone decide for nearly every packet.
    let Some(tcp) = packet.window::<{ TCP_LEN as usize }>(segment.transport_offset as usize) else {
        return Parsed::Unparsed(Unparsed::TruncatedTcp);
    };
    if tcp.byte::<13>() & FLAGS != FLAG_SYN {
        return Parsed::Other;
    }
    match attempt(packet, segment, tcp) {
        Some(attempt) => Parsed::Attempt(attempt),
        None => Parsed::Unparsed(Unparsed::BadTcp),
    }
}

/// The attempt of a SYN, or `None` where its lengths cannot be.
#[inline(always)]
fn attempt<P: PacketBytes + ?Sized>(
    packet: &P,
    segment: &Segment,
    tcp: P::Window<{ TCP_LEN as usize }>,
) -> Option<Attempt> {
    let header_len = u32::from(tcp.byte::<12>() >> 4) * 4;
    if header_len < TCP_LEN
        || header_len > segment.len
        || !packet.holds((segment.transport_offset + segment.len) as usize)
    {
        return None;
    }
    Some(Attempt {
        source: segment.source,
        destination: segment.destination,
        source_port: tcp.be16::<0>(),
        destination_port: tcp.be16::<2>(),
        sequence: tcp.be32::<4>(),
        segment_len: segment.len,
        payload_len: segment.len - header_len,
        network_offset: segment.network_offset,
        transport_offset: segment.transport_offset,
        ipv6: segment.ipv6,
        fragmented: segment.fragmented,
        reserved: 0,
    })
}
