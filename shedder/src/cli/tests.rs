use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{CommandFactory, error::ErrorKind};
use shedder_common::control::Mode;
use tokio::sync::{mpsc, watch};

use super::doctor::Examination;
use super::run::{BpfLogLevel, RunArgs};
use super::*;
use crate::control::protocol::{Command, Payload, Refusal};
use crate::control::{ControlListener, ControlMessage, Recordings, serve};
use crate::snapshot::Snapshot;
use crate::trace::{self, Replay};
use crate::{config, snapshot_sample};

/// Parts that say what they were asked; what is pinned is told to them.
struct Told {
    pinned: Option<Snapshot>,
}

impl Parts for Told {
    fn run(&self, args: &RunArgs) -> Result<(), Failure> {
        Err(Failure::failed(format!("run {:?} {:?}", args.config, args.bpf_log)))
    }
    fn check(&self, file: &Path) -> Result<String, Failure> {
        match file.to_str() {
            Some("good.toml") => Ok("mode = \"observe\"".to_owned()),
            _ => Err(Failure::wrong_use("bad.toml:3:1: unknown key `prot`; did you mean `port`?")),
        }
    }
    fn places(&self, config: Option<&Path>) -> Result<Places, Failure> {
        let bpffs = config.unwrap_or(Path::new("/sys/fs/bpf/shedder")).to_owned();
        Ok(Places { socket: PathBuf::from("/nonexistent/control.sock"), bpffs })
    }
    fn read_pinned(&self, _: &Path) -> Result<Option<Snapshot>, Failure> {
        Ok(self.pinned.clone())
    }
    fn unload(&self, bpffs: &Path) -> Result<String, Failure> {
        Ok(format!("nothing is left under {}", bpffs.display()))
    }
    fn simulate(&self, config: &Path, trace: &Path) -> Result<Replay, Failure> {
        let config = config::load(config).map_err(Failure::wrong_use)?;
        let trace = std::fs::read(trace).map_err(Failure::wrong_use)?;
        trace::replay(trace.as_slice(), &config).map_err(Failure::wrong_use)
    }
    fn doctor(&self, config: Option<&Path>) -> Result<Examination, Failure> {
        let can_run = config != Some(Path::new("bare.toml"));
        Ok(Examination { text: format!("examined for {config:?}"), can_run })
    }
}

fn parse(line: &str) -> Result<Cli, clap::Error> {
    <Cli as Parser>::try_parse_from(line.split(' '))
}

fn run_with(line: &str, parts: &Told) -> Result<String, Failure> {
    let mut out = Vec::new();
    dispatch(parse(line).unwrap(), parts, &mut out, Style::Plain)?;
    Ok(String::from_utf8(out).unwrap())
}

fn run(line: &str) -> Result<String, Failure> {
    run_with(line, &Told { pinned: None })
}

#[test]
fn the_definitions_are_sound() {
    Cli::command().debug_assert();
}

#[test]
fn help_is_imperative_without_full_stops() {
    fn visit(command: &clap::Command) {
        for about in command.get_about().into_iter().map(ToString::to_string) {
            assert!(about.starts_with(char::is_uppercase) && !about.ends_with('.'), "{about}");
        }
        command.get_subcommands().for_each(visit);
    }
    visit(&Cli::command());
}

#[test]
fn wrong_use_is_told_apart() {
    for (line, kind) in [
        ("shedder", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
        ("shedder dance", ErrorKind::InvalidSubcommand),
        ("shedder mode on", ErrorKind::InvalidValue),
        ("shedder level low", ErrorKind::InvalidValue),
        ("shedder level high --for 5", ErrorKind::ValueValidation),
        ("shedder set port 8080", ErrorKind::MissingRequiredArgument),
        ("shedder set port 8080 rate", ErrorKind::ValueValidation),
        ("shedder check", ErrorKind::MissingRequiredArgument),
        ("shedder check x --config x", ErrorKind::UnknownArgument),
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.kind(), kind, "{line}");
        assert_eq!(error.exit_code(), 2, "{line}");
    }
    assert_eq!(run("shedder level auto --for 5m").unwrap_err().exit, Exit::WrongUse);
}

