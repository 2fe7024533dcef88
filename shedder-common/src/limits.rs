//! The quota table as the kernel reads it, and the state that the limits are measured against.

use crate::class::{CLASSES, Class};

/// Stands for "no limit" in a `u32` limit.
pub const UNLIMITED: u32 = u32::MAX;

/// One in the fixed point of [`ClassLimits::queue_depth`].
pub const DEPTH_ONE: u32 = 1 << 16;

/// Set in [`ClassLimits::flags`]: the class is refused, but for its floor.
pub const CLOSED: u32 = 1;
/// Set in [`ClassLimits::flags`]: a refusal is answered with RST; without it the packet is dropped.
pub const RESET: u32 = 1 << 9;

/// What one class sees of a port policy: every limit already multiplied by the share of the class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ClassLimits {
    /// Emission interval of share × rate, see [`crate::gcra`]; 0 is no limit.
    pub interval: u64,
    /// Burst tolerance of share × rate.
    pub tolerance: u64,
    /// Emission interval of floor × rate; 0 is no floor.
    pub floor_interval: u64,
    /// Burst tolerance of floor × rate.
    pub floor_tolerance: u64,
    /// Refused from this number of connections on; [`UNLIMITED`] is no limit.
    pub connections: u32,
    /// Refused from this part of the listen backlog on, in units of 1/[`DEPTH_ONE`]; [`UNLIMITED`] is no limit.
    pub queue_depth: u32,
    /// Refused from this age of the oldest unaccepted connection on; [`UNLIMITED`] is no limit.
    pub queue_wait_us: u32,
    /// [`CLOSED`], [`RESET`].
    pub flags: u32,
}

/// Which destinations a port policy covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Scope {
    /// The addresses of this host.
    #[default]
    Local = 0,
    /// Every destination.
    Any = 1,
    /// The CIDRs of `DESTINATIONS`.
    Listed = 2,
}

/// All limits of one port policy: one entry of a bank of `LIMITS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PolicyLimits {
    /// By [`Class::index`].
    pub classes: [ClassLimits; CLASSES],
    /// For each class the lowest-numbered class with the same share. Classes that see the same rate share one
    /// TAT, so that together they cannot exceed it.
    pub rate_leader: [u8; 8],
    /// The limit itself, at share 1; see [`ClassLimits::connections`].
    pub connections: u32,
    /// The limit itself, at share 1; see [`ClassLimits::queue_depth`].
    pub queue_depth: u32,
    /// The limit itself, at share 1; see [`ClassLimits::queue_wait_us`].
    pub queue_wait_us: u32,
    /// A [`Class`] index: the class of whoever has no class by source.
    pub class: u32,
    /// A [`Scope`] word.
    pub scope: u32,
    /// Keeps the layout free of implicit padding.
    pub reserved: u32,
}

impl PolicyLimits {
    /// Refuses nobody: no limit at all, every class open.
    #[must_use]
    pub const fn unlimited(class: Class) -> Self {
        let open = ClassLimits {
            interval: 0,
            tolerance: 0,
            floor_interval: 0,
            floor_tolerance: 0,
            connections: UNLIMITED,
            queue_depth: UNLIMITED,
            queue_wait_us: UNLIMITED,
            flags: 0,
        };
        Self {
            classes: [open; CLASSES],
            rate_leader: [0; 8],
            connections: UNLIMITED,
            queue_depth: UNLIMITED,
            queue_wait_us: UNLIMITED,
            class: class as u32,
            scope: Scope::Local as u32,
            reserved: 0,
        }
    }
}

/// What the limits of one port policy are measured against: one entry of `STATE`, written by the kernel only.
/// Slot 0, which is no policy, holds the TAT of exempt sources in `tats[0]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PolicyState {
    /// Theoretical arrival time by class, see [`crate::gcra`].
    pub tats: [u64; CLASSES],
    /// Theoretical arrival time of the floor by class.
    pub floor_tats: [u64; CLASSES],
    /// Live connections that `track_connections` has counted and not yet uncounted.
    pub active: u64,
    /// As [`crate::service::Service`].
    pub service: [u64; 17],
    /// Keeps the entry a multiple of a cache line.
    pub reserved: [u64; 4],
}

impl PolicyState {
    /// As [`crate::service::Service::established`].
    #[must_use]
    pub const fn established(&self) -> u64 {
        const {
            assert!(core::mem::offset_of!(crate::service::Service<u64>, established) == 0);
        }
        let [established, ..] = self.service;
        established
    }
}

/// What is known of a source CIDR; the `u32` value of `SOURCES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceRule {
    /// The class of everyone in the CIDR, instead of the port's.
    pub class: Option<Class>,
    /// Admitted whatever the limits say, within the guard's rate.
    pub exempt: bool,
}

const RULE_HAS_CLASS: u32 = 0x100;
const RULE_EXEMPT: u32 = 0x200;

impl SourceRule {
    /// The map value.
    #[must_use]
    pub const fn to_word(self) -> u32 {
        let class = match self.class {
            Some(class) => RULE_HAS_CLASS | class as u32,
            None => 0,
        };
        class | if self.exempt { RULE_EXEMPT } else { 0 }
    }

    /// The rule of a map value.
    #[must_use]
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        let class = if word & RULE_HAS_CLASS != 0 { Class::from_index((word & 0xff) as u8) } else { None };
        Self { class, exempt: word & RULE_EXEMPT != 0 }
    }
}

/// What a key of `DESTINATIONS` holds after its prefix length, which counts 32 bits for the policy and those of
/// the address. A key of `SOURCES` holds an [`Address`](crate::address::Address) alone. IPv4 prefixes are 96 bits
/// longer than usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PolicyAddress {
    /// The policy slot, always compared whole.
    pub policy: u32,
    /// The address.
    pub address: crate::address::Address,
}

/// What a counted socket remembers; the value of `SOCKETS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SocketRecord {
    /// Policy slot whose `active` count holds this connection; 0 where it was never counted.
    pub policy: u32,
    /// Keeps the layout free of implicit padding.
    pub reserved: u32,
}

crate::abi::plain! {
    ClassLimits: 48,
    PolicyLimits: 5 * 48 + 8 + 24,
    PolicyState: 256,
    PolicyAddress: 20,
    SocketRecord: 8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_rules_round_trip() {
        for exempt in [false, true] {
            for class in core::iter::once(None).chain(Class::ALL.into_iter().map(Some)) {
                let rule = SourceRule { class, exempt };
                assert_eq!(SourceRule::from_word(rule.to_word()), rule);
            }
        }
    }
}
