//! The same packets through the host's functions and through the loaded programs: same verdicts, same bytes, same
//! counts. Needs root, loads programs into the kernel, attaches none.
#![cfg(test)]

#[path = "../../shedder-common/src/packet/frames.rs"]
mod frames;
#[path = "../../shedder-common/src/judge/memory.rs"]
#[expect(dead_code, reason = "the tests of decisions need more of it")]
mod memory;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use frames::{Extension, Frame, address, assert_reset};
use memory::Memory;
use shedder::config::model::{Action, ClassRules, Config, Destinations, PortPolicy, RateLimit};
use shedder::datapath::{LoadOptions, Program, Rules, SourceEntry, TestBench};
use shedder::kernel::offsets::{Cast, KernelTypes, VMLINUX_BTF, read_types};
use shedder::net::namespace;
use shedder::quota::{self, QuotaTable};
use shedder_common::abi::SocketOffsets;
use shedder_common::address::{Address, MAPPED_PREFIX_BITS};
use shedder_common::class::Class;
use shedder_common::control::Mode;
use shedder_common::counters::{GlobalCounters, PolicyCounters};
use shedder_common::gate::Gate;
use shedder_common::judge::{Judgement, NO_WAIT, Outcome, judge};
use shedder_common::limits::{Scope, SourceRule};
use shedder_common::packet::parse::{Attempt, ETHERNET_LEN, Parsed, parse};
use shedder_common::packet::reset;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const TC_NEXT: u32 = u32::MAX;
const TC_SHOT: u32 = 2;
const TC_REDIRECT: u32 = 7;

/// The kernel runs no program on less than an Ethernet header and, on TC, one byte.
const SHORTEST_RUN: usize = 15;

/// Loading stays quick and far from the verifier's limit of a million.
const MOST_VERIFIED_INSTRUCTIONS: u32 = 60_000;
/// Before Linux 6.2 the verifier recognises less of what it has walked already.
const MOST_VERIFIED_WITHOUT_CASTS: u32 = 200_000;

const CLOSED_DROP: u16 = 1001;
const CLOSED_RESET: u16 = 1002;
const OPEN: u16 = 1003;
const SLOW: u16 = 1004;
const FULL: u16 = 1005;
const ANYWHERE: u16 = 1006;
const LISTED: u16 = 1007;
const NO_POLICY: u16 = 1008;
const PORTS: [u16; 8] = [CLOSED_DROP, CLOSED_RESET, OPEN, SLOW, FULL, ANYWHERE, LISTED, NO_POLICY];
const FULL_CONNECTIONS: u32 = 5;

const HOST_V4: [u8; 4] = [198, 51, 100, 7];
const LISTED_V4: [u8; 4] = [203, 0, 113, 9];
const ELSEWHERE_V4: [u8; 4] = [192, 0, 2, 99];
const CORE_V4: [u8; 4] = [10, 1, 2, 3];
const EXEMPT_V4: [u8; 4] = [10, 2, 2, 3];
const STRANGER_V4: [u8; 4] = [192, 0, 2, 1];

fn v6(network: u16, host: u8) -> [u8; 16] {
    let mut bytes = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host];
    bytes[4..6].copy_from_slice(&network.to_be_bytes());
    bytes
}

fn host_v6() -> [u8; 16] {
    v6(0, 7)
}

fn load(link_header_len: u32) -> (TestBench, PathBuf) {
    let loaded = load_with(link_header_len, |cast| cast);
    let cast = read_types(Path::new(VMLINUX_BTF)).unwrap().cast;
    assert_eq!(loaded.0.loaded().cast.is_some(), cast.is_some(), "what the kernel has is used");
    loaded
}

fn load_with(link_header_len: u32, cast_of: fn(Option<Cast>) -> Option<Cast>) -> (TestBench, PathBuf) {
    load_given(link_header_len, |options| options.cast = cast_of(options.cast))
}

fn load_given(link_header_len: u32, change: impl FnOnce(&mut LoadOptions)) -> (TestBench, PathBuf) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let directory = PathBuf::from(format!("/sys/fs/bpf/shedder-test-{}-{number}", std::process::id()));
    let KernelTypes { offsets, cast, .. } = read_types(Path::new(VMLINUX_BTF)).unwrap();
    let mut options =
        LoadOptions { namespace_inode: namespace::inode().unwrap(), offsets, cast, bpf_log: None };
    change(&mut options);
    (TestBench::load(&directory, options, link_header_len).unwrap(), directory)
}

