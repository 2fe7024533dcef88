//! Writing for people.

use std::io::{self, IsTerminal, Write};

use super::Failure;
use crate::control::protocol::Payload;
pub(super) use crate::words::clean;

/// Whether the output may hold terminal codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text only.
    Plain,
    /// Bold where it matters.
    Terminal,
}

impl Style {
    /// [`Style::Terminal`] where stdout is one and `NO_COLOR` is unset or empty.
    #[must_use]
    pub fn of_stdout() -> Self {
        let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if !declined && io::stdout().is_terminal() { Self::Terminal } else { Self::Plain }
    }

    /// The text in bold.
    pub(super) fn strong(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Terminal => format!("\x1b[1m{text}\x1b[0m"),
        }
    }
}

/// Says something on standard error. Where that is closed or full there is nobody to tell.
pub fn tell(text: &str) {
    let _unheard = io::stderr().write_all(text.as_bytes());
}

/// Writes a text that may have several lines of its own, each clean.
pub(super) fn write_text(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    for line in text.lines() {
        writeln!(out, "{}", clean(line))?;
    }
    Ok(())
}

/// Writes what the daemon answered.
pub(super) fn write_payload(out: &mut dyn Write, payload: &Payload) -> Result<(), Failure> {
    match payload {
        Payload::Message(message) => write_text(out, message),
        Payload::Status(snapshot) => write_json(out, snapshot),
        Payload::Document(document) => write_json(out, document),
        Payload::Trace { lines, .. } => write_text(out, lines),
    }
}

/// Writes a value as JSON for people and programs.
pub(super) fn write_json(out: &mut dyn Write, value: &impl serde::Serialize) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
