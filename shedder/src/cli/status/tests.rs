use super::*;
use crate::{golden, snapshot_sample};

#[test]
fn a_daemon_in_observe() {
    golden::check("cli/status/testdata/observe.txt", &render(&snapshot_sample::snapshot(), Style::Plain));
}

#[test]
fn pins_without_a_daemon() {
    let mut snapshot = snapshot_sample::snapshot();
    snapshot.daemon = false;
    snapshot.mode = "enforce".to_owned();
    snapshot.shedder_version.clear();
    snapshot.lease_remaining_seconds = 0.0;
    snapshot.ticks = Default::default();
    snapshot.levels.clear();
    snapshot.signals.clear();
    snapshot.ports.truncate(1);
    // The port's own class is closed, but for its floor.
    snapshot.ports[0].class = "core".to_owned();
    let quota =
        crate::snapshot::ClassQuota { closed: true, floor_per_second: Some(2.5), ..Default::default() };
    let core = crate::snapshot::ClassState { quota, ..Default::default() };
    snapshot.ports[0].classes.insert("core".to_owned(), core);
    golden::check("cli/status/testdata/pinned.txt", &render(&snapshot, Style::Plain));
}

#[test]
fn nothing_known_is_a_short_text() {
    let text = render(&Snapshot::default(), Style::Plain);
    assert!(text.contains("no daemon") && text.contains("lease: ended"), "{text}");
    assert!(text.contains("as the port's class sees them\n  none\n"), "{text}");
    assert!(!text.contains("SIGNALS"), "{text}");
}

#[test]
fn names_cannot_steer_the_terminal() {
    let mut snapshot = snapshot_sample::snapshot();
    snapshot.levels[0].scope = "cgroup:/\x1b[2Jevil\r".to_owned();
    snapshot.warnings = vec!["\x1b]0;title\x07".to_owned()];
    snapshot.mode = "\x1b[31m".to_owned();
    let text = render(&snapshot, Style::Plain);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

#[test]
fn a_terminal_sees_the_mode_in_bold() {
    let text = render(&snapshot_sample::snapshot(), Style::Terminal);
    assert!(text.contains("\x1b[1mmode OBSERVE\x1b[0m"), "{text}");
}
