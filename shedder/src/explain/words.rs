//! Numbers and limits with what they are a part of.

use std::collections::BTreeMap;

use crate::snapshot::SetLimit;
use crate::words::{number, percent, reading, seconds};

/// A reading with what it is a part of: `12.5% of time`, `0.93 of 1`, `3/s`, `0.06 in its own unit`.
#[must_use]
pub fn signal_value(value: f64, unit: &str) -> String {
    let shown = reading(value, unit);
    match unit {
        "percent" => format!("{shown} of time"),
        "ratio" => format!("{shown} of 1"),
        "per_second" => shown,
        _ => format!("{shown} in its own unit"),
    }
}

/// A limit or what is compared with it.
#[must_use]
pub fn limit_value(value: f64, unit: &str) -> String {
    match unit {
        "per_second" => format!("{}/s", number(value)),
        "ratio" => percent(value),
        "seconds" => seconds(value),
        _ => format!("{} open", number(value)),
    }
}

/// One sentence about what an operator has set on a port; `None` where nothing is.
#[must_use]
pub fn set_by_operator(set: &BTreeMap<String, SetLimit>) -> Option<String> {
    let limits: Vec<String> = set
        .iter()
        .map(|(key, limit)| {
            let SetLimit { value, configured, goes_back } = limit;
            let configured = match configured == value {
                true => " (as the configuration says)".to_owned(),
                false => format!(" (the configuration says {configured})"),
            };
            let goes_back = goes_back.as_ref().map_or_else(String::new, |back| {
                let left = seconds(back.remaining_seconds.ceil());
                let to = if back.to == limit.configured { String::new() } else { format!(" to {}", back.to) };
                format!(", goes back{to} in {left} unless confirmed")
            });
            format!("{key}={value}{configured}{goes_back}")
        })
        .collect();
    (!limits.is_empty()).then(|| format!("set by an operator: {}", limits.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::GoesBack;

    #[test]
    fn no_value_is_without_its_unit() {
        assert_eq!(signal_value(5.0, "percent"), "5% of time");
        assert_eq!(signal_value(0.93, "ratio"), "0.93 of 1");
        assert_eq!(signal_value(0.06, ""), "0.06 in its own unit");
        assert_eq!(limit_value(0.9, "ratio"), "90%");
        assert_eq!(limit_value(0.05, "seconds"), "50 ms");
        assert_eq!(limit_value(20_000.0, "connections"), "20000 open");
    }

    #[test]
    fn what_was_set_stands_beside_what_is_configured() {
        let limit = |value: &str, configured: &str, back: Option<(&str, f64)>| SetLimit {
            value: value.to_owned(),
            configured: configured.to_owned(),
            goes_back: back.map(|(to, remaining_seconds)| GoesBack { to: to.to_owned(), remaining_seconds }),
        };
        assert_eq!(set_by_operator(&BTreeMap::new()), None);
        let set = BTreeMap::from([
            ("connections".to_owned(), limit("100", "unlimited", None)),
            ("queue_wait".to_owned(), limit("50ms", "50ms", Some(("1s", 60.0)))),
            ("rate".to_owned(), limit("9/s", "5000/s", Some(("5000/s", 7.4)))),
        ]);
        assert_eq!(
            set_by_operator(&set).unwrap(),
            "set by an operator: connections=100 (the configuration says unlimited); \
             queue_wait=50ms (as the configuration says), goes back to 1s in 1 min unless confirmed; \
             rate=9/s (the configuration says 5000/s), goes back in 8 s unless confirmed"
        );
    }
}
