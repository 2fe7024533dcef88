//! Small things that the compiler or the verifier must not see through, or must not warn of.

/// The same number, of which the compiler knows nothing.
#[cfg(target_arch = "bpf")]
#[inline(always)]
#[expect(unsafe_code, reason = "one instruction that changes nothing")]
pub(crate) fn opaque(mut number: usize) -> usize {
    // SAFETY: adds 0 to a register. (Without any instruction the line table is one that the verifier refuses.)
    unsafe {
        core::arch::asm!("{0} += 0", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    }
    number
}

/// The same number.
#[cfg(not(target_arch = "bpf"))]
pub(crate) const fn opaque(number: usize) -> usize {
    number
}

/// The same index, which is below `LEN`. The compiler knows that an enum is in range and drops the check of its index;
/// the verifier does not know it and needs the check. It comes before anything else is done with the index: that of
/// Linux 6.1 does not learn from the check of an index what its copy on the stack is. What cannot be ends the program
/// or function with 0, so that the verifier has no other way to follow.
#[cfg(target_arch = "bpf")]
#[inline(always)]
#[expect(unsafe_code, reason = "a check that never fails")]
pub(crate) fn bounded<const LEN: usize>(mut index: usize) -> usize {
    // SAFETY: compares a register, and what comes after is reached only where it is below `LEN`.
    unsafe {
        core::arch::asm!("if {0} < {1} goto +2", "r0 = 0", "exit", inout(reg) index, const LEN,
            options(pure, nomem, nostack, preserves_flags));
        core::hint::assert_unchecked(index < LEN);
    }
    index
}

/// The same index.
#[cfg(not(target_arch = "bpf"))]
pub(crate) const fn bounded<const LEN: usize>(index: usize) -> usize {
    index
}

/// The same value, below `LIMIT`, a power of two above every value that it can have.
///
/// The verifier walks the code that follows anew for each value that it knows. It keeps no knowledge of the upper
/// half of a word on the stack, so that after a passage through there one walk serves all values. (Arithmetic that
/// cancels out would cost less, but the verifier then asks whether what it knew before mattered.)
#[cfg(target_arch = "bpf")]
#[inline(always)]
#[expect(unsafe_code, reason = "a store and a load")]
pub(crate) fn blurred<const LIMIT: u64>(value: u32) -> u32 {
    const { assert!(LIMIT.is_power_of_two() && LIMIT <= 1 << 32) };
    // Not zero, of which it would keep the knowledge.
    let word = (value as u64) << 32 | 1;
    let mut place = core::mem::MaybeUninit::<u64>::uninit();
    let upper: u64;
    // SAFETY: writes the place and reads from it.
    unsafe {
        core::arch::asm!(
            "*(u64 *)({place} + 0) = {word}",
            "{upper} = *(u32 *)({place} + {half})",
            place = in(reg) place.as_mut_ptr(),
            word = in(reg) word,
            upper = lateout(reg) upper,
            half = const if cfg!(target_endian = "little") { 4 } else { 0 },
            options(nostack, preserves_flags),
        );
    }
    low_half(upper & (LIMIT - 1))
}

/// The same value.
#[cfg(not(target_arch = "bpf"))]
pub(crate) const fn blurred<const LIMIT: u64>(value: u32) -> u32 {
    value & low_half(LIMIT - 1)
}

/// Keeps what was written to memory before where it was written. The compiler would join branches that write the
/// same fields, and first gather all of them in places of their own. `BRANCH` differs between the branches.
#[cfg(target_arch = "bpf")]
#[inline(always)]
#[expect(unsafe_code, reason = "one instruction that changes nothing")]
pub(crate) fn written<const BRANCH: u8>() {
    // SAFETY: sets a register of its own.
    unsafe {
        core::arch::asm!("{0} = {1}", out(reg) _, const BRANCH, options(nostack, preserves_flags));
    }
}

/// Nothing.
#[cfg(not(target_arch = "bpf"))]
pub(crate) const fn written<const BRANCH: u8>() {}

/// The lower half of a word.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "says so")]
pub(crate) const fn low_half(word: u64) -> u32 {
    word as u32
}
