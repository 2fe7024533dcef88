//! The words that the daemon writes and every program reads first.

/// What the kernel does with its decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Mode {
    /// Decide nothing, count nothing, pass everything.
    #[default]
    Off = 0,
    /// Decide and count, pass everything.
    Observe = 1,
    /// Decide, count, refuse.
    Enforce = 2,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Off, Self::Observe, Self::Enforce];

    /// The word used in configuration, metrics and the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::Enforce => "enforce",
        }
    }

    /// The mode of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// The mode that a map word stands for. An unknown word is `off`: on doubt, pass.
    #[must_use]
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        match word {
            1 => Self::Observe,
            2 => Self::Enforce,
            _ => Self::Off,
        }
    }
}

/// The single entry of the `CONTROL` map. All zero, as the kernel makes it, means: pass everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Control {
    /// Until when the limits are obeyed, on the monotonic clock. Past it everything passes.
    pub lease_expires_ns: u64,
    /// A [`Mode`] word.
    pub mode: u32,
    /// Which bank of limits and policies is in force: 0 or 1.
    pub bank: u32,
    /// [`HAS_SOURCES`] and its kin.
    pub flags: u32,
    /// Keeps the layout free of implicit padding.
    pub reserved: u32,
    /// Emission interval of the rate within which exempt sources are always admitted; 0 admits all of them,
    /// [`NOBODY_EXEMPT`] none.
    pub exempt_interval: u64,
    /// Burst tolerance of that rate.
    pub exempt_tolerance: u64,
}

/// From this [`Control::exempt_interval`] on, no exempt source is always admitted.
pub const NOBODY_EXEMPT: u64 = u64::MAX / 4;

/// Set in [`Control::flags`] when the source table is not empty; without it no packet pays for the lookup.
pub const HAS_SOURCES: u32 = 1;
