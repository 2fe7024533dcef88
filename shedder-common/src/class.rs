//! Who is asking for a connection.

/// Number of classes; the length of every per-class array.
pub const CLASSES: usize = 5;

/// The class of a new connection. A port has one, a trusted source CIDR may override it; a client can never
/// choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Probes and operators.
    Control = 0,
    /// What must go on working in an emergency.
    Core = 1,
    /// People who wait for an answer.
    Interactive = 2,
    /// What people can do without.
    Optional = 3,
    /// What can be done later.
    Batch = 4,
}

impl Class {
    /// Every class, most important first; a class stands at its own index.
    pub const ALL: [Self; CLASSES] =
        [Self::Control, Self::Core, Self::Interactive, Self::Optional, Self::Batch];

    /// The word used in configuration, metrics and the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Core => "core",
            Self::Interactive => "interactive",
            Self::Optional => "optional",
            Self::Batch => "batch",
        }
    }

    /// The class of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The class at an index of [`Class::ALL`], if there is one.
    #[must_use]
    #[inline(always)]
    pub const fn from_index(index: u8) -> Option<Self> {
        Some(match index {
            0 => Self::Control,
            1 => Self::Core,
            2 => Self::Interactive,
            3 => Self::Optional,
            4 => Self::Batch,
            _ => return None,
        })
    }

    /// The class of a map word that holds such an index.
    #[must_use]
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "of no class below 256")]
    pub const fn from_word(word: u32) -> Option<Self> {
        if word < CLASSES as u32 { Self::from_index(word as u8) } else { None }
    }

    /// Position in [`Class::ALL`] and in every per-class array.
    #[must_use]
    #[inline(always)]
    pub fn index(self) -> usize {
        crate::opaque::bounded::<CLASSES>(self as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_indexes_round_trip() {
        for (index, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class.index(), index);
            assert_eq!(Class::from_index(class as u8), Some(class));
            assert_eq!(Class::from_name(class.name()), Some(class));
        }
        assert_eq!(Class::from_index(5), None);
        assert_eq!(Class::from_name("Core"), None);
    }
}
