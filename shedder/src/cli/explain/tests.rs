use super::*;
use crate::{explain, golden, snapshot_sample};

fn rendered(port: Option<&str>) -> String {
    render(&explain::explain(&snapshot_sample::snapshot(), port).unwrap(), Style::Plain)
}

#[test]
fn the_levels() {
    golden::check("cli/explain/testdata/levels.txt", &rendered(None));
}

#[test]
fn a_port() {
    golden::check("cli/explain/testdata/port.txt", &rendered(Some("8080")));
}

#[test]
fn names_cannot_steer_the_terminal() {
    let mut snapshot = snapshot_sample::snapshot();
    snapshot.levels[0].signal = "\x1b[2J".to_owned();
    snapshot.signals[0].signal = "\x1b]0;title\x07".to_owned();
    snapshot.signals[1].unavailable = "\r\x1b[1A".to_owned();
    let text = render(&explain::explain(&snapshot, Some("8080")).unwrap(), Style::Plain);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}
