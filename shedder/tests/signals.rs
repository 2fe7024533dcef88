//! What the kernel's queues say moves levels, and what only looks like it does not.

#![cfg(test)]

mod support;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::listen;
use serde_json::Value;
use support::syn::{Segment, Sender};
use support::truth::{kernel_counter, two_ticks_pass};
use support::{Daemon, Net, Setup, connect, eventually, settles};

const PATIENCE: Duration = Duration::from_secs(5);
const BACKLOG: i32 = 8;

/// Two ports that admit all; the signals decide nothing but their levels.
fn start(net: &Net, signals: &str) -> Daemon {
    let port = |port| {
        format!(
            "[[port]]\nport = {port}\nqueue_wait = \"unlimited\"\nqueue_depth = \"unlimited\"\nrate = \"unlimited\"\n"
        )
    };
    let rest = format!("[levels]\nhold = \"1s\"\n{signals}{}{}", port(8080), port(8081));
    Daemon::start(net, &Setup { mode: "enforce", via: "auto", rest: &rest })
}

fn listener(net: &Net, port: u16) -> TcpListener {
    let listener = net.server.enter(|| TcpListener::bind((net.server_ip(false), port))).unwrap().unwrap();
    listen(&listener, BACKLOG).unwrap();
    listener
}

fn address(net: &Net, port: u16) -> SocketAddr {
    SocketAddr::new(net.server_ip(false), port)
}

fn fill(net: &Net, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| connect(&net.client, address(net, 8080), PATIENCE).unwrap()).collect()
}

fn level(daemon: &Daemon, port: &str) -> String {
    daemon.port(port)["level"].as_str().unwrap().to_owned()
}

/// Null while it is not read.
fn signal(daemon: &Daemon, name: &str, scope: &str) -> Value {
    let status = daemon.status();
    let signals = status["signals"].as_array().unwrap();
    let found = signals.iter().find(|signal| signal["signal"] == name && signal["scope"] == scope);
    found.cloned().unwrap_or_default()
}

#[test]
fn an_accept_queue_that_fills_is_its_ports_affair_and_ends_when_it_is_emptied() {
    let net = Net::new();
    let daemon = start(&net, "[signals.accept_queue]\n");
    let (filling, _other) = (listener(&net, 8080), listener(&net, 8081));
    let connections = fill(&net, 5);
    eventually("the level rises", || level(&daemon, "8080") == "moderate");
    assert_eq!(signal(&daemon, "accept_queue", "port:8080")["value"], 5.0 / f64::from(BACKLOG));
    assert_eq!(level(&daemon, "8081"), "normal");
    for _ in &connections {
        drop(filling.accept().unwrap());
    }
    eventually("the level is normal again", || level(&daemon, "8080") == "normal");
}

#[test]
fn overflows_of_an_accept_queue_are_its_ports_affair_and_other_drops_are_nothing() {
    let net = Net::new();
    // Without cookies a listener drops what its SYN queue does not hold.
    net.server.set_sysctl("ipv4/tcp_syncookies", "0").unwrap();
    let daemon = start(&net, "[signals.listen_overflows]\n");
    let (silent, _neighbour) = (listener(&net, 8080), listener(&net, 8081));
    connect(&net.client, SocketAddr::new(net.server_ip(false), 9), PATIENCE).unwrap_err();
    let counter = |name| kernel_counter(&net.server, "TcpExt", name);
    let sender = Sender::new(&net.client);
    // Clients that never answer.
    let [a, b, c, _] = net.link.a.ipv4.octets();
    let knock = |ports: std::ops::Range<u16>| {
        for port in ports {
            let client = SocketAddr::new(IpAddr::from([a, b, c, 200]), port);
            sender.send(&Segment::syn(client, address(&net, 8080), 1));
        }
    };
    knock(1024..1124);
    assert!(counter("ListenDrops") > 0);
    assert_eq!(counter("ListenOverflows"), 0);
    two_ticks_pass(&daemon);
    settles("nothing overflows", &Some(0.0), || {
        signal(&daemon, "listen_overflows", "port:8080")["value"].as_f64()
    });
    assert_eq!(level(&daemon, "8080"), "normal");

    // Another listener, whose accept queue is full to the last place.
    drop(silent);
    let _listener = listener(&net, 8080);
    let _connections = fill(&net, usize::try_from(BACKLOG).unwrap() + 1);
    let mut port = 2000;
    eventually("the level rises", || {
        knock(port..port + 1);
        port += 1;
        level(&daemon, "8080") == "moderate"
    });
    assert!(counter("ListenOverflows") > 0);
    assert_eq!(level(&daemon, "8081"), "normal");
    eventually("the level is normal again", || level(&daemon, "8080") == "normal");
}
