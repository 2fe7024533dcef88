//! How the gates stand before anything is charged.

use crate::gate::Gate;
use crate::opaque::blurred;

/// How the gates stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Bits 0..3 a gate, the rest flags. No flag: every gate admits.
    word: u32,
}

const GATE_BITS: u32 = 0x7;
const REFUSED: u32 = 0x8;
const RESCUED: u32 = 0x10;
const STANDING_WORDS: u64 = 0x20;

impl Standing {
    pub(super) const OPEN: Self = Self { word: 0 };

    /// From the word that [`Standing::word`] gave.
    #[must_use]
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self { word }
    }

    /// All of it in one word.
    #[must_use]
    #[inline(always)]
    pub const fn word(self) -> u32 {
        self.word
    }

    /// The same, for the verifier.
    #[inline(always)]
    pub(super) fn blurred(self) -> Self {
        Self { word: blurred::<STANDING_WORDS>(self.word) }
    }

    #[inline(always)]
    pub(super) const fn refused(gate: Gate) -> Self {
        Self { word: REFUSED | gate as u32 }
    }

    #[inline(always)]
    pub(super) const fn rescued_from(gate: Gate) -> Self {
        Self { word: RESCUED | gate as u32 }
    }

    /// The gate that refuses.
    #[inline(always)]
    pub(super) const fn shed(self) -> Option<Gate> {
        if self.word & REFUSED == 0 { None } else { Gate::from_index((self.word & GATE_BITS) as u8) }
    }

    /// The gate that refuses by share, where the floor admits.
    #[inline(always)]
    pub(super) const fn rescued(self) -> Option<Gate> {
        if self.word & RESCUED == 0 { None } else { Gate::from_index((self.word & GATE_BITS) as u8) }
    }
}
