//! The reasons to refuse a new connection.

/// Number of gates; the length of every per-gate array.
pub const GATES: usize = 5;

/// One reason to refuse, in the order in which the kernel asks: the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Gate {
    /// The class has no share here, or the limit is 0.
    Closed = 0,
    /// The port admits too many new connections per second.
    Rate = 1,
    /// Too many connections are open.
    Connections = 2,
    /// Too much of the listen backlog is taken.
    QueueDepth = 3,
    /// The oldest connection that the application has not accepted is too old.
    QueueWait = 4,
}

impl Gate {
    /// Every gate, cheapest first; a gate stands at its own index.
    pub const ALL: [Self; GATES] =
        [Self::Closed, Self::Rate, Self::Connections, Self::QueueDepth, Self::QueueWait];

    /// The word used in metrics and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Rate => "rate",
            Self::Connections => "connections",
            Self::QueueDepth => "queue_depth",
            Self::QueueWait => "queue_wait",
        }
    }

    /// The gate at an index of [`Gate::ALL`], if there is one.
    #[must_use]
    #[inline(always)]
    pub const fn from_index(index: u8) -> Option<Self> {
        Some(match index {
            0 => Self::Closed,
            1 => Self::Rate,
            2 => Self::Connections,
            3 => Self::QueueDepth,
            4 => Self::QueueWait,
            _ => return None,
        })
    }

    /// Position in [`Gate::ALL`] and in every per-gate array.
    #[must_use]
    #[inline(always)]
    pub fn index(self) -> usize {
        crate::opaque::bounded::<GATES>(self as usize)
    }
}