/// Unloads, and checks that nothing stays.
fn unload((bench, directory): (TestBench, PathBuf)) {
    drop(bench);
    if directory.exists() {
        std::fs::remove_dir(&directory).unwrap();
    }
}

fn plain(port: u16) -> PortPolicy {
    PortPolicy {
        rate: RateLimit::Unlimited,
        queue_depth: None,
        queue_wait: None,
        action: Action::Drop,
        ..PortPolicy::of_port(port)
    }
}

/// So slow that no test lasts long enough to see it move.
const SLOW_RATE: RateLimit = RateLimit::PerSecond(1e-4);

fn config() -> Config {
    let mut config = Config::observe_default();
    for class in &mut config.classes {
        class.floor = 0.0;
    }
    config.classes[Class::Core.index()].floor = 0.5;
    config.classes[Class::Batch.index()] =
        ClassRules { shares: [0.25; 4], floor: 0.0, action: Some(Action::Drop) };
    let closed = RateLimit::PerSecond(0.0);
    config.ports = vec![
        PortPolicy { rate: closed, ..plain(CLOSED_DROP) },
        PortPolicy { rate: closed, action: Action::Reset, ..plain(CLOSED_RESET) },
        plain(OPEN),
        PortPolicy { rate: SLOW_RATE, burst: Some(40), action: Action::Reset, ..plain(SLOW) },
        PortPolicy { connections: Some(FULL_CONNECTIONS), action: Action::Reset, ..plain(FULL) },
        PortPolicy { rate: closed, to: Destinations::Any, ..plain(ANYWHERE) },
        PortPolicy {
            rate: closed,
            action: Action::Reset,
            to: Destinations::Listed(vec![
                "203.0.113.0/24".parse().unwrap(),
                "2001:db8:cb::/48".parse().unwrap(),
            ]),
            ..plain(LISTED)
        },
    ];
    config
}

fn table(config: &Config) -> QuotaTable {
    quota::table(config, &[], 0)
}

/// The host's side: its own memory and counters.
struct Host {
    memory: Memory,
    link_header_len: u32,
    policies: BTreeMap<u32, PolicyCounters>,
    global: GlobalCounters,
}

/// What becomes of a packet.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Dropped,
    /// Who asked, and the frame that answers.
    Answered(Box<Attempt>, Vec<u8>),
}

impl Host {
    fn new(mode: Mode, lease_expires_ns: u64, table: &QuotaTable, link_header_len: u32) -> Self {
        let mut memory = Memory::new(mode);
        memory.control.lease_expires_ns = lease_expires_ns;
        memory.key = TestBench::fingerprint_key();
        memory.correction = i64::from(FULL_CONNECTIONS);
        memory.local = local_addresses();
        for (policy, quota) in (1..).zip(&table.policies) {
            memory.ports.insert(quota.first, policy);
            memory.limits.insert(policy, quota.limits);
            if quota.limits.scope == Scope::Listed as u32 {
                memory.listed.push((policy, Address::from_v4([203, 0, 113, 0]), MAPPED_PREFIX_BITS + 24));
                memory.listed.push((policy, Address::from_v6(v6(0xcb, 0)), 48));
            }
        }
        for (address, bits, rule) in [
            (Address::from_v4([10, 1, 0, 0]), MAPPED_PREFIX_BITS + 16, CORE),
            (Address::from_v4([10, 2, 0, 0]), MAPPED_PREFIX_BITS + 16, EXEMPT),
            (Address::from_v6(v6(0xa, 0)), 48, BATCH),
        ] {
            memory.add_source(address, bits, rule);
        }
        Self { memory, link_header_len, policies: BTreeMap::new(), global: GlobalCounters::default() }
    }

