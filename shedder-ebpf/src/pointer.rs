//! Packet pointers that the verifier can follow.

use core::arch::asm;

use shedder_common::packet::Window;

/// `N` bytes of the packet, which lie before its end.
#[derive(Clone, Copy)]
pub struct Bytes<const N: usize>(usize);

impl<const N: usize> Bytes<N> {
    /// The `N` bytes at `offset` from `start`, if they lie before `end`.
    #[inline(always)]
    pub fn at(start: usize, end: usize, offset: usize) -> Option<Self> {
        let pointer = add(start, offset);
        if pointer + N > end { None } else { Some(Self(pointer)) }
    }

    /// Where they are.
    #[inline(always)]
    pub fn pointer(self) -> *mut [u8; N] {
        self.0 as *mut [u8; N]
    }
}

/// One load of that width. The compiler would load bytes one by one, since the address need not be aligned; the
/// kernel lets programs load so only where the machine can.
macro_rules! load {
    ($type:literal, $base:expr, $at:expr) => {{
        let value: u64;
        // SAFETY: within the bytes that were checked.
        unsafe {
            asm!(
                concat!("{0} = *(", $type, " *)({1} + {2})"),
                out(reg) value,
                in(reg) $base,
                const $at,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        value
    }};
}

impl<const N: usize> Bytes<N> {
    /// Writes words in memory order from `at` on, which must leave room for them.
    #[inline(always)]
    pub fn write<const WORDS: usize>(self, at: usize, words: &[u32; WORDS]) {
        for (index, word) in words.iter().enumerate() {
            // SAFETY: the callers' offsets are constants within the bytes that were checked, and the verifier
            // refuses others; see `load` for the width.
            unsafe {
                asm!("*(u32 *)({0} + 0) = {1}", in(reg) self.0 + at + index * 4, in(reg) u64::from(*word),
                    options(nostack, preserves_flags));
            }
        }
    }
}

impl<const N: usize> Window<N> for Bytes<N> {
    #[inline(always)]
    fn byte<const AT: usize>(&self) -> u8 {
        const { assert!(AT < N) };
        load!("u8", self.0, AT) as u8
    }

    #[inline(always)]
    fn half<const AT: usize>(&self) -> u16 {
        const { assert!(AT + 2 <= N) };
        load!("u16", self.0, AT) as u16
    }

    #[inline(always)]
    fn word<const AT: usize>(&self) -> u32 {
        const { assert!(AT + 4 <= N) };
        load!("u32", self.0, AT) as u32
    }
}

/// `start + offset`, of which the compiler knows nothing. Otherwise it compares one sum of the two and reads
/// through another, and the verifier does not see that both are the same pointer.
#[inline(always)]
fn add(start: usize, offset: usize) -> usize {
    let mut pointer = start;
    // SAFETY: one addition of registers.
    unsafe {
        asm!("{0} += {1}", inout(reg) pointer, in(reg) offset, options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}
