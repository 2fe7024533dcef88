//! Constants that the daemon sets before the load. The verifier knows them and removes what they switch off.

use core::arch::asm;

use aya_ebpf::Global;
use shedder_common::abi::SocketOffsets;
use shedder_common::fingerprint::{KEY_WORDS, Key};
use shedder_common::packet::parse::ETHERNET_LEN;

/// Namespace id whose ports are judged.
#[unsafe(no_mangle)]
pub static NAMESPACE_ID: Global<u32> = Global::new(0);

/// Inode number of that namespace.
#[unsafe(no_mangle)]
pub static NAMESPACE_INODE: Global<u32> = Global::new(0);

/// Bytes of link-layer header: 14, or 0 on devices without one.
#[unsafe(no_mangle)]
pub static LINK_HEADER_LEN: Global<u32> = Global::new(ETHERNET_LEN);

/// Where the kernel keeps what is read of its sockets.
#[unsafe(no_mangle)]
pub static SOCKET_OFFSETS: Global<SocketOffsets> = Global::new(SocketOffsets::UNKNOWN);

/// Number of the type `tcp_sock` in the kernel's BTF; 0 where pointers cannot be cast to it.
#[unsafe(no_mangle)]
pub static TCP_SOCK_TYPE: Global<u32> = Global::new(0);

/// The secret of fingerprints.
#[unsafe(no_mangle)]
pub static FINGERPRINT_KEY: Global<Key> = Global::new(Key::new([0; KEY_WORDS]));

/// [`FINGERPRINT_KEY`] where it lies, since a copy would cost more than the hash.
#[inline(always)]
pub fn fingerprint_key() -> &'static Key {
    let mut key = (&raw const FINGERPRINT_KEY).cast::<Key>();
    // SAFETY: a Global is its value and nothing else. Adds 0 to a register: the daemon may have replaced the value
    // before the load, so the compiler must not use the one that it sees.
    unsafe {
        asm!("{0} += 0", inout(reg) key, options(pure, readonly, nostack, preserves_flags));
        &*key
    }
}

/// One offset of [`SOCKET_OFFSETS`]: read alone, so that the verifier knows its value.
macro_rules! socket_offset {
    ($field:ident) => {{
        let offsets =
            (&raw const crate::globals::SOCKET_OFFSETS).cast::<shedder_common::abi::SocketOffsets>();
        // SAFETY: a Global is its value and nothing else; the daemon may have replaced it before the load, so
        // the compiler must not use the value that it sees.
        unsafe { (&raw const (*offsets).$field).read_volatile() }
    }};
}
pub(crate) use socket_offset;
