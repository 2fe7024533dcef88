//! The configuration file.

pub mod model;
