//! Tables that are replaced as a whole: there is room for the new one whatever the old one took, and where it cannot be
//! written the old one stays in force.

#![cfg(test)]

#[path = "../../shedder-common/src/packet/frames.rs"]
#[expect(dead_code, reason = "the tests of packets need more of it")]
mod packet_frames;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use aya::maps::MapData;
use ipnet::IpNet;
use packet_frames::{Frame, address};
use rustix::process::Signal;
use shedder::config::model::{Action, Config, Destinations, PortPolicy, RateLimit};
use shedder::datapath::{Datapath, LoadOptions, Program, Rules, SourceEntry, TestBench};
use shedder::kernel::offsets::{KernelTypes, VMLINUX_BTF, read_types};
use shedder::net::namespace;
use shedder::quota::{self, QuotaTable};
use shedder_common::abi::map;
use shedder_common::address::Address;
use shedder_common::control::Mode;
use shedder_common::limits::SourceRule;
use support::{Daemon, Net, PATIENCE, Setup, bpf, connect, eventually};
use xtask::testbed::PinDirectory;

/// Where the configuration does not say.
const LEASE: Duration = Duration::from_secs(3);

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const ETHERNET_LEN: u32 = 14;
const RULES: Rules = Rules { mode: Mode::Enforce, lease_expires_ns: u64::MAX, exempt_rate: None };

fn options() -> LoadOptions {
    let KernelTypes { offsets, cast, .. } = read_types(Path::new(VMLINUX_BTF)).unwrap();
    LoadOptions { namespace_inode: namespace::inode().unwrap(), offsets, cast, bpf_log: None }
}

fn bench(pins: &PinDirectory) -> TestBench {
    let mut bench = TestBench::load(pins.path(), options(), ETHERNET_LEN).unwrap();
    bench.set_local_addresses(&[Address::from_v4([198, 51, 100, 7])]).unwrap();
    bench
}

fn closed(port: u16) -> PortPolicy {
    PortPolicy { rate: RateLimit::PerSecond(0.0), action: Action::Drop, ..PortPolicy::of_port(port) }
}

fn table(ports: Vec<PortPolicy>) -> QuotaTable {
    let mut config = Config::observe_default();
    config.ports = ports;
    quota::table(&config, &[], 0)
}

/// What becomes of a SYN like this, each time another one.
fn action(bench: &mut TestBench, sequence: u32, frame: Frame) -> u32 {
    bench.run(Program::ShedXdp, &Frame { sequence, ..frame }.bytes(), 1).unwrap().action
}

#[test]
fn every_program_is_loaded() {
    let pins = PinDirectory::new("test");
    let mut datapath = Datapath::start(pins.path(), options()).unwrap();
    assert_eq!(datapath.uncounted(), None);
    datapath.write(&table(vec![closed(80)]), &RULES).unwrap();
    datapath.recount().unwrap();
    datapath.remove().unwrap();
    assert!(!pins.path().exists());
}

#[test]
fn other_policies_find_room_beside_those_that_go() {
    let pins = PinDirectory::new("test");
    let mut bench = bench(&pins);
    let ports = |from: u16, count: u16| (from..from + count).map(closed).collect::<Vec<_>>();
    let mut before: Option<(u16, u16)> = None;
    let tables = [(1000, 400), (2000, 400), (3000, 400), (10_000, 600), (20_000, 1023), (20_500, 1023)];
    for (number, (from, count)) in (1..).zip(tables) {
        bench.write(&table(ports(from, count)), &RULES).unwrap();
        let mut action_at =
            |port| action(&mut bench, number, Frame { destination_port: port, ..Frame::default() });
        for port in [from, from + count / 2, from + count - 1] {
            assert_eq!(action_at(port), XDP_DROP, "{port}");
        }
        if let Some((first, last)) = before {
            for port in [first, last].into_iter().filter(|port| !(from..from + count).contains(port)) {
                assert_eq!(action_at(port), XDP_PASS, "{port}");
            }
        }
        before = Some((from, from + count - 1));
        let counters = bench.read().unwrap();
        assert_eq!(counters.policies.len(), usize::from(count));
        let refused: u64 = counters.policies.values().flat_map(|policy| policy.refused).sum();
        assert_eq!(refused, if from == 20_500 { 2 + 3 } else { 3 }, "counters begin at 0, or go on");
    }
    let error = bench.write(&table(ports(1000, 1024)), &RULES).unwrap_err().to_string();
    assert!(error.contains("1024 port policies are more than the 1023"), "{error}");
    assert_eq!(bench.read().unwrap().policies.len(), 1023, "the table before stays");
}

