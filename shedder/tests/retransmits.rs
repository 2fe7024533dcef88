//! SYNs that come again.

#![cfg(test)]

mod support;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use support::frames::{ACK, Ends, SYN, Segment};
use support::hooks::{HOOKS, Served};
use support::wire::{Captured, Tap, ends};
use support::xdp::{Verdict, XdpProgram};
use support::{Counts, Daemon, Net, Setup, connect, settles};

/// One connection, and no floor.
const ONE: &str = "[[port]]\nport = 8080\nclass = \"control\"\nrate = \"1/h\"\nburst = 1\n";

/// A client that never answers: the server's SYN-ACK finds nobody, and so no RST ends the attempt.
fn silent(served: &Served, ipv6: bool) -> Ends {
    let ends = ends(&served.net, ipv6);
    let source = match ends.source {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            [a, b, c, 250].into()
        }
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            segments[7] = 0x250;
            segments.into()
        }
    };
    Ends { source, ..ends }
}

#[test]
fn an_admitted_syn_that_comes_again_is_neither_charged_nor_refused() {
    for (via, _) in HOOKS {
        for ipv6 in [false, true] {
            let served = Served::start(via, "enforce", ONE);
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let _listener = served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            let tap = Tap::open(&served.net.client, &served.net.link.a);
            let syn = Segment::syn(silent(&served, ipv6), 5000, 8080, 0xdead_beef);
            for _ in 0..6 {
                tap.send_segment(&syn);
            }
            let mut expected = Counts { admitted: 1, retransmits_admitted: 5, ..Counts::default() };
            settles(&format!("{via} {address}: one attempt"), &expected, || served.daemon.counts("8080"));
            // The same ports with another sequence number are another attempt, for which nothing is left.
            tap.send_segment(&Segment { sequence: 1, ..syn.clone() });
            tap.send_segment(&Segment { source_port: 5001, ..syn.clone() });
            tap.send_segment(&syn);
            expected = Counts { shed: 2, resets_sent: 2, retransmits_admitted: 6, ..expected };
            settles(&format!("{via} {address}: three attempts"), &expected, || served.daemon.counts("8080"));
        }
    }
}

#[test]
fn a_refused_syn_that_comes_again_is_judged_afresh() {
    for (via, _) in HOOKS {
        for ipv6 in [false, true] {
            let served = Served::start(via, "enforce", "[[port]]\nport = 8080\nconnections = 0\n");
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let _listener = served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            let tap = Tap::open(&served.net.client, &served.net.link.a);
            let ends = ends(&served.net, ipv6);
            let syn = Segment::syn(ends, 5000, 8080, 0xdead_beef);
            for _ in 0..4 {
                tap.send_segment(&syn);
            }
            let mut expected = Counts { shed: 1, retransmits_shed: 3, resets_sent: 4, ..Counts::default() };
            settles(&format!("{via} {address}: refused"), &expected, || served.daemon.counts("8080"));
            tap.until_fence(ends);
            served.daemon.must(&["set", "port", "8080", "connections=unlimited"]);
            tap.send_segment(&syn);
            expected = Counts { admitted: 1, ..expected };
            settles(&format!("{via} {address}: admitted"), &expected, || served.daemon.counts("8080"));
            let answers: Vec<u8> =
                tap.until_fence(ends).iter().filter_map(Captured::segment).map(|seen| seen.flags).collect();
            assert_eq!(answers, [SYN | ACK], "{via} {address}");
        }
    }
}

#[test]
fn a_client_whose_answer_is_lost_connects_by_its_retransmission() {
    for via in ["generic", "tc"] {
        for ipv6 in [false, true] {
            let net = Net::new();
            let daemon = Daemon::start(&net, &Setup { mode: "enforce", via, rest: ONE });
            support::wire::meet_neighbours(&net);
            let address = SocketAddr::new(net.server_ip(ipv6), 8080);
            let listener = net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            let lossy = XdpProgram::attach(&net.client, &net.link.a, Verdict::Drop);
            let connected = std::thread::scope(|scope| {
                let connected = scope.spawn(|| connect(&net.client, address, Duration::from_secs(30)));
                support::eventually("the SYN comes again", || daemon.counts("8080").retransmits_admitted > 0);
                drop(lossy);
                connected.join().unwrap()
            });
            assert!(connected.is_ok(), "{via} {address}: {connected:?}");
            listener.accept().unwrap();
            let counts = daemon.counts("8080");
            assert_eq!((counts.admitted, counts.shed), (1, 0), "{via} {address}: {counts:?}");
            // The rate admits one, and it was charged for one.
            assert!(connect(&net.client, address, Duration::from_secs(5)).is_err(), "{via} {address}");
        }
    }
}
