//! An explanation as text for a terminal.

use crate::cli::Style;
use crate::cli::output::clean;
use crate::cli::table::{Align, Table};
use crate::explain::{
    Explanation, LimitExplanation, LimitState, PortExplanation, ScopeExplanation, limit_value,
    set_by_operator,
};
use crate::words::seconds;

/// The port first, where there is one; then the scopes with their signals.
#[must_use]
pub fn render(explanation: &Explanation, style: Style) -> String {
    let mut text = String::new();
    if let Some(port) = &explanation.port {
        text.push_str(&of_port(port, &explanation.mode, style));
    }
    for scope in &explanation.scopes {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&of_scope(scope, style));
    }
    text
}

fn of_scope(scope: &ScopeExplanation, style: Style) -> String {
    let title = if scope.scope.is_empty() {
        style.strong("read nowhere")
    } else {
        let title = format!("{} is at {}", clean(&name(&scope.scope)), clean(&scope.level).to_uppercase());
        format!("{} for {}", style.strong(&title), seconds(scope.held_seconds))
    };
    let mut text = format!("{title}: {}\n", clean(&scope.why));
    if !scope.scope.is_empty() {
        text.push_str(&format!("  next: {}\n", clean(&scope.next)));
    }
    if !scope.signals.is_empty() {
        let mut table = Table::new([
            ("SIGNAL", Align::Left),
            ("DEMANDS", Align::Left),
            ("FOR", Align::Right),
            ("VALUE, AND WHY NOT MORE", Align::Left),
        ]);
        for signal in &scope.signals {
            table.row([
                signal.signal.clone(),
                signal.demands.clone(),
                seconds(signal.since_seconds),
                signal.verdict.clone(),
            ]);
        }
        text.push_str(&table.text());
    }
    text
}

fn of_port(port: &PortExplanation, mode: &str, style: Style) -> String {
    let title = format!("{} port {} is at {}", port.protocol, port.port, port.level.to_uppercase());
    let given_by = match port.given_by.as_slice() {
        [] => "no scope that bears on it is higher".to_owned(),
        scopes => {
            let scopes: Vec<String> = scopes.iter().map(|scope| clean(&name(scope))).collect();
            let verb = if scopes.len() == 1 { "is" } else { "are" };
            format!("because {} {verb}", scopes.join(" and "))
        }
    };
    let mut text = format!("{}: {given_by}\n", style.strong(&clean(&title)));
    if mode == "observe" {
        text.push_str("  mode OBSERVE: it counts what it would refuse, and REFUSES NOTHING\n");
    }
    text.push_str(&format!("  rate {}\n", clean(&port.rate)));
    if let Some(set) = set_by_operator(&port.set) {
        text.push_str(&format!("  {}\n", clean(&set)));
    }
    if let Some(left) = port.ramp_remaining_seconds {
        text.push_str(&format!("  after the step down, shares still climb for {}\n", seconds(left)));
    }
    let mut table = Table::new([
        ("CLASS", Align::Left),
        ("SEES", Align::Left),
        ("ADMITTED", Align::Left),
        ("CONNECTIONS", Align::Left),
        ("ACCEPT QUEUE", Align::Left),
        ("OLDEST WAITS", Align::Left),
        ("NEW CONNECTIONS ARE", Align::Left),
    ]);
    for class in &port.classes {
        let own = if class.class == port.class { " (the port's own)" } else { "" };
        let mut cells = class.limits.iter().map(limit);
        let mut cell = || cells.next().unwrap_or_else(|| "-".to_owned());
        table.row([
            format!("{}{own}", class.class),
            class.share.map_or_else(|| "-".to_owned(), |share| limit_value(share, "ratio")),
            cell(),
            cell(),
            cell(),
            cell(),
            class.verdict.clone(),
        ]);
    }
    text.push_str(&table.text());
    if port.recent_seconds > 0.0 {
        let span = seconds(port.recent_seconds);
        text.push_str(&format!(
            "  SEES: the part of every limit. What is admitted and waits is the mean of the last {span}; limits are of \
             all classes and sources together.\n"
        ));
    }
    text
}

/// The value beside its limit.
fn limit(limit: &LimitExplanation) -> String {
    let of = |value: f64| limit_value(value, &limit.unit);
    let now = limit.now.map_or_else(|| "none seen".to_owned(), of);
    let verdict = match limit.state {
        LimitState::NoLimit => return format!("{now}, no limit"),
        LimitState::Closed => return format!("{now}, closed"),
        LimitState::Unknown | LimitState::Clear => "",
        LimitState::Near => ", NEAR",
        LimitState::Over => ", OVER",
    };
    format!("{now}, max {}{verdict}", limit.limit.map_or_else(String::new, of))
}

/// `host`, `port 8080`, `cgroup /kube/pod`
fn name(scope: &str) -> String {
    scope.replacen(':', " ", 1)
}
