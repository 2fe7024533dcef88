//! The daemon in front of a demonstration or a benchmark.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use xtask::testbed::{Namespace, PinDirectory, http_get};

/// Where it answers, in its namespace.
pub(crate) const ENDPOINT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9464);
const STEP: Duration = Duration::from_millis(50);
const READY_STEPS: u32 = 300;
const STOP_STEPS: u32 = 200;
const LOG_LINES: usize = 20;

/// A running `shedder`; killed on drop unless it was stopped.
pub(crate) struct Daemon {
    child: Child,
    directory: TempDir,
    _pins: PinDirectory,
}

impl Daemon {
    /// Starts `shedder run` within `namespace` on `interface`, in mode `enforce`, and waits until it is ready.
    /// `rest` is what its configuration says beyond that, in TOML.
    pub(crate) fn start(
        shedder: &Path,
        namespace: &Namespace,
        interface: &str,
        rest: &str,
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("shedder-").tempdir()?;
        let pins = PinDirectory::new("demo");
        let config = directory.path().join("shedder.toml");
        let socket = directory.path().join("control.sock");
        fs::write(&config, configuration(interface, &socket, pins.path(), rest))?;
        let log = File::create(log_path(&directory))?;
        let mut command = Command::new(shedder);
        command.args(["run", "--config"]).arg(&config).stdout(log.try_clone()?).stderr(log);
        let child = namespace.spawn(&mut command).with_context(|| shedder.display().to_string())?;
        let mut daemon = Self { child, directory, _pins: pins };
        daemon.wait_ready(namespace, stop)?;
        Ok(daemon)
    }

    fn wait_ready(&mut self, namespace: &Namespace, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut last = String::new();
        for _ in 0..READY_STEPS {
            anyhow::ensure!(!stop.load(Ordering::Relaxed), "stopped by a signal");
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("shedder ended before it was ready ({status}); its log:\n{}", self.log());
            }
            match namespace.enter(|| http_get(SocketAddr::from(ENDPOINT), "/readyz", STEP * 20))? {
                Ok((200, _)) => return Ok(()),
                Ok((status, body)) => last = format!("{status} {}", body.trim()),
                Err(error) => last = error.to_string(),
            }
            thread::sleep(STEP);
        }
        anyhow::bail!("shedder did not get ready (/readyz: {last}); its log:\n{}", self.log())
    }

    /// Asks it to end, and fails if it does not or says that something went wrong.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let status =
            self.end()?.with_context(|| format!("shedder ignores SIGTERM; its log:\n{}", self.log()))?;
        anyhow::ensure!(status.success(), "shedder failed at its end ({status}); its log:\n{}", self.log());
        Ok(())
    }

    /// SIGTERM and some patience; `None` when that ended.
    fn end(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        for step in 0..STOP_STEPS {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if step == 0 {
                kill_process(Pid::from_child(&self.child), Signal::TERM)?;
            }
            thread::sleep(STEP);
        }
        Ok(None)
    }

    /// The end of what it wrote.
    fn log(&self) -> String {
        let log = fs::read(log_path(&self.directory)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        if lines.is_empty() {
            return "(empty)".to_owned();
        }
        lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or(&lines).join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // First kindly, so that it takes its own things along; killing or reaping one that is gone already is
        // no failure.
        if !matches!(self.end(), Ok(Some(_))) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

fn log_path(directory: &TempDir) -> std::path::PathBuf {
    directory.path().join("log")
}

fn configuration(interface: &str, socket: &Path, bpffs: &Path, rest: &str) -> String {
    let (host, endpoint) = ENDPOINT;
    format!(
        r#"version = 1
mode = "enforce"

[attach]
interfaces = ["{interface}"]

[daemon]
socket = "{}"
bpffs = "{}"

[metrics]
listen = "{host}:{endpoint}"

{rest}
"#,
        socket.display(),
        bpffs.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_what_it_was_given() {
        let text = configuration(
            "sd-0b",
            Path::new("/tmp/d/control.sock"),
            Path::new("/sys/fs/bpf/shedder-x"),
            "[[port]]\nport = 8080",
        );
        for line in [
            "interfaces = [\"sd-0b\"]",
            "socket = \"/tmp/d/control.sock\"",
            "bpffs = \"/sys/fs/bpf/shedder-x\"",
            "listen = \"127.0.0.1:9464\"",
            "port = 8080",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
