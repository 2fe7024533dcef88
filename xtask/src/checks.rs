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
