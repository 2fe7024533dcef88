//! Names and sizes that both sides must agree on.

/// Version of every type and map in this crate. It stands in the pin path: maps of another version are never
/// read. Any change to a shared type or to the meaning of a field needs a new number.
pub const ABI_VERSION: u32 = 3;

/// Number of policy slots. Slot 0 means "no policy" and holds none.
pub const MAX_POLICIES: u32 = 1024;

/// Number of network namespaces whose ports can be told apart; today's daemon uses namespace 0, its own.
pub const MAX_NAMESPACES: u32 = 8;

/// Limits and ports are kept twice: one bank in force, one being written.
pub const BANKS: u32 = 2;

/// Entries of `PORTS`: one for each port, bank and namespace.
pub const PORT_SLOTS: u32 = 65_536 * BANKS * MAX_NAMESPACES;

/// Buckets of `LOCAL_ADDRESSES`.
pub const ADDRESS_BUCKETS: u32 = 1024;

/// Slots of `FINGERPRINTS`.
pub const FINGERPRINT_SLOTS: u32 = 65_536;

/// Most CIDRs in `SOURCES` and in `DESTINATIONS`.
pub const MAX_CIDRS: u32 = 16_384;

/// Names of the programs in the object.
pub mod program {
    /// XDP: judges on native and generic XDP.
    pub const SHED_XDP: &str = "shed_xdp";
    /// Classifier: judges on TCX and clsact ingress.
    pub const SHED_TC: &str = "shed_tc";
    /// BTF tracepoint on `inet_sock_set_state`: counts connections from socket state.
    pub const TRACK_CONNECTIONS: &str = "track_connections";
    /// The same again, for what happens while the first is interrupted: the kernel does not run a tracing program
    /// that already runs on this CPU.
    pub const TRACK_INTERRUPTING: &str = "track_interrupting";
    /// Iterator over TCP sockets: counts those that are older than the counting or than their port's policy.
    pub const RECOUNT_CONNECTIONS: &str = "recount_connections";
    /// XDP: passes everything. The empty program that costs are measured against.
    pub const PASS_XDP: &str = "pass_xdp";
    /// Classifier: passes everything. The empty program that costs are measured against.
    pub const PASS_TC: &str = "pass_tc";
}

/// Names of the maps in the object; each is also the name of its pin.
pub mod map {
    /// Array of one [`Control`](crate::control::Control).
    pub const CONTROL: &str = "CONTROL";
    /// Array: [`port_slot`](crate::abi::port_slot) → policy slot.
    pub const PORTS: &str = "PORTS";
    /// Array: [`limits_slot`](crate::abi::limits_slot) → [`PolicyLimits`](crate::limits::PolicyLimits).
    pub const LIMITS: &str = "LIMITS";
    /// Array: policy slot → [`PolicyState`](crate::limits::PolicyState).
    pub const STATE: &str = "STATE";
    /// Per-CPU array: policy slot → [`PolicyCounters`](crate::counters::PolicyCounters).
    pub const COUNTERS: &str = "COUNTERS";
    /// Per-CPU array of one [`GlobalCounters`](crate::counters::GlobalCounters).
    pub const GLOBAL_COUNTERS: &str = "GLOBAL_COUNTERS";
    /// Array: bucket → addresses of this host.
    pub const LOCAL_ADDRESSES: &str = "LOCAL_ADDRESSES";
    /// LPM trie: source CIDR → [`SourceRule`](crate::limits::SourceRule) word.
    pub const SOURCES: &str = "SOURCES";
    /// LPM trie: (policy slot, destination CIDR) → 1.
    pub const DESTINATIONS: &str = "DESTINATIONS";
    /// Array of fingerprints of what was judged lately.
    pub const FINGERPRINTS: &str = "FINGERPRINTS";
    /// Array: policy slot → i64, added to the count of live connections: those that are older than the counting,
    /// and what went wrong. Written by the daemon only.
    pub const CORRECTIONS: &str = "CORRECTIONS";
    /// Socket storage: what a counted connection was counted as.
    pub const SOCKETS: &str = "SOCKETS";

    /// Every map that is pinned.
    pub const ALL: [&str; 12] = [
        CONTROL,
        PORTS,
        LIMITS,
        STATE,
        COUNTERS,
        GLOBAL_COUNTERS,
        LOCAL_ADDRESSES,
        SOURCES,
        DESTINATIONS,
        FINGERPRINTS,
        CORRECTIONS,
        SOCKETS,
    ];
}

/// Names of the constants that the daemon sets before the load; the verifier removes what they switch off.
pub mod global {
    /// u32: namespace id whose ports this instance of the programs judges.
    pub const NAMESPACE_ID: &str = "NAMESPACE_ID";
    /// u32: inode number of that network namespace, by which a socket's namespace is recognised.
    pub const NAMESPACE_INODE: &str = "NAMESPACE_INODE";
    /// u32: bytes of link-layer header before the network header: 14, or 0 on devices without one.
    pub const LINK_HEADER_LEN: &str = "LINK_HEADER_LEN";
    /// [`SocketOffsets`](crate::abi::SocketOffsets): where the kernel keeps what the gates read.
    pub const SOCKET_OFFSETS: &str = "SOCKET_OFFSETS";
    /// u32: number of the type `tcp_sock` in the kernel's BTF, where [`CAST_CALL`](crate::abi::CAST_CALL) was replaced; 0
    /// where not.
    pub const TCP_SOCK_TYPE: &str = "TCP_SOCK_TYPE";
    /// [`Key`](crate::fingerprint::Key): the secret of this daemon's fingerprints.
    pub const FINGERPRINT_KEY: &str = "FINGERPRINT_KEY";
}

