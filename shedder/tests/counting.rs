//! Which connections count, and that the count stays true while policies and daemons come and go.
#![cfg(test)]

mod support;

use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::Duration;

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::{loaded_links, loaded_programs};
use rustix::process::{Pid, Signal, kill_process};
use shedder_common::limits::PolicyState;
use support::churn::{Churned, Clients, Server, listener};
use support::truth::{counts_become, ss_count, two_ticks_pass, was_not_corrected};
use support::{Daemon, Net, Setup, connect, eventually, now};
use xtask::testbed::Namespace;

const PORT: &str = "8080";
const PATIENCE: Duration = Duration::from_secs(5);
const QUEUES_UNLIMITED: &str = "queue_wait = \"unlimited\"\nqueue_depth = \"unlimited\"\n";

fn policy(limits: &str) -> String {
    format!("[[port]]\nport = 8080\n{QUEUES_UNLIMITED}{limits}\n")
}

fn setup(rest: &str) -> Setup<'_> {
    Setup { mode: "enforce", via: "auto", rest }
}

fn dial(net: &Net, index: usize) -> std::io::Result<TcpStream> {
    connect(&net.client, SocketAddr::new(net.server_ip(index % 2 == 1), 8080), PATIENCE)
}

/// Drops connections one after the other; each takes one from the count, the last leaves `rest`.
fn close_one_by_one(net: &Net, daemon: &Daemon, connections: Vec<TcpStream>, rest: usize) {
    let mut left = connections.len() + rest;
    for connection in connections {
        drop(connection);
        left -= 1;
        counts_become(net, daemon, PORT, left);
    }
}

#[test]
fn what_the_host_says_to_itself_takes_no_place() {
    let net = Net::new();
    let second = net.link.b.add_sources(1).unwrap().ipv4[0];
    let daemon = Daemon::start(&net, &setup(&policy("connections = 2")));
    let _listener = listener(&net, 8080);
    let own: [IpAddr; 4] = [net.server_ip(false), second, net.server_ip(true), IpAddr::from([127, 0, 0, 1])];
    // From one of its addresses to another.
    let _across = connect_from(&net.server, (net.link.b.ipv4, 0).into(), (second, 8080).into());
    let _own = own.map(|ip| connect(&net.server, SocketAddr::new(ip, 8080), PATIENCE).unwrap());
    let _others = [dial(&net, 0).unwrap(), dial(&net, 1).unwrap()];
    assert!(dial(&net, 2).is_err());
    eventually("both are counted", || daemon.active(PORT) == 2);
    let _still = connect(&net.server, SocketAddr::new(net.server_ip(false), 8080), PATIENCE).unwrap();
    two_ticks_pass(&daemon);
    assert_eq!(daemon.active(PORT), 2);
}

#[test]
fn what_the_host_opens_and_what_others_accept_takes_no_place() {
    let net = Net::new();
    let daemon = Daemon::start(&net, &setup(&policy("connections = 2")));
    // The client's namespace serves the same port.
    let there = |ip: IpAddr| net.client.enter(|| TcpListener::bind((ip, 8080))).unwrap().unwrap();
    let _theirs = [there(net.link.a.ipv4.into()), there(net.link.a.ipv6.into())];
    let to = |ip: IpAddr| connect(&net.server, SocketAddr::new(ip, 8080), PATIENCE).unwrap();
    let outgoing: Vec<_> =
        (0..3).flat_map(|_| [to(net.link.a.ipv4.into()), to(net.link.a.ipv6.into())]).collect();
    // One leaves from the protected port itself.
    let from_port = connect_from(&net.server, (net.link.b.ipv4, 8080).into(), (net.link.a.ipv4, 8080).into());
    let _listener = listener(&net, 8081);
    two_ticks_pass(&daemon);
    assert_eq!(daemon.active(PORT), 0);
    // Nor does the look into the socket table, which is every ten seconds at least, change that.
    let looked_at = daemon.status()["ticks"]["total"].as_u64().unwrap() + 125;
    eventually("the socket table was looked at", || {
        daemon.status()["ticks"]["total"].as_u64().unwrap() >= looked_at
    });
    assert_eq!((daemon.active(PORT), ss_count(&net.server, PORT)), (0, 1));
    drop((outgoing, from_port));
    two_ticks_pass(&daemon);
    assert_eq!(daemon.active(PORT), 0);
}

