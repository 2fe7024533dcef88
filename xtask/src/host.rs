//! What the kernel side needs of the machine.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::fs::statfs;

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

/// Makes sure that there is a place for pins.
pub(crate) fn mount_bpffs() -> anyhow::Result<()> {
    let found = statfs(Path::new(BPFFS)).with_context(|| format!("{BPFFS}: does this kernel have BPF?"))?;
    if found.f_type != BPFFS_MAGIC {
        eprintln!("mounting bpffs on {BPFFS}");
        run(Command::new("mount").args(["-t", "bpf", "bpf", BPFFS]))?;
    }
    Ok(())
}
