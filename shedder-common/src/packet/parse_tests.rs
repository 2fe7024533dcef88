use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::frames::{Extension, Frame, address};
use core::mem::MaybeUninit;

use super::parse::{Attempt, ETHERNET_LEN, Glance, MAX_EXTENSION_HEADERS, Parsed, parse, parse_plain};
use crate::address::Address;
use crate::counters::Unparsed;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

fn link_header_len(frame: &Frame) -> u32 {
    if frame.ethernet { ETHERNET_LEN } else { 0 }
}

/// Parses, and checks that the short way says the same where it says anything.
#[expect(unsafe_code, reason = "the programs do not initialise what is found twice")]
fn parsed(bytes: &[u8], link_header_len: u32) -> Parsed {
    let parsed = parse(bytes, link_header_len);
    let mut found = MaybeUninit::new(Attempt::default());
    match parse_plain(bytes, link_header_len, &mut found) {
        Glance::Other => assert_eq!(parsed, Parsed::Other),
        // SAFETY: initialised above.
        Glance::Attempt => assert_eq!(parsed, Parsed::Attempt(unsafe { found.assume_init() })),
        Glance::Unclear => {}
    }
    parsed
}

fn parse_frame(frame: &Frame) -> Parsed {
    parsed(&frame.bytes(), link_header_len(frame))
}

fn transport_offset(frame: &Frame) -> usize {
    let headers = if frame.ipv6 { 40 + frame.extensions_len() } else { 20 + frame.ip_options };
    frame.network_offset() + headers
}

fn attempt_of(frame: &Frame) -> Attempt {
    let (source, destination) = if frame.ipv6 {
        (Address::from_v6(frame.source), Address::from_v6(frame.destination))
    } else {
        let first = |bytes: &[u8; 16]| Address::from_v4(*bytes.first_chunk().unwrap());
        (first(&frame.source), first(&frame.destination))
    };
    Attempt {
        source,
        destination,
        source_port: frame.source_port,
        destination_port: frame.destination_port,
        sequence: frame.sequence,
        segment_len: u32::try_from(20 + frame.tcp_options + frame.payload).unwrap(),
        payload_len: u32::try_from(frame.payload).unwrap(),
        network_offset: u32::try_from(frame.network_offset()).unwrap(),
        transport_offset: u32::try_from(transport_offset(frame)).unwrap(),
        ipv6: frame.ipv6,
        fragmented: frame.ipv4_fragment & 0x2000 != 0
            || frame.extensions.iter().any(|extension| matches!(extension, Extension::Fragment(_, true))),
        reserved: 0,
    }
}

#[track_caller]
fn assert_attempt(frame: &Frame) {
    assert_eq!(parse_frame(frame), Parsed::Attempt(attempt_of(frame)), "{frame:?}");
}

#[track_caller]
fn assert_unparsed(frame: &Frame, reason: Unparsed) {
    assert_eq!(parse_frame(frame), Parsed::Unparsed(reason), "{frame:?}");
}

fn both() -> [Frame; 2] {
    [Frame::default(), Frame::v6()]
}

#[test]
fn a_syn_is_an_attempt_whatever_is_around_it() {
    for plain in both() {
        assert_attempt(&plain);
        for tags in [vec![0x8100], vec![0x88a8], vec![0x88a8, 0x8100], vec![0x8100, 0x8100]] {
            assert_attempt(&Frame { tags, ..plain.clone() });
        }
        assert_attempt(&Frame { ethernet: false, ..plain.clone() });
        for tcp_options in (0..=40).step_by(4) {
            assert_attempt(&Frame { tcp_options, ..plain.clone() });
        }
        for payload in [1, 5, 1400] {
            assert_attempt(&Frame { payload, ..plain.clone() });
        }
        assert_attempt(&Frame { sequence: u32::MAX, ..plain });
    }
}

#[test]
fn ipv4_options_of_every_length_are_skipped() {
    for ip_options in (0..=40).step_by(4) {
        assert_attempt(&Frame { ip_options, payload: 3, tcp_options: 20, ..Frame::default() });
    }
}

#[test]
fn a_packet_need_not_say_that_it_must_not_be_fragmented() {
    assert_attempt(&Frame { ipv4_fragment: 0, ..Frame::default() });
}

#[test]
fn flags_decide_what_a_new_attempt_is() {
    for flags in 0..=u8::MAX {
        let is_attempt = flags & 0b1_0111 == 0b0_0010; // FIN, SYN, RST, ACK
        for plain in both() {
            let frame = Frame { flags, ..plain };
            if is_attempt {
                assert_attempt(&frame);
            } else {
                assert_eq!(parse_frame(&frame), Parsed::Other, "{flags:#x}");
            }
        }
    }
}

