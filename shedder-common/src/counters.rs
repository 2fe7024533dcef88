//! What the kernel counts, per CPU. User space sums the CPUs into one snapshot.

use crate::class::CLASSES;
use crate::gate::GATES;
use crate::opaque::{bounded, opaque};

/// Counters of one class at one port policy. Every judged attempt raises exactly one of `admitted`, `shed`,
/// `would_shed`, `exempt`, `fail_open`, `retransmits_admitted`, `retransmits_shed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ClassCounters {
    /// New attempts that every gate admitted.
    pub admitted: u64,
    /// New attempts refused, by gate.
    pub shed: [u64; GATES],
    /// New attempts that would have been refused in `enforce`, by gate.
    pub would_shed: [u64; GATES],
    /// Attempts of exempt sources, within the guard's rate.
    pub exempt: u64,
    /// Attempts passed because the datapath could not or must not judge.
    pub fail_open: u64,
    /// RST segments sent.
    pub reset_sent: u64,
    /// Repeats of an admitted SYN, passed and not charged.
    pub retransmits_admitted: u64,
    /// Repeats of a refused SYN, refused again.
    pub retransmits_shed: u64,
}

/// Upper bounds of the buckets of [`PolicyCounters::wait_buckets`], microseconds; the last bucket has none.
pub const WAIT_BOUNDS_US: [u32; WAIT_BUCKETS - 1] =
    [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000];

/// Number of buckets of the wait histogram.
pub const WAIT_BUCKETS: usize = 13;

/// The bucket of a wait. (A `usize` has 64 bits wherever this runs.)
#[must_use]
#[inline(always)]
pub fn wait_bucket(wait_us: u32) -> usize {
    // Arithmetic and not branches, which the compiler makes of it where it knows that the wait has 32 bits.
    let wait = opaque(wait_us as usize);
    let above = |bound_us: &u32| (*bound_us as usize).wrapping_sub(wait) >> (usize::BITS - 1);
    WAIT_BOUNDS_US.iter().map(above).sum()
}

/// All counters of one port policy: one entry of `COUNTERS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PolicyCounters {
    /// By [`crate::class::Class::index`].
    pub classes: [ClassCounters; CLASSES],
    /// How long the oldest unaccepted connection had waited when a new one asked, where a listener was looked
    /// up: number of observations by bucket, not cumulative.
    pub wait_buckets: [u64; WAIT_BUCKETS],
    /// Sum of those waits, microseconds.
    pub wait_sum_us: u64,
    /// Keeps the entry a multiple of a cache line.
    pub reserved: [u64; 2],
}

/// Why a packet could not be parsed. It passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Unparsed {
    /// The frame ends within the link-layer header or its VLAN tags.
    TruncatedLink = 0,
    /// More than two VLAN tags.
    VlanDepth = 1,
    /// The frame ends within the IP header.
    TruncatedIp = 2,
    /// A version or header length that cannot be.
    BadIp = 3,
    /// A later fragment: it has no TCP header.
    LaterFragment = 4,
    /// More IPv6 extension headers than are walked.
    ExtensionHeaders = 5,
    /// The frame ends within an IPv6 extension header.
    TruncatedExtension = 6,
    /// The frame ends within the TCP header.
    TruncatedTcp = 7,
    /// A TCP header length that cannot be, or an attempt that is longer than its packet.
    BadTcp = 8,
}

/// Number of reasons in [`Unparsed`].
pub const UNPARSED: usize = 9;

impl Unparsed {
    /// Position in [`Unparsed::ALL`] and in its counters.
    #[must_use]
    #[inline(always)]
    pub fn index(self) -> usize {
        bounded::<UNPARSED>(self as usize)
    }

