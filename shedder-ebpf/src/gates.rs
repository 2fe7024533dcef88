//! The gates as functions of words. The verifier checks a global function once and by itself, where inlined code
//! is walked anew from every state in which a packet can arrive; so the gates do not multiply with the parser.

use core::ptr;

use shedder_common::class::Class;
use shedder_common::judge::{FirstGates, Key, Outcome, Queue, first_gates, last_gates};

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

/// [`first_gates`] by words.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn first_gates_by_word(key: u64, now_ns: u64) -> u64 {
    match unpack(key) {
        Some(key) => first_gates(&Kernel { context: ptr::null_mut() }, key, now_ns).word(),
        None => 0,
    }
}

/// [`last_gates`] by words.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn last_gates_by_word(key: u64, now_ns: u64, first: u64, depth: u64, wait: u64) -> u64 {
    let queue = Queue {
        depth: (depth >> 32) as u32,
        capacity: depth as u32,
        syn_queue: (wait >> 32) as u32,
        wait_us: wait as u32,
    };
    match unpack(key) {
        Some(key) => {
            let environment = Kernel { context: ptr::null_mut() };
            last_gates(&environment, key, now_ns, FirstGates::from_word(first), queue).word()
        }
        None => Outcome::Admit.word(),
    }
}
