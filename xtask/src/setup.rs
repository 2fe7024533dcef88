//! Brings what this project needs and the machine lacks, and names each thing as it comes.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::workspace::{cache, cargo, root, run};

/// What `rust-toolchain.toml` asks for beyond the compiler, with a file that shows its presence.
const COMPONENTS: [(&str, &str); 3] = [
    ("rust-src", "lib/rustlib/src/rust/library/core/src/lib.rs"),
    ("rustfmt", "bin/rustfmt"),
    ("clippy", "bin/clippy-driver"),
];

struct Package {
    name: &'static str,
    binary: &'static str,
    why: &'static str,
}

const PACKAGES: &[Package] = &[
    Package { name: "iproute2", binary: "ip", why: "makes the network namespaces and links of the tests" },
    Package { name: "nftables", binary: "nft", why: "makes the firewalls that a RST must pass in the tests" },
];

/// What only the tests on other kernels need.
const EMULATOR: &[Package] = &[
    Package { name: "qemu-system-x86", binary: "qemu-system-x86_64", why: "runs other kernels" },
    Package { name: "binutils", binary: "strip", why: "makes small what runs on them" },
];

/// What only the benchmark of real services needs.
const SERVICES: &[Package] =
    &[Package { name: "python3", binary: "python3", why: "runs the service with an event loop" }];

/// A program from crates.io, kept in the cache by version.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    why: &'static str,
    /// Optimising it takes longer than it ever runs.
    optimised: bool,
}

/// 0.10.3 opens the LLVM 22 of the pinned compiler; 0.11 wants LLVM 23.
const BPF_LINKER: Tool =
    Tool { name: "bpf-linker", version: "0.10.3", why: "links the kernel side", optimised: true };

pub(crate) const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    why: "checks licences and versions of dependencies",
    optimised: false,
};

/// Installs what is missing; says nothing when nothing is.
pub(crate) fn setup() -> anyhow::Result<()> {
    components()?;
    packages(PACKAGES)?;
    // Whoever names a linker of their own has one.
    if env::var_os("SHEDDER_BPF_LINKER").is_none() {
        BPF_LINKER.install()?;
    }
    CARGO_DENY.install()
}

fn components() -> anyhow::Result<()> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()).output();
    let sysroot = sysroot.context("rustc: is it on PATH?")?.stdout;
    let sysroot = PathBuf::from(String::from_utf8(sysroot).context("sysroot")?.trim());
    let missing = COMPONENTS.iter().filter(|(_, file)| !sysroot.join(file).exists());
    let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    eprintln!("installing {names}: components of the compiler");
    run(Command::new("rustup").current_dir(root()).args(["component", "add"]).args(&missing))
        .with_context(|| format!("this compiler lacks {names}, which rustup would bring"))
}

fn packages(wanted: &[Package]) -> anyhow::Result<()> {
    let missing: Vec<_> = wanted.iter().filter(|package| !is_on_path(package.binary)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|package| package.name).collect();
    let by_hand = format!("install {} with the package manager of this system, as root", names.join(" "));
    anyhow::ensure!(rustix::process::geteuid().is_root() && is_on_path("apt-get"), by_hand);
    for package in missing {
        eprintln!("installing {}: {}", package.name, package.why);
    }
    run(&mut apt(&["--quiet", "update"]))?;
    let install = ["--quiet", "install", "--yes", "--no-install-recommends"];
    run(apt(&install).args(&names)).context(by_hand)
}

fn apt(arguments: &[&str]) -> Command {
    let mut apt = Command::new("apt-get");
    apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    apt
}

/// Installs what the benchmark of real services compares with; says nothing when nothing is missing.
pub(crate) fn services() -> anyhow::Result<()> {
    packages(SERVICES)
}

/// Installs what runs other kernels; says nothing when nothing is missing.
pub(crate) fn emulator() -> anyhow::Result<()> {
    packages(EMULATOR)
}

/// The kernel that a package of Debian stands for, unpacked into the cache. It is not looked for again.
pub(crate) fn kernel(package: &str) -> anyhow::Result<PathBuf> {
    let root = cache()?.join(package);
    let unpacked = || -> Option<PathBuf> {
        let files = fs::read_dir(root.join("boot")).ok()?;
        files
            .filter_map(|file| Some(file.ok()?.path()))
            .find(|path| path.to_string_lossy().contains("/vmlinuz-"))
    };
    if let Some(kernel) = unpacked() {
        return Ok(kernel);
    }
    let by_hand = || format!("unpack a kernel, its boot/vmlinuz-*, into {}", root.display());
    anyhow::ensure!(is_on_path("apt-get") && is_on_path("dpkg-deb"), by_hand());
    eprintln!("unpacking {package} into {}: a kernel to test on", root.display());
    run(&mut apt(&["--quiet", "update"]))?;
    let depends = Command::new("apt-cache").args(["depends", "--important", package]).output()?.stdout;
    let depends = String::from_utf8_lossy(&depends);
    let image = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let image = image.with_context(|| format!("there is no package {package}: {}", by_hand()))?;
    unpack(image, &root).with_context(by_hand)?;
    unpacked().with_context(by_hand)
}

