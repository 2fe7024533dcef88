//! Counting connections from the states of their sockets, never from packets.

use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_xchg};
use core::ptr;

use aya_ebpf::bindings::BPF_SK_STORAGE_GET_F_CREATE;
use aya_ebpf::helpers::generated::bpf_sk_storage_get;
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use shedder_common::address::Address;
use shedder_common::fingerprint::Fingerprint;
use shedder_common::judge::Cell as _;
use shedder_common::limits::{Scope, SocketRecord};

use crate::environment;
use crate::globals::{NAMESPACE_INODE, fingerprint_key, socket_offset};
use crate::maps;
use crate::record;
use crate::socket::field;

const PROTOCOL_TCP: u16 = 6;
const FAMILY_IPV6: u16 = 10;
const SYN_RECV: i32 = 3;
const CLOSE: i32 = 7;

/// ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING: a bit for each.
const LIVE_STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// Counts a connection when it is established at a port with a policy, and uncounts it when its socket closes.
///
/// Connections that this host opens never stand in SYN_RECV. TIME_WAIT is not counted: the socket closes before.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn track_connections(context: BtfTracePointContext) -> i32 {
    if context.arg::<i32>(1) == SYN_RECV && context.arg::<i32>(2) != CLOSE {
        let _ = arrived(context.arg(0));
    }
    track(&context)
}

/// Whoever is established waits in an accept queue, be it counted or not. What this program is kept from seeing
/// makes the application seem a little slower for a moment.
#[inline(always)]
fn arrived(socket: *const c_void) -> Option<()> {
    let (_, _, policy) = policy_of(socket.cast())?;
    let service = &environment::state(policy)?.service;
    service.established.add(1);
    let round_trip_us = field::<u32>(socket.cast(), socket_offset!(round_trip)) >> 3;
    // 0 is unknown: TFO, or the handshake was retransmitted.
    if round_trip_us != 0 {
        service.approach.observe(round_trip_us.into());
    }
    Some(())
}

/// The same again. An application's system call can be interrupted, while it runs one of the two, by packets that
/// open and close other connections; the kernel keeps that one from being run again then, so that the other must
/// see them. What both see counts once, because the socket remembers.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn track_interrupting(context: BtfTracePointContext) -> i32 {
    track(&context)
}

#[inline(always)]
fn track(context: &BtfTracePointContext) -> i32 {
    let socket: *const c_void = context.arg(0);
    let old_state: i32 = context.arg(1);
    let new_state: i32 = context.arg(2);
    if new_state == CLOSE {
        closed(socket);
    } else if old_state == SYN_RECV {
        let _ = opened(socket);
    }
    0
}

/// Makes a socket hold the policy that its port has now: for connections that are older than the counting, or
/// than the policy of their port. Run once for each socket, which the kernel keeps locked meanwhile.
///
/// The kernel does not tell who opened a connection: one that this host opened from the port of a policy, before
/// that policy was there, is counted too.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/tcp")]
pub extern "C" fn recount_connections(context: *const IteratorContext) -> i32 {
    // SAFETY: the context of an iterator over TCP sockets.
    let socket = unsafe { (*context).socket };
    if !socket.is_null() && is_live(socket) {
        let policy = attribute(socket.cast()).map_or(0, |connection| connection.policy);
        count(socket, policy);
        // The close of a listener does not wait for the lock of a connection that nobody has accepted.
        if !is_live(socket) {
            closed(socket);
        }
    }
    0
}

/// What the kernel gives to an iterator over TCP sockets: `struct bpf_iter__tcp`.
#[repr(C)]
pub struct IteratorContext {
    meta: *const c_void,
    /// Null at the end.
    socket: *const c_void,
}

/// Whether [`opened`] has been asked about the socket and [`closed`] not yet.
#[inline(always)]
fn is_live(socket: *const c_void) -> bool {
    let state = field::<u8>(socket.cast(), socket_offset!(state));
    LIVE_STATES & 1_u32.wrapping_shl(state.into()) != 0
}

#[inline(always)]
fn closed(socket: *const c_void) {
    count_as(socket, 0, 0);
}