/// Connects over IPv4 from a chosen address and port.
fn connect_from(namespace: &Namespace, from: SocketAddr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fresh = namespace.enter(|| socket(AddressFamily::INET, SocketType::STREAM, None)).unwrap().unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&fresh, true).unwrap();
    bind(&fresh, &from).unwrap();
    connect(&fresh, &to).unwrap();
    fresh.into()
}

#[test]
fn connections_older_than_the_daemon_are_counted_and_leave_one_by_one() {
    let net = Net::new();
    let listener = listener(&net, 8080);
    let older: Vec<_> = (0..7).map(|index| dial(&net, index).unwrap()).collect();
    let mut accepted: Vec<_> = (0..5).map(|_| listener.accept().unwrap().0).collect();
    older[0].shutdown(Shutdown::Write).unwrap();
    let _own = connect(&net.server, SocketAddr::new(net.server_ip(false), 8080), PATIENCE).unwrap();
    let daemon = Daemon::start(&net, &setup(&policy("connections = 8")));
    eventually("the older ones are counted", || daemon.active(PORT) == 7);
    let _younger = dial(&net, 0).unwrap();
    assert!(dial(&net, 1).is_err());
    for left in (3..8).rev() {
        drop(accepted.pop());
        eventually("each takes one with it", || daemon.active(PORT) == left);
    }
    // The two that were never accepted go with their listener, and so does the younger one.
    drop(listener);
    eventually("all are gone", || daemon.active(PORT) == 0);
    assert!(!daemon.log().contains("counted with delay"), "{}", daemon.log());
    was_not_corrected(&daemon);
}

#[test]
fn a_killed_daemon_finds_the_true_count_and_its_counters_under_load() {
    let net = Net::new();
    let rest = policy("connections = 100000");
    let mut daemon = Daemon::start(&net, &setup(&rest));
    let _server = Server::start(&net, 8080);
    let mut held: Vec<_> = (0..20).map(|index| dial(&net, index).unwrap()).collect();
    let over = AtomicBool::new(false);
    let (daemon, churned) = scope(|scope| {
        let clients = Clients { net: &net, port: 8080, fast_open: false, per_second: Some(500) };
        let over = &over;
        let load = scope.spawn(move || clients.run(|_| !over.load(Ordering::Relaxed)));
        for _ in 0..3 {
            eventually("the load runs", || daemon.counts(PORT).admitted > 300);
            let admitted = daemon.counts(PORT).admitted;
            daemon.kill();
            held.extend((0..5).map(|index| dial(&net, index).unwrap()));
            daemon = daemon.restart(&net, &setup(&rest));
            let after = daemon.counts(PORT).admitted;
            assert!(after >= admitted + 5, "{admitted} were admitted before, {after} after");
            assert!(daemon.log().contains("counters go on"), "{}", daemon.log());
        }
        over.store(true, Ordering::Relaxed);
        (daemon, load.join().unwrap())
    });
    assert_eq!(churned.refused, 0);
    counts_become(&net, &daemon, PORT, held.len() + churned.open.len());
    one_program_for_each_hook(&daemon);
    held.truncate(4);
    drop(churned);
    counts_become(&net, &daemon, PORT, 4);
    close_one_by_one(&net, &daemon, held, 0);
}

