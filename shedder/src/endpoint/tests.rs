use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::snapshot::Snapshot;
use crate::snapshot_sample;

/// An endpoint on loopback; it ends with the test.
struct Server {
    address: SocketAddr,
    snapshot: watch::Sender<Arc<Snapshot>>,
    tick_age_ms: Arc<AtomicU64>,
    task: JoinHandle<Infallible>,
}

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// Stands for "no tick yet".
const NEVER: u64 = u64::MAX;

impl Server {
    async fn start() -> Self {
        Self::start_with(Patience { head: HEAD_TIMEOUT, connection: CONNECTION_TIMEOUT }).await
    }

    async fn start_with(patience: Patience) -> Self {
        Self::start_at(patience, Duration::from_millis(100)).await
    }

    async fn start_at(patience: Patience, tick_interval: Duration) -> Self {
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (snapshot, receiver) = watch::channel(Arc::new(snapshot_sample::snapshot()));
        let tick_age_ms = Arc::new(AtomicU64::new(0));
        let age = Arc::clone(&tick_age_ms);
        let state = State {
            snapshot: receiver.into(),
            tick_interval,
            tick_age: Arc::new(move || match age.load(Ordering::Relaxed) {
                NEVER => None,
                ms => Some(Duration::from_millis(ms)),
            }),
            admission_level: Level::High,
        };
        let task = tokio::spawn(serve_with(listener, state, patience));
        Self { address, snapshot, tick_age_ms, task }
    }

