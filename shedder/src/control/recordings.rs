//! Readings of every tick for whoever records them.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast};
use tokio::time::timeout;

use super::protocol::{Payload, Refusal, Response};
use crate::sensors::reading::{Reading, Scope};
use crate::trace::{Recorded, Recorder};

/// Most recordings at once.
const MAX_RECORDINGS: usize = 4;
/// Ticks that a recording may lie behind.
const TICKS_BEHIND: usize = 32;

/// What the levels were judged by at one tick.
#[derive(Debug)]
pub struct TickReadings {
    /// When, by the clock of the control loop.
    pub now: Duration,
    /// Every reading.
    pub readings: Vec<Reading>,
    /// The scopes at which what is offered lay below the quotas.
    pub offered_below_quota: BTreeSet<Scope>,
}

/// Joins the control loop, which publishes each tick, to the recordings. Costs nothing while nobody records.
#[derive(Clone, Debug)]
pub struct Recordings {
    /// `None` is the end.
    ticks: broadcast::Sender<Option<Arc<TickReadings>>>,
    slots: Arc<Semaphore>,
}

impl Default for Recordings {
    fn default() -> Self {
        Self { ticks: broadcast::Sender::new(TICKS_BEHIND), slots: Arc::new(Semaphore::new(MAX_RECORDINGS)) }
    }
}

impl Recordings {
    /// Hands a tick to every recording; `tick` is called where there is one.
    pub fn publish(&self, tick: impl FnOnce() -> TickReadings) {
        if self.ticks.receiver_count() > 0 {
            // Whoever recorded may have gone meanwhile.
            let _receivers = self.ticks.send(Some(Arc::new(tick())));
        }
    }

    /// Ends every recording.
    pub(super) fn end(&self) {
        let _receivers = self.ticks.send(None);
    }

    /// Sends ticks to a client until a bound is reached, the daemon stops or the client goes.
    pub(super) async fn serve(
        &self,
        stream: &mut UnixStream,
        seconds: Option<f64>,
        bytes_max: u64,
        transfer: Duration,
    ) -> io::Result<()> {
        let last = match self.slots.try_acquire() {
            Ok(_slot) => self.send_ticks(stream, seconds, bytes_max, transfer).await?,
            Err(_) => Err(Refusal::failed(format!("{MAX_RECORDINGS} recordings run already; end one first"))),
        };
        send(stream, &Response::from(last.map(Payload::Message)), transfer).await
    }

    /// Says why it ended.
    async fn send_ticks(
        &self,
        stream: &mut UnixStream,
        seconds: Option<f64>,
        bytes_max: u64,
        transfer: Duration,
    ) -> io::Result<Result<String, Refusal>> {
        let mut ticks = self.ticks.subscribe();
        let mut recorder = Recorder::new(Vec::new(), bytes_max);
        let mut start = None;
        loop {
            let tick = match ticks.recv().await {
                Ok(Some(tick)) => tick,
                Ok(None) | Err(RecvError::Closed) => return Ok(Ok("the daemon stops".to_owned())),
                Err(RecvError::Lagged(missed)) => {
                    return Ok(Err(Refusal::failed(format!(
                        "{missed} ticks are missing because the trace was not taken fast enough; it ends before them"
                    ))));
                }
            };
            let t = tick.now.saturating_sub(*start.get_or_insert(tick.now)).as_secs_f64();
            if seconds.is_some_and(|seconds| t > seconds) {
                return Ok(Ok("the time is over".to_owned()));
            }
            if recorder.record(tick.now, &tick.readings, &tick.offered_below_quota)? == Recorded::Full {
                return Ok(Ok(format!("the next tick would have gone beyond {bytes_max} bytes")));
            }
            let lines = String::from_utf8(std::mem::take(recorder.get_mut())).map_err(io::Error::other)?;
            send(stream, &Response::Ok(Payload::Trace { t, lines }), transfer).await?;
        }
    }
}

async fn send(stream: &mut UnixStream, response: &Response, transfer: Duration) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    timeout(transfer, stream.write_all(&line)).await?
}
