//! The quota table: all limits of all port policies at one moment, and how it follows from configuration and
//! levels.

use shedder_common::limits::PolicyLimits;

use crate::config::model::{Destinations, PortPolicy};

/// All limits at one moment. The datapath writes it in one piece.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuotaTable {
    /// One entry for each port policy, in the order of the configuration.
    pub policies: Vec<PolicyQuota>,
}

/// The limits of one port policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyQuota {
    /// First port.
    pub first: u16,
    /// Last port, inclusive.
    pub last: u16,
    /// CIDRs of a policy with [`shedder_common::limits::Scope::Listed`].
    pub destinations: Destinations,
    /// What the kernel reads.
    pub limits: PolicyLimits,
}

impl PolicyQuota {
    /// Whether this is the quota of that policy.
    #[must_use]
    pub fn is_of(&self, policy: &PortPolicy) -> bool {
        self.first == policy.first && self.last == policy.last
    }
}
