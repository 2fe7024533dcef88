//! Numbers and names as people read them, the same wherever they are shown.

use std::fmt::Write as _;

/// Most characters of a number that is written out.
const WIDEST: usize = 20;

/// At most two decimals, none where they are zero: `5000`, `12.5`, `0.25`.
#[must_use]
pub fn number(value: f64) -> String {
    decimals(value, 2)
}

fn decimals(value: f64, most: usize) -> String {
    let text = format!("{value:.most$}");
    if text.len() > WIDEST {
        let text = format!("{value:.3e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'));
    }
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    // What rounds to nothing has no sign.
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Four digits that say something, for what may be of any size: `0.001235`, `12.5`, `123457`.
fn significant(value: f64) -> String {
    let size = value.abs();
    let bounds = [1000.0, 100.0, 10.0, 1.0, 0.1, 0.01, 0.001];
    decimals(value, bounds.iter().take_while(|bound| size < **bound).count())
}

/// `25%`
#[must_use]
pub fn percent(ratio: f64) -> String {
    format!("{}%", number(ratio * 100.0))
}

/// `50 ms`, `12.5 s`, `3 min 20 s`, `2 h 5 min`
#[must_use]
pub fn seconds(value: f64) -> String {
    if value == 0.0 {
        return "0 s".to_owned();
    }
    if value < 1.0 {
        return format!("{} ms", number(value * 1000.0));
    }
    if value < 60.0 {
        return format!("{} s", decimals(value, 1));
    }
    let (large, unit, small, of, rest) =
        if value < 3600.0 { (60.0, "min", 1.0, 60.0, "s") } else { (3600.0, "h", 60.0, 60.0, "min") };
    let whole = (value / small).floor();
    let (whole, left) = ((whole * small / large).floor(), whole % of);
    if left == 0.0 {
        return format!("{} {unit}", number(whole));
    }
    format!("{} {unit} {} {rest}", number(whole), number(left))
}

/// What a signal reads, in its unit: `12.5%`, `3/s`; ratios to a thousandth, as their thresholds are configured:
/// `0.93`; what an application measures with four digits.
#[must_use]
pub fn reading(value: f64, unit: &str) -> String {
    match unit {
        "ratio" => decimals(value, 3),
        "percent" | "per_second" => with_unit(&number(value), unit),
        _ => significant(value),
    }
}

/// A threshold as it is configured, with its unit.
#[must_use]
pub fn threshold(value: f64, unit: &str) -> String {
    let text = value.to_string();
    with_unit(&if text.len() > WIDEST { format!("{value:e}") } else { text }, unit)
}

fn with_unit(number: &str, unit: &str) -> String {
    match unit {
        "percent" => format!("{number}%"),
        "per_second" => format!("{number}/s"),
        _ => number.to_owned(),
    }
}

/// The text without control characters: a cgroup's or interface's name must not steer a terminal.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            // Writing to a string does not fail.
            write!(clean, "{}", c.escape_default()).unwrap_or_default();
        } else {
            clean.push(c);
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (5000.0, "5000"),
            (12.5, "12.5"),
            (0.254, "0.25"),
            (0.0, "0"),
            (-0.001, "0"),
            (100.0, "100"),
            (1e15, "1000000000000000"),
            (1e308, "1e308"),
            (-1.234_56e300, "-1.235e300"),
        ] {
            assert_eq!(number(value), expected);
        }
        assert_eq!(percent(0.254), "25.4%");
    }

    #[test]
    fn times_have_fitting_units() {
        for (value, expected) in [
            (0.0, "0 s"),
            (0.05, "50 ms"),
            (0.000_25, "0.25 ms"),
            (3.0, "3 s"),
            (12.54, "12.5 s"),
            (120.5, "2 min"),
            (200.0, "3 min 20 s"),
            (7_500.0, "2 h 5 min"),
            (7_200.0, "2 h"),
        ] {
            assert_eq!(seconds(value), expected);
        }
    }

    #[test]
    fn readings_have_sensible_digits() {
        for (value, unit, expected) in [
            (5.0, "percent", "5%"),
            (12.345_6, "percent", "12.35%"),
            (0.001, "per_second", "0/s"),
            (0.000_256_3, "ratio", "0"),
            (0.512_345, "ratio", "0.512"),
            (0.93, "ratio", "0.93"),
            (0.001_234_56, "", "0.001235"),
            (0.05, "", "0.05"),
            (-2.345_67, "", "-2.346"),
            (123_456.7, "", "123457"),
            (1e308, "", "1e308"),
            (f64::MAX, "percent", "1.798e308%"),
            (1e308, "ratio", "1e308"),
            (1e-308, "", "0"),
        ] {
            assert_eq!(reading(value, unit), expected);
        }
    }

    #[test]
    fn thresholds_are_as_they_are_configured() {
        assert_eq!(threshold(0.9995, "ratio"), "0.9995");
        assert_eq!(threshold(10.0, "percent"), "10%");
        assert_eq!(threshold(0.05, ""), "0.05");
        assert_eq!(threshold(1.0, "per_second"), "1/s");
        assert_eq!(threshold(1e308, ""), "1e308");
        assert_eq!(threshold(f64::MIN_POSITIVE, "percent"), "2.2250738585072014e-308%");
    }
}
