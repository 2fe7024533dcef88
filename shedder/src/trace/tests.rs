use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use shedder_common::level::{LEVELS, Level};

use super::*;
use crate::config::model::{Config, FileScope, LevelRules, OnLoss, Signal, SignalSource, Threshold};
use crate::levels::Levels;
use crate::sensors::reading::{Reading, Scope, Unavailable};

fn rules() -> LevelRules {
    LevelRules {
        hold: Duration::from_secs(1),
        max_hold: Duration::from_secs(5),
        ramp: Duration::ZERO,
        stale_after: Duration::from_secs(2),
        on_loss: OnLoss::Ignore,
    }
}

fn signal(name: &str, enter: f64, exit: f64) -> Signal {
    let mut thresholds = [None; LEVELS];
    thresholds[Level::Moderate.index()] = Some(Threshold { enter, exit });
    thresholds[Level::High.index()] = Some(Threshold { enter: enter + 0.05, exit: exit + 0.05 });
    Signal {
        name: name.to_owned(),
        source: SignalSource::Memory,
        enabled: true,
        thresholds,
        rise_after: Duration::ZERO,
        stale_after: Duration::from_secs(2),
        on_loss: OnLoss::Ignore,
    }
}

fn signals() -> Vec<Signal> {
    vec![signal("memory", 0.92, 0.88), signal("fds", 0.80, 0.70)]
}

fn run(trace: &str) -> Result<Simulation, TraceError> {
    simulate(trace.as_bytes(), &rules(), &signals(), |_, _| {})
}

fn error(trace: &str) -> String {
    run(trace).unwrap_err().to_string()
}

fn line(t: f64, value: &str) -> String {
    format!("{{\"t\":{t},\"signal\":\"memory\",\"scope\":\"host\",\"value\":{value}}}\n")
}

#[test]
fn a_trace_gives_its_transitions() {
    let trace: String = (0u32..=40)
        .map(|tick| line(f64::from(tick) / 10.0, if tick == 5 { "0.92" } else { "0.5" }))
        .collect();
    let mut ticks = 0;
    let simulation = simulate(trace.as_bytes(), &rules(), &signals(), |_, levels| {
        ticks += 1;
        assert!(levels.level(&Scope::Host) <= Level::Moderate);
    })
    .unwrap();
    assert_eq!(ticks, 41);
    assert_eq!(
        simulation.json_lines().unwrap(),
        "{\"t\":0.5,\"scope\":\"host\",\"from\":\"normal\",\"to\":\"moderate\",\"signal\":\"memory\"}\n\
         {\"t\":1.6,\"scope\":\"host\",\"from\":\"moderate\",\"to\":\"normal\",\"signal\":\"memory\"}\n"
    );
    let text = simulation.text();
    assert!(text.contains("0.500 s  host  normal -> moderate  (memory)"), "{text}");
    assert!(
        text.contains(&format!("{}{}{}  host\n", ".".repeat(7), "m".repeat(17), ".".repeat(36))),
        "{text}"
    );
    assert!(text.ends_with("41 ticks in 4.000 s, 2 transitions\n"), "{text}");
}

#[test]
fn what_was_unavailable_is_unavailable() {
    let mut trace = line(0.0, "0.92");
    trace.extend((1u32..=40).map(|tick| line(f64::from(tick) / 10.0, "null")));
    let simulation = run(&trace).unwrap();
    assert_eq!(simulation.transitions.len(), 2, "lost after 2 s, down after 1 s more");
    assert_eq!(simulation.transitions[1].at, Duration::from_secs(3));
}

#[test]
fn a_value_is_as_old_as_the_trace_says() {
    let mut trace = line(0.0, "0.92").replace('}', ",\"age\":1.5}");
    trace.extend((1u32..=40).map(|tick| line(f64::from(tick) / 10.0, "null")));
    let simulation = run(&trace).unwrap();
    assert_eq!(
        simulation.transitions[1].at,
        Duration::from_millis(1_500),
        "lost after 0.5 s, down after 1 s more"
    );
    assert!(error(&line(0.0, "0.92").replace('}', ",\"age\":-1}")).contains("`age` is -1, not seconds"));
}

