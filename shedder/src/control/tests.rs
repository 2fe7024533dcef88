use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use shedder_common::control::Mode;
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};

use super::client::{CallError, call, open};
use super::protocol::{Command, MAX_REQUEST_BYTES, Payload, Refusal};
use super::server::{Terms, serve_with};
use super::*;
use crate::sensors::reading::{Reading, Scope};
use crate::snapshot_sample;

const LONG: Duration = Duration::from_secs(60);
/// Whoever runs the tests is served.
fn terms() -> Terms {
    Terms { uid: rustix::process::geteuid().as_raw(), transfer: LONG, answer: LONG }
}

/// A server in a directory of its own whose loop answers with what it was asked.
struct Daemon {
    socket: PathBuf,
    stop: Arc<Notify>,
    recordings: Recordings,
    task: JoinHandle<std::io::Result<()>>,
    _directory: TempDir,
}

impl Daemon {
    fn start(terms: Terms) -> Self {
        let (commands, mut asked) = mpsc::channel::<ControlMessage>(1);
        tokio::spawn(async move {
            while let Some(message) = asked.recv().await {
                let answer = match &message.command {
                    Command::Set { port, .. } if port == "9" => {
                        Err(Refusal::wrong_use("no policy covers port 9"))
                    }
                    command => Ok(Payload::Message(format!("{command:?}"))),
                };
                message.reply.send(answer).expect("the server waits");
            }
        });
        Self::start_with(terms, commands)
    }

    fn start_with(terms: Terms, commands: mpsc::Sender<ControlMessage>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("run/shedder/control.sock");
        let listener = ControlListener::bind(&socket).unwrap();
        let (sender, snapshot) = watch::channel(Arc::new(snapshot_sample::snapshot()));
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let recordings = Recordings::default();
        let published = recordings.clone();
        let task = tokio::spawn(async move {
            let _publisher = sender;
            serve_with(listener, snapshot, commands, recordings, stopped.notified(), terms).await
        });
        Self { socket, stop, recordings: published, task, _directory: directory }
    }

    async fn call(&self, command: Command) -> Result<Payload, CallError> {
        let socket = self.socket.clone();
        spawn_blocking(move || call(&socket, command)).await.unwrap()
    }