    fn fate(&mut self, bytes: &[u8], can_reset: impl Fn(&Attempt) -> bool) -> Fate {
        let attempt = match parse(bytes, self.link_header_len) {
            Parsed::Other => return Fate::Passed,
            Parsed::Unparsed(reason) => {
                self.global.unparsed[reason.index()] += 1;
                return Fate::Passed;
            }
            Parsed::Attempt(attempt) => attempt,
        };
        let Some(judgement) = judge(&self.memory, &attempt) else { return Fate::Passed };
        self.count(&judgement);
        let shed = matches!(judgement.outcome(), Outcome::Shed(_) | Outcome::ShedAgain(_));
        if !shed || !judgement.enforce() {
            return Fate::Passed;
        }
        // A test run is one on the loopback device.
        let group_mac = self.link_header_len != 0 && bytes[6] & 1 != 0;
        if !judgement.reset() || !reset::may_answer(&attempt, group_mac, || true) {
            return Fate::Dropped;
        }
        if !can_reset(&attempt) {
            self.global.reset_failed += 1;
            return Fate::Dropped;
        }
        self.policies.get_mut(&judgement.policy).unwrap().classes[judgement.class.index()].reset_sent += 1;
        let mut reply = vec![0; 256];
        let len = reset::build_frame(bytes, &attempt, self.link_header_len, &mut reply).unwrap();
        reply.truncate(len);
        Fate::Answered(Box::new(attempt), reply)
    }

    fn count(&mut self, judgement: &Judgement) {
        assert_eq!(judgement.wait_us, NO_WAIT);
        let counters = self.policies.entry(judgement.policy).or_default();
        let class = &mut counters.classes[judgement.class.index()];
        match judgement.outcome() {
            Outcome::Admit => class.admitted += 1,
            Outcome::Repeat => class.retransmits_admitted += 1,
            Outcome::ShedAgain(_) => class.retransmits_shed += 1,
            Outcome::Shed(gate) if judgement.enforce() => class.shed[gate.index()] += 1,
            Outcome::Shed(gate) => class.would_shed[gate.index()] += 1,
            Outcome::Exempt(reason) => {
                class.exempt += 1;
                self.global.exempt[reason.index()] += 1;
            }
            Outcome::FailOpen(reason) => {
                class.fail_open += 1;
                self.global.fail_open[reason.index()] += 1;
            }
        }
    }
}

const CORE: SourceRule = SourceRule { class: Some(Class::Core), exempt: false };
const BATCH: SourceRule = SourceRule { class: Some(Class::Batch), exempt: false };
const EXEMPT: SourceRule = SourceRule { class: None, exempt: true };

fn local_addresses() -> Vec<Address> {
    vec![Address::from_v4(HOST_V4), Address::from_v6(host_v6())]
}

