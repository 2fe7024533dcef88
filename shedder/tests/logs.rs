//! A log that cannot be written, and a configuration that cannot be read: neither stops the daemon.

#![cfg(test)]

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, mknodat};
use rustix::process::Signal;
use support::run::shedder;
use support::{Daemon, Net, SHEDDER, eventually};
use xtask::testbed::PinDirectory;

/// A daemon whose standard error a shell has redirected.
fn start(net: &Net, stderr: &str) -> Daemon {
    let (pins, directory) = (PinDirectory::new("test"), tempfile::tempdir().unwrap());
    let file = directory.path().join("shedder.toml");
    let config = format!(
        "version = 1\nmode = \"observe\"\n[attach]\ninterfaces = [\"{}\"]\n[daemon]\nsocket = \"{}\"\nbpffs = \"{}\"\n\
         [metrics]\nlisten = \"off\"\n[[port]]\nport = 8080\n",
        net.link.b.interface,
        directory.path().join("control.sock").display(),
        pins.path().display(),
    );
    fs::write(&file, config).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" run --config \"$1\" 2{stderr}"), SHEDDER]).arg(file);
    Daemon::spawn(&net.server, &mut command, pins, directory)
}

/// It obeys, and ends in order when it is told to.
fn works(mut daemon: Daemon) {
    daemon.wait_until_ready();
    for mode in ["enforce", "observe"].repeat(10) {
        daemon.must(&["mode", mode]);
    }
    assert_eq!(daemon.stop(Signal::TERM), Some(0));
    assert!(!daemon.pins().exists(), "it has detached");
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// A pipe that holds no more, as long as the file is open.
fn full_pipe(path: &Path) -> File {
    fifo(path);
    let mut pipe =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    let full = loop {
        if let Err(error) = pipe.write(b"a line that nobody reads\n") {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    pipe
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let net = Net::new();
    for stderr in [">/dev/full", ">&-"] {
        works(start(&net, stderr));
    }
    // Its reader has gone.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let pipe = full_pipe(&path);
    let daemon = start(&net, &format!(">{}", path.display()));
    daemon.wait_until_ready();
    drop(pipe);
    works(daemon);
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let _pipe = full_pipe(&path);
    works(start(&net, &format!("<>{}", path.display())));
}

#[test]
fn a_configuration_that_has_become_a_pipe_is_not_waited_for() {
    let net = Net::new();
    let log = tempfile::NamedTempFile::new().unwrap();
    let daemon = start(&net, &format!(">{}", log.path().display()));
    daemon.wait_until_ready();
    let file = daemon.config_file();
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fifo(&file);
    daemon.signal(Signal::HUP);
    let told = || fs::read_to_string(log.path()).unwrap();
    eventually("it says so", || told().contains("The running configuration stays"));
    assert!(told().contains("is not a regular file"), "{}", told());
    fs::remove_file(&file).unwrap();
    fs::write(&file, text.replace("8080", "8081")).unwrap();
    daemon.signal(Signal::HUP);
    eventually("the next one is taken", || daemon.status()["ports"][0]["port"] == "8081");
    works(daemon);
}

#[test]
fn the_command_keeps_its_exit_code_where_nobody_hears_it() {
    for (arguments, code) in [("status --socket /nonexistent", 1), ("check /nonexistent", 2)] {
        assert_eq!(shedder(&arguments.split(' ').collect::<Vec<_>>()).code, Some(code));
        for stderr in [">/dev/full", ">&-"] {
            let script = format!("\"$0\" {arguments} 2{stderr}");
            let status = Command::new("sh").args(["-c", &script, SHEDDER]).output().unwrap().status;
            assert_eq!(status.code(), Some(code), "{script}");
        }
    }
}
