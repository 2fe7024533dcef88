//! Writing a trace.

use std::io::{self, Write};
use std::time::Duration;

use super::{Line, OFFERED_BELOW_QUOTA};
use crate::sensors::reading::{Reading, Scope};

/// Writes live readings as a trace of bounded size.
#[derive(Debug)]
pub struct Recorder<W> {
    out: W,
    bytes_left: u64,
    start: Option<Duration>,
    tick: Vec<u8>,
}

/// Whether a tick is in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is.
    Written,
    /// It would have made the trace too large; the trace ends before it.
    Full,
}

impl<W: Write> Recorder<W> {
    /// Writes at most `bytes_max` to `out`, which wants no buffer: a tick is one write.
    pub fn new(out: W, bytes_max: u64) -> Self {
        Self { out, bytes_left: bytes_max, start: None, tick: Vec::new() }
    }

    /// One tick, whole or not at all: its readings, and the scopes at which what is offered lies below the quotas.
    ///
    /// # Errors
    /// Where `out` fails; the trace may then end within a line.
    pub fn record<'a>(
        &mut self,
        now: Duration,
        readings: &[Reading],
        offered_below_quota: impl IntoIterator<Item = &'a Scope>,
    ) -> io::Result<Recorded> {
        let t = now.saturating_sub(*self.start.get_or_insert(now)).as_secs_f64();
        self.tick.clear();
        for reading in readings {
            let value = reading.value.as_ref().ok().copied().filter(|value| value.is_finite());
            self.line(t, &reading.signal, &reading.scope, value, reading.age)?;
        }
        for scope in offered_below_quota {
            self.line(t, OFFERED_BELOW_QUOTA, scope, Some(1.0), Duration::ZERO)?;
        }
        let size = u64::try_from(self.tick.len()).unwrap_or(u64::MAX);
        let Some(left) = self.bytes_left.checked_sub(size) else {
            // A later, smaller tick must not follow the gap.
            self.bytes_left = 0;
            return Ok(Recorded::Full);
        };
        self.out.write_all(&self.tick)?;
        self.bytes_left = left;
        Ok(Recorded::Written)
    }

    fn line(
        &mut self,
        t: f64,
        signal: &str,
        scope: &Scope,
        value: Option<f64>,
        age: Duration,
    ) -> io::Result<()> {
        let (signal, scope, age) = (signal.to_owned(), scope.to_string(), age.as_secs_f64());
        let line = Line { t, signal, scope, value, age };
        serde_json::to_writer(&mut self.tick, &line)?;
        self.tick.push(b'\n');
        Ok(())
    }

    /// Where it is written.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Ends the trace.
    pub fn into_inner(self) -> W {
        self.out
    }
}
