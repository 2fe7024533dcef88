//! The decision: what becomes of a new connection attempt. The same code runs in the kernel, on maps, and in
//! tests, on memory.

use crate::class::{CLASSES, Class};
use crate::control::{Control, HAS_SOURCES, Mode};
use crate::counters::{Exempt, FailOpen};
use crate::fingerprint::{Fingerprint, Memory};
use crate::gate::Gate;
use crate::gcra::{self, Rate};
use crate::limits::{CLOSED, ClassLimits, DEPTH_ONE, PolicyLimits, RESET, Scope, SourceRule, UNLIMITED};
use crate::packet::parse::Attempt;

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
    fn control(&self) -> Option<Control>;
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
    /// The remembered word of a fingerprint slot.
    fn fingerprint(&self, slot: u32) -> Option<&Self::Word>;
    /// What the limits of a policy are measured against.
    fn state(&self, policy: u32) -> Option<&State<Self::Word>>;
    /// What is added to the count of live connections of a policy, as a two's complement number.
    fn correction(&self, policy: u32) -> u64;
    /// The socket that the attempt would reach.
    fn socket(&self, attempt: &Attempt, want_wait: bool) -> Socket;

    /// [`first_gates`]; the kernel calls it as a function that is verified by itself.
    #[inline(always)]
    fn first_gates(&self, key: Key, now_ns: u64) -> FirstGates
    where
        Self: Sized,
    {
        first_gates(self, key, now_ns)
    }

    /// [`last_gates`]; the kernel calls it as a function that is verified by itself.
    #[inline(always)]
    fn last_gates(&self, key: Key, now_ns: u64, first: FirstGates, queue: Queue) -> Outcome
    where
        Self: Sized,
    {
        last_gates(self, key, now_ns, first, queue)
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
    /// Keeps an entry to two cache lines of its own.
    pub reserved: [W; 5],
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
    /// What was decided.
    pub outcome: Outcome,
    /// A refusal is carried out, not only counted.
    pub enforce: bool,
    /// A refusal is answered with RST.
    pub reset: bool,
    /// Age of the oldest unaccepted connection, where a listener was looked up; else [`NO_WAIT`].
    pub wait_us: u32,
}

/// Stands for a wait that was not looked up or is not known.
pub const NO_WAIT: u32 = u32::MAX;

const CHARGE_TRIES: usize = 4;

/// Judges an attempt. `None` means that no policy speaks of it.
#[inline(always)]
pub fn judge<E: Environment>(environment: &E, attempt: &Attempt) -> Option<Judgement> {
    let control = environment.control()?;
    let mode = Mode::from_word(control.mode);
    if matches!(mode, Mode::Off) {
        return None;
    }
    let policy = environment.policy(control.bank, attempt.destination_port);
    if policy == 0 {
        return None;
    }
    let mut judgement = Judgement {
        policy,
        class: Class::Interactive,
        outcome: Outcome::FailOpen(FailOpen::MissingState),
        enforce: matches!(mode, Mode::Enforce),
        reset: false,
        wait_us: NO_WAIT,
    };
    let Some(limits) = environment.limits(control.bank, policy) else { return Some(judgement) };
    let Some(class) = Class::from_index(limits.class as u8) else { return Some(judgement) };
    judgement.class = class;
    let now_ns = environment.now_ns();
    if now_ns >= control.lease_expires_ns {
        judgement.outcome = Outcome::FailOpen(FailOpen::LeaseExpired);
        return Some(judgement);
    }
    if !is_covered(environment, limits, policy, attempt) {
        judgement.outcome = Outcome::Exempt(Exempt::Destination);
        return Some(judgement);
    }
    if control.flags & HAS_SOURCES != 0 {
        let rule = environment.source_rule(attempt);
        if let Some(class) = rule.class {
            judgement.class = class;
        }
        if rule.exempt && exempt_rate_admits(environment, &control, now_ns) {
            judgement.outcome = Outcome::Exempt(Exempt::Source);
            return Some(judgement);
        }
    }
    let Some(share) = limits.classes.get(judgement.class.index()) else { return Some(judgement) };
    judgement.reset = share.flags & RESET != 0 && !attempt.fragmented;

    let fingerprint = Fingerprint::of(attempt);
    let Some(memory) = environment.fingerprint(fingerprint.slot) else { return Some(judgement) };
    let remembered = fingerprint.recall(memory.load(), now_ns);
    if matches!(remembered, Memory::Admitted) {
        judgement.outcome = Outcome::Repeat;
        return Some(judgement);
    }
    let key = Key { bank: control.bank, policy, class: judgement.class };
    judgement.outcome = ask(environment, key, now_ns, attempt, &mut judgement.wait_us);
    match judgement.outcome {
        Outcome::Admit | Outcome::Repeat => memory.store(fingerprint.word(false, now_ns)),
        Outcome::Shed(gate) => {
            memory.store(fingerprint.word(true, now_ns));
            if matches!(remembered, Memory::Refused) {
                judgement.outcome = Outcome::ShedAgain(gate);
            }
        }
        Outcome::ShedAgain(_) | Outcome::Exempt(_) | Outcome::FailOpen(_) => {}
    }
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

/// Asks the gates, cheapest first, and charges only when all admit.
#[inline(always)]
fn ask<E: Environment>(
    environment: &E,
    key: Key,
    now_ns: u64,
    attempt: &Attempt,
    wait_us: &mut u32,
) -> Outcome {
    let first = environment.first_gates(key, now_ns);
    if let Some(gate) = first.shed() {
        return Outcome::Shed(gate);
    }
    let mut queue = Queue::NONE;
    if first.needs_listener() {
        match environment.socket(attempt, first.needs_wait()) {
            Socket::Unknown => {}
            Socket::Existing => return Outcome::Repeat,
            Socket::Listener(listener) => {
                queue = Queue::new(&listener, now_ns);
                *wait_us = queue.wait_us;
            }
        }
    }
    environment.last_gates(key, now_ns, first, queue)
}

/// What the gates say that need no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstGates {
    /// A gate and how it stands, in one word: bits 0..8 the gate, the rest flags.
    word: u64,
}

