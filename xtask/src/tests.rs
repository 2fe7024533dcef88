//! All tests, and the proof that they leave nothing behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::Context;
use xtask::testbed::Leftovers;

use crate::host;
use crate::workspace::cargo;

/// One call of cargo. Benchmarks are compiled by the lints and run by `cargo xtask bench`.
struct Phase {
    name: &'static str,
    arguments: &'static [&'static str],
    /// The kernel has one table of programs and one machine's time: what uses it runs alone.
    alone: bool,
}

const PHASES: [Phase; 3] = [
    Phase { name: "unit tests", arguments: &["--lib", "--bins", "--examples"], alone: false },
    Phase { name: "tests with the kernel", arguments: &["--test", "*"], alone: true },
    Phase { name: "examples in the documentation", arguments: &["--doc"], alone: false },
];

/// `cargo xtask test`
pub(crate) fn test() -> anyhow::Result<()> {
    host::mount_bpffs()?;
    Leftovers::remove_abandoned().context("remove what an earlier run left")?;
    nothing_left("before the tests, from an earlier run")?;
    // A daemon that outlives its test becomes a child of this process, and so is found.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;

    let mut total = Total::default();
    let mut broken = Vec::new();
    for phase in &PHASES {
        eprintln!("== {}", phase.name);
        if !run(phase, &mut total)? {
            broken.push(phase.name);
        }
    }
    let left = nothing_left("after the tests");
    println!("\n{} passed, {} failed", total.passed, total.failed);
    anyhow::ensure!(broken.is_empty(), "failed: {}", broken.join(", "));
    anyhow::ensure!(total.passed > 0, "no test ran");
    left
}

/// Whether all went well; counts into `total` what the harnesses report.
fn run(phase: &Phase, total: &mut Total) -> anyhow::Result<bool> {
    let mut command: Command = cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    command.args(phase.arguments).stdout(Stdio::piped());
    if phase.alone {
        command.env("RUST_TEST_THREADS", "1");
    }
    let mut child = command.spawn().context("cargo test")?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            total.add(&line);
        }
    }
    Ok(child.wait()?.success())
}

fn nothing_left(when: &str) -> anyhow::Result<()> {
    let left = Leftovers::find().context("look for leftovers")?;
    anyhow::ensure!(left.is_empty(), "left behind {when}:\n{left}");
    Ok(())
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Total {
    /// Reads a line such as `test result: ok. 16 passed; 0 failed; 1 ignored; …`.
    pub(crate) fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for count in counts.split("; ") {
            match count.split_once(' ').map(|(number, what)| (number.parse::<u64>(), what)) {
                Some((Ok(number), "passed")) => self.passed += number,
                Some((Ok(number), "failed")) => self.failed += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn results_add_up() {
        let mut total = Total::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test result: ok. 16 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.04s",
            "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
            "9 passed; 9 failed",
        ] {
            total.add(line);
        }
        assert_eq!(total, Total { passed: 18, failed: 3 });
    }
}
