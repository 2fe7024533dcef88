//! What can become of an attempt, as a type and as the word that programs carry.

use core::mem::offset_of;

use crate::class::Class;
use crate::counters::{ClassCounters, Exempt, FailOpen};
use crate::gate::{GATES, Gate};
use crate::limits::RESET;
use crate::opaque::{blurred, low_half};

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

/// An [`Outcome`] in one word, so that what follows from it needs no branches. Bits 0..4 say which word of
/// [`ClassCounters`] counts it where refusals are carried out, bits 4..7 the gate or reason, bit 7 whether it is
/// a refusal.
///
/// (An enum whose variants hold different things will not do: a part of it is undefined in some, and the verifier
/// refuses a program that copies such a part.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision(u32);

const COUNTER_BITS: u32 = 0xf;
const DETAIL_SHIFT: u32 = 4;
const DETAIL_BITS: u32 = 0x70;
const REFUSAL: u32 = 0x80;
const DECISION_BITS: u32 = 0xff;

const WORD: usize = size_of::<u64>();
const ADMITTED: u32 = 0;
const SHED: u32 = 1;
const EXEMPT: u32 = 11;
const FAIL_OPEN: u32 = 12;
const REPEAT: u32 = 14;
const SHED_AGAIN: u32 = 15;
const WOULD_SHED_LESS_SHED: u32 = 5;
const _: () = assert!(WOULD_SHED_LESS_SHED as usize == GATES);
const _: () = {
    assert!(offset_of!(ClassCounters, admitted) == ADMITTED as usize * WORD);
    assert!(offset_of!(ClassCounters, shed) == SHED as usize * WORD);
    assert!(offset_of!(ClassCounters, would_shed) == (SHED + WOULD_SHED_LESS_SHED) as usize * WORD);
    assert!(offset_of!(ClassCounters, exempt) == EXEMPT as usize * WORD);
    assert!(offset_of!(ClassCounters, fail_open) == FAIL_OPEN as usize * WORD);
    assert!(offset_of!(ClassCounters, retransmits_admitted) == REPEAT as usize * WORD);
    assert!(offset_of!(ClassCounters, retransmits_shed) == SHED_AGAIN as usize * WORD);
    assert!(size_of::<ClassCounters>() == (COUNTER_BITS as usize + 1) * WORD);
};

impl Decision {
    /// [`Outcome::Admit`].
    pub const ADMIT: Self = Self(ADMITTED);
    /// [`Outcome::Repeat`].
    pub const REPEAT: Self = Self(REPEAT);

    /// [`Outcome::Shed`].
    #[must_use]
    #[inline(always)]
    pub const fn shed(gate: Gate) -> Self {
        Self(REFUSAL | (gate as u32) << DETAIL_SHIFT | (SHED + gate as u32))
    }

    /// [`Outcome::Exempt`].
    #[must_use]
    #[inline(always)]
    pub const fn exempt(reason: Exempt) -> Self {
        Self((reason as u32) << DETAIL_SHIFT | EXEMPT)
    }

    /// [`Outcome::FailOpen`].
    #[must_use]
    #[inline(always)]
    pub const fn fail_open(reason: FailOpen) -> Self {
        Self((reason as u32) << DETAIL_SHIFT | FAIL_OPEN)
    }

    /// A refusal, of an attempt that was refused before.
    #[must_use]
    #[inline(always)]
    pub const fn again(self) -> Self {
        Self(self.0 | SHED_AGAIN)
    }

    /// From the word that [`Decision::word`] gave.
    #[must_use]
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self(word & DECISION_BITS)
    }

    /// All of it in one word.
    #[must_use]
    #[inline(always)]
    pub const fn word(self) -> u32 {
        self.0
    }

    /// A gate refuses.
    #[must_use]
    #[inline(always)]
    pub const fn is_refusal(self) -> bool {
        self.0 & REFUSAL != 0
    }

    /// Every gate admits. (Not what the kernel knows already: its connection may end before this attempt comes again.)
    #[must_use]
    #[inline(always)]
    pub const fn is_admission(self) -> bool {
        self.0 & COUNTER_BITS == ADMITTED
    }

    /// As a type. A word that stands for nothing is `FailOpen`.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        let detail = ((self.0 & DETAIL_BITS) >> DETAIL_SHIFT) as u8;
        let unknown = Outcome::FailOpen(FailOpen::MissingState);
        match (self.0 & COUNTER_BITS, Gate::from_index(detail)) {
            (ADMITTED, _) => Outcome::Admit,
            (REPEAT, _) => Outcome::Repeat,
            (SHED_AGAIN, Some(gate)) if self.is_refusal() => Outcome::ShedAgain(gate),
            (EXEMPT, _) if detail == Exempt::Source as u8 => Outcome::Exempt(Exempt::Source),
            (EXEMPT, _) => Outcome::Exempt(Exempt::Destination),
            (FAIL_OPEN, _) if detail == FailOpen::LeaseExpired as u8 => {
                Outcome::FailOpen(FailOpen::LeaseExpired)
            }
            (FAIL_OPEN, _) if detail == FailOpen::Contention as u8 => Outcome::FailOpen(FailOpen::Contention),
            (_, Some(gate)) if self.is_refusal() => Outcome::Shed(gate),
            _ => unknown,
        }
    }
}