/// Unpacks a package of the distribution without installing it.
fn unpack(package: &str, root: &Path) -> anyhow::Result<()> {
    let download = tempfile::Builder::new().prefix("shedder-").tempdir()?;
    run(apt(&["--quiet", "download", package]).current_dir(&download))?;
    for package in fs::read_dir(&download)? {
        run(Command::new("dpkg-deb").arg("--extract").arg(package?.path()).arg(root))?;
    }
    Ok(())
}

/// Where nginx is. The package is unpacked into the cache and not installed, since that would start a service on
/// this machine.
pub(crate) fn nginx() -> anyhow::Result<PathBuf> {
    if let Some(installed) = find_on_path("nginx") {
        return Ok(installed);
    }
    let root = cache()?.join("nginx");
    let binary = root.join("usr/sbin/nginx");
    if binary.is_file() {
        return Ok(binary);
    }
    let by_hand = "install nginx with the package manager of this system";
    anyhow::ensure!(is_on_path("apt-get") && is_on_path("dpkg-deb"), by_hand);
    eprintln!("unpacking nginx into {}: a service with an upstream", root.display());
    run(&mut apt(&["--quiet", "update"]))?;
    unpack("nginx", &root).context(by_hand)?;
    anyhow::ensure!(binary.is_file(), "the package nginx has no {}: {by_hand}", binary.display());
    Ok(binary)
}

fn is_on_path(binary: &str) -> bool {
    find_on_path(binary).is_some()
}

/// The system's own directories come first: a version manager's stand-in would only start the real one.
pub(crate) fn find_on_path(binary: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut directories = system.into_iter().chain(env::split_paths(&path));
    directories.find_map(|directory| Some(directory.join(binary)).filter(|file| file.is_file()))
}

impl Tool {
    /// Its binary, once it is installed.
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        Ok(self.root()?.join("bin").join(self.name))
    }

    fn root(&self) -> anyhow::Result<PathBuf> {
        Ok(cache()?.join(format!("{}-{}", self.name, self.version)))
    }

    fn install(&self) -> anyhow::Result<()> {
        let binary = self.path()?;
        if binary.is_file() {
            return Ok(());
        }
        let root = self.root()?;
        let _lock = lock(&root.with_extension("lock"))?;
        // Another run may have brought it while this one waited for the lock.
        if binary.is_file() {
            return Ok(());
        }
        eprintln!("installing {} {} into {}: {}", self.name, self.version, root.display(), self.why);
        let mut install = cargo(&["install", "--locked", self.name, "--version", self.version, "--root"]);
        install.arg(&root).stdin(Stdio::null());
        if !self.optimised {
            let quick = [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "256"), ("DEBUG", "false")];
            install.envs(quick.map(|(name, value)| (format!("CARGO_PROFILE_RELEASE_{name}"), value)));
        }
        run(&mut install)
    }
}

/// Waits until no other run installs the same; the lock ends with the returned file.
fn lock(path: &Path) -> anyhow::Result<File> {
    let locked = || {
        path.parent().map(fs::create_dir_all).transpose()?;
        let file = File::create(path)?;
        file.lock()?;
        Ok::<_, std::io::Error>(file)
    };
    locked().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_looks_for_the_linker_that_setup_installs() {
        let build = include_str!("../../shedder/build.rs");
        assert!(build.contains(&format!("BPF_LINKER_VERSION: &str = \"{}\";", BPF_LINKER.version)));
        assert!(BPF_LINKER.path().unwrap().ends_with("shedder/bpf-linker-0.10.3/bin/bpf-linker"));
    }

    #[test]
    fn every_component_is_one_that_the_toolchain_file_names() {
        let file = include_str!("../../rust-toolchain.toml");
        for (name, _) in COMPONENTS {
            assert!(file.contains(&format!("\"{name}\"")), "{name}");
        }
    }

    #[test]
    fn programs_are_found_on_path() {
        assert!(is_on_path("sh"));
        assert!(!is_on_path("no-such-program"));
    }
}