/// The immediate operand of a move to r0 that stands for a call of the kernel function `bpf_rdonly_cast`. The loader
/// replaces the instruction where the kernel has that function (6.2): neither the compiler nor aya can write such a
/// call.
pub const CAST_CALL: u32 = 0x5ed_ca57;

/// Byte offsets of kernel fields, from the running kernel's BTF. A field that the kernel does not have is
/// [`NO_FIELD`]; what needs it is then not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SocketOffsets {
    /// `sock.sk_protocol` (u16).
    pub protocol: u32,
    /// `sock.sk_ack_backlog` (u32): connections that wait for `accept`.
    pub accept_queue: u32,
    /// `sock.sk_max_ack_backlog` (u32): the listen backlog.
    pub listen_backlog: u32,
    /// `inet_connection_sock.icsk_accept_queue.qlen` (u32): half-open requests.
    pub syn_queue: u32,
    /// `inet_connection_sock.icsk_accept_queue.rskq_accept_head` (pointer to `request_sock`).
    pub accept_head: u32,
    /// `request_sock.sk` (pointer to the child `sock`).
    pub request_child: u32,
    /// `tcp_sock.rcvq_space.time` (u64, microseconds of the monotonic clock): set when a connection is
    /// established, next when the application reads from it.
    pub established_us: u32,
    /// `tcp_sock.rcv_nxt` (u32).
    pub receive_next: u32,
    /// `tcp_sock.srtt_us` (u32, eighths of a microsecond): when a connection is established, how long its handshake
    /// took.
    pub round_trip: u32,
    /// `sock_common.skc_state` (u8).
    pub state: u32,
    /// `sock_common.skc_family` (u16).
    pub family: u32,
    /// `sock_common.skc_num` (u16, host order): local port.
    pub local_port: u32,
    /// `sock_common.skc_dport` (u16, network order): remote port.
    pub remote_port: u32,
    /// `sock_common.skc_daddr` (4 bytes, network order): remote IPv4 address.
    pub remote_v4: u32,
    /// `sock_common.skc_rcv_saddr` (4 bytes, network order): local IPv4 address.
    pub local_v4: u32,
    /// `sock_common.skc_v6_daddr` (16 bytes): remote IPv6 address.
    pub remote_v6: u32,
    /// `sock_common.skc_v6_rcv_saddr` (16 bytes): local IPv6 address.
    pub local_v6: u32,
    /// `sock_common.skc_net` (pointer to `net`).
    pub namespace: u32,
    /// `net.ns.inum` (u32).
    pub namespace_inode: u32,
}

/// Stands for an offset that the running kernel does not have.
pub const NO_FIELD: u32 = u32::MAX;

impl SocketOffsets {
    /// No field is known: connections are not counted and listener gates admit.
    pub const UNKNOWN: Self = Self {
        protocol: NO_FIELD,
        accept_queue: NO_FIELD,
        listen_backlog: NO_FIELD,
        syn_queue: NO_FIELD,
        accept_head: NO_FIELD,
        request_child: NO_FIELD,
        established_us: NO_FIELD,
        receive_next: NO_FIELD,
        round_trip: NO_FIELD,
        state: NO_FIELD,
        family: NO_FIELD,
        local_port: NO_FIELD,
        remote_port: NO_FIELD,
        remote_v4: NO_FIELD,
        local_v4: NO_FIELD,
        remote_v6: NO_FIELD,
        local_v6: NO_FIELD,
        namespace: NO_FIELD,
        namespace_inode: NO_FIELD,
    };
}

/// Index into `PORTS`.
#[must_use]
#[inline(always)]
pub const fn port_slot(namespace: u32, bank: u32, port: u16) -> u32 {
    ((namespace * BANKS + (bank & 1)) << 16) | port as u32
}

/// Index into `LIMITS`.
#[must_use]
#[inline(always)]
pub const fn limits_slot(bank: u32, policy: u32) -> u32 {
    (bank & 1) * MAX_POLICIES + policy
}

/// A type that may be copied between kernel and user space byte by byte.
///
/// # Safety
///
/// The type is `repr(C)` or a primitive, has no padding, and every bit pattern is a valid value.
#[expect(unsafe_code, reason = "declares a promise, does nothing")]
pub unsafe trait Plain: Copy + 'static {}

/// Says that types are [`Plain`] and have the size their fields add up to.
macro_rules! plain {
    ($($type:ty: $size:expr),* $(,)?) => {$(
        const _: () = assert!(core::mem::size_of::<$type>() == $size, "padding or a changed layout");
        // SAFETY: an integer, an array, or repr(C) with Plain fields, and the size shows no padding.
        #[expect(unsafe_code, reason = "checked by the size above")]
        unsafe impl $crate::abi::Plain for $type {}
    )*};
}
pub(crate) use plain;

plain! {
    u8: 1,
    u16: 2,
    u32: 4,
    u64: 8,
    usize: size_of::<usize>(),
    [u8; 4]: 4,
    [u8; 16]: 16,
    SocketOffsets: 19 * 4,
    crate::address::Address: 16,
    crate::control::Control: 40,
}
