//! What a refused client gets.

#![cfg(test)]

mod support;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use support::frames::Seen;
use support::hooks::{HOOKS, Served};
use support::wire::{Captured, Tap, ends, meet_neighbours};
use support::{Counts, Daemon, Net, Setup, connect, eventually, now};

const REFUSING: &str = "[[port]]\nport = 8080\nconnections = 0\n";

/// What a connect at the first attempt may take; the first retransmission comes after a second.
const AT_ONCE: Duration = Duration::from_millis(100);

#[test]
fn ten_thousand_refused_connects_get_connection_refused_at_once() {
    const CONNECTS: u64 = 10_000;
    for (via, mode) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        assert_eq!(served.daemon.status()["attachments"][0]["mode"], mode);
        for ipv6 in [false, true] {
            let before = served.daemon.counts("8080");
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let late =
                served.net.client.enter(|| (0..CONNECTS).filter(|_| !is_refused_at_once(address)).count());
            // The machine may be busy elsewhere for a moment.
            assert!(late.unwrap() <= 10, "{via} {address}");
            let expected = Counts {
                shed: before.shed + CONNECTS,
                resets_sent: before.resets_sent + CONNECTS,
                ..Counts::default()
            };
            eventually("all are counted, none was repeated", || served.daemon.counts("8080") == expected);
        }
        assert_eq!(served.daemon.status()["resets_failed"], 0);
    }
}

fn is_refused_at_once(address: SocketAddr) -> bool {
    let start = now();
    let error = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
    start.elapsed() < AT_ONCE
}

#[test]
fn a_veth_is_served_by_tc_where_resets_are_sent_and_natively_where_packets_are_dropped() {
    for (action, mode) in [("reset", "tcx"), ("drop", "native")] {
        let net = Net::new();
        let rest = format!("{REFUSING}action = \"{action}\"\n");
        let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: &rest });
        let attachment = &daemon.status()["attachments"][0];
        assert_eq!(attachment["mode"], mode, "{attachment}");
        let reason = attachment["reason"].as_str().unwrap();
        assert_eq!(reason.contains("peer"), action == "reset", "{reason}");
        if action == "reset" {
            // The client's end runs no XDP program here.
            let address = SocketAddr::new(net.server_ip(false), 8080);
            let error = connect(&net.client, address, Duration::from_secs(5)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    }
}

#[test]
fn with_drop_not_one_packet_leaves() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", &format!("{REFUSING}action = \"drop\"\n"));
        let tap = Tap::open(&served.net.client, &served.net.link.a);
        for ipv6 in [false, true] {
            let before = served.daemon.counts("8080");
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let listener = served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            for _ in 0..20 {
                let error = connect(&served.net.client, address, Duration::from_millis(20)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{via} {address}");
            }
            let captured = tap.until_fence(ends(&served.net, ipv6));
            let answers: Vec<Seen> = captured.iter().filter_map(Captured::segment).collect();
            assert_eq!(answers, [], "{via} {address}");
            eventually("all are counted", || served.daemon.counts("8080").shed == before.shed + 20);
            assert_eq!(served.daemon.counts("8080").resets_sent, 0);
            drop(listener);
        }
    }
}

#[test]
fn both_families_meet_the_same_verdict() {
    // A class without a floor, which would admit one more.
    let rest = "[[port]]\nport = 8080\nclass = \"control\"\nrate = \"1/h\"\nburst = 7\nqueue_wait = \"unlimited\"\n\
                queue_depth = \"unlimited\"\n";
    for (via, _) in HOOKS {
        for order in [[false, true], [true, false]] {
            let served = Served::start(via, "enforce", rest);
            let listeners = order.map(|ipv6| {
                let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
                served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap()
            });
            let admitted = listeners.map(|listener| {
                let address = listener.local_addr().unwrap();
                (0..10)
                    .filter(|_| connect(&served.net.client, address, Duration::from_secs(5)).is_ok())
                    .count()
            });
            // One budget for both: the first family takes it all, whichever it is.
            assert_eq!(admitted, [7, 0], "{via}");
        }
    }
}

#[test]
fn a_native_veth_whose_peer_runs_no_program_says_that_resets_are_lost() {
    let net = Net::new();
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "native", rest: REFUSING });
    meet_neighbours(&net);
    let reason = daemon.status()["attachments"][0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("a veth drops the RST"), "{reason}");
}
