//! What the sensors of one tick share.

use std::time::{Duration, SystemTime};

pub(crate) use super::turns::LONGEST as SLOWEST_PACE;
use super::workloads::Workloads;

/// One listening socket of a policy's port, as `sock_diag` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerFact {
    /// Port.
    pub port: u16,
    /// Inode of the socket.
    pub inode: u32,
    /// Connections that wait for `accept`.
    pub accept_queue: u32,
    /// The listen backlog.
    pub backlog: u32,
    /// What the kernel has dropped at this socket, for whatever reason; wraps. `None` where it does not tell.
    pub drops: Option<u32>,
    /// Id of the cgroup v2 in which the socket was made; `None` where the kernel does not say.
    pub cgroup_id: Option<u64>,
}

/// How full the accept queue of a listener is, 1 at most. The kernel lets one connection more wait than the backlog
/// says; so a backlog of 0 holds one.
#[must_use]
pub fn depth_ratio(accept_queue: u32, backlog: u32) -> f64 {
    (f64::from(accept_queue) / f64::from(backlog.max(1))).min(1.0)
}

/// One tick as a sensor sees it.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Monotonic time.
    pub now: Duration,
    /// Wall time, to be compared with file times and nothing else.
    pub wall: SystemTime,
    /// The listening sockets of the policies' ports.
    pub listeners: &'a [ListenerFact],
    /// They have been looked at since the last tick.
    pub listeners_are_new: bool,
    /// How long it may take until what has not changed is told again.
    pub pace: Duration,
    /// Who owns them.
    pub workloads: &'a Workloads,
}
