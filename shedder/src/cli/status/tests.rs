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
    // What only a daemon knows.
    let port = &mut snapshot.ports[0];
    (port.ramp_remaining_seconds, port.accept_queue) = (None, None);
    (port.recent, port.set) = Default::default();
    // The port's own class is closed, but for its floor.
    snapshot.ports[0].class = "core".to_owned();
    let quota =
        crate::snapshot::ClassQuota { closed: true, floor_per_second: Some(2.5), ..Default::default() };
    let core = crate::snapshot::ClassState { quota, ..Default::default() };
    snapshot.ports[0].classes.insert("core".to_owned(), core);
    golden::check("cli/status/testdata/pinned.txt", &render(&snapshot, Style::Plain));
}

#[test]
fn where_no_interface_is_served_nothing_is_refused() {
    let mut snapshot = snapshot_sample::snapshot();
    snapshot.attachments.remove(0);
    let heading = |snapshot: &Snapshot| render(snapshot, Style::Plain).lines().next().unwrap().to_owned();
    assert!(heading(&snapshot).contains("mode OBSERVE: it REFUSES NOTHING, and counts nothing either"));
    snapshot.mode = "enforce".to_owned();
    let expected = "mode ENFORCE: it REFUSES NOTHING, because no interface is served";
    assert!(heading(&snapshot).ends_with(expected));
    snapshot.attachments.clear();
    assert!(heading(&snapshot).ends_with(expected));
    snapshot.attachments = snapshot_sample::snapshot().attachments;
    assert!(heading(&snapshot).ends_with("it refuses what the limits do not admit"));
}

#[test]
fn without_a_daemon_queues_are_not_known() {
    let mut snapshot = snapshot_sample::snapshot();
    snapshot.ports[0].accept_queue = None;
    assert!(render(&snapshot, Style::Plain).contains("nobody listens"));
    snapshot.daemon = false;
    let text = render(&snapshot, Style::Plain);
    assert!(text.contains("not known (max 90%)") && !text.contains("nobody listens"), "{text}");
}

#[test]
fn counts_of_observe_are_explained_where_there_are_some() {
    let mut snapshot = snapshot_sample::snapshot();
    let told = |snapshot: &Snapshot| render(snapshot, Style::Plain).contains("WOULD SHED counts more");
    assert!(told(&snapshot));
    snapshot.mode = "enforce".to_owned();
    assert!(!told(&snapshot));
    snapshot.mode = "observe".to_owned();
    snapshot.ports.remove(0);
    assert!(!told(&snapshot));
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
