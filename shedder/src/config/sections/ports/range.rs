//! `port` of a port policy: one port, or first and last of a range.

use toml::de::DeValue;

use crate::config::limits;
use crate::config::section::type_name;
use crate::config::suggest::show;
use crate::config::value::{self, Read};

/// Ports from `first` to `last`, both included; `first <= last`, neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortRange {
    pub(super) first: u16,
    pub(super) last: u16,
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

    fn parse(text: &str) -> Read<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse()) else {
            return Err(format!("`{}` is no range of ports: write one such as \"8000-8099\"", show(text)));
        };
        let range = Self { first: limits::port(first)?, last: limits::port(last)? };
        if range.first > range.last {
            let Self { first, last } = range;
            return Err(format!("the range ends before it starts: write \"{last}-{first}\""));
        }
        Ok(range)
    }

    pub(super) fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Number of ports.
    pub(super) fn width(self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    pub(super) fn label(self) -> String {
        if self.first == self.last { self.first.to_string() } else { format!("{}-{}", self.first, self.last) }
    }
}
