//! One connection of a load.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::{Errno, read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use super::server::is_answer;

pub(super) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: testbed\r\nConnection: close\r\n\r\n";

/// One connection, from SYN to the complete answer.
pub(super) struct Attempt {
    pub(super) socket: OwnedFd,
    pub(super) life: Life,
    pub(super) connected: bool,
    answer: Vec<u8>,
}

/// What is known of an attempt before it ends; times from the start of the load.
#[derive(Clone, Copy)]
pub(super) struct Life {
    /// Its place among the load's sources.
    pub(super) source: usize,
    /// When it should have started.
    pub(super) intended: Duration,
    /// When it did.
    pub(super) started: Duration,
}

/// How an attempt ended.
pub(super) enum End {
    Answered,
    Refused,
    Failed(String),
}

impl From<Errno> for End {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE => Self::Refused,
            other => Self::Failed(other.to_string()),
        }
    }
}

impl Attempt {
    /// Sends the SYN.
    pub(super) fn start(target: SocketAddr, source: Option<IpAddr>, life: Life) -> rustix::io::Result<Self> {
        let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(source) = source {
            bind(&socket, &SocketAddr::new(source, 0))?;
        }
        match connect(&socket, &target) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Self { socket, life, connected: false, answer: Vec::new() })
    }

    /// Does what the socket allows now; the end, once there is one.
    pub(super) fn advance(&mut self) -> Option<End> {
        self.try_advance().unwrap_or_else(|errno| Some(errno.into()))
    }

    fn try_advance(&mut self) -> rustix::io::Result<Option<End>> {
        if !self.connected {
            sockopt::socket_error(&self.socket)??;
            match write(&self.socket, REQUEST) {
                Ok(sent) if sent == REQUEST.len() => self.connected = true,
                Ok(_) => return Ok(Some(End::Failed("the request did not fit the socket".to_owned()))),
                // Not established yet.
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        let mut chunk = [0; 256];
        loop {
            match read(&self.socket, &mut chunk) {
                Ok(0) if is_answer(&self.answer) => return Ok(Some(End::Answered)),
                Ok(0) => return Ok(Some(End::Failed("closed without a complete answer".to_owned()))),
                Ok(count) => self.answer.extend(chunk.iter().take(count)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }
}
