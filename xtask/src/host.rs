//! What the kernel side needs of the machine.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use rustix::fs::statfs;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::workspace::run;

/// `BPF_FS_MAGIC` of the kernel's `uapi/linux/magic.h`.
const BPFFS_MAGIC: i64 = 0xcafe_4a11;

const BPFFS: &str = "/sys/fs/bpf";

/// To be asked before anything that takes long.
pub(crate) fn require_root() -> anyhow::Result<()> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "this loads BPF programs and makes network namespaces: run it as root"
    );
    Ok(())
}

/// A flag that the signals raise which otherwise would end this program at once, so that all that was made goes
/// the ordinary way.
pub(crate) fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// As many open files as this process may have, for itself and what it starts.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raise the number of open files")
}

/// Makes sure that there is a place for pins.
pub(crate) fn mount_bpffs() -> anyhow::Result<()> {
    let found = statfs(Path::new(BPFFS)).with_context(|| format!("{BPFFS}: does this kernel have BPF?"))?;
    if found.f_type != BPFFS_MAGIC {
        eprintln!("mounting bpffs on {BPFFS}");
        run(Command::new("mount").args(["-t", "bpf", "bpf", BPFFS]))?;
    }
    Ok(())
}
