//! When the daemon dies, stalls or comes back.

#![cfg(test)]

mod support;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use support::run::shedder_in;
use support::{Counts, Daemon, Net, PATIENCE, Setup, bpf, connect, eventually};

/// Refuses everything at 8080, and at 8081 whatever comes after two connections.
const FULL: &str = "[[port]]\nport = 8080\nrate = \"0/s\"\n[[port]]\nport = 8081\nconnections = 2\n";

/// The default.
const LEASE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(100);

fn enforce(via: &str) -> Setup<'_> {
    Setup { mode: "enforce", via, rest: FULL }
}

/// Listeners at both ports on both families, and the two connections that 8081 admits.
struct Site {
    net: Net,
    addresses: Vec<SocketAddr>,
    _listeners: Vec<TcpListener>,
}

impl Site {
    fn new() -> Self {
        let net = Net::new();
        let addresses: Vec<SocketAddr> = [false, true]
            .into_iter()
            .flat_map(|ipv6| [8080, 8081].map(|port| SocketAddr::new(net.server_ip(ipv6), port)))
            .collect();
        let listeners = addresses
            .iter()
            .map(|address| net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap())
            .collect();
        Self { net, addresses, _listeners: listeners }
    }

    /// Takes both places at 8081.
    fn fill(&self, daemon: &Daemon) -> Vec<TcpStream> {
        let taken = [self.addresses[1], self.addresses[3]].map(|address| self.connect(address).unwrap());
        eventually("8081 is full", || daemon.active("8081") == 2);
        taken.into()
    }

    fn connect(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        connect(&self.net.client, address, PATIENCE)
    }