    /// Sends bytes, closes that direction if told so, and reads what comes.
    async fn send(&self, bytes: Vec<u8>, close: bool) -> String {
        let socket = self.socket.clone();
        spawn_blocking(move || {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            // The server may have answered and gone before it was all sent.
            let sent = stream.write_all(&bytes);
            if close && sent.is_ok() {
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
            let mut answer = Vec::new();
            let mut byte = [0];
            while let Ok(1) = stream.read(&mut byte) {
                answer.push(byte[0]);
            }
            String::from_utf8(answer).unwrap()
        })
        .await
        .unwrap()
    }
}

#[tokio::test]
async fn status_is_the_snapshot_and_the_rest_goes_to_the_loop() {
    let daemon = Daemon::start(terms());
    let status = daemon.call(Command::Status).await.unwrap();
    assert_eq!(status, Payload::Status(Box::new(snapshot_sample::snapshot())));
    let mode = daemon.call(Command::Mode { mode: Mode::Enforce }).await.unwrap();
    assert_eq!(mode, Payload::Message("Mode { mode: Enforce }".to_owned()));
    let assignments = vec![("rate".to_owned(), "1/s".to_owned())];
    let refused =
        daemon.call(Command::Set { port: "9".to_owned(), assignments, confirm_seconds: None }).await;
    match refused {
        Err(CallError::Refused(refusal)) => {
            assert_eq!(refusal, Refusal::wrong_use("no policy covers port 9"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_at_once_are_all_answered() {
    let daemon = Daemon::start(terms());
    let calls: Vec<_> = (0..40)
        .map(|n| {
            let socket = daemon.socket.clone();
            spawn_blocking(move || {
                call(&socket, Command::Explain { port: Some(n.to_string()) }).map(|p| (n, p))
            })
        })
        .collect();
    for call in calls {
        let (n, payload) = call.await.unwrap().unwrap();
        assert_eq!(payload, Payload::Message(format!("Explain {{ port: Some(\"{n}\") }}")));
    }
}

#[tokio::test]
async fn garbage_is_answered_and_harms_nobody() {
    let daemon = Daemon::start(terms());
    for (bytes, close, expected) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), false, "not a line of JSON"),
        (b"\xff\xfe\0\n".to_vec(), false, "not a line of JSON"),
        (b"{\"version\":9,\"command\":\"status\"}\n".to_vec(), false, "this daemon speaks version 1"),
        (b"{\"version\":1,\"command\":\"status\"}".to_vec(), true, "does not end with a line feed"),
        (vec![b'x'; MAX_REQUEST_BYTES * 4], false, "longer than 65536 bytes"),
    ] {
        let answer = daemon.send(bytes, close).await;
        assert!(answer.contains(expected) && answer.ends_with("\n"), "{expected}: {answer}");
        assert!(answer.starts_with("{\"error\":{"), "{answer}");
    }
    assert_eq!(daemon.send(Vec::new(), true).await, "");
    daemon.call(Command::Status).await.unwrap();
}

#[tokio::test]
async fn a_silent_client_is_cut_off() {
    let daemon = Daemon::start(Terms { transfer: Duration::from_millis(50), ..terms() });
    let answer = daemon.send(b"{\"version\":1".to_vec(), false).await;
    assert!(answer.contains("did not come in time"), "{answer}");
}

#[tokio::test]
async fn silent_clients_keep_nobody_waiting() {
    // They would stay for longer than the test takes.
    let daemon = Daemon::start(Terms { transfer: LONG * 10, ..terms() });
    let mut silent = Vec::new();
    for n in 0..80 {
        let mut stream = tokio::net::UnixStream::connect(&daemon.socket).await.unwrap();
        if n % 2 == 0 {
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"{\"version\":1").await.unwrap();
        }
        silent.push(stream);
    }
    let calls = async {
        daemon.call(Command::Status).await.unwrap();
        daemon.call(Command::Mode { mode: Mode::Off }).await.unwrap();
    };
    tokio::time::timeout(LONG / 2, calls).await.expect("silent clients keep it waiting");
    // The oldest made room and heard why.
    let mut answer = String::new();
    let oldest = silent.first_mut().unwrap();
    tokio::io::AsyncReadExt::read_to_string(oldest, &mut answer).await.unwrap();
    assert!(answer.contains("did not come in time"), "{answer}");
}

#[tokio::test]
async fn whoever_waits_for_the_loop_is_answered_however_many_come_after() {
    let (commands, mut asked) = mpsc::channel(1);
    let daemon = Daemon::start_with(terms(), commands);
    let socket = daemon.socket.clone();
    let confirm = spawn_blocking(move || call(&socket, Command::Confirm));
    let message = asked.recv().await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(tokio::net::UnixStream::connect(&daemon.socket).await.unwrap());
    }
    daemon.call(Command::Status).await.unwrap();
    message.reply.send(Ok(Payload::Message("done".to_owned()))).unwrap();
    assert_eq!(confirm.await.unwrap().unwrap(), Payload::Message("done".to_owned()));
}

/// Calls until the daemon is reached again.
async fn is_reached_again(daemon: &Daemon) {
    let reached = async {
        while let Err(error) = daemon.call(Command::Status).await {
            assert!(matches!(error, CallError::NoDaemon { .. }), "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, reached).await.expect("the socket does not come back");
}

#[tokio::test]
async fn a_socket_whose_file_is_lost_comes_back() {
    let daemon = Daemon::start(terms());
    let directory = daemon.socket.parent().unwrap();
    // With its directory, alone, and with a directory that somebody made again.
    fs::remove_dir_all(directory).unwrap();
    is_reached_again(&daemon).await;
    assert_eq!(fs::metadata(&daemon.socket).unwrap().permissions().mode() & 0o777, 0o600);
    fs::remove_file(&daemon.socket).unwrap();
    is_reached_again(&daemon).await;
    fs::remove_dir_all(directory).unwrap();
    fs::create_dir(directory).unwrap();
    is_reached_again(&daemon).await;
    // No other daemon gets the directory.
    let other = ControlListener::bind(&directory.join("other.sock")).unwrap_err();
    assert!(matches!(other, SocketError::Shared { .. }), "{other}");
    daemon.stop.notify_one();
    daemon.task.await.unwrap().unwrap();
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

#[tokio::test]
async fn a_name_that_another_daemon_has_taken_is_left_to_it() {
    let daemon = Daemon::start(terms());
    let directory = daemon.socket.parent().unwrap();
    fs::remove_dir_all(directory).unwrap();
    let other = ControlListener::bind(&daemon.socket).unwrap();
    let inode = fs::metadata(&daemon.socket).unwrap().ino();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(fs::metadata(&daemon.socket).unwrap().ino(), inode);
    // It comes back once the other one is gone.
    drop(other);
    is_reached_again(&daemon).await;
}

#[tokio::test]
async fn a_loop_that_does_not_answer_is_reported() {
    let (commands, mut asked) = mpsc::channel(4);
    let daemon = Daemon::start_with(Terms { answer: Duration::from_millis(50), ..terms() }, commands);
    let error = daemon.call(Command::Confirm).await.unwrap_err().to_string();
    assert!(error.contains("has not answered for 0.05 s"), "{error}");
    // The command arrived all the same, and to answer it late is no fault.
    let late = asked.recv().await.unwrap();
    assert_eq!(late.command, Command::Confirm);
    assert!(late.reply.send(Ok(Payload::Message(String::new()))).is_err());
    // Without a loop there is nobody to answer.
    drop(asked);
    assert_eq!(daemon.call(Command::Confirm).await.unwrap_err().to_string(), "the daemon is stopping");
}

#[tokio::test]
async fn only_the_named_user_is_served() {
    let daemon = Daemon::start(Terms { uid: 54_321, ..terms() });
    let error = daemon.call(Command::Unload).await.unwrap_err().to_string();
    assert!(error.contains("only root may use the control socket"), "{error}");
}

#[tokio::test]
async fn the_answer_to_the_last_command_is_sent_before_the_server_ends() {
    let (commands, mut asked) = mpsc::channel::<ControlMessage>(1);
    let daemon = Daemon::start_with(terms(), commands);
    let socket = daemon.socket.clone();
    let unload = spawn_blocking(move || call(&socket, Command::Unload));
    let message = asked.recv().await.unwrap();
    // As the daemon does it: answer, then stop at once.
    message.reply.send(Ok(Payload::Message("gone".to_owned()))).unwrap();
    daemon.stop.notify_one();
    assert_eq!(unload.await.unwrap().unwrap(), Payload::Message("gone".to_owned()));
    daemon.task.await.unwrap().unwrap();
    assert!(!daemon.socket.exists());
    assert!(matches!(call(&daemon.socket, Command::Status), Err(CallError::NoDaemon { .. })));
}

#[test]
fn the_socket_is_roots_alone() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("a/b/control.sock");
    let listener = ControlListener::bind(&socket).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().unwrap()), 0o755);
    assert_eq!(listener.path(), socket);
    // Nothing but the socket is left in its directory, and not even that afterwards.
    assert_eq!(fs::read_dir(socket.parent().unwrap()).unwrap().count(), 1);
    drop(listener);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_start_that_fails_leaves_no_directory_that_it_made() {
    let directory = tempfile::tempdir().unwrap();
    let made = directory.path().join("run");
    let path = made.join("shedder/control.sock");
    drop(ControlListener::bind(&path).unwrap());
    assert!(!made.exists());
    fs::create_dir(&made).unwrap();
    drop(ControlListener::bind(&path).unwrap());
    assert!(made.exists() && !made.join("shedder").exists(), "what was there stays");
    let listener = ControlListener::bind(&path).unwrap();
    fs::write(made.join("shedder/level"), "normal").unwrap();
    drop(listener);
    assert!(made.join("shedder/level").exists(), "what others put there stays");
    fs::remove_dir_all(&made).unwrap();
    drop(ControlListener::bind(&path).unwrap().into_parts());
    assert!(made.join("shedder").exists(), "a daemon that has served leaves it");
}

#[test]
fn a_dead_daemons_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    // Dropping the standard library's listener leaves its file, as a killed daemon does.
    drop(UnixListener::bind(&socket).unwrap());
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    // What a daemon left that was killed while it started.
    drop(UnixListener::bind(directory.path().join(".control.sock")).unwrap());
    let old = fs::metadata(&socket).unwrap().ino();
    assert!(matches!(call(&socket, Command::Status), Err(CallError::NoDaemon { .. })));
    let _listener = ControlListener::bind(&socket).unwrap();
    let new = fs::metadata(&socket).unwrap();
    assert_ne!(new.ino(), old);
    assert_eq!(new.permissions().mode() & 0o777, 0o600);
    assert!(!directory.path().join(".control.sock").exists());
}

#[test]
fn a_live_daemons_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let first = ControlListener::bind(&socket).unwrap();
    let error = ControlListener::bind(&socket).unwrap_err().to_string();
    let pid = std::process::id();
    assert_eq!(
        error,
        format!(
            "another daemon (pid {pid}) answers at {}; stop it, or give this one a daemon.socket of its own",
            socket.display()
        )
    );
    UnixStream::connect(&socket).unwrap();
    drop(first);
    ControlListener::bind(&socket).unwrap();
}

#[test]
fn a_file_that_took_the_name_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    fs::write(&socket, "precious").unwrap();
    let error = ControlListener::bind(&socket).unwrap_err().to_string();
    assert!(error.contains("is not a socket; move it away"), "{error}");
    assert_eq!(fs::read(&socket).unwrap(), b"precious");
    fs::remove_file(&socket).unwrap();
    // Nor is what came after.
    let listener = ControlListener::bind(&socket).unwrap();
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "precious").unwrap();
    drop(listener);
    assert_eq!(fs::read(&socket).unwrap(), b"precious");
}

