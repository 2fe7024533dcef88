//! The RST on the wire, byte by byte.

#![cfg(test)]

mod support;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use support::frames::{ACK, ECE_CWR, Ends, QINQ, RST, SYN, Seen, Segment, VLAN};
use support::hooks::{HOOKS, Served};
use support::wire::{Captured, Tap, ends, set_tx_checksum_offload};
use support::{PATIENCE, connect, eventually, now};

const REFUSING: &str = "[[port]]\nport = 8080\nconnections = 0\n";

#[test]
fn every_kind_of_syn_gets_its_exact_reset() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        // The kernel completes what a program leaves partial before it leaves the server.
        set_tx_checksum_offload(&served.net.server, &served.net.link.b, false);
        let tap = Tap::open(&served.net.client, &served.net.link.a);
        let mut sent = 0;
        for ipv6 in [false, true] {
            let ends = ends(&served.net, ipv6);
            for (what, segment) in kinds(ends, 20_000) {
                let what = format!("{via}, IPv{}, {what}", if ipv6 { 6 } else { 4 });
                tap.send_segment(&segment);
                let answer = answer(&tap, &segment, &what);
                assert_exact(&answer, &segment, &what);
                sent += 1;
            }
            let rest = tap.until_fence(ends);
            let more: Vec<Seen> = rest.iter().filter_map(Captured::segment).collect();
            assert_eq!(more, [], "{via}: one RST each");
        }
        eventually("every SYN is refused and answered", || {
            let counts = served.daemon.counts("8080");
            (counts.shed, counts.resets_sent) == (sent, sent)
        });
    }
}

