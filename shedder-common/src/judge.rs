//! The decision: what becomes of a new connection attempt. The same code runs in the kernel, on maps, and in
//! tests, on memory.

use crate::class::{CLASSES, Class};
use crate::control::{Control, HAS_SOURCES, Mode};
use crate::counters::{Exempt, FailOpen};
use crate::fingerprint::{self, Fingerprint, Memory};
use crate::gate::Gate;
use crate::gcra::{self, Rate};
use crate::limits::{CLOSED, ClassLimits, DEPTH_ONE, PolicyLimits, RESET, Scope, SourceRule, UNLIMITED};
use crate::opaque::{blurred, low_half};
use crate::packet::parse::Attempt;
use crate::service::Service;

/// A 64-bit word that several CPUs change.
pub trait Cell {
    /// The value now.
    fn load(&self) -> u64;
    /// Replaces `old` by `new`; false where the value is no longer `old`.
    fn compare_exchange(&self, old: u64, new: u64) -> bool;
    /// Sets the value.
    fn store(&self, value: u64);
}

/// What a decision reads and changes: maps in the kernel, memory in tests.
pub trait Environment {
    /// A word of state.
    type Word: Cell;

    /// Mode, lease and bank; `None` where the map is missing.
    fn control(&self) -> Option<&Control>;
    /// The monotonic clock, some milliseconds coarse.
    fn now_ns(&self) -> u64;
    /// The policy slot of a port in a bank; 0 is none.
    fn policy(&self, bank: u32, port: u16) -> u32;
    /// The limits of a policy in a bank.
    fn limits(&self, bank: u32, policy: u32) -> Option<&PolicyLimits>;
    /// Whether the destination is an address of this host.
    fn is_local(&self, attempt: &Attempt) -> bool;
    /// Whether the destination is among the CIDRs of a policy.
    fn is_listed(&self, policy: u32, attempt: &Attempt) -> bool;
    /// What is known of the source.
    fn source_rule(&self, attempt: &Attempt) -> SourceRule;
    /// The secret key of fingerprints.
    fn fingerprint_key(&self) -> fingerprint::Key;
    /// The remembered word of a fingerprint slot.
    fn fingerprint(&self, slot: u32) -> Option<&Self::Word>;
    /// What the limits of a policy are measured against.
    fn state(&self, policy: u32) -> Option<&State<Self::Word>>;
    /// What is added to the count of live connections of a policy, as a two's complement number.
    fn correction(&self, policy: u32) -> u64;
    /// The socket that the attempt would reach.
    fn socket(&self, attempt: &Attempt, want_wait: bool) -> Socket;

    /// [`Outcome::word`] of [`charge_all`]; the kernel calls it as a function that is verified by itself.
    #[inline(always)]
    fn charge_all(&self, key: Key, now_ns: u64, standing: Standing) -> u64
    where
        Self: Sized,
    {
        charge_all(self, key, now_ns, standing).word()
    }
}

/// Whose limits are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Bank in force.
    pub bank: u32,
    /// Policy slot.
    pub policy: u32,
    /// Class of whoever asks.
    pub class: Class,
}

/// [`crate::limits::PolicyState`] with words that several CPUs change.
#[derive(Debug, Default)]
#[repr(C)]
pub struct State<W> {
    /// Theoretical arrival time by class.
    pub tats: [W; CLASSES],
    /// Theoretical arrival time of the floor by class.
    pub floor_tats: [W; CLASSES],
    /// Live connections.
    pub active: W,
    /// How fast its connections are accepted.
    pub service: Service<W>,
}

/// The socket that an attempt would reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// None, or one whose fields cannot be read.
    Unknown,
    /// A connection or half-open request with this 4-tuple: the attempt is not new.
    Existing,
    /// A listener.
    Listener(Listener),
}

/// The queues of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// Connections that wait for `accept`.
    pub accept_queue: u32,
    /// The listen backlog; the queue holds one more.
    pub backlog: u32,
    /// Half-open requests.
    pub syn_queue: u32,
    /// When the oldest waiting connection was established, microseconds of the monotonic clock; 0 is unknown or
    /// none.
    pub oldest_us: u64,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every gate admits.
    Admit,
    /// Repeats an attempt that was admitted: it passes and is not charged again.
    Repeat,
    /// A gate refuses.
    Shed(Gate),
    /// A gate refuses an attempt that was refused before.
    ShedAgain(Gate),
    /// Outside of every limit.
    Exempt(Exempt),
    /// Passed unjudged.
    FailOpen(FailOpen),
}

