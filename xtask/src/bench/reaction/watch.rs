//! Waits for quotas to change. The daemon's `/status` is made by each tick after the quotas were written.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use xtask::testbed::{Namespace, http_get};

use crate::daemon::ENDPOINT;

const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// Far below a tick.
const LOOK: Duration = Duration::from_millis(3);
const PATIENCE: Duration = Duration::from_secs(60);
/// How long quotas must be normal before a stall begins: longer than any window.
const CALM: Duration = Duration::from_millis(1500);

#[expect(clippy::disallowed_methods, reason = "reactions take real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// A look at the daemon from within the server's namespace.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    pub(super) server: &'a Namespace,
    pub(super) stop: &'a AtomicBool,
}

/// What was seen, and when.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) at: Instant,
    /// Which demands the highest level; empty where all is normal.
    pub(super) signal: String,
    pub(super) level: String,
}

impl Watch<'_> {
    /// Waits for a status of this kind.
    pub(super) fn until(&self, what: &str, is_it: impl Fn(&Value) -> bool + Sync) -> anyhow::Result<Seen> {
        let deadline = now() + PATIENCE;
        self.server.enter(|| {
            loop {
                let status = self.status()?;
                let at = now();
                if is_it(&status) {
                    let (level, signal) = demanding(&status);
                    return Ok(Seen { at, signal, level });
                }
                anyhow::ensure!(at < deadline, "no {what} within {} s: {status:#}", PATIENCE.as_secs());
                thread::sleep(LOOK);
            }
        })?
    }

    /// Waits until quotas have been normal for a while.
    pub(super) fn until_calm(&self) -> anyhow::Result<()> {
        let deadline = now() + PATIENCE;
        self.server.enter(|| {
            let mut since = now();
            while since.elapsed() < CALM {
                if !is_normal(&self.status()?) {
                    since = now();
                }
                anyhow::ensure!(
                    now() < deadline,
                    "this machine is too busy: quotas did not get normal within {} s",
                    PATIENCE.as_secs()
                );
                thread::sleep(LOOK);
            }
            Ok(())
        })?
    }

    fn status(&self) -> anyhow::Result<Value> {
        anyhow::ensure!(!self.stop.load(Ordering::Relaxed), "stopped by a signal");
        let (code, body) =
            http_get(SocketAddr::from(ENDPOINT), "/status", STATUS_TIMEOUT).context("/status")?;
        anyhow::ensure!(code == 200, "/status: {code} {body}");
        serde_json::from_str(&body).context("/status")
    }
}

/// Whether every class sees the same of every limit, as it is at level `normal` with default shares.
pub(super) fn is_normal(status: &Value) -> bool {
    let classes = || status.get("ports")?.get(0)?.get("classes")?.as_object();
    classes().is_some_and(|classes| {
        let mut quotas = classes.values().map(|class| class.get("quota"));
        let first = quotas.next().flatten();
        first.is_some() && quotas.all(|quota| quota == first)
    })
}

/// The level and signal of the first scope that is not at `normal`.
fn demanding(status: &Value) -> (String, String) {
    let word = |scope: &Value, key| scope.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let scopes = status.get("levels").and_then(Value::as_array).into_iter().flatten();
    let pressed = scopes.map(|scope| (word(scope, "level"), word(scope, "signal")));
    pressed.into_iter().find(|(level, _)| level != "normal").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(batch_wait_seconds: f64) -> Value {
        let class = |wait: f64| json!({ "quota": { "closed": false, "queue_wait_seconds": wait } });
        json!({
            "ports": [{ "classes": { "control": class(0.1), "batch": class(batch_wait_seconds) } }],
            "levels": [
                { "scope": "host", "level": "normal", "signal": "" },
                { "scope": "port:8080", "level": "moderate", "signal": "accept_queue" },
            ],
        })
    }

    #[test]
    fn a_class_that_sees_less_is_not_normal() {
        assert!(is_normal(&status(0.1)));
        assert!(!is_normal(&status(0.025)));
        assert!(!is_normal(&json!({ "ports": [] })), "nothing is known yet");
    }

    #[test]
    fn the_signal_is_that_of_the_scope_in_trouble() {
        assert_eq!(demanding(&status(0.1)), ("moderate".to_owned(), "accept_queue".to_owned()));
        assert_eq!(demanding(&json!({})), (String::new(), String::new()));
    }
}
