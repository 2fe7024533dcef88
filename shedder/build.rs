//! Builds the kernel side and puts it where the daemon includes it: `$OUT_DIR/shedder.bpf.o`.
//!
//! The eBPF crate is built by a second cargo, with the same stable compiler. `RUSTC_BOOTSTRAP` is set for
//! that child only, because `-Zbuild-std` is what gives the BPF target a `core`.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const BPF_LINKER_VERSION: &str = "0.10.3";
const TARGET: &str = "bpfel-unknown-none";
const BINARY: &str = "shedder-ebpf";

fn main() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let workspace = manifest_dir.parent().ok_or("the workspace has no directory")?;
    let out_dir = PathBuf::from(variable("OUT_DIR")?);

    for input in ["shedder-ebpf", "shedder-common", "Cargo.toml", "Cargo.lock", "rust-toolchain.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    for input in ["SHEDDER_BPF_LINKER", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={input}");
    }

    let linker = bpf_linker()?;
    println!("cargo::rerun-if-changed={}", linker.display());

    let target_dir = out_dir.join("ebpf");
    build(workspace, &target_dir, &linker)?;
    let built = target_dir.join(TARGET).join("release").join(BINARY);
    fs::copy(&built, out_dir.join("shedder.bpf.o"))
        .map_err(|error| format!("copy {}: {error}", built.display()))?;
    Ok(())
}

fn build(workspace: &Path, target_dir: &Path, linker: &Path) -> Result<(), Box<dyn Error>> {
    let flags = [
        format!("--cfg=bpf_target_arch=\"{}\"", variable_text("CARGO_CFG_TARGET_ARCH")?),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        // 64-bit compare-and-swap.
        "-Ctarget-cpu=v3".to_owned(),
    ];
    let status = Command::new(variable("CARGO")?)
        .current_dir(workspace)
        .args(["build", "--locked", "--package", "shedder-ebpf", "--bins", "--release"])
        .args(["--target", TARGET, "-Zbuild-std=core", "--target-dir"])
        .arg(target_dir)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("PATH", path_with(linker.parent().ok_or("bpf-linker has no directory")?)?)
        // What clippy, rustdoc and coverage set for the host must not reach the kernel side.
        .env_remove("RUSTC")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTFLAGS")
        .status()?;
    if !status.success() {
        return Err("the kernel side (shedder-ebpf) does not build; its errors are above".into());
    }
    Ok(())
}

/// The linker of this machine; `cargo xtask setup` puts it into the cache.
fn bpf_linker() -> Result<PathBuf, Box<dyn Error>> {
    let (linker, from) = match env::var_os("SHEDDER_BPF_LINKER") {
        Some(linker) => (PathBuf::from(linker), "SHEDDER_BPF_LINKER"),
        None => {
            let directory = format!("shedder/bpf-linker-{BPF_LINKER_VERSION}/bin/bpf-linker");
            (cache_dir()?.join(directory), "the cache")
        }
    };
    if !linker.is_file() {
        return Err(format!("{} ({from}) is missing: run `cargo xtask setup`", linker.display()).into());
    }
    // rustc looks it up on PATH by this name.
    if linker.file_name().is_none_or(|name| name != "bpf-linker") {
        return Err(format!("{} ({from}) must be a file named bpf-linker", linker.display()).into());
    }
    Ok(linker)
}

fn cache_dir() -> Result<PathBuf, Box<dyn Error>> {
    match env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(cache) => Ok(cache.into()),
        None => Ok(PathBuf::from(variable("HOME")?).join(".cache")),
    }
}

fn path_with(first: &Path) -> Result<OsString, Box<dyn Error>> {
    let rest = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths(std::iter::once(first.to_path_buf()).chain(env::split_paths(&rest)))?)
}

fn variable(name: &str) -> Result<OsString, Box<dyn Error>> {
    env::var_os(name).ok_or_else(|| format!("{name} is not set").into())
}

fn variable_text(name: &str) -> Result<String, Box<dyn Error>> {
    env::var(name).map_err(|error| format!("{name}: {error}").into())
}
