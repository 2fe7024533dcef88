//! Clients that send data with the SYN (TCP Fast Open, RFC 7413), as the kernel makes them.

#![cfg(test)]

mod support;

use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use support::churn::connect_fast;
use support::frames::{ACK, RST, SYN, Seen};
use support::hooks::{HOOKS, Served};
use support::truth::{counts_become, kernel_counter};
use support::wire::{Captured, Tap, ends};
use support::{Counts, settles};

/// The port, admitting so many at once; nothing else is limited.
const POLICY: &str = "[[port]]\nport = 8080\nconnections = 3\nqueue_wait = \"unlimited\"\n\
                      queue_depth = \"unlimited\"\nrate = \"unlimited\"\n";
const PORT: &str = "8080";

/// A server that both sides may speak to at once, and a client that has its cookie.
struct Scene {
    served: Served,
    address: SocketAddr,
    listener: TcpListener,
}

impl Scene {
    fn new(via: &str, ipv6: bool) -> Self {
        let served = Served::start(via, "enforce", POLICY);
        // Both as client and as server, for every listener.
        for namespace in [&served.net.client, &served.net.server] {
            namespace.set_sysctl("ipv4/tcp_fastopen", "0x403").unwrap();
        }
        let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
        let listener = served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let scene = Self { served, address, listener };
        // The first one asks for the cookie.
        drop((scene.connect(b"first").unwrap(), scene.accept(b"first")));
        scene.expect_active(0);
        scene
    }

    fn connect(&self, data: &[u8]) -> std::io::Result<TcpStream> {
        self.served.net.client.enter(|| connect_fast(self.address, data)).unwrap()
    }

    fn accept(&self, data: &[u8]) -> TcpStream {
        let (mut connection, _) = self.listener.accept().unwrap();
        let mut received = vec![0; data.len()];
        connection.read_exact(&mut received).unwrap();
        assert_eq!(received, data);
        connection
    }

    fn expect_active(&self, count: usize) {
        counts_become(&self.served.net, &self.served.daemon, PORT, count);
    }

    /// Connections that the server got with data on the SYN.
    fn opened_fast(&self) -> u64 {
        kernel_counter(&self.served.net.server, "TcpExt", "TCPFastOpenPassive")
    }
}

fn for_every_hook_and_family(test: impl Fn(&str, Scene)) {
    for (via, _) in HOOKS {
        for ipv6 in [false, true] {
            test(&format!("{via}, IPv6: {ipv6}"), Scene::new(via, ipv6));
        }
    }
}

#[test]
fn a_syn_with_data_is_refused_by_one_reset_that_acknowledges_the_data() {
    for_every_hook_and_family(|what, scene| {
        let Served { net, daemon, .. } = &scene.served;
        daemon.must(&["set", "port", PORT, "connections=0"]);
        let before = (daemon.counts(PORT), scene.opened_fast());
        let mut sent = 0;
        for len in [1, 37, 1000] {
            let tap = Tap::open_both_ways(&net.client, &net.link.a);
            let error = scene.connect(&vec![7; len]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{what}");
            let captured = tap.until_fence(ends(net, scene.address.is_ipv6()));
            let segments: Vec<Seen> = captured
                .iter()
                .filter_map(Captured::segment)
                .filter(|seen| [seen.source_port, seen.destination_port].contains(&8080))
                .collect();
            let [syn, reset] = segments.as_slice() else { panic!("{what}: {segments:?}") };
            assert_eq!((syn.flags & (SYN | ACK), syn.payload_len), (SYN, len), "{what}");
            let end = syn.sequence.wrapping_add(1).wrapping_add(u32::try_from(len).unwrap());
            assert_eq!((reset.flags, reset.acknowledgement), (RST | ACK, end), "{what}");
            sent += 1;
        }
        let (counts, opened) = before;
        let expected = Counts { shed: counts.shed + sent, resets_sent: counts.resets_sent + sent, ..counts };
        settles(what, &expected, || daemon.counts(PORT));
        assert_eq!(scene.opened_fast(), opened, "{what}");
    });
}

#[test]
fn a_connection_that_came_with_data_is_counted_and_its_place_comes_back() {
    for_every_hook_and_family(|what, scene| {
        let opened = scene.opened_fast();
        let open = |data: &[u8]| (scene.connect(data).unwrap(), scene.accept(data));
        let mut connections: Vec<_> = (1..=3).map(|len| open(&vec![9; len * 100])).collect();
        assert_eq!(scene.opened_fast(), opened + 3, "{what}");
        scene.expect_active(3);
        let error = scene.connect(b"one too many").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{what}");
        drop(connections.pop());
        scene.expect_active(2);
        connections.push(open(b"in its place"));
        scene.expect_active(3);
        drop(connections);
        scene.expect_active(0);
        // Nobody has accepted yet, but a place is taken.
        let waiting = scene.connect(b"waiting").unwrap();
        scene.expect_active(1);
        drop(waiting);
        drop(scene.accept(b"waiting"));
        scene.expect_active(0);
        support::truth::was_not_corrected(&scene.served.daemon);
    });
}
