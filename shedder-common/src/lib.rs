//! What both sides of shedder share: the plain types in the maps, the names of maps and programs, and the
//! pure logic that judges a packet.
//!
//! The crate has no dependency and allocates nothing, so the same code is tested on the host and runs in the
//! kernel. Clock, packet bytes and state are arguments.
#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

// Test helpers that other crates' tests share call this crate by its name.
#[cfg(test)]
extern crate self as shedder_common;
#[cfg(test)]
extern crate std;

pub mod abi;
pub mod address;
pub mod class;
pub mod control;
pub mod counters;
pub mod fingerprint;
pub mod gate;
pub mod gcra;
pub mod judge;
pub mod level;
pub mod limits;
pub mod local_addresses;
mod opaque;
pub mod packet;
pub mod service;