#[test]
fn errors_name_their_line() {
    let good = line(0.0, "0.5");
    for (bad, expected) in [
        (
            "{\"t\":1,\"signal\":\"memry\",\"scope\":\"host\",\"value\":1}",
            "line 2: unknown signal `memry`; did you mean `memory`?",
        ),
        (
            "{\"t\":1,\"signal\":\"queue_age\",\"scope\":\"host\",\"value\":1}",
            "line 2: unknown signal `queue_age`; add [signals.queue_age]",
        ),
        (
            "{\"t\":1,\"signal\":\"memory\",\"scope\":\"port:0\",\"value\":1}",
            "line 2: `scope`: 0 is no port: choose 1 to 65535",
        ),
        ("{\"t\":1,\"signal\":\"memory\",\"scope\":\"host\"}", "line 2: column 40: missing field `value`"),
        (
            "{\"t\":1,\"signal\":\"memory\",\"scope\":\"host\",\"value\":1,\"x\":2}",
            "line 2: column 53: unknown field `x`",
        ),
        (
            "{\"t\":1,\"signal\":\"memory\",\"scope\":\"host\",\"value\":\"1\"}",
            "line 2: column 51: invalid type",
        ),
        ("{\"t\":-1,\"signal\":\"memory\",\"scope\":\"host\",\"value\":1}", "line 2: `t` is -1"),
        ("{\"t\":1e300,\"signal\":\"memory\",\"scope\":\"host\",\"value\":1}", "line 2: `t` is 1"),
        ("{\"t\":1,\"signal\":\"mem", "line 2: column 20: EOF"),
        ("garbage", "line 2: column 1: expected value"),
        ("\u{0}", "line 2: column 1: expected value"),
    ] {
        let error = error(&format!("{good}{bad}\n"));
        assert!(error.starts_with(expected), "{bad}: {error}");
    }
    assert_eq!(error(""), "the trace is empty");
    assert_eq!(error("\n \n"), "the trace is empty");
    let long = format!("{good}{}\n", " ".repeat(70_000));
    assert!(error(&long).starts_with("line 2: longer than"));
}

#[test]
fn a_byte_order_mark_is_passed_over_at_the_start_alone() {
    let line = line(0.0, "0.5");
    assert_eq!(run(&format!("\u{feff}{line}")).unwrap(), run(&line).unwrap());
    assert_eq!(error("\u{feff}\n"), "the trace is empty");
    assert!(error(&format!("{line}\u{feff}{line}")).starts_with("line 2: column 1: expected value"));
}

#[test]
fn a_line_is_an_object() {
    let good = line(0.0, "0.5");
    for (bad, column) in [("[1,\"memory\",\"host\",1]", 1), ("  [1,\"memory\",\"host\",1,0]", 3), ("[]", 1)] {
        let expected = format!("line 2: column {column}: expected a line such as {{\"t\":0.1,");
        assert!(error(&format!("{good}{bad}\n")).starts_with(&expected), "{bad}");
    }
}

#[test]
fn a_signal_is_read_where_the_configuration_says() {
    let source = SignalSource::File { path: "/age".into(), scope: FileScope::Port(8080) };
    let age = [Signal { source, ..signal("age", 10.0, 5.0) }];
    let at = |scope: &str, value: &str| {
        let line = format!("{{\"t\":0,\"signal\":\"age\",\"scope\":\"{scope}\",\"value\":{value}}}\n");
        simulate(line.as_bytes(), &rules(), &age, |_, _| {}).map_err(|error| error.to_string())
    };
    assert_eq!(at("port:8080", "99").unwrap().transitions.len(), 1);
    for value in ["99", "null"] {
        assert_eq!(
            at("host", value).unwrap_err(),
            "line 1: `age` is of host here and of port:8080 in the configuration: change the line, or signals.age.scope"
        );
    }
    assert!(at("port:8081", "1").unwrap_err().contains("is of port:8081 here"));
}