#[test]
fn daemons_that_start_and_policies_that_come_under_load_find_the_true_count() {
    let net = Net::new();
    let _server = Server::start(&net, 8080);
    let rest = policy("connections = 100000");
    let held: Vec<_> = (0..20).map(|index| dial(&net, index).unwrap()).collect();
    let over = AtomicBool::new(false);
    let (daemon, churned) = scope(|scope| {
        let clients = Clients { net: &net, port: 8080, fast_open: false, per_second: Some(500) };
        let over = &over;
        let load = scope.spawn(move || clients.run(|_| !over.load(Ordering::Relaxed)));
        // The first ones leave nothing to the next.
        for _ in 0..2 {
            let daemon = Daemon::start(&net, &setup(&rest));
            eventually("the held ones are counted", || daemon.active(PORT) >= 20);
        }
        let daemon = Daemon::start(&net, &setup(&rest));
        let with = std::fs::read_to_string(daemon.config_file()).unwrap();
        let without = with.replace("port = 8080", "port = 8090");
        for _ in 0..5 {
            reload(&daemon, &without, "8090");
            reload(&daemon, &with, PORT);
            eventually("the held ones are counted", || daemon.active(PORT) >= 20);
        }
        over.store(true, Ordering::Relaxed);
        (daemon, load.join().unwrap())
    });
    assert_eq!(churned.refused, 0);
    counts_become(&net, &daemon, PORT, held.len() + churned.open.len());
    drop((held, churned));
    counts_become(&net, &daemon, PORT, 0);
}

