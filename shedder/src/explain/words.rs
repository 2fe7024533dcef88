//! Numbers with their units.

/// Four significant digits, none of them trailing zeros.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    let bounds = [1000.0, 100.0, 10.0, 1.0, 0.1, 0.01, 0.001];
    let decimals = bounds.iter().take_while(|bound| size < **bound).count();
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A signal's value or threshold as it is configured, with its unit: `12.5%`, `3/s`, `0.93`.
pub(super) fn threshold(value: f64, unit: &str) -> String {
    match unit {
        "percent" => format!("{}%", number(value)),
        "per_second" => format!("{}/s", number(value)),
        _ => number(value),
    }
}

/// A reading with what it is a part of: `12.5% of time`, `0.93 of 1`, `3/s`, `0.06 in its own unit`.
#[must_use]
pub fn signal_value(value: f64, unit: &str) -> String {
    let shown = threshold(value, unit);
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
        "ratio" => format!("{}%", number(value * 100.0)),
        "seconds" => seconds(value),
        _ => format!("{} open", number(value)),
    }
}

/// `50 ms`, `12.5 s`, `200 s`, `2.1 h`
#[must_use]
pub fn seconds(value: f64) -> String {
    match value {
        0.0 => "0 s".to_owned(),
        value if value < 1.0 => format!("{} ms", number(value * 1000.0)),
        value if value < 3600.0 => format!("{} s", tenths(value)),
        value => format!("{} h", tenths(value / 3600.0)),
    }
}

fn tenths(value: f64) -> String {
    format!("{value:.1}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_say_enough() {
        for (value, expected) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (0.001_234_56, "0.001235"),
            (0.92, "0.92"),
            (12.5, "12.5"),
            (-2.345_67, "-2.346"),
            (100.0, "100"),
            (5000.0, "5000"),
            (123_456.7, "123457"),
        ] {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn no_value_is_without_its_unit() {
        assert_eq!(signal_value(5.0, "percent"), "5% of time");
        assert_eq!(signal_value(0.93, "ratio"), "0.93 of 1");
        assert_eq!(signal_value(0.06, ""), "0.06 in its own unit");
        assert_eq!(limit_value(0.9, "ratio"), "90%");
        assert_eq!(limit_value(0.05, "seconds"), "50 ms");
        assert_eq!(limit_value(20_000.0, "connections"), "20000 open");
        assert_eq!(
            (seconds(0.0), seconds(75.25), seconds(7_560.0)),
            ("0 s".into(), "75.2 s".into(), "2.1 h".into())
        );
    }
}
