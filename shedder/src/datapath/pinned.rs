//! Looking at what is pinned, without a daemon and without changing it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use shedder_common::control::Mode;
use shedder_common::limits::PolicyLimits;

use super::counters::Counters;
use super::maps::Maps;
use super::pins::Pins;
use super::ports::PortRange;
use crate::kernel::attachment::Hook;

/// What the pinned maps and links say.
#[derive(Clone, Debug)]
pub struct Pinned {
    /// What the kernel does with its decisions while the lease lasts.
    pub mode: Mode,
    /// Until when, on the monotonic clock.
    pub lease_expires_ns: u64,
    /// Limits in force by first and last port.
    pub limits: BTreeMap<PortRange, PolicyLimits>,
    /// Counters.
    pub counters: Counters,
    /// Hooks and interface indexes of the pinned links.
    pub links: Vec<(Hook, u32)>,
}

impl Pinned {
    /// Reads the pins under a bpffs directory; `None` where there are none.
    ///
    /// # Errors
    ///
    /// They are there but cannot be read, or are of another version.
    pub fn read(bpffs: &Path) -> Result<Option<Self>> {
        let pins = Pins::new(bpffs);
        let links: Vec<(Hook, u32)> =
            pins.interface_links().into_iter().map(|(hook, ifindex, _)| (hook, ifindex)).collect();
        if !pins.has_maps() {
            return Ok(None);
        }
        if let Some(reason) = pins.unusable_maps()? {
            anyhow::bail!("the pinned maps are not of this build of shedder: {reason}");
        }
        let maps = Maps::open(&pins).context("read the pinned maps")?;
        let control = maps.control()?;
        Ok(Some(Self {
            mode: Mode::from_word(control.mode),
            lease_expires_ns: control.lease_expires_ns,
            limits: maps.limits()?,
            counters: maps.read()?,
            links,
        }))
    }
}
