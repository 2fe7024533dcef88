//! The hot path: the programs that judge packets and count connections. Each entry point is a shell around the
//! pure logic of `shedder_common`.
//!
//! On any other target than BPF this is an empty program, so that the workspace builds as a whole.
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(core_intrinsics, asm_experimental_arch))]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        unsafe_code,
        internal_features,
        unreachable_pub,
        clippy::cast_possible_truncation,
        reason = "registers hold 64 bits whatever they mean; maps, helpers and packet bytes are raw pointers; compare-and-swap is an intrinsic here; a program exports nothing"
    )
)]

#[cfg(target_arch = "bpf")]
mod clock;
#[cfg(target_arch = "bpf")]
mod environment;
#[cfg(target_arch = "bpf")]
mod gates;
#[cfg(target_arch = "bpf")]
mod globals;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod pointer;
#[cfg(target_arch = "bpf")]
mod record;
#[cfg(target_arch = "bpf")]
mod socket;
#[cfg(target_arch = "bpf")]
mod tc;
#[cfg(target_arch = "bpf")]
mod track;
#[cfg(target_arch = "bpf")]
mod tunnel;
#[cfg(target_arch = "bpf")]
mod verdict;
#[cfg(target_arch = "bpf")]
mod word;
#[cfg(target_arch = "bpf")]
mod xdp;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier refuses a program in which it could be.
    loop {}
}

/// Several helpers are for GPL-compatible programs only.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
