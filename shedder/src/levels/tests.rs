use std::path::{Path, PathBuf};

use proptest::prelude::*;
use shedder_common::level::LEVELS;

use super::*;
use crate::config::model::{FileScope, OnLoss, SignalSource, Threshold};
use crate::sensors::reading::Unavailable;

const TICK_MS: u64 = 100;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn rules() -> LevelRules {
    LevelRules {
        hold: ms(10_000),
        max_hold: ms(300_000),
        ramp: ms(5_000),
        stale_after: ms(2_000),
        on_loss: OnLoss::Ignore,
    }
}

/// `[(enter, exit)]` from `moderate` on.
fn signal(name: &str, thresholds: &[(f64, f64)]) -> Signal {
    let mut by_level = [None; LEVELS];
    for (slot, (enter, exit)) in by_level.iter_mut().skip(1).zip(thresholds) {
        *slot = Some(Threshold { enter: *enter, exit: *exit });
    }
    Signal {
        name: name.to_owned(),
        source: SignalSource::Memory,
        enabled: true,
        thresholds: by_level,
        rise_after: Duration::ZERO,
        stale_after: ms(2_000),
        on_loss: OnLoss::Ignore,
    }
}

const MEMORY: &[(f64, f64)] = &[(0.92, 0.88), (0.95, 0.90), (0.98, 0.93)];

fn memory() -> Signal {
    signal("memory", MEMORY)
}

fn at(signal: &str, scope: Scope, value: Result<f64, &str>) -> Reading {
    let value = value.map_err(|why| Unavailable::new(why.to_owned()));
    Reading::of_now(&Arc::from(signal), &scope, value)
}

fn host(signal: &str, value: f64) -> Reading {
    at(signal, Scope::Host, Ok(value))
}

/// Levels with a clock.
struct Run {
    levels: Levels,
    now: Duration,
    calm: bool,
    events: Vec<TransitionEvent>,
    availability: Vec<AvailabilityEvent>,
}

impl Run {
    fn new(rules: &LevelRules, signals: &[Signal]) -> Self {
        let levels = Levels::new(rules, signals);
        Self { levels, now: ms(1_000_000), calm: false, events: Vec::new(), availability: Vec::new() }
    }

    /// One tick.
    fn tick(&mut self, readings: &[Reading]) -> Level {
        self.now += ms(TICK_MS);
        let calm = self.calm;
        let update = self.levels.update(self.now, readings, |_| calm);
        self.events.extend(update.transitions);
        self.availability.extend(update.availability);
        self.host()
    }

    /// Ticks for that long.
    fn ticks(&mut self, duration_ms: u64, readings: &[Reading]) -> Level {
        for _ in 0..duration_ms / TICK_MS {
            self.tick(readings);
        }
        self.host()
    }

    fn host(&self) -> Level {
        self.levels.level(&Scope::Host)
    }

    fn steps(&self) -> Vec<(Level, Level, &str)> {
        self.events.iter().map(|event| (event.from, event.to, &*event.signal)).collect()
    }
}

use Level::{Emergency, High, Moderate, Normal};

#[test]
fn up_at_once_as_far_as_demanded_and_down_one_at_a_time() {
    let mut run = Run::new(&rules(), &[memory()]);
    assert_eq!(run.tick(&[host("memory", 0.5)]), Normal);
    assert_eq!(run.tick(&[host("memory", 0.98)]), Emergency);
    assert_eq!(run.ticks(10_000, &[host("memory", 0.5)]), Emergency, "not before `hold`");
    assert_eq!(run.tick(&[host("memory", 0.5)]), High);
    assert_eq!(run.ticks(10_000, &[host("memory", 0.5)]), Moderate);
    assert_eq!(run.ticks(10_000, &[host("memory", 0.5)]), Normal);
    let all = [
        (Normal, Emergency, "memory"),
        (Emergency, High, "memory"),
        (High, Moderate, "memory"),
        (Moderate, Normal, "memory"),
    ];
    assert_eq!(run.steps(), all);
}

#[test]
fn between_exit_and_enter_the_level_stays() {
    let mut run = Run::new(&rules(), &[memory()]);
    assert_eq!(run.ticks(60_000, &[host("memory", 0.919)]), Normal, "not entered");
    run.tick(&[host("memory", 0.92)]);
    assert_eq!(run.ticks(60_000, &[host("memory", 0.881)]), Moderate, "not left");
    assert_eq!(run.ticks(10_100, &[host("memory", 0.88)]), Normal);
}

