//! What the kernel side needs of the machine.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::fs::statfs;

use crate::workspace::run;

/// `BPF_FS_MAGIC` of the kernel's `uapi/linux/magic.h`.
const BPFFS_MAGIC: i64 = 0xcafe_4a11;

const BPFFS: &str = "/sys/fs/bpf";

/// Makes sure that programs can be loaded and pinned.
pub(crate) fn prepare(verb: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "`cargo xtask {verb}` loads BPF programs and makes network namespaces: run it as root"
    );
    let found = statfs(Path::new(BPFFS)).with_context(|| format!("{BPFFS}: does this kernel have BPF?"))?;
    if found.f_type != BPFFS_MAGIC {
        eprintln!("mounting bpffs on {BPFFS}");
        run(Command::new("mount").args(["-t", "bpf", "bpf", BPFFS]))?;
    }
    Ok(())
}