const GATE_BITS: u64 = 0xff;
const REFUSED: u64 = 0x100;
const RESCUED: u64 = 0x200;
const NEEDS_LISTENER: u64 = 0x400;
const NEEDS_WAIT: u64 = 0x800;

impl FirstGates {
    /// From the word that [`FirstGates::word`] gave.
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

    /// The gate that refuses.
    #[must_use]
    #[inline(always)]
    pub const fn shed(self) -> Option<Gate> {
        if self.word & REFUSED == 0 { None } else { Gate::from_index((self.word & GATE_BITS) as u8) }
    }

    /// The gate that refuses by share, where the floor admits.
    #[inline(always)]
    const fn rescued(self) -> Option<Gate> {
        if self.word & RESCUED == 0 { None } else { Gate::from_index((self.word & GATE_BITS) as u8) }
    }

    /// Whether the other gates need the listener.
    #[must_use]
    #[inline(always)]
    pub const fn needs_listener(self) -> bool {
        self.word & NEEDS_LISTENER != 0
    }

    /// Whether they need the age of its oldest connection.
    #[must_use]
    #[inline(always)]
    pub const fn needs_wait(self) -> bool {
        self.word & NEEDS_WAIT != 0
    }
}

/// The gates that need no listener.
///
/// A class is refused while the total stands above its share of a limit. Its floor then admits, but never above
/// the limit itself; only `rate` gives way, because what the floor takes is charged to the others.
#[inline(always)]
pub fn first_gates<E: Environment>(environment: &E, key: Key, now_ns: u64) -> FirstGates {
    let Some(gates) = Gates::new(environment, key, now_ns) else { return FirstGates { word: 0 } };
    let (limits, share) = (gates.limits, gates.share);
    let active = gates.active();
    let mut word = 0;
    if (limits.connections & limits.queue_depth & limits.queue_wait_us) != UNLIMITED
        || (share.connections & share.queue_depth & share.queue_wait_us) != UNLIMITED
    {
        word |= NEEDS_LISTENER;
    }
    if limits.queue_wait_us != UNLIMITED {
        word |= NEEDS_WAIT;
    }
    let by_share = if share.flags & CLOSED != 0 {
        Some(Gate::Closed)
    } else if !gates.rate_admits() {
        Some(Gate::Rate)
    } else if reaches(active, share.connections) {
        Some(Gate::Connections)
    } else {
        None
    };
    if let Some(gate) = by_share {
        word |= gate as u64;
        word |= if gates.floor_admits() { RESCUED } else { REFUSED };
    }
    if word & REFUSED == 0 && reaches(active, limits.connections) {
        word = (word & !GATE_BITS) | REFUSED | Gate::Connections as u64;
    }
    FirstGates { word }
}

/// The gates of the listener, and the charge.
#[inline(always)]
pub fn last_gates<E: Environment>(
    environment: &E,
    key: Key,
    now_ns: u64,
    first: FirstGates,
    queue: Queue,
) -> Outcome {
    let Some(gates) = Gates::new(environment, key, now_ns) else {
        return Outcome::FailOpen(FailOpen::MissingState);
    };
    let (limits, share) = (gates.limits, gates.share);
    let connections = gates.active().saturating_add(u64::from(queue.syn_queue));
    if let Some(gate) =
        queue.refuses(connections, limits.connections, limits.queue_depth, limits.queue_wait_us)
    {
        return Outcome::Shed(gate);
    }
    let by_share = match first.rescued() {
        Some(gate) => Some(gate),
        None => queue.refuses(connections, share.connections, share.queue_depth, share.queue_wait_us),
    };
    let admission = match by_share {
        Some(gate) => gates.charge_floor(gate),
        None => gates.charge_own_rate(),
    };
    if !matches!(admission, Outcome::Shed(_)) {
        gates.charge_other_rates(by_share.is_some());
    }
    admission
}