/// SYNs that differ in all that a RST must cope with.
fn kinds(ends: Ends, first_port: u16) -> Vec<(String, Segment)> {
    let ipv6 = ends.source.is_ipv6();
    let plain = |sequence| Segment::syn(ends, 0, 8080, sequence);
    let options = vec![2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
    let mut kinds = vec![
        ("plain", plain(1)),
        ("with the last sequence number", plain(u32::MAX)),
        ("with TCP options", Segment { tcp_options: options.clone(), ..plain(0x8000_0000) }),
        ("with 5 bytes of data", Segment { payload: vec![7; 5], ..plain(0xffff_fffd) }),
        (
            "with 1400 bytes of data",
            Segment { payload: vec![9; 1400], tcp_options: options.clone(), ..plain(77) },
        ),
        ("padded to 60 bytes", Segment { padded: true, ..plain(40) }),
        ("with ECN", Segment { flags: SYN | ECE_CWR, ..plain(0x1234_5678) }),
        ("with PSH and URG", Segment { flags: SYN | 0x28, ..plain(5) }),
    ];
    if ipv6 {
        // Eight bytes each, six of them a padding option.
        let padding = vec![0, 1, 4, 0, 0, 0, 0];
        let extensions = vec![(0, padding.clone()), (60, padding)];
        kinds.push((
            "with hop-by-hop and destination options",
            Segment { extensions, tcp_options: options, ..plain(0xabcd_ef01) },
        ));
    } else {
        kinds.push(("that may be fragmented", Segment { dont_fragment: false, ..plain(6) }));
        // No-operation options.
        let ip_options = vec![1; 12];
        kinds.push((
            "with 12 bytes of IP options",
            Segment { ip_options: ip_options.clone(), ..plain(0x0f0f_0f0f) },
        ));
        kinds.push((
            "with IP options, TCP options and data",
            Segment { ip_options, tcp_options: options, payload: vec![3; 31], ..plain(8) },
        ));
    }
    let mut all = Vec::new();
    for (what, kind) in kinds {
        for partial in [false, true] {
            let checksum = if partial { "partial" } else { "complete" };
            for (tags, tag_words) in [
                (vec![], ""),
                (vec![(VLAN, 0x2007)], ", tagged"),
                (vec![(QINQ, 0x0064), (VLAN, 0x0007)], ", QinQ"),
            ] {
                let source_port = first_port + u16::try_from(all.len()).unwrap();
                let segment = Segment { partial, tags, source_port, ..kind.clone() };
                all.push((format!("{what}, checksum {checksum}{tag_words}"), segment));
            }
        }
    }
    all
}

fn answer(tap: &Tap, segment: &Segment, what: &str) -> Captured {
    let until = now() + PATIENCE;
    while let Some(captured) = tap.receive(until) {
        if captured.segment().is_some_and(|seen| seen.answers(segment)) {
            return captured;
        }
    }
    panic!("no answer: {what}");
}

fn assert_exact(answer: &Captured, segment: &Segment, what: &str) {
    let seen = answer.segment().unwrap();
    let ends = segment.ends;
    let payload_len = u32::try_from(segment.payload.len()).unwrap();
    let expected = Seen {
        macs: [ends.source_mac, ends.destination_mac].concat().try_into().unwrap(),
        tags: segment.tags.clone(),
        source: ends.destination,
        destination: ends.source,
        source_port: segment.destination_port,
        destination_port: segment.source_port,
        sequence: 0,
        acknowledgement: segment.sequence.wrapping_add(1).wrapping_add(payload_len),
        flags: RST | ACK,
        window: 0,
        urgent: 0,
        ip_options_len: 0,
        tcp_options_len: 0,
        payload_len: 0,
        ip_checksum_valid: true,
        tcp_checksum_valid: true,
        ..seen.clone()
    };
    assert_eq!(seen, expected, "{what}; complete: {}; {:02x?}", answer.checksum_complete, answer.bytes);
}

#[test]
fn checksums_hold_whoever_computes_them() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        let tap = Tap::open(&served.net.client, &served.net.link.a);
        for client_offload in [true, false] {
            for server_offload in [true, false] {
                set_tx_checksum_offload(&served.net.client, &served.net.link.a, client_offload);
                set_tx_checksum_offload(&served.net.server, &served.net.link.b, server_offload);
                for ipv6 in [false, true] {
                    let what = format!("{via}, offload {client_offload}/{server_offload}, IPv6: {ipv6}");
                    let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
                    let error = connect(&served.net.client, address, Duration::from_secs(5)).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{what}");
                    let reset = next_reset(&tap, &what);
                    let seen = reset.segment().unwrap();
                    assert!(seen.ip_checksum_valid, "{what}");
                    match via {
                        // The kernel keeps the SYN's mark on what generic XDP sends; the bytes are complete.
                        "generic" => assert!(seen.tcp_checksum_valid, "{what}: {seen:?}"),
                        "native" => {
                            assert!(seen.tcp_checksum_valid && reset.checksum_complete, "{what}: {seen:?}");
                        }
                        _ => {
                            let left_to_device = client_offload && server_offload;
                            assert_eq!(reset.checksum_complete, !left_to_device, "{what}");
                            let right = if left_to_device {
                                seen.tcp_checksum_partial
                            } else {
                                seen.tcp_checksum_valid
                            };
                            assert!(right, "{what}: {seen:?}");
                        }
                    }
                }
            }
        }
    }
}

fn next_reset(tap: &Tap, what: &str) -> Captured {
    let until = now() + PATIENCE;
    while let Some(captured) = tap.receive(until) {
        if captured.segment().is_some_and(|seen| seen.source_port == 8080) {
            return captured;
        }
    }
    panic!("no RST: {what}");
}

#[test]
fn reset_is_all_that_the_server_ever_sends_for_a_refused_syn() {
    // A SYN that a listener would answer: what is refused never reaches it.
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        let address = SocketAddr::new(served.net.server_ip(false), 8080);
        let _listener = served.net.server.enter(|| std::net::TcpListener::bind(address)).unwrap().unwrap();
        let tap = Tap::open(&served.net.client, &served.net.link.a);
        let ends = ends(&served.net, false);
        for port in 30_000..30_100 {
            tap.send_segment(&Segment::syn(ends, port, 8080, port.into()));
        }
        let flags: Vec<u8> =
            tap.until_fence(ends).iter().filter_map(Captured::segment).map(|seen| seen.flags).collect();
        assert_eq!(flags, [RST | ACK; 100], "{via}");
    }
}
