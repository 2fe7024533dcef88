//! The `shedder` command.
fn main() {}
