//! Values of which the compiler knows nothing.

/// The same index. The compiler knows that an enum is in range and drops the check of its index; the verifier
/// does not know it and needs the check.
#[cfg(target_arch = "bpf")]
#[inline(always)]
#[expect(unsafe_code, reason = "one instruction that changes nothing")]
pub(crate) fn opaque(mut index: usize) -> usize {
    // SAFETY: adds 0 to a register. (Without any instruction the line table is one that the verifier refuses.)
    unsafe {
        core::arch::asm!("{0} += 0", inout(reg) index, options(pure, nomem, nostack, preserves_flags));
    }
    index
}

/// The same index.
#[cfg(not(target_arch = "bpf"))]
pub(crate) const fn opaque(index: usize) -> usize {
    index
}
