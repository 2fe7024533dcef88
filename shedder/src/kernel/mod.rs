//! What the running kernel offers, and what shedder makes of it.

pub mod attachment;
pub mod btf;
pub mod doctor;
pub mod offsets;
pub mod support;