fn prepare(bench: &mut TestBench, mode: Mode, lease_expires_ns: u64, table: &QuotaTable) {
    bench.set_local_addresses(&local_addresses()).unwrap();
    let source = |cidr: &str, rule| SourceEntry { cidr: cidr.parse().unwrap(), rule };
    let sources =
        [source("10.1.0.0/16", CORE), source("10.2.0.0/16", EXEMPT), source("2001:db8:a::/48", BATCH)];
    bench.set_sources(&sources).unwrap();
    bench.write(table, &Rules { mode, lease_expires_ns, exempt_rate: None }).unwrap();
    bench.set_correction(FULL, FULL, i64::from(FULL_CONNECTIONS)).unwrap();
}

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn frame(&mut self, ethernet: bool) -> Frame {
        let ipv6 = self.chance(40);
        let (source, destination) = if ipv6 {
            (v6(self.one_of(&[0xa, 0xb]), 1), self.one_of(&[host_v6(), host_v6(), v6(0xcb, 9), v6(0xcc, 9)]))
        } else {
            (
                address(self.one_of(&[CORE_V4, EXEMPT_V4, STRANGER_V4, STRANGER_V4, STRANGER_V4])),
                address(self.one_of(&[HOST_V4, HOST_V4, LISTED_V4, ELSEWHERE_V4])),
            )
        };
        let mut frame = Frame {
            ethernet,
            ipv6,
            source,
            destination,
            destination_port: self.one_of(&PORTS),
            source_port: u16::try_from(self.below(60_000)).unwrap(),
            sequence: if self.chance(5) { u32::MAX } else { u32::try_from(self.next() >> 32).unwrap() },
            ..Frame::default()
        };
        if self.chance(50) {
            frame.tcp_options = self.below(11) * 4;
        }
        if self.chance(20) {
            frame.payload = self.one_of(&[1, 5, 100, 1400]);
        }
        if self.chance(30) {
            frame.padded_to = self.one_of(&[60, 64, 100]);
        }
        if ethernet && self.chance(25) {
            frame.tags = (0..=self.below(3)).map(|_| self.one_of(&[0x8100, 0x88a8])).collect();
        }
        if ethernet && self.chance(3) {
            frame.to_mac = [0xff; 6];
        }
        if self.chance(3) {
            frame.source =
                if ipv6 { self.one_of(&[[0; 16], [0xff; 16]]) } else { [self.one_of(&[0, 224, 255]); 16] };
        }
        if ipv6 && self.chance(30) {
            frame.extensions = (0..=self.below(8))
                .map(|_| match self.below(6) {
                    5 => Extension::Routing(u8::try_from(self.below(2)).unwrap()),
                    0 => Extension::Fragment(if self.chance(80) { 0 } else { 185 }, self.chance(50)),
                    _ => Extension::Options(self.one_of(&[0, 43, 60]), u8::try_from(self.below(3)).unwrap()),
                })
                .collect();
        }
        if !ipv6 && self.chance(20) {
            frame.ip_options = self.below(11) * 4;
        }
        if !ipv6 && self.chance(10) {
            frame.ipv4_fragment = self.one_of(&[0, 0x2000, 0x2001, 0x00b9]);
        }
        if self.chance(15) {
            frame.flags = u8::try_from(self.below(256)).unwrap();
        }
        if self.chance(5) {
            frame.protocol = self.one_of(&[1, 17, 58, 132]);
        }
        frame
    }

    /// A packet, often broken, sometimes one that was there before.
    fn packet(&mut self, ethernet: bool, before: &[Vec<u8>]) -> Vec<u8> {
        if !before.is_empty() && self.chance(15) {
            return before[self.below(before.len())].clone();
        }
        let mut bytes = self.frame(ethernet).bytes();
        match self.below(10) {
            0 => bytes.truncate(self.below(bytes.len())),
            1 => {
                for _ in 0..=self.below(4) {
                    let index = self.below(bytes.len().min(90));
                    bytes[index] = u8::try_from(self.below(256)).unwrap();
                }
            }
            2 if self.chance(30) => {
                bytes = (0..self.below(120)).map(|_| u8::try_from(self.below(256)).unwrap()).collect();
            }
            _ => {}
        }
        if bytes.len() < SHORTEST_RUN {
            bytes.resize(SHORTEST_RUN, 0);
        }
        bytes
    }
}

/// TC removes options by a helper that asks what the link layer says the packet is; where that is a VLAN tag or
/// nothing the helper refuses, and such a SYN is dropped.
fn tc_can_reset(bytes: &[u8], attempt: &Attempt) -> bool {
    let ip_len = if attempt.ipv6 { 40 } else { 20 };
    let has_options = attempt.transport_offset != attempt.network_offset + ip_len;
    let ethertype = if attempt.ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    !has_options || bytes[12..14] == ethertype
}

/// The kernel makes no packet for TC whose Ethernet header promises an IP header that is not there.
fn tc_runs_on(bytes: &[u8]) -> bool {
    match bytes[12..14] {
        [0x08, 0x00] => bytes.len() >= 14 + 20,
        [0x86, 0xdd] => bytes.len() >= 14 + 40,
        _ => true,
    }
}

/// Asserts that two frames are the same but for how a checksum writes zero.
fn assert_same_reset(attempt: &Attempt, expected: &[u8], reply: &[u8]) {
    let field = attempt.network_offset as usize + if attempt.ipv6 { 40 } else { 20 } + 16;
    let is_zero = |bytes: &[u8]| [[0, 0], [0xff, 0xff]].contains(&[bytes[field], bytes[field + 1]]);
    let (mut expected, mut reply) = (expected.to_vec(), reply.to_vec());
    if is_zero(&expected) && is_zero(&reply) {
        expected[field..field + 2].fill(0);
        reply[field..field + 2].fill(0);
    }
    assert_eq!(expected, reply);
}