#[test]
fn an_exit_of_zero_can_be_reached() {
    let mut run = Run::new(&rules(), &[signal("listen_overflows", &[(1.0, 0.0)])]);
    assert_eq!(run.tick(&[host("listen_overflows", 3.0)]), Moderate);
    assert_eq!(run.ticks(60_000, &[host("listen_overflows", 0.5)]), Moderate);
    assert_eq!(run.ticks(10_100, &[host("listen_overflows", 0.0)]), Normal);
}

#[test]
fn a_moment_above_exit_starts_hold_afresh() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[host("memory", 0.98)]);
    run.ticks(9_900, &[host("memory", 0.5)]);
    run.tick(&[host("memory", 0.98)]);
    assert_eq!(run.ticks(10_000, &[host("memory", 0.5)]), Emergency);
    assert_eq!(run.tick(&[host("memory", 0.5)]), High);
}

#[test]
fn a_signal_that_never_entered_does_not_keep_a_level_of_another() {
    let mut run = Run::new(&rules(), &[memory(), signal("fds", &[(0.8, 0.7)])]);
    run.tick(&[host("memory", 0.90), host("fds", 0.8)]);
    assert_eq!(run.ticks(10_100, &[host("memory", 0.90), host("fds", 0.1)]), Normal);
}

#[test]
fn rise_after_asks_for_a_lasting_excess() {
    let mut slow = memory();
    slow.rise_after = ms(1_000);
    let mut run = Run::new(&rules(), &[slow]);
    for _ in 0..5 {
        assert_eq!(run.ticks(1_000, &[host("memory", 0.99)]), Normal);
        run.tick(&[host("memory", 0.5)]);
    }
    run.ticks(600, &[host("memory", 0.93)]);
    assert_eq!(run.ticks(400, &[host("memory", 0.99)]), Normal);
    assert_eq!(run.tick(&[host("memory", 0.99)]), Moderate, "each level has its own clock");
    assert_eq!(run.ticks(600, &[host("memory", 0.99)]), Emergency);
}

#[test]
fn a_signal_that_comes_back_has_to_last_again() {
    let mut slow = memory();
    slow.rise_after = ms(5_000);
    let mut run = Run::new(&rules(), &[slow]);
    run.ticks(4_000, &[host("memory", 0.93)]);
    run.ticks(3_000, &[at("memory", Scope::Host, Err("EIO"))]);
    assert_eq!(run.ticks(5_000, &[host("memory", 0.93)]), Normal);
    assert_eq!(run.tick(&[host("memory", 0.93)]), Moderate);
}

#[test]
fn rise_after_does_not_bridge_a_gap_in_which_nobody_looked() {
    let slow = Signal { rise_after: ms(5_000), ..memory() };
    let mut run = Run::new(&rules(), &[slow]);
    run.ticks(1_000, &[host("memory", 0.93)]);
    run.now += ms(20_000);
    assert_eq!(run.tick(&[host("memory", 0.93)]), Normal);
    assert_eq!(run.ticks(4_900, &[host("memory", 0.93)]), Normal);
    assert_eq!(run.tick(&[host("memory", 0.93)]), Moderate);
}

/// A value that has been so for a while.
fn aged(value: f64, age_ms: u64) -> Reading {
    Reading { age: ms(age_ms), ..host("memory", value) }
}

#[test]
fn a_value_is_stale_by_the_time_at_which_it_was_made() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[aged(0.93, 0)]);
    for age in (100..2_000).step_by(100) {
        run.tick(&[aged(0.93, age)]);
    }
    assert_eq!(run.levels.signal_states(run.now)[0].demands, "moderate");
    run.tick(&[at("memory", Scope::Host, Err("older than 2 s"))]);
    let state = &run.levels.signal_states(run.now)[0];
    assert_eq!((state.demands.as_str(), state.value), ("normal", None), "2 s after it was made");
    // As it is where nobody looks.
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[aged(0.93, 1_500)]);
    run.ticks(400, &[]);
    assert_eq!(run.levels.signal_states(run.now)[0].value, Some(0.93));
    run.tick(&[]);
    assert_eq!(run.levels.signal_states(run.now)[0].value, None);
}

