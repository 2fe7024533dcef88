//! What the gates say that look at a listener.

use crate::gate::Gate;
use crate::limits::{DEPTH_ONE, UNLIMITED};
use crate::opaque::{blurred, low_half};

use super::environment::Listener;
use super::gates::reaches;
use super::outcome::NO_WAIT;

/// What the listener gates compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queue {
    /// Connections that wait for `accept`.
    pub(super) depth: u32,
    /// How many fit.
    pub(super) capacity: u32,
    /// Half-open requests.
    pub(super) syn_queue: u32,
    /// How long the oldest connection has waited, or [`NO_WAIT`].
    pub(super) wait_us: u32,
    /// How long a connection will wait that joins now, nanoseconds; 0 is unknown.
    pub(super) expected_ns: u64,
}

impl Queue {
    /// The queues of a listener at a moment.
    #[must_use]
    #[inline(always)]
    pub(super) fn new(listener: &Listener, now_us: u64) -> Self {
        let no_wait = u64::from(NO_WAIT);
        let wait_us = if listener.accept_queue == 0 {
            0
        } else if listener.oldest_us == 0 {
            no_wait
        } else {
            // The clock may stand a little behind the moment at which the connection was established.
            let age = now_us.saturating_sub(listener.oldest_us);
            if age >= no_wait { no_wait - 1 } else { age }
        };
        Self {
            depth: listener.accept_queue,
            // The kernel's queue is full when it holds more than the backlog.
            capacity: listener.backlog.saturating_add(1),
            syn_queue: listener.syn_queue,
            wait_us: blurred::<{ 1 << 32 }>(low_half(wait_us)),
            expected_ns: 0,
        }
    }

    /// Whether the oldest has waited for that long.
    #[inline(always)]
    pub(super) const fn waits_for(&self, limit_us: u32) -> bool {
        self.wait_us >= limit_us && self.wait_us != NO_WAIT && self.wait_us != 0
    }

    #[inline(always)]
    pub(super) fn refuses(
        &self,
        active: u64,
        connections: u32,
        queue_depth: u32,
        queue_wait_us: u32,
    ) -> Option<Gate> {
        if reaches(active, connections) {
            return Some(Gate::Connections);
        }
        if queue_depth != UNLIMITED
            && self.depth != 0
            && self.depth as u64 * DEPTH_ONE as u64 >= self.capacity as u64 * queue_depth as u64
        {
            return Some(Gate::QueueDepth);
        }
        if queue_wait_us != UNLIMITED
            && (self.waits_for(queue_wait_us)
                || (self.expected_ns >= queue_wait_us as u64 * 1000 && self.expected_ns != 0))
        {
            return Some(Gate::QueueWait);
        }
        None
    }
}
