//! Taking the address, and saying what to do where that fails.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

/// The endpoint's address cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has it.
    #[error(
        "address already in use: another process listens on {address}; change metrics.listen or set it to \"off\""
    )]
    InUse {
        /// `metrics.listen`
        address: SocketAddr,
    },
    /// No interface has it.
    #[error(
        "no interface of this host has the address {}; change metrics.listen (0.0.0.0:{} is every address) or set \
         it to \"off\"",
        address.ip(),
        address.port()
    )]
    NotLocal {
        /// `metrics.listen`
        address: SocketAddr,
    },
    /// A low port and too few rights.
    #[error(
        "not allowed to listen on {address}; give metrics.listen a port above 1023, or the daemon CAP_NET_BIND_SERVICE"
    )]
    Denied {
        /// `metrics.listen`
        address: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {source}; change metrics.listen or set it to \"off\"")]
    Other {
        /// `metrics.listen`
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Listens on `metrics.listen`.
///
/// # Errors
/// [`BindError`], a sentence that says what to do.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address },
        io::ErrorKind::AddrNotAvailable => BindError::NotLocal { address },
        io::ErrorKind::PermissionDenied => BindError::Denied { address },
        _ => BindError::Other { address, source },
    })
}
