//! A live run, recorded and replayed.

#![cfg(test)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::run::shedder;
use support::signal::{SignalFile, section};
use support::{Daemon, Net, SHEDDER, Setup, eventually};

fn record(daemon: &Daemon, file: &Path, rest: &[&str]) -> Child {
    let mut command = Command::new(SHEDDER);
    command.arg("record").arg(file).args(rest).arg("--socket").arg(daemon.socket());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Everything that the daemon's log says of levels, as (scope, from, to, signal).
fn steps_of_log(log: &str) -> Vec<[String; 4]> {
    let step = |line: &str| {
        let (_, step) = line.split_once("The level of ")?;
        let (scope, step) = step.split_once(" goes from ")?;
        let (from, step) = step.split_once(" to ")?;
        let up = step.split_once(" because of ").map(|(to, signal)| (to, signal.trim_end_matches('.')));
        let (to, signal) = up.or_else(|| step.trim_end_matches(" had held it up.").split_once("; "))?;
        Some([scope, from, to, signal].map(str::to_owned))
    };
    log.lines().filter_map(step).collect()
}

/// The steps that a replay takes, and when.
fn replay(daemon: &Daemon, trace: &Path) -> (Vec<[String; 4]>, Vec<f64>) {
    let (config, trace) = (daemon.config_file(), trace.to_str().unwrap());
    let told = shedder(&["simulate", "--config", config.to_str().unwrap(), "--trace", trace, "--json"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    let lines: Vec<Value> = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let word = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
    let steps = lines.iter().map(|line| ["scope", "from", "to", "signal"].map(|key| word(line, key)));
    (steps.collect(), lines.iter().map(|line| line["t"].as_f64().unwrap()).collect())
}

#[test]
fn a_replay_takes_the_steps_of_the_run() {
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let (host, port) = (directory.path().join("host"), directory.path().join("port"));
    let load = SignalFile::new(&host, "0");
    let age = SignalFile::new(&port, "0");
    let rest = format!(
        "{}{}for = \"300ms\"\n[levels]\nhold = \"500ms\"\nramp = \"0s\"\n[[port]]\nport = 8080\n",
        section("load", &host, "host"),
        section("age", &port, "port:8080"),
    );
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: &rest });
    let trace = directory.path().join("trace");
    let ticks = || daemon.status()["ticks"]["total"].as_u64().unwrap();
    let ticks_before = ticks();
    let recorder = record(&daemon, &trace, &[]);
    eventually("the recording runs", || fs::metadata(&trace).is_ok_and(|file| file.len() > 0));
    assert_eq!(fs::metadata(&trace).unwrap().permissions().mode() & 0o777, 0o600);

    let steps = || steps_of_log(&daemon.log());
    let ends_with = |scope: &str, to: &str| {
        steps().iter().rfind(|step| step[0] == scope).is_some_and(|step| step[2] == to)
    };
    load.set("1.2");
    eventually("the host is at moderate", || ends_with("host", "moderate"));
    age.set("3.5");
    eventually("the port is at emergency", || ends_with("port:8080", "emergency"));
    load.set("2.5");
    eventually("the host is at high", || ends_with("host", "high"));
    // One signal is lost, the other turns to garbage; both let go.
    age.vanish();
    load.set("garbage");
    eventually("the port is normal", || ends_with("port:8080", "normal"));
    eventually("the host is normal", || ends_with("host", "normal"));
    load.set("3");
    eventually("the host is at emergency", || ends_with("host", "emergency"));
    load.set("0");
    eventually("the host is normal again", || ends_with("host", "normal"));

    // The log is ahead of the trace.
    let ticks_of_run = ticks() - ticks_before;
    eventually("the trace has the last step", || ticks_of_trace(&trace) >= ticks_of_run);
    let recorder_pid = rustix::process::Pid::from_child(&recorder);
    rustix::process::kill_process(recorder_pid, rustix::process::Signal::INT).unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let summary = String::from_utf8(output.stdout).unwrap();
    assert!(summary.contains(" ticks, ") && summary.ends_with("ended by a signal\n"), "{summary}");

    let (replayed, times) = replay(&daemon, &trace);
    assert_eq!(replayed, steps());
    assert!(replayed.len() >= 9, "{replayed:?}");
    let falls = |step: &[String; 4]| rank(&step[2]) < rank(&step[1]);
    let mut pairs = 0;
    for scope in ["host", "port:8080"] {
        let of_scope: Vec<(f64, &[String; 4])> =
            times.iter().copied().zip(&replayed).filter(|(_, step)| step[0] == scope).collect();
        for pair in of_scope.windows(2).filter(|pair| pair.iter().all(|(_, step)| falls(step))) {
            pairs += 1;
            // `hold` lies between two steps down, whatever the machine does meanwhile.
            assert!(pair[1].0 - pair[0].0 > 0.499_999, "{of_scope:?}");
        }
    }
    assert!(pairs >= 5, "{replayed:?}");
}

/// Ticks whose first line is complete.
fn ticks_of_trace(trace: &Path) -> u64 {
    let text = fs::read_to_string(trace).unwrap();
    let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let times: BTreeSet<&str> = complete.lines().filter_map(|line| line.split(',').next()).collect();
    times.len().try_into().unwrap()
}

fn rank(level: &str) -> usize {
    ["normal", "moderate", "high", "emergency"].iter().position(|name| *name == level).unwrap()
}

#[test]
fn a_recording_keeps_its_bounds() {
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("age");
    let _age = SignalFile::new(&path, "0");
    let rest = section("age", &path, "port:8080") + "[[port]]\nport = 8080\n";
    let daemon = Daemon::start(&net, &Setup { mode: "observe", via: "auto", rest: &rest });
    let trace = |name: &str| directory.path().join(name);

    let short = record(&daemon, &trace("short"), &["--seconds", "0.5"]).wait_with_output().unwrap();
    assert!(short.status.success(), "{short:?}");
    assert!(String::from_utf8_lossy(&short.stdout).contains("the time is over"), "{short:?}");
    let small = record(&daemon, &trace("small"), &["--max-bytes", "1000"]).wait_with_output().unwrap();
    assert!(small.status.success(), "{small:?}");
    assert!(String::from_utf8_lossy(&small.stdout).contains("beyond 1000 bytes"), "{small:?}");
    assert!((1..=1000).contains(&fs::metadata(trace("small")).unwrap().len()));
    for name in ["short", "small"] {
        assert!(replay(&daemon, &trace(name)).0.is_empty());
    }
    let none = record(&daemon, &trace("none"), &["--max-bytes", "10"]).wait_with_output().unwrap();
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    assert!(!trace("none").exists());
    let again = record(&daemon, &trace("small"), &[]).wait_with_output().unwrap();
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!((1..=1000).contains(&fs::metadata(trace("small")).unwrap().len()));
}

#[test]
fn a_recording_survives_the_daemons_end_whole() {
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("age");
    let _age = SignalFile::new(&path, "0");
    let rest = section("age", &path, "port:8080") + "[[port]]\nport = 8080\n";
    let mut daemon = Daemon::start(&net, &Setup { mode: "observe", via: "auto", rest: &rest });
    let trace = directory.path().join("trace");
    let recorder = record(&daemon, &trace, &[]);
    eventually("the recording runs", || fs::metadata(&trace).is_ok_and(|file| file.len() > 0));
    assert_eq!(daemon.stop(rustix::process::Signal::TERM), Some(0));
    let output = recorder.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("the daemon stops"), "{output:?}");
    assert!(replay(&daemon, &trace).0.is_empty());
}
