//! The decision: what becomes of a new connection attempt. The same code runs in the kernel, on maps, and in
//! tests, on memory.

mod environment;
mod gates;
mod outcome;
mod queue;
mod standing;

use crate::class::Class;
use crate::control::{Control, HAS_SOURCES, Mode, NOBODY_EXEMPT};
use crate::counters::{Exempt, FailOpen};
use crate::fingerprint::{Fingerprint, Memory};
use crate::gcra::{self, Rate};
use crate::limits::{PolicyLimits, Scope};
use crate::packet::parse::Attempt;

use gates::{Charge, Gates, ask, charge};

pub use environment::{Cell, Environment, Key, Listener, Now, Socket, State, Wanted};
pub use gates::charge_all;
pub use outcome::{Decision, Judgement, NO_WAIT, Outcome};
pub use standing::Standing;

/// Judges an attempt. `None` means that no policy speaks of it.
#[inline(always)]
pub fn judge<E: Environment>(environment: &E, attempt: &Attempt) -> Option<Judgement> {
    Some(judgement(environment, attempt)?.blurred())
}

#[inline(always)]
fn judgement<E: Environment>(environment: &E, attempt: &Attempt) -> Option<Judgement> {
    let control = environment.control()?;
    let mode = Mode::from_word(control.mode);
    if matches!(mode, Mode::Off) {
        return None;
    }
    let policy = environment.policy(control.bank, attempt.destination_port);
    if policy == 0 {
        return None;
    }
    let mut judgement = Judgement::open(policy, Class::Interactive, matches!(mode, Mode::Enforce));
    let Some(limits) = environment.limits(control.bank, policy) else { return Some(judgement) };
    let Some(class) = Class::from_word(limits.class) else { return Some(judgement) };
    judgement.class = class;
    let now = environment.now();
    if now.ns >= control.lease_expires_ns {
        judgement.decide(Decision::fail_open(FailOpen::LeaseExpired));
        return Some(judgement);
    }
    if !is_covered(environment, limits, policy, attempt) {
        judgement.decide(Decision::exempt(Exempt::Destination));
        return Some(judgement);
    }
    if control.flags & HAS_SOURCES != 0 {
        let rule = environment.source_rule(attempt);
        if let Some(class) = rule.class {
            judgement.class = class;
        }
        if rule.exempt && exempt_rate_admits(environment, control, now.ns) {
            judgement.decide(Decision::exempt(Exempt::Source));
            return Some(judgement);
        }
    }
    let Some(share) = limits.classes.get(judgement.class.index()) else { return Some(judgement) };
    judgement.answer_as(share.flags, attempt.fragmented);

    let fingerprint = Fingerprint::of(environment.fingerprint_key(), attempt);
    let Some(memory) = environment.fingerprint(fingerprint.slot) else { return Some(judgement) };
    let remembered = fingerprint.recall(memory.load(), now.ns);
    if matches!(remembered, Memory::Admitted) {
        judgement.decide(Decision::REPEAT);
        return Some(judgement);
    }
    let Some(state) = environment.state(policy) else { return Some(judgement) };
    let key = Key { bank: control.bank, policy, class: judgement.class };
    let gates = Gates { environment, limits, share, state, key, now_ns: now.ns };
    let mut decision = ask(&gates, now.us, attempt, &mut judgement.wait_us);
    if decision.is_refusal() {
        memory.store(fingerprint.after_refusal(memory.load(), now.ns));
        if matches!(remembered, Memory::Refused) {
            decision = decision.again();
        }
    } else if decision.is_admission() {
        memory.store(fingerprint.after_admission(now.ns));
    }
    judgement.decide(decision);
    Some(judgement)
}

#[inline(always)]
fn is_covered<E: Environment>(
    environment: &E,
    limits: &PolicyLimits,
    policy: u32,
    attempt: &Attempt,
) -> bool {
    if limits.scope == Scope::Any as u32 {
        true
    } else if limits.scope == Scope::Listed as u32 {
        environment.is_listed(policy, attempt)
    } else {
        environment.is_local(attempt)
    }
}

/// Exempt sources are admitted within a rate of their own; beyond it they are judged like anybody.
#[inline(always)]
fn exempt_rate_admits<E: Environment>(environment: &E, control: &Control, now_ns: u64) -> bool {
    if control.exempt_interval == 0 {
        return true;
    }
    // An idle rate admits one, however long its interval.
    if control.exempt_interval >= NOBODY_EXEMPT {
        return false;
    }
    let Some(State { tats: [tat, ..], .. }) = environment.state(0) else { return true };
    let rate = Rate { interval: control.exempt_interval, tolerance: control.exempt_tolerance };
    !matches!(charge(tat, rate, gcra::units(now_ns)), Charge::Refused)
}

#[cfg(test)]
mod memory;
#[cfg(test)]
mod queueing;
#[cfg(test)]
mod tests;