impl Outcome {
    /// All of it in one word.
    #[must_use]
    #[inline(always)]
    pub const fn word(self) -> u64 {
        match self {
            Self::Admit => 0,
            Self::Repeat => 0x100,
            Self::Shed(gate) => 0x200 | gate as u64,
            Self::ShedAgain(gate) => 0x300 | gate as u64,
            Self::Exempt(Exempt::Source) => 0x400,
            Self::Exempt(Exempt::Destination) => 0x401,
            Self::FailOpen(FailOpen::LeaseExpired) => 0x500,
            Self::FailOpen(FailOpen::MissingState) => 0x501,
            Self::FailOpen(FailOpen::Contention) => 0x502,
        }
    }

    /// From the word that [`Outcome::word`] gave. An unknown word is `FailOpen`.
    #[must_use]
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        match (word >> 8, Gate::from_index((word & GATE_BITS) as u8)) {
            (0, _) => Self::Admit,
            (1, _) => Self::Repeat,
            (2, Some(gate)) => Self::Shed(gate),
            (3, Some(gate)) => Self::ShedAgain(gate),
            (4, _) if word & GATE_BITS == 0 => Self::Exempt(Exempt::Source),
            (4, _) => Self::Exempt(Exempt::Destination),
            (5, _) if word & GATE_BITS == 0 => Self::FailOpen(FailOpen::LeaseExpired),
            (5, _) if word & GATE_BITS == 2 => Self::FailOpen(FailOpen::Contention),
            _ => Self::FailOpen(FailOpen::MissingState),
        }
    }
}

/// A decision about one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Policy slot.
    pub policy: u32,
    /// Class of whoever asks.
    pub class: Class,
    /// [`Outcome::word`], [`ENFORCE`] and [`RESETS`]. (Of an enum whose variants differ in what they hold, a part
    /// is undefined in some; the verifier refuses a program that copies such a part.)
    word: u64,
    /// Age of the oldest unaccepted connection, where a limit asked for it; else [`NO_WAIT`].
    pub wait_us: u32,
}

const OUTCOME_BITS: u64 = 0xffff;
const ENFORCE: u64 = 1 << 16;
const RESETS: u64 = 1 << 17;
const JUDGEMENT_WORDS: u64 = 1 << 18;

impl Judgement {
    /// A refusal is carried out, not only counted.
    #[must_use]
    #[inline(always)]
    pub const fn enforce(&self) -> bool {
        self.word & ENFORCE != 0
    }

    /// A refusal is answered with RST.
    #[must_use]
    #[inline(always)]
    pub const fn reset(&self) -> bool {
        self.word & RESETS != 0
    }

    #[inline(always)]
    const fn decide(&mut self, outcome: u64) {
        self.word = (self.word & !OUTCOME_BITS) | outcome;
    }

    /// What was decided.
    #[must_use]
    #[inline(always)]
    pub const fn outcome(&self) -> Outcome {
        Outcome::from_word(self.word & OUTCOME_BITS)
    }
}

/// Stands for a wait that was not looked up or is not known.
pub const NO_WAIT: u32 = u32::MAX;

const CHARGE_TRIES: usize = 4;

