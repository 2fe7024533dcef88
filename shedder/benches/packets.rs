//! What a packet costs, by `BPF_PROG_TEST_RUN`: every round runs the empty program and each case in turn, and a
//! case's cost is what it takes above the empty program of the same round.
//!
//! `cargo bench -p shedder --bench packets`, as root. Prints a table and writes `target/bench-packets.json`.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark fails by panicking")]

#[path = "../../shedder-common/src/packet/frames.rs"]
#[expect(dead_code, reason = "the tests of packets need more of it")]
mod frames;

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use frames::{Frame, address};
use serde_json::json;
use shedder::config::model::{Action, Config, PortPolicy, RateLimit};
use shedder::datapath::{LoadOptions, Program, Rules, TestBench};
use shedder::kernel::offsets::{KernelTypes, VMLINUX_BTF, read_types};
use shedder::net::namespace;
use shedder::quota;
use shedder_common::abi::map;
use shedder_common::address::Address;
use shedder_common::control::Mode;
use shedder_common::packet::parse::ETHERNET_LEN;

const ROUNDS: usize = 60;
const REPEAT: u32 = 50_000;
/// Runs of one packet each, for what changes the packet and so cannot be repeated on it.
const SINGLE_ROUNDS: usize = 20_000;
const POLICIES: u16 = 1000;
const LOCAL: [u8; 4] = [127, 0, 0, 1];
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const TC_SHOT: u32 = 2;
const TC_REDIRECT: u32 = 7;
const TC_NEXT: u32 = u32::MAX;

struct Case {
    name: &'static str,
    program: Program,
    packet: Vec<u8>,
    action: u32,
    budget_ns: Option<f64>,
}

struct Cost {
    name: String,
    minimum_ns: f64,
    median_ns: f64,
    budget_ns: Option<f64>,
}

fn main() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "programs are loaded into the kernel: run as root");
    pin_to_one_cpu()?;
    let directory = PathBuf::from(format!("/sys/fs/bpf/shedder-bench-{}", std::process::id()));
    let measured = measure(&directory);
    let removed = std::fs::remove_dir_all(&directory);
    let report = measured?;
    ensure!(removed.is_ok() || !directory.exists(), "{} stays", directory.display());
    print!("{}", report.table());
    let path = report.write()?;
    println!("{}", path.display());
    Ok(())
}

fn measure(directory: &Path) -> Result<Report> {
    let KernelTypes { offsets, cast, .. } = read_types(Path::new(VMLINUX_BTF))?;
    let options = LoadOptions { namespace_inode: namespace::inode()?, offsets, cast, bpf_log: None };
    let mut bench = TestBench::load(directory, options, ETHERNET_LEN)?;
    let full_queue = FullQueue::new()?;
    let ports = Ports { queue_wait: full_queue.port()?, ..Ports::default() };
    write_policies(&mut bench, &ports)?;
    // The only connection of the slow rates is taken by another SYN.
    for port in [ports.rate_drop, ports.rate_reset] {
        for program in [Program::ShedXdp, Program::ShedTc] {
            bench.run(program, &Frame { sequence: 1, ..to(port) }.bytes(), 1)?;
        }
    }
    let mut costs = Vec::new();
    for (empty, cases) in [
        (Program::PassXdp, cases(Program::ShedXdp, &ports)),
        (Program::PassTc, cases(Program::ShedTc, &ports)),
    ] {
        costs.extend(repeated(&mut bench, empty, &cases)?);
    }
    costs.extend(resets(&mut bench, &ports)?);
    Ok(Report {
        costs,
        map_bytes: map_bytes(&directory.join(format!("abi-{}", shedder_common::abi::ABI_VERSION)))?,
        xdp_instructions: bench.verified_instructions(Program::ShedXdp)?,
        tc_instructions: bench.verified_instructions(Program::ShedTc)?,
    })
}

struct Ports {
    rate_drop: u16,
    rate_reset: u16,
    open: u16,
    none: u16,
    queue_wait: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { rate_drop: 20_001, rate_reset: 20_002, open: 20_003, none: 19_999, queue_wait: 0 }
    }
}

fn to(port: u16) -> Frame {
    Frame { destination: address(LOCAL), destination_port: port, tcp_options: 20, ..Frame::default() }
}

