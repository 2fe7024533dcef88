//! What a tick costs, by a real daemon in a network namespace of its own, and by its parts in this process.
//!
//! `cargo bench -p shedder --bench tick`, as root; `-- TEXT` measures only cases with that in their name. Prints a table
//! and writes `target/bench-tick.json`. Listeners are real and each lies in a real cgroup v2; whoever has no listener
//! has a `file` signal, which is written anew every second as an application would.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod daemon;
mod host;
mod stages;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use self::daemon::Whole;
use self::host::Host;
use self::stages::Stages;

/// Pace of the daemon, the default one.
const TICK_MS: f64 = 100.0;

struct Case {
    name: &'static str,
    ports: u16,
    /// One on each of the first ports, in a cgroup of its own as long as there are enough.
    listeners: usize,
    cgroups: usize,
    budget: Budget,
}

/// What may be used at most.
#[derive(Clone, Copy, Default)]
struct Budget {
    cpu_ms_per_tick: Option<f64>,
    resident_mib: Option<f64>,
    peak_mib: Option<f64>,
}

const CASES: [Case; 5] = [
    Case {
        name: "100 ports and listeners, one cgroup",
        ports: 100,
        listeners: 100,
        cgroups: 1,
        // Half a percent of a core.
        budget: Budget { cpu_ms_per_tick: Some(0.005 * TICK_MS), resident_mib: Some(20.0), peak_mib: None },
    },
    Case {
        name: "1,000 ports, 100 listeners, one cgroup",
        ports: 1_000,
        listeners: 100,
        cgroups: 1,
        budget: Budget { cpu_ms_per_tick: Some(0.005 * TICK_MS), resident_mib: Some(20.0), peak_mib: None },
    },
    Case {
        name: "100 ports, listeners and cgroups",
        ports: 100,
        listeners: 100,
        cgroups: 100,
        budget: Budget { cpu_ms_per_tick: None, resident_mib: Some(20.0), peak_mib: None },
    },
    Case {
        name: "1,000 ports, 100 listeners, 1,000 cgroups",
        ports: 1_000,
        listeners: 100,
        cgroups: 1_000,
        budget: Budget { cpu_ms_per_tick: Some(5.0), resident_mib: Some(20.0), peak_mib: None },
    },
    Case {
        name: "1,000 ports, listeners and cgroups",
        ports: 1_000,
        listeners: 1_000,
        cgroups: 1_000,
        budget: Budget { cpu_ms_per_tick: None, resident_mib: None, peak_mib: None },
    },
];

fn main() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "programs are loaded into the kernel: run as root");
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let mut measured = Vec::new();
    for case in CASES.iter().filter(|case| only.as_ref().is_none_or(|only| case.name.contains(only))) {
        eprintln!("== {}", case.name);
        let host = Host::new(case.ports, case.listeners, case.cgroups)?;
        let whole = daemon::measure(&host)?;
        let stages = stages::measure(&host)?;
        print!("{}", table(case, &whole, &stages));
        measured.push(entry(case, &whole, &stages));
    }
    let path = write(&json!({ "tick_ms": TICK_MS, "cases": measured }))?;
    println!("{}", path.display());
    Ok(())
}

fn rest_ms(whole: &Whole, stages: &Stages) -> f64 {
    whole.cpu_ms_per_tick - stages.each().iter().map(|(_, ms)| ms).sum::<f64>()
}

fn table(case: &Case, whole: &Whole, stages: &Stages) -> String {
    let mut text = format!("{}\n", case.name);
    let mut line = |name: &str, value: f64, unit: &str, budget: Option<f64>| {
        let verdict = budget.map_or_else(String::new, |budget| {
            format!(" of {budget} {}", if value <= budget { "kept" } else { "MISSED" })
        });
        text += &format!("  {name:<34} {value:>8.3} {unit}{verdict}\n");
    };
    line("whole tick", whole.cpu_ms_per_tick, "ms of CPU", case.budget.cpu_ms_per_tick);
    for (name, ms) in stages.each() {
        line(&format!("  {name}"), ms, "ms", None);
    }
    line("  rest", rest_ms(whole, stages), "ms", None);
    line("quota table when a level changes", stages.quota_table_ms, "ms", None);
    line("  mean of all windows", whole.mean_cpu_ms_per_tick, "ms", None);
    line("  least of all windows", whole.least_cpu_ms_per_tick, "ms", None);
    line("of one core", whole.cpu_ms_per_tick / TICK_MS * 100.0, "%", None);
    line("resident", whole.resident_mib, "MiB", case.budget.resident_mib);
    line("peak", whole.peak_mib, "MiB", case.budget.peak_mib);
    line("lines in the log", whole.log_lines as f64, "", None);
    text
}

fn entry(case: &Case, whole: &Whole, stages: &Stages) -> serde_json::Value {
    let stages_ms: serde_json::Map<_, _> =
        stages.each().iter().map(|(name, ms)| ((*name).to_owned(), json!(ms))).collect();
    let kept = |value: f64, budget: Option<f64>| budget.map(|budget| value <= budget);
    json!({
        "name": case.name,
        "ports": case.ports,
        "listeners": case.listeners,
        "cgroups": case.cgroups,
        "cpu_ms_per_tick": whole.cpu_ms_per_tick,
        "mean_cpu_ms_per_tick": whole.mean_cpu_ms_per_tick,
        "least_cpu_ms_per_tick": whole.least_cpu_ms_per_tick,
        "cpu_budget_ms_per_tick": case.budget.cpu_ms_per_tick,
        "cpu_kept": kept(whole.cpu_ms_per_tick, case.budget.cpu_ms_per_tick),
        "stages_ms": stages_ms,
        "rest_ms": rest_ms(whole, stages),
        "quota_table_ms": stages.quota_table_ms,
        "resident_mib": whole.resident_mib,
        "resident_budget_mib": case.budget.resident_mib,
        "resident_kept": kept(whole.resident_mib, case.budget.resident_mib),
        "peak_mib": whole.peak_mib,
        "peak_budget_mib": case.budget.peak_mib,
        "peak_kept": kept(whole.peak_mib, case.budget.peak_mib),
        "log_lines": whole.log_lines,
    })
}

fn write(report: &serde_json::Value) -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?.join("target");
    std::fs::create_dir_all(&target)?;
    let path = target.join("bench-tick.json");
    std::fs::write(&path, serde_json::to_string_pretty(report)? + "\n")?;
    Ok(path)
}
