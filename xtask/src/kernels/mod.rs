//! `cargo xtask kernels`: the programs on other kernels than this machine's, in an emulator.

mod archive;
pub(crate) mod guest;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use archive::Archive;

use crate::setup;
use crate::tests::Total;
use crate::workspace::build_test;

/// Packages of Debian that depend on the newest build of a kernel: the stable one and the newest.
const KERNELS: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-6.12-cloud-amd64"];

/// Tests by file that load every program, and judge, reset and look into queues on XDP and on TC. An emulated processor
/// needs minutes for the others.
const TESTS: [(&str, &[&str]); 2] = [
    ("packets", &["known_syns_get_one_valid_reset", "the_gates_of_the_listener_see_the_kernels_queues"]),
    ("tables", &["every_program_is_loaded"]),
];

/// A boot and the tests take a quarter of it. (Every machine can emulate a processor; not every one can lend its own.)
const TIMEOUT_SECONDS: &str = "300";

/// Boots each kernel and runs the tests there.
pub(crate) fn kernels() -> anyhow::Result<()> {
    anyhow::ensure!(cfg!(target_arch = "x86_64"), "the kernels are those of x86-64");
    setup::emulator()?;
    let directory = tempfile::Builder::new().prefix("shedder-").tempdir()?;
    let initramfs = directory.path().join("initramfs");
    fs::write(&initramfs, system(&directory.path().join("stripped"))?)?;
    let mut failed = Vec::new();
    for package in KERNELS {
        let kernel = setup::kernel(package)?;
        println!("== {}", kernel.file_name().unwrap_or_default().to_string_lossy());
        if !boot(&kernel, &initramfs)? {
            failed.push(package);
        }
    }
    anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// All that the emulated machine has: this program, which is its init, the tests, and what they load.
fn system(stripped: &Path) -> anyhow::Result<Vec<u8>> {
    let ip = setup::find_on_path("ip").context("ip, from iproute2")?;
    let mut programs = vec![("xtask", env::current_exe()?), ("ip", ip)];
    for (test, _) in TESTS {
        programs.push((test, build_test("shedder", test)?));
    }
    let mut archive = Archive::default();
    let mut libraries = BTreeSet::new();
    for directory in ["proc", "sys", "tmp"] {
        archive.directory(directory);
    }
    for (name, path) in programs {
        crate::workspace::run(Command::new("strip").arg("-o").arg(stripped).arg(&path))?;
        archive.file(name, &fs::read(stripped)?);
        libraries.extend(libraries_of(&path)?);
    }
    for library in libraries {
        archive.file_with_parents(&library, &fs::read(&library)?);
    }
    Ok(archive.finish())
}

/// What the loader loads for a program, itself included.
fn libraries_of(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let output = String::from_utf8(output.stdout).context("ldd")?;
    Ok(output.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// Runs the machine to its end; whether it said that all tests passed.
fn boot(kernel: &Path, initramfs: &Path) -> anyhow::Result<bool> {
    let mut child = Command::new("timeout")
        .args([TIMEOUT_SECONDS, "qemu-system-x86_64", "-accel", "tcg", "-machine", "q35"])
        .args(["-cpu", "max", "-m", "1G", "-nographic", "-no-reboot", "-append"])
        .arg("console=ttyS0 quiet panic=-1 rdinit=/xtask -- guest")
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("qemu-system-x86_64")?;
    let mut total = Total::default();
    if let Some(output) = child.stdout.take() {
        let lines = BufReader::new(output).split(b'\n');
        for line in
            lines.map_while(Result::ok).map(|line| String::from_utf8_lossy(&line).trim_end().to_owned())
        {
            total.add(&line);
            // The firmware's would clear the screen.
            if !line.contains('\x1b') {
                println!("{line}");
            }
        }
    }
    child.wait()?;
    let tests: usize = TESTS.iter().map(|(_, tests)| tests.len()).sum();
    Ok(total.failed == 0 && usize::try_from(total.passed)? == tests)
}