#[test]
fn verbs_reach_their_parts() {
    assert_eq!(run("shedder check good.toml").unwrap(), "mode = \"observe\"\n");
    assert_eq!(run("shedder check bad.toml").unwrap_err().exit, Exit::WrongUse);
    assert_eq!(run("shedder doctor --config a.toml").unwrap(), "examined for Some(\"a.toml\")\n");
    let mut out = Vec::new();
    let lacking = parse("shedder doctor --config bare.toml").unwrap();
    let failed = dispatch(lacking, &Told { pinned: None }, &mut out, Style::Plain).unwrap_err();
    assert_eq!((failed.exit, failed.message.as_str()), (Exit::Failed, ""));
    assert_eq!(out, b"examined for Some(\"bare.toml\")\n");
    let asked = run("shedder run --config a.toml --bpf-log debug").unwrap_err();
    assert_eq!(asked.message, format!("run {:?} {:?}", Some(Path::new("a.toml")), Some(BpfLogLevel::Debug)));
}

#[test]
fn without_a_daemon_unload_and_status_look_at_the_pins() {
    assert_eq!(run("shedder unload").unwrap(), "nothing is left under /sys/fs/bpf/shedder\n");
    assert_eq!(run("shedder unload --config other").unwrap(), "nothing is left under other\n");
    let line = "shedder status --socket /nonexistent/control.sock";
    let nothing = run(line).unwrap_err();
    assert_eq!(nothing.exit, Exit::Failed);
    assert_eq!(
        nothing.message,
        "no daemon answers at /nonexistent/control.sock; start it with `shedder run` or name its socket with \
         --socket. Nothing is pinned under /sys/fs/bpf/shedder either"
    );
    let pinned = Snapshot { mode: "enforce".to_owned(), ..Snapshot::default() };
    let parts = Told { pinned: Some(pinned.clone()) };
    assert!(run_with(line, &parts).unwrap().contains("mode ENFORCE"));
    let json = run_with(&format!("{line} --json"), &parts).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), pinned);
    // The other verbs need one.
    for verb in ["confirm", "mode off", "level auto", "set port 1 rate=1/s", "explain"] {
        let error = run(&format!("shedder {verb} --socket /nonexistent/control.sock")).unwrap_err();
        assert!(error.message.starts_with("no daemon answers at"), "{}", error.message);
        assert_eq!(error.exit, Exit::Failed);
    }
}

#[test]
fn completions_name_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&format!("shedder completions {shell}")).unwrap();
        assert!(script.contains("unload") && script.contains("doctor"), "{shell}");
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
    assert_eq!((failure.exit, failure.message.as_str()), (Exit::Done, ""));
    assert_eq!(Failure::from(io::Error::from(io::ErrorKind::StorageFull)).exit, Exit::Failed);
}

/// Types a line while a daemon lives that answers with the command; `SOCKET` stands for its socket.
async fn typed(line: &str) -> Result<String, Failure> {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let (_publisher, snapshot) = watch::channel(Arc::new(snapshot_sample::snapshot()));
    let (commands, mut asked) = mpsc::channel::<ControlMessage>(1);
    tokio::spawn(async move {
        while let Some(ControlMessage { command, reply }) = asked.recv().await {
            let answer = match command {
                Command::Confirm => Err(Refusal::failed("no change waits for a confirmation")),
                Command::Set { port, .. } if port == "9" => Err(Refusal::wrong_use("no policy for port 9")),
                command => Ok(Payload::Message(format!("{command:?}"))),
            };
            reply.send(answer).unwrap();
        }
    });
    let listener = ControlListener::bind(&socket).unwrap();
    let line = line.replace("SOCKET", socket.to_str().unwrap());
    let client = tokio::task::spawn_blocking(move || run(&line));
    tokio::select! {
        answer = client => answer.unwrap(),
        served = serve(listener, snapshot, commands, Recordings::default(), std::future::pending()) => panic!("{served:?}"),
    }
}

#[tokio::test]
async fn verbs_reach_the_daemon() {
    let commands = [
        (
            "shedder set port 8080 rate=500/s queue_wait=50ms --confirm 1m --socket SOCKET",
            Command::Set {
                port: "8080".to_owned(),
                assignments: vec![
                    ("rate".to_owned(), "500/s".to_owned()),
                    ("queue_wait".to_owned(), "50ms".to_owned()),
                ],
                confirm_seconds: Some(60.0),
            },
        ),
        ("shedder mode enforce --socket SOCKET", Command::Mode { mode: Mode::Enforce }),
        (
            "shedder level high --for 5m --socket SOCKET",
            Command::Level {
                level: crate::control::protocol::LevelChoice::from_name("high").unwrap(),
                for_seconds: Some(300.0),
            },
        ),
        ("shedder unload --socket SOCKET", Command::Unload),
    ];
    for (line, command) in commands {
        assert_eq!(typed(line).await.unwrap(), format!("{command:?}\n"));
    }
    let json = typed("shedder status --json --socket SOCKET").await.unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot_sample::snapshot());
    // An explanation is a document; this daemon answers with a sentence.
    let error = typed("shedder explain 8080 --socket SOCKET").await.unwrap_err();
    assert!(error.message.contains("something else than an explanation"), "{}", error.message);
    let text = typed("shedder status --socket SOCKET").await.unwrap();
    assert_eq!(text, status::render(&snapshot_sample::snapshot(), Style::Plain));
}

