//! Times on the command line.

use std::time::Duration;

use crate::config::suggest::show;

/// Reads a time with its unit: `500ms`, `60s`, `5m`, `1h`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let text = show(text);
    let Ok(count) = number.parse::<f64>() else {
        return Err(format!("`{text}` is not a time; write one like 60s or 5m"));
    };
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" => {
            return Err(format!("`{text}` has no unit; write `{text}s`, `{text}ms`, `{text}m` or `{text}h`"));
        }
        _ => return Err(format!("`{}` is not a unit of time; use ms, s, m or h", show(unit))),
    };
    match Duration::try_from_secs_f64(count * seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("the time must be above 0".to_owned()),
        Err(_) => Err(format!("`{text}` is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert!(duration("60").unwrap_err().contains("`60s`"));
        for no_number in ["", "1.2.3", "s"] {
            assert!(duration(no_number).unwrap_err().contains("write one like 60s or 5m"), "{no_number}");
        }
        assert!(duration("1,000s").unwrap_err().contains("`,000s` is not a unit of time"));
        for wrong in ["", "s", "1d", "-1s", "0s", "1.2.3s", "1e3s", "99999999999999999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
