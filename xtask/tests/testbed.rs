//! The testbed itself, with real namespaces, interfaces and sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use xtask::testbed::{Leftovers, Live, Load, Namespace, Pace, Server, ServerOptions, VethPair, http_get};

const SECOND: Duration = Duration::from_secs(1);
const OPEN: Pace = Pace::Open { per_second: 400 };

struct Network {
    link: VethPair,
    client: Namespace,
    server: Namespace,
}

impl Network {
    fn new() -> Self {
        let (client, server) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        Self { link: VethPair::new(&client, &server).unwrap(), client, server }
    }

    /// The server's end, IPv4 and IPv6.
    fn targets(&self) -> [SocketAddr; 2] {
        [(self.link.b.ipv4, 8080).into(), (self.link.b.ipv6, 8080).into()]
    }
}

fn load(target: SocketAddr, patience: Duration) -> Load {
    Load { duration: SECOND / 2, patience, ..Load::new(target, OPEN) }
}

#[test]
fn a_server_below_its_capacity_answers_everyone_from_every_address() {
    let network = Network::new();
    let sources = network.link.a.add_sources(3).unwrap();
    for (target, sources) in network.targets().into_iter().zip([sources.ipv4, sources.ipv6]) {
        let server = Server::start(&network.server, target, ServerOptions::default()).unwrap();
        let load = Load { sources, ..load(target, 30 * SECOND) };
        let outcome = load.run_in(&network.client, &Live::default()).unwrap();
        assert_eq!((outcome.offered, outcome.useful()), (200, 200), "{outcome:?}");
        assert!(outcome.latency(50) > Some(Duration::from_micros(500)), "{outcome:?}");
        assert_eq!(server.stop().answered, 200);
    }
}

#[test]
fn a_closed_load_never_has_more_connections_than_it_may() {
    let network = Network::new();
    let [target, _] = network.targets();
    let options = ServerOptions { service_time: Duration::from_millis(5), ..ServerOptions::default() };
    let server = Server::start(&network.server, target, options).unwrap();
    let load = Load { pace: Pace::Closed { connections: 4 }, ..load(target, 30 * SECOND) };
    let outcome = load.run_in(&network.client, &Live::default()).unwrap();
    assert_eq!(outcome.useful(), outcome.offered, "{outcome:?}");
    // 500 ms of 5 ms each, what was under way at the end, and what the server may make up for.
    assert!((1..=110).contains(&outcome.offered), "{outcome:?}");
    assert_eq!(server.stop().answered, outcome.offered);
}

#[test]
fn where_nobody_listens_every_connection_is_refused() {
    let network = Network::new();
    for target in network.targets() {
        let outcome = load(target, 30 * SECOND).run_in(&network.client, &Live::default()).unwrap();
        assert_eq!((outcome.offered, outcome.refused), (200, 200), "{outcome:?}");
    }
}

#[test]
fn where_nobody_accepts_every_client_gives_up() {
    let network = Network::new();
    let [target, _] = network.targets();
    let listener = network.server.enter(|| TcpListener::bind(target)).unwrap().unwrap();
    let outcome = load(target, SECOND / 10).run_in(&network.client, &Live::default()).unwrap();
    assert_eq!((outcome.offered, outcome.gave_up), (200, 200), "{outcome:?}");
    drop(listener);
}

#[test]
fn a_client_on_loopback_is_refused_at_once_and_does_not_hang() {
    let namespace = Namespace::new().unwrap();
    let target = SocketAddr::from(([127, 0, 0, 1], 8080));
    let load =
        Load { pace: Pace::Closed { connections: 2 }, duration: SECOND / 10, ..Load::new(target, OPEN) };
    let outcome = load.run_in(&namespace, &Live::default()).unwrap();
    assert!(outcome.offered > 0 && outcome.refused == outcome.offered, "{outcome:?}");
}

#[test]
fn a_load_stops_when_told() {
    let network = Network::new();
    let live = Live::default();
    live.stop.store(true, Ordering::Relaxed);
    let [target, _] = network.targets();
    let error = load(target, SECOND).run_in(&network.client, &live).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
}

#[test]
fn a_client_that_hangs_up_early_is_counted_and_does_no_harm() {
    let network = Network::new();
    let [target, _] = network.targets();
    let server = Server::start(&network.server, target, ServerOptions::default()).unwrap();
    for _ in 0..3 {
        drop(network.client.enter(|| TcpStream::connect(target)).unwrap().unwrap());
    }
    let (status, body) = network.client.enter(|| http_get(target, "/", 30 * SECOND)).unwrap().unwrap();
    assert_eq!((status, body.as_str()), (200, "ok\n"));
    let counts = server.stop();
    assert_eq!((counts.answered, counts.aborted), (1, 3));
}

#[test]
fn processes_and_sysctls_are_those_of_the_namespace() {
    let network = Network::new();
    network.server.set_sysctl("ipv4/tcp_abort_on_overflow", "1").unwrap();
    let mut show = Command::new("cat");
    show.arg("/proc/sys/net/ipv4/tcp_abort_on_overflow");
    let inside = network.server.output(&mut show).unwrap();
    assert_eq!(String::from_utf8_lossy(&inside.stdout).trim(), "1");
    assert!(network.server.set_sysctl("ipv4/no_such_key", "1").is_err());
    let mut links = Command::new("ip");
    links.args(["-brief", "link"]);
    let text = String::from_utf8(network.server.output(&mut links).unwrap().stdout).unwrap();
    assert!(text.contains(&network.link.b.interface), "{text}");
    assert!(!text.contains("eth0"), "{text}");
}

#[test]
fn an_mtu_reaches_both_ends() {
    let (a, b) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let link = VethPair::with_mtu(&a, &b, 9000).unwrap();
    for (namespace, end) in [(&a, &link.a), (&b, &link.b)] {
        let mut show = Command::new("ip");
        show.args(["link", "show", &end.interface]);
        let text = String::from_utf8(namespace.output(&mut show).unwrap().stdout).unwrap();
        assert!(text.contains("mtu 9000"), "{text}");
    }
    assert!(VethPair::with_mtu(&a, &b, 70_000).is_err());
}

#[test]
fn a_namespace_is_gone_when_its_value_is() {
    let namespace = Namespace::new().unwrap();
    let path = namespace.path();
    assert!(path.exists());
    drop(namespace);
    assert!(!path.exists());
}

#[test]
fn what_a_dead_process_left_is_removed_and_what_a_living_one_uses_stays() {
    let living = Namespace::new().unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let dead = format!("shedder-{}-0", ended.id());
    assert!(Command::new("ip").args(["netns", "add", &dead]).status().unwrap().success());
    assert!(Leftovers::find().unwrap().namespaces.contains(&dead));
    Leftovers::remove_abandoned().unwrap();
    let left = Leftovers::find().unwrap().namespaces;
    assert!(!left.contains(&dead) && !left.contains(&living.name().to_owned()), "{left:?}");
    assert!(living.path().exists());
}
