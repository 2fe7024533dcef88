//! The load shedder: one way from sensors to the kernel, and one way back from counters to metrics.

pub mod config;
pub mod levels;
pub mod quota;
pub mod sensors;
pub mod snapshot;
pub mod trace;