#[inline(always)]
fn opened(socket: *const c_void) -> Option<()> {
    let connection = attribute(socket.cast())?;
    count(socket, connection.policy);
    forget_attempt(socket.cast(), &connection)
}

/// A connection that takes a place of a policy.
struct Connection {
    policy: u32,
    port: u16,
    local: Address,
    remote: Address,
}

/// The bank in force, the local port, and the policy of a TCP socket of our namespace.
#[inline(always)]
fn policy_of(base: *const u8) -> Option<(u32, u16, u32)> {
    let namespace = field::<usize>(base, socket_offset!(namespace)) as *const u8;
    if field::<u32>(namespace, socket_offset!(namespace_inode)) != NAMESPACE_INODE.load()
        || field::<u16>(base, socket_offset!(protocol)) != PROTOCOL_TCP
    {
        return None;
    }
    let control = environment::control()?;
    let port = field::<u16>(base, socket_offset!(local_port));
    let policy = environment::policy(control.bank, port);
    (policy != 0).then_some((control.bank, port, policy))
}

#[inline(always)]
fn attribute(base: *const u8) -> Option<Connection> {
    let (bank, port, policy) = policy_of(base)?;
    let (local, remote) = if field::<u16>(base, socket_offset!(family)) == FAMILY_IPV6 {
        (
            Address::from_v6(field(base, socket_offset!(local_v6))),
            Address::from_v6(field(base, socket_offset!(remote_v6))),
        )
    } else {
        (
            Address::from_v4(field(base, socket_offset!(local_v4))),
            Address::from_v4(field(base, socket_offset!(remote_v4))),
        )
    };
    // What the host says to itself is not judged, so it takes no place either.
    if remote == local || environment::is_local(&remote) {
        return None;
    }
    let limits = environment::limits(bank, policy)?;
    if limits.scope == Scope::Listed as u32 && !environment::is_listed(policy, &local) {
        return None;
    }
    Some(Connection { policy, port, local, remote })
}

/// Counts a live socket under a policy, 0 for none, and uncounts it where it was counted before.
#[inline(always)]
fn count(socket: *const c_void, policy: u32) {
    let flags = if policy == 0 { 0 } else { u64::from(BPF_SK_STORAGE_GET_F_CREATE) };
    if !count_as(socket, policy, flags) && policy != 0 {
        record::untracked();
    }
}

/// Returns whether the socket has a record.
#[inline(always)]
fn count_as(socket: *const c_void, policy: u32, flags: u64) -> bool {
    // SAFETY: the socket is the program's argument; a new record is all zero, and none is made without a flag.
    let record = unsafe { bpf_sk_storage_get(storage(), socket.cast_mut(), ptr::null_mut(), flags) }
        .cast::<SocketRecord>();
    if record.is_null() {
        return false;
    }
    // SAFETY: not null, aligned, and storage lives as long as its socket.
    let before = unsafe { atomic_xchg::<u32, { AtomicOrdering::SeqCst }>(&raw mut (*record).policy, policy) };
    if before != policy {
        add(before, u64::MAX);
        add(policy, 1);
    }
    true
}

#[inline(always)]
fn add(policy: u32, amount: u64) {
    if policy != 0
        && let Some(state) = environment::state(policy)
    {
        state.active.add(amount);
    }
}

/// The attempt has become a connection: from now on a SYN like it is a new attempt.
#[inline(always)]
fn forget_attempt(base: *const u8, connection: &Connection) -> Option<()> {
    let Connection { port, local, remote, .. } = connection;
    let remote_port = u16::from_be(field::<u16>(base, socket_offset!(remote_port)));
    let sequence = field::<u32>(base, socket_offset!(receive_next)).wrapping_sub(1);
    let fingerprint = Fingerprint::of_tuple(fingerprint_key(), remote, local, remote_port, *port, sequence);
    let memory = environment::fingerprint(fingerprint.slot)?;
    if fingerprint.matches(memory.load()) {
        memory.store(0);
    }
    Some(())
}

#[inline(always)]
fn storage() -> *mut c_void {
    (&raw const maps::SOCKETS).cast_mut().cast()
}