/// Judges an attempt. `None` means that no policy speaks of it.
#[inline(always)]
pub fn judge<E: Environment>(environment: &E, attempt: &Attempt) -> Option<Judgement> {
    let mut judgement = judgement(environment, attempt)?;
    judgement.word = u64::from(blurred::<JUDGEMENT_WORDS>(low_half(judgement.word)));
    Some(judgement)
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
    let enforce = if matches!(mode, Mode::Enforce) { ENFORCE } else { 0 };
    let mut judgement = Judgement {
        policy,
        class: Class::Interactive,
        word: Outcome::FailOpen(FailOpen::MissingState).word() | enforce,
        wait_us: NO_WAIT,
    };
    let Some(limits) = environment.limits(control.bank, policy) else { return Some(judgement) };
    let Some(class) = Class::from_word(limits.class) else { return Some(judgement) };
    judgement.class = class;
    let now_ns = environment.now_ns();
    if now_ns >= control.lease_expires_ns {
        judgement.decide(Outcome::FailOpen(FailOpen::LeaseExpired).word());
        return Some(judgement);
    }
    if !is_covered(environment, limits, policy, attempt) {
        judgement.decide(Outcome::Exempt(Exempt::Destination).word());
        return Some(judgement);
    }
    if control.flags & HAS_SOURCES != 0 {
        let rule = environment.source_rule(attempt);
        if let Some(class) = rule.class {
            judgement.class = class;
        }
        if rule.exempt && exempt_rate_admits(environment, control, now_ns) {
            judgement.decide(Outcome::Exempt(Exempt::Source).word());
            return Some(judgement);
        }
    }
    let Some(share) = limits.classes.get(judgement.class.index()) else { return Some(judgement) };
    if share.flags & RESET != 0 && !attempt.fragmented {
        judgement.word |= RESETS;
    }

    let fingerprint = Fingerprint::of(&environment.fingerprint_key(), attempt);
    let Some(memory) = environment.fingerprint(fingerprint.slot) else { return Some(judgement) };
    let remembered = fingerprint.recall(memory.load(), now_ns);
    if matches!(remembered, Memory::Admitted) {
        judgement.decide(Outcome::Repeat.word());
        return Some(judgement);
    }
    let key = Key { bank: control.bank, policy, class: judgement.class };
    let gates = Gates { environment, limits, share, key, now_ns };
    let word = ask(&gates, attempt, &mut judgement.wait_us);
    judgement.decide(match Outcome::from_word(word) {
        Outcome::Admit | Outcome::Repeat => {
            memory.store(fingerprint.word(false, now_ns));
            word
        }
        Outcome::Shed(gate) => {
            memory.store(fingerprint.word(true, now_ns));
            if matches!(remembered, Memory::Refused) { Outcome::ShedAgain(gate).word() } else { word }
        }
        Outcome::ShedAgain(_) | Outcome::Exempt(_) | Outcome::FailOpen(_) => word,
    });
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
    let Some(State { tats: [tat, ..], .. }) = environment.state(0) else { return true };
    let rate = Rate { interval: control.exempt_interval, tolerance: control.exempt_tolerance };
    !matches!(charge(tat, rate, gcra::units(now_ns)), Charge::Refused)
}

enum Charge {
    Done,
    Refused,
    Contended,
}

#[inline(always)]
fn charge<W: Cell>(tat: &W, rate: Rate, now: u64) -> Charge {
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

/// Asks the gates, cheapest first, and charges only when all admit. Returns [`Outcome::word`].
#[inline(always)]
fn ask<E: Environment>(gates: &Gates<'_, E>, attempt: &Attempt, wait_us: &mut u32) -> u64 {
    let mut standing = gates.without_listener();
    if let Some(gate) = standing.shed() {
        return Outcome::Shed(gate).word();
    }
    if gates.need_listener() {
        let wants_wait = gates.limits.queue_wait_us != UNLIMITED;
        match gates.environment.socket(attempt, wants_wait) {
            Socket::Unknown => {}
            Socket::Existing => return Outcome::Repeat.word(),
            Socket::Listener(listener) => {
                let mut queue = Queue::new(&listener, gates.now_ns);
                if wants_wait {
                    *wait_us = queue.wait_us;
                    queue.expected_us = gates.expected_us(&listener);
                }
                standing = gates.with_listener(standing.blurred(), &queue).blurred();
                if let Some(gate) = standing.shed() {
                    return Outcome::Shed(gate).word();
                }
            }
        }
    }
    gates.environment.charge_all(gates.key, gates.now_ns, standing)
}

/// How the gates stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Bits 0..8 a gate, the rest flags. No flag: every gate admits.
    word: u64,
}

const GATE_BITS: u64 = 0xff;
const REFUSED: u64 = 0x100;
const RESCUED: u64 = 0x200;
const STANDING_WORDS: u64 = 0x400;

impl Standing {
    const OPEN: Self = Self { word: 0 };

    /// From the word that [`Standing::word`] gave.
    #[must_use]
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self { word }
    }

    /// All of it in one word.
    #[must_use]
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.word
    }

    /// The same, for the verifier.
    #[inline(always)]
    fn blurred(self) -> Self {
        Self { word: u64::from(blurred::<STANDING_WORDS>(low_half(self.word))) }
    }

    #[inline(always)]
    const fn refused(gate: Gate) -> Self {
        Self { word: REFUSED | gate as u64 }
    }

    #[inline(always)]
    const fn rescued_from(gate: Gate) -> Self {
        Self { word: RESCUED | gate as u64 }
    }

    /// The gate that refuses.
    #[inline(always)]
    const fn shed(self) -> Option<Gate> {
        if self.word & REFUSED == 0 { None } else { Gate::from_index((self.word & GATE_BITS) as u8) }
    }

    /// The gate that refuses by share, where the floor admits.
    #[inline(always)]
    const fn rescued(self) -> Option<Gate> {
        if self.word & RESCUED == 0 { None } else { Gate::from_index((self.word & GATE_BITS) as u8) }
    }
}

