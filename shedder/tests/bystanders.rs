//! What is never touched, however closed the ports are.

#![cfg(test)]

mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use support::hooks::{HOOKS, Served};
use support::wire::{Tap, ends};
use support::{Daemon, Net, Setup, connect, eventually, now};
use xtask::testbed::Namespace;

/// As "normal traffic" goes: one small packet every 100 µs.
const PACKETS: u32 = 20_000;
const PACE: Duration = Duration::from_micros(100);
const PACKET_LEN: usize = 100;

#[test]
fn established_connections_lose_nothing_at_quota_0() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", "[[port]]\nport = 8080\n");
        for ipv6 in [false, true] {
            served.daemon.must(&["set", "port", "8080", "connections=unlimited"]);
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let listener = served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            let mut client = connect(&served.net.client, address, Duration::from_secs(5)).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            served.daemon.must(&["set", "port", "8080", "connections=0"]);
            assert!(connect(&served.net.client, address, Duration::from_secs(5)).is_err(), "{via}: closed");
            client.set_nodelay(true).unwrap();
            let echo = thread::spawn(move || {
                let (mut total, mut buffer) = (0, [0; 4096]);
                loop {
                    match server.read(&mut buffer).unwrap() {
                        0 => return total,
                        len => {
                            server.write_all(&buffer[..len]).unwrap();
                            total += len;
                        }
                    }
                }
            });
            let mut reader = client.try_clone().unwrap();
            let reads = thread::spawn(move || {
                let mut all = Vec::new();
                reader.read_to_end(&mut all).unwrap();
                all.len()
            });
            paced(|| client.write_all(&[7; PACKET_LEN]).unwrap());
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let total = PACKETS as usize * PACKET_LEN;
            assert_eq!(echo.join().unwrap(), total, "{via} {address}");
            assert_eq!(reads.join().unwrap(), total, "{via} {address}");
        }
        assert_eq!(repaired(&served.net), 0, "{via}: TCP did not have to repair anything");
    }
}

/// Calls `send` at the pace of 10,000 a second.
fn paced(mut send: impl FnMut()) {
    let start = now();
    for packet in 0..PACKETS {
        send();
        if let Some(early) = (start + packet * PACE).checked_duration_since(now()) {
            thread::sleep(early);
        }
    }
}

/// Segments that either side has sent again because they were lost: not those that a busy machine only held up,
/// of which the receiver reports that they came twice.
fn repaired(net: &Net) -> u64 {
    let sum = |file: &str, protocol: &str, counter: &str| -> u64 {
        [&net.client, &net.server]
            .map(|namespace| network_counter(namespace, file, protocol, counter))
            .iter()
            .sum()
    };
    sum("snmp", "Tcp: ", "RetransSegs").saturating_sub(sum("netstat", "TcpExt: ", "TCPDSACKRecvSegs"))
}

fn network_counter(namespace: &Namespace, file: &str, protocol: &str, counter: &str) -> u64 {
    let path = format!("/proc/thread-self/net/{file}");
    let text = namespace.enter(|| std::fs::read_to_string(path)).unwrap().unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol));
    let names = lines.next().unwrap().split(' ');
    let values = lines.next().unwrap().split(' ');
    let (_, count) = names.zip(values).find(|(name, _)| *name == counter).unwrap();
    count.parse().unwrap()
}

#[test]
fn udp_to_a_closed_port_loses_nothing() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", "[[port]]\nport = 8080\nconnections = 0\n");
        for ipv6 in [false, true] {
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let server = served.net.server.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&server, 64 << 20).unwrap();
            let client = served
                .net
                .client
                .enter(|| UdpSocket::bind(if ipv6 { "[::]:0" } else { "0.0.0.0:0" }))
                .unwrap()
                .unwrap();
            paced(|| assert_eq!(client.send_to(&[1; PACKET_LEN], address).unwrap(), PACKET_LEN));
            server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            let mut buffer = [0; 2048];
            let arrived = (0..PACKETS).take_while(|_| server.recv(&mut buffer).is_ok()).count();
            assert_eq!(arrived, PACKETS as usize, "{via} {address}");
        }
    }
}

