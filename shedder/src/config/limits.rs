//! What the limits of a port policy may be, for the file and the command line alike.

use std::time::Duration;

use shedder_common::class::Class;
use shedder_common::limits::UNLIMITED as UNLIMITED_WORD;

use super::model::Action;
use super::suggest::{choose, did_you_mean, show};
use super::units::{self, UNLIMITED};

/// Longest `queue_wait`; the kernel counts it in 32 bits of microseconds.
const LONGEST_QUEUE_WAIT: Duration = Duration::from_secs(3600);

pub(super) fn port(number: i64) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{number} is no port: choose 1 to 65535"))
}

/// Whether a text is a number in digits alone, without leading zeros: what else a parser takes for a number, such as
/// `+8080` and `08080`, is not how anybody spells a port.
pub(crate) fn is_plain_number(text: &str) -> bool {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits && (text.len() == 1 || !text.starts_with('0'))
}

pub(super) fn class(word: &str) -> Result<Class, String> {
    choose("class", word, &Class::ALL.map(|class| (class.name(), class)))
}

pub(super) fn action(word: &str) -> Result<Action, String> {
    choose("action", word, &[("drop", Action::Drop), ("reset", Action::Reset)])
}

/// Connections at once, 1 at least.
pub(super) fn burst(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => {
            Err("0 would never admit anything: choose 1 or more; to admit none write rate = \"0/s\""
                .to_owned())
        }
        Ok(burst) => Ok(burst),
        Err(_) => Err(not_a_count(text, "1000")),
    }
}

/// Concurrent connections; `None` is no limit.
pub(super) fn connections(text: &str) -> Result<Option<u32>, String> {
    if text == UNLIMITED {
        return Ok(None);
    }
    match text.parse() {
        Ok(UNLIMITED_WORD) => Err(not_a_count(text, "20000")),
        Ok(connections) => Ok(Some(connections)),
        Err(_) => Err(not_a_limit(text, || not_a_count(text, "20000"))),
    }
}

/// Part of the listen backlog; `None` is no limit.
pub(super) fn queue_depth(text: &str) -> Result<Option<f64>, String> {
    if text == UNLIMITED {
        return Ok(None);
    }
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Some(ratio)),
        Ok(_) => {
            Err(format!("{} is outside of 0..1: write a part of the listen backlog, such as 0.9", show(text)))
        }
        Err(_) => {
            Err(not_a_limit(text, || format!("`{}` is no number: write 0.9 or \"unlimited\"", show(text))))
        }
    }
}

/// Age of the oldest unaccepted connection; `None` is no limit.
pub(super) fn queue_wait(text: &str) -> Result<Option<Duration>, String> {
    if text == UNLIMITED {
        return Ok(None);
    }
    let wait = units::duration(text).map_err(|why| not_a_limit(text, || why))?;
    if wait > LONGEST_QUEUE_WAIT {
        return Err(format!("`{}` is longer than an hour: write \"unlimited\"", show(text)));
    }
    Ok(Some(wait))
}

fn not_a_count(text: &str, example: &str) -> String {
    let most = UNLIMITED_WORD - 1;
    format!("{} is no number from 0 to {most}: write one such as {example}", show(text))
}

/// The usual reason, unless the word for no limit was meant.
fn not_a_limit(text: &str, reason: impl FnOnce() -> String) -> String {
    match did_you_mean(text, [UNLIMITED]) {
        Some(near) => format!("unknown limit `{}`, did you mean `{near}`?", show(text)),
        None => reason(),
    }
}