fn compare(
    program: Program,
    link_header_len: u32,
    mode: Mode,
    lease_expires_ns: u64,
    packets: usize,
    seed: u64,
) {
    let mut loaded = load(link_header_len);
    let bench = &mut loaded.0;
    let table = table(&config());
    prepare(bench, mode, lease_expires_ns, &table);
    let mut host = Host::new(mode, lease_expires_ns, &table, link_header_len);
    let mut random = Random(seed);
    let mut before = Vec::new();
    let mut answered = 0;
    for number in 0..packets {
        let packet = random.packet(link_header_len != 0, &before);
        let is_tc = program == Program::ShedTc;
        if is_tc && !tc_runs_on(&packet) {
            continue;
        }
        let run = bench.run(program, &packet, 1).unwrap();
        let fate = host.fate(&packet, |attempt| !is_tc || tc_can_reset(&packet, attempt));
        let [pass, drop, answer] =
            if is_tc { [TC_NEXT, TC_SHOT, TC_REDIRECT] } else { [XDP_PASS, XDP_DROP, XDP_TX] };
        let context = format!("packet {number} of seed {seed:#x}: {fate:?}\n{packet:02x?}\n{run:02x?}");
        match fate {
            Fate::Passed => {
                assert_eq!(run.action, pass, "{context}");
                assert_eq!(run.packet, packet, "what passes is not changed; {context}");
            }
            Fate::Dropped => assert_eq!(run.action, drop, "{context}"),
            Fate::Answered(attempt, mut reply) => {
                assert_eq!(run.action, answer, "{context}");
                if is_tc {
                    let ip_len = if attempt.ipv6 { 40 } else { 20 };
                    reply.truncate(attempt.network_offset as usize + ip_len + 20);
                }
                assert_same_reset(&attempt, &reply, &run.packet);
                answered += 1;
            }
        }
        before.push(packet);
    }
    assert!(mode != Mode::Enforce || lease_expires_ns == 1 || answered > packets / 50, "{answered} resets");
    let counters = bench.read().unwrap();
    assert_eq!(counters.global, host.global);
    for (policy, quota) in (1..).zip(&table.policies) {
        let reading = counters.policies[&(quota.first, quota.last)].counters;
        let expected = host.policies.get(&policy).copied().unwrap_or_default();
        assert_eq!(reading, expected, "port {}", quota.first);
    }
    unload(loaded);
}

#[test]
fn xdp_decides_as_the_host_does() {
    compare(Program::ShedXdp, ETHERNET_LEN, Mode::Enforce, u64::MAX, 6000, 0x9e37_79b9_7f4a_7c15);
    compare(Program::ShedXdp, ETHERNET_LEN, Mode::Observe, u64::MAX, 3000, 0xd1b5_4a32_d192_ed03);
    compare(Program::ShedXdp, ETHERNET_LEN, Mode::Enforce, 1, 1000, 0x8cb9_2ba7_2f3d_8dd7);
    compare(Program::ShedXdp, ETHERNET_LEN, Mode::Off, u64::MAX, 1000, 0xaa26_5a1d_c1f0_1f2d);
}

#[test]
fn tc_decides_as_the_host_does() {
    compare(Program::ShedTc, ETHERNET_LEN, Mode::Enforce, u64::MAX, 6000, 0x2545_f491_4f6c_dd1d);
    compare(Program::ShedTc, ETHERNET_LEN, Mode::Observe, u64::MAX, 3000, 0x5851_f42d_4c95_7f2d);
    compare(Program::ShedTc, ETHERNET_LEN, Mode::Enforce, 1, 1000, 0x1405_7b7e_f767_814f);
    compare(Program::ShedTc, ETHERNET_LEN, Mode::Off, u64::MAX, 1000, 0x94d0_49bb_1331_11eb);
}

#[test]
fn devices_without_link_layer_header_are_served_alike() {
    for program in [Program::ShedXdp, Program::ShedTc] {
        compare(program, 0, Mode::Enforce, u64::MAX, 3000, 0xbf58_476d_1ce4_e5b9);
        compare(program, 0, Mode::Observe, u64::MAX, 1000, 0x6a09_e667_f3bc_c909);
    }
}

