//! The one place of the testbed that reads a clock.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "a load and a server live in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