fn cases(program: Program, ports: &Ports) -> Vec<Case> {
    let (drop, pass) = if program == Program::ShedXdp { (XDP_DROP, XDP_PASS) } else { (TC_SHOT, TC_NEXT) };
    let data = Frame { flags: 0x18, payload: 100, ..to(ports.open) };
    let udp = Frame { protocol: 17, payload: 100, ..to(ports.open) };
    let mut arp = Frame { padded_to: 60, ..Frame::default() }.bytes();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let case = |name, frame: Frame, action, budget_ns| Case {
        name,
        program,
        packet: frame.bytes(),
        action,
        budget_ns,
    };
    let mut cases = vec![
        case("shed by rate", to(ports.rate_drop), drop, Some(25.0)),
        case("shed by queue_wait", to(ports.queue_wait), drop, Some(110.0)),
        case("admitted, repeated", to(ports.open), pass, None),
        case(
            "SYN to another host",
            Frame { destination: address([198, 51, 100, 7]), ..to(ports.open) },
            pass,
            None,
        ),
        case("SYN to a port without policy", to(ports.none), pass, None),
        case("TCP data to a protected port", data, pass, Some(10.0)),
        case("UDP", udp, pass, Some(5.0)),
        Case { name: "ARP", program, packet: arp, action: pass, budget_ns: Some(5.0) },
    ];
    if program == Program::ShedTc {
        // The budgets are those of XDP; TC is shown beside.
        for case in &mut cases {
            case.budget_ns = None;
        }
    }
    cases
}

fn repeated(bench: &mut TestBench, empty: Program, cases: &[Case]) -> Result<Vec<Cost>> {
    let mut above: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    let mut empties = Vec::new();
    for case in cases {
        let run = bench.run(case.program, &case.packet, 1)?;
        ensure!(run.action == case.action, "{}: action {} is not {}", case.name, run.action, case.action);
    }
    for _ in 0..ROUNDS {
        for (case, above) in cases.iter().zip(&mut above) {
            let base = bench.run(empty, &case.packet, REPEAT)?.duration;
            let run = bench.run(case.program, &case.packet, REPEAT)?;
            ensure!(run.action == case.action, "{}: action {}", case.name, run.action);
            empties.push(nanoseconds(base));
            above.push(nanoseconds(run.duration) - nanoseconds(base));
        }
    }
    let suffix = if empty == Program::PassTc { " (TC)" } else { "" };
    let mut costs = vec![cost(format!("the empty program itself{suffix}"), empties, None)];
    costs.extend(
        cases
            .iter()
            .zip(above)
            .map(|(case, above)| cost(format!("{}{suffix}", case.name), above, case.budget_ns)),
    );
    Ok(costs)
}

/// A RST changes the packet, which the kernel does not restore between repeats. So the refusal by drop and that
/// by RST run once each, in turn, and their difference is what the RST costs.
fn resets(bench: &mut TestBench, ports: &Ports) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for (name, program, drop, reset, budget_ns) in [
        ("RST more than the drop", Program::ShedXdp, XDP_DROP, XDP_TX, Some(60.0)),
        ("RST more than the drop (TC)", Program::ShedTc, TC_SHOT, TC_REDIRECT, None),
    ] {
        let (dropped, answered) = (to(ports.rate_drop).bytes(), to(ports.rate_reset).bytes());
        let (mut drops, mut resets) = (Vec::new(), Vec::new());
        for _ in 0..SINGLE_ROUNDS {
            for (packet, action, times) in [(&dropped, drop, &mut drops), (&answered, reset, &mut resets)] {
                let run = bench.run(program, packet, 1)?;
                ensure!(run.action == action, "{name}: action {} is not {action}", run.action);
                times.push(nanoseconds(run.duration));
            }
        }
        costs.push(Cost {
            name: name.to_owned(),
            minimum_ns: quantile(&mut resets, 0.01) - quantile(&mut drops, 0.01),
            median_ns: quantile(&mut resets, 0.5) - quantile(&mut drops, 0.5),
            budget_ns,
        });
    }
    Ok(costs)
}

