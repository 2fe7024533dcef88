//! A server that collapses under load, and the same server behind shedder.

mod report;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use xtask::testbed::{Live, Load, Namespace, Pace, Server, ServerOptions, VethPair, cpus};

use self::report::{Report, Row};
use crate::daemon::Daemon;
use crate::workspace::{build_shedder, root};
use crate::{host, progress};

const PORT: u16 = 8080;
/// Enough to keep the server busy, too few to wait long.
const CAPACITY_CONNECTIONS: usize = 16;
const CAPACITY_TIME: Duration = Duration::from_secs(5);
const OVERLOAD_PER_SECOND: u32 = 4000;
const OVERLOAD_TIME: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_millis(250);
/// With 64,000 ports each, no connection waits for the end of an earlier one's TIME_WAIT.
const CLIENT_ADDRESSES: u8 = 16;

/// `cargo xtask demo`
pub(crate) fn demo() -> anyhow::Result<()> {
    host::mount_bpffs()?;
    let stop = host::stop_on_signals()?;
    let shedder = build_shedder()?;
    let bench = Bench::new(stop)?;
    let report = Report::new(bench.alone()?, bench.without_shedder()?, bench.with_shedder(shedder)?);
    let file = root().join("target/demo.json");
    fs::write(&file, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| file.display().to_string())?;
    println!("\n{report}\nThe same as data: {}", file.display());
    report.verdict()
}

fn policy() -> String {
    format!("[[port]]\nport = {PORT}\nqueue_wait = \"50ms\"\nconnections = 400")
}

/// Two namespaces, a client in one, a server in the other.
struct Bench {
    client: Namespace,
    server: Namespace,
    load: Load,
    server_options: ServerOptions,
    interface: String,
    stop: Arc<AtomicBool>,
}

impl Bench {
    fn new(stop: Arc<AtomicBool>) -> anyhow::Result<Self> {
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        let link = VethPair::new(&client, &server)?;
        let sources = link.a.add_sources(CLIENT_ADDRESSES)?.ipv4;
        client.set_sysctl("ipv4/ip_local_port_range", "1024 65535")?;
        let cpus = cpus()?;
        let target = SocketAddr::from((link.b.ipv4, PORT));
        let pace = Pace::Open { per_second: OVERLOAD_PER_SECOND };
        let load = Load {
            sources,
            duration: OVERLOAD_TIME,
            patience: PATIENCE,
            cpu: cpus.last().copied(),
            ..Load::new(target, pace)
        };
        let server_options = ServerOptions { cpu: cpus.first().copied(), ..ServerOptions::default() };
        Ok(Self { client, server, load, server_options, interface: link.b.interface, stop })
    }

    fn alone(&self) -> anyhow::Result<Row> {
        let load = Load {
            pace: Pace::Closed { connections: CAPACITY_CONNECTIONS },
            duration: CAPACITY_TIME,
            patience: Duration::from_secs(10),
            ..self.load.clone()
        };
        self.measure("at capacity", &load, self.start_server()?)
    }

    fn without_shedder(&self) -> anyhow::Result<Row> {
        self.measure("without shedder", &self.load, self.start_server()?)
    }

    fn with_shedder(&self, shedder: PathBuf) -> anyhow::Result<Row> {
        let server = self.start_server()?;
        let daemon = Daemon::start(&shedder, &self.server, &self.interface, &policy(), &self.stop)?;
        let row = self.measure("with shedder", &self.load, server)?;
        daemon.stop()?;
        Ok(row)
    }

    fn start_server(&self) -> anyhow::Result<Server> {
        let address = self.load.target;
        Server::start(&self.server, address, self.server_options)
            .with_context(|| format!("listen on {address}"))
    }

    fn measure(&self, name: &'static str, load: &Load, server: Server) -> anyhow::Result<Row> {
        let live = Live { stop: Arc::clone(&self.stop), ..Live::default() };
        let outcome = progress::shown(name, load.duration, &live, || load.run_in(&self.client, &live));
        match outcome {
            Ok(outcome) => Ok(Row::new(name, &outcome, server.stop())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => anyhow::bail!("stopped by a signal"),
            Err(error) => Err(error).with_context(|| format!("the load {name}")),
        }
    }
}
