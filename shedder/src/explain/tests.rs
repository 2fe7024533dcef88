use super::*;
use crate::snapshot::{Rising, ScopeLevel, SignalState};
use crate::snapshot_sample;

fn names<T, const N: usize>(entries: [(&str, T); N]) -> BTreeMap<String, T> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// `memory` of the host at `high` and `moderate`, demanding `demands`.
fn memory(value: Option<f64>, demands: &str) -> SignalState {
    SignalState {
        signal: "memory".to_owned(),
        scope: "host".to_owned(),
        unit: "ratio".to_owned(),
        value,
        enter: names([("moderate", 0.92), ("high", 0.95)]),
        exit: names([("moderate", 0.88), ("high", 0.90)]),
        demands: demands.to_owned(),
        since_seconds: 4.0,
        ..SignalState::default()
    }
}

fn host(level: &str, signal: &str) -> ScopeLevel {
    ScopeLevel {
        scope: "host".to_owned(),
        level: level.to_owned(),
        held_seconds: 4.0,
        signal: signal.to_owned(),
        demanded: level.to_owned(),
        hold_seconds: 10.0,
        ..ScopeLevel::default()
    }
}

fn of(level: ScopeLevel, signal: SignalState, pin: Option<Pin>) -> ScopeExplanation {
    let snapshot = Snapshot { levels: vec![level], signals: vec![signal], pin, ..Snapshot::default() };
    explain(&snapshot, None).unwrap().scopes.remove(0)
}

fn verdict(signal: SignalState) -> String {
    let demands = signal.demands.clone();
    of(host(&demands, ""), signal, None).signals.remove(0).verdict
}

#[test]
fn each_reading_has_unit_threshold_and_verdict() {
    for (value, demands, expected) in [
        (0.5, "normal", "0.5 of 1: below 0.92, where moderate begins"),
        (
            0.93,
            "moderate",
            "0.93 of 1: at or above 0.92, where moderate begins; below 0.95, where high begins",
        ),
        (
            0.89,
            "moderate",
            "0.89 of 1: above 0.88, where moderate ends; it began at 0.92; below 0.95, where high begins",
        ),
        (0.97, "high", "0.97 of 1: at or above 0.95, where high begins; it demands no more than that"),
        // It must not look as if it had reached what it has not.
        (0.919_999_9, "normal", "0.92 of 1: 0.9199999 is below 0.92, where moderate begins"),
    ] {
        assert_eq!(verdict(memory(Some(value), demands)), expected);
    }
    let five = SignalState {
        unit: "percent".to_owned(),
        enter: names([("moderate", 10.0)]),
        ..memory(Some(5.0), "normal")
    };
    assert_eq!(verdict(five), "5% of time: below 10%, where moderate begins");
    let own = SignalState { unit: String::new(), ..memory(Some(0.5), "normal") };
    assert!(verdict(own).starts_with("0.5 in its own unit: below 0.92"));
    let rising = Rising { level: "high".to_owned(), seconds: 1.2, for_seconds: 3.0 };
    let rising = SignalState { rising: Some(rising), ..memory(Some(0.96), "normal") };
    assert_eq!(verdict(rising), "0.96 of 1: at or above 0.95 for 1.2 s of the 3 s after which high begins");
    let bare = SignalState { enter: BTreeMap::new(), exit: BTreeMap::new(), ..memory(Some(0.5), "normal") };
    assert_eq!(verdict(bare), "0.5 of 1: it has no thresholds");
}

#[test]
fn what_is_unavailable_says_why_and_demands_nothing() {
    let lost = |demands| SignalState { unavailable: "/proc/x is gone".to_owned(), ..memory(None, demands) };
    assert_eq!(verdict(lost("normal")), "unavailable, so it demands nothing: /proc/x is gone");
    assert_eq!(
        verdict(lost("high")),
        "unavailable; on_loss = \"hold\" keeps high for a time: /proc/x is gone"
    );
}

