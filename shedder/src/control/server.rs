//! The daemon's side: reads one request from each connection and hands it to the control loop.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::listener::{ControlListener, SocketFile};
use super::protocol::{Command, MAX_REQUEST_BYTES, Payload, Refusal, Response, parse_request};
use super::recordings::Recordings;
use crate::slots::{Slot, Slots};
use crate::snapshot_reader::SnapshotReader;

/// Most connections at once.
const MAX_CONNECTIONS: usize = 16;
/// How often the server looks whether the socket still has its name.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a failed `accept`: without descriptors each further try fails at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);
/// Time for the answers that are due when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// A command on its way to the control loop.
#[derive(Debug)]
pub struct ControlMessage {
    /// What is asked; never [`Command::Status`] or [`Command::Record`], which the server answers itself.
    pub command: Command,
    /// Takes the answer. The caller may be gone; that is no reason to stop.
    pub reply: oneshot::Sender<Result<Payload, Refusal>>,
}

/// Whom the server serves, and for how long.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// The only user.
    pub(super) uid: u32,
    /// Time for a request to come and for a response to go.
    pub(super) transfer: Duration,
    /// Time for the control loop to answer.
    pub(super) answer: Duration,
}

impl Terms {
    const DEFAULT: Self = Self { uid: 0, transfer: Duration::from_secs(5), answer: Duration::from_secs(10) };
}

#[derive(Clone)]
struct Shared {
    snapshot: SnapshotReader,
    commands: mpsc::Sender<ControlMessage>,
    recordings: Recordings,
    terms: Terms,
}

/// Serves the control socket until `stop`, then sends the answers that are due and removes the socket's file. A socket
/// whose file somebody removed is made anew.
/// Dropped before that, it closes every connection at once.
///
/// The control loop drains `commands`; it does not have to answer within its tick.
///
/// # Errors
/// The runtime does not take the socket.
pub async fn serve(
    listener: ControlListener,
    snapshot: impl Into<SnapshotReader>,
    commands: mpsc::Sender<ControlMessage>,
    recordings: Recordings,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_with(listener, snapshot, commands, recordings, stop, Terms::DEFAULT).await
}

pub(super) async fn serve_with(
    listener: ControlListener,
    snapshot: impl Into<SnapshotReader>,
    commands: mpsc::Sender<ControlMessage>,
    recordings: Recordings,
    stop: impl Future<Output = ()>,
    terms: Terms,
) -> io::Result<()> {
    let (listener, file) = listener.into_parts();
    let mut socket = Socket { listener: UnixListener::from_std(listener)?, file, trouble: String::new() };
    let shared = Shared { snapshot: snapshot.into(), commands, recordings, terms };
    let mut connections = JoinSet::new();
    tokio::select! {
        () = stop => {}
        () = accept(&mut socket, &mut connections, &shared) => {}
    }
    // A daemon that starts now finds the name free; who is connected still gets an answer.
    drop(socket);
    shared.recordings.end();
    let farewell = async { while connections.join_next().await.is_some() {} };
    if timeout(FAREWELL, farewell).await.is_err() {
        tracing::debug!("a control connection was cut off");
    }
    Ok(())
}

/// The socket and its name.
struct Socket {
    // Dropped before the listener: a daemon that starts then finds the name free.
    file: SocketFile,
    listener: UnixListener,
    /// What was said of the name last.
    trouble: String,
}

impl Socket {
    /// Takes the name again where it is lost, as when somebody removed the directory. What goes wrong is logged when it
    /// begins, and tried again at the next look.
    fn keep_name(&mut self) {
        if self.file.is_in_place() {
            self.trouble.clear();
            return;
        }
        let path = self.file.path().to_owned();
        match self.bind_again() {
            Ok(()) => {
                tracing::warn!("The control socket {} was gone and is made again.", path.display());
                self.trouble.clear();
            }
            Err(trouble) if trouble != self.trouble => {
                tracing::warn!("The control socket {} is gone: {trouble}.", path.display());
                self.trouble = trouble;
            }
            Err(_) => {}
        }
    }