#[test]
fn ports_without_a_policy_are_told_of() {
    let config = |ports: &str| crate::config::parse(&format!("version = 1\n{ports}"), "test").unwrap();
    let line = |port: u16| {
        format!("{{\"t\":0,\"signal\":\"accept_queue\",\"scope\":\"port:{port}\",\"value\":0.1}}\n")
    };
    let trace = [line(80), line(8080), line(8081), line(9090)].concat();
    let warning = |config: &Config| replay(trace.as_bytes(), config).unwrap().warning();
    assert_eq!(
        warning(&config("[[port]]\nport = \"8080-8089\"\nshared = true\n")).unwrap(),
        "the trace has readings of ports without a policy, which change no limit: 80, 9090"
    );
    assert_eq!(
        warning(&config("[[port]]\nport = 80\n[[port]]\nport = 9090\n[[port]]\nport = \"8080-8081\"\n")),
        None
    );
    assert_eq!(warning(&Config::observe_default()), None, "it follows what listens");
}

#[test]
fn names_stay_on_their_line() {
    let scope = "cgroup:/a\\n\\u001b[2Jport 80";
    let line = format!("{{\"t\":0,\"signal\":\"memory\",\"scope\":\"{scope}\",\"value\":1}}\n");
    let text = run(&line.replace("\\\\", "\\")).unwrap().text();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("  cgroup:/a\\n\\u{1b}[2Jport 80  normal -> high"), "{text}");
}

#[test]
fn reversed_time_and_gaps_are_errors() {
    let reversed = [line(1.0, "0.5"), line(1.1, "0.5"), line(1.0, "0.5")].concat();
    assert!(error(&reversed).starts_with("line 3: time goes back from 1.1 s to 1 s"));
    let gap = [line(1.0, "0.5"), line(3.0, "0.5"), line(5.1, "0.5")].concat();
    assert!(error(&gap).starts_with("line 3: a gap of 2.1 s before 5.1 s: signals are stale after 2 s"));
}

#[test]
fn a_signal_that_is_stale_sooner_than_it_was_read_again_is_an_error() {
    let of = |t: f64, signal: &str, scope: &str| {
        format!("{{\"t\":{t},\"signal\":\"{signal}\",\"scope\":\"{scope}\",\"value\":0.5}}\n")
    };
    // The host at every tick, the workload at every fifth.
    let tick = |tick: u32| {
        let t = f64::from(tick) / 10.0;
        let workload = if tick.is_multiple_of(5) { of(t, "fds", "cgroup:/a") } else { String::new() };
        of(t, "memory", "host") + &workload
    };
    let trace: String = (0..20).map(tick).collect();
    let replay = |trace: &str, stale_after_ms: [u64; 2]| {
        let mut signals = signals();
        for (signal, ms) in signals.iter_mut().zip(stale_after_ms) {
            signal.stale_after = Duration::from_millis(ms);
        }
        simulate(trace.as_bytes(), &rules(), &signals, |_, _| {}).map_err(|error| error.to_string())
    };
    assert!(replay(&trace, [200, 500]).is_ok());
    let lacking = trace.replace("\"cgroup:/a\",\"value\":0.5", "\"cgroup:/a\",\"value\":null");
    assert!(replay(&lacking, [200, 400]).is_ok());
    assert_eq!(
        replay(&trace, [2_000, 400]).unwrap_err(),
        "line 8: `fds` at cgroup:/a was read after 0.5 s, at the pace of the configuration that it was recorded with, and \
         is stale after 0.4 s here: record with this configuration, or raise stale_after"
    );
}

#[test]
fn a_workload_that_was_gone_for_a_while_is_no_error() {
    let of = |t: f64, scope: &str| {
        format!("{{\"t\":{t},\"signal\":\"memory\",\"scope\":\"{scope}\",\"value\":0.5}}\n")
    };
    let gone = 5..35;
    let tick = |tick: u32| {
        let t = f64::from(tick) / 10.0;
        of(t, "host") + &if gone.contains(&tick) { String::new() } else { of(t, "cgroup:/a") }
    };
    let trace: String = (0..40).map(tick).collect();
    let hasty = [Signal { stale_after: Duration::from_millis(300), ..signal("memory", 0.92, 0.88) }];
    assert!(simulate(trace.as_bytes(), &rules(), &hasty, |_, _| {}).is_ok());
}

#[test]
fn a_signal_that_is_switched_off_is_passed_over() {
    let mut off = signals();
    off[0].enabled = false;
    let simulation = simulate(line(0.0, "0.99").as_bytes(), &rules(), &off, |_, _| {}).unwrap();
    assert!(simulation.transitions.is_empty());
}