fn cost(name: String, mut above: Vec<f64>, budget_ns: Option<f64>) -> Cost {
    Cost { name, minimum_ns: quantile(&mut above, 0.0), median_ns: quantile(&mut above, 0.5), budget_ns }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index within the samples")]
fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[((samples.len() - 1) as f64 * part) as usize]
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

fn write_policies(bench: &mut TestBench, ports: &Ports) -> Result<()> {
    let mut config = Config::observe_default();
    let plain = |port| PortPolicy {
        rate: RateLimit::Unlimited,
        queue_wait: None,
        queue_depth: None,
        action: Action::Drop,
        ..PortPolicy::of_port(port)
    };
    let slow = RateLimit::PerSecond(1e-4);
    for class in &mut config.classes {
        class.floor = 0.0;
    }
    config.ports = vec![
        PortPolicy { rate: slow, burst: Some(1), ..plain(ports.rate_drop) },
        PortPolicy { rate: slow, burst: Some(1), action: Action::Reset, ..plain(ports.rate_reset) },
        plain(ports.open),
        PortPolicy { queue_wait: Some(Duration::from_micros(1)), ..plain(ports.queue_wait) },
    ];
    let more =
        (1..).map(|port| PortPolicy { rate: RateLimit::PerSecond(1000.0), ..PortPolicy::of_port(port) });
    config.ports.extend(more.take(usize::from(POLICIES) - config.ports.len()));
    let table = quota::table(&config, &[], 0);
    bench.set_local_addresses(&[Address::from_v4(LOCAL)])?;
    bench.write(&table, &Rules { mode: Mode::Enforce, lease_expires_ns: u64::MAX, exempt_rate: None })
}

/// A listener whose application does not accept.
struct FullQueue {
    listener: TcpListener,
    _waiting: TcpStream,
}

impl FullQueue {
    fn new() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let waiting = TcpStream::connect(listener.local_addr()?)?;
        // Older than the coarse clock is.
        std::thread::sleep(Duration::from_millis(50));
        Ok(Self { listener, _waiting: waiting })
    }

    fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }
}

fn pin_to_one_cpu() -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    set.set(last.context("no CPU is allowed")?);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Kernel memory of the pinned maps, as the kernel accounts for it.
fn map_bytes(directory: &Path) -> Result<u64> {
    let mut total = 0;
    for name in map::ALL {
        let map = aya::maps::MapInfo::from_pin(directory.join(name)).with_context(|| name.to_owned())?;
        let fd = map.fd()?;
        let path =
            format!("/proc/self/fdinfo/{}", std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&fd)));
        let text = std::fs::read_to_string(&path)?;
        let Some(bytes) = text.lines().find_map(|line| line.strip_prefix("memlock:")) else {
            bail!("{path} says no memlock");
        };
        total += bytes.trim().parse::<u64>()?;
    }
    Ok(total)
}

struct Report {
    costs: Vec<Cost>,
    map_bytes: u64,
    xdp_instructions: u32,
    tc_instructions: u32,
}

const MAP_BUDGET_BYTES: u64 = 64 << 20;

impl Report {
    fn table(&self) -> String {
        let mut text = format!(
            "{:<36} {:>9} {:>9} {:>9}\n",
            "ns above the empty program", "minimum", "median", "budget"
        );
        for cost in &self.costs {
            let (budget, verdict) = match cost.budget_ns {
                Some(budget) => {
                    (format!("{budget:.0}"), if cost.median_ns <= budget { "kept" } else { "MISSED" })
                }
                None => (String::from("-"), ""),
            };
            text += &format!(
                "{:<36} {:>9.1} {:>9.1} {budget:>9} {verdict}\n",
                cost.name, cost.minimum_ns, cost.median_ns
            );
        }
        text += &format!(
            "map memory for {POLICIES} policies: {:.1} MiB of {} {}\n",
            self.map_bytes as f64 / f64::from(1 << 20),
            MAP_BUDGET_BYTES >> 20,
            if self.map_bytes <= MAP_BUDGET_BYTES { "kept" } else { "MISSED" },
        );
        text += &format!(
            "verified instructions: shed_xdp {}, shed_tc {}\n",
            self.xdp_instructions, self.tc_instructions
        );
        text
    }

    fn write(&self) -> Result<PathBuf> {
        let costs: Vec<_> = self
            .costs
            .iter()
            .map(|cost| {
                json!({
                    "name": cost.name,
                    "minimum_ns": cost.minimum_ns,
                    "median_ns": cost.median_ns,
                    "budget_ns": cost.budget_ns,
                    "kept": cost.budget_ns.map(|budget| cost.median_ns <= budget),
                })
            })
            .collect();
        let report = json!({
            "costs": costs,
            "map_bytes": self.map_bytes,
            "map_budget_bytes": MAP_BUDGET_BYTES,
            "policies": POLICIES,
            "verified_instructions": { "shed_xdp": self.xdp_instructions, "shed_tc": self.tc_instructions },
        });
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?.join("target");
        std::fs::create_dir_all(&target)?;
        let path = target.join("bench-packets.json");
        std::fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")?;
        Ok(path)
    }
}
