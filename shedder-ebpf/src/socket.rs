//! The socket that an attempt would reach, and the queues of a listener.

use core::arch::asm;
use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::bindings::{
    bpf_sock, bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1,
    bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2,
};
use aya_ebpf::helpers::generated::{
    bpf_probe_read_kernel, bpf_sk_release, bpf_skc_lookup_tcp, bpf_skc_to_tcp_sock,
};
use shedder_common::abi::{CAST_CALL, NO_FIELD, Plain};
use shedder_common::judge::{Listener, Socket, Wanted};
use shedder_common::packet::parse::Attempt;

use crate::globals::{TCP_SOCK_TYPE, socket_offset};

const CURRENT_NAMESPACE: u64 = u64::MAX;
const TIME_WAIT: u32 = 6;
const LISTEN: u32 = 10;

/// Finds the socket. A 4-tuple in TIME_WAIT is free for a new connection, so it does not hide the listener.
#[inline(always)]
pub fn find(context: *mut c_void, attempt: &Attempt, wanted: Wanted) -> Socket {
    let mut source_port = attempt.source_port;
    // The second look is without a source port, which no connection has: it finds listeners only.
    for _ in 0..2 {
        let socket = lookup(context, attempt, source_port);
        if socket.is_null() {
            return Socket::Unknown;
        }
        // SAFETY: not null, and `state` may be read of any socket that the helper returns.
        let state = unsafe { (*socket).state };
        let found = if state == LISTEN {
            read_listener(socket, wanted)
        } else if state == TIME_WAIT {
            Socket::Unknown
        } else {
            Socket::Existing
        };
        // SAFETY: the socket came from the lookup and is released once.
        unsafe { bpf_sk_release(socket.cast()) };
        if state != TIME_WAIT {
            return found;
        }
        source_port = 0;
    }
    Socket::Unknown
}

#[inline(always)]
fn lookup(context: *mut c_void, attempt: &Attempt, source_port: u16) -> *mut bpf_sock {
    let (sport, dport) = (source_port.to_be(), attempt.destination_port.to_be());
    let mut tuple = MaybeUninit::<bpf_sock_tuple>::uninit();
    let len = if attempt.ipv6 {
        let (saddr, daddr) = (attempt.source.words, attempt.destination.words);
        let ipv6 = bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2 { saddr, daddr, sport, dport };
        // SAFETY: one of the two things that a tuple is.
        unsafe { tuple.as_mut_ptr().cast::<bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2>().write(ipv6) };
        size_of::<bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2>()
    } else {
        let [_, _, _, saddr] = attempt.source.words;
        let [_, _, _, daddr] = attempt.destination.words;
        let ipv4 = bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1 { saddr, daddr, sport, dport };
        // SAFETY: the other.
        unsafe { tuple.as_mut_ptr().cast::<bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1>().write(ipv4) };
        size_of::<bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1>()
    };
    // SAFETY: the context is the program's own; of the tuple as much is read as was written.
    unsafe { bpf_skc_lookup_tcp(context, tuple.as_mut_ptr(), len as u32, CURRENT_NAMESPACE, 0) }
}

#[inline(always)]
fn read_listener(socket: *mut bpf_sock, wanted: Wanted) -> Socket {
    let tcp = match TCP_SOCK_TYPE.load() {
        // SAFETY: the socket is a listener that the lookup returned and that is not yet released.
        0 => unsafe { bpf_skc_to_tcp_sock(socket.cast()) }.cast::<u8>().cast_const(),
        tcp_sock => cast(socket.cast::<u8>().cast_const(), tcp_sock),
    };
    if tcp.is_null() {
        return Socket::Unknown;
    }
    let accept_queue = typed_u32(tcp, socket_offset!(accept_queue));
    Socket::Listener(Listener {
        accept_queue,
        backlog: if wanted.backlog { typed_u32(tcp, socket_offset!(listen_backlog)) } else { 0 },
        syn_queue: if wanted.half_open { typed_u32(tcp, socket_offset!(syn_queue)) } else { 0 },
        oldest_us: if wanted.wait && accept_queue != 0 { oldest_us(tcp) } else { 0 },
    })
}

