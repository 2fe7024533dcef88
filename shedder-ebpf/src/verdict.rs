//! From an attempt to what becomes of its packet.

use aya_ebpf::EbpfContext;
use aya_log_ebpf::debug;
use shedder_common::class::Class;
use shedder_common::judge::judge;
use shedder_common::packet::parse::{Attempt, Parsed};

use crate::environment::Kernel;
use crate::record;

/// Where the source's address begins in an Ethernet header.
pub const SOURCE_MAC_AT: usize = 6;

/// Marks a group address in the first byte.
pub const GROUP: u8 = 1;

/// Index of the loopback device, the same in every network namespace.
pub const LOOPBACK: u32 = 1;

/// What becomes of a packet. (Not an enum that holds the rest in one variant: in the others it would be undefined,
/// and the verifier refuses a program that copies what is undefined.)
#[derive(Clone, Copy)]
pub struct Verdict {
    /// What becomes of it.
    pub action: Action,
    /// Policy slot that a reset is counted for.
    pub policy: u32,
    /// Class that a reset is counted for.
    pub class: Class,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    Pass,
    /// It vanishes.
    Drop,
    /// A RST answers it.
    Reset,
}

/// Judges and counts an attempt.
#[inline(always)]
pub fn of<C: EbpfContext>(context: &C, attempt: &Attempt) -> Verdict {
    let Some(judgement) = judge(&Kernel(Some(context.as_ptr())), attempt) else {
        return Verdict { action: Action::Pass, policy: 0, class: Class::Control };
    };
    record::judgement(&judgement);
    if let Some(reason) = judgement.fail_open() {
        debug!(context, "port {} passed unjudged: {}", attempt.destination_port, reason as u32);
    }
    let action = if !judgement.decision().is_refusal() || !judgement.enforce() {
        Action::Pass
    } else if judgement.reset() {
        Action::Reset
    } else {
        Action::Drop
    };
    Verdict { action, policy: judgement.policy, class: judgement.class }
}

/// Hands an attempt over, or counts why there is none.
#[inline(always)]
pub fn unwrap(parsed: Parsed, attempt: &mut Attempt) -> bool {
    match parsed {
        Parsed::Attempt(found) => {
            *attempt = found;
            true
        }
        Parsed::Unparsed(reason) => {
            record::unparsed(reason);
            false
        }
        Parsed::Other => false,
    }
}