#[test]
fn an_old_value_that_is_read_for_long_enough_rises() {
    let slow = Signal { rise_after: ms(1_000), stale_after: ms(60_000), ..memory() };
    let mut run = Run::new(&rules(), &[slow]);
    run.tick(&[aged(0.93, 30_000)]);
    for age in (30_100..31_000).step_by(100) {
        assert_eq!(run.tick(&[aged(0.93, age)]), Normal);
    }
    assert_eq!(run.tick(&[aged(0.93, 31_000)]), Moderate);
}

#[test]
fn only_what_should_have_been_read_is_a_failed_read() {
    let mut run = Run::new(&rules(), &[memory()]);
    let missing = |why| Reading::of_now(&Arc::from("memory"), &Scope::Host, Err(why));
    run.ticks(1_000, &[missing(Unavailable::not_yet("the first window is not over yet"))]);
    run.ticks(1_000, &[missing(Unavailable::absent("no memory limit is set"))]);
    let errors = |run: &Run| run.levels.signal_states(run.now)[0].read_errors;
    assert_eq!(errors(&run), 0);
    assert_eq!(run.levels.signal_states(run.now)[0].unavailable, "no memory limit is set");
    let [absent, failed] = [missing(Unavailable::absent("z")), missing(Unavailable::new("EIO"))];
    run.tick(&[absent.clone(), failed.clone()]);
    assert_eq!(errors(&run), 1);
    run.tick(&[failed.clone(), absent]);
    assert_eq!(errors(&run), 2, "whatever the order");
    run.tick(&[failed, host("memory", 0.5)]);
    assert_eq!(errors(&run), 2, "there is a value");
}

#[test]
fn one_failed_read_changes_nothing_and_a_stale_signal_demands_nothing() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[host("memory", 0.92)]);
    let failed = [at("memory", Scope::Host, Err("EIO"))];
    run.ticks(1_900, &failed);
    assert!(run.availability.is_empty());
    run.tick(&failed);
    assert_eq!(run.availability.len(), 1);
    assert!(!run.availability[0].available);
    assert_eq!(run.availability[0].reason, "EIO");
    let state = &run.levels.signal_states(run.now)[0];
    assert_eq!((state.value, state.unavailable.as_str(), state.read_errors), (None, "EIO", 20));
    assert_eq!(run.ticks(10_000, &failed), Normal, "`hold` after the loss");
    run.ticks(60_000, &failed);
    assert_eq!(run.availability.len(), 1, "one line at the change");
    run.tick(&[host("memory", 0.5)]);
    assert_eq!(run.availability.len(), 2);
    assert!(run.availability[1].available);
}

#[test]
fn a_signal_that_starts_has_time_for_its_first_value() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.ticks(1_000, &[at("memory", Scope::Host, Err("the first window is not over yet"))]);
    run.tick(&[host("memory", 0.5)]);
    assert!(run.availability.is_empty());
    let mut run = Run::new(&rules(), &[memory()]);
    run.ticks(5_000, &[at("memory", Scope::Host, Err("no such file"))]);
    assert_eq!(run.availability.len(), 1, "but not for ever");
}

#[test]
fn what_a_workload_never_had_is_told_from_what_it_lost() {
    let mut own = signal("own", MEMORY);
    own.source = SignalSource::File { path: PathBuf::from("/run/own"), scope: FileScope::Port(80) };
    let mut run = Run::new(&rules(), &[memory(), own]);
    let web = || Scope::cgroup(Path::new("/web"));
    let none = |signal: &str, scope| at(signal, scope, Err("no limit"));
    run.ticks(3_000, &[none("memory", Scope::Host), none("memory", web()), none("own", Scope::Port(80))]);
    let lacking: Vec<_> = run.availability.drain(..).map(|event| (event.scope, event.lacking)).collect();
    assert_eq!(lacking, [(Scope::Host, false), (web(), true), (Scope::Port(80), false)]);
    assert_eq!(run.levels.lacking("memory"), 1);
    let mut changes = |reading: Reading| {
        run.ticks(3_000, &[reading]);
        let events = run.availability.drain(..).filter(|event| event.scope == web());
        events.map(|event| (event.available, event.lacking)).collect::<Vec<_>>()
    };
    assert_eq!(changes(at("memory", web(), Ok(0.5))), [(true, true)], "it is not back but new");
    assert_eq!(changes(none("memory", web())), [(false, false)], "lost");
    assert_eq!(changes(at("memory", web(), Ok(0.5))), [(true, false)], "back");
    assert_eq!(run.levels.lacking("memory"), 0);
}

