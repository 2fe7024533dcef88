//! Network namespaces that go when their value goes.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::leftovers::Leftovers;

/// Where `ip netns` keeps the names.
pub(crate) const DIRECTORY: &str = "/run/netns";

/// A network namespace of its own, with its loopback up.
///
/// It is deleted on drop; the kernel keeps it for as long as a process or socket still lives in it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one, named `shedder-<pid>-<n>`; the first of a process also removes what dead processes left.
    ///
    /// # Errors
    /// Without root or iproute2, with the words of `ip`.
    pub fn new() -> anyhow::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            Leftovers::remove_abandoned().context("remove what earlier runs left")?;
        }
        let namespace = Self { name: format!("shedder-{}-{number}", std::process::id()) };
        ip(&["netns", "add", &namespace.name])?;
        ip(&["-netns", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The name that `ip -netns` takes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that `setns` takes.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// Runs `work` on a fresh thread within the namespace and waits for it: the sockets that it opens and the
    /// processes that it starts belong there, wherever they are used later. A panic goes on in the caller.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let namespace = File::open(self.path())?;
        let done = thread::scope(|scope| {
            scope
                .spawn(|| {
                    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                    Ok(work())
                })
                .join()
        });
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Starts a process within the namespace.
    ///
    /// Unlike under `ip netns exec` it keeps the mounts of its parent, so it sees bpffs; its `/sys/class/net`
    /// speaks of the parent's namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered or the process not be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.enter(|| command.spawn())?
    }

    /// Runs a process within the namespace and collects what it prints.
    ///
    /// # Errors
    /// As [`Namespace::spawn`].
    pub fn output(&self, command: &mut Command) -> io::Result<Output> {
        self.enter(|| command.output())?
    }

    /// Sets a `net.*` sysctl of this namespace, for example `ipv4/tcp_abort_on_overflow`.
    ///
    /// # Errors
    /// When there is no such key or the kernel refuses the value.
    pub fn set_sysctl(&self, key: &str, value: &str) -> anyhow::Result<()> {
        let path = Path::new("/proc/sys/net").join(key);
        self.enter(|| fs::write(&path, value))?
            .with_context(|| format!("write {value:?} to {}", path.display()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = delete(&self.name) {
            eprintln!("{error}");
        }
    }
}

pub(crate) fn delete(name: &str) -> io::Result<()> {
    ip(&["netns", "delete", name]).map_err(io::Error::other)
}

/// Runs `ip`; its complaint becomes the error.
pub(crate) fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let line = arguments.join(" ");
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .with_context(|| format!("ip {line}: is iproute2 installed? `cargo xtask setup` brings it"))?;
    anyhow::ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
