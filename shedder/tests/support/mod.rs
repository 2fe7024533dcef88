//! A real daemon in front of real sockets, in namespaces of the test's own.
#![cfg(test)]
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part of this")]

pub mod churn;
pub mod frames;
pub mod hooks;
pub mod syn;
pub mod truth;
pub mod wire;
pub mod workload;
pub mod xdp;

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use shedder_common::abi::ABI_VERSION;
use xtask::testbed::{Namespace, PinDirectory, VethPair};

pub mod bpf;
pub mod run;
pub mod signal;

/// The program under test.
pub const SHEDDER: &str = env!("CARGO_BIN_EXE_shedder");

/// How long anything may take that is not being measured.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A client's and a server's namespace, joined by a veth pair.
pub struct Net {
    pub client: Namespace,
    pub server: Namespace,
    pub link: VethPair,
}

impl Net {
    pub fn new() -> Self {
        let (client, server) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let link = VethPair::new(&client, &server).unwrap();
        Self { client, server, link }
    }

    /// The server's address of one family.
    pub fn server_ip(&self, ipv6: bool) -> IpAddr {
        if ipv6 { self.link.b.ipv6.into() } else { self.link.b.ipv4.into() }
    }
}

/// A running daemon; killed on drop. What it pinned goes too.
pub struct Daemon {
    child: Child,
    pub directory: tempfile::TempDir,
    pub pins: PinDirectory,
}

/// Signals that would let the load of the machine decide what a test sees.
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

/// Switches off every signal that a configuration does not name.
fn quiet_signals(rest: &str) -> String {
    let unnamed = SIGNALS.iter().filter(|name| !rest.contains(&format!("[signals.{name}]")));
    unnamed.map(|name| format!("[signals.{name}]\nenabled = false\n")).collect()
}

/// What a configuration needs around its ports.
pub struct Setup<'a> {
    /// `observe`, `enforce` or `off`.
    pub mode: &'a str,
    /// `auto`, `native`, `generic` or `tc`.
    pub via: &'a str,
    /// `[[port]]` and whatever else, in TOML.
    pub rest: &'a str,
}

impl Daemon {
    /// Starts a daemon on the server's end of the link and waits until it is ready.
    pub fn start(net: &Net, setup: &Setup<'_>) -> Self {
        let daemon = Self::launch(net, setup, PinDirectory::new("test"), tempfile::tempdir().unwrap());
        daemon.wait_until_ready();
        daemon
    }

    /// Starts a daemon anew on the pins and in the directory of one that was killed.
    pub fn restart(self, net: &Net, setup: &Setup<'_>) -> Self {
        let (pins, directory) = self.into_remains();
        let daemon = Self::launch(net, setup, pins, directory);
        daemon.wait_until_ready();
        daemon
    }

    /// Starts a daemon in a namespace with a configuration of the test's own, in which `{socket}` and `{bpffs}`
    /// stand for its places. It need not become ready.
    pub fn launch_with(namespace: &Namespace, config: &str) -> Self {
        Self::relaunch_with(namespace, config, PinDirectory::new("test"), tempfile::tempdir().unwrap())
    }

    /// [`Daemon::launch_with`] on the pins and in the directory of an earlier one.
    pub fn relaunch_with(
        namespace: &Namespace,
        config: &str,
        pins: PinDirectory,
        directory: tempfile::TempDir,
    ) -> Self {
        let file = directory.path().join("shedder.toml");
        let config = config
            .replace("{socket}", directory.path().join("control.sock").to_str().unwrap())
            .replace("{bpffs}", pins.path().to_str().unwrap());
        fs::write(&file, config).unwrap();
        let mut command = Command::new(SHEDDER);
        command.arg("run").arg("--config").arg(file);
        Self::spawn(namespace, &mut command, pins, directory)
    }

    /// Starts a command that becomes the daemon, with its log in the directory.
    pub fn spawn(
        namespace: &Namespace,
        command: &mut Command,
        pins: PinDirectory,
        directory: tempfile::TempDir,
    ) -> Self {
        let log = fs::File::create(directory.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self { child: namespace.spawn(command).unwrap(), directory, pins }
    }

    /// Waits for the daemon to end by itself.
    pub fn exit_code(&mut self) -> Option<i32> {
        let deadline = now() + PATIENCE;
        while now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            sleep(Duration::from_millis(10));
        }
        panic!("the daemon does not end; its log:\n{}", self.log());
    }