#[test]
fn known_syns_get_one_valid_reset() {
    let mut loaded = load(ETHERNET_LEN);
    let bench = &mut loaded.0;
    prepare(bench, Mode::Enforce, u64::MAX, &table(&config()));
    let v4 = Frame { destination: address(HOST_V4), destination_port: CLOSED_RESET, ..Frame::default() };
    let v6 = Frame { destination: host_v6(), destination_port: CLOSED_RESET, ..Frame::v6() };
    let mut sent = 0;
    for plain in [v4, v6] {
        let with_options = if plain.ipv6 {
            Frame { extensions: vec![Extension::Options(0, 0), Extension::Options(60, 1)], ..plain.clone() }
        } else {
            Frame { ip_options: 12, ..plain.clone() }
        };
        for frame in [
            plain.clone(),
            Frame { padded_to: 60, ..plain.clone() },
            Frame { tcp_options: 20, ..plain.clone() },
            Frame { payload: 5, ..plain.clone() },
            Frame { payload: 1400, tcp_options: 20, ..plain.clone() },
            Frame { sequence: u32::MAX, ..plain.clone() },
            Frame { flags: 0xc2, ..plain.clone() },
            Frame { tags: vec![0x8100], ..plain.clone() },
            Frame { tags: vec![0x88a8, 0x8100], padded_to: 64, ..plain.clone() },
            with_options,
        ] {
            for (program, answered) in [(Program::ShedXdp, XDP_TX), (Program::ShedTc, TC_REDIRECT)] {
                let bytes = frame.bytes();
                let run = bench.run(program, &bytes, 1).unwrap();
                assert_eq!(run.action, answered, "{program:?} {frame:?}");
                let end = assert_reset(&frame, &run.packet);
                assert!(run.packet[end..].iter().all(|byte| *byte == 0), "padding holds something");
                // XDP keeps a frame that is long enough for the wire so.
                let shortest = if program == Program::ShedXdp && bytes.len() >= 60 { 60 } else { 0 };
                assert_eq!(run.packet.len(), end.max(shortest));
                sent += 1;
            }
        }
    }
    let class = bench.read().unwrap().policies[&(CLOSED_RESET, CLOSED_RESET)].counters.classes
        [Class::Interactive.index()];
    assert_eq!(class.reset_sent, sent);
    unload(loaded);
}

#[test]
fn what_cannot_be_a_source_is_dropped_and_not_answered() {
    let mut loaded = load(ETHERNET_LEN);
    let bench = &mut loaded.0;
    prepare(bench, Mode::Enforce, u64::MAX, &table(&config()));
    let v4 = |source| Frame {
        source: address(source),
        destination: address(HOST_V4),
        destination_port: CLOSED_RESET,
        ..Frame::default()
    };
    let v6 = |source| Frame { source, destination: host_v6(), destination_port: CLOSED_RESET, ..Frame::v6() };
    let mut multicast = [0; 16];
    (multicast[0], multicast[1], multicast[15]) = (0xff, 0x02, 1);
    let mut from_group = v4(STRANGER_V4).bytes();
    from_group[6..12].fill(0xff);
    let frames = [[0, 0, 0, 0], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]].map(|source| v4(source).bytes());
    let frames = frames.into_iter().chain([v6([0; 16]).bytes(), v6(multicast).bytes(), from_group]);
    let mut shed = 0;
    for bytes in frames {
        for (program, dropped) in [(Program::ShedXdp, XDP_DROP), (Program::ShedTc, TC_SHOT)] {
            let run = bench.run(program, &bytes, 1).unwrap();
            assert_eq!(run.action, dropped, "{program:?} {bytes:02x?}");
            shed += 1;
        }
    }
    let counters = bench.read().unwrap();
    let class = counters.policies[&(CLOSED_RESET, CLOSED_RESET)].counters.classes[Class::Interactive.index()];
    assert_eq!(class.shed[Gate::Closed.index()] + class.retransmits_shed, shed);
    assert_eq!((class.reset_sent, counters.global.reset_failed), (0, 0));
    // A test run is one on the loopback device, where loopback addresses ask.
    let run = bench.run(Program::ShedXdp, &v4([127, 0, 0, 1]).bytes(), 1).unwrap();
    assert_eq!(run.action, XDP_TX);
    unload(loaded);
}

