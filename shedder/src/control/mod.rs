//! The control socket: how the command line talks to the daemon.
//!
//! One connection carries one request and one response, each a line of JSON ([`protocol`]); a recording is answered
//! with one response for each tick. Only root gets that far: the socket has mode 0600 from its first moment on, and the server asks the kernel who called.

pub mod client;
mod listener;
pub mod protocol;
mod recordings;
mod server;
#[cfg(test)]
mod tests;

pub use listener::{ControlListener, SocketError};
pub use recordings::{Recordings, TickReadings};
pub use server::{ControlMessage, serve};

/// Where the daemon listens unless `daemon.socket` says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/shedder/control.sock";
