//! Firewalls that follow connections, at the ends of those that shedder refuses.

#![cfg(test)]

mod support;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use support::hooks::{HOOKS, Served};
use support::syn::{ACK, RST, Segment, Sender};
use support::truth::kernel_counter;
use support::{Counts, connect, settles};
use xtask::testbed::Namespace;

const PATIENCE: Duration = Duration::from_secs(5);
const REFUSING: &str = "[[port]]\nport = 8080\nconnections = 0\n";
const CONNECTS: u64 = 20;

/// Drops what belongs to no connection that the kernel knows, at one hook of a namespace, and counts it.
struct Firewall<'a> {
    namespace: &'a Namespace,
}

impl<'a> Firewall<'a> {
    fn new(namespace: &'a Namespace, hook: &str) -> Self {
        let firewall = Self { namespace };
        firewall.nft(&format!(
            "add table inet guard; add counter inet guard dropped; \
             add chain inet guard {hook} {{ type filter hook {hook} priority 0; }}; \
             add rule inet guard {hook} ct state invalid counter name dropped drop"
        ));
        firewall
    }

    fn nft(&self, command: &str) -> String {
        let output = self.namespace.output(Command::new("nft").arg(command)).unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn dropped(&self) -> u64 {
        let text = self.nft("list counter inet guard dropped");
        let words: Vec<&str> = text.split_whitespace().collect();
        let place = words.iter().position(|word| *word == "packets").unwrap();
        words[place + 1].parse().unwrap()
    }
}

/// Connections that a namespace follows.
fn followed(namespace: &Namespace) -> u64 {
    let read = || std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
    namespace.enter(read).unwrap().trim().parse().unwrap()
}

fn client_ip(served: &Served, ipv6: bool) -> IpAddr {
    let end = &served.net.link.a;
    if ipv6 { end.ipv6.into() } else { end.ipv4.into() }
}

/// A RST|ACK that answers nothing.
fn stray(from: IpAddr, to: IpAddr) -> Segment {
    let ends = Segment::syn(SocketAddr::new(from, 8080), SocketAddr::new(to, 9), 0);
    Segment { flags: RST | ACK, acknowledgement: 77, ..ends }
}

/// All connects are refused, with one RST each.
fn assert_refused(served: &Served, what: &str) {
    let before = served.daemon.counts("8080");
    for ipv6 in [false, true] {
        let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
        for _ in 0..CONNECTS {
            let error = connect(&served.net.client, address, PATIENCE).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{what}: {address}");
        }
    }
    let shed = before.shed + 2 * CONNECTS;
    let expected = Counts { shed, resets_sent: shed, ..before };
    settles(what, &expected, || served.daemon.counts("8080"));
}

#[test]
fn a_reset_passes_a_firewall_of_the_host_that_never_saw_the_syn() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        let firewall = Firewall::new(&served.net.server, "output");
        // The firewall does what it should: the same segment from the host's own stack does not leave.
        let sender = Sender::new(&served.net.server);
        for ipv6 in [false, true] {
            let client = client_ip(&served, ipv6);
            let sent = sender.try_send(&stray(served.net.server_ip(ipv6), client));
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        assert_eq!(firewall.dropped(), 2);
        assert_refused(&served, via);
        assert_eq!(firewall.dropped(), 2, "{via}");
    }
}

#[test]
fn a_reset_is_valid_to_a_firewall_of_the_client() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", REFUSING);
        let firewall = Firewall::new(&served.net.client, "input");
        let sender = Sender::new(&served.net.server);
        for ipv6 in [false, true] {
            let client = client_ip(&served, ipv6);
            sender.send(&stray(served.net.server_ip(ipv6), client));
        }
        settles("stray segments are dropped", &2, || firewall.dropped());
        assert_refused(&served, via);
        assert_eq!(firewall.dropped(), 2, "{via}");
    }
}

#[test]
fn what_is_refused_is_nothing_to_the_kernel_behind() {
    for (via, _) in HOOKS {
        for action in ["reset", "drop"] {
            let served = Served::start(via, "enforce", &format!("{REFUSING}action = \"{action}\"\n"));
            let server = &served.net.server;
            let _firewall = Firewall::new(server, "input");
            let address = SocketAddr::new(served.net.server_ip(false), 8080);
            let listen = |port| {
                let address = SocketAddr::new(address.ip(), port);
                server.enter(|| TcpListener::bind(address)).unwrap().unwrap()
            };
            let _listeners = [listen(8080), listen(8081)];
            let other = connect(&served.net.client, SocketAddr::new(address.ip(), 8081), PATIENCE).unwrap();
            let kernel = || {
                let drops =
                    ["ListenDrops", "ListenOverflows"].map(|name| kernel_counter(server, "TcpExt", name));
                let segments = ["PassiveOpens", "OutRsts"].map(|name| kernel_counter(server, "Tcp", name));
                (followed(server), drops, segments)
            };
            let before = kernel();
            assert_eq!(before.0, 1, "{via}: the connection to the other port is followed");
            let sender = Sender::new(&served.net.client);
            for port in 1024..3024 {
                let client = SocketAddr::new(client_ip(&served, false), port);
                sender.send(&Segment::syn(client, address, 7));
            }
            settles("all are refused", &2000, || served.daemon.counts("8080").shed);
            assert_eq!(kernel(), before, "{via}, {action}");
            drop(other);
        }
    }
}
