//! The gates of one class at one policy: asked, cheapest first, and charged only when all admit.

use crate::counters::FailOpen;
use crate::gate::Gate;
use crate::gcra::{self, Rate};
use crate::limits::{CLOSED, ClassLimits, PolicyLimits, UNLIMITED};
use crate::packet::parse::Attempt;

use super::environment::{Cell, Environment, Key, Socket, State, Wanted};
use super::outcome::Decision;
use super::queue::Queue;
use super::standing::Standing;

const CHARGE_TRIES: usize = 4;

pub(super) enum Charge {
    Done,
    Refused,
    Contended,
}

#[inline(always)]
pub(super) fn charge<W: Cell>(tat: &W, rate: Rate, now: u64) -> Charge {
    for _ in 0..CHARGE_TRIES {
        let old = tat.load();
        if !rate.admits(old, now) {
            return Charge::Refused;
        }
        if tat.compare_exchange(old, rate.charged(old, now)) {
            return Charge::Done;
        }
    }
    Charge::Contended
}

/// Asks the gates, cheapest first, and charges only when all admit.
#[inline(always)]
pub(super) fn ask<E: Environment>(
    gates: &Gates<'_, E>,
    now_us: u64,
    attempt: &Attempt,
    wait_us: &mut u32,
) -> Decision {
    let mut standing = gates.without_listener();
    if let Some(gate) = standing.shed() {
        return Decision::shed(gate);
    }
    let wanted = gates.wanted();
    if wanted.any() {
        match gates.environment.socket(attempt, wanted) {
            Socket::Unknown => {}
            Socket::Existing => return Decision::REPEAT,
            Socket::Listener(listener) => {
                let mut queue = Queue::new(&listener, now_us);
                if wanted.wait {
                    *wait_us = queue.wait_us;
                    let limit_us = gates.limits.queue_wait_us;
                    gates.state.service.observe(listener.accept_queue, listener.oldest_us, now_us, limit_us);
                    // Who waits too long already tells enough.
                    if !queue.waits_for(limit_us) {
                        let depth = listener.accept_queue;
                        queue.expected_ns = gates.state.service.expected_ns(depth, now_us, limit_us);
                    }
                }
                standing = gates.with_listener(standing.blurred(), &queue).blurred();
                if let Some(gate) = standing.shed() {
                    return Decision::shed(gate);
                }
            }
        }
    }
    gates.environment.charge_all(gates.key, gates.now_ns, standing)
}

/// Charges an attempt that every gate admits, or that the floor rescues.
#[inline(always)]
pub fn charge_all<E: Environment>(environment: &E, key: Key, now_ns: u64, standing: Standing) -> Decision {
    let missing = Decision::fail_open(FailOpen::MissingState);
    let Some(limits) = environment.limits(key.bank, key.policy) else { return missing };
    let Some(share) = limits.classes.get(key.class.index()) else { return missing };
    let Some(state) = environment.state(key.policy) else { return missing };
    Gates { environment, limits, share, state, key, now_ns }.charge(standing)
}

/// The gates of one class at one policy.
///
/// A class is refused while the total stands above its share of a limit. Its floor then admits, but never above
/// the limit itself; only `rate` gives way, because what the floor takes is charged to the others.
pub(super) struct Gates<'a, E: Environment> {
    pub(super) environment: &'a E,
    pub(super) limits: &'a PolicyLimits,
    pub(super) share: &'a ClassLimits,
    pub(super) state: &'a State<E::Word>,
    pub(super) key: Key,
    pub(super) now_ns: u64,
}

