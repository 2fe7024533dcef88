//! What tests, benchmarks and the demo share: a small network of their own, a server, and a load.

pub mod testbed;
