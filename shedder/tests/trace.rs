//! The same packets through every hook and in every mode.

#![cfg(test)]

mod support;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::Value;
use support::frames::{ACK, Ends, FIN, QINQ, RST, SYN, Segment, VLAN};
use support::hooks::{HOOKS, Served};
use support::wire::{Tap, ends};
use support::{PATIENCE, eventually, now};

const RULES: &str = "[[port]]\nport = 8080\nclass = \"control\"\nrate = \"1/h\"\nburst = 10\nqueue_wait = \"unlimited\"\n\
                     queue_depth = \"unlimited\"\n\
                     [[port]]\nport = 8081\nclass = \"control\"\nconnections = 0\naction = \"drop\"\n";

/// Attempts, repeats of some, other segments, fragments, tags and torsos.
fn trace(ipv4: Ends, ipv6: Ends) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for number in 0..120_u16 {
        let ends = if number % 3 == 0 { ipv6 } else { ipv4 };
        let port = [8080, 8081, 8082][usize::from(number % 2 + number / 60)];
        let syn = Segment::syn(ends, 2000 + number, port, u32::from(number) * 7919);
        let segment = match number % 10 {
            4 => Segment { flags: ACK, ..syn },
            5 => Segment { flags: SYN | ACK, ..syn },
            6 => Segment { flags: RST, ..syn },
            7 => Segment { flags: SYN | FIN, ..syn },
            8 => Segment { tags: vec![(VLAN, 7)], ..syn },
            9 => Segment { tags: vec![(QINQ, 3), (VLAN, 7)], payload: vec![1; 9], ..syn },
            _ => syn,
        };
        frames.push(segment.frame());
        if number % 4 == 0 {
            frames.push(segment.frame());
        }
    }
    let deep = Segment { tags: vec![(VLAN, 1); 3], ..Segment::syn(ipv4, 3000, 8080, 1) };
    let later = Segment { fragment: 9, dont_fragment: false, ..Segment::syn(ipv4, 3001, 8080, 1) };
    frames.extend([deep.frame(), later.frame(), later.frame()[..40].to_vec(), later.frame()[..20].to_vec()]);
    frames
}

/// All counters that are not zero, by their path in the status.
fn counters(status: &Value) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for part in ["unparsed", "fail_open", "exempt", "resets_failed", "untracked_connections"] {
        collect(&mut counters, part, &status[part]);
    }
    for port in status["ports"].as_array().unwrap() {
        for (class, state) in port["classes"].as_object().unwrap() {
            for (counter, value) in
                state.as_object().unwrap().iter().filter(|(name, _)| !NO_COUNTERS.contains(&name.as_str()))
            {
                collect(&mut counters, &format!("{} {class} {counter}", port["port"]), value);
            }
        }
    }
    counters
}

/// What the status of a class tells besides what the kernel counts.
const NO_COUNTERS: [&str; 3] = ["quota", "share", "recently_refused"];

fn collect(counters: &mut BTreeMap<String, u64>, path: &str, value: &Value) {
    match value {
        Value::Object(parts) => {
            for (name, value) in parts {
                collect(counters, &format!("{path} {name}"), value);
            }
        }
        value => {
            let count = value.as_u64().unwrap();
            if count > 0 {
                counters.insert(path.to_owned(), count);
            }
        }
    }
}

/// Sends the trace and waits until the counts have settled.
fn replay(served: &Served, tap: &Tap) -> Value {
    let (ipv4, ipv6) = (ends(&served.net, false), ends(&served.net, true));
    for frame in trace(ipv4, ipv6) {
        tap.send(&frame);
    }
    tap.until_fence(ipv4);
    let ticks = served.daemon.status()["ticks"]["total"].as_u64().unwrap();
    eventually("counts are read anew", || {
        served.daemon.status()["ticks"]["total"].as_u64() > Some(ticks + 1)
    });
    served.daemon.status()
}

