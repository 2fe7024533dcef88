//! Packet pointers that the verifier can follow.

use core::arch::asm;

/// The `N` bytes at `offset` from `start`, if they lie before `end`.
#[inline(always)]
pub fn bytes_at<const N: usize>(start: usize, end: usize, offset: usize) -> Option<*mut [u8; N]> {
    let pointer = add(start, offset);
    if pointer + N > end {
        return None;
    }
    Some(pointer as *mut [u8; N])
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