/// However much follows the segment in its frame, and in how many pieces.
#[test]
fn a_reset_is_as_long_as_it_must_be() {
    let mut loaded = load(ETHERNET_LEN);
    let bench = &mut loaded.0;
    prepare(bench, Mode::Enforce, u64::MAX, &table(&config()));
    let syn = Frame { destination: address(HOST_V4), destination_port: CLOSED_RESET, ..Frame::default() };
    for len in [54, 60, 255, 256, 1500, 3000, 3600, 4000, 5000, 9000] {
        let mut bytes = Frame { padded_to: len, ..syn.clone() }.bytes();
        bytes[54..].fill(0xee);
        let run = bench.run(Program::ShedXdp, &bytes, 1).unwrap();
        assert_eq!(run.action, XDP_TX, "{len}");
        assert_eq!(run.packet.len(), len.min(60), "{len}");
        let end = assert_reset(&syn, &run.packet);
        assert!(run.packet[end..].iter().all(|byte| *byte == 0), "{len}");
    }
    unload(loaded);
}

/// One SYN was admitted and its port admits nobody else. Whoever has other addresses and numbers is refused.
#[test]
fn nobody_passes_for_another_who_was_admitted() {
    let mut loaded = load(ETHERNET_LEN);
    let bench = &mut loaded.0;
    let mut config = config();
    config.ports = vec![PortPolicy {
        rate: SLOW_RATE,
        burst: Some(1),
        action: Action::Drop,
        ..PortPolicy::of_port(SLOW)
    }];
    bench.set_local_addresses(&local_addresses()).unwrap();
    let rules = Rules { mode: Mode::Enforce, lease_expires_ns: u64::MAX, exempt_rate: None };
    bench.write(&table(&config), &rules).unwrap();
    let syn = |octet: u8, sequence| {
        let mut frame = Frame { destination: host_v6(), destination_port: SLOW, sequence, ..Frame::v6() };
        frame.source[11] = octet;
        frame.bytes()
    };
    assert_eq!(bench.run(Program::ShedXdp, &syn(0, 0x0102_0304), 1).unwrap().action, XDP_PASS);
    for bit in 0..32 {
        for octet in [0, 1, 0x80] {
            let run = bench.run(Program::ShedXdp, &syn(octet, 0x0102_0304 ^ 1 << bit), 1).unwrap();
            assert_eq!(run.action, XDP_DROP, "octet {octet:#x}, bit {bit}");
        }
    }
    assert_eq!(
        bench.run(Program::ShedXdp, &syn(0, 0x0102_0304), 1).unwrap().action,
        XDP_PASS,
        "it is remembered"
    );
    unload(loaded);
}

/// A listener whose application accepts nothing: what waits there is real.
#[test]
fn the_gates_of_the_listener_see_the_kernels_queues() {
    see_the_kernels_queues(load(ETHERNET_LEN));
}

#[test]
fn so_they_do_on_a_kernel_before_6_2() {
    let loaded = load_with(ETHERNET_LEN, |_| None);
    assert!(loaded.0.loaded().cast.is_none());
    see_the_kernels_queues(loaded);
}

#[test]
fn a_kernel_that_refuses_a_cast_is_served_without() {
    // The number of a type is not that of a function.
    let loaded = load_with(ETHERNET_LEN, |cast| cast.map(|cast| Cast { function: cast.tcp_sock, ..cast }));
    assert!(loaded.0.loaded().cast.is_none());
    see_the_kernels_queues(loaded);
}

#[test]
fn a_kernel_that_lets_no_socket_be_read_is_served_without() {
    let mut loaded = load_given(ETHERNET_LEN, |options| {
        // Far behind the end of any socket.
        options.offsets.accept_queue = 1 << 20;
    });
    let bench = &mut loaded.0;
    assert_eq!(bench.loaded().offsets, SocketOffsets::UNKNOWN);
    prepare(bench, Mode::Enforce, u64::MAX, &table(&config()));
    for (program, drop, pass) in [(Program::ShedXdp, XDP_DROP, XDP_PASS), (Program::ShedTc, TC_SHOT, TC_NEXT)]
    {
        for (port, action) in [(CLOSED_DROP, drop), (OPEN, pass)] {
            let syn = Frame { destination_port: port, ..Frame::default() };
            assert_eq!(bench.run(program, &syn.bytes(), 1).unwrap().action, action, "{program:?} {port}");
        }
    }
    unload(loaded);
}