#[test]
fn a_scope_says_why_and_what_would_change_it() {
    let signal = || memory(Some(0.93), "moderate");
    let demanded = of(host("moderate", "memory"), signal(), None);
    assert_eq!(demanded.why, "memory demands it");
    assert_eq!(demanded.next, "down to normal once memory is at or below 0.88 for 10 s");
    let leaving = ScopeLevel { below_seconds: Some(4.0), ..host("high", "memory") };
    let leaving = of(leaving, memory(Some(0.5), "normal"), None);
    assert_eq!(leaving.why, "memory demanded it and has let go");
    assert_eq!(leaving.next, "down to moderate in 6 s, unless a signal demands high again");
    let probed = of(ScopeLevel { probing: true, ..host("normal", "") }, signal(), None);
    assert!(probed.why.contains("probed") && probed.next.contains("get worse"), "{probed:?}");
    let removed = of(host("high", "configuration"), signal(), None);
    assert!(removed.why.contains("no longer configured"), "{removed:?}");
    let normal = of(host("normal", ""), memory(Some(0.1), "normal"), None);
    assert_eq!(normal.why, "no signal has led higher");
}

#[test]
fn an_operator_is_named() {
    let demanded = ScopeLevel { demanded: "moderate".to_owned(), ..host("emergency", "operator") };
    let pin = Pin { level: "emergency".to_owned(), remaining_seconds: Some(3.2) };
    let pinned = of(demanded.clone(), memory(Some(0.93), "moderate"), Some(pin.clone()));
    assert_eq!(pinned.why, "an operator pinned it for 3.2 s more; its signals demand moderate");
    assert_eq!(pinned.next, "`shedder level auto` leaves it to the signals again");
    let forever = Pin { remaining_seconds: None, ..pin };
    let pinned = of(demanded, memory(Some(0.93), "moderate"), Some(forever));
    assert!(pinned.why.contains("until `shedder level auto`"), "{pinned:?}");
}

#[test]
fn a_port_sees_the_scopes_that_bear_on_it() {
    let mut snapshot = snapshot_sample::snapshot();
    for scope in ["port:8080", "port:9", "cgroup:/other"] {
        snapshot.levels.push(ScopeLevel { scope: scope.to_owned(), ..host("moderate", "") });
    }
    let explanation = explain(&snapshot, Some("8080")).unwrap();
    let scopes: Vec<&str> = explanation.scopes.iter().map(|scope| scope.scope.as_str()).collect();
    assert_eq!(scopes, ["host", "cgroup:/kube/\"odd\\pod\"\n", "port:8080"]);
    let port = explanation.port.unwrap();
    assert_eq!(port.given_by, ["host", "port:8080"]);
    assert_eq!(explain(&snapshot, None).unwrap().scopes.len(), 5);
}

#[test]
fn a_class_is_told_its_limits_and_what_binds() {
    let snapshot = snapshot_sample::snapshot();
    let port = explain(&snapshot, Some("8080")).unwrap().port.unwrap();
    let class = |name: &str| port.classes.iter().find(|class| class.class == name).unwrap();
    let interactive = class("interactive");
    let states: Vec<LimitState> = interactive.limits.iter().map(|limit| limit.state).collect();
    assert_eq!(states, [LimitState::Near, LimitState::Clear, LimitState::Clear, LimitState::Clear]);
    assert_eq!(interactive.binding, ["queue_wait"]);
    assert_eq!(
        interactive.verdict,
        "partly refused, if mode were enforce: 3 by queue_wait in the last 3.2 s"
    );
    let batch = class("batch");
    assert_eq!(batch.binding, ["closed"]);
    assert!(batch.limits.iter().all(|limit| limit.state == LimitState::Closed));
    assert_eq!(batch.verdict, "refused: it has no share at this level, if mode were enforce");
}

#[test]
fn a_limit_that_is_reached_binds_without_a_refusal() {
    let mut snapshot = snapshot_sample::snapshot();
    snapshot.mode = "enforce".to_owned();
    let state = snapshot.ports[0].classes.get_mut("interactive").unwrap();
    state.recently_refused.clear();
    let verdict = |snapshot: &Snapshot| {
        explain(snapshot, Some("8080")).unwrap().port.unwrap().classes.remove(0).verdict
    };
    assert_eq!(verdict(&snapshot), "admitted, near a limit: rate 4200/s of 5000/s");
    snapshot.ports[0].active_connections = 20_000;
    assert_eq!(verdict(&snapshot), "refused now: connections 20000 open of 20000 open");
    snapshot.ports[0].active_connections = 0;
    snapshot.ports[0].recent.admitted_per_second = 5_000.0;
    assert_eq!(verdict(&snapshot), "partly refused now: rate 5000/s of 5000/s");
    snapshot.ports[0].recent = Default::default();
    assert_eq!(verdict(&snapshot), "admitted, no limit is near");
    snapshot.mode = "off".to_owned();
    assert!(verdict(&snapshot).contains("mode is off"));
}