    /// Sends a signal without waiting for anything.
    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    fn launch(net: &Net, setup: &Setup<'_>, pins: PinDirectory, directory: tempfile::TempDir) -> Self {
        let Setup { mode, via, rest } = setup;
        let config = format!(
            "version = 1\nmode = \"{mode}\"\n\
             [attach]\ninterfaces = [\"{}\"]\nvia = \"{via}\"\n\
             [daemon]\nsocket = \"{}\"\nbpffs = \"{}\"\n\
             [metrics]\nlisten = \"127.0.0.1:9464\"\n{rest}\n{}",
            net.link.b.interface,
            directory.path().join("control.sock").display(),
            pins.path().display(),
            quiet_signals(rest),
        );
        fs::write(directory.path().join("shedder.toml"), config).unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(SHEDDER);
        command
            .arg("run")
            .arg("--config")
            .arg(directory.path().join("shedder.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = net.server.spawn(&mut command).unwrap();
        Self { child, directory, pins }
    }

    pub fn wait_until_ready(&self) {
        eventually("the daemon is ready", || {
            self.try_status().is_some_and(|status| status["ticks"]["total"].as_u64() > Some(0))
        });
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    pub fn config_file(&self) -> PathBuf {
        self.directory.path().join("shedder.toml")
    }

    pub fn bpffs(&self) -> &Path {
        self.pins.path()
    }

    /// Where the pins of this build are.
    pub fn pins(&self) -> PathBuf {
        pins_in(self.bpffs())
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs a verb against this daemon.
    pub fn verb(&self, arguments: &[&str]) -> Output {
        Command::new(SHEDDER).args(arguments).arg("--socket").arg(self.socket()).output().unwrap()
    }

    /// Runs a verb that must succeed.
    pub fn must(&self, arguments: &[&str]) {
        let output = self.verb(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    pub fn try_status(&self) -> Option<Value> {
        let output = self.verb(&["status", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    pub fn status(&self) -> Value {
        self.try_status().unwrap_or_else(|| panic!("the daemon does not answer; its log:\n{}", self.log()))
    }

    /// The entry of a port in the status.
    pub fn port(&self, port: &str) -> Value {
        let status = self.status();
        let ports = status["ports"].as_array().unwrap();
        ports.iter().find(|state| state["port"] == port).unwrap_or_else(|| panic!("no port {port}")).clone()
    }

    /// Counts of a port summed over classes: admitted, shed (all gates), would-shed, resets sent.
    pub fn counts(&self, port: &str) -> Counts {
        let state = self.port(port);
        let mut counts = Counts::default();
        for class in state["classes"].as_object().unwrap().values() {
            counts.admitted += class["admitted"].as_u64().unwrap();
            counts.shed += sum(&class["shed"]);
            counts.would_shed += sum(&class["would_shed"]);
            counts.resets_sent += class["resets_sent"].as_u64().unwrap();
            counts.exempt += class["exempt"].as_u64().unwrap();
            counts.fail_open += class["fail_open"].as_u64().unwrap();
            counts.retransmits_admitted += class["retransmits_admitted"].as_u64().unwrap();
            counts.retransmits_shed += class["retransmits_shed"].as_u64().unwrap();
        }
        counts
    }

    pub fn active(&self, port: &str) -> u64 {
        self.port(port)["active_connections"].as_u64().unwrap()
    }

    /// kill -9, leaving pins and files.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal and waits for the exit code.
    pub fn stop(&mut self, signal: rustix::process::Signal) -> Option<i32> {
        self.signal(signal);
        self.exit_code()
    }

    /// What a killed daemon leaves, to start another on.
    pub fn into_remains(mut self) -> (PinDirectory, tempfile::TempDir) {
        self.kill_quietly();
        let pins = std::mem::replace(&mut self.pins, PinDirectory::new("unused"));
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        (pins, directory)
    }

    fn kill_quietly(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill_quietly();
        if std::thread::panicking() {
            eprintln!(
                "the daemon's log:\n{}",
                fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
            );
        }
    }
}

/// Counts of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub admitted: u64,
    pub shed: u64,
    pub would_shed: u64,
    pub resets_sent: u64,
    pub exempt: u64,
    pub fail_open: u64,
    pub retransmits_admitted: u64,
    pub retransmits_shed: u64,
}

fn sum(by_gate: &Value) -> u64 {
    by_gate.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

#[expect(clippy::disallowed_methods, reason = "a test waits by the wall")]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits until something is so.
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    assert!(holds_in_time(is_so), "not within {PATIENCE:?}: {what}");
}

/// Whether something becomes so.
pub fn holds_in_time(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = now() + PATIENCE;
    while !is_so() {
        if now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(20));
    }
    true
}

/// Waits until something has a value, which status shows up to a tick late.
pub fn settles<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, mut actual: impl FnMut() -> T) {
    let deadline = now() + PATIENCE;
    loop {
        let actual = actual();
        if actual == *expected {
            return;
        }
        assert!(now() < deadline, "not within {PATIENCE:?}: {what}: {actual:?} instead of {expected:?}");
        sleep(Duration::from_millis(20));
    }
}

/// Connects from a namespace and tells how it went.
pub fn connect(namespace: &Namespace, to: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    namespace.enter(|| TcpStream::connect_timeout(&to, patience)).unwrap()
}

/// Connects over IPv4 from one of the addresses of a namespace.
pub fn connect_from(namespace: &Namespace, from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let connect = || {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddr::new(from, 0))?;
        connect(&socket, &to)?;
        Ok(TcpStream::from(socket))
    };
    namespace.enter(connect).unwrap()
}

/// Runs a program that must succeed.
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// Where the pins of this build are below a bpffs directory.
pub fn pins_in(bpffs: &Path) -> PathBuf {
    bpffs.join(format!("abi-{ABI_VERSION}"))
}
