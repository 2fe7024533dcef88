//! Where the workspace and its cache are, and how commands run there.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

/// The workspace's directory.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Where tools are kept once for all checkouts of this machine; `shedder/build.rs` looks there too.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME is set")?.join("shedder"))
}

/// The cargo that runs this program, at the workspace's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(arguments);
    cargo
}

/// Runs a command to its end; one that fails is an error with its whole line.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| line(command))?;
    anyhow::ensure!(status.success(), "`{}` failed ({status})", line(command));
    Ok(())
}

/// Builds the daemon with optimisation and says where it is.
pub(crate) fn build_shedder() -> anyhow::Result<PathBuf> {
    build(&["build", "--release", "--locked", "--package", "shedder", "--bin", "shedder"], "shedder")
}

/// Builds a test of a package and says where it is.
pub(crate) fn build_test(package: &str, test: &str) -> anyhow::Result<PathBuf> {
    build(&["test", "--no-run", "--locked", "--package", package, "--test", test], test)
}

/// Builds, and says where the executable of a target is.
fn build(arguments: &[&str], target: &str) -> anyhow::Result<PathBuf> {
    let mut child = cargo(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo build")?;
    let mut built = None;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let message: serde_json::Value = serde_json::from_str(&line?).context("a message of cargo")?;
            if message.pointer("/target/name").is_some_and(|name| name == target) {
                built = message.get("executable").and_then(|path| path.as_str()).map(PathBuf::from).or(built);
            }
        }
    }
    anyhow::ensure!(child.wait()?.success(), "{target} does not build");
    built.context("cargo did not say where it put what it built")
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_that_of_the_workspace() {
        assert!(root().join("Cargo.lock").is_file());
    }

    #[test]
    fn a_command_that_fails_is_named() {
        let error = run(Command::new("/bin/sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c exit 3") && error.contains("exit status: 3"), "{error}");
        assert!(run(&mut Command::new("/no/such/program")).is_err());
    }
}