    fn all_refused(&self) -> bool {
        self.addresses.iter().all(|address| {
            self.connect(*address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        })
    }

    fn assert_all_admitted(&self) -> Vec<TcpStream> {
        self.addresses.iter().map(|address| self.connect(*address).unwrap()).collect()
    }
}

#[test]
fn after_kill_9_everything_is_admitted_within_the_lease_and_a_restart_refuses_again() {
    for via in ["tc", "generic", "native"] {
        let site = Site::new();
        let mut daemon = Daemon::start(&site.net, &enforce(via));
        // With native XDP on a veth no RST arrives, so nothing tells the client there.
        let tells = via != "native";
        let taken = if tells { site.fill(&daemon) } else { Vec::new() };
        if tells {
            assert!(site.all_refused());
        }
        let links: BTreeSet<u32> = bpf::interface_links(daemon.pid()).into_keys().collect();
        let programs = bpf::held(daemon.pid()).programs;
        assert_eq!(links.len(), 1, "{via}");
        daemon.kill();
        sleep(LEASE + TICK);
        let admitted = site.assert_all_admitted();

        // The pinned programs are there, pass, and say why.
        let config = daemon.config_file();
        let status =
            shedder_in(&site.net.server, &["status", "--json", "--config", config.to_str().unwrap()]);
        assert_eq!(status.code, Some(0), "{status:?}");
        let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
        assert_eq!(status["daemon"], false);
        assert_eq!(status["attachments"][0]["interface"], site.net.link.b.interface.as_str());
        assert_eq!(status["lease_remaining_seconds"], 0.0);
        assert_eq!(status["fail_open"]["lease_expired"], admitted.len() as u64);
        let text = shedder_in(&site.net.server, &["status", "--config", config.to_str().unwrap()]).stdout;
        assert!(text.contains("lease: ended; the kernel passes everything"), "{text}");
        assert!(text.contains(&format!("lease_expired {}", admitted.len())), "{text}");

        let daemon = daemon.restart(&site.net, &enforce(via));
        assert!(daemon.log().contains("adopted"), "{}", daemon.log());
        assert_eq!(bpf::interface_links(daemon.pid()).into_keys().collect::<BTreeSet<_>>(), links, "{via}");
        let fresh = bpf::held(daemon.pid()).programs;
        assert!(fresh.is_disjoint(&programs), "the programs are this daemon's: {fresh:?} {programs:?}");
        let interface = &site.net.link.b.interface;
        if via == "tc" {
            assert_eq!(bpf::tcx(&site.net.server, interface), ["shed_tc"]);
        } else {
            assert!(fresh.contains(&bpf::xdp(&site.net.server, interface).unwrap()));
        }
        let counts = daemon.counts("8080");
        let expected = Counts {
            // Each family was refused once before the kill.
            shed: if tells { 2 } else { 0 },
            resets_sent: if tells { 2 } else { 0 },
            fail_open: 2,
            ..Counts::default()
        };
        assert_eq!(counts, expected, "{via}: the counters go on");
        eventually("the connections of the time between are counted", || {
            daemon.active("8080") == 2 && daemon.active("8081") == taken.len() as u64 + 2
        });
        if tells {
            assert!(site.all_refused());
        }
    }
}

#[test]
fn a_stopped_daemon_opens_after_the_lease_and_enforces_when_it_goes_on() {
    let site = Site::new();
    let daemon = Daemon::start(&site.net, &enforce("auto"));
    let taken = site.fill(&daemon);
    assert!(site.all_refused());
    daemon.signal(Signal::STOP);
    sleep(LEASE + TICK);
    drop(site.assert_all_admitted());
    daemon.signal(Signal::CONT);
    eventually("the daemon says so", || daemon.log().contains("longer than the lease"));
    // It says so before it writes: an attempt in between may still pass.
    eventually("it refuses again", || site.all_refused());
    assert!(daemon.status()["fail_open"]["lease_expired"].as_u64() >= Some(4));
    drop(taken);
}

#[test]
fn observe_counts_and_passes_and_off_passes() {
    let site = Site::new();
    let daemon = Daemon::start(&site.net, &Setup { mode: "observe", via: "auto", rest: FULL });
    drop(site.assert_all_admitted());
    eventually("both attempts at 8080 would have been shed", || daemon.counts("8080").would_shed == 2);
    assert_eq!(daemon.counts("8080").shed, 0);
    assert!(daemon.verb(&["status"]).stdout.starts_with(b"shedder 0.1.0, mode OBSERVE: "));

    let before = daemon.counts("8080");
    daemon.must(&["mode", "off"]);
    drop(site.assert_all_admitted());
    daemon.must(&["mode", "enforce"]);
    assert!(connect(&site.net.client, site.addresses[0], PATIENCE).is_err());
    eventually("only the refusal is counted", || {
        daemon.counts("8080") == Counts { shed: 1, resets_sent: 1, ..before }
    });
    daemon.must(&["mode", "observe"]);
    drop(site.assert_all_admitted());
}

/// Knocks at a closed port all the time; returns how many were refused and how many came through while `work` ran.
fn knock_while(site: &Site, work: impl FnOnce()) -> (u64, u64) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let knocking = scope.spawn(|| {
            let (mut refused, mut admitted) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                match site.connect(site.addresses[0]) {
                    Ok(_) => admitted += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                        refused += 1;
                    }
                }
            }
            (refused, admitted)
        });
        work();
        stop.store(true, Ordering::Relaxed);
        knocking.join().unwrap()
    })
}

#[test]
fn nobody_slips_through_while_a_daemon_takes_over_and_while_quotas_change() {
    for via in ["tc", "generic"] {
        let site = Site::new();
        // A start may take longer than the default lease where many tests run.
        let config = format!(
            "version = 1\nmode = \"enforce\"\n[attach]\ninterfaces = [\"{}\"]\nvia = \"{via}\"\n\
             [daemon]\nsocket = \"{{socket}}\"\nbpffs = \"{{bpffs}}\"\nlease = \"60s\"\n[metrics]\nlisten = \"off\"\n{FULL}",
            site.net.link.b.interface
        );
        let mut daemon = Some(Daemon::launch_with(&site.net.server, &config));
        let running = |daemon: &Option<Daemon>| daemon.as_ref().unwrap().wait_until_ready();
        running(&daemon);
        let (refused, admitted) = knock_while(&site, || {
            for _ in 0..3 {
                let (pins, directory) = daemon.take().unwrap().into_remains();
                daemon = Some(Daemon::relaunch_with(&site.net.server, &config, pins, directory));
                running(&daemon);
            }
            for connections in 3..40 {
                daemon.as_ref().unwrap().must(&[
                    "set",
                    "port",
                    "8081",
                    &format!("connections={connections}"),
                ]);
            }
        });
        assert_eq!(admitted, 0, "{via}: {refused} were refused");
        assert!(refused > 100, "{via}: {refused}");
    }
}
