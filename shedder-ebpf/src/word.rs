//! A 64-bit word in a map that several CPUs change.

use core::cell::UnsafeCell;
use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

use shedder_common::judge::Cell;

/// The word. Orderings weaker than sequentially consistent are miscompiled for BPF where the result is used
/// (llvm/llvm-project#210371).
#[repr(transparent)]
pub struct Word(UnsafeCell<u64>);

impl Cell for Word {
    #[inline(always)]
    fn load(&self) -> u64 {
        // SAFETY: the pointer is to a live, aligned map value; an aligned 64-bit load is one access.
        unsafe { self.0.get().read_volatile() }
    }

    #[inline(always)]
    fn compare_exchange(&self, old: u64, new: u64) -> bool {
        // SAFETY: the pointer is to a live, aligned map value.
        let (_, exchanged) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
                self.0.get(),
                old,
                new,
            )
        };
        exchanged
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        // SAFETY: the pointer is to a live, aligned map value; an aligned 64-bit store is one access.
        unsafe { self.0.get().write_volatile(value) }
    }

    #[inline(always)]
    fn add(&self, amount: u64) {
        // SAFETY: the pointer is to a live, aligned map value.
        unsafe {
            let _: u64 = atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(self.0.get(), amount);
        }
    }
}