impl<E: Environment> Gates<'_, E> {
    /// What the gates say that need no listener.
    #[inline(always)]
    fn without_listener(&self) -> Standing {
        let (limits, share) = (self.limits, self.share);
        let mut standing = Standing::OPEN;
        if share.flags & CLOSED != 0 {
            standing = self.rescue(Gate::Closed);
        } else if !self.rate_admits() {
            standing = self.rescue(Gate::Rate);
        }
        if standing.shed().is_none() && limits.connections & share.connections != UNLIMITED {
            let active = self.active();
            if reaches(active, limits.connections) {
                standing = Standing::refused(Gate::Connections);
            } else if standing.rescued().is_none() && reaches(active, share.connections) {
                standing = self.rescue(Gate::Connections);
            }
        }
        standing
    }

    /// What limits there are that need the listener.
    #[inline(always)]
    fn wanted(&self) -> Wanted {
        let (limits, share) = (self.limits, self.share);
        let limited = |limit: u32, of_share: u32| limit & of_share != UNLIMITED;
        Wanted {
            half_open: limited(limits.connections, share.connections),
            backlog: limited(limits.queue_depth, share.queue_depth),
            wait: limited(limits.queue_wait_us, share.queue_wait_us),
        }
    }

    /// What the gates say that need the listener.
    #[inline(always)]
    fn with_listener(&self, standing: Standing, queue: &Queue) -> Standing {
        let (limits, share) = (self.limits, self.share);
        let connections = if limits.connections & share.connections == UNLIMITED {
            0
        } else {
            self.active().wrapping_add(u64::from(queue.syn_queue))
        };
        if let Some(gate) =
            queue.refuses(connections, limits.connections, limits.queue_depth, limits.queue_wait_us)
        {
            return Standing::refused(gate);
        }
        if standing.rescued().is_some() {
            return standing;
        }
        match queue.refuses(connections, share.connections, share.queue_depth, share.queue_wait_us) {
            Some(gate) => self.rescue(gate),
            None => standing,
        }
    }

    /// A gate refuses by share; the floor may admit.
    #[inline(always)]
    fn rescue(&self, gate: Gate) -> Standing {
        if self.floor_admits() { Standing::rescued_from(gate) } else { Standing::refused(gate) }
    }

    #[inline(always)]
    fn charge(&self, standing: Standing) -> Decision {
        let rescued = standing.rescued();
        let decision = match rescued {
            Some(gate) => self.charge_floor(gate),
            None => self.charge_own_rate(),
        };
        if !decision.is_refusal() {
            self.charge_other_rates(rescued.is_some());
            if self.limits.queue_wait_us != UNLIMITED {
                self.state.service.admitted.add(1);
            }
        }
        decision
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        gcra::units(self.now_ns)
    }

    #[inline(always)]
    fn active(&self) -> u64 {
        let active = self.state.active.load().wrapping_add(self.environment.correction(self.key.policy));
        // Nothing is below zero, where a correction has outlived its reason. (No branch: the verifier would walk
        // twice what follows.)
        active & !(active.cast_signed() >> 63).cast_unsigned()
    }

    #[inline(always)]
    fn leader(&self, class: usize) -> usize {
        match self.limits.rate_leader.get(class) {
            Some(leader) => *leader as usize,
            None => class,
        }
    }

    /// The rate of the class and its TAT; `None` where there is no limit.
    #[inline(always)]
    fn rate(&self) -> Option<(Rate, &E::Word)> {
        if self.share.interval == 0 {
            return None;
        }
        let tat = self.state.tats.get(self.leader(self.key.class.index()))?;
        Some((Rate { interval: self.share.interval, tolerance: self.share.tolerance }, tat))
    }

    #[inline(always)]
    fn floor(&self) -> Option<(Rate, &E::Word)> {
        if self.share.floor_interval == 0 {
            return None;
        }
        let tat = self.state.floor_tats.get(self.key.class.index())?;
        Some((Rate { interval: self.share.floor_interval, tolerance: self.share.floor_tolerance }, tat))
    }

    #[inline(always)]
    fn rate_admits(&self) -> bool {
        match self.rate() {
            Some((rate, tat)) => rate.admits(tat.load(), self.now()),
            None => true,
        }
    }

    #[inline(always)]
    fn floor_admits(&self) -> bool {
        match self.floor() {
            Some((rate, tat)) => rate.admits(tat.load(), self.now()),
            None => false,
        }
    }

    #[inline(always)]
    fn charge_floor(&self, gate: Gate) -> Decision {
        match self.floor() {
            Some((rate, tat)) => decision_of(charge(tat, rate, self.now()), gate),
            None => Decision::shed(gate),
        }
    }

    #[inline(always)]
    fn charge_own_rate(&self) -> Decision {
        match self.rate() {
            Some((rate, tat)) => decision_of(charge(tat, rate, self.now()), Gate::Rate),
            None => Decision::ADMIT,
        }
    }

    /// Charges the rates that were not asked: each class is measured against the total of all. A class that
    /// follows another keeps a copy of its TAT, so that nothing starts anew when their shares part.
    #[inline(always)]
    fn charge_other_rates(&self, own_too: bool) {
        let own = self.leader(self.key.class.index());
        for (class, limits) in self.limits.classes.iter().enumerate() {
            let Some(tat) = self.state.tats.get(class) else { return };
            let leader = self.leader(class);
            if leader != class {
                if let Some(leading) = self.state.tats.get(leader) {
                    tat.store(leading.load());
                }
            } else if limits.interval != 0 && (own_too || class != own) {
                let rate = Rate { interval: limits.interval, tolerance: limits.tolerance };
                charge_past(tat, rate, self.now());
            }
        }
    }
}

#[inline(always)]
fn decision_of(charge: Charge, gate: Gate) -> Decision {
    match charge {
        Charge::Done => Decision::ADMIT,
        Charge::Refused => Decision::shed(gate),
        Charge::Contended => Decision::fail_open(FailOpen::Contention),
    }
}

/// Charges without asking.
#[inline(always)]
fn charge_past<W: Cell>(tat: &W, rate: Rate, now: u64) {
    for _ in 0..CHARGE_TRIES {
        let old = tat.load();
        if tat.compare_exchange(old, rate.charged(old, now)) {
            return;
        }
    }
}

#[inline(always)]
pub(super) const fn reaches(active: u64, limit: u32) -> bool {
    limit != UNLIMITED && active >= limit as u64
}
