//! Connections that come through a tunnel.

#![cfg(test)]

mod support;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use rustix::process::Signal;
use support::run::must;
use support::{Counts, Daemon, Net, connect, settles};
use xtask::testbed::{End, Namespace};

const PATIENCE: Duration = Duration::from_secs(5);
const CONNECTS: u64 = 10;

/// How the tunnel finds its other end, and what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ethernet, to the one end that the device names.
    Fixed,
    /// Ethernet, to where the route says: the device itself knows nobody, as those of container networks.
    External,
    /// As `External`, over IPv6.
    ExternalOverIpv6,
    /// As `External`, and without a link-layer header.
    ExternalWithoutHeader,
}

const KINDS: [Kind; 4] = [Kind::Fixed, Kind::External, Kind::ExternalOverIpv6, Kind::ExternalWithoutHeader];

const DEVICE: &str = "sd-tunnel";
const CLIENT: [&str; 2] = ["10.88.0.1", "fd88::1"];
const SERVER: [&str; 2] = ["10.88.0.2", "fd88::2"];

/// A VXLAN between the two ends of a net.
fn tunnel(net: &Net, kind: Kind) {
    let ends = [(&net.client, &net.link.a, &net.link.b, 1), (&net.server, &net.link.b, &net.link.a, 2)];
    for (namespace, here, there, number) in ends {
        end(namespace, kind, here, there, number);
    }
}

fn end(namespace: &Namespace, kind: Kind, here: &End, there: &End, number: u8) {
    let ip = |arguments: &str| must(&format!("ip -netns {} {arguments}", namespace.name()));
    let (own, other) = if number == 1 { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
    let mac = |number: u8| format!("02:00:00:00:00:{number:02x}");
    let options = match kind {
        Kind::Fixed => format!("id 5 local {} remote {} dstport 4789", here.ipv4, there.ipv4),
        Kind::External | Kind::ExternalOverIpv6 => "external dstport 4789 udp6zerocsumrx".to_owned(),
        Kind::ExternalWithoutHeader => "external gpe dstport 4790".to_owned(),
    };
    let address =
        if kind == Kind::ExternalWithoutHeader { String::new() } else { format!("address {}", mac(number)) };
    ip(&format!("link add {DEVICE} {address} type vxlan {options}"));
    ip(&format!("link set {DEVICE} mtu 1400 up"));
    for (own, other) in own.into_iter().zip(other) {
        let (prefix, nodad) = if own.contains(':') { ("128", "nodad") } else { ("32", "") };
        ip(&format!("address add {own}/{prefix} dev {DEVICE} {nodad}"));
        let encap = match kind {
            Kind::Fixed => String::new(),
            Kind::ExternalOverIpv6 => format!("encap ip6 id 5 dst {}", there.ipv6),
            Kind::External | Kind::ExternalWithoutHeader => format!("encap ip id 5 dst {}", there.ipv4),
        };
        ip(&format!("route add {other}/{prefix} {encap} dev {DEVICE} src {own}"));
        if kind != Kind::ExternalWithoutHeader {
            ip(&format!("neighbour add {other} lladdr {} dev {DEVICE}", mac(3 - number)));
        }
    }
}

fn serve(net: &Net, via: &str, action: &str) -> Daemon {
    let daemon = Daemon::launch_with(
        &net.server,
        &format!(
            "version = 1\nmode = \"enforce\"\n[attach]\ninterfaces = [\"{DEVICE}\"]\nvia = \"{via}\"\n\
             [daemon]\nsocket = \"{{socket}}\"\nbpffs = \"{{bpffs}}\"\n\
             [[port]]\nport = 8080\nconnections = 0\naction = \"{action}\"\n"
        ),
    );
    daemon.wait_until_ready();
    daemon
}

fn address(ipv6: bool, port: u16) -> SocketAddr {
    SocketAddr::new(SERVER[usize::from(ipv6)].parse().unwrap(), port)
}

/// A port that nobody protects is reached through the tunnel, so what the other one does is the daemon's doing.
fn assert_carries(net: &Net) {
    for ipv6 in [false, true] {
        let _listener = net.server.enter(|| TcpListener::bind(address(ipv6, 8081))).unwrap().unwrap();
        connect(&net.client, address(ipv6, 8081), PATIENCE).unwrap();
    }
}

#[test]
fn a_reset_finds_its_way_back_through_a_tunnel() {
    for kind in KINDS {
        // XDP needs an Ethernet header, and cannot say where an external tunnel should send.
        let all = kind == Kind::Fixed;
        for via in ["auto", "tc"].into_iter().chain(all.then_some("generic")) {
            let net = Net::new();
            tunnel(&net, kind);
            let daemon = serve(&net, via, "reset");
            assert_carries(&net);
            for ipv6 in [false, true] {
                for _ in 0..CONNECTS {
                    let error = connect(&net.client, address(ipv6, 8080), PATIENCE).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{kind:?}, {via}, IPv6: {ipv6}");
                }
            }
            let (shed, resets_sent) = (2 * CONNECTS, 2 * CONNECTS);
            let expected = Counts { shed, resets_sent, ..Counts::default() };
            settles(&format!("{kind:?}, {via}"), &expected, || daemon.counts("8080"));
        }
    }
}

#[test]
fn an_external_tunnel_says_which_hook_loses_resets() {
    let net = Net::new();
    tunnel(&net, Kind::External);
    for (via, action, lost) in [
        ("generic", "reset", true),
        ("generic", "drop", false),
        ("tc", "reset", false),
        ("auto", "reset", false),
    ] {
        let mut daemon = serve(&net, via, action);
        let reason = daemon.status()["attachments"][0]["reason"].as_str().unwrap().to_owned();
        assert_eq!(reason.contains("although an external tunnel drops the RST"), lost, "{via}: {reason}");
        daemon.stop(Signal::TERM);
    }
}
