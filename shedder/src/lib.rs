//! The load shedder: one way from sensors to the kernel, and one way back from counters to metrics.

pub mod config;
pub mod datapath;
pub mod kernel;
pub mod net;
pub mod quota;
pub mod snapshot;
