use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use shedder_common::class::CLASSES;
use shedder_common::gate::GATES;

use super::*;
use crate::{golden, snapshot_sample};

/// A sample as a reader of the text sees it.
#[derive(Debug)]
struct Sample {
    family: String,
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Sample {
    fn label(&self, name: &str) -> &str {
        &self.labels[name]
    }
}

/// Reads OpenMetrics text as strictly as its specification; panics on the first offence.
fn parse(text: &str) -> Vec<Sample> {
    let body = text.strip_suffix("# EOF\n").expect("ends with # EOF");
    let mut families = BTreeSet::new();
    let mut kind = String::new();
    let mut family = String::new();
    let mut seen = BTreeSet::new();
    let mut samples = Vec::new();
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').expect("a help text");
            assert!(!text.is_empty() && !text.contains('\\'), "{line}");
            assert!(families.insert(name.to_owned()), "the family {name} stands twice");
            family = name.to_owned();
        } else if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, declared) = declared.split_once(' ').expect("a type");
            assert_eq!(name, family, "HELP comes before TYPE");
            kind = declared.to_owned();
        } else {
            let (name, labels, value) = parse_sample(line);
            let suffix = name.strip_prefix(family.as_str()).expect("samples stand under their family");
            let allowed: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_sum", "_count"],
                other => panic!("unexpected type {other}"),
            };
            assert!(allowed.contains(&suffix), "{kind} {name}");
            if kind != "gauge" {
                assert!(value >= 0.0, "{line}");
            }
            assert!(seen.insert((name.clone(), labels.clone())), "the series stands twice: {line}");
            samples.push(Sample { family: family.clone(), name, labels, value });
        }
    }
    samples
}

fn parse_sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let name_end = line.find(['{', ' ']).expect("a name");
    let (name, mut rest) = line.split_at(name_end);
    assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(mut list) = rest.strip_prefix('{') {
        loop {
            let (label, value) = list.split_once("=\"").expect("label=\"");
            assert!(label.chars().all(|c| c.is_ascii_lowercase()), "{line}");
            let (value, after) = parse_label_value(value);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            match after.strip_prefix(',') {
                Some(more) => list = more,
                None => {
                    rest = after.strip_prefix('}').expect("a closing brace");
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').expect("a space before the value");
    let number = match value {
        "+Inf" => f64::INFINITY,
        "NaN" => f64::NAN,
        digits => {
            assert!(digits.chars().all(|c| c.is_ascii_digit() || "+-.e".contains(c)), "{line}");
            digits.parse().expect("a number")
        }
    };
    (name.to_owned(), labels, number)
}

/// The value up to its closing quote, and what follows that.
fn parse_label_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next().expect("an escaped character").1 {
                'n' => value.push('\n'),
                c @ ('\\' | '"') => value.push(c),
                c => panic!("unknown escape {c}"),
            },
            c => value.push(c),
        }
    }
    panic!("the label value has no end: {text}");
}

fn rendered(snapshot: Snapshot) -> String {
    render(Arc::new(snapshot)).expect("renders")
}

#[test]
fn text_is_the_golden_one() {
    golden::check("metrics/testdata/sample.openmetrics", &rendered(snapshot_sample::snapshot()));
}

#[test]
fn every_documented_series_is_there_from_the_first_scrape() {
    let snapshot = snapshot_sample::snapshot();
    let ports = snapshot.ports.len();
    let samples = parse(&rendered(snapshot));
    let documented = [
        ("shedder_connections_total", &["port", "protocol", "class", "verdict", "reason"][..]),
        ("shedder_resets_sent_total", &["port", "class"]),
        ("shedder_retransmits_total", &["port", "verdict"]),
        ("shedder_exempt_total", &["reason"]),
        ("shedder_unparsed_total", &["reason"]),
        ("shedder_fail_open_total", &["reason"]),
        ("shedder_active_connections", &["port"]),
        ("shedder_quota_rate_per_second", &["port", "class"]),
        ("shedder_quota_connections", &["port", "class"]),
        ("shedder_accept_queue_depth_ratio", &["port"]),
        ("shedder_accept_wait_seconds_sum", &["port"]),
        ("shedder_level", &["scope"]),
        ("shedder_level_transitions_total", &["scope", "from", "to", "signal"]),
        ("shedder_level_held_seconds", &["scope"]),
        ("shedder_signal_value", &["signal", "scope"]),
        ("shedder_signal_enter_threshold", &["signal", "scope", "level"]),
        ("shedder_signal_exit_threshold", &["signal", "scope", "level"]),
        ("shedder_signal_up", &["signal", "scope"]),
        ("shedder_signal_read_errors_total", &["signal", "scope"]),
        ("shedder_tick_seconds_sum", &[]),
        ("shedder_attach_info", &["interface", "mode"]),
        ("shedder_mode", &["mode"]),
        ("shedder_build_info", &["version"]),
    ];
    for (name, labels) in documented {
        let expected: BTreeSet<&str> = labels.iter().copied().collect();
        let mut found = samples.iter().filter(|sample| sample.name == name).peekable();
        assert!(found.peek().is_some(), "{name} is missing");
        for sample in found {
            let labels: BTreeSet<&str> = sample.labels.keys().map(String::as_str).collect();
            assert_eq!(labels, expected, "{name}");
        }
    }
    // The quiet port has no class in the snapshot, and still all of its series.
    let connections = samples.iter().filter(|sample| sample.family == "shedder_connections").count();
    assert_eq!(connections, ports * CLASSES * (1 + 2 * GATES));
}