/// Replaces the configuration and waits until it is in force.
fn reload(daemon: &Daemon, configuration: &str, port: &str) {
    std::fs::write(daemon.config_file(), configuration).unwrap();
    let pid = Pid::from_raw(daemon.pid().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    eventually("the new policy is there", || {
        daemon.status()["ports"].as_array().unwrap().iter().any(|state| state["port"] == port)
    });
}

/// The programs that use this daemon's maps, and their links.
fn one_program_for_each_hook(daemon: &Daemon) {
    let state = MapInfo::from_pin(daemon.pins().join("STATE")).unwrap().id();
    let found = || {
        let mut programs: Vec<(String, u32)> = loaded_programs()
            .filter_map(Result::ok)
            .filter(|program| program.map_ids().is_ok_and(|ids| ids.is_some_and(|ids| ids.contains(&state))))
            .map(|program| (program.name_as_str().unwrap().to_owned(), program.id()))
            .collect();
        programs.sort();
        let linked =
            |id| loaded_links().filter_map(Result::ok).filter(|link| link.program_id() == id).count();
        programs.into_iter().map(|(name, id)| (name, linked(id))).collect::<Vec<_>>()
    };
    let expected = [
        ("recount_connec", 0),
        ("shed_tc", 1),
        ("shed_xdp", 0),
        ("track_connectio", 1),
        ("track_interrupt", 1),
    ];
    let mut last = Vec::new();
    let as_expected = support::holds_in_time(|| {
        last = found();
        last.len() == expected.len()
            && last
                .iter()
                .zip(expected)
                .all(|((name, links), (start, expected))| name.starts_with(start) && *links == expected)
    });
    assert!(as_expected, "{last:?}");
}

#[test]
fn a_policy_that_goes_and_comes_back_finds_the_connections_that_live() {
    let net = Net::new();
    let rest = policy("connections = 6");
    let daemon = Daemon::start(&net, &setup(&rest));
    let _server = Server::start(&net, 8080);
    let with = std::fs::read_to_string(daemon.config_file()).unwrap();
    let without = with.replace("port = 8080", "port = 8090");
    let mut connections: Vec<_> = (0..6).map(|index| dial(&net, index).unwrap()).collect();
    for _ in 0..4 {
        counts_become(&net, &daemon, PORT, 6);
        assert!(dial(&net, 0).is_err());
        reload(&daemon, &without, "8090");
        two_ticks_pass(&daemon);
        connections.drain(..3);
        eventually("three are gone", || ss_count(&net.server, PORT) == 3);
        // No policy, no limit.
        connections.extend((0..4).map(|index| dial(&net, index).unwrap()));
        reload(&daemon, &with, PORT);
        counts_become(&net, &daemon, PORT, 7);
        assert!(dial(&net, 0).is_err());
        connections.drain(..2);
        counts_become(&net, &daemon, PORT, 5);
        connections.push(dial(&net, 1).unwrap());
    }
    close_one_by_one(&net, &daemon, connections, 0);
    was_not_corrected(&daemon);
}

#[test]
fn limits_that_change_under_load_leave_a_true_count() {
    let net = Net::new();
    let daemon = Daemon::start(&net, &setup(&policy("connections = 100000")));
    let server = Server::start(&net, 8080);
    let over = AtomicBool::new(false);
    let churned: Churned = scope(|scope| {
        let clients = Clients { net: &net, port: 8080, fast_open: false, per_second: Some(500) };
        let over = &over;
        let load = scope.spawn(move || clients.run(|_| !over.load(Ordering::Relaxed)));
        let end = now() + Duration::from_secs(6);
        while now() < end {
            for change in ["connections=5", "rate=100/s", "connections=unlimited", "rate=unlimited"] {
                daemon.must(&["set", "port", PORT, change]);
            }
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    assert!(churned.connected > 100 && churned.refused > 100, "{churned:?}");
    counts_become(&net, &daemon, PORT, churned.open.len());
    drop(server);
    counts_become(&net, &daemon, PORT, 0);
}

#[test]
fn a_count_that_is_too_high_is_corrected_and_refuses_no_longer() {
    let net = Net::new();
    let daemon = Daemon::start(&net, &setup(&policy("connections = 3")));
    let _listener = listener(&net, 8080);
    let _one = dial(&net, 0).unwrap();
    counts_become(&net, &daemon, PORT, 1);
    // As if two connections had been lost sight of.
    let state = MapData::from_pin(daemon.pins().join("STATE")).unwrap();
    let mut state = Array::<_, PolicyStateBytes>::try_from(Map::from_map_data(state).unwrap()).unwrap();
    let slot = (1..1024).find(|slot| state.get(slot, 0).unwrap()[ACTIVE] == 1).unwrap();
    let mut bytes = state.get(&slot, 0).unwrap();
    bytes[ACTIVE] = 3;
    state.set(slot, bytes, 0).unwrap();
    assert!(dial(&net, 0).is_err());
    eventually("the count is too high", || daemon.active(PORT) == 3);
    eventually("the count is corrected", || daemon.active(PORT) == 1);
    let _others = [dial(&net, 0).unwrap(), dial(&net, 1).unwrap()];
    assert!(dial(&net, 0).is_err());
    eventually("three are counted", || daemon.active(PORT) == 3);
    assert_eq!(ss_count(&net.server, PORT), 3);
}

type PolicyStateBytes = [u8; size_of::<PolicyState>()];

/// The lowest byte of the count.
const ACTIVE: usize = std::mem::offset_of!(PolicyState, active);

#[test]
fn a_multipath_connection_counts_by_its_subflow() {
    use rustix::net::{AddressFamily, Protocol, SocketType, accept, bind, connect, listen, socket};
    let net = Net::new();
    let daemon = Daemon::start(&net, &setup(&policy("connections = 2")));
    let mptcp = |namespace: &Namespace| {
        let protocol = Protocol::from_raw(262.try_into().unwrap());
        namespace
            .enter(|| socket(AddressFamily::INET, SocketType::STREAM, Some(protocol)))
            .unwrap()
            .expect("the kernel must have MPTCP")
    };
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let listener = mptcp(&net.server);
    bind(&listener, &address).unwrap();
    listen(&listener, 16).unwrap();
    let clients = [mptcp(&net.client), mptcp(&net.client)];
    for client in &clients {
        connect(client, &address).unwrap();
    }
    let accepted = [accept(&listener).unwrap(), accept(&listener).unwrap()];
    counts_become(&net, &daemon, PORT, 2);
    assert!(connect(mptcp(&net.client), &address).is_err());
    drop((clients, accepted));
    counts_become(&net, &daemon, PORT, 0);
}
