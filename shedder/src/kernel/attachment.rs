//! How an interface is served.

/// A place in the kernel where a program can be attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// XDP in the driver.
    XdpNative,
    /// XDP on socket buffers.
    XdpGeneric,
    /// TC by `bpf_link`.
    Tcx,
    /// TC by the clsact qdisc.
    Clsact,
}