#[test]
fn on_loss_hold_keeps_the_demand_for_max_hold_at_most() {
    let mut held = memory();
    held.on_loss = OnLoss::Hold;
    let mut run = Run::new(&rules(), &[held]);
    run.tick(&[host("memory", 0.92)]);
    assert_eq!(run.ticks(2_000 + 300_000, &[]), Moderate);
    assert_eq!(run.ticks(10_100, &[]), Normal);
}

#[test]
fn values_that_are_no_numbers_are_none() {
    let mut run = Run::new(&rules(), &[memory()]);
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(run.ticks(3_000, &[host("memory", value)]), Normal);
    }
    assert_eq!(run.levels.signal_states(run.now)[0].value, None);
}

#[test]
fn a_raised_threshold_ends_the_level_at_once() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[host("memory", 0.96)]);
    assert_eq!(run.host(), High);
    let events =
        run.levels.set_rules(run.now, &rules(), &[signal("memory", &[(0.97, 0.965), (0.98, 0.975)])]);
    assert_eq!(run.host(), Normal);
    assert_eq!((events[0].from, events[0].to, &*events[0].signal), (High, Normal, CONFIGURATION));
    assert_eq!(run.ticks(60_000, &[host("memory", 0.96)]), Normal);
}

#[test]
fn a_removed_signal_a_removed_threshold_and_a_switched_off_signal_end_the_level_at_once() {
    let mut off = memory();
    off.enabled = false;
    for signals in [vec![], vec![signal("memory", &[])], vec![off]] {
        let mut run = Run::new(&rules(), &[memory()]);
        run.tick(&[host("memory", 0.99)]);
        run.levels.set_rules(run.now, &rules(), &signals);
        assert_eq!(run.host(), Normal);
        assert_eq!(run.ticks(1_000, &[host("memory", 0.99)]), Normal);
    }
}

#[test]
fn a_removed_level_falls_to_the_next_that_is_still_demanded() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[host("memory", 0.99)]);
    run.levels.set_rules(run.now, &rules(), &[signal("memory", &MEMORY[..2])]);
    assert_eq!(run.host(), High);
    assert_eq!(run.ticks(60_000, &[host("memory", 0.99)]), High);
}

#[test]
fn a_lowered_threshold_is_demanded_at_the_next_tick() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[host("memory", 0.85)]);
    run.levels.set_rules(run.now, &rules(), &[signal("memory", &[(0.8, 0.7)])]);
    assert_eq!(run.tick(&[host("memory", 0.85)]), Moderate);
}

#[test]
fn a_change_elsewhere_does_not_cut_hold_short() {
    let mut run = Run::new(&rules(), &[signal("fds", &[(0.8, 0.7)]), memory()]);
    run.tick(&[host("memory", 0.99)]);
    run.ticks(5_000, &[host("memory", 0.5)]);
    let events = run.levels.set_rules(run.now, &rules(), &[memory()]);
    assert!(events.is_empty());
    assert_eq!(run.host(), Emergency);
    assert_eq!(run.ticks(5_000, &[host("memory", 0.5)]), Emergency);
    assert_eq!(run.tick(&[host("memory", 0.5)]), High);
    assert_eq!(
        run.steps().last(),
        Some(&(Emergency, High, "memory")),
        "its place has changed, its name has not"
    );
}

#[test]
fn a_level_held_for_nothing_is_probed_and_returns_to_normal() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[host("memory", 0.95)]);
    assert_eq!(run.ticks(400_000, &[host("memory", 0.95)]), High, "clients ask for more than the quotas");
    run.calm = true;
    assert_eq!(run.ticks(10_000, &[host("memory", 0.95)]), High, "a lull is no calm");
    assert_eq!(run.tick(&[host("memory", 0.95)]), Moderate);
    assert_eq!(run.levels.scope_levels(run.now)[0].demanded, "high");
    assert_eq!(run.ticks(9_900, &[host("memory", 0.955)]), Moderate, "a little more is noise");
    assert_eq!(run.tick(&[host("memory", 0.95)]), Normal);
    assert_eq!(run.ticks(600_000, &[host("memory", 0.95)]), Normal, "and stays there");
}

/// At `normal` by a probe although memory stands at 0.95.
fn probed() -> Run {
    let mut run = Run::new(&rules(), &[memory()]);
    run.calm = true;
    run.tick(&[host("memory", 0.95)]);
    run.ticks(310_000, &[host("memory", 0.95)]);
    assert_eq!(run.host(), Normal);
    run
}

