//! Paths and what they answer.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State as Extract};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::admission::{self, Answer};
use super::{MAX_BODIES, State, health, pressure};
use crate::metrics;
use crate::snapshot::Snapshot;

const TEXT: &str = "text/plain; charset=utf-8";

const INDEX: &str = "\
shedder: refuses new connections before they cost anything

/metrics    every series, OpenMetrics
/status     everything that is known, JSON (the same as `shedder status --json`)
/pressure   the level of the host, of each scope and of each port, JSON
/admission  200 below a level, 503 from it on; ?level=moderate|high|emergency, ?port=N for that port's level
/healthz    200 while the control loop turns
/readyz     200 once programs are attached and the first tick is done
";

#[derive(Clone)]
struct Shared {
    state: State,
    bodies: Arc<Semaphore>,
}

impl Shared {
    /// A long answer, made on a thread of its own so that it delays nobody, and counted until it is sent.
    async fn long<E: std::error::Error + Send + 'static>(
        &self,
        content_type: &'static str,
        render: impl FnOnce(Arc<Snapshot>) -> Result<String, E> + Send + 'static,
    ) -> Response {
        let Ok(permit) = Arc::clone(&self.bodies).acquire_owned().await else {
            return failed("The endpoint is closing.");
        };
        let Some(snapshot) = self.state.snapshot.latest().await else { return stopping() };
        match tokio::task::spawn_blocking(move || render(snapshot)).await {
            Ok(Ok(text)) => {
                let body = Bytes::from_owner(LongBody { text, _permit: permit });
                answer(StatusCode::OK, content_type, body)
            }
            Ok(Err(error)) => failed(&format!("The answer could not be written: {error}.")),
            Err(error) => failed(&format!("The answer could not be written: {error}.")),
        }
    }
}

/// A text that gives its place back once it is sent or its client is gone.
struct LongBody {
    text: String,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for LongBody {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// Every path.
pub(super) fn router(state: State) -> Router {
    let shared = Shared { state, bodies: Arc::new(Semaphore::new(MAX_BODIES)) };
    Router::new()
        .route("/", get(async || answer(StatusCode::OK, TEXT, INDEX)))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/pressure", get(pressure))
        .route("/admission", get(admission))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(async || answer(StatusCode::NOT_FOUND, TEXT, "Not found; / lists what there is.\n"))
        .method_not_allowed_fallback(only_get)
        .with_state(shared)
}

async fn metrics(Extract(shared): Extract<Shared>) -> Response {
    shared.long(metrics::CONTENT_TYPE, metrics::render).await
}

async fn status(Extract(shared): Extract<Shared>) -> Response {
    shared.long("application/json", |snapshot| serde_json::to_string(&*snapshot)).await
}

async fn pressure(Extract(shared): Extract<Shared>) -> Response {
    shared
        .long("application/json", |snapshot| serde_json::to_string(&pressure::Pressure::of(&snapshot)))
        .await
}

async fn admission(Extract(shared): Extract<Shared>, RawQuery(query): RawQuery) -> Response {
    let State { snapshot, tick_age, tick_interval, admission_level } = &shared.state;
    let query = query.unwrap_or_default();
    let alive = health::alive(tick_age(), *tick_interval);
    // Must answer even where the loop does not.
    let snapshot = if alive.is_ok() { snapshot.latest().await } else { None };
    let snapshot = snapshot.unwrap_or_default();
    let (status, sentence) = match admission::judge(&snapshot, alive, *admission_level, &query) {
        Answer::Admit(sentence) => (StatusCode::OK, sentence),
        Answer::Refuse(sentence) => (StatusCode::SERVICE_UNAVAILABLE, sentence),
        Answer::NoSuchPort(sentence) => (StatusCode::NOT_FOUND, sentence),
        Answer::BadRequest(sentence) => (StatusCode::BAD_REQUEST, sentence),
    };
    answer(status, TEXT, format!("{sentence}\n"))
}

async fn healthz(Extract(shared): Extract<Shared>) -> Response {
    // Must answer even where the loop does not.
    verdict(health::alive((shared.state.tick_age)(), shared.state.tick_interval))
}

async fn readyz(Extract(shared): Extract<Shared>) -> Response {
    match shared.state.snapshot.latest().await {
        Some(snapshot) => verdict(health::ready(&snapshot)),
        None => stopping(),
    }
}

fn stopping() -> Response {
    verdict(Err("The daemon is stopping.".to_owned()))
}

async fn only_get() -> Response {
    let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Only GET and HEAD.\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

fn verdict(found: Result<(), String>) -> Response {
    match found {
        Ok(()) => answer(StatusCode::OK, TEXT, "ok\n"),
        Err(sentence) => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{sentence}\n")),
    }
}

fn failed(sentence: &str) -> Response {
    answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{sentence}\n"))
}

fn answer(status: StatusCode, content_type: &'static str, body: impl IntoResponse) -> Response {
    (status, [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")], body).into_response()
}