#[test]
fn classes_with_the_same_limits_have_the_same_verdict_whoever_was_refused_lately() {
    let mut snapshot = snapshot_sample::snapshot();
    snapshot.mode = "enforce".to_owned();
    let port = &mut snapshot.ports[0];
    port.active_connections = 20_000;
    let mut core = port.classes["interactive"].clone();
    core.recently_refused.clear();
    port.classes.insert("core".to_owned(), core);
    let port = explain(&snapshot, Some("8080")).unwrap().port.unwrap();
    let verdicts: Vec<&str> = port.classes.iter().map(|class| class.verdict.as_str()).collect();
    let now = "refused now: connections 20000 open of 20000 open";
    assert_eq!(verdicts[..2], [now.to_owned(), format!("{now}; 3 by queue_wait in the last 3.2 s")]);
}

#[test]
fn a_rate_says_where_it_comes_from() {
    let mut snapshot = snapshot_sample::snapshot();
    let rate = |snapshot: &Snapshot| explain(snapshot, Some("8080")).unwrap().port.unwrap().rate;
    assert_eq!(rate(&snapshot), "5000/s, by configuration");
    let port = &mut snapshot.ports[0];
    port.rate = "9/s".to_owned();
    let limit = SetLimit { value: "9/s".to_owned(), configured: "5000/s".to_owned(), goes_back: None };
    port.set.insert("rate".to_owned(), limit);
    assert_eq!(rate(&snapshot), "9/s, set by an operator");
    snapshot.ports[0].rate = "learned".to_owned();
    assert!(rate(&snapshot).starts_with("learned: no limit, since the pressure came before"));
    "normal".clone_into(&mut snapshot.ports[0].level);
    assert!(rate(&snapshot).ends_with("then what was admitted before it, 10/s at least"));
    snapshot.ports[0].learned_rate_per_second = Some(200.0);
    assert!(rate(&snapshot).starts_with("learned: 200/s were admitted before the pressure; "));
    snapshot.ports[0].learned_rate_per_second = Some(10.0);
    assert!(
        rate(&snapshot)
            .starts_with("learned: 10/s, the least, since no more were admitted before the pressure; ")
    );
}

#[test]
fn ports_are_found_by_number_and_range() {
    let snapshot = snapshot_sample::snapshot();
    for (asked, found) in [("8080", "8080"), ("8042", "8000-8099"), ("8000-8099", "8000-8099")] {
        // The first policy that covers it, as the configuration has it.
        assert_eq!(explain(&snapshot, Some(asked)).unwrap().port.unwrap().port, found);
    }
    let error = explain(&snapshot, Some("9")).unwrap_err();
    assert!(error.ends_with("ports with a policy: 8000-8099, 8080"), "{error}");
    for spelled in ["08080", "+8080"] {
        let error = explain(&snapshot, Some(spelled)).unwrap_err();
        assert_eq!(error, range::PortRange::parse(spelled).unwrap_err(), "as `set` says it");
    }
    let error = explain(&snapshot, Some("8000-8100")).unwrap_err();
    assert!(error.ends_with("name a port, such as 8080"), "{error}");
    let error = explain(&Snapshot::default(), Some("\x1b[2J")).unwrap_err();
    assert!(error.contains("no port has one") && !error.contains('\x1b'), "{error}");
}

#[test]
fn an_explanation_survives_its_json() {
    let explanation = explain(&snapshot_sample::snapshot(), Some("8080")).unwrap();
    let Payload::Document(document) = answer(&snapshot_sample::snapshot(), Some("8080")).unwrap() else {
        panic!("no document")
    };
    assert_eq!(serde_json::from_value::<Explanation>(document).unwrap(), explanation);
}