#[test]
fn values_are_those_of_the_snapshot() {
    let samples = parse(&rendered(snapshot_sample::snapshot()));
    let value = |name: &str, labels: &[(&str, &str)]| {
        let mut matching = samples.iter().filter(|sample| {
            sample.name == name
                && labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|v| v == value))
        });
        let found = matching.next().unwrap_or_else(|| panic!("{name} {labels:?}")).value;
        assert!(matching.next().is_none(), "{name} {labels:?} is ambiguous");
        found
    };
    let shed = |verdict, class, reason| {
        value(
            "shedder_connections_total",
            &[("port", "8080"), ("class", class), ("verdict", verdict), ("reason", reason)],
        )
    };
    assert_eq!(shed("admitted", "interactive", ""), 123_456.0);
    assert_eq!(shed("would_shed", "interactive", "queue_wait"), 17.0);
    assert_eq!(shed("shed", "batch", "closed"), 40.0);
    assert_eq!(shed("shed", "core", "rate"), 0.0);
    let rate = |port, class| value("shedder_quota_rate_per_second", &[("port", port), ("class", class)]);
    assert_eq!(rate("8080", "interactive"), 5000.0);
    assert_eq!(rate("8080", "batch"), 0.0);
    assert_eq!(rate("8000-8099", "core"), f64::INFINITY);
    assert_eq!(value("shedder_mode", &[("mode", "observe")]), 1.0);
    assert_eq!(value("shedder_mode", &[("mode", "enforce")]), 0.0);
    assert_eq!(value("shedder_level", &[("scope", "host")]), 1.0);
    assert_eq!(value("shedder_signal_up", &[("signal", "conntrack")]), 0.0);
    assert!(value("shedder_signal_value", &[("signal", "conntrack")]).is_nan());
    assert!(value("shedder_accept_queue_depth_ratio", &[("port", "8000-8099")]).is_nan());
    assert_eq!(value("shedder_level", &[("scope", "cgroup:/kube/\"odd\\pod\"\n")]), 0.0);
}

#[test]
fn steps_that_have_not_been_taken_are_there_as_zeros() {
    let samples = parse(&rendered(snapshot_sample::snapshot()));
    let steps: Vec<&Sample> =
        samples.iter().filter(|sample| sample.name == "shedder_level_transitions_total").collect();
    let total = |from: &str, to: &str, signal: &str| {
        let labels = [("scope", "host"), ("from", from), ("to", to), ("signal", signal)];
        let step = steps.iter().find(|step| labels.iter().all(|(label, value)| step.label(label) == *value));
        step.map(|step| step.value)
    };
    assert_eq!(total("normal", "moderate", "psi_memory_some"), Some(3.0));
    assert_eq!(total("normal", "emergency", "psi_memory_some"), Some(0.0));
    assert_eq!(total("emergency", "high", "psi_memory_some"), Some(0.0));
    assert_eq!(total("emergency", "normal", "psi_memory_some"), None, "down one step at a time");
    // Not readable now, and still configured.
    assert_eq!(total("moderate", "normal", "conntrack"), Some(0.0));
    assert_eq!(total("normal", "high", "conntrack"), None, "it has no threshold for that");
    assert_eq!(total("emergency", "normal", "operator"), Some(0.0));
    assert_eq!(total("high", "normal", "configuration"), Some(0.0));
    assert!(steps.iter().all(|step| step.label("scope") == "host"), "cgroups have only what they took");
}

#[test]
fn histograms_are_cumulative() {
    let samples = parse(&rendered(snapshot_sample::snapshot()));
    let of = |name: &str, port: &str| -> Vec<f64> {
        samples.iter().filter(|s| s.name == name && s.label("port") == port).map(|s| s.value).collect()
    };
    assert_eq!(of("shedder_accept_wait_seconds_bucket", "8080"), [10.0, 15.0, 16.0, 18.0]);
    assert_eq!(of("shedder_accept_wait_seconds_count", "8080"), [18.0]);
    assert_eq!(of("shedder_accept_wait_seconds_sum", "8080"), [7.25]);
    // Without a count yet the buckets are the kernel's.
    let empty = of("shedder_accept_wait_seconds_bucket", "8000-8099");
    assert_eq!(empty, [0.0; shedder_common::counters::WAIT_BUCKETS]);
    let last = samples.iter().rfind(|s| s.name == "shedder_tick_seconds_bucket").expect("ticks");
    assert_eq!((last.label("le"), last.value), ("+Inf", 1200.0));
}

#[test]
fn a_default_snapshot_renders() {
    let samples = parse(&rendered(Snapshot::default()));
    assert!(samples.iter().any(|sample| sample.name == "shedder_fail_open_total"));
}

proptest! {
    #[test]
    fn infinity_is_canonical_wherever_the_pieces_end(cuts in proptest::collection::vec(0_usize..60, 0..8)) {
        use std::fmt::Write;
        let text = "a{scope=\"λ inf\"} inf\nb inf\nc 1.0\nλ inf\nλλλ inf\n";
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut canonical = CanonicalText(String::new());
        for pair in cuts.windows(2) {
            canonical.write_str(&text[pair[0]..pair[1]]).expect("writes");
        }
        prop_assert_eq!(canonical.0, text.replace(" inf\n", " +Inf\n"));
    }

    #[test]
    fn hostile_names_stay_within_their_label(name in any::<String>()) {
        let mut snapshot = snapshot_sample::snapshot();
        snapshot.levels[0].scope.clone_from(&name);
        snapshot.signals[0].signal.clone_from(&name);
        // A line break that is no line feed does not end a line, but `lines` would strip it at a line's end; no
        // sample ends in a label.
        let samples = parse(&rendered(snapshot));
        prop_assert!(samples.iter().any(|s| s.name == "shedder_level" && s.label("scope") == name));
        prop_assert!(samples.iter().any(|s| s.name == "shedder_signal_up" && s.label("signal") == name));
    }
}