#[test]
fn a_directory_that_another_daemon_has_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = ControlListener::bind(&directory.path().join("other.sock")).unwrap();
    let error = ControlListener::bind(&directory.path().join("control.sock")).unwrap_err();
    assert!(matches!(error, SocketError::Shared { .. }), "{error}");
    drop(first);
    ControlListener::bind(&directory.path().join("control.sock")).unwrap();
}

#[test]
fn impossible_places_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let long = directory.path().join("x".repeat(120));
    let error = ControlListener::bind(&long).unwrap_err();
    assert!(matches!(error, SocketError::PathTooLong { .. }), "{error}");
    assert!(matches!(call(&long, Command::Status), Err(CallError::NoDaemon { .. })));
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = ControlListener::bind(&file.join("control.sock")).unwrap_err().to_string();
    assert!(error.contains("cannot create the directory"), "{error}");
}

#[test]
fn errors_of_the_client_say_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    assert_eq!(
        call(&socket, Command::Status).unwrap_err().to_string(),
        format!(
            "no daemon answers at {}; start it with `shedder run` or name its socket with --socket",
            socket.display()
        )
    );
    // Somebody who hangs up, and somebody who talks nonsense.
    for (answer, expected) in [("", "closed the connection without an answer"), ("hello\n", "expected value")]
    {
        let listener = UnixListener::bind(&socket).unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 64];
            assert_ne!(stream.read(&mut request).unwrap(), 0);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let error = call(&socket, Command::Status).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("see its log"), "{error}");
        other.join().unwrap();
        fs::remove_file(&socket).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_bytes_get_at_most_one_line(mut bytes in any::<Vec<u8>>()) {
        bytes.push(b'\n');
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(async { Daemon::start(terms()).send(bytes, true).await });
        prop_assert_eq!(answer.matches('\n').count(), 1);
        prop_assert!(answer.starts_with("{\"error\":{"), "{}", answer);
    }
}

