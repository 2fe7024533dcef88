//! The charge as a function of words. The verifier checks a global function once and by itself, where inlined code
//! is walked anew from every state in which it can be reached.

use shedder_common::class::Class;
use shedder_common::judge::{Decision, Key, Standing, charge_all};

use crate::environment::Kernel;

/// A key in one word.
#[inline(always)]
pub fn pack(key: Key) -> u64 {
    u64::from(key.policy) << 32 | u64::from(key.bank & 1) << 8 | key.class as u64
}

#[inline(always)]
fn unpack(key: u64) -> Option<Key> {
    let class = Class::from_index((key & 0xff) as u8)?;
    Some(Key { bank: (key >> 8) as u32 & 1, policy: (key >> 32) as u32, class })
}

/// [`charge_all`] by words.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn charge_by_word(key: u64, now_ns: u64, standing: u32) -> u64 {
    let decision = match unpack(key) {
        Some(key) => charge_all(&Kernel(None), key, now_ns, Standing::from_word(standing)),
        None => Decision::ADMIT,
    };
    decision.word().into()
}