#[test]
fn every_hook_counts_the_same() {
    let mut first: Option<Value> = None;
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", RULES);
        let tap = Tap::open(&served.net.client, &served.net.link.a);
        // What a namespace says by itself when it starts may be unparsable for all we know.
        let status = replay(&served, &tap);
        let first = first.get_or_insert_with(|| status.clone());
        assert_eq!(counters(first), counters(&status), "{via}");
        assert!(
            served.daemon.counts("8080").shed > 0 && served.daemon.counts("8080").retransmits_admitted > 0
        );
    }
}

#[test]
fn observe_counts_what_enforce_refuses() {
    for (via, _) in HOOKS {
        let [enforced, observed] = ["enforce", "observe"].map(|mode| {
            let served = Served::start(via, mode, RULES);
            let tap = Tap::open(&served.net.client, &served.net.link.a);
            replay(&served, &tap)
        });
        for (enforced, observed) in
            enforced["ports"].as_array().unwrap().iter().zip(observed["ports"].as_array().unwrap())
        {
            let (enforced, observed) = (&enforced["classes"]["control"], &observed["classes"]["control"]);
            assert_eq!(enforced["shed"], observed["would_shed"], "{via}");
            for same in ["admitted", "retransmits_admitted", "retransmits_shed", "exempt", "fail_open"] {
                assert_eq!(enforced[same], observed[same], "{via}: {same}");
            }
            assert_eq!(observed["resets_sent"], 0, "{via}");
            for gate in observed["shed"].as_object().unwrap().values() {
                assert_eq!(*gate, 0, "{via}");
            }
        }
        assert_eq!(observed["mode"], "observe");
    }
}

#[test]
fn observe_changes_no_byte() {
    for (via, _) in HOOKS {
        for mode in ["observe", "off"] {
            let served = Served::start(via, mode, RULES);
            let tap = Tap::open(&served.net.client, &served.net.link.a);
            // What the stack gets, behind every hook, with its IP header.
            let stack = served
                .net
                .server
                .enter(|| {
                    rustix::net::socket(
                        rustix::net::AddressFamily::INET,
                        rustix::net::SocketType::RAW,
                        Some(rustix::net::ipproto::TCP),
                    )
                })
                .unwrap()
                .unwrap();
            rustix::net::sockopt::set_socket_timeout(
                &stack,
                rustix::net::sockopt::Timeout::Recv,
                Some(Duration::from_secs(5)),
            )
            .unwrap();
            let mut stack = std::fs::File::from(stack);
            let ends = ends(&served.net, false);
            let mut buffer = [0; 4096];
            for number in 0..60_u16 {
                let port = if number % 2 == 0 { 8080 } else { 8081 };
                let syn = Segment {
                    payload: vec![5; usize::from(number)],
                    ip_options: vec![1; usize::from(number % 3) * 4],
                    partial: number % 5 == 0,
                    ..Segment::syn(ends, 4000 + number, port, 99)
                };
                tap.send_segment(&syn);
                let sent = syn.frame()[14..].to_vec();
                let until = now() + PATIENCE;
                loop {
                    let len = stack.read(&mut buffer).unwrap();
                    if buffer[..len] == sent {
                        break;
                    }
                    assert!(now() < until, "{via}, {mode}: {sent:02x?} did not arrive as sent");
                }
            }
        }
    }
}

#[test]
fn observe_refuses_nobody() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "observe", RULES);
        for (port, ipv6) in [(8080, false), (8080, true), (8081, false), (8081, true)] {
            let address = SocketAddr::new(served.net.server_ip(ipv6), port);
            let _listener = served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            for _ in 0..20 {
                support::connect(&served.net.client, address, Duration::from_secs(5)).unwrap();
            }
        }
        eventually("all are counted", || {
            let (rated, closed) = (served.daemon.counts("8080"), served.daemon.counts("8081"));
            (rated.admitted, rated.would_shed, closed.would_shed) == (10, 30, 40)
        });
    }
}
