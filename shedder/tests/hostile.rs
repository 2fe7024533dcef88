//! Packets that are no packets, and pieces of packets.

#![cfg(test)]

mod support;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::Value;
use support::frames::{Ends, QINQ, Segment, VLAN};
use support::hooks::{HOOKS, Served};
use support::wire::{Captured, Tap, ends};
use support::{connect, eventually};

const REFUSING: &str = "[[port]]\nport = 8080\nconnections = 0\n";

type Reasons = BTreeMap<String, u64>;

fn unparsed(served: &Served) -> Reasons {
    let status = served.daemon.status();
    let counts = status["unparsed"].as_object().unwrap();
    counts
        .iter()
        .map(|(reason, count)| (reason.clone(), count.as_u64().unwrap()))
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// Frames, and the reason that each is counted by.
fn frames(ipv4: Ends, ipv6: Ends) -> Vec<(&'static str, Vec<u8>)> {
    let plain = Segment::syn(ipv4, 1000, 8080, 1).frame();
    let plain6 = Segment::syn(ipv6, 1000, 8080, 1).frame();
    let changed = |frame: &[u8], offset: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[offset] = byte;
        frame
    };
    let padding = vec![0, 1, 4, 0, 0, 0, 0];
    let chain = |count: usize| {
        let extensions = (0..count).map(|_| (60, padding.clone())).collect();
        Segment { extensions, ..Segment::syn(ipv6, 1000, 8080, 1) }.frame()
    };
    let tagged =
        |tags: &[(u16, u16)]| Segment { tags: tags.to_vec(), ..Segment::syn(ipv4, 1000, 8080, 1) }.frame();
    let later = Segment { fragment: 0x20, dont_fragment: false, ..Segment::syn(ipv4, 1000, 8080, 1) }.frame();
    // Offset 8, no more to come.
    let later6 = [(44, vec![0, 0, 8, 0, 0, 0, 1])];
    let later6 = Segment { extensions: later6.to_vec(), ..Segment::syn(ipv6, 1000, 8080, 1) }.frame();
    vec![
        ("truncated_ip", plain[..14].to_vec()),
        ("truncated_ip", plain[..33].to_vec()),
        ("truncated_tcp", plain[..34].to_vec()),
        ("truncated_tcp", plain[..47].to_vec()),
        ("truncated_ip", plain6[..14].to_vec()),
        ("truncated_ip", plain6[..21].to_vec()),
        ("truncated_tcp", plain6[..54].to_vec()),
        ("truncated_tcp", plain6[..67].to_vec()),
        ("truncated_extension", chain(2)[..55].to_vec()),
        // Version 5, header of 4 bytes.
        ("bad_ip", changed(&plain, 14, 0x55)),
        ("bad_ip", changed(&plain, 14, 0x41)),
        ("bad_ip", changed(&plain6, 14, 0x40)),
        // Options beyond the payload's length.
        ("bad_ip", changed(&chain(1), 55, 200)),
        // A total length of 10; data offsets of 4 words and of 15.
        ("bad_tcp", changed(&plain, 17, 10)),
        ("bad_tcp", changed(&plain, 46, 0x40)),
        ("bad_tcp", changed(&plain, 46, 0xf0)),
        ("bad_tcp", changed(&plain6, 66, 0x00)),
        ("later_fragment", later),
        ("later_fragment", later6),
        ("extension_headers", chain(20)),
        ("vlan_depth", tagged(&[(QINQ, 1), (VLAN, 2), (VLAN, 3)])),
    ]
}

#[test]
fn what_cannot_be_parsed_passes_and_is_counted_alike_at_every_hook() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        let tap = Tap::open(&served.net.client, &served.net.link.a);
        // The XDP hooks come before this one; TC's verdict on what is no attempt is its counter's.
        let passed = Tap::open(&served.net.server, &served.net.link.b);
        let frames = frames(ends(&served.net, false), ends(&served.net, true));
        let before = unparsed(&served);
        for (reason, frame) in &frames {
            let counted = unparsed(&served).get(*reason).copied().unwrap_or(0);
            tap.send(frame);
            let what = format!("{via}: {reason}: {frame:02x?}");
            eventually(&what, || unparsed(&served).get(*reason) == Some(&(counted + 1)));
        }
        let mut expected = before;
        for (reason, _) in &frames {
            *expected.entry((*reason).to_owned()).or_default() += 1;
        }
        assert_eq!(unparsed(&served), expected, "{via}");
        let captured = passed.until_fence(reversed(&served));
        for (reason, frame) in &frames {
            assert!(captured.iter().any(|captured| captured.bytes == *frame), "{via}: {reason} did not pass");
        }
        assert_eq!(served.daemon.counts("8080").shed, 0, "{via}");
    }
}

/// The ends of what the server sends to the client.
fn reversed(served: &Served) -> Ends {
    let there = ends(&served.net, false);
    Ends {
        source_mac: there.destination_mac,
        destination_mac: there.source_mac,
        source: there.destination,
        destination: there.source,
    }
}

#[test]
fn noise_never_stops_the_datapath() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        let tap = Tap::open(&served.net.client, &served.net.link.a);
        let ipv4 = ends(&served.net, false);
        let mut noise = Noise(0x1234_5678_9abc_def1);
        for _ in 0..20_000 {
            let mut segment = Segment::syn(ipv4, 1000, 8080, 1).frame();
            let len = 14 + noise.below(segment.len() - 14 + 1);
            segment.truncate(len);
            for _ in 0..noise.below(4) {
                let place = 12 + noise.below(len - 12);
                segment[place] = noise.next().to_le_bytes()[0];
            }
            tap.send(&segment);
        }
        tap.until_fence(ipv4);
        let address = SocketAddr::new(served.net.server_ip(false), 8080);
        let _listener = served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let before = served.daemon.counts("8080").shed;
        assert!(connect(&served.net.client, address, Duration::from_secs(5)).is_err(), "{via}: still closed");
        eventually("the refusal is counted", || served.daemon.counts("8080").shed > before);
        let status: Value = served.daemon.status();
        assert_eq!(status["warnings"].as_array().unwrap().len(), 0, "{status}");
    }
}

/// A reproducible stream of numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

#[test]
fn a_fragmented_syn_is_refused_without_a_reset() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        let tap = Tap::open(&served.net.client, &served.net.link.a);
        let ends = ends(&served.net, false);
        let head = Segment {
            fragment: 0x2000,
            dont_fragment: false,
            payload: vec![1; 20],
            ..Segment::syn(ends, 1000, 8080, 1)
        };
        tap.send_segment(&head);
        eventually("the head is refused", || served.daemon.counts("8080").shed == 1);
        assert_eq!(served.daemon.counts("8080").resets_sent, 0, "{via}: its length is not known");
        assert!(!tap.until_fence(ends).iter().filter_map(Captured::segment).any(|seen| seen.answers(&head)));
    }
}
