//! Facts about the running kernel.

pub mod attachment;