/// So many that two tables of them do not fit into one map.
fn cidrs(first: u8) -> impl Iterator<Item = IpNet> {
    (0..9000_u32).map(move |index| format!("{first}.{}.{}.0/24", index >> 8, index & 255).parse().unwrap())
}

#[test]
fn other_sources_find_room_and_nobody_stays_exempt() {
    let pins = PinDirectory::new("test");
    let mut bench = bench(&pins);
    bench.write(&table(vec![closed(80)]), &RULES).unwrap();
    let exempt = SourceRule { class: None, exempt: true };
    let batch = SourceRule { class: Some(shedder_common::class::Class::Batch), exempt: false };
    for (number, (first, rule)) in (1..).zip([(10, exempt), (11, exempt), (11, batch), (12, exempt)]) {
        let entries: Vec<_> = cidrs(first).map(|cidr| SourceEntry { cidr, rule }).collect();
        bench.set_sources(&entries).unwrap();
        // The control word says that there are sources.
        bench.renew(&RULES).unwrap();
        for network in [10, 11, 12] {
            let frame = Frame { source: address([network, 7, 7, 7]), ..Frame::default() };
            let expected = if network == first && rule.exempt { XDP_PASS } else { XDP_DROP };
            assert_eq!(action(&mut bench, number, frame), expected, "{network} after {first}");
        }
    }
}

#[test]
fn other_destinations_find_room_beside_those_that_go() {
    let pins = PinDirectory::new("test");
    let mut bench = bench(&pins);
    for (number, first) in (1..).zip([10, 11, 12]) {
        let policy = PortPolicy { to: Destinations::Listed(cidrs(first).collect()), ..closed(80) };
        bench.write(&table(vec![policy]), &RULES).unwrap();
        for network in [10, 11, 12] {
            let frame = Frame { destination: address([network, 7, 7, 7]), ..Frame::default() };
            let expected = if network == first { XDP_DROP } else { XDP_PASS };
            assert_eq!(action(&mut bench, number, frame), expected, "{network} after {first}");
        }
    }
}

#[test]
fn a_slot_that_another_policy_takes_over_counts_no_connection_of_the_one_before() {
    let net = Net::new();
    let pins = PinDirectory::new("test");
    let server_ip = net.server_ip(false);
    let listen = |port| TcpListener::bind((server_ip, port)).unwrap();
    let run = || {
        let _listeners = [10_000, 20_000].map(listen);
        let mut datapath = Datapath::start(pins.path(), options()).unwrap();
        let own = [Address::from_v4(net.link.b.ipv4.octets())];
        assert!(datapath.set_local_addresses(&own).unwrap().is_empty());
        let mut serve = |from: u16| {
            datapath.write(&table((from..from + 1023).map(PortPolicy::of_port).collect()), &RULES).unwrap();
            datapath.recount().unwrap();
            let connection = connect(&net.client, SocketAddr::new(server_ip, from), PATIENCE).unwrap();
            let counted =
                || datapath.read().unwrap().policies.into_iter().filter(|(_, policy)| policy.counted != 0);
            eventually("the connection is counted at its port", || {
                counted().map(|(range, policy)| (range, policy.counted)).eq([((from, from), 1)])
            });
            connection
        };
        // Nothing tells which slot the second takes; each of them is taken.
        let _connections = [10_000, 20_000].map(&mut serve);
        datapath.remove().unwrap();
    };
    net.server.enter(run).unwrap();
}

#[test]
fn a_table_that_cannot_be_written_leaves_the_one_before_in_force() {
    let net = Net::new();
    let rest = "[[port]]\nport = 8080\nrate = \"0/s\"\n";
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest });
    let server = SocketAddr::new(net.server_ip(false), 8080);
    let _listener = net.server.enter(|| TcpListener::bind(server).unwrap()).unwrap();
    bpf::freeze(&MapData::from_pin(daemon.pins().join(map::LIMITS)).unwrap());
    let config = fs::read_to_string(daemon.config_file()).unwrap();
    fs::write(daemon.config_file(), config.replace("0/s", "500/s")).unwrap();
    daemon.signal(Signal::HUP);
    let trouble = || {
        let warnings = daemon.status()["warnings"].as_array().unwrap().clone();
        warnings.into_iter().find(|warning| warning.as_str().unwrap().contains("quotas cannot be written"))
    };
    eventually("it is said", || trouble().is_some());
    let trouble = trouble().unwrap().to_string();
    assert!(trouble.ends_with("those before stay in force\""), "{trouble}");
    sleep(LEASE + Duration::from_secs(1));
    assert!(connect(&net.client, server, PATIENCE).is_err(), "the table before is in force");
    let said: BTreeSet<_> =
        daemon.log().lines().filter(|line| line.contains("cannot be written")).map(str::to_owned).collect();
    assert_eq!(said.len(), 1, "{said:?}");
}