fn reading(value: Result<f64, Unavailable>) -> Reading {
    Reading::of_now(&Arc::from("memory"), &Scope::Host, value)
}

#[test]
fn a_recording_is_of_bounded_size_and_ends_with_a_whole_tick() {
    let tick = [reading(Ok(0.25)), reading(Err(Unavailable::new("gone")))];
    let size = |ticks: u64| {
        let mut recorder = Recorder::new(Vec::new(), 1_000);
        let results: Vec<_> = (0..ticks)
            .map(|tick_index| recorder.record(Duration::from_secs(tick_index), &tick, []).unwrap())
            .collect();
        (recorder.into_inner(), results)
    };
    let (trace, results) = size(100);
    assert!(trace.len() <= 1_000 && trace.len() > 800, "{}", trace.len());
    assert_eq!(results.first(), Some(&Recorded::Written));
    assert_eq!(results.last(), Some(&Recorded::Full));
    let text = String::from_utf8(trace).unwrap();
    assert_eq!(text.lines().count() % 2, 0);
    assert!(
        text.starts_with("{\"t\":0.0,\"signal\":\"memory\",\"scope\":\"host\",\"value\":0.25}\n"),
        "{text}"
    );
    assert!(text.ends_with("\"value\":null}\n"));
    let mut recorder = Recorder::new(Vec::new(), 100);
    assert_eq!(recorder.record(Duration::ZERO, &tick, []).unwrap(), Recorded::Full);
    assert_eq!(
        recorder.record(Duration::ZERO, &tick[..1], []).unwrap(),
        Recorded::Full,
        "no tick after a gap"
    );
}

#[test]
fn a_recording_that_cannot_be_written_says_so() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = Recorder::new(full, 1_000).record(Duration::ZERO, &[reading(Ok(1.0))], []).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What was recorded of a live run replays to the same transitions at the same times.
    #[test]
    fn a_recorded_run_replays_to_the_same_transitions(
        start_ms in 0u64..10_000_000,
        runs in prop::collection::vec(
            (1u64..25, prop::option::weighted(0.9, 0.6f64..1.0), prop::option::weighted(0.9, 0.6f64..1.0), any::<bool>(), prop_oneof![Just(0u32), 0u32..2_500]),
            1..30,
        ),
        jitter_ns in prop::collection::vec(0u64..50_000_000, 16),
    ) {
        let mut levels = Levels::new(&rules(), &signals());
        let mut recorder = Recorder::new(Vec::new(), u64::MAX);
        let start = Duration::from_millis(start_ms);
        let mut now = start;
        let mut live = Vec::new();
        let workload = Scope::cgroup(Path::new("/a \"b\"/ü.service"));
        for (index, (ticks, memory, fds, calm, age_ms)) in runs.iter().enumerate() {
            for _ in 0..*ticks {
                let of = |signal: &str, scope: &Scope, value: &Option<f64>| Reading {
                    age: Duration::from_nanos(u64::from(*age_ms) * 999_999),
                    ..Reading::of_now(&Arc::from(signal), scope, value.ok_or_else(|| Unavailable::new("lost")))
                };
                let readings = [of("memory", &Scope::Host, memory), of("fds", &workload, fds), of("fds", &Scope::Port(80), memory)];
                let below = if *calm { BTreeSet::from([Scope::Host, workload.clone()]) } else { BTreeSet::new() };
                live.extend(levels.update(now, &readings, |scope| below.contains(scope)).transitions);
                recorder.record(now, &readings, &below).unwrap();
                now += Duration::from_millis(100) + Duration::from_nanos(jitter_ns[index % 16]);
            }
        }
        for event in &mut live {
            event.at -= start;
        }
        let trace = recorder.into_inner();
        let simulation = simulate(trace.as_slice(), &rules(), &signals(), |_, _| {}).unwrap();
        prop_assert_eq!(simulation.transitions, live);
    }

    /// No input is a surprise.
    #[test]
    fn any_bytes_are_a_trace_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let result = simulate(bytes.as_slice(), &rules(), &signals(), |_, _| {});
        prop_assert!(result.is_err());
    }
}
