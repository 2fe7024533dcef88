//! What is seen of a running daemon, whatever is done to it.

#![cfg(test)]

mod support;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use support::{Daemon, Net, PATIENCE, Setup, connect, eventually, now};
use xtask::testbed::http_get;

const PORT: &str = "[[port]]\nport = 8080\nrate = \"0/s\"\n[[port]]\nport = 8081\n";

fn get(net: &Net, path: &str) -> (u16, String) {
    let endpoint = SocketAddr::from((Ipv4Addr::LOCALHOST, 9464));
    net.server.enter(|| http_get(endpoint, path, PATIENCE)).unwrap().unwrap()
}

fn start(net: &Net, mode: &str) -> Daemon {
    Daemon::start(net, &Setup { mode, via: "auto", rest: PORT })
}

/// The value of a series, which must be there exactly once.
fn series(metrics: &str, name: &str) -> f64 {
    let values: Vec<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect();
    let [value] = values[..] else { panic!("{name} is there {} times in\n{metrics}", values.len()) };
    value.parse().unwrap()
}

#[test]
fn the_first_scrape_has_every_series() {
    let net = Net::new();
    let daemon = start(&net, "observe");
    let (status, metrics) = get(&net, "/metrics");
    assert_eq!(status, 200);
    assert!(metrics.ends_with("# EOF\n"));
    for port in ["8080", "8081"] {
        for class in ["control", "core", "interactive", "optional", "batch"] {
            let of = |verdict: &str, reason: &str| {
                series(
                    &metrics,
                    &format!(
                        "shedder_connections_total{{port=\"{port}\",protocol=\"tcp\",class=\"{class}\",\
                         verdict=\"{verdict}\",reason=\"{reason}\"}}"
                    ),
                )
            };
            assert_eq!(of("admitted", ""), 0.0);
            for gate in ["closed", "rate", "connections", "queue_depth", "queue_wait"] {
                assert_eq!((of("shed", gate), of("would_shed", gate)), (0.0, 0.0));
            }
        }
        assert_eq!(series(&metrics, &format!("shedder_active_connections{{port=\"{port}\"}}")), 0.0);
    }
    for reason in ["lease_expired", "missing_state", "contention"] {
        assert_eq!(series(&metrics, &format!("shedder_fail_open_total{{reason=\"{reason}\"}}")), 0.0);
    }
    let attached = format!("shedder_attach_info{{interface=\"{}\",mode=\"tcx\"}}", net.link.b.interface);
    assert_eq!(series(&metrics, &attached), 1.0);
    for (mode, expected) in [("observe", 1.0), ("enforce", 0.0), ("off", 0.0)] {
        assert_eq!(series(&metrics, &format!("shedder_mode{{mode=\"{mode}\"}}")), expected);
    }
    assert_eq!(series(&metrics, "shedder_level{scope=\"host\"}"), 0.0);
    // What is unlimited is spelled so, never as a number that somebody might take for one.
    for magic in ["2147483647", "4294967295", "18446744073709551615"] {
        assert!(!metrics.contains(magic), "{metrics}");
    }
    assert_eq!(get(&net, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(get(&net, "/readyz"), (200, "ok\n".to_owned()));
    let (status, json) = get(&net, "/status");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, &json["ports"]), (200, &daemon.status()["ports"]));
    assert_eq!(get(&net, "/nothing").0, 404);
}

#[test]
fn not_ready_without_an_interface_and_alive_all_the_same() {
    let net = Net::new();
    let daemon = Daemon::launch_with(
        &net.server,
        "version = 1\n[attach]\ninterfaces = [\"late0\"]\n[daemon]\nsocket = \"{socket}\"\nbpffs = \"{bpffs}\"\n",
    );
    daemon.wait_until_ready();
    assert_eq!(get(&net, "/readyz"), (503, "No interface matches attach.interfaces.\n".to_owned()));
    assert_eq!(get(&net, "/healthz").0, 200);
}

