//! The gates that look at the listener.

#![cfg(test)]

mod support;

use std::io::ErrorKind;
use std::mem::offset_of;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
use shedder_common::abi::MAX_POLICIES;
use shedder_common::limits::PolicyState;
use shedder_common::service::{Approach, Service};
use support::hooks::{HOOKS, Served};
use support::{connect, eventually, now, settles};
use xtask::testbed::Namespace;

const PATIENCE: Duration = Duration::from_secs(5);

/// A listener with a backlog, that others may share the port with.
fn listener(namespace: &Namespace, address: SocketAddr, backlog: i32) -> TcpListener {
    namespace
        .enter(|| {
            let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
            let socket = socket(family, SocketType::STREAM, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            sockopt::set_socket_reuseport(&socket, true)?;
            bind(&socket, &address)?;
            listen(&socket, backlog)?;
            rustix::io::Result::Ok(TcpListener::from(socket))
        })
        .unwrap()
        .unwrap()
}

fn is_refused(result: &std::io::Result<TcpStream>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            true
        }
    }
}

const HALF_FULL: &str = "[[port]]\nport = 8080\nqueue_depth = 0.5\nqueue_wait = \"unlimited\"\n";

#[test]
fn a_queue_that_is_half_full_refuses() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", HALF_FULL);
        for ipv6 in [false, true] {
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let listener = listener(&served.net.server, address, 64);
            let client = &served.net.client;
            let connects: Vec<_> = (0..50).map(|_| connect(client, address, PATIENCE)).collect();
            // The kernel's queue holds one more than the backlog: half of 65.
            let admitted = connects.iter().take_while(|connect| connect.is_ok()).count();
            assert!((33..=34).contains(&admitted), "{via} {address}: {admitted}");
            assert!(connects[admitted..].iter().all(is_refused), "{via} {address}");
            settles(&format!("{via} {address}: the status tells"), &Some(admitted as u64), || {
                served.daemon.port("8080")["accept_queue"]["depth"].as_u64()
            });
            // One that is accepted makes one place.
            for _ in 0..=admitted - 33 {
                listener.accept().unwrap();
            }
            assert!(!is_refused(&connect(client, address, PATIENCE)), "{via} {address}");
            eventually("and no more", || is_refused(&connect(client, address, PATIENCE)));
        }
        let shed = || served.daemon.port("8080")["classes"]["interactive"]["shed"].clone();
        eventually("the gate is counted", || shed()["queue_depth"].as_u64() >= Some(32));
        assert_eq!(shed()["queue_wait"], 0, "{via}");
    }
}

#[test]
fn a_wait_of_50_ms_refuses_and_an_accept_admits_again_at_once() {
    const WAIT: Duration = Duration::from_millis(50);
    // The kernel's coarse clock moves every few milliseconds.
    const CLOCK: Duration = Duration::from_millis(12);
    // On a busy machine the first connection may reach the queue late.
    const SLACK: Duration = Duration::from_millis(100);
    let rest = "[[port]]\nport = 8080\nqueue_depth = \"unlimited\"\nqueue_wait = \"50ms\"\n";
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", rest);
        for ipv6 in [false, true] {
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let listener = listener(&served.net.server, address, 1024);
            for _ in 0..3 {
                let (oldest_from, first) = timed(&served.net.client, address);
                let oldest_to = now();
                assert!(first.is_ok(), "{via} {address}: an empty queue admits");
                let mut streams = vec![first.unwrap()];
                loop {
                    let (start, result) = timed(&served.net.client, address);
                    let end = now();
                    if is_refused(&result) {
                        assert!(end - oldest_from + CLOCK >= WAIT, "{via} {address}: refused early");
                        break;
                    }
                    assert!(start - oldest_to <= WAIT + SLACK, "{via} {address}: refused late");
                    streams.push(result.unwrap());
                    std::thread::sleep(Duration::from_millis(2));
                }
                assert!(is_refused(&connect(&served.net.client, address, PATIENCE)), "{via} {address}");
                for _ in &streams {
                    listener.accept().unwrap();
                }
            }
        }
        let shed = served.daemon.port("8080")["classes"]["interactive"]["shed"].clone();
        assert_eq!(shed["queue_depth"], 0, "{via}: {shed}");
        settles(&format!("{via}: counted by the gate"), &Some(12), || {
            served.daemon.port("8080")["classes"]["interactive"]["shed"]["queue_wait"].as_u64()
        });
    }
}

fn timed(client: &Namespace, address: SocketAddr) -> (Instant, std::io::Result<TcpStream>) {
    let start = now();
    (start, connect(client, address, PATIENCE))
}