#[test]
fn a_probe_ends_when_the_signal_gets_worse() {
    let mut run = probed();
    assert_eq!(run.tick(&[host("memory", 0.97)]), High);
    assert_eq!(run.ticks(299_900, &[host("memory", 0.97)]), High, "the next probe is `max_hold` away");
    assert_eq!(run.tick(&[host("memory", 0.97)]), Moderate);
}

#[test]
fn a_probe_ends_when_clients_are_back() {
    let mut run = probed();
    run.calm = false;
    assert_eq!(run.tick(&[host("memory", 0.95)]), High);
}

#[test]
fn a_signal_that_recovered_during_a_probe_counts_in_full_again() {
    let mut run = probed();
    run.ticks(1_000, &[host("memory", 0.5)]);
    assert_eq!(run.tick(&[host("memory", 0.95)]), High);
}

#[test]
fn a_probe_covers_no_other_signal() {
    let mut run = Run::new(&rules(), &[memory(), signal("fds", &[(0.8, 0.7), (0.9, 0.8)])]);
    run.calm = true;
    run.tick(&[host("memory", 0.95)]);
    run.ticks(310_000, &[host("memory", 0.95), host("fds", 0.1)]);
    assert_eq!(run.host(), Normal);
    assert_eq!(run.tick(&[host("memory", 0.95), host("fds", 0.85)]), Moderate);
    assert_eq!(run.levels.scope_levels(run.now)[0].signal, "fds");
}

#[test]
fn a_level_that_another_signal_brings_during_a_probe_is_held_for_max_hold() {
    let mut run = Run::new(&rules(), &[memory(), signal("fds", &[(0.8, 0.7), (0.9, 0.8)])]);
    run.calm = true;
    run.tick(&[host("memory", 0.93), host("fds", 0.1)]);
    run.ticks(310_000, &[host("memory", 0.93), host("fds", 0.1)]);
    assert_eq!(run.host(), Normal, "by a probe");
    let readings = [host("memory", 0.93), host("fds", 0.95)];
    assert_eq!(run.tick(&readings), High);
    assert_eq!(run.ticks(299_900, &readings), High);
    assert_eq!(run.tick(&readings), Moderate, "that is a probe of its own");
    assert_eq!(run.ticks(10_000, &readings), Normal, "whose next step need not wait for as long");
}

#[test]
fn a_probe_survives_a_reload() {
    let mut run = probed();
    run.levels.set_rules(run.now, &rules(), &[signal("fds", &[(0.8, 0.7)]), memory()]);
    assert_eq!(run.ticks(60_000, &[host("memory", 0.95)]), Normal);
    assert_eq!(run.tick(&[host("memory", 0.97)]), High);
}

#[test]
fn one_workload_in_trouble_does_not_touch_its_neighbours() {
    let mut run = Run::new(&rules(), &[memory(), signal("accept_queue", &[(0.5, 0.25)])]);
    let (a, b) = (&CgroupPath::new(Path::new("/a")), &CgroupPath::new(Path::new("/b")));
    run.tick(&[
        host("memory", 0.5),
        at("memory", Scope::Cgroup(a.clone()), Ok(0.99)),
        at("memory", Scope::Cgroup(b.clone()), Ok(0.1)),
        at("accept_queue", Scope::Port(8_005), Ok(0.6)),
    ]);
    assert_eq!(run.levels.policy_level(80..=80, [a]), Emergency);
    assert_eq!(run.levels.policy_level(81..=81, [b]), Normal);
    assert_eq!(run.levels.policy_level(82..=82, [a, b]), Emergency);
    assert_eq!(run.levels.policy_level(8_000..=8_099, [b]), Moderate, "a port of a shared range");
    let (first, last) = (9_000, 8_000);
    assert_eq!(run.levels.policy_level(first..=last, [b]), Normal, "an empty range has no ports");
    run.tick(&[host("memory", 0.95)]);
    assert_eq!(run.levels.policy_level(81..=81, [b]), High, "the host is everybody's");
    assert_eq!(run.levels.policy_level(80..=80, [a]), Emergency);
}

