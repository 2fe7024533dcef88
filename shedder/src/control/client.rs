//! The command line's side: one blocking call.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::listener::{address, connect_to, unix_socket};
use super::protocol::{
    Command, MAX_RESPONSE_BYTES, PROTOCOL_VERSION, Payload, Refusal, RefusalKind, Request, Response,
};

/// Longer than the daemon waits for its own control loop, so that its answer comes first.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no payload.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens there.
    #[error(
        "no daemon answers at {}; start it with `shedder run` or name its socket with --socket",
        socket.display()
    )]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket is root's.
    #[error("not allowed to use {}; run this as root", socket.display())]
    Denied {
        /// The socket.
        socket: PathBuf,
    },
    /// Somebody listens and says nothing, or something that is no response.
    #[error("the daemon at {} does not answer as it should ({source}); see its log, or restart it", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The daemon understood and did not do it.
    #[error("{}", .0.message)]
    Refused(Refusal),
}

impl CallError {
    /// Whether the daemon was ending, so that there is none a moment later.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.kind == RefusalKind::Stopping,
            // Its socket was closed while the call waited to be accepted.
            Self::Broken { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
            ),
            Self::NoDaemon { .. } | Self::Denied { .. } => false,
        }
    }
}

/// Sends a command to the daemon and waits for its answer.
///
/// # Errors
/// [`CallError`], a sentence that says what to do.
pub fn call(socket: &Path, command: Command) -> Result<Payload, CallError> {
    let mut stream = connect(socket)?;
    match converse(&mut stream, command) {
        Ok(Response::Ok(payload)) => Ok(payload),
        Ok(Response::Error(refusal)) => Err(CallError::Refused(refusal)),
        Err(source) => Err(CallError::Broken { socket: socket.to_owned(), source }),
    }
}

/// Sends a command that is answered with many responses.
///
/// # Errors
/// [`CallError`], a sentence that says what to do.
pub fn open(socket: &Path, command: Command) -> Result<Responses, CallError> {
    let mut stream = connect(socket)?;
    let broken = |source| CallError::Broken { socket: socket.to_owned(), source };
    let request = request_line(command).map_err(broken)?;
    stream.write_all(&request).map_err(broken)?;
    Ok(Responses { socket: socket.to_owned(), stream: BufReader::new(stream) })
}

/// Responses to one command, as they come.
#[derive(Debug)]
pub struct Responses {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Responses {
    /// The next one; `None` where the daemon, or whoever holds [`Responses::closer`], has closed the connection.
    ///
    /// # Errors
    /// [`CallError`], a sentence that says what to do.
    pub fn receive(&mut self) -> Result<Option<Payload>, CallError> {
        let broken = |source| CallError::Broken { socket: self.socket.clone(), source };
        let mut line = Vec::new();
        let limit = u64::try_from(MAX_RESPONSE_BYTES).unwrap_or(u64::MAX);
        self.stream.by_ref().take(limit).read_until(b'\n', &mut line).map_err(broken)?;
        if !line.ends_with(b"\n") {
            return Ok(None);
        }
        match serde_json::from_slice(&line).map_err(|error| broken(error.into()))? {
            Response::Ok(payload) => Ok(Some(payload)),
            Response::Error(refusal) => Err(CallError::Refused(refusal)),
        }
    }

    /// A second handle to the connection; to shut it down ends a [`Responses::receive`] that waits.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn closer(&self) -> io::Result<UnixStream> {
        self.stream.get_ref().try_clone()
    }
}

fn request_line(command: Command) -> io::Result<Vec<u8>> {
    let mut request = serde_json::to_vec(&Request { version: PROTOCOL_VERSION, command })?;
    request.push(b'\n');
    Ok(request)
}

fn connect(socket: &Path) -> Result<UnixStream, CallError> {
    let broken = |source| CallError::Broken { socket: socket.to_owned(), source };
    // No daemon can listen at a path that is too long for a socket.
    let address = address(socket).map_err(|_| CallError::NoDaemon { socket: socket.to_owned() })?;
    let stream = unix_socket(SocketFlags::empty()).map_err(broken)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&stream, timeout, Some(PATIENCE)).map_err(|errno| broken(errno.into()))?;
    }
    match connect_to(&stream, &address) {
        Ok(()) => Ok(UnixStream::from(stream)),
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => {
            Err(CallError::NoDaemon { socket: socket.to_owned() })
        }
        Err(Errno::ACCESS | Errno::PERM) => Err(CallError::Denied { socket: socket.to_owned() }),
        Err(errno) => Err(broken(errno.into())),
    }
}

fn converse(stream: &mut UnixStream, command: Command) -> io::Result<Response> {
    let request = request_line(command)?;
    // A request that is too long is answered before it has been read to its end; the answer counts.
    let sent = stream.write_all(&request);
    let mut line = Vec::new();
    let limit = u64::try_from(MAX_RESPONSE_BYTES).unwrap_or(u64::MAX);
    let received = BufReader::new(stream.take(limit)).read_until(b'\n', &mut line);
    if line.ends_with(b"\n") {
        return Ok(serde_json::from_slice(&line)?);
    }
    sent?;
    received?;
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection without an answer"))
}
