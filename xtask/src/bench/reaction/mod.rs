//! The time from a real stall to other quotas, and from its end back to normal.

mod pressure;
mod report;
pub(crate) mod stall;
mod watch;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tempfile::NamedTempFile;
use xtask::testbed::{Cgroup, Namespace, VethPair};

use self::pressure::Threshold;
use self::report::{Report, Sample, StallReport};
use self::stall::{BACKLOG, Kind};
use self::watch::{Seen, Watch, is_normal, now};
use super::write_json;
use crate::daemon::Daemon;
use crate::host;
use crate::workspace::{build_shedder, root};

/// What the command line says.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Few repetitions: to see that it works, not to quote
    #[arg(long)]
    quick: bool,
    /// Only this stall; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<Kind>,
}

const PORT: u16 = 8080;
const REPETITIONS: usize = 20;
const REPETITIONS_QUICK: usize = 3;
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Shorter than the default, so that the way back does not take hours; the report says so.
pub(super) const HOLD: Duration = Duration::from_secs(1);
const MEMORY_BYTES: u64 = 16 << 20;
/// A little more than fits: what is read again was dropped so lately that the kernel calls the wait for it a stall.
const FILE_BYTES: u64 = MEMORY_BYTES + MEMORY_BYTES / 4;
/// Fills three quarters of the listen backlog.
const CLIENTS: u16 = BACKLOG / 4 * 3;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl Kind {
    const ALL: [Self; 4] = [Self::Cpu, Self::Memory, Self::Fds, Self::Accept];

    const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU hogs",
            Self::Memory => "a control group that thrashes",
            Self::Fds => "descriptors run out",
            Self::Accept => "a server stops accepting",
        }
    }

    /// The signals that see it; the others are off, so that nothing else on this machine is measured.
    const fn signals(self) -> &'static [&'static str] {
        match self {
            Self::Cpu => &["psi_cpu_some"],
            Self::Memory => &["psi_memory_some", "psi_memory_full"],
            Self::Fds => &["fds"],
            Self::Accept => &["accept_queue"],
        }
    }

    /// What PSI must show before anything may change.
    const fn threshold(self) -> Option<Threshold> {
        match self {
            Self::Cpu => Some(CPU_THRESHOLD),
            Self::Memory => Some(MEMORY_THRESHOLD),
            Self::Fds | Self::Accept => None,
        }
    }
}

const CPU_THRESHOLD: Threshold = Threshold { file: "cpu.pressure", lines: &[("some", ms(800))] };
const MEMORY_THRESHOLD: Threshold =
    Threshold { file: "memory.pressure", lines: &[("some", ms(100)), ("full", ms(20))] };

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const SIGNALS: [&str; 10] = [
    "psi_memory_some",
    "psi_memory_full",
    "psi_io_full",
    "psi_cpu_some",
    "memory",
    "fds",
    "accept_queue",
    "conntrack",
    "tcp_mem",
    "listen_overflows",
];

/// `cargo xtask bench reaction`
pub(crate) fn reaction(options: &Options) -> anyhow::Result<()> {
    host::mount_bpffs()?;
    let stop = host::stop_on_signals()?;
    let shedder = build_shedder()?;
    let kinds = if options.only.is_empty() { Kind::ALL.to_vec() } else { options.only.clone() };
    let repetitions = if options.quick { REPETITIONS_QUICK } else { REPETITIONS };
    let mut report = Report::new(options.quick);
    for kind in kinds {
        let samples = Bench::new(kind, &shedder, &stop)?.samples(repetitions)?;
        report.stalls.push(StallReport::new(kind, samples));
    }
    let file = write_json("bench-reaction.json", &report)?;
    println!("\n{report}\nThe same as data: {}", file.display());
    report.verdict()
}

/// A stall at hand, and a daemon that watches. What ends first stands first.
struct Bench {
    kind: Kind,
    daemon: Daemon,
    stall: Stalled,
    address: SocketAddr,
    client: Namespace,
    server: Namespace,
    stop: Arc<AtomicBool>,
}

impl Bench {
    fn new(kind: Kind, shedder: &std::path::Path, stop: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        let link = VethPair::new(&client, &server)?;
        let address = SocketAddr::from((link.b.ipv4, PORT));
        let stall = Stalled::new(kind, &server, address)?;
        let daemon = Daemon::start(shedder, &server, &link.b.interface, &configuration(kind), stop)?;
        Ok(Self { kind, daemon, stall, address, client, server, stop: Arc::clone(stop) })
    }

    fn samples(mut self, repetitions: usize) -> anyhow::Result<Vec<Sample>> {
        let mut samples = Vec::new();
        for repetition in 1..=repetitions {
            let sample = self.sample()?;
            eprintln!("{}: {repetition} of {repetitions}, {sample}", self.kind.name());
            samples.push(sample);
        }
        self.daemon.stop()?;
        Ok(samples)
    }