/// When the connection at the head of the accept queue was established; 0 where that is unknown.
///
/// The queue is first-in first-out, so its head waits longest. Its socket keeps the time at which the receive
/// buffer was set up, which is at establishment, and moves it only when the application reads. The head may be
/// accepted and freed meanwhile; it is looked at again, and if it has changed nothing is known.
#[inline(always)]
fn oldest_us(tcp: *const u8) -> u64 {
    let head = typed_pointer(tcp, socket_offset!(accept_head));
    if head.is_null() {
        return 0;
    }
    let child = typed_pointer(head, socket_offset!(request_child));
    // The kernel's types say `sock` where the field is of `tcp_sock`.
    let established_us = match TCP_SOCK_TYPE.load() {
        0 => field::<u64>(child, socket_offset!(established_us)),
        tcp_sock => typed_u64(cast(child, tcp_sock), socket_offset!(established_us)),
    };
    let again = typed_pointer(tcp, socket_offset!(accept_head));
    if head == again { established_us } else { 0 }
}

/// A field of a kernel structure whose type the verifier knows, so that a plain load reads it; 0 where this
/// kernel has none.
#[inline(always)]
fn typed_u32(base: *const u8, offset: u32) -> u32 {
    if offset == NO_FIELD {
        return 0;
    }
    let mut address = base as u64;
    // SAFETY: the verifier knows base and offset, and that such a field lies there.
    unsafe {
        asm!("{0} += {1}", "{0} = *(u32 *)({0} + 0)", inout(reg) address, in(reg) u64::from(offset),
            options(readonly, nostack, preserves_flags));
    }
    address as u32
}

/// As [`typed_u32`].
#[inline(always)]
fn typed_u64(base: *const u8, offset: u32) -> u64 {
    if offset == NO_FIELD {
        return 0;
    }
    let mut address = base as u64;
    // SAFETY: as above.
    unsafe {
        asm!("{0} += {1}", "{0} = *(u64 *)({0} + 0)", inout(reg) address, in(reg) u64::from(offset),
            options(readonly, nostack, preserves_flags));
    }
    address
}

/// A pointer field of such a structure; null where this kernel has none.
#[inline(always)]
fn typed_pointer(base: *const u8, offset: u32) -> *const u8 {
    typed_u64(base, offset) as *const u8
}

/// The same pointer, whose type the verifier takes to be the one of that number, and lets plain loads read what
/// lies there; a load from an address that is not mapped gives 0. A call costs as much as several gates; this one
/// the verifier replaces by a move.
#[inline(always)]
fn cast(pointer: *const u8, type_number: u32) -> *const u8 {
    let result: u64;
    // SAFETY: a call that changes nothing, or a move to r0 where it was not replaced.
    unsafe {
        asm!("r0 = {call}", call = const CAST_CALL, in("r1") pointer, in("r2") u64::from(type_number),
            lateout("r0") result, lateout("r1") _, lateout("r2") _, lateout("r3") _, lateout("r4") _,
            lateout("r5") _, options(readonly, nostack, preserves_flags));
    }
    result as *const u8
}

/// A field of a kernel structure; all zero where this kernel has none, or where it cannot be read.
#[inline(always)]
pub fn field<T: Plain>(base: *const u8, offset: u32) -> T {
    // SAFETY: all zero is a value of every plain type.
    let mut value: T = unsafe { core::mem::zeroed() };
    if offset != NO_FIELD && !base.is_null() {
        // SAFETY: the helper checks the address, and writes zeros where it is not mapped.
        unsafe {
            bpf_probe_read_kernel(
                (&raw mut value).cast(),
                size_of::<T>() as u32,
                base.wrapping_add(offset as usize).cast(),
            );
        }
    }
    value
}