#[test]
fn a_workload_that_is_gone_is_forgotten_once_its_level_is_down() {
    let mut run = Run::new(&rules(), &[memory()]);
    let scope = Scope::cgroup(Path::new("/gone"));
    run.tick(&[at("memory", scope.clone(), Ok(0.99))]);
    run.ticks(31_000, &[]);
    assert_eq!(run.levels.level(&scope), Moderate);
    run.ticks(3_000, &[]);
    let scopes: Vec<_> = run.levels.scope_levels(run.now).into_iter().map(|level| level.scope).collect();
    assert_eq!(scopes, ["host"]);
    assert!(run.availability.is_empty(), "no failure: {:?}", run.availability);
}

#[test]
fn an_operator_sets_the_level_for_a_while() {
    let mut run = Run::new(&rules(), &[memory()]);
    let port = Scope::Port(80);
    run.tick(&[host("memory", 0.92), at("memory", port.clone(), Ok(0.5))]);
    let events = run.levels.pin(run.now, Some(Emergency), Some(run.now + ms(5_000)));
    assert_eq!(events.len(), 2);
    assert!(events.iter().all(|event| event.to == Emergency && &*event.signal == OPERATOR));
    assert_eq!(run.levels.policy_level(443..=443, []), Emergency);
    assert_eq!(run.ticks(4_900, &[host("memory", 0.92), at("memory", port.clone(), Ok(0.5))]), Emergency);
    assert_eq!(run.levels.scope_levels(run.now)[0].signal, OPERATOR);
    assert!(run.levels.pinned().is_some());
    assert_eq!(run.tick(&[host("memory", 0.92), at("memory", port.clone(), Ok(0.5))]), Moderate);
    assert_eq!(run.levels.level(&port), Normal);
    assert_eq!(run.levels.pinned(), None);
    assert_eq!(run.steps().last(), Some(&(Emergency, Normal, OPERATOR)));
    assert_eq!(run.levels.scope_levels(run.now)[0].signal, "memory");
}

#[test]
fn a_pin_holds_against_the_signals_until_auto() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.levels.pin(run.now, Some(Normal), None);
    assert_eq!(run.ticks(60_000, &[host("memory", 0.99)]), Normal);
    assert_eq!(run.levels.level(&Scope::Port(5)), Normal);
    run.levels.pin(run.now, None, None);
    assert_eq!(run.host(), Emergency, "judged meanwhile");
}

#[test]
fn the_snapshot_names_every_signal_with_its_thresholds_from_the_start() {
    let path = PathBuf::from("/run/age");
    let mut own = signal("age", &[(1.0, 0.5)]);
    own.source = SignalSource::File { path, scope: FileScope::Port(8080) };
    let mut queue = signal("accept_queue", &[(0.5, 0.25)]);
    queue.source = SignalSource::AcceptQueue;
    let levels = Levels::new(&rules(), &[memory(), own, queue]);
    let states = levels.signal_states(ms(5));
    let names: Vec<_> = states.iter().map(|state| (state.signal.as_str(), state.scope.as_str())).collect();
    assert_eq!(names, [("memory", "host"), ("age", "port:8080"), ("accept_queue", "")]);
    assert!(states.iter().all(|state| state.value.is_none() && !state.unavailable.is_empty()));
    assert_eq!(states[0].enter["high"], 0.95);
    assert_eq!(states[0].exit["emergency"], 0.93);
    assert_eq!(states[0].unit, "ratio");
    assert_eq!(levels.scope_levels(ms(5))[0].level, "normal");
}

#[test]
fn the_snapshot_counts_transitions_and_tells_since_when() {
    let mut run = Run::new(&rules(), &[memory()]);
    run.tick(&[host("memory", 0.99)]);
    run.ticks(3_000, &[host("memory", 0.99)]);
    let level = &run.levels.scope_levels(run.now)[0];
    assert_eq!(
        (level.level.as_str(), level.signal.as_str(), level.held_seconds),
        ("emergency", "memory", 3.0)
    );
    assert_eq!(level.transitions.len(), 1);
    let step = &level.transitions[0];
    assert_eq!((step.from.as_str(), step.to.as_str(), step.total), ("normal", "emergency", 1));
    let state = &run.levels.signal_states(run.now)[0];
    assert_eq!((state.demands.as_str(), state.since_seconds, state.value), ("emergency", 3.0, Some(0.99)));
}

#[test]
fn time_that_goes_backwards_is_survived() {
    let mut levels = Levels::new(&rules(), &[memory()]);
    levels.update(ms(10_000), &[host("memory", 0.99)], |_| true);
    levels.update(ms(5_000), &[host("memory", 0.5)], |_| true);
    levels.update(ms(0), &[], |_| true);
    assert_eq!(levels.level(&Scope::Host), Emergency);
}

