//! Counting connections from the states of their sockets, never from packets.

use core::ffi::c_void;
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
use crate::globals::{FINGERPRINT_KEY, NAMESPACE_INODE, socket_offset};
use crate::maps;
use crate::record;
use crate::socket::field;

const PROTOCOL_TCP: u16 = 6;
const FAMILY_IPV6: u16 = 10;
const SYN_RECV: i32 = 3;
const CLOSE: i32 = 7;

/// Counts a connection when it is established at a port with a policy, and uncounts it when its socket closes.
///
/// Connections that this host opens never stand in SYN_RECV. TIME_WAIT is not counted: the socket closes before.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn track_connections(context: BtfTracePointContext) -> i32 {
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

#[inline(always)]
fn closed(socket: *const c_void) {
    // SAFETY: the socket is the tracepoint's argument; without the flag nothing is made.
    let record = unsafe { bpf_sk_storage_get(storage(), socket.cast_mut(), ptr::null_mut(), 0) }
        .cast::<SocketRecord>();
    if record.is_null() {
        return;
    }
    // SAFETY: not null, and storage lives as long as its socket.
    let record = unsafe { &mut *record };
    let policy = record.policy;
    record.policy = 0;
    if policy != 0
        && let Some(state) = environment::state(policy)
    {
        state.active.add(u64::MAX);
    }
}

#[inline(always)]
fn opened(socket: *const c_void) -> Option<()> {
    let base = socket.cast::<u8>();
    let namespace = field::<usize>(base, socket_offset!(namespace)) as *const u8;
    if field::<u32>(namespace, socket_offset!(namespace_inode)) != NAMESPACE_INODE.load()
        || field::<u16>(base, socket_offset!(protocol)) != PROTOCOL_TCP
    {
        return None;
    }
    let control = environment::control()?;
    let port = field::<u16>(base, socket_offset!(local_port));
    let policy = environment::policy(control.bank, port);
    if policy == 0 {
        return None;
    }
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
    let limits = environment::limits(control.bank, policy)?;
    if limits.scope == Scope::Listed as u32 && !environment::is_listed(policy, &local) {
        return None;
    }
    count(socket, policy);
    forget_attempt(base, port, &local, &remote)
}

#[inline(always)]
fn count(socket: *const c_void, policy: u32) {
    let flags = u64::from(BPF_SK_STORAGE_GET_F_CREATE);
    // SAFETY: the socket is the tracepoint's argument; a new record is all zero.
    let record = unsafe { bpf_sk_storage_get(storage(), socket.cast_mut(), ptr::null_mut(), flags) }
        .cast::<SocketRecord>();
    if record.is_null() {
        record::untracked();
        return;
    }
    // SAFETY: not null, and storage lives as long as its socket.
    let record = unsafe { &mut *record };
    if record.policy == 0
        && let Some(state) = environment::state(policy)
    {
        record.policy = policy;
        state.active.add(1);
    }
}

/// The attempt has become a connection: from now on a SYN like it is a new attempt.
#[inline(always)]
fn forget_attempt(base: *const u8, port: u16, local: &Address, remote: &Address) -> Option<()> {
    let remote_port = u16::from_be(field::<u16>(base, socket_offset!(remote_port)));
    let sequence = field::<u32>(base, socket_offset!(receive_next)).wrapping_sub(1);
    let fingerprint =
        Fingerprint::of_tuple(&FINGERPRINT_KEY.load(), remote, local, remote_port, port, sequence);
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
