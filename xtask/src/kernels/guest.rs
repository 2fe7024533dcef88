//! What runs in the emulated machine, as its first process.

use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};

use super::TESTS;
use crate::workspace::run;

/// Runs the tests and switches the machine off.
pub(crate) fn guest() -> anyhow::Result<()> {
    anyhow::ensure!(std::process::id() == 1, "this is the init of an emulated machine");
    if let Err(error) = test() {
        println!("error: {error:#}");
    }
    // The console is slow.
    std::thread::sleep(Duration::from_millis(200));
    reboot(RebootCommand::PowerOff).context("power off")
}

fn test() -> anyhow::Result<()> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("bpf", "/sys/fs/bpf")] {
        mount(kind, place, kind, MountFlags::empty(), None).with_context(|| format!("mount {place}"))?;
    }
    run(Command::new("/ip").args(["link", "set", "lo", "up"]))?;
    TESTS
        .iter()
        .try_for_each(|(binary, tests)| run(Command::new(format!("/{binary}")).arg("--exact").args(*tests)))
}