    /// The reason at an index of [`Unparsed::ALL`], if there is one.
    #[must_use]
    #[inline(always)]
    pub const fn from_index(index: u8) -> Option<Self> {
        Some(match index {
            0 => Self::TruncatedLink,
            1 => Self::VlanDepth,
            2 => Self::TruncatedIp,
            3 => Self::BadIp,
            4 => Self::LaterFragment,
            5 => Self::ExtensionHeaders,
            6 => Self::TruncatedExtension,
            7 => Self::TruncatedTcp,
            8 => Self::BadTcp,
            _ => return None,
        })
    }

    /// Every reason; a reason stands at its own index.
    pub const ALL: [Self; UNPARSED] = [
        Self::TruncatedLink,
        Self::VlanDepth,
        Self::TruncatedIp,
        Self::BadIp,
        Self::LaterFragment,
        Self::ExtensionHeaders,
        Self::TruncatedExtension,
        Self::TruncatedTcp,
        Self::BadTcp,
    ];

    /// The word used in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TruncatedLink => "truncated_link",
            Self::VlanDepth => "vlan_depth",
            Self::TruncatedIp => "truncated_ip",
            Self::BadIp => "bad_ip",
            Self::LaterFragment => "later_fragment",
            Self::ExtensionHeaders => "extension_headers",
            Self::TruncatedExtension => "truncated_extension",
            Self::TruncatedTcp => "truncated_tcp",
            Self::BadTcp => "bad_tcp",
        }
    }
}

/// Why a new connection at a port with a policy passed unjudged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FailOpen {
    /// The daemon has not renewed the lease.
    LeaseExpired = 0,
    /// A table that should be there was not.
    MissingState = 1,
    /// Other CPUs changed the same rate state at every try.
    Contention = 2,
}

/// Number of reasons in [`FailOpen`].
pub const FAIL_OPENS: usize = 3;

impl FailOpen {
    /// Position in [`FailOpen::ALL`] and in its counters.
    #[must_use]
    #[inline(always)]
    pub fn index(self) -> usize {
        bounded::<FAIL_OPENS>(self as usize)
    }

    /// Every reason; a reason stands at its own index.
    pub const ALL: [Self; FAIL_OPENS] = [Self::LeaseExpired, Self::MissingState, Self::Contention];

    /// The word used in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LeaseExpired => "lease_expired",
            Self::MissingState => "missing_state",
            Self::Contention => "contention",
        }
    }
}

/// Why a new connection was outside of every limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Exempt {
    /// From a source that is always admitted.
    Source = 0,
    /// To an address that the policy does not cover: forwarded, bridged, or not listed.
    Destination = 1,
}

/// Number of reasons in [`Exempt`].
pub const EXEMPTS: usize = 2;

impl Exempt {
    /// Position in [`Exempt::ALL`] and in its counters.
    #[must_use]
    #[inline(always)]
    pub fn index(self) -> usize {
        bounded::<EXEMPTS>(self as usize)
    }

    /// Every reason; a reason stands at its own index.
    pub const ALL: [Self; EXEMPTS] = [Self::Source, Self::Destination];

    /// The word used in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

/// Counters that belong to no port policy: the single entry of `GLOBAL_COUNTERS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GlobalCounters {
    /// By [`Unparsed`].
    pub unparsed: [u64; UNPARSED],
    /// By [`FailOpen`].
    pub fail_open: [u64; FAIL_OPENS],
    /// By [`Exempt`].
    pub exempt: [u64; EXEMPTS],
    /// Connections that could not be counted because the kernel gave no socket storage.
    pub untracked_connections: u64,
    /// Resets that could not be built or sent; the packet was dropped instead.
    pub reset_failed: u64,
}

crate::abi::plain! {
    ClassCounters: 128,
    PolicyCounters: 5 * 128 + 128,
    GlobalCounters: 16 * 8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_indexes() {
        for (index, reason) in (0..).zip(Unparsed::ALL) {
            assert_eq!(Unparsed::from_index(index), Some(reason));
            assert_eq!(reason.index(), usize::from(index));
        }
        assert_eq!(Unparsed::from_index(9), None);
    }
}