fn tick(ms: u64, value: f64) -> TickReadings {
    let reading = Reading::of_now(&Arc::from("memory"), &Scope::Host, Ok(value));
    TickReadings {
        now: Duration::from_millis(ms),
        readings: vec![reading],
        offered_below_quota: BTreeSet::from([Scope::Host]),
    }
}

/// Publishes ticks 100 ms apart for as long as `client` works.
async fn with_ticks<T: Send + 'static>(
    daemon: &Daemon,
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    let socket = daemon.socket.clone();
    let mut client = spawn_blocking(move || client(socket));
    for now in 70.. {
        daemon.recordings.publish(|| tick(now * 100, 0.5));
        tokio::select! {
            done = &mut client => return done.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    unreachable!()
}

/// Every response to a recording, and how it ended.
fn recorded(socket: &Path, seconds: Option<f64>, bytes_max: u64) -> (Vec<(f64, String)>, String) {
    let mut responses = open(socket, Command::Record { seconds, bytes_max }).unwrap();
    let mut ticks = Vec::new();
    loop {
        match responses.receive() {
            Ok(Some(Payload::Trace { t, lines })) => ticks.push((t, lines)),
            Ok(Some(Payload::Message(why))) => return (ticks, why),
            Err(CallError::Refused(refusal)) => return (ticks, refusal.message),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_recording_has_every_tick_until_its_time_is_over() {
    let daemon = Daemon::start(terms());
    let (ticks, why) = with_ticks(&daemon, |socket| recorded(&socket, Some(1.0), u64::MAX)).await;
    assert_eq!(why, "the time is over");
    let times: Vec<f64> = ticks.iter().map(|(t, _)| *t).collect();
    assert_eq!(times, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]);
    assert_eq!(
        ticks[3].1,
        "{\"t\":0.3,\"signal\":\"memory\",\"scope\":\"host\",\"value\":0.5}\n\
         {\"t\":0.3,\"signal\":\"offered_below_quota\",\"scope\":\"host\",\"value\":1.0}\n"
    );
}

#[tokio::test]
async fn a_recording_ends_before_it_grows_too_large() {
    let daemon = Daemon::start(terms());
    let (ticks, why) = with_ticks(&daemon, |socket| recorded(&socket, None, 400)).await;
    assert!(why.contains("400 bytes"), "{why}");
    let bytes: usize = ticks.iter().map(|(_, lines)| lines.len()).sum();
    assert!((1..=400).contains(&bytes) && ticks.len() == 3, "{ticks:?}");
}

#[tokio::test]
async fn a_stopping_server_ends_its_recordings() {
    let daemon = Daemon::start(terms());
    let stop = Arc::clone(&daemon.stop);
    let client = move |socket: PathBuf| {
        let mut responses = open(&socket, Command::Record { seconds: None, bytes_max: u64::MAX }).unwrap();
        assert!(matches!(responses.receive(), Ok(Some(Payload::Trace { .. }))));
        stop.notify_one();
        loop {
            match responses.receive() {
                Ok(Some(Payload::Trace { .. })) => {}
                other => return other,
            }
        }
    };
    let last = with_ticks(&daemon, client).await;
    assert_eq!(last.unwrap(), Some(Payload::Message("the daemon stops".to_owned())));
}

#[tokio::test]
async fn recordings_are_few_and_a_place_becomes_free_again() {
    let daemon = Daemon::start(terms());
    let fill = |socket: PathBuf| {
        let mut held = Vec::new();
        for _ in 0..4 {
            let mut responses =
                open(&socket, Command::Record { seconds: None, bytes_max: u64::MAX }).unwrap();
            assert!(matches!(responses.receive(), Ok(Some(Payload::Trace { .. }))));
            held.push(responses);
        }
        let (ticks, why) = recorded(&socket, None, u64::MAX);
        assert!(ticks.is_empty() && why.contains("4 recordings run already"), "{why}");
        drop(held);
        // The server notices at the next ticks.
        while recorded(&socket, Some(0.1), u64::MAX).1 != "the time is over" {}
    };
    with_ticks(&daemon, fill).await;
}

#[tokio::test]
async fn the_closer_ends_the_wait_for_the_next_tick() {
    let daemon = Daemon::start(terms());
    let socket = daemon.socket.clone();
    let waits = spawn_blocking(move || {
        let mut responses = open(&socket, Command::Record { seconds: None, bytes_max: 1 }).unwrap();
        responses.closer().unwrap().shutdown(std::net::Shutdown::Both).unwrap();
        // No tick was ever published.
        responses.receive()
    });
    assert_eq!(waits.await.unwrap().unwrap(), None);
}