#[tokio::test]
async fn refusals_set_the_exit_code() {
    let failed = typed("shedder confirm --socket SOCKET").await.unwrap_err();
    assert_eq!(failed, Failure::failed("no change waits for a confirmation"));
    let wrong = typed("shedder set port 9 rate=1/s --socket SOCKET").await.unwrap_err();
    assert_eq!(wrong, Failure::wrong_use("no policy for port 9"));
}

/// A directory with these files, and a function that names one.
fn files(contents: &[(&str, &str)]) -> (tempfile::TempDir, impl Fn(&str) -> String + use<>) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in contents {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let path = directory.path().to_owned();
    (directory, move |name: &str| path.join(name).to_str().unwrap().to_owned())
}

#[test]
fn a_trace_is_replayed_by_a_configuration() {
    let line = |t: f64, value: &str| {
        format!("{{\"t\":{t},\"signal\":\"memory\",\"scope\":\"host\",\"value\":{value}}}\n")
    };
    let trace: String = (0..30_u32)
        .map(|tick| line(f64::from(tick) / 10.0, if tick == 5 { "0.96" } else { "0.5" }))
        .collect();
    let (_directory, file) = files(&[
        ("shedder.toml", "version = 1\n[levels]\nhold = \"1s\"\n"),
        ("wrong.toml", "version = 1\n[levels]\nhodl = \"1s\"\n"),
        ("trace", &trace),
        ("reversed", &(line(1.0, "0.5") + &line(0.5, "0.5"))),
    ]);
    let simulate = |config: &str, trace: &str, rest: &str| {
        run(&format!("shedder simulate --config {} --trace {}{rest}", file(config), file(trace)))
    };
    assert_eq!(
        simulate("shedder.toml", "trace", " --json").unwrap(),
        "{\"t\":0.5,\"scope\":\"host\",\"from\":\"normal\",\"to\":\"high\",\"signal\":\"memory\"}\n\
         {\"t\":1.6,\"scope\":\"host\",\"from\":\"high\",\"to\":\"moderate\",\"signal\":\"memory\"}\n\
         {\"t\":2.6,\"scope\":\"host\",\"from\":\"moderate\",\"to\":\"normal\",\"signal\":\"memory\"}\n"
    );
    let text = simulate("shedder.toml", "trace", "").unwrap();
    assert!(text.contains("normal -> high  (memory)") && text.contains("HHHH"), "{text}");
    for (config, trace, expected) in [
        ("shedder.toml", "reversed", "line 2: time goes back"),
        ("shedder.toml", "absent", "No such file"),
        ("wrong.toml", "trace", "did you mean `hold`"),
    ] {
        let failure = simulate(config, trace, "").unwrap_err();
        assert_eq!(failure.exit, Exit::WrongUse, "{failure}");
        assert!(failure.message.contains(expected), "{failure}");
    }
}

#[test]
fn a_recording_overwrites_nothing_and_leaves_nothing_empty() {
    let (directory, file) = files(&[("precious", "text")]);
    let record = |name: &str| {
        run(&format!("shedder record {} --socket {}", file(name), file("none.sock"))).unwrap_err()
    };
    let exists = record("precious");
    assert_eq!(exists.exit, Exit::WrongUse);
    assert!(exists.message.ends_with("exists already; name another file"), "{exists}");
    assert_eq!(std::fs::read_to_string(file("precious")).unwrap(), "text");
    let no_daemon = record("new");
    assert_eq!(no_daemon.exit, Exit::Failed);
    assert!(no_daemon.message.starts_with("no daemon answers"), "{no_daemon}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    for seconds in ["0", "-1", "nan", "1e9", "5s"] {
        let error = parse(&format!("shedder record x --seconds={seconds}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ValueValidation, "{seconds}");
    }
}
