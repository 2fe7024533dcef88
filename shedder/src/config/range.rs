//! One port, or first and last of a range, as the file and the command line spell them.

use toml::de::DeValue;

use super::limits;
use super::section::type_name;
use super::suggest::show;
use super::value::{self, Read};

/// Ports from `first` to `last`, both included; `first <= last`, neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    pub(super) fn read(value: &DeValue<'_>) -> Read<Self> {
        match value {
            DeValue::Integer(_) => {
                let port = value::port(value)?;
                Ok(Self { first: port, last: port })
            }
            DeValue::String(text) => Self::parse(text),
            _ => Err(format!(
                "expected a port such as 8080 or a range such as \"8000-8099\", found {}",
                type_name(value)
            )),
        }
    }

    /// Reads `8080` or `8000-8099`.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| {
            let text = text.trim();
            text.parse().ok().filter(|_| limits::is_plain_number(text))
        };
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(format!("`{}` is no range of ports: write one such as \"8000-8099\"", show(text)));
        };
        let range = Self { first: limits::port(first)?, last: limits::port(last)? };
        if range.first > range.last {
            let Self { first, last } = range;
            return Err(format!("the range ends before it starts: write \"{last}-{first}\""));
        }
        Ok(range)
    }

    /// Whether the port is one of these.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Number of ports.
    pub(super) fn width(self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// As it is spelled.
    #[must_use]
    pub fn label(self) -> String {
        if self.first == self.last { self.first.to_string() } else { format!("{}-{}", self.first, self.last) }
    }
}

/// Most entries of a list of ports in a sentence.
const MOST_LISTED: usize = 20;

/// The ranges for a sentence, in ascending order, single ports that follow one another as one: `80, 8000-8099`.
#[must_use]
pub fn list(ranges: impl IntoIterator<Item = (u16, u16)>) -> String {
    let mut ranges: Vec<(u16, u16)> = ranges.into_iter().collect();
    ranges.sort_unstable();
    let single = |(first, last): &(u16, u16)| first == last;
    let runs = ranges
        .chunk_by(|left, right| single(left) && single(right) && left.1.checked_add(1) == Some(right.0));
    let mut labels: Vec<String> = runs
        .filter_map(|run| Some(PortRange { first: run.first()?.0, last: run.last()?.1 }.label()))
        .collect();
    if labels.len() > MOST_LISTED {
        labels.truncate(MOST_LISTED);
        labels.push("…".to_owned());
    }
    labels.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_digits_alone() {
        assert_eq!(PortRange::parse("8000 - 8099"), Ok(PortRange { first: 8000, last: 8099 }));
        for wrong in ["08080", "+8080", "8000-08099", "+8000-8099", "00", "8080/tcp", ""] {
            let why = PortRange::parse(wrong).unwrap_err();
            assert!(why.contains("is no range of ports"), "{wrong}: {why}");
        }
    }

    #[test]
    fn lists_are_short() {
        let singles = |ports: std::ops::RangeInclusive<u16>| ports.map(|port| (port, port));
        assert_eq!(list([]), "");
        assert_eq!(list([(443, 443), (80, 80)]), "80, 443");
        assert_eq!(
            list(singles(8000..=8099).chain([(80, 80), (8100, 8110), (8111, 8111)])),
            "80, 8000-8099, 8100-8110, 8111"
        );
        let far = list((1..=30).map(|port| (port * 10, port * 10)));
        assert!(far.starts_with("10, 20, ") && far.ends_with("190, 200, …"), "{far}");
        assert_eq!(list(singles(65_530..=65_535)), "65530-65535");
    }
}
