//! The same daemon at every hook.

use super::wire::meet_neighbours;
use super::xdp::{Verdict, XdpProgram};
use super::{Daemon, Net, Setup};

/// What `attach.via` can insist on, and the mode that `status` then tells.
pub const HOOKS: [(&str, &str); 3] = [("native", "native"), ("generic", "generic"), ("tc", "tcx")];

/// A daemon that serves the server's end of a net by one hook.
pub struct Served {
    pub daemon: Daemon,
    _peer: XdpProgram,
    pub net: Net,
}

impl Served {
    /// Starts one. The client's end runs an XDP program too, so that it receives what native XDP sends.
    pub fn start(via: &str, mode: &str, rest: &str) -> Self {
        let net = Net::new();
        let peer = XdpProgram::attach(&net.client, &net.link.a, Verdict::Pass);
        let daemon = Daemon::start(&net, &Setup { mode, via, rest });
        meet_neighbours(&net);
        Self { daemon, _peer: peer, net }
    }
}
