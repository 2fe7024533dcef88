//! How pressed the host or a workload is.

/// Number of levels; the length of every per-level array.
pub const LEVELS: usize = 4;

/// How pressed a scope is, from its signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Nothing is refused but what the limits themselves refuse.
    #[default]
    Normal = 0,
    /// Work that can wait is held back.
    Moderate = 1,
    /// Only what people wait for, and less of it.
    High = 2,
    /// Only what must go on working.
    Emergency = 3,
}

impl Level {
    /// Every level, lowest first; a level stands at its own index.
    pub const ALL: [Self; LEVELS] = [Self::Normal, Self::Moderate, Self::High, Self::Emergency];

    /// The word used in configuration, metrics and the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Moderate => "moderate",
            Self::High => "high",
            Self::Emergency => "emergency",
        }
    }

    /// The level of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// Position in [`Level::ALL`] and in every per-level array.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The level below; `normal` is its own.
    #[must_use]
    pub const fn down(self) -> Self {
        match self {
            Self::Normal | Self::Moderate => Self::Normal,
            Self::High => Self::Moderate,
            Self::Emergency => Self::High,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_named() {
        for (index, level) in Level::ALL.into_iter().enumerate() {
            assert_eq!(level.index(), index);
            assert_eq!(Level::from_name(level.name()), Some(level));
        }
        assert_eq!(Level::Emergency.down().down().down().down(), Level::Normal);
    }
}