    fn bind_again(&mut self) -> Result<(), String> {
        let (listener, file) = self.file.bind_again().map_err(|error| error.to_string())?;
        // While the old socket lives, no file can be taken for its own.
        self.file = file;
        self.listener = UnixListener::from_std(listener).map_err(|error| error.to_string())?;
        Ok(())
    }
}

async fn accept(socket: &mut Socket, connections: &mut JoinSet<()>, shared: &Shared) {
    let mut slots = Slots::new(MAX_CONNECTIONS);
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted,
            _ = looks.tick() => {
                socket.keep_name();
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                let slot = slots.take().await;
                let shared = shared.clone();
                connections.spawn(async move {
                    if let Err(error) = converse(stream, &shared, &slot).await {
                        tracing::debug!(%error, "a control client went away");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "accept on the control socket failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One request, one response; or many, where it is a recording.
async fn converse(mut stream: UnixStream, shared: &Shared, slot: &Slot) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    let result = if uid == shared.terms.uid {
        let request = tokio::select! {
            // What has come is read before its client is called silent.
            biased;
            request = timeout(shared.terms.transfer, read_request(&mut stream)) => request.ok(),
            () = slot.is_needed() => None,
        };
        if request.is_some() {
            slot.has_asked();
        }
        match request {
            None => Err(Refusal::failed("the request did not come in time")),
            Some(Ok(Some(line))) => match parse_request(&line) {
                Ok(Command::Record { seconds, bytes_max }) => {
                    let transfer = shared.terms.transfer;
                    return shared.recordings.serve(&mut stream, seconds, bytes_max, transfer).await;
                }
                Ok(command) => perform(command, shared).await,
                Err(refusal) => Err(refusal),
            },
            // Somebody looked whether a daemon lives, and left.
            Some(Ok(None)) => return Ok(()),
            Some(Err(refusal)) => Err(refusal),
        }
    } else {
        Err(Refusal::failed(format!("only root may use the control socket, not user {uid}")))
    };
    let line = tokio::task::spawn_blocking(move || to_line(&Response::from(result))).await??;
    timeout(shared.terms.transfer, stream.write_all(&line)).await?
}

/// The request without its line feed; `None` where the client said nothing at all.
async fn read_request(stream: &mut UnixStream) -> Result<Option<Vec<u8>>, Refusal> {
    let mut line = Vec::new();
    let limit = u64::try_from(MAX_REQUEST_BYTES).unwrap_or(u64::MAX);
    BufReader::new(stream.take(limit.saturating_add(1)))
        .read_until(b'\n', &mut line)
        .await
        .map_err(|error| Refusal::failed(format!("the request could not be read: {error}")))?;
    if line.pop_if(|byte| *byte == b'\n').is_some() {
        Ok(Some(line))
    } else if line.is_empty() {
        Ok(None)
    } else if line.len() > MAX_REQUEST_BYTES {
        Err(Refusal::wrong_use(format!("the request is longer than {MAX_REQUEST_BYTES} bytes")))
    } else {
        Err(Refusal::wrong_use("the request does not end with a line feed"))
    }
}

async fn perform(command: Command, shared: &Shared) -> Result<Payload, Refusal> {
    if command == Command::Status {
        let snapshot = shared.snapshot.latest().await.ok_or_else(Refusal::stopping)?;
        return Ok(Payload::Status(Box::new(Arc::unwrap_or_clone(snapshot))));
    }
    let answer = async {
        let (reply, answer) = oneshot::channel();
        shared.commands.send(ControlMessage { command, reply }).await.map_err(|_| Refusal::stopping())?;
        answer.await.map_err(|_| Refusal::stopping())?
    };
    timeout(shared.terms.answer, answer).await.unwrap_or_else(|_| {
        Err(Refusal::failed(format!(
            "the control loop has not answered for {} s; whether the command takes effect is open: look at `shedder \
             status`",
            shared.terms.answer.as_secs_f64()
        )))
    })
}

fn to_line(response: &Response) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    Ok(line)
}
