//! The servers that are overloaded.

use std::fs::{self, File};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use xtask::testbed::{Namespace, Server, ServerOptions};

use super::net::Net;
use crate::setup;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// One thread, one request after the other: what waits, waits in the accept queue
    Queue,
    /// An event loop that accepts at once and queues inside
    EventLoop,
    /// nginx before a slow upstream
    Nginx,
    /// As `queue`, with clients of three classes on the port
    Classes,
}

impl Scenario {
    pub(super) const ALL: [Self; 4] = [Self::Queue, Self::EventLoop, Self::Nginx, Self::Classes];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::EventLoop => "event-loop",
            Self::Nginx => "nginx",
            Self::Classes => "classes",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Queue => "one thread, bounded accept queue",
            Self::EventLoop => "event loop that queues inside (Python asyncio)",
            Self::Nginx => "nginx, slow upstream",
            Self::Classes => "one thread, three classes on the port",
        }
    }

    /// Installs what it needs.
    pub(super) fn set_up(self) -> anyhow::Result<()> {
        if self == Self::Nginx {
            setup::nginx()?;
        }
        Ok(())
    }
}

const BACKLOG: u16 = 1024;
/// 1,600 requests a second.
const SERVICE_TIME: Duration = Duration::from_micros(625);
const AT_A_TIME: u32 = 16;
const UPSTREAM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9000);
const EVENT_LOOP: &str = include_str!("event_loop.py");
const STEP: Duration = Duration::from_millis(50);
const READY_STEPS: u32 = 200;

/// A running server; it ends on drop.
pub(super) struct Service {
    _server: Option<Server>,
    process: Option<Process>,
    _directory: Option<TempDir>,
}

impl Service {
    /// Starts it and waits until it accepts.
    pub(super) fn start(
        scenario: Scenario,
        net: &Net,
        cpu: Option<usize>,
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        let options = ServerOptions { backlog: BACKLOG, service_time: SERVICE_TIME, cpu };
        let serve = |address: SocketAddr| {
            Server::start(&net.server, address, options).with_context(|| format!("listen on {address}"))
        };
        match scenario {
            Scenario::Queue | Scenario::Classes => {
                let server = Some(serve(net.target.into())?);
                Ok(Self { _server: server, process: None, _directory: None })
            }
            Scenario::EventLoop => {
                let directory = directory()?;
                let script = directory.path().join("event_loop.py");
                fs::write(&script, EVENT_LOOP)?;
                let python = setup::find_on_path("python3").context("python3 is not installed")?;
                let mut command = Command::new(python);
                let per_second = (1.0 / SERVICE_TIME.as_secs_f64()).to_string();
                command.arg(script).args([net.target.ip().to_string(), net.target.port().to_string()]);
                command.args([AT_A_TIME.to_string(), per_second]);
                Self::with_process(command, net, None, directory, cpu, stop)
            }
            Scenario::Nginx => {
                let server = serve(UPSTREAM)?;
                let directory = directory()?;
                let file = directory.path().join("nginx.conf");
                fs::write(&file, nginx_configuration(directory.path(), net.target))?;
                let mut command = Command::new(setup::nginx()?);
                command.arg("-p").arg(directory.path()).arg("-c").arg(file).args(["-e", "stderr"]);
                Self::with_process(command, net, Some(server), directory, cpu, stop)
            }
        }
    }

    fn with_process(
        mut command: Command,
        net: &Net,
        server: Option<Server>,
        directory: TempDir,
        cpu: Option<usize>,
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        let log = File::create(directory.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = Process::start(&net.server, command, cpu)?;
        let mut service = Self { _server: server, process: Some(process), _directory: Some(directory) };
        service.wait(net, stop)?;
        Ok(service)
    }

    fn wait(&mut self, net: &Net, stop: &AtomicBool) -> anyhow::Result<()> {
        for _ in 0..READY_STEPS {
            anyhow::ensure!(!stop.load(Ordering::Relaxed), "stopped by a signal");
            if let Some(process) = &mut self.process
                && let Some(status) = process.child.try_wait()?
            {
                anyhow::bail!("the server ended ({status}):\n{}", self.log());
            }
            // From its own namespace, so that no limit stands between.
            if net.server.enter(|| TcpStream::connect_timeout(&net.target.into(), STEP))?.is_ok() {
                return Ok(());
            }
            thread::sleep(STEP);
        }
        anyhow::bail!("the server does not listen on {}:\n{}", net.target, self.log())
    }

    fn log(&self) -> String {
        let directory = self._directory.as_ref().map(|directory| directory.path().join("log"));
        directory.and_then(|log| fs::read_to_string(log).ok()).unwrap_or_default()
    }
}

fn directory() -> anyhow::Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("shedder-").tempdir()?)
}

/// A process that is killed on drop.
struct Process {
    child: Child,
}

impl Process {
    fn start(namespace: &Namespace, command: Command, cpu: Option<usize>) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        // Children inherit the CPUs of the thread that starts them.
        let spawn = move || {
            let mut command = command;
            if let Some(cpu) = cpu {
                let mut only = rustix::thread::CpuSet::new();
                only.set(cpu);
                rustix::thread::sched_setaffinity(None, &only)?;
            }
            command.spawn()
        };
        Ok(Self { child: namespace.enter(spawn)?.context(name)? })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that is gone already needs no killing.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn nginx_configuration(directory: &Path, listen: SocketAddrV4) -> String {
    let directory = directory.display();
    format!(
        "daemon off;
master_process off;
pid {directory}/pid;
worker_rlimit_nofile 20000;
events {{
    worker_connections 16384;
    multi_accept on;
}}
http {{
    access_log off;
    error_log stderr crit;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    keepalive_timeout 0;
    server {{
        listen {listen} backlog={BACKLOG};
        location / {{
            proxy_pass http://{UPSTREAM};
            proxy_http_version 1.1;
            proxy_set_header Connection close;
        }}
    }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_keeps_to_its_directory() {
        let text = nginx_configuration(Path::new("/tmp/x"), SocketAddrV4::new([10, 0, 0, 1].into(), 80));
        assert_eq!(text.matches("_temp_path /tmp/x/").count(), 5);
        assert!(text.contains("listen 10.0.0.1:80 backlog=1024;"));
        assert!(text.contains("proxy_pass http://127.0.0.1:9000;"));
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