    fn sample(&mut self) -> anyhow::Result<Sample> {
        Watch { server: &self.server, stop: &self.stop }.until_calm()?;
        let cgroup = self.stall.cgroup.unified().to_owned();
        let (threshold, done) = (self.kind.threshold(), AtomicBool::new(false));
        thread::scope(|scope| {
            let reached = threshold.map(|threshold| {
                let done = &done;
                scope.spawn(move || threshold.reached(&cgroup, done))
            });
            let stalled = self.stall_once();
            done.store(true, Ordering::Relaxed);
            let reached = reached.map(thread::ScopedJoinHandle::join).transpose();
            let reached = reached.map_err(|_| anyhow::anyhow!("a thread panicked"))?.transpose()?.flatten();
            stalled.map(|stalled| stalled.sample(reached))
        })
    }

    fn stall_once(&mut self) -> anyhow::Result<Stalling> {
        let started = now();
        self.stall.say("start")?;
        let waiting = if self.kind == Kind::Accept { self.connect()? } else { Vec::new() };
        let watch = Watch { server: &self.server, stop: &self.stop };
        let changed = watch.until("other quotas", |status| !is_normal(status))?;
        let ended = now();
        self.stall.say("stop")?;
        drop(waiting);
        let back = watch.until("normal quotas", is_normal)?;
        Ok(Stalling { started, changed, ended, back })
    }

    /// Clients that wait to be accepted.
    fn connect(&self) -> anyhow::Result<Vec<TcpStream>> {
        let connect = |_| TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT);
        self.client.enter(|| (0..CLIENTS).map(connect).collect::<Result<_, _>>())?.context("connect")
    }
}

/// One repetition, as moments.
struct Stalling {
    started: Instant,
    changed: Seen,
    ended: Instant,
    back: Seen,
}

impl Stalling {
    /// `reached` is when PSI showed enough.
    fn sample(self, reached: Option<Instant>) -> Sample {
        let Self { started, changed, ended, back } = self;
        let reached = reached.filter(|reached| *reached <= changed.at);
        Sample {
            threshold_seconds: reached
                .map(|reached| reached.saturating_duration_since(started).as_secs_f64()),
            reaction_seconds: changed.at.saturating_duration_since(started).as_secs_f64(),
            recovery_seconds: back.at.saturating_duration_since(ended).as_secs_f64(),
            signal: changed.signal,
            level: changed.level,
        }
    }
}

fn configuration(kind: Kind) -> String {
    let others = SIGNALS.into_iter().filter(|signal| !kind.signals().contains(signal));
    let off: String = others.map(|signal| format!("[signals.{signal}]\nenabled = false\n\n")).collect();
    let hold = HOLD.as_secs();
    format!("[levels]\nhold = \"{hold}s\"\nramp = \"0s\"\n\n{off}[[port]]\nport = {PORT}\n")
}

/// The process that hurts; it ends on drop, then its control group goes.
struct Stalled {
    child: Child,
    orders: ChildStdin,
    cgroup: Cgroup,
    _file: Option<NamedTempFile>,
}

impl Stalled {
    fn new(kind: Kind, server: &Namespace, address: SocketAddr) -> anyhow::Result<Self> {
        let (cgroup, file) = match kind {
            Kind::Memory => (Cgroup::with_memory(MEMORY_BYTES)?, Some(working_set()?)),
            Kind::Cpu | Kind::Fds | Kind::Accept => (Cgroup::new()?, None),
        };
        let mut command = Command::new(env::current_exe()?);
        let value = clap::ValueEnum::to_possible_value(&kind).context("a stall without a name")?;
        command.args(["stall", value.get_name(), "--listen", &address.to_string()]);
        if let Some(file) = &file {
            command.arg("--file").arg(file.path());
        }
        let mut child = server.spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let orders = child.stdin.take().context("no pipe to the stall")?;
        let answers = child.stdout.take().context("no pipe from the stall")?;
        let mut stalled = Self { child, orders, cgroup, _file: file };
        // Before it opens a socket, which then belongs to the control group too.
        stalled.cgroup.add(stalled.child.id())?;
        stalled.say("listen")?;
        let mut answer = String::new();
        BufReader::new(answers).read_line(&mut answer)?;
        anyhow::ensure!(answer == "ready\n", "the stall said {answer:?}");
        Ok(stalled)
    }

    fn say(&mut self, order: &str) -> anyhow::Result<()> {
        writeln!(self.orders, "{order}").context("the stall has ended")
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // One that is gone already needs no killing.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A file on a real disk whose pages nobody has in memory, so that they count for who reads them.
fn working_set() -> anyhow::Result<NamedTempFile> {
    let directory: PathBuf = root().join("target");
    fs::create_dir_all(&directory)?;
    let mut file = tempfile::Builder::new().prefix("shedder-").tempfile_in(directory)?;
    let copied = std::io::copy(&mut std::io::repeat(7).take(FILE_BYTES), &mut file)?;
    anyhow::ensure!(copied == FILE_BYTES, "only {copied} bytes written");
    file.as_file().sync_all()?;
    rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_signals_that_see_the_stall_are_on() {
        for kind in Kind::ALL {
            let text = configuration(kind);
            for signal in kind.signals() {
                assert!(SIGNALS.contains(signal) && !text.contains(&format!("[signals.{signal}]")), "{text}");
            }
            let off = SIGNALS.len() - kind.signals().len();
            assert_eq!(text.matches("enabled = false").count(), off);
        }
    }
}
