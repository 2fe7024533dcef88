//! Numbers and names as people read them.

use std::collections::BTreeMap;

/// At most two decimals, none where they are zero: `5000`, `12.5`, `0.25`.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `50 ms`, `12.5 s`, `3 min 20 s`, `2 h 5 min`
pub(super) fn seconds(value: f64) -> String {
    if value == 0.0 {
        return "0 s".to_owned();
    }
    if value < 1.0 {
        return format!("{} ms", number(value * 1000.0));
    }
    if value < 60.0 {
        return format!("{value:.1} s");
    }
    let (large, unit, small, of, rest) =
        if value < 3600.0 { (60.0, "min", 1.0, 60.0, "s") } else { (3600.0, "h", 60.0, 60.0, "min") };
    let whole = (value / small).floor();
    format!("{} {unit} {} {rest}", number((whole * small / large).floor()), number(whole % of))
}

/// `25%`
pub(super) fn percent(ratio: f64) -> String {
    format!("{}%", number(ratio * 100.0))
}

/// A reading in its unit.
pub(super) fn reading(value: f64, unit: &str) -> String {
    match unit {
        "percent" => format!("{}%", number(value)),
        "per_second" => format!("{}/s", number(value)),
        // Ratios and what an application measures stay as their thresholds are written.
        _ => number(value),
    }
}

/// `host`, `port 8080`, `cgroup /kube/pod`
pub(super) fn scope(scope: &str) -> String {
    scope.replacen(':', " ", 1)
}

/// `rate 10, queue_wait 7`, in the order of `names` and without zeros; empty where all are zero.
pub(super) fn counts<'a>(names: impl IntoIterator<Item = &'a str>, totals: &BTreeMap<String, u64>) -> String {
    let shown: Vec<String> = names
        .into_iter()
        .filter_map(|name| match totals.get(name) {
            None | Some(0) => None,
            Some(total) => Some(format!("{name} {total}")),
        })
        .collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, expected) in
            [(5000.0, "5000"), (12.5, "12.5"), (0.254, "0.25"), (0.0, "0"), (100.0, "100")]
        {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn times_have_fitting_units() {
        for (value, expected) in [
            (0.0, "0 s"),
            (0.05, "50 ms"),
            (0.000_25, "0.25 ms"),
            (12.5, "12.5 s"),
            (200.0, "3 min 20 s"),
            (7_500.0, "2 h 5 min"),
        ] {
            assert_eq!(seconds(value), expected);
        }
    }
}