impl From<Outcome> for Decision {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Admit => Self::ADMIT,
            Outcome::Repeat => Self::REPEAT,
            Outcome::Shed(gate) => Self::shed(gate),
            Outcome::ShedAgain(gate) => Self::shed(gate).again(),
            Outcome::Exempt(reason) => Self::exempt(reason),
            Outcome::FailOpen(reason) => Self::fail_open(reason),
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
    /// [`Decision::word`], [`ENFORCE`] and [`RESET`].
    word: u32,
    /// Age of the oldest unaccepted connection, where a limit asked for it; else [`NO_WAIT`].
    pub wait_us: u32,
}

/// Stands for a wait that was not looked up or is not known.
pub const NO_WAIT: u32 = u32::MAX;

const ENFORCE: u32 = 1 << 8;
const _: () = assert!(RESET == 1 << 9);
const JUDGEMENT_WORDS: u64 = 1 << 10;

impl Judgement {
    /// Nothing is decided yet: it passes, because something was missing.
    #[must_use]
    #[inline(always)]
    pub(super) const fn open(policy: u32, class: Class, enforce: bool) -> Self {
        let enforce = if enforce { ENFORCE } else { 0 };
        let word = Decision::fail_open(FailOpen::MissingState).word() | enforce;
        Self { policy, class, word, wait_us: NO_WAIT }
    }

    #[inline(always)]
    pub(super) const fn decide(&mut self, decision: Decision) {
        self.word = (self.word & !DECISION_BITS) | decision.word();
    }

    /// Answers a refusal as the flags of [`crate::limits::ClassLimits`] say. A segment whose end is in later fragments
    /// cannot be answered.
    #[inline(always)]
    pub(super) const fn answer_as(&mut self, flags: u32, fragmented: bool) {
        self.word |= flags & RESET & !((fragmented as u32) << RESET.trailing_zeros());
    }

    /// The same, for the verifier.
    #[inline(always)]
    pub(super) fn blurred(self) -> Self {
        Self { word: blurred::<JUDGEMENT_WORDS>(self.word), ..self }
    }

    /// Refusals are carried out, not only counted.
    #[must_use]
    #[inline(always)]
    pub const fn enforce(&self) -> bool {
        self.word & ENFORCE != 0
    }

    /// A refusal is answered with RST.
    #[must_use]
    #[inline(always)]
    pub const fn reset(&self) -> bool {
        self.word & RESET != 0
    }

    /// What was decided.
    #[must_use]
    #[inline(always)]
    pub const fn decision(&self) -> Decision {
        Decision::from_word(self.word)
    }

    /// What was decided, as a type.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.decision().outcome()
    }

    /// Which word of [`ClassCounters`] counts it.
    #[must_use]
    #[inline(always)]
    pub const fn counter(&self) -> u32 {
        let counter = self.word & COUNTER_BITS;
        // The lower half of the words: new attempts, admitted or refused by a gate.
        if self.word & (REFUSAL | ENFORCE) == REFUSAL && counter != SHED_AGAIN {
            (counter + WOULD_SHED_LESS_SHED) & COUNTER_BITS
        } else {
            counter
        }
    }

    /// Why it was exempt, an index of [`Exempt::ALL`].
    #[must_use]
    #[inline(always)]
    pub fn exempt(&self) -> Option<usize> {
        self.reason(EXEMPT)
    }

    /// Why it passed unjudged, an index of [`FailOpen::ALL`].
    #[must_use]
    #[inline(always)]
    pub fn fail_open(&self) -> Option<usize> {
        self.reason(FAIL_OPEN)
    }

    #[inline(always)]
    fn reason(&self, counter: u32) -> Option<usize> {
        let reason = low_half(u64::from((self.word & DETAIL_BITS) >> DETAIL_SHIFT));
        (self.word & COUNTER_BITS == counter).then_some(reason as usize)
    }
}