struct Gates<'a, W> {
    limits: &'a PolicyLimits,
    share: &'a ClassLimits,
    state: &'a State<W>,
    class: usize,
    correction: u64,
    now: u64,
}

impl<'a, W: Cell> Gates<'a, W> {
    #[inline(always)]
    fn new<E: Environment<Word = W>>(environment: &'a E, key: Key, now_ns: u64) -> Option<Self> {
        let limits = environment.limits(key.bank, key.policy)?;
        let class = key.class.index();
        Some(Self {
            limits,
            share: limits.classes.get(class)?,
            state: environment.state(key.policy)?,
            class,
            correction: environment.correction(key.policy),
            now: gcra::units(now_ns),
        })
    }

    #[inline(always)]
    fn active(&self) -> u64 {
        let active = self.state.active.load().wrapping_add(self.correction);
        // A correction below zero that has outlived its reason.
        if active >> 63 == 0 { active } else { 0 }
    }

    #[inline(always)]
    fn leader(&self, class: usize) -> usize {
        match self.limits.rate_leader.get(class) {
            Some(leader) => *leader as usize,
            None => class,
        }
    }

    #[inline(always)]
    fn rate_admits(&self) -> bool {
        let rate = Rate { interval: self.share.interval, tolerance: self.share.tolerance };
        if rate.interval == 0 {
            return true;
        }
        match self.state.tats.get(self.leader(self.class)) {
            Some(tat) => rate.admits(tat.load(), self.now),
            None => true,
        }
    }

    #[inline(always)]
    fn floor(&self) -> Option<(Rate, &W)> {
        if self.share.floor_interval == 0 {
            return None;
        }
        let tat = self.state.floor_tats.get(self.class)?;
        Some((Rate { interval: self.share.floor_interval, tolerance: self.share.floor_tolerance }, tat))
    }

    #[inline(always)]
    fn floor_admits(&self) -> bool {
        match self.floor() {
            Some((rate, tat)) => rate.admits(tat.load(), self.now),
            None => false,
        }
    }

    #[inline(always)]
    fn charge_floor(&self, gate: Gate) -> Outcome {
        match self.floor() {
            Some((rate, tat)) => outcome_of(charge(tat, rate, self.now), gate),
            None => Outcome::Shed(gate),
        }
    }

    #[inline(always)]
    fn charge_own_rate(&self) -> Outcome {
        let rate = Rate { interval: self.share.interval, tolerance: self.share.tolerance };
        if rate.interval == 0 {
            return Outcome::Admit;
        }
        match self.state.tats.get(self.leader(self.class)) {
            Some(tat) => outcome_of(charge(tat, rate, self.now), Gate::Rate),
            None => Outcome::FailOpen(FailOpen::MissingState),
        }
    }

    /// Charges the rates that were not asked: each class is measured against the total of all. A class that
    /// follows another keeps a copy of its TAT, so that nothing starts anew when their shares part.
    #[inline(always)]
    fn charge_other_rates(&self, own_too: bool) {
        let own = self.leader(self.class);
        for (class, limits) in self.limits.classes.iter().enumerate() {
            let Some(tat) = self.state.tats.get(class) else { return };
            let leader = self.leader(class);
            if leader != class {
                if let Some(leading) = self.state.tats.get(leader) {
                    tat.store(leading.load());
                }
            } else if limits.interval != 0 && (own_too || class != own) {
                charge_past(tat, Rate { interval: limits.interval, tolerance: limits.tolerance }, self.now);
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
}

impl Queue {
    /// No listener was looked at: every listener gate admits.
    pub const NONE: Self = Self { depth: 0, capacity: u32::MAX, syn_queue: 0, wait_us: NO_WAIT };

    /// The queues of a listener at a moment.
    #[must_use]
    #[inline(always)]
    pub const fn new(listener: &Listener, now_ns: u64) -> Self {
        let wait_us = if listener.accept_queue == 0 {
            0
        } else if listener.oldest_us == 0 {
            NO_WAIT
        } else {
            // The clock may stand a little behind the moment at which the connection was established.
            let age = (now_ns / 1000).saturating_sub(listener.oldest_us);
            if age >= NO_WAIT as u64 { NO_WAIT - 1 } else { age as u32 }
        };
        Self {
            depth: listener.accept_queue,
            // The kernel's queue is full when it holds more than the backlog.
            capacity: listener.backlog.saturating_add(1),
            syn_queue: listener.syn_queue,
            wait_us,
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
            && self.wait_us >= queue_wait_us
        {
            return Some(Gate::QueueWait);
        }
        None
    }
}
