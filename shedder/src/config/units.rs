//! Quantities with their units, as configuration and command line spell them: `100ms`, `5000/s`.

use std::time::Duration;

use super::model::RateLimit;
use super::suggest::{choose, show};

/// The word for "no limit".
pub const UNLIMITED: &str = "unlimited";

/// The word for a rate that is measured before the pressure comes.
const LEARNED: &str = "learned";

/// Microseconds by unit, longest unit first.
const DURATION_UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// Longest duration that is taken: a year. It keeps later sums of times within their types.
const LONGEST_US: u64 = 365 * 24 * 3_600_000_000;

/// Seconds by unit of a rate.
const RATE_UNITS: [(&str, f64); 3] = [("s", 1.0), ("min", 60.0), ("h", 3_600.0)];

/// Highest rate that is taken, per second; no host admits as much.
const HIGHEST_PER_SECOND: f64 = 1e9;

/// Lowest rate above 0 that is taken: one an hour.
const LOWEST_PER_SECOND: f64 = 1.0 / 3_600.0;

/// Most characters of a number: enough for any `f64` that is written here, too few to overflow.
const LONGEST_NUMBER: usize = 25;

/// Reads a duration such as `100ms`, `1.5s`, `5m`, `1h` or `250us`; the finest step is a microsecond.
///
/// # Errors
///
/// A sentence that says what is wrong and what to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let shown = show(text);
    let (number, unit) = split_number(text);
    let Some(decimal) = Decimal::read(number) else {
        return Err(format!("`{shown}` is no duration: write a number and a unit, such as \"100ms\""));
    };
    if unit.trim().is_empty() {
        return Err(duration_lacks_unit(&shown, number));
    }
    let unit_us = choose("unit", unit, &DURATION_UNITS)
        .map_err(|why| format!("{why} (in `{shown}`; h, m, s, ms and us are durations)"))?;
    let Some(micros) = decimal.times(unit_us) else {
        return Err(format!("`{shown}` is finer than a microsecond: round it"));
    };
    match u64::try_from(micros) {
        Ok(micros) if micros <= LONGEST_US => Ok(Duration::from_micros(micros)),
        _ => Err(format!("`{shown}` is longer than a year: choose \"8760h\" at most")),
    }
}

/// What to write instead of a number without unit; only what would be taken is proposed.
pub(super) fn duration_lacks_unit(shown: &str, number: &str) -> String {
    let meant = ["ms", "s"].map(|unit| format!("{number}{unit}"));
    let taken: Vec<String> =
        meant.iter().filter(|meant| duration(meant).is_ok()).map(|meant| format!("\"{meant}\"")).collect();
    match taken.as_slice() {
        [] => format!("`{shown}` has no unit: write a number and a unit, such as \"100ms\""),
        taken => format!("`{shown}` has no unit: write {}", taken.join(" or ")),
    }
}

/// Writes a duration as [`duration`] reads it, in the longest unit that divides it.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros == 0 {
        return "0s".to_owned();
    }
    DURATION_UNITS.iter().find(|(_, unit_us)| micros.is_multiple_of(u128::from(*unit_us))).map_or_else(
        || format!("{micros}us"),
        |(unit, unit_us)| format!("{}{unit}", micros / u128::from(*unit_us)),
    )
}

/// Reads a rate such as `5000/s`, `300/min`, `0/s`, `learned` or `unlimited`.
///
/// # Errors
///
/// A sentence that says what is wrong and what to write instead.
pub fn rate(text: &str) -> Result<RateLimit, String> {
    let shown = show(text);
    match text {
        LEARNED => return Ok(RateLimit::Learned),
        UNLIMITED => return Ok(RateLimit::Unlimited),
        _ => {}
    }
    let (number, rest) = split_number(text);
    let Some(unit) = rest.strip_prefix('/').filter(|_| Decimal::read(number).is_some()) else {
        return Err(no_rate(text));
    };
    let seconds = choose("unit", unit, &RATE_UNITS)
        .map_err(|why| format!("{why} (in `{shown}`; /s, /min and /h are rates)"))?;
    let Ok(count) = number.parse::<f64>() else {
        return Err(no_rate(text));
    };
    let per_second = count / seconds;
    if per_second > HIGHEST_PER_SECOND {
        Err(format!("`{shown}` is more than 1000000000/s: write \"unlimited\""))
    } else if per_second > 0.0 && per_second < LOWEST_PER_SECOND {
        Err(format!("`{shown}` is less than one an hour: write \"1/h\", or \"0/s\" to admit none"))
    } else {
        Ok(RateLimit::PerSecond(per_second))
    }
}

