//! Which share of every limit each class would have seen.

use std::collections::BTreeMap;
use std::time::Duration;

use shedder_common::class::{CLASSES, Class};
use shedder_common::level::Level;

use super::simulate::TIMELINE_COLUMNS;
use crate::config::model::Config;
use crate::levels::Levels;
use crate::quota;
use crate::quota::ramp::Ramp;

/// Most ports that share a picture and are named.
const PORTS_NAMED: usize = 8;

/// The shares on every port, by time. A trace does not tell which cgroup serves which port, so the host's and the
/// ports' own levels count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shares {
    normal: [f64; CLASSES],
    ports: Vec<Port>,
}

#[derive(Clone, Debug)]
struct Port {
    label: String,
    ramp: Ramp,
    /// From when on which shares held; only what changed.
    changes: Vec<(Duration, [f64; CLASSES])>,
}

impl PartialEq for Port {
    fn eq(&self, other: &Self) -> bool {
        (&self.label, &self.changes) == (&other.label, &other.changes)
    }
}

impl Shares {
    pub(super) fn new(config: &Config) -> Self {
        let normal = quota::shares(&config.classes, Level::Normal);
        let port = |label| Port { label, ramp: Ramp::new(normal), changes: Vec::new() };
        Self { normal, ports: config.ports.iter().map(|policy| port(policy.label())).collect() }
    }

    /// One tick; `config` is that of [`Shares::new`].
    pub(super) fn follow(&mut self, now: Duration, levels: &Levels, config: &Config) {
        for (port, policy) in self.ports.iter_mut().zip(&config.ports) {
            let level = levels.policy_level(policy.first..=policy.last, []);
            let target = quota::shares(&config.classes, level);
            let shares = port.ramp.update(now, target, config.levels.ramp);
            if shares != port.changes.last().map_or(self.normal, |(_, shares)| *shares) {
                port.changes.push((now, shares));
            }
        }
    }

    /// For each port on which a class saw less than at `normal`, a timeline of each such class: tenths of every limit,
    /// `x` where it was closed, `.` where it saw all that it sees at `normal`.
    pub(super) fn text(&self, end: Duration) -> String {
        let mut pictures: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for port in &self.ports {
            let picture: String =
                Class::ALL.into_iter().filter_map(|class| self.line(port, class, end)).collect();
            if !picture.is_empty() {
                pictures.entry(picture).or_default().push(&port.label);
            }
        }
        let mut text = String::new();
        for (picture, labels) in pictures {
            let named = labels.iter().take(PORTS_NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = match labels.len().saturating_sub(PORTS_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            text.push_str(&format!(
                "\nport {named}{more}: tenths of every limit that a class sees, x closed, . all\n{picture}"
            ));
        }
        text
    }

    /// `None` where the class was left alone.
    fn line(&self, port: &Port, class: Class, end: Duration) -> Option<String> {
        let of = |shares: &[f64; CLASSES]| shares.get(class.index()).copied().unwrap_or(1.0);
        let normal = of(&self.normal);
        if port.changes.iter().all(|(_, shares)| of(shares) >= normal) {
            return None;
        }
        let mut changes = port.changes.iter().peekable();
        let mut share = normal;
        let mut line = String::with_capacity(TIMELINE_COLUMNS);
        for column in 1..=TIMELINE_COLUMNS {
            let until = end.mul_f64(column as f64 / TIMELINE_COLUMNS as f64);
            let mut lowest = share;
            while let Some((_, shares)) =
                changes.next_if(|(at, _)| *at <= until || column == TIMELINE_COLUMNS)
            {
                share = of(shares);
                lowest = lowest.min(share);
            }
            line.push(symbol(lowest, normal));
        }
        Some(format!("{line}  {}\n", class.name()))
    }
}

/// The tenth that a share reaches.
fn symbol(share: f64, normal: f64) -> char {
    if share >= normal {
        return '.';
    }
    if share <= 0.0 {
        return 'x';
    }
    let tenths = ('1'..='9')
        .take_while(|digit| digit.to_digit(10).is_some_and(|tenth| share * 10.0 + 1e-9 >= f64::from(tenth)));
    tenths.last().unwrap_or('0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::trace::replay;

    const CONFIG: &str = "version = 1\n[levels]\nhold = \"1s\"\nramp = \"1s\"\n[[port]]\nport = 8080\n[[port]]\nport = 8081\n\
                          [signals.age]\nsource = \"file\"\npath = \"/age\"\nscope = \"port:8080\"\n\
                          high = { enter = 1, exit = 0.5 }\n";

    fn run(value: impl Fn(u32) -> f64) -> String {
        let config = config::parse(CONFIG, "test").unwrap();
        let line = |tick: u32| {
            let (t, value) = (f64::from(tick) / 10.0, value(tick));
            format!("{{\"t\":{t},\"signal\":\"age\",\"scope\":\"port:8080\",\"value\":{value}}}\n")
        };
        let trace: String = (0..=60).map(line).collect();
        replay(trace.as_bytes(), &config).unwrap().text()
    }

    #[test]
    fn shares_fall_at_once_and_climb_on_the_pressed_port_alone() {
        let text = run(|tick| if (10..20).contains(&tick) { 1.0 } else { 0.0 });
        // Left alone until 1 s, high until 3 s, moderate until 4 s, and up again over a second each time.
        let picture = "\nport 8080: tenths of every limit that a class sees, x closed, . all\n\
                       .........7777777777777777777777777888999....................  interactive\n\
                       .........11111111111111111111111122333445566778899..........  optional\n\
                       .........xxxxxxxxxxxxxxxxxxxxxx0001111222344567789..........  batch\n";
        assert!(text.ends_with(picture), "{text}");
        assert!(!text.contains("8081"), "{text}");
    }

    #[test]
    fn a_calm_trace_has_no_picture() {
        assert!(!run(|_| 0.0).contains("tenths"));
    }

    #[test]
    fn tenths_are_those_that_are_reached() {
        for (share, expected) in [(1.0, '.'), (0.99, '9'), (0.7, '7'), (0.1, '1'), (0.05, '0'), (0.0, 'x')] {
            assert_eq!(symbol(share, 1.0), expected, "{share}");
        }
        assert_eq!(symbol(0.5, 0.5), '.');
    }
}