/// Charges an attempt that every gate admits, or that the floor rescues.
#[inline(always)]
pub fn charge_all<E: Environment>(environment: &E, key: Key, now_ns: u64, standing: Standing) -> Outcome {
    let Some(limits) = environment.limits(key.bank, key.policy) else {
        return Outcome::FailOpen(FailOpen::MissingState);
    };
    let Some(share) = limits.classes.get(key.class.index()) else {
        return Outcome::FailOpen(FailOpen::MissingState);
    };
    Gates { environment, limits, share, key, now_ns }.charge(standing)
}

/// The gates of one class at one policy.
///
/// A class is refused while the total stands above its share of a limit. Its floor then admits, but never above
/// the limit itself; only `rate` gives way, because what the floor takes is charged to the others.
struct Gates<'a, E> {
    environment: &'a E,
    limits: &'a PolicyLimits,
    share: &'a ClassLimits,
    key: Key,
    now_ns: u64,
}

impl<E: Environment> Gates<'_, E> {
    /// What the gates say that need no listener. Where the state is missing they say nothing, and the charge
    /// tells.
    #[inline(always)]
    fn without_listener(&self) -> Standing {
        let Some(state) = self.environment.state(self.key.policy) else { return Standing::OPEN };
        let (limits, share) = (self.limits, self.share);
        let mut standing = Standing::OPEN;
        if share.flags & CLOSED != 0 {
            standing = self.rescue(state, Gate::Closed);
        } else if !self.rate_admits(state) {
            standing = self.rescue(state, Gate::Rate);
        }
        if standing.shed().is_none() && limits.connections & share.connections != UNLIMITED {
            let active = self.active(state);
            if reaches(active, limits.connections) {
                standing = Standing::refused(Gate::Connections);
            } else if standing.rescued().is_none() && reaches(active, share.connections) {
                standing = self.rescue(state, Gate::Connections);
            }
        }
        standing
    }

    #[inline(always)]
    fn need_listener(&self) -> bool {
        let (limits, share) = (self.limits, self.share);
        limits.connections & limits.queue_depth & limits.queue_wait_us != UNLIMITED
            || share.connections & share.queue_depth & share.queue_wait_us != UNLIMITED
    }

    /// How long a connection will wait that joins the queue now; 0 is unknown.
    #[inline(always)]
    fn expected_us(&self, listener: &Listener) -> u32 {
        let Some(State { service, .. }) = self.environment.state(self.key.policy) else { return 0 };
        if listener.accept_queue == 0 || listener.oldest_us == 0 {
            service.idle();
            return 0;
        }
        let now_us = self.now_ns / 1000;
        let (depth, limit_us) = (listener.accept_queue, self.limits.queue_wait_us);
        let expected_us = service.expected_us(depth, listener.oldest_us, now_us, limit_us);
        blurred::<{ 1 << 32 }>(low_half(if expected_us >> 32 == 0 {
            expected_us
        } else {
            u64::from(u32::MAX)
        }))
    }

    /// What the gates say that need the listener.
    #[inline(always)]
    fn with_listener(&self, standing: Standing, queue: &Queue) -> Standing {
        let Some(state) = self.environment.state(self.key.policy) else { return Standing::OPEN };
        let (limits, share) = (self.limits, self.share);
        let connections = if limits.connections & share.connections == UNLIMITED {
            0
        } else {
            self.active(state).wrapping_add(u64::from(queue.syn_queue))
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
            Some(gate) => self.rescue(state, gate),
            None => standing,
        }
    }

    /// A gate refuses by share; the floor may admit.
    #[inline(always)]
    fn rescue(&self, state: &State<E::Word>, gate: Gate) -> Standing {
        if self.floor_admits(state) { Standing::rescued_from(gate) } else { Standing::refused(gate) }
    }

    #[inline(always)]
    fn charge(&self, standing: Standing) -> Outcome {
        let Some(state) = self.environment.state(self.key.policy) else {
            return Outcome::FailOpen(FailOpen::MissingState);
        };
        let rescued = standing.rescued();
        let admission = match rescued {
            Some(gate) => self.charge_floor(state, gate),
            None => self.charge_own_rate(state),
        };
        if !matches!(admission, Outcome::Shed(_)) {
            self.charge_other_rates(state, rescued.is_some());
        }
        admission
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        gcra::units(self.now_ns)
    }

    #[inline(always)]
    fn active(&self, state: &State<E::Word>) -> u64 {
        let active = state.active.load().wrapping_add(self.environment.correction(self.key.policy));
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
    fn rate<'s>(&self, state: &'s State<E::Word>) -> Option<(Rate, &'s E::Word)> {
        if self.share.interval == 0 {
            return None;
        }
        let tat = state.tats.get(self.leader(self.key.class.index()))?;
        Some((Rate { interval: self.share.interval, tolerance: self.share.tolerance }, tat))
    }

    #[inline(always)]
    fn floor<'s>(&self, state: &'s State<E::Word>) -> Option<(Rate, &'s E::Word)> {
        if self.share.floor_interval == 0 {
            return None;
        }
        let tat = state.floor_tats.get(self.key.class.index())?;
        Some((Rate { interval: self.share.floor_interval, tolerance: self.share.floor_tolerance }, tat))
    }

    #[inline(always)]
    fn rate_admits(&self, state: &State<E::Word>) -> bool {
        match self.rate(state) {
            Some((rate, tat)) => rate.admits(tat.load(), self.now()),
            None => true,
        }
    }

    #[inline(always)]
    fn floor_admits(&self, state: &State<E::Word>) -> bool {
        match self.floor(state) {
            Some((rate, tat)) => rate.admits(tat.load(), self.now()),
            None => false,
        }
    }

    #[inline(always)]
    fn charge_floor(&self, state: &State<E::Word>, gate: Gate) -> Outcome {
        match self.floor(state) {
            Some((rate, tat)) => outcome_of(charge(tat, rate, self.now()), gate),
            None => Outcome::Shed(gate),
        }
    }

    #[inline(always)]
    fn charge_own_rate(&self, state: &State<E::Word>) -> Outcome {
        match self.rate(state) {
            Some((rate, tat)) => outcome_of(charge(tat, rate, self.now()), Gate::Rate),
            None => Outcome::Admit,
        }
    }

    /// Charges the rates that were not asked: each class is measured against the total of all. A class that
    /// follows another keeps a copy of its TAT, so that nothing starts anew when their shares part.
    #[inline(always)]
    fn charge_other_rates(&self, state: &State<E::Word>, own_too: bool) {
        let own = self.leader(self.key.class.index());
        for (class, limits) in self.limits.classes.iter().enumerate() {
            let Some(tat) = state.tats.get(class) else { return };
            let leader = self.leader(class);
            if leader != class {
                if let Some(leading) = state.tats.get(leader) {
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
fn outcome_of(charge: Charge, gate: Gate) -> Outcome {
    match charge {
        Charge::Done => Outcome::Admit,
        Charge::Refused => Outcome::Shed(gate),
        Charge::Contended => Outcome::FailOpen(FailOpen::Contention),
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
const fn reaches(active: u64, limit: u32) -> bool {
    limit != UNLIMITED && active >= limit as u64
}

/// What the listener gates compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Connections that wait for `accept`.
    pub depth: u32,
    /// How many fit.
    pub capacity: u32,
    /// Half-open requests.
    pub syn_queue: u32,
    /// How long the oldest connection has waited, or [`NO_WAIT`].
    pub wait_us: u32,
    /// How long a connection will wait that joins now; 0 is unknown.
    pub expected_us: u32,
}

impl Queue {
    /// The queues of a listener at a moment.
    #[must_use]
    #[inline(always)]
    pub fn new(listener: &Listener, now_ns: u64) -> Self {
        let no_wait = u64::from(NO_WAIT);
        let wait_us = if listener.accept_queue == 0 {
            0
        } else if listener.oldest_us == 0 {
            no_wait
        } else {
            // The clock may stand a little behind the moment at which the connection was established.
            let age = (now_ns / 1000).saturating_sub(listener.oldest_us);
            if age >= no_wait { no_wait - 1 } else { age }
        };
        Self {
            depth: listener.accept_queue,
            // The kernel's queue is full when it holds more than the backlog.
            capacity: listener.backlog.saturating_add(1),
            syn_queue: listener.syn_queue,
            wait_us: blurred::<{ 1 << 32 }>(low_half(wait_us)),
            expected_us: 0,
        }
    }

    #[inline(always)]
    fn refuses(&self, active: u64, connections: u32, queue_depth: u32, queue_wait_us: u32) -> Option<Gate> {
        if reaches(active, connections) {
            return Some(Gate::Connections);
        }
        if queue_depth != UNLIMITED
            && self.depth != 0
            && self.depth as u64 * DEPTH_ONE as u64 >= self.capacity as u64 * queue_depth as u64
        {
            return Some(Gate::QueueDepth);
        }
        if queue_wait_us != UNLIMITED
            && self.wait_us != NO_WAIT
            && self.wait_us != 0
            && (self.wait_us >= queue_wait_us || self.expected_us >= queue_wait_us)
        {
            return Some(Gate::QueueWait);
        }
        None
    }
}

#[cfg(test)]
mod memory;
#[cfg(test)]
mod queueing;
#[cfg(test)]
mod tests;