/// What to write instead of a number without unit; only what would be taken is proposed.
pub(super) fn rate_lacks_unit(number: &str) -> Option<String> {
    let meant = taken_rate(number, "s")?;
    Some(format!("`{}` has no unit: write \"{meant}\"", show(number)))
}

/// A number and a unit as a rate, where [`rate`] takes it.
fn taken_rate(number: &str, unit: &str) -> Option<String> {
    Decimal::read(number)?;
    let meant = format!("{number}/{unit}");
    rate(&meant).is_ok().then_some(meant)
}

/// Why a text is no rate. A number is proposed only where the text is that number and perhaps a unit: of `1,000/s` and
/// `5k/s` the beginning is another limit.
fn no_rate(text: &str) -> String {
    let shown = show(text);
    let (number, rest) = split_number(text);
    let unit = rest.trim();
    if unit.is_empty()
        && let Some(lacks_unit) = rate_lacks_unit(number)
    {
        return lacks_unit;
    }
    let unit = unit.strip_prefix('/').unwrap_or(unit).trim_start();
    let unit = match unit {
        "s" | "ms" => Some("s"),
        "min" | "m" => Some("min"),
        "h" => Some("h"),
        _ => None,
    };
    if let Some(meant) = unit.and_then(|unit| taken_rate(number, unit)) {
        return format!("`{shown}` is no rate: write \"{meant}\"");
    }
    match super::suggest::did_you_mean(text, [LEARNED, UNLIMITED]) {
        Some(near) => format!("`{shown}` is no rate, did you mean `{near}`?"),
        None => {
            format!("`{shown}` is no rate: write \"5000/s\", \"300/min\", \"learned\" or \"unlimited\"")
        }
    }
}

/// Writes a rate as [`rate`] reads it.
#[must_use]
pub fn show_rate(rate: RateLimit) -> String {
    match rate {
        RateLimit::PerSecond(per_second) => format!("{per_second}/s"),
        RateLimit::Learned => LEARNED.to_owned(),
        RateLimit::Unlimited => UNLIMITED.to_owned(),
    }
}

/// The digits and points at the start, and what follows them.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

/// A number without sign or exponent, exact.
struct Decimal {
    digits: u128,
    /// Power of ten that `digits` is to be divided by.
    scale: u128,
}

impl Decimal {
    fn read(text: &str) -> Option<Self> {
        let (whole, fraction) =
            text.split_once('.').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
        let fraction_digits = fraction.unwrap_or("0");
        if whole.is_empty() || fraction_digits.is_empty() || text.len() > LONGEST_NUMBER {
            return None;
        }
        let digits = format!("{whole}{fraction_digits}").parse().ok()?;
        let scale = 10_u128.checked_pow(u32::try_from(fraction_digits.len()).ok()?)?;
        Some(Self { digits, scale })
    }

