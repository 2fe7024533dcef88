//! What the kernel says about the network of this namespace, by netlink.
//!
//! Dumps are synchronous: the kernel answers from memory within the call. A socket belongs to the network
//! namespace of the thread that opened it.

pub mod addresses;
pub mod changes;
mod ethtool;
pub mod filters;
pub mod links;
pub mod namespace;
mod netlink;
pub mod sockets;

#[cfg(test)]
mod sandbox;

use std::io;

/// A question to the kernel that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing}: {source}{}", advice(source))]
pub struct NetError {
    /// What was tried, as a verb phrase.
    doing: &'static str,
    /// What the kernel answered.
    #[source]
    source: io::Error,
}

impl NetError {
    /// Names what was being done when `source` happened.
    fn while_doing(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { doing, source }
    }
}

/// What to do about an error, where that can be said.
fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; run as root or with CAP_NET_ADMIN",
        Some(libc::EPROTONOSUPPORT) => "; this kernel or container has no such netlink family",
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files (LimitNOFILE=)",
        _ => "",
    }
}