#[test]
fn padding_is_no_payload() {
    for padded_to in [60, 64, 128] {
        for plain in both() {
            assert_attempt(&Frame { padded_to, ..plain.clone() });
            assert_attempt(&Frame { padded_to, tags: vec![0x8100], ..plain });
        }
    }
}

#[test]
fn a_packet_that_is_routed_on_is_no_attempt_here() {
    let with = |extensions| Frame { extensions, ..Frame::v6() };
    assert_attempt(&with(vec![Extension::Routing(0)]));
    assert_attempt(&with(vec![Extension::Options(DESTINATION, 0), Extension::Routing(0)]));
    for left in [1, 2, 255] {
        assert_eq!(parse_frame(&with(vec![Extension::Routing(left)])), Parsed::Other);
        let later = vec![Extension::Options(HOP_BY_HOP, 1), Extension::Routing(left)];
        assert_eq!(parse_frame(&with(later)), Parsed::Other);
    }
}

#[test]
fn a_third_tag_is_too_many() {
    for plain in both() {
        assert_unparsed(&Frame { tags: vec![0x88a8, 0x8100, 0x8100], ..plain }, Unparsed::VlanDepth);
    }
}

#[test]
fn a_group_address_starts_no_connection() {
    for to_mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        for plain in both() {
            assert_eq!(parse_frame(&Frame { to_mac, ..plain }), Parsed::Other);
        }
    }
}

#[test]
fn extension_headers_are_walked() {
    let options = [HOP_BY_HOP, ROUTING, DESTINATION];
    for kind in options {
        for units in [0, 1, 5, 20] {
            assert_attempt(&Frame { extensions: vec![Extension::Options(kind, units)], ..Frame::v6() });
        }
    }
    let all = vec![
        Extension::Options(HOP_BY_HOP, 0),
        Extension::Options(DESTINATION, 2),
        Extension::Options(ROUTING, 1),
        Extension::Fragment(0, false),
        Extension::Options(DESTINATION, 0),
    ];
    for tags in [vec![], vec![0x8100]] {
        assert_attempt(&Frame { extensions: all.clone(), tags, payload: 9, ..Frame::v6() });
    }
    let longest = vec![Extension::Options(DESTINATION, 255); MAX_EXTENSION_HEADERS as usize];
    assert_attempt(&Frame { extensions: longest, ..Frame::v6() });
}

#[test]
fn more_extension_headers_than_are_walked_pass() {
    for count in [MAX_EXTENSION_HEADERS as usize + 1, 20] {
        let extensions = vec![Extension::Options(DESTINATION, 0); count];
        assert_unparsed(&Frame { extensions, ..Frame::v6() }, Unparsed::ExtensionHeaders);
    }
}

#[test]
fn of_fragments_only_the_first_is_judged_and_none_is_answered() {
    let first = Frame { ipv4_fragment: 0x2000, payload: 8, ..Frame::default() };
    assert_attempt(&first);
    assert!(attempt_of(&first).fragmented);
    assert_unparsed(&Frame { ipv4_fragment: 0x2001, ..Frame::default() }, Unparsed::LaterFragment);
    assert_unparsed(&Frame { ipv4_fragment: 0x1fff, ..Frame::default() }, Unparsed::LaterFragment);
    let fragment =
        |offset, more| Frame { extensions: vec![Extension::Fragment(offset, more)], ..Frame::v6() };
    assert_attempt(&fragment(0, true));
    assert!(attempt_of(&fragment(0, true)).fragmented);
    assert!(!attempt_of(&fragment(0, false)).fragmented);
    assert_unparsed(&fragment(1, true), Unparsed::LaterFragment);
    assert_unparsed(&fragment(8191, false), Unparsed::LaterFragment);
}

#[test]
fn a_frame_cut_anywhere_is_no_attempt() {
    let frames = both().into_iter().flat_map(|plain| {
        [
            Frame { payload: 7, tcp_options: 8, ..plain.clone() },
            Frame { tags: vec![0x88a8, 0x8100], ..plain.clone() },
            Frame { ip_options: 12, extensions: vec![Extension::Options(0, 1)], ..plain.clone() },
            Frame { ethernet: false, ..plain },
        ]
    });
    for frame in frames {
        let bytes = frame.bytes();
        for len in 0..bytes.len() {
            let parsed = parsed(&bytes[..len], link_header_len(&frame));
            assert!(matches!(parsed, Parsed::Unparsed(_)), "{len} of {} bytes: {parsed:?}", bytes.len());
        }
        assert_attempt(&frame);
    }
}

