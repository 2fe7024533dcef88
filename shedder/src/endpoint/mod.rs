//! The HTTP endpoint: what monitoring, load balancers and people with a browser ask.
//!
//! A client may be slow, silent or hostile: each connection serves one request within [`CONNECTION_TIMEOUT`], there
//! are never more than [`MAX_CONNECTIONS`] of them, of which the one that has been silent for longest makes room for
//! the next, and never more than [`MAX_BODIES`] long answers in memory.

mod admission;
mod bind;
mod health;
mod pressure;
mod routes;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use shedder_common::level::Level;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::slots::{Slot, Slots};
use crate::snapshot_reader::SnapshotReader;

pub use bind::{BindError, bind};

/// Most connections at once.
pub const MAX_CONNECTIONS: usize = 64;
/// Most answers of `/metrics` and `/status` in memory at once; more wait for their turn.
pub const MAX_BODIES: usize = 2;
/// Most bytes of a request's head.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Time within which the head must have come.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which a connection must be done.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Pause after a failed `accept`: without descriptors each further try fails at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// What the endpoint shows.
#[derive(Clone)]
pub struct State {
    /// Gives the snapshot.
    pub snapshot: SnapshotReader,
    /// Configured pace of the ticks.
    pub tick_interval: Duration,
    /// Age of the last tick when called; `None` before the first one.
    pub tick_age: Arc<dyn Fn() -> Option<Duration> + Send + Sync>,
    /// `metrics.admission_level`.
    pub admission_level: Level,
}

/// How long a client may take.
#[derive(Clone, Copy)]
struct Patience {
    head: Duration,
    connection: Duration,
}

/// Answers until it is dropped, and closes every connection then.
pub async fn serve(listener: TcpListener, state: State) -> Infallible {
    serve_with(listener, state, Patience { head: HEAD_TIMEOUT, connection: CONNECTION_TIMEOUT }).await
}

async fn serve_with(listener: TcpListener, state: State, patience: Patience) -> Infallible {
    let routes = routes::router(state);
    let mut slots = Slots::new(MAX_CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let slot = slots.take().await;
                connections.spawn(serve_connection(stream, routes.clone(), patience, slot));
            }
            Err(error) if is_clients_fault(&error) => {}
            Err(error) => {
                tracing::debug!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, routes: Router, patience: Patience, slot: Slot) {
    let answered = tokio::time::timeout(patience.connection, answer(stream, routes, patience.head, &slot));
    tokio::select! {
        // What has come is read before its client is called silent.
        biased;
        done = answered => if let Ok(Err(error)) = done {
            tracing::debug!(%error, "an HTTP client went away or sent nonsense");
        },
        () = slot.is_needed() => tracing::debug!("a silent HTTP client makes room"),
    }
}

async fn answer(stream: TcpStream, routes: Router, head: Duration, slot: &Slot) -> Result<(), hyper::Error> {
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(|request| {
        slot.has_asked();
        routes.call(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(MAX_HEAD_BYTES)
        // One request per connection, so that one time limit covers everything.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// Whether `accept` failed because of the connection that it would have returned.
fn is_clients_fault(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}