/// A signal with thresholds on a grid, so that values hit them exactly.
fn any_signal(name: &'static str) -> impl Strategy<Value = Signal> {
    let step = prop::option::weighted(0.8, (1u32..6, 1u32..4));
    (prop::collection::vec(step, 3), 0u64..8, any::<bool>(), 1u64..10).prop_map(
        move |(steps, rise_ticks, holds, stale_ticks)| {
            let mut signal = signal(name, &[]);
            let mut base = 0;
            for (slot, step) in signal.thresholds.iter_mut().skip(1).zip(steps) {
                if let Some((exit, band)) = step {
                    base += exit;
                    *slot = Some(Threshold { enter: f64::from(base + band), exit: f64::from(base) });
                }
            }
            signal.rise_after = ms(rise_ticks.saturating_sub(4) * TICK_MS);
            signal.on_loss = if holds { OnLoss::Hold } else { OnLoss::Ignore };
            signal.stale_after = ms(stale_ticks * TICK_MS);
            signal
        },
    )
}

fn any_rules() -> impl Strategy<Value = LevelRules> {
    (1u64..30, 5u64..60).prop_map(|(hold, max_hold)| LevelRules {
        hold: ms(hold * TICK_MS),
        max_hold: ms(max_hold * TICK_MS),
        ..rules()
    })
}

fn any_signals() -> impl Strategy<Value = Vec<Signal>> {
    (any_signal("a"), any_signal("b"), any_signal("c")).prop_map(|(a, b, c)| vec![a, b, c])
}

/// A value for each signal by tick; `None` where it cannot be read.
fn any_history() -> impl Strategy<Value = Vec<[Option<(u32, u32)>; 3]>> {
    let value = || prop::option::weighted(0.85, (0u32..20, 0u32..4));
    // Runs of equal values, so that holds and `rise_after` are reached.
    let run = ((value(), value(), value()), 1usize..25);
    prop::collection::vec(run, 1..20).prop_map(|runs| {
        runs.into_iter().flat_map(|((a, b, c), ticks)| std::iter::repeat_n([a, b, c], ticks)).collect()
    })
}