#[test]
fn a_cut_frame_says_where_it_was_cut() {
    let v4 = Frame::default().bytes();
    let v6 = Frame { extensions: vec![Extension::Options(0, 1)], ..Frame::v6() }.bytes();
    let reason = |bytes: &[u8]| match parsed(bytes, ETHERNET_LEN) {
        Parsed::Unparsed(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(&v4[..13]), Unparsed::TruncatedLink);
    assert_eq!(reason(&v4[..33]), Unparsed::TruncatedIp);
    assert_eq!(reason(&v4[..53]), Unparsed::TruncatedTcp);
    assert_eq!(reason(&v6[..20]), Unparsed::TruncatedIp);
    assert_eq!(reason(&v6[..55]), Unparsed::TruncatedExtension);
    assert_eq!(reason(&v6[..80]), Unparsed::TruncatedTcp);
    let with_data = Frame { payload: 10, ..Frame::default() }.bytes();
    assert_eq!(reason(&with_data[..60]), Unparsed::BadTcp);
}

#[test]
fn lengths_that_cannot_be_pass() {
    let with = |plain: &Frame, changes: &[(usize, u8)]| {
        let mut bytes = plain.bytes();
        for (offset, value) in changes {
            bytes[*offset] = *value;
        }
        parsed(&bytes, ETHERNET_LEN)
    };
    let (v4, v6) = (Frame::default(), Frame::v6());
    for ihl in 0..5 {
        assert_eq!(with(&v4, &[(14, 0x40 | ihl)]), Parsed::Unparsed(Unparsed::BadIp));
    }
    assert_eq!(with(&v4, &[(14, 0x65)]), Parsed::Unparsed(Unparsed::BadIp));
    assert_eq!(with(&v4, &[(17, 19)]), Parsed::Unparsed(Unparsed::BadTcp));
    assert_eq!(with(&Frame { flags: 0x10, ..v4.clone() }, &[(17, 19)]), Parsed::Other);
    assert_eq!(with(&v4, &[(16, 0xff), (17, 0xff)]), Parsed::Unparsed(Unparsed::BadTcp));
    assert_eq!(with(&v4, &[(17, 39)]), Parsed::Unparsed(Unparsed::BadTcp));
    assert_eq!(with(&v6, &[(14, 0x40)]), Parsed::Unparsed(Unparsed::BadIp));
    assert_eq!(with(&v6, &[(19, 19)]), Parsed::Unparsed(Unparsed::BadTcp));
    assert_eq!(with(&v6, &[(18, 0xff)]), Parsed::Unparsed(Unparsed::BadTcp));
    for (plain, offset) in [(&v4, 46), (&v6, 66)] {
        for words in 0..5 {
            assert_eq!(with(plain, &[(offset, words << 4)]), Parsed::Unparsed(Unparsed::BadTcp), "{words}");
        }
        assert_eq!(with(plain, &[(offset, 0xf0)]), Parsed::Unparsed(Unparsed::BadTcp));
    }
    // An extension header that is longer than all that follows the IP header.
    let extended = Frame { extensions: vec![Extension::Options(60, 0)], ..Frame::v6() };
    assert_eq!(with(&extended, &[(55, 4)]), Parsed::Unparsed(Unparsed::BadIp));
}

#[test]
fn what_is_not_tcp_is_left_alone() {
    for protocol in [1, 17, 47, 50, 58, 132] {
        for plain in both() {
            assert_eq!(parse_frame(&Frame { protocol, ..plain.clone() }), Parsed::Other);
            assert_eq!(parse_frame(&Frame { protocol, tags: vec![0x8100], ..plain }), Parsed::Other);
        }
    }
    for ethertype in [[0x08, 0x06], [0x88, 0xcc], [0x88, 0x47], [0x00, 0x26]] {
        let mut bytes = Frame::default().bytes();
        bytes[12..14].copy_from_slice(&ethertype);
        assert_eq!(parsed(&bytes, ETHERNET_LEN), Parsed::Other);
        assert_eq!(parsed(&bytes[..14], ETHERNET_LEN), Parsed::Other);
    }
    assert_eq!(parsed(&[0x00; 40], 0), Parsed::Other);
}

/// Whether a frame is a SYN that opens a connection, told in the plainest way.
fn is_attempt(bytes: &[u8], mut at: usize) -> Option<bool> {
    let get16 = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let version = if at == 0 {
        bytes.first()? >> 4
    } else {
        if bytes[0] & 1 == 1 {
            return None;
        }
        let mut ethertype = get16(12)?;
        for _ in 0..2 {
            if [0x8100, 0x88a8].contains(&ethertype) {
                ethertype = get16(at + 2)?;
                at += 4;
            }
        }
        match ethertype {
            0x0800 => 4,
            0x86dd => 6,
            _ => return None,
        }
    };
    if bytes.get(at)? >> 4 != version {
        return None;
    }
    let end;
    if version == 4 {
        let header = usize::from(bytes[at] & 15) * 4;
        end = at + usize::from(get16(at + 2)?);
        if header < 20 || *bytes.get(at + 9)? != 6 || get16(at + 6)? & 0x1fff != 0 {
            return None;
        }
        at += header;
    } else if version == 6 {
        end = at + 40 + usize::from(get16(at + 4)?);
        let mut next = *bytes.get(at + 6)?;
        at += 40;
        while next != 6 {
            let (len, later) = match next {
                // On its way to another stop.
                43 if *bytes.get(at + 3)? != 0 => return None,
                0 | 43 | 60 => (8 + 8 * usize::from(*bytes.get(at + 1)?), false),
                44 => (8, get16(at + 2)? & 0xfff8 != 0),
                _ => return None,
            };
            if later {
                return None;
            }
            next = *bytes.get(at)?;
            at += len;
        }
    } else {
        return None;
    }
    let header = usize::from(bytes.get(at + 12)? >> 4) * 4;
    let syn = bytes.get(at + 13)? & 0x17 == 2;
    Some(syn && header >= 20 && at + header <= end && end <= bytes.len())
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let extension = prop_oneof![
        (prop_oneof![Just(0_u8), Just(43), Just(60)], 0_u8..4)
            .prop_map(|(kind, len)| Extension::Options(kind, len)),
        (prop_oneof![4 => Just(0_u16), 1 => 0_u16..8192], any::<bool>())
            .prop_map(|(offset, more)| Extension::Fragment(offset, more)),
    ];
    let around = (
        any::<bool>(),
        proptest::collection::vec(prop_oneof![Just(0x8100_u16), Just(0x88a8)], 0..4),
        any::<bool>(),
        (0_usize..=10).prop_map(|words| words * 4),
        prop_oneof![Just(0x4000_u16), Just(0), Just(0x2000), any::<u16>()],
        proptest::collection::vec(extension, 0..8),
        prop_oneof![6 => Just(6_u8), 1 => any::<u8>()],
    );
    let tcp = (
        any::<u32>(),
        prop_oneof![3 => Just(2_u8), 1 => any::<u8>()],
        (0_usize..=10).prop_map(|words| words * 4),
        0_usize..40,
        prop_oneof![Just(0_usize), Just(60)],
        any::<u16>(),
    );
    (around, tcp).prop_map(
        |((ethernet, tags, ipv6, ip_options, ipv4_fragment, extensions, protocol), tcp)| {
            let (sequence, flags, tcp_options, payload, padded_to, source_port) = tcp;
            Frame {
                ethernet,
                tags,
                ip_options: if ipv6 { 0 } else { ip_options },
                ipv4_fragment: if ipv6 { 0 } else { ipv4_fragment },
                extensions: if ipv6 { extensions } else { Vec::new() },
                protocol,
                sequence,
                flags,
                tcp_options,
                payload,
                padded_to,
                source_port,
                source: address([10, 1, 2, 3]),
                ..if ipv6 { Frame::v6() } else { Frame::default() }
            }
        },
    )
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_never_an_attempt_that_they_are_not(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        for link_header_len in [0, ETHERNET_LEN] {
            if let Parsed::Attempt(_) = parsed(&bytes, link_header_len) {
                prop_assert_eq!(is_attempt(&bytes, link_header_len as usize), Some(true));
            }
        }
    }

    #[test]
    fn frames_are_attempts_when_the_plainest_parser_says_so(
        frame in any_frame(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)],
    ) {
        let mut bytes = frame.bytes();
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let link_header_len = link_header_len(&frame);
        let parsed = parsed(&bytes, link_header_len);
        let expected = bytes.len() >= link_header_len as usize
            && is_attempt(&bytes, link_header_len as usize) == Some(true);
        match parsed {
            Parsed::Attempt(attempt) => {
                prop_assert!(expected, "{:?}", attempt);
                prop_assert!(attempt.transport_offset as usize + attempt.segment_len as usize <= bytes.len());
                prop_assert!(attempt.payload_len + 20 <= attempt.segment_len);
            }
            Parsed::Other => prop_assert!(!expected),
            Parsed::Unparsed(reason) => {
                prop_assert!(!expected || reason == Unparsed::ExtensionHeaders, "{:?}", reason);
            }
        }
    }
}
