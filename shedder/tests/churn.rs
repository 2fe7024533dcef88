//! Many connections that end in every way: the count is what `ss` counts.
#![cfg(test)]

mod support;

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use support::churn::{Clients, Server, listener};
use support::truth::{counts_agree, counts_become, kernel_counter, ss_kill};
use support::{Daemon, Net, Setup, connect};

const ACCEPTING: u16 = 8080;
const SILENT: u16 = 8081;

/// All of `tcp_fastopen`: as client and server, without a cookie, for every listener.
const FAST_OPEN: &str = "1543";

/// One net and everything that lives on it.
struct Scene {
    daemon: Daemon,
    net: Net,
    /// What stays open, so that the count is of something.
    open: Vec<TcpStream>,
    connected: usize,
}

impl Scene {
    /// Connects so often, and compares when all is quiet. Returns how many were refused.
    fn churn(&mut self, count: usize, fast_open: bool) -> usize {
        let clients = Clients { net: &self.net, port: ACCEPTING, fast_open, per_second: None };
        let churned = clients.run(|made| made < count / 2);
        self.open.extend(churned.open);
        self.connected += churned.connected;
        churned.refused
    }

    fn compare(&self, at_least: usize) {
        let count = counts_agree(&self.net, &self.daemon, "8080");
        assert!(count >= u64::try_from(at_least).unwrap(), "{count} connections instead of {at_least}");
    }

    /// Connections that nobody accepts: a third is closed, a third reset, a third stays until the listener closes.
    fn never_accepted(&mut self, count: usize) {
        let listener = listener(&self.net, SILENT);
        let mut open = Vec::new();
        for index in 0..count {
            let to = (self.net.server_ip(index % 2 == 1), SILENT).into();
            let connection = connect(&self.net.client, to, Duration::from_secs(10)).unwrap();
            self.connected += 1;
            match index % 3 {
                0 => drop(connection),
                1 => set_socket_linger(&connection, Some(Duration::ZERO)).unwrap(),
                _ => open.push(connection),
            }
        }
        // Closed ones wait with those that stay.
        counts_become(&self.net, &self.daemon, "8081", count - (count + 1) / 3);
        drop(listener);
        counts_become(&self.net, &self.daemon, "8081", 0);
    }
}

#[test]
fn forty_thousand_connections_end_in_every_way_and_the_count_is_that_of_ss() {
    let net = Net::new();
    for namespace in [&net.client, &net.server] {
        namespace.set_sysctl("ipv4/tcp_fastopen", FAST_OPEN).unwrap();
    }
    let limits = "queue_wait = \"unlimited\"\nqueue_depth = \"unlimited\"\n";
    let rest = format!("[[port]]\nport = 8080\n{limits}[[port]]\nport = 8081\n{limits}");
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: &rest });
    let server = Server::start(&net, ACCEPTING);
    let mut scene = Scene { daemon, net, open: Vec::new(), connected: 0 };

    assert_eq!(scene.churn(14_000, false), 0);
    scene.compare(14_000 / 251);

    scene.net.server.set_sysctl("ipv4/tcp_syncookies", "2").unwrap();
    assert_eq!(scene.churn(10_000, false), 0);
    // None is sent where an earlier connection of the same ports waits out its time.
    let cookies = kernel_counter(&scene.net.server, "TcpExt", "SyncookiesRecv");
    assert!(cookies >= 5000, "{cookies} cookies");
    scene.net.server.set_sysctl("ipv4/tcp_syncookies", "1").unwrap();
    scene.compare(24_000 / 251);

    // A server that resets at once can be faster than the answer to the SYN.
    let reset = scene.churn(10_000, true);
    assert!(reset < 100, "{reset} connections failed");
    let fast = kernel_counter(&scene.net.server, "TcpExt", "TCPFastOpenPassive");
    assert!(fast >= 5000, "{fast} fast opens");
    scene.compare(34_000 / 251);

    for _ in 0..4 {
        scene.never_accepted(375);
    }

    let over = AtomicBool::new(false);
    let killed = scope(|scope| {
        let (namespace, over) = (&scene.net.server, &over);
        let killer = scope.spawn(move || {
            let mut killed = 0;
            while !over.load(Ordering::Relaxed) {
                killed += ss_kill(namespace, "8080");
                sleep(Duration::from_millis(20));
            }
            killed
        });
        let clients = Clients { net: &scene.net, port: ACCEPTING, fast_open: false, per_second: None };
        let churned = clients.run(|made| made < 4_500 / 2);
        over.store(true, Ordering::Relaxed);
        scene.connected += churned.connected;
        scene.open.extend(churned.open);
        killer.join().unwrap()
    });
    assert!(killed >= 100, "{killed} connections were killed");
    scene.compare(0);

    // The rest is killed at once, and then the server goes too.
    ss_kill(&scene.net.server, "8080");
    scene.compare(0);
    assert!(scene.connected >= 39_900, "{} connections", scene.connected);
    assert_eq!(scene.churn(500, false), 0);
    scene.compare(1);
    drop(server);
    counts_become(&scene.net, &scene.daemon, "8080", 0);
    let status = scene.daemon.status();
    assert_eq!(status["untracked_connections"], 0);
}