fn readings(values: &[Option<(u32, u32)>; 3], pick: impl Fn(u32, u32) -> u32) -> Vec<Reading> {
    let named = ["a", "b", "c"].into_iter().zip(values);
    named
        .map(|(name, value)| {
            let value = value.map(|(low, more)| f64::from(pick(low, more))).ok_or("lost");
            at(name, Scope::Host, value)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Wherever a wave of ± 1 % stands, the level rises once at most to where it then stays or falls.
    #[test]
    fn a_wave_round_a_threshold_never_flaps(
        level in 0usize..3,
        at_exit in any::<bool>(),
        from in 0.0f64..1.1,
        half_period in 1usize..400,
        noise in prop::collection::vec(any::<bool>(), 1_200),
        regular in any::<bool>(),
    ) {
        let (enter, exit) = MEMORY[level];
        let middle = if at_exit { exit } else { enter };
        let mut run = Run::new(&rules(), &[memory()]);
        run.tick(&[host("memory", from)]);
        run.events.clear();
        for (tick, noise) in noise.iter().enumerate() {
            let high = if regular { (tick / half_period) % 2 == 0 } else { *noise };
            run.tick(&[host("memory", middle * if high { 1.01 } else { 0.99 })]);
        }
        let falls = run.steps().iter().position(|(from, to, _)| to < from);
        let rises = run.steps().iter().rposition(|(from, to, _)| to > from);
        if let (Some(fall), Some(rise)) = (falls, rises) {
            prop_assert!(rise < fall, "rose again after it fell: {:?}", run.steps());
        }
        prop_assert!(run.steps().len() <= 4, "{:?}", run.steps());
    }

    /// However narrow the band, a wave faster than `hold` never brings the level down.
    #[test]
    fn a_wave_faster_than_hold_never_lowers_the_level(half_period in 1usize..99, band in 0.0001f64..0.01) {
        let mut run = Run::new(&rules(), &[signal("memory", &[(1.0, 1.0 - band)])]);
        for tick in 0..2_000 {
            let value = if (tick / half_period) % 2 == 0 { 1.01 } else { 0.98 };
            run.tick(&[host("memory", value)]);
        }
        prop_assert_eq!(run.steps(), [(Normal, Moderate, "memory")]);
    }

    /// More pressure never makes a lower level.
    #[test]
    fn the_level_is_monotone_in_every_input(rules in any_rules(), signals in any_signals(), history in any_history()) {
        let mut less = Run::new(&rules, &signals);
        let mut more = Run::new(&rules, &signals);
        for values in &history {
            let low = less.tick(&readings(values, |low, _| low));
            let high = more.tick(&readings(values, |low, more| low + more));
            prop_assert!(low <= high, "{low:?} above {high:?}");
        }
    }

    /// A level needs a signal that speaks: after silence all is normal.
    #[test]
    fn no_level_outlives_its_signals(
        rules in any_rules(),
        signals in any_signals(),
        history in any_history(),
        silent in any::<bool>(),
        calm in any::<bool>(),
    ) {
        let mut run = Run::new(&rules, &signals);
        run.calm = calm;
        for values in &history {
            run.tick(&readings(values, |low, _| low));
        }
        let last = if silent { Vec::new() } else { readings(&[None; 3], |low, _| low) };
        let stale = signals.iter().map(|signal| signal.stale_after).max().unwrap();
        let held = if signals.iter().any(|signal| signal.on_loss == OnLoss::Hold) { rules.max_hold } else { Duration::ZERO };
        let bound = stale + held + rules.hold * 3 + ms(6 * TICK_MS);
        let bound_ms = u64::try_from(bound.as_millis()).unwrap();
        prop_assert_eq!(run.ticks(bound_ms, &last), Normal);
        let demands = run.levels.signal_states(run.now);
        prop_assert!(demands.iter().all(|state| state.demands == "normal"));
    }

    /// The order in which sensors are read does not matter, nor do readings that come twice.
    #[test]
    fn the_result_is_independent_of_the_order_of_readings(
        rules in any_rules(),
        signals in any_signals(),
        history in any_history(),
        seed in any::<u64>(),
    ) {
        let mut straight = Run::new(&rules, &signals);
        let mut shuffled = Run::new(&rules, &signals);
        straight.calm = true;
        shuffled.calm = true;
        for (tick, values) in history.iter().enumerate() {
            let mut all = readings(values, |low, _| low);
            all.extend(readings(values, |low, more| low + more));
            straight.tick(&all);
            let turn = usize::try_from(seed.wrapping_mul(tick as u64 + 1) % 6).unwrap();
            all.rotate_left(turn);
            if seed & (1 << (tick % 64)) != 0 {
                all.reverse();
            }
            shuffled.tick(&all);
        }
        prop_assert_eq!(&straight.events, &shuffled.events);
        prop_assert_eq!(straight.levels.signal_states(straight.now), shuffled.levels.signal_states(shuffled.now));
    }

    /// One step down per `hold`, one level each; and events agree with the levels.
    #[test]
    fn at_most_one_step_down_per_hold(
        rules in any_rules(),
        signals in any_signals(),
        history in any_history(),
        calm in prop::collection::vec(any::<bool>(), 20),
    ) {
        let mut run = Run::new(&rules, &signals);
        let mut level = Normal;
        for (tick, values) in history.iter().enumerate() {
            run.calm = calm[(tick / 25) % calm.len()];
            run.tick(&readings(values, |low, _| low));
        }
        let mut last_down: Option<Duration> = None;
        for event in &run.events {
            prop_assert_eq!(event.from, level);
            level = event.to;
            if event.to < event.from {
                prop_assert_eq!(event.to, event.from.down());
                prop_assert!(last_down.is_none_or(|last| event.at - last >= rules.hold), "{:?}", run.events);
                last_down = Some(event.at);
            }
        }
        prop_assert_eq!(level, run.host());
    }

    /// Nothing rises above what a signal has demanded.
    #[test]
    fn without_a_threshold_reached_nothing_is_demanded(rules in any_rules(), signals in any_signals(), history in any_history()) {
        let mut run = Run::new(&rules, &signals);
        let mut reached = Normal;
        for values in &history {
            for (signal, value) in signals.iter().zip(values) {
                let Some((value, _)) = value else { continue };
                for level in Level::ALL {
                    let entered = signal.thresholds[level.index()].is_some_and(|t| f64::from(*value) >= t.enter);
                    reached = if entered { reached.max(level) } else { reached };
                }
            }
            prop_assert!(run.tick(&readings(values, |low, _| low)) <= reached);
        }
    }
}
