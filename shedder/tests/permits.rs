//! The life of a permit.

#![cfg(test)]

mod support;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use support::{Daemon, Net, Setup, connect, eventually};

#[test]
fn three_of_twelve_are_admitted_and_nine_refused() {
    for ipv6 in [false, true] {
        let net = Net::new();
        let setup = Setup { mode: "enforce", via: "auto", rest: "[[port]]\nport = 8080\nconnections = 3\n" };
        let daemon = Daemon::start(&net, &setup);
        let address = SocketAddr::new(net.server_ip(ipv6), 8080);
        let listener = net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let connects: Vec<_> =
            (0..12).map(|_| connect(&net.client, address, Duration::from_secs(5))).collect();
        let admitted = connects.iter().filter(|connect| connect.is_ok()).count();
        let refused = connects
            .iter()
            .filter(|connect| {
                connect.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            })
            .count();
        assert_eq!((admitted, refused), (3, 9));
        eventually("three permits are taken", || daemon.active("8080") == 3);
        drop(connects);
        drop(listener);
        eventually("all permits are back", || daemon.active("8080") == 0);
    }
}
