use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::checksum::Sum;
use super::frames::{Extension, Frame, assert_reset, checksum};
use super::parse::{ETHERNET_LEN, Parsed, parse};
use super::reset::{MIN_ETHERNET_FRAME, acknowledgement, build_frame, may_answer};
use crate::address::Address;
use crate::packet::parse::Attempt;

fn reset(frame: &Frame) -> Vec<u8> {
    let bytes = frame.bytes();
    let link_header_len = if frame.ethernet { ETHERNET_LEN } else { 0 };
    let Parsed::Attempt(attempt) = parse(bytes.as_slice(), link_header_len) else { panic!("{frame:?}") };
    let mut reply = vec![0xee; 2000];
    let len = build_frame(&bytes, &attempt, link_header_len, &mut reply).unwrap();
    reply.truncate(len);
    reply
}

#[track_caller]
fn assert_answered(frame: &Frame, len: usize) {
    let reply = reset(frame);
    let end = assert_reset(frame, &reply);
    assert_eq!(reply.len(), len, "{frame:?}");
    assert!(reply[end..].iter().all(|byte| *byte == 0), "the padding holds something");
}

#[test]
fn known_syns_are_answered_to_the_byte() {
    for (plain, bare) in [(Frame::default(), 54), (Frame::v6(), 74)] {
        assert_answered(&plain, bare);
        let at_least = |len: usize| bare.max(len);
        assert_answered(&Frame { padded_to: 60, ..plain.clone() }, at_least(60));
        assert_answered(&Frame { tcp_options: 20, ..plain.clone() }, at_least(60));
        assert_answered(&Frame { payload: 5, ..plain.clone() }, if bare == 54 { 54 } else { 74 });
        assert_answered(&Frame { payload: 1400, tcp_options: 12, ..plain.clone() }, at_least(60));
        assert_answered(
            &Frame { sequence: u32::MAX, payload: 1, padded_to: 60, ..plain.clone() },
            at_least(60),
        );
        assert_answered(&Frame { sequence: u32::MAX, ..plain.clone() }, bare);
        assert_answered(&Frame { flags: 0xc2, ..plain.clone() }, bare);
        assert_answered(&Frame { tags: vec![0x8100], padded_to: 60, ..plain.clone() }, at_least(56) + 4);
        assert_answered(&Frame { tags: vec![0x88a8, 0x8100], ..plain.clone() }, bare + 8);
        assert_answered(&Frame { ethernet: false, padded_to: 60, ..plain.clone() }, bare - 14);
    }
    assert_answered(&Frame { ip_options: 40, tcp_options: 40, ..Frame::default() }, 60);
    let extensions = vec![Extension::Options(0, 0), Extension::Options(60, 3)];
    assert_answered(&Frame { extensions, payload: 2, ..Frame::v6() }, 74);
}

#[test]
fn the_sequence_number_wraps() {
    let frame = Frame { sequence: u32::MAX, payload: 5, ..Frame::default() };
    let Parsed::Attempt(attempt) = parse(frame.bytes().as_slice(), ETHERNET_LEN) else { panic!() };
    assert_eq!(acknowledgement(&attempt), 5);
}

#[test]
fn a_fragment_is_not_answered_nor_is_what_does_not_fit() {
    let fragment = Frame { ipv4_fragment: 0x2000, ..Frame::default() }.bytes();
    let Parsed::Attempt(attempt) = parse(fragment.as_slice(), ETHERNET_LEN) else { panic!() };
    assert_eq!(build_frame(&fragment, &attempt, ETHERNET_LEN, &mut [0; 100]), None);
    let bytes = Frame::default().bytes();
    let Parsed::Attempt(attempt) = parse(bytes.as_slice(), ETHERNET_LEN) else { panic!() };
    assert_eq!(build_frame(&bytes, &attempt, ETHERNET_LEN, &mut [0; 53]), None);
    assert_eq!(build_frame(&bytes, &attempt, ETHERNET_LEN, &mut [0; 54]), Some(54));
    assert_eq!(build_frame(&[], &attempt, ETHERNET_LEN, &mut [0; 54]), None);
}

#[test]
fn what_cannot_be_a_source_is_not_answered() {
    let v4 = |octets| Attempt { source: Address::from_v4(octets), ..Attempt::default() };
    for octets in [[0, 0, 0, 0], [0, 1, 2, 3], [224, 0, 0, 1], [239, 9, 9, 9], [240, 0, 0, 1], [255; 4]] {
        for loopback in [false, true] {
            assert!(!may_answer(&v4(octets), false, || loopback), "{octets:?}");
        }
    }
    for octets in [[1, 0, 0, 0], [10, 0, 0, 1], [126, 9, 9, 9], [128, 0, 0, 1], [223, 255, 255, 255]] {
        assert!(may_answer(&v4(octets), false, || false), "{octets:?}");
        assert!(!may_answer(&v4(octets), true, || false), "a group of the link layer");
    }
    assert!(!may_answer(&v4([127, 0, 0, 1]), false, || false));
    assert!(may_answer(&v4([127, 0, 0, 1]), false, || true));
    let v6 = |text: &str| {
        let address: std::net::Ipv6Addr = text.parse().unwrap();
        Attempt { source: Address::from_v6(address.octets()), ipv6: true, ..Attempt::default() }
    };
    for text in ["::", "::2", "::192.0.2.1", "::ffff:192.0.2.1", "ff02::1", "ffff::"] {
        for loopback in [false, true] {
            assert!(!may_answer(&v6(text), false, || loopback), "{text}");
        }
    }
    for text in ["2001:db8::1", "fe80::1", "fd00::1", "64:ff9b::192.0.2.1", "::1:0:0:1"] {
        assert!(may_answer(&v6(text), false, || false), "{text}");
        assert!(!may_answer(&v6(text), true, || false), "a group of the link layer");
    }
    assert!(!may_answer(&v6("::1"), false, || false));
    assert!(may_answer(&v6("::1"), false, || true));
}

proptest! {
    #[test]
    fn every_reset_is_valid_and_long_enough_for_the_wire(
        ipv6: bool,
        source: [u8; 16],
        destination: [u8; 16],
        ports: (u16, u16),
        sequence: u32,
        payload in 0_usize..1400,
        words in (0_usize..=10, 0_usize..=10),
        tags in proptest::collection::vec(Just(0x8100_u16), 0..3),
    ) {
        let frame = Frame {
            source,
            destination,
            source_port: ports.0,
            destination_port: ports.1,
            sequence,
            payload,
            tcp_options: words.0 * 4,
            ip_options: if ipv6 { 0 } else { words.1 * 4 },
            tags,
            padded_to: 60,
            ..if ipv6 { Frame::v6() } else { Frame::default() }
        };
        let reply = reset(&frame);
        assert_reset(&frame, &reply);
        prop_assert!(reply.len() >= MIN_ETHERNET_FRAME as usize);
        prop_assert!(reply.len() <= frame.bytes().len().max(84));
    }

    #[test]
    fn sums_are_those_of_the_standard(words in proptest::collection::vec(any::<[u8; 4]>(), 0..400)) {
        let sum = words.iter().fold(Sum::new(), |sum, word| sum.add_word(u32::from_ne_bytes(*word)));
        prop_assert_eq!(sum.checksum(), checksum(words.as_flattened()));
        prop_assert_eq!(sum.checksum_half().to_ne_bytes(), sum.checksum().to_be_bytes());
    }
}