#[test]
fn a_scrape_shows_what_has_just_happened() {
    let net = Net::new();
    let daemon = start(&net, "enforce");
    let address = SocketAddr::new(net.server_ip(true), 8080);
    let shed = "shedder_connections_total{port=\"8080\",protocol=\"tcp\",class=\"interactive\",\
                verdict=\"shed\",reason=\"closed\"}";
    for expected in 1..=3 {
        assert!(connect(&net.client, address, PATIENCE).is_err());
        eventually("it is counted", || series(&get(&net, "/metrics").1, shed) == f64::from(expected));
    }
    assert_eq!(
        series(&get(&net, "/metrics").1, "shedder_resets_sent_total{port=\"8080\",class=\"interactive\"}"),
        3.0
    );
    daemon.must(&["mode", "off"]);
    assert_eq!(series(&get(&net, "/metrics").1, "shedder_mode{mode=\"off\"}"), 1.0);
}

/// SYNs of one flood thread.
const FLOOD: u32 = 500_000;

#[test]
fn a_million_refusals_write_no_line_of_log_and_are_counted_exactly() {
    let net = Net::new();
    let daemon = start(&net, "enforce");
    let lines = daemon.log().lines().count();
    let (from, to) = (net.link.a.ipv4, net.link.b.ipv4);
    let started = now();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let net = &net;
            scope.spawn(move || net.client.enter(|| flood(from, to, thread)).unwrap());
        }
    });
    println!("{} SYNs in {:?}", 2 * FLOOD, started.elapsed());
    let expected = u64::from(2 * FLOOD) - dropped(&net);
    eventually("every SYN is counted", || {
        let counts = daemon.counts("8080");
        counts.shed + counts.retransmits_shed == expected
    });
    let counts = daemon.counts("8080");
    assert_eq!((counts.admitted, counts.fail_open, counts.exempt), (0, 0, 0));
    assert!(counts.shed > expected / 10 * 9, "different SYNs are told apart: {counts:?}");
    let log = daemon.log();
    assert_eq!(log.lines().count(), lines, "{log}");
}

/// Sends SYNs that differ in port and sequence number as fast as it can.
fn flood(from: Ipv4Addr, to: Ipv4Addr, thread: u8) {
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).unwrap();
    let target = SocketAddr::new(IpAddr::V4(to), 0);
    let mut packet = [0_u8; 40];
    // Version and header length; time to live; TCP. The kernel fills in length and checksum.
    (packet[0], packet[8], packet[9]) = (0x45, 64, 6);
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet[22..24].copy_from_slice(&8080_u16.to_be_bytes());
    // Header length and SYN.
    (packet[32], packet[33]) = (0x50, 0x02);
    for number in 0..FLOOD {
        let port = 1024 + u16::try_from(number % 60_000).unwrap();
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet[24..28].copy_from_slice(&(number * 2 + u32::from(thread)).to_be_bytes());
        while sendto(&raw, &packet, SendFlags::empty(), &target).is_err() {
            std::thread::yield_now();
        }
    }
}

/// Packets that the client's interface could not hand over.
fn dropped(net: &Net) -> u64 {
    let table = net.client.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap().unwrap();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(&net.link.a.interface)).unwrap();
    // After the colon: eight columns of reception, then bytes, packets, errors and drops of transmission.
    line.trim_start_matches(':').split_whitespace().nth(11).unwrap().parse().unwrap()
}

#[test]
fn slow_clients_do_not_hold_up_the_loop() {
    let net = Net::new();
    let daemon = start(&net, "enforce");
    let slow: Vec<TcpStream> = net
        .server
        .enter(|| {
            (0..200)
                .map(|_| {
                    let mut stream = TcpStream::connect("127.0.0.1:9464").unwrap();
                    // Half a request, and never more.
                    stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
                    stream
                })
                .collect()
        })
        .unwrap();
    let ticks = || daemon.status()["ticks"].clone();
    let before = ticks();
    eventually("the loop turns", || {
        ticks()["total"].as_u64() > before["total"].as_u64().map(|total| total + 20)
    });
    // Of those ticks none waited for a client, which would take seconds.
    let longest = |ticks: &serde_json::Value| ticks["buckets"].as_array().unwrap().last().unwrap().as_u64();
    assert_eq!(longest(&ticks()), longest(&before));
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let _listener = net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    assert!(connect(&net.client, address, Duration::from_secs(5)).is_err());
    drop(slow);
    assert_eq!(get(&net, "/healthz").0, 200);
}
