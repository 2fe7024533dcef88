//! The daemon itself: its loop, its attachments, its mode, its version.

use std::fmt;

use shedder_common::control::Mode;

use super::family::Families;
use crate::snapshot::{Snapshot, TICK_BOUNDS_SECONDS};

pub(super) fn encode(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    families.histogram("shedder_tick_seconds", "How long a turn of the control loop took", |histogram| {
        let ticks = &snapshot.ticks;
        histogram.add(&[], &TICK_BOUNDS_SECONDS, &ticks.buckets, ticks.sum_seconds)
    })?;
    families.gauge(
        "shedder_lease_remaining_seconds",
        "Until the kernel stops obeying the quotas; 0 where it has stopped",
        |gauge| gauge.add(&[], snapshot.lease_remaining_seconds),
    )?;
    families.info("shedder_attach", "How each interface is served", |info| {
        for attachment in &snapshot.attachments {
            info.add(&[("interface", attachment.interface.as_str()), ("mode", attachment.mode.as_str())])?;
        }
        Ok(())
    })?;
    families.gauge("shedder_mode", "1 for the mode in force, 0 for the others", |gauge| {
        for mode in Mode::ALL {
            gauge.add_count(&[("mode", mode.name())], u64::from(snapshot.mode == mode.name()))?;
        }
        Ok(())
    })?;
    families.info("shedder_build", "Version of the daemon", |info| {
        info.add(&[("version", snapshot.shedder_version.as_str())])
    })
}