    async fn send(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        // A reset after the answer is the answer all the same.
        if let Err(error) = stream.read_to_end(&mut answer).await {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        String::from_utf8(answer).unwrap()
    }

    async fn get(&self, path: &str) -> Answer {
        let text = self.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let (status_line, headers) = head.split_once("\r\n").unwrap();
        Answer {
            status: status_line.split(' ').nth(1).unwrap().parse().unwrap(),
            headers: headers.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Answer {
    status: u16,
    headers: String,
    body: String,
}

#[tokio::test]
async fn metrics_are_openmetrics() {
    let server = Server::start().await;
    let answer = server.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers.contains(&format!("content-type: {}", crate::metrics::CONTENT_TYPE)));
    assert_eq!(answer.body, crate::metrics::render(Arc::new(snapshot_sample::snapshot())).unwrap());
}

#[tokio::test]
async fn status_is_the_latest_snapshot() {
    let server = Server::start().await;
    let mut changed = snapshot_sample::snapshot();
    changed.mode = "enforce".to_owned();
    server.snapshot.send_replace(Arc::new(changed.clone()));
    let answer = server.get("/status").await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers.contains("content-type: application/json"));
    assert_eq!(serde_json::from_str::<Snapshot>(&answer.body).unwrap(), changed);
}

#[tokio::test]
async fn health_follows_the_age_of_the_last_tick() {
    let server = Server::start().await;
    assert_eq!(server.get("/healthz").await.status, 200);
    // Ten ticks of 100 ms are less than the two seconds of patience.
    server.tick_age_ms.store(1_999, Ordering::Relaxed);
    assert_eq!(server.get("/healthz").await.status, 200);
    server.tick_age_ms.store(2_000, Ordering::Relaxed);
    let late = server.get("/healthz").await;
    assert_eq!(late.status, 503);
    assert!(late.body.starts_with("The control loop last turned 2.0 s ago"), "{}", late.body);
    server.tick_age_ms.store(NEVER, Ordering::Relaxed);
    assert_eq!(server.get("/healthz").await.body, "The control loop has not turned yet.\n");
    // A slow pace has more patience.
    let patience = Patience { head: HEAD_TIMEOUT, connection: CONNECTION_TIMEOUT };
    let server = Server::start_at(patience, Duration::from_secs(1)).await;
    server.tick_age_ms.store(9_999, Ordering::Relaxed);
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn ready_needs_a_tick_and_an_attachment() {
    let server = Server::start().await;
    assert_eq!(server.get("/readyz").await.status, 200);
    let mut snapshot = snapshot_sample::snapshot();
    snapshot.ticks.total = 0;
    server.snapshot.send_replace(Arc::new(snapshot.clone()));
    assert_eq!(server.get("/readyz").await.body, "The first tick is not done yet.\n");
    snapshot.ticks.total = 1;
    snapshot.attachments.remove(0);
    server.snapshot.send_replace(Arc::new(snapshot.clone()));
    let answer = server.get("/readyz").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("veth7: another XDP program is attached"), "{}", answer.body);
    snapshot.attachments.clear();
    server.snapshot.send_replace(Arc::new(snapshot));
    assert_eq!(server.get("/readyz").await.body, "No interface matches attach.interfaces.\n");
}

#[tokio::test]
async fn other_requests_are_told_so() {
    let server = Server::start().await;
    assert!(server.get("/").await.body.contains("/metrics"));
    assert_eq!(server.get("/etc/passwd").await.status, 404);
    assert_eq!(server.get("/metrics/").await.status, 404);
    let post = server.send(b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi").await;
    assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
    assert!(post.to_ascii_lowercase().contains("allow: get, head"), "{post}");
    let head = server.send(b"HEAD /healthz HTTP/1.0\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.0 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn nonsense_and_oversize_harm_nobody() {
    let server = Server::start().await;
    assert!(server.send(b"\x16\x03\x01\x00\xff garbage\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    let mut long = b"GET / HTTP/1.1\r\nX: ".to_vec();
    long.resize(MAX_HEAD_BYTES + 1024, b'a');
    assert!(server.send(&long).await.starts_with("HTTP/1.1 431 "));
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn silent_clients_neither_stop_nor_outnumber_the_others() {
    // They would stay for ever.
    let patience = Patience { head: LONG, connection: LONG };
    let server = Server::start_with(patience).await;
    let mut silent = Vec::new();
    for n in 0..200 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET /healthz HT").await.unwrap();
        }
        silent.push(stream);
    }
    // Not even the half-minute of a slow machine is the patience of those.
    for path in ["/healthz", "/admission", "/healthz"] {
        let answer = tokio::time::timeout(LONG / 20, server.get(path)).await;
        assert_eq!(answer.expect("silent clients keep it waiting").status, 200, "{path}");
    }
    // The oldest made room; the newest did not have to.
    assert!(matches!(ended(&mut silent[0]).await, Some(Ok(0) | Err(_))));
    assert!(ended(silent.last_mut().unwrap()).await.is_none());
}

/// What a client hears that says nothing; `None` where its connection is open.
async fn ended(stream: &mut TcpStream) -> Option<io::Result<usize>> {
    tokio::time::timeout(Duration::from_millis(200), stream.read(&mut [0; 64])).await.ok()
}

#[tokio::test]
async fn whoever_has_asked_is_answered_however_many_come_after() {
    let server = Server::start_with(Patience { head: LONG, connection: LONG }).await;
    // Larger than both socket buffers, so that the answer is under way until it is read.
    let mut large = snapshot_sample::snapshot();
    let port = large.ports[0].clone();
    large.ports =
        (1..=6_000).map(|n| crate::snapshot::PortState { port: n.to_string(), ..port.clone() }).collect();
    server.snapshot.send_replace(Arc::new(large));
    let mut reader = TcpStream::connect(server.address).await.unwrap();
    reader.write_all(b"GET /status HTTP/1.1\r\n\r\n").await.unwrap();
    reader.read_u8().await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS * 2 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    let mut answer = String::new();
    reader.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with('}'), "cut off after {} bytes", answer.len());
}

#[tokio::test]
async fn a_slow_head_ends_the_connection() {
    let patience = Patience { head: Duration::from_millis(100), connection: CONNECTION_TIMEOUT };
    let server = Server::start_with(patience).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET /healthz HT").await.unwrap();
    let mut answer = String::new();
    // Ends by itself; without the time limit this would wait for ever.
    let ended = tokio::time::timeout(Duration::from_secs(60), slow.read_to_string(&mut answer)).await;
    assert!(ended.is_ok());
    assert!(!answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn clients_that_never_read_do_not_hold_memory_for_ever() {
    let patience = Patience { head: HEAD_TIMEOUT, connection: Duration::from_secs(5) };
    let server = Server::start_with(patience).await;
    // Larger than both socket buffers, so that an answer stays in memory until it is read.
    let mut large = snapshot_sample::snapshot();
    let port = large.ports[0].clone();
    large.ports =
        (1..=6_000).map(|n| crate::snapshot::PortState { port: n.to_string(), ..port.clone() }).collect();
    server.snapshot.send_replace(Arc::new(large));
    let mut greedy = Vec::new();
    for _ in 0..MAX_BODIES {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /status HTTP/1.1\r\n\r\n").await.unwrap();
        // The first byte shows that its answer has been made.
        stream.read_u8().await.unwrap();
        greedy.push(stream);
    }
    // Short answers need no such place.
    assert_eq!(server.get("/healthz").await.status, 200);
    // The next long one gets its place when those before are cut off.
    let answer = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let text = server.send(b"GET /status HTTP/1.1\r\n\r\n").await;
            if text.starts_with("HTTP/1.1 200 ") {
                break text;
            }
        }
    });
    assert!(answer.await.is_ok());
}

#[tokio::test]
async fn a_dropped_server_closes_its_connections() {
    let server = Server::start().await;
    let mut open = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(server.get("/healthz").await.status, 200);
    drop(server);
    let mut rest = Vec::new();
    match open.read_to_end(&mut rest).await {
        Ok(_) => assert!(rest.is_empty()),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
}

#[tokio::test]
async fn bind_errors_say_what_to_do() {
    let taken = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = taken.local_addr().unwrap();
    assert_eq!(
        bind(address).await.unwrap_err().to_string(),
        format!(
            "address already in use: another process listens on {address}; change metrics.listen or set it to \"off\""
        )
    );
    // TEST-NET-1 is nobody's.
    let elsewhere = bind("192.0.2.1:9464".parse().unwrap()).await.unwrap_err().to_string();
    assert!(elsewhere.contains("192.0.2.1; change metrics.listen (0.0.0.0:9464"), "{elsewhere}");
}

#[tokio::test]
async fn pressure_and_admission_follow_the_level() {
    let server = Server::start().await;
    let pressure = server.get("/pressure").await;
    assert_eq!(pressure.status, 200);
    assert!(pressure.headers.contains("content-type: application/json"));
    let pressure: serde_json::Value = serde_json::from_str(&pressure.body).unwrap();
    assert_eq!(pressure["level"], "moderate");
    assert_eq!(pressure["ports"]["8080"], "moderate");
    // The configured level is `high`.
    for (path, status) in [
        ("/admission", 200),
        ("/admission?level=moderate", 503),
        ("/admission?level=moderate&port=8000", 200),
        ("/admission?port=9", 404),
        ("/admission?level=low", 400),
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.headers.contains("cache-control: no-store"), "{path}");
    }
    // A level that nobody keeps current refuses nobody.
    server.tick_age_ms.store(60_000, Ordering::Relaxed);
    assert_eq!(server.get("/admission?level=moderate").await.status, 200);
}