#[test]
fn connections_that_the_host_opens_itself_are_not_judged() {
    for (via, _) in HOOKS {
        let served =
            Served::start(via, "enforce", "[[port]]\nport = \"8080-8081\"\nshared = true\nconnections = 0\n");
        for (remote_port, ipv6) in [(8080, false), (8080, true), (7000, false), (7000, true)] {
            let link = &served.net.link;
            let remote = if ipv6 { link.a.ipv6.into() } else { link.a.ipv4.into() };
            let address = SocketAddr::new(remote, remote_port);
            let listener = served.net.client.enter(|| TcpListener::bind(address)).unwrap().unwrap();
            let accepts = thread::spawn(move || {
                (0..500).map(|_| listener.accept().unwrap()).map(|(stream, _)| drop(stream)).count()
            });
            let connected = served
                .net
                .server
                .enter(|| {
                    let connect =
                        |_: &i32| TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok();
                    (0..500).filter(connect).count()
                })
                .unwrap();
            assert_eq!((connected, accepts.join().unwrap()), (500, 500), "{via} {address}");
        }
        assert_eq!(served.daemon.counts("8080-8081"), support::Counts::default());
        assert_eq!(served.daemon.active("8080-8081"), 0);
    }
}

#[test]
fn what_is_no_tcp_passes_untouched() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", "[[port]]\nport = 8080\nconnections = 0\n");
        let ends = ends(&served.net, false);
        let client = Tap::open(&served.net.client, &served.net.link.a);
        // Sees what the programs let through: native and generic XDP come before it, and to what TC returns
        // for other protocols the kernel's own answers below bear witness.
        let server = Tap::open(&served.net.server, &served.net.link.b);
        let header =
            |ethertype: u16| [&ends.destination_mac, &ends.source_mac, &ethertype.to_be_bytes()[..]].concat();
        let mut frames = vec![header(0x88cc), header(0x0800), header(0x86dd), header(0x0806), header(0x9000)];
        let multicast =
            [&[0x01, 0x80, 0xc2, 0, 0, 0x0e][..], &ends.source_mac, &[0x88, 0xcc, 2, 7, 4]].concat();
        frames.extend([multicast, [header(0x88cc), vec![0xaa; 300]].concat()]);
        for frame in &frames {
            client.send(frame);
        }
        let mut passed: Vec<Vec<u8>> = Vec::new();
        let until = now() + support::PATIENCE;
        while passed.len() < frames.len() {
            let frame = server.receive(until).unwrap_or_else(|| panic!("{via}: only {passed:02x?} passed"));
            if frames.contains(&frame.bytes) {
                passed.push(frame.bytes);
            }
        }
        passed.sort();
        frames.sort();
        assert_eq!(passed, frames, "{via}");

        // ARP and neighbour discovery afresh, and ICMP of both families: the client's kernel says that nobody
        // is at a port, and the server hears it.
        for namespace in [&served.net.client, &served.net.server] {
            support::run("ip", &["-netns", namespace.name(), "neigh", "flush", "all"]);
        }
        for (local, remote) in [
            ("0.0.0.0:8080", SocketAddr::new(served.net.link.a.ipv4.into(), 8080)),
            ("[::]:8080", SocketAddr::new(served.net.link.a.ipv6.into(), 8080)),
        ] {
            let socket = served.net.server.enter(|| UdpSocket::bind(local)).unwrap().unwrap();
            socket.connect(remote).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket.send(b"anybody?").unwrap();
            let error = socket.recv(&mut [0; 16]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{via} {remote}");
        }
        assert_eq!(served.daemon.counts("8080"), support::Counts::default(), "{via}");
    }
}

#[test]
fn only_the_closed_port_is_closed() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", "[[port]]\nport = 443\nconnections = 0\n");
        for (port, open) in [(22, true), (442, true), (443, false), (444, true), (8443, true)] {
            for ipv6 in [false, true] {
                let address = SocketAddr::new(served.net.server_ip(ipv6), port);
                let _listener = served.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
                let connected = connect(&served.net.client, address, Duration::from_secs(5));
                assert_eq!(connected.is_ok(), open, "{via} {address}");
            }
        }
    }
}

#[test]
fn two_hundred_ports_are_all_enforced() {
    let net = Net::new();
    let ports: Vec<u16> = (0..200).map(|number| 10_000 + 251 * number).collect();
    let rest: String =
        ports.iter().map(|port| format!("[[port]]\nport = {port}\nconnections = 0\n")).collect();
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: &rest });
    for port in &ports {
        let address = SocketAddr::new(net.server_ip(port % 2 == 0), *port);
        let _listener = net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        assert!(connect(&net.client, address, Duration::from_secs(5)).is_err(), "{address}");
    }
    eventually("each port has refused one", || {
        let status = daemon.status();
        let states = status["ports"].as_array().unwrap();
        states.len() == 200
            && states.iter().all(|state| state["classes"]["interactive"]["shed"]["closed"] == 1)
    });
}