    /// The product, if it is whole.
    fn times(&self, factor: u64) -> Option<u128> {
        let product = self.digits.checked_mul(u128::from(factor))?;
        product.is_multiple_of(self.scale).then_some(product / self.scale)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_exactly() {
        for (text, micros) in [
            ("100ms", 100_000),
            ("3s", 3_000_000),
            ("5m", 300_000_000),
            ("1h", 3_600_000_000),
            ("250us", 250),
            ("1.5s", 1_500_000),
            ("0.25ms", 250),
            ("0s", 0),
            ("0.10s", 100_000),
            ("8760h", LONGEST_US),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn wrong_durations_say_what_to_write() {
        for (text, part) in [
            ("", "is no duration: write a number and a unit"),
            ("ms", "is no duration"),
            ("-1s", "is no duration"),
            ("1.s", "is no duration"),
            ("1..2s", "is no duration"),
            ("1e3s", "unknown unit `e3s`"),
            ("100", "has no unit: write \"100ms\" or \"100s\""),
            ("100 ", "has no unit: write \"100ms\" or \"100s\""),
            ("40000000", "has no unit: write \"40000000ms\""),
            ("40000000000000", "has no unit: write a number and a unit, such as \"100ms\""),
            ("1,000ms", "unknown unit `,000ms`: choose h, m, s, ms or us"),
            ("5k", "unknown unit `k`: choose"),
            ("5sec", "unknown unit `sec`"),
            ("5 s", "unknown unit ` s`, did you mean `s`?"),
            ("5S", "unknown unit `S`, did you mean `s`?"),
            ("0.5us", "finer than a microsecond"),
            ("8761h", "longer than a year"),
            ("999999999999999h", "longer than a year"),
            ("12345678901234567890123456h", "is no duration"),
        ] {
            let why = duration(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn rates_are_read_per_second() {
        for (text, rate_limit) in [
            ("5000/s", RateLimit::PerSecond(5000.0)),
            ("300/min", RateLimit::PerSecond(5.0)),
            ("0.5/s", RateLimit::PerSecond(0.5)),
            ("7200/h", RateLimit::PerSecond(2.0)),
            ("0/s", RateLimit::PerSecond(0.0)),
            ("learned", RateLimit::Learned),
            ("unlimited", RateLimit::Unlimited),
        ] {
            assert_eq!(rate(text), Ok(rate_limit), "{text}");
        }
    }

    #[test]
    fn wrong_rates_say_what_to_write() {
        for (text, part) in [
            ("5000", "has no unit: write \"5000/s\""),
            ("", "is no rate"),
            ("-5/s", "is no rate"),
            ("5ms", "is no rate: write \"5/s\""),
            ("5s", "is no rate: write \"5/s\""),
            ("5m", "is no rate: write \"5/min\""),
            ("5 / min", "is no rate: write \"5/min\""),
            ("5000 ", "has no unit: write \"5000/s\""),
            ("1,000/s", "is no rate: write \"5000/s\", \"300/min\""),
            ("1_000/s", "is no rate: write \"5000/s\", \"300/min\""),
            ("1 000/s", "is no rate: write \"5000/s\", \"300/min\""),
            ("1e3/s", "is no rate: write \"5000/s\", \"300/min\""),
            ("5k/s", "is no rate: write \"5000/s\", \"300/min\""),
            ("9000000000", "is no rate: write \"5000/s\", \"300/min\""),
            ("300/m", "unknown unit `m`: choose s, min or h"),
            ("5/", "unknown unit ``"),
            ("5/sec", "unknown unit `sec`"),
            ("5/mn", "unknown unit `mn`, did you mean `min`?"),
            ("unlimitd", "did you mean `unlimited`?"),
            ("learnt", "did you mean `learned`?"),
            ("2000000000/s", "write \"unlimited\""),
            ("0.0001/s", "less than one an hour"),
        ] {
            let why = rate(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,24}") {
            let _read = (duration(&text), rate(&text));
        }

        #[test]
        fn durations_round_trip(micros in 0..=LONGEST_US) {
            let value = Duration::from_micros(micros);
            prop_assert_eq!(duration(&show_duration(value)), Ok(value));
        }

        #[test]
        fn rates_round_trip(count in 1_u32..1_000_000, unit in 0_usize..RATE_UNITS.len()) {
            let read = rate(&format!("{count}/{}", RATE_UNITS[unit].0)).unwrap();
            prop_assert_eq!(rate(&show_rate(read)), Ok(read));
        }
    }
}