#[test]
fn each_listener_of_a_group_is_judged_by_its_own_queue() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", HALF_FULL);
        for ipv6 in [false, true] {
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let stuck = listener(&served.net.server, address, 64);
            let lively = listener(&served.net.server, address, 64);
            for listener in [&stuck, &lively] {
                listener.set_nonblocking(true).unwrap();
            }
            let (mut accepted, mut refused, mut open) = (0, 0, Vec::new());
            for _ in 0..300 {
                match connect(&served.net.client, address, PATIENCE) {
                    Ok(stream) => open.push(stream),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{via} {address}");
                        refused += 1;
                    }
                }
                while lively.accept().is_ok() {
                    accepted += 1;
                }
            }
            eventually("all have arrived", || {
                while lively.accept().is_ok() {
                    accepted += 1;
                }
                let waiting = served.daemon.port("8080")["accept_queue"]["depth"].as_u64();
                waiting == Some((open.len() - accepted) as u64)
            });
            let waiting = open.len() - accepted;
            assert!((33..=34).contains(&waiting), "{via} {address}: {waiting} wait");
            // The kernel spreads by a hash: about half go to each.
            assert!(accepted > 90 && refused > 50, "{via} {address}: {accepted} accepted, {refused} refused");
        }
    }
}

#[test]
fn a_connection_in_time_wait_does_not_hide_the_listener() {
    for (via, _) in HOOKS {
        let served = Served::start(via, "enforce", HALF_FULL);
        for ipv6 in [false, true] {
            let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
            let listener = listener(&served.net.server, address, 64);
            let ports = 20_000..20_040_u16;
            let from = |port: u16| {
                served
                    .net
                    .client
                    .enter(|| {
                        let local =
                            if ipv6 { served.net.link.a.ipv6.into() } else { served.net.link.a.ipv4.into() };
                        let family = if ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
                        let socket = socket(family, SocketType::STREAM, None).unwrap();
                        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
                        bind(&socket, &SocketAddr::new(local, port)).unwrap();
                        rustix::net::connect(&socket, &address).map(|()| TcpStream::from(socket))
                    })
                    .unwrap()
                    .map_err(std::io::Error::from)
            };
            // The server closes first, so it keeps the 4-tuples.
            for port in ports.clone() {
                let mut client = from(port).unwrap();
                let (server, _) = listener.accept().unwrap();
                server.shutdown(Shutdown::Both).unwrap();
                drop(server);
                assert_eq!(std::io::Read::read(&mut client, &mut [0]).unwrap(), 0);
            }
            eventually("all are in TIME_WAIT", || time_waits(&served.net.server, address) >= 40);
            // An empty queue admits the same 4-tuple.
            let again = from(20_000).unwrap();
            let (server, _) = listener.accept().unwrap();
            drop((again, server));
            // A full one refuses it, as it does any other.
            let filling: Vec<_> = (0..40).map(|_| connect(&served.net.client, address, PATIENCE)).collect();
            assert!(filling.iter().any(is_refused), "{via} {address}");
            for port in ports.clone().skip(1) {
                assert!(is_refused(&from(port)), "{via} {address} from {port}");
            }
        }
    }
}

/// How many connections of a port are in TIME_WAIT.
fn time_waits(namespace: &Namespace, address: SocketAddr) -> usize {
    let file = if address.is_ipv6() { "tcp6" } else { "tcp" };
    let path = format!("/proc/thread-self/net/{file}");
    let table = namespace.enter(|| std::fs::read_to_string(path)).unwrap().unwrap();
    let port = format!(":{:04X}", address.port());
    table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[1].ends_with(&port) && fields[3] == "06")
        .count()
}

/// A word of what the kernel knows of the only policy's service.
fn service(served: &Served, offset: usize) -> u64 {
    let state = MapData::from_pin(served.daemon.pins().join("STATE")).unwrap();
    let state = Array::<_, [u64; STATE_WORDS]>::try_from(Map::from_map_data(state).unwrap()).unwrap();
    let word = (offset_of!(PolicyState, service) + offset) / size_of::<u64>();
    (1..MAX_POLICIES).map(|slot| state.get(&slot, 0).unwrap()[word]).sum()
}

const STATE_WORDS: usize = size_of::<PolicyState>() / size_of::<u64>();

#[test]
fn handshakes_tell_who_is_on_the_way_and_for_how_long() {
    let served = Served::start("auto", "enforce", "[[port]]\nport = 8080\n");
    for ipv6 in [false, true] {
        let address = SocketAddr::new(served.net.server_ip(ipv6), 8080);
        let _listener = listener(&served.net.server, address, 64);
        let _open: Vec<_> =
            (0..20).map(|_| connect(&served.net.client, address, PATIENCE).unwrap()).collect();
        let admitted = service(&served, offset_of!(Service<u64>, admitted));
        assert_eq!(admitted, if ipv6 { 40 } else { 20 });
        eventually("all have arrived", || {
            service(&served, offset_of!(Service<u64>, established)) == admitted
        });
    }
    let round_trip_us =
        service(&served, offset_of!(Service<u64>, approach) + offset_of!(Approach<u64>, round_trip_us));
    // Both ends are on this machine, however busy it is.
    assert!((1..100_000).contains(&round_trip_us), "{round_trip_us} us");
}
