//! Builds, benchmarks and checks: cargo with the project's settings.

use std::process::Command;

use crate::setup::CARGO_DENY;
use crate::workspace::{cargo, root, run};

/// `cargo xtask build`
pub(crate) fn build(release: bool) -> anyhow::Result<()> {
    run(cargo(&["build", "--locked"]).args(release.then_some("--release")))
}

/// `cargo xtask bench NAME`
pub(crate) fn bench(name: &str) -> anyhow::Result<()> {
    run(&mut cargo(&["bench", "--locked", "--package", "shedder", "--bench", name]))
}

/// `cargo xtask lint`: every check, each named; all run even where one fails.
pub(crate) fn lint() -> anyhow::Result<()> {
    let mut deny = Command::new(CARGO_DENY.path()?);
    // Advisories need a database from the network: see deny.toml.
    deny.current_dir(root()).args(["--locked", "check", "bans", "licenses", "sources"]);
    let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    let checks = [
        ("format", cargo(&["fmt", "--all", "--check"])),
        ("lints", cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])),
        ("lints of the kernel side", kernel_lints()),
        ("dependencies", deny),
        ("documentation", doc),
    ];
    let mut failed = Vec::new();
    for (name, mut check) in checks {
        eprintln!("== {name}");
        if let Err(error) = run(&mut check) {
            eprintln!("{error}");
            failed.push(name);
        }
    }
    anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Most of the eBPF crate exists for its own target only, and the warnings of the build that `shedder/build.rs`
/// does are seen by nobody. As there, `RUSTC_BOOTSTRAP` is what lets the compiler build `core`.
fn kernel_lints() -> Command {
    let mut clippy = cargo(&["clippy", "--package", "shedder-ebpf", "--bins", "--release", "--locked"]);
    clippy.args(["--target", "bpfel-unknown-none", "-Zbuild-std=core"]);
    // Else the two builds would each undo what the other did.
    clippy.arg("--target-dir").arg(root().join("target/ebpf"));
    clippy.args(["--", "-D", "warnings"]);
    clippy.env("RUSTC_BOOTSTRAP", "1");
    let architecture = format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH);
    clippy.env("CARGO_ENCODED_RUSTFLAGS", [&architecture, "-Ctarget-cpu=v3"].join("\x1f"));
    clippy
}
