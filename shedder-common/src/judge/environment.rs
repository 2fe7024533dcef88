//! What a decision reads and changes.

use crate::class::{CLASSES, Class};
use crate::control::Control;
use crate::fingerprint;
use crate::limits::{PolicyLimits, SourceRule};
use crate::packet::parse::Attempt;
use crate::service::Service;

use super::gates::charge_all;
use super::outcome::Decision;
use super::standing::Standing;

/// A 64-bit word that several CPUs change.
pub trait Cell {
    /// The value now.
    fn load(&self) -> u64;
    /// Replaces `old` by `new`; false where the value is no longer `old`.
    fn compare_exchange(&self, old: u64, new: u64) -> bool;
    /// Sets the value.
    fn store(&self, value: u64);
    /// Adds, wrapping.
    fn add(&self, amount: u64);
}

/// What a decision reads and changes: maps in the kernel, memory in tests.
pub trait Environment {
    /// A word of state.
    type Word: Cell;

    /// Mode, lease and bank; `None` where the map is missing.
    fn control(&self) -> Option<&Control>;
    /// The monotonic clock, some milliseconds coarse.
    fn now(&self) -> Now;
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
    fn fingerprint_key(&self) -> &fingerprint::Key;
    /// The remembered word of a fingerprint slot.
    fn fingerprint(&self, slot: u32) -> Option<&Self::Word>;
    /// What the limits of a policy are measured against.
    fn state(&self, policy: u32) -> Option<&State<Self::Word>>;
    /// What is added to the count of live connections of a policy, as a two's complement number.
    fn correction(&self, policy: u32) -> u64;
    /// The socket that the attempt would reach.
    fn socket(&self, attempt: &Attempt, wanted: Wanted) -> Socket;

    /// [`charge_all`]; the kernel calls it as a function that is verified by itself.
    #[inline(always)]
    fn charge_all(&self, key: Key, now_ns: u64, standing: Standing) -> Decision
    where
        Self: Sized,
    {
        charge_all(self, key, now_ns, standing)
    }
}

/// One reading of the clock in two units, since a division costs as much as a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds.
    pub ns: u64,
    /// Microseconds.
    pub us: u64,
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
    /// As there.
    pub reserved: [W; 4],
}

/// What must be known of a listener; reading the rest would cost something and tell nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// [`Listener::syn_queue`].
    pub half_open: bool,
    /// [`Listener::backlog`].
    pub backlog: bool,
    /// [`Listener::oldest_us`].
    pub wait: bool,
}

impl Wanted {
    /// Whether anything is.
    #[inline(always)]
    pub(super) const fn any(self) -> bool {
        self.half_open | self.backlog | self.wait
    }
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
    /// The listen backlog, the queue holds one more; 0 where it was not wanted.
    pub backlog: u32,
    /// Half-open requests; 0 where they were not wanted.
    pub syn_queue: u32,
    /// When the oldest waiting connection was established, microseconds of the monotonic clock; 0 is unknown,
    /// none, or not wanted.
    pub oldest_us: u64,
}