fn see_the_kernels_queues(mut loaded: (TestBench, PathBuf)) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let local = listener.local_addr().unwrap();
    let bench = &mut loaded.0;
    bench.set_local_addresses(&[Address::from_v4([127, 0, 0, 1])]).unwrap();
    let rules = Rules { mode: Mode::Enforce, lease_expires_ns: u64::MAX, exempt_rate: None };
    let obey = |bench: &mut TestBench, policy: PortPolicy| {
        let mut config = config();
        config.ports = vec![policy];
        bench.write(&table(&config), &rules).unwrap();
    };
    let mut sequence = 0;
    let mut ask = |bench: &mut TestBench, program| {
        sequence += 1;
        let syn = Frame {
            source: address([127, 0, 0, 9]),
            destination: address([127, 0, 0, 1]),
            destination_port: local.port(),
            sequence,
            ..Frame::default()
        };
        let action = bench.run(program, &syn.bytes(), 1).unwrap().action;
        action == if program == Program::ShedXdp { XDP_DROP } else { TC_SHOT }
    };
    let depth = PortPolicy { queue_depth: Some(0.01), ..plain(local.port()) };
    let wait = |limit| PortPolicy { queue_wait: Some(limit), ..plain(local.port()) };
    for program in [Program::ShedXdp, Program::ShedTc] {
        obey(bench, depth.clone());
        assert!(!ask(bench, program), "nobody waits");
        obey(bench, wait(Duration::from_micros(1)));
        assert!(!ask(bench, program), "nobody waits");
    }
    // The backlog is 128: two of 129 are more than a hundredth.
    let waiting = [TcpStream::connect(local).unwrap(), TcpStream::connect(local).unwrap()];
    // Longer than the coarse clock stands still.
    std::thread::sleep(Duration::from_millis(30));
    for program in [Program::ShedXdp, Program::ShedTc] {
        obey(bench, depth.clone());
        assert!(ask(bench, program), "two wait");
        obey(bench, wait(Duration::from_micros(1)));
        assert!(ask(bench, program), "they wait since a while");
        obey(bench, wait(Duration::from_secs(3600)));
        assert!(!ask(bench, program), "but not for so long");
        // A SYN with the addresses and ports of a connection is no new one.
        let from = waiting[0].local_addr().unwrap();
        let known = Frame {
            source: address([127, 0, 0, 1]),
            source_port: from.port(),
            destination: address([127, 0, 0, 1]),
            destination_port: local.port(),
            sequence: if program == Program::ShedXdp { 71 } else { 72 },
            ..Frame::default()
        };
        obey(bench, depth.clone());
        let passed = bench.run(program, &known.bytes(), 1).unwrap();
        assert_eq!(passed.action, if program == Program::ShedXdp { XDP_PASS } else { TC_NEXT });
    }
    let counters = bench.read().unwrap().policies[&(local.port(), local.port())].counters;
    let class = counters.classes[Class::Interactive.index()];
    assert_eq!(class.shed[Gate::QueueDepth.index()], 2);
    assert_eq!(class.shed[Gate::QueueWait.index()], 2);
    assert_eq!(class.retransmits_admitted, 2);
    assert!(counters.wait_sum_us >= 4 * 20_000, "{}", counters.wait_sum_us);
    assert_eq!(counters.wait_buckets.iter().sum::<u64>(), 6, "one observation for each look at the wait");
    // The application catches up, and everybody is admitted again.
    for _ in &waiting {
        listener.accept().unwrap();
    }
    for program in [Program::ShedXdp, Program::ShedTc] {
        assert!(!ask(bench, program));
    }
    unload(loaded);
}

#[test]
fn programs_stay_cheap_to_verify() {
    for link_header_len in [ETHERNET_LEN, 0] {
        let mut loaded = load(link_header_len);
        let most = if loaded.0.loaded().cast.is_some() {
            MOST_VERIFIED_INSTRUCTIONS
        } else {
            MOST_VERIFIED_WITHOUT_CASTS
        };
        for program in [Program::ShedXdp, Program::ShedTc] {
            let instructions = loaded.0.verified_instructions(program).unwrap();
            println!(
                "{program:?}, link header of {link_header_len} bytes: {instructions} verified instructions"
            );
            assert!(instructions <= most, "{program:?}: {instructions}");
        }
        unload(loaded);
    }
}
