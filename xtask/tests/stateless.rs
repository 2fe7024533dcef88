//! The client without sockets, with a real server and without one.

#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::net::SocketAddrV4;
use std::time::Duration;

use xtask::testbed::{
    Fate, Live, Load, Namespace, Pace, STATELESS_NETWORK, Schedule, Server, ServerOptions, StatelessLoad,
    Step, VethPair, stateless_source,
};

/// So long that a slow machine changes nothing.
const PATIENCE: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 200;

struct Net {
    client: Namespace,
    server: Namespace,
    target: SocketAddrV4,
}

impl Net {
    fn new() -> Self {
        let (client, server) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let link = VethPair::new(&client, &server).unwrap();
        link.b.add_route(STATELESS_NETWORK, link.a.ipv4).unwrap();
        Self { client, server, target: SocketAddrV4::new(link.b.ipv4, 8080) }
    }
}

fn schedule() -> Schedule {
    let half = Step { per_second: 200, duration: Duration::from_millis(500) };
    Schedule::new([half, half])
}

fn load(target: SocketAddrV4, patience: Duration) -> StatelessLoad {
    let sources = vec![stateless_source(0, 1), stateless_source(3, 1)];
    StatelessLoad { target, sources, schedule: schedule(), patience, cpu: None }
}

#[test]
fn every_attempt_is_answered_and_known_again() {
    let net = Net::new();
    let server = Server::start(&net.server, net.target.into(), ServerOptions::default()).unwrap();
    let live = Live::default();
    let load = load(net.target, Duration::from_secs(5));
    let outcome = load.run_in(&net.client, &[Duration::from_millis(500)], &live).unwrap();
    let left_out: u64 = outcome.left_out.iter().map(|range| range.end - range.start).sum();
    let useful: Vec<_> = outcome.records.iter().filter(|record| record.fate == Fate::Useful).collect();
    assert_eq!(useful.len() + usize::try_from(left_out).unwrap(), ATTEMPTS);
    assert!(useful.iter().all(|record| record.ended >= record.intended && record.source < 2));
    assert_eq!(outcome.refused.last().unwrap().1, [0, 0]);
    assert_eq!(server.stop().answered, useful.len() as u64);
}

#[test]
fn refusals_are_counted_by_group() {
    let net = Net::new();
    let outcome =
        load(net.target, Duration::from_secs(2)).run_in(&net.client, &[], &Live::default()).unwrap();
    assert!(outcome.records.is_empty());
    let refused = &outcome.refused.last().unwrap().1;
    let left_out: u64 = outcome.left_out.iter().map(|range| range.end - range.start).sum();
    assert_eq!(refused.iter().sum::<u64>() + left_out, ATTEMPTS as u64);
    assert!(refused.iter().all(|count| *count > 0), "{refused:?}");
}

#[test]
fn a_client_with_sockets_follows_the_steps() {
    let net = Net::new();
    let _server = Server::start(&net.server, net.target.into(), ServerOptions::default()).unwrap();
    let schedule = schedule();
    let load = Load {
        duration: schedule.duration(),
        patience: PATIENCE,
        ..Load::new(net.target.into(), Pace::Steps(schedule))
    };
    let outcome = load.run_in(&net.client, &Live::default()).unwrap();
    assert_eq!(outcome.records.len(), ATTEMPTS);
    assert_eq!(outcome.useful(), ATTEMPTS as u64, "{:?}", outcome.failed);
    assert!(outcome.records.iter().all(|record| record.started >= record.intended));
}
