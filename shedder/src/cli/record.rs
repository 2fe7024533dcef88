//! `shedder record`

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::net::Shutdown;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::socket::SocketArg;
use super::{Failure, tell};
use crate::control::client::{self, Responses};
use crate::control::protocol::{Command, MAX_SECONDS, Payload};

/// Seconds of trace between two lines of progress, on a terminal and elsewhere.
const PROGRESS_SECONDS: (f64, f64) = (1.0, 60.0);

/// Arguments of `shedder record`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Write the live signals as a trace, one reading per line of JSON, until Ctrl-C or a bound.\n\n\
                        `shedder simulate` replays it, from `normal`: begin while every level is `normal`. What an \
                        operator pins and what a reload changes is not in a trace."
)]
pub struct RecordArgs {
    /// The file, which must not exist yet
    pub file: PathBuf,
    /// End after this many seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// End before the file grows beyond this many bytes
    #[arg(long, value_name = "N", default_value_t = 64 * 1024 * 1024)]
    pub max_bytes: u64,
    /// Where the daemon is.
    #[command(flatten)]
    pub socket: SocketArg,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if seconds > 0.0 && seconds <= MAX_SECONDS {
        Ok(seconds)
    } else {
        Err("the time must be above 0 and 30 days at most".to_owned())
    }
}

/// Writes what the daemon reads, tick by tick. The file holds whole ticks whenever and however it ends.
///
/// # Errors
/// The file exists or cannot be written; no daemon, or it ended the recording for a fault.
pub fn record(args: &RecordArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut trace = Trace::create(&args.file)?;
    let ended = follow(args, &mut trace);
    if trace.ticks == 0 {
        trace.discard();
        return match ended {
            Ok(why) => Err(Failure::failed(format!("nothing was recorded: {why}"))),
            Err(failure) => Err(failure),
        };
    }
    let summary = trace.summary();
    let (file, why) = (
        args.file.display(),
        ended.map_err(|failure| Failure {
            message: format!("{failure}; {summary} are in {}", args.file.display()),
            ..failure
        })?,
    );
    writeln!(out, "{summary} are in {file}: {why}")?;
    Ok(())
}

/// Says why it ended.
fn follow(args: &RecordArgs, trace: &mut Trace) -> Result<String, Failure> {
    if let Payload::Status(snapshot) = client::call(&args.socket.socket, Command::Status)? {
        for scope in snapshot.levels.iter().filter(|scope| scope.level != "normal") {
            tell(&format!(
                "shedder: {} is at {}; a replay begins at normal, so it differs until that has come down\n",
                super::output::clean(&scope.scope),
                super::output::clean(&scope.level)
            ));
        }
    }
    let command = Command::Record { seconds: args.seconds, bytes_max: args.max_bytes };
    let mut ticks = client::open(&args.socket.socket, command)?;
    let interrupted = Interrupt::watch(&ticks)
        .map_err(|error| Failure::failed(format!("cannot wait for signals: {error}")))?;
    let (terminal, elsewhere) = PROGRESS_SECONDS;
    let on_terminal = io::stderr().is_terminal();
    let every = if on_terminal { terminal } else { elsewhere };
    let mut shown = 0.0;
    let end = loop {
        match ticks.receive() {
            Ok(Some(Payload::Trace { t, lines })) => {
                trace.write(t, &lines)?;
                if t - shown >= every {
                    shown = t;
                    let (clear, end) = if on_terminal { ("\r", "\x1b[K") } else { ("", "\n") };
                    tell(&format!("{clear}shedder: {}{end}", trace.summary()));
                }
            }
            Ok(Some(Payload::Message(why))) => break Ok(why),
            Ok(Some(_)) => {
                break Err(Failure::failed("the daemon answered something else than a trace; restart it"));
            }
            Ok(None) if interrupted.happened() => break Ok("ended by a signal".to_owned()),
            Ok(None) => break Err(Failure::failed("the daemon is gone")),
            Err(_) if interrupted.happened() => break Ok("ended by a signal".to_owned()),
            Err(error) => break Err(error.into()),
        }
    };
    if on_terminal && shown > 0.0 {
        tell("\n");
    }
    end
}

/// The file, in whole ticks.
struct Trace {
    path: PathBuf,
    file: File,
    ticks: u64,
    bytes: u64,
    seconds: f64,
}

impl Trace {
    /// A new file that nobody else reads; what has the name already stays as it is.
    fn create(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Failure::wrong_use(format!("{} exists already; name another file", path.display()))
            }
            _ => Failure::failed(format!("cannot create {}: {error}", path.display())),
        })?;
        Ok(Self { path: path.to_owned(), file, ticks: 0, bytes: 0, seconds: 0.0 })
    }

    fn write(&mut self, t: f64, lines: &str) -> Result<(), Failure> {
        self.file.write_all(lines.as_bytes()).map_err(|error| {
            // What was written of this tick would be half of it.
            let cut = self
                .file
                .set_len(self.bytes)
                .err()
                .map_or_else(String::new, |error| format!(", nor cut: {error}"));
            Failure::failed(format!("{} cannot be written: {error}{cut}", self.path.display()))
        })?;
        self.ticks += 1;
        self.bytes += u64::try_from(lines.len()).unwrap_or(u64::MAX);
        self.seconds = t;
        Ok(())
    }

    fn summary(&self) -> String {
        format!("{} ticks, {:.1} s, {} KiB", self.ticks, self.seconds, self.bytes.div_ceil(1024))
    }

    fn discard(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tell(&format!("shedder: the empty {} stays behind: {error}\n", self.path.display()));
        }
    }
}

/// Ctrl-C and SIGTERM, which end the wait for the next tick.
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn watch(ticks: &Responses) -> io::Result<Self> {
        let happened = Arc::new(AtomicBool::new(false));
        let (closer, tell) = (ticks.closer()?, Arc::clone(&happened));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        // Once registered, a signal no longer ends the process.
        let (mut interrupt, mut terminate) = runtime.block_on(async {
            io::Result::Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
        })?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            });
            tell.store(true, Ordering::Release);
            hang_up(&closer);
        });
        Ok(Self(happened))
    }

    fn happened(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

fn hang_up(connection: &UnixStream) {
    // It fails where the daemon has hung up already, and then there is nothing to wait for.
    let _closed = connection.shutdown(Shutdown::Both);
}
