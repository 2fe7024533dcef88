//! Judging on XDP, native and generic.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use aya_ebpf::helpers::generated::{bpf_xdp_adjust_tail, bpf_xdp_get_buff_len};
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use aya_log_ebpf::debug;
use shedder_common::judge::{Judgement, Outcome, judge};
use shedder_common::packet::PacketBytes;
use shedder_common::packet::parse::{Attempt, Parsed, parse};
use shedder_common::packet::reset;

use crate::environment::Kernel;
use crate::globals::LINK_HEADER_LEN;
use crate::pointer;
use crate::record;

/// Judges new connections.
#[xdp(frags)]
pub fn shed_xdp(context: XdpContext) -> u32 {
    let attempt = match parse(&Frame(&context), LINK_HEADER_LEN.load()) {
        Parsed::Other => return XDP_PASS,
        Parsed::Unparsed(reason) => {
            record::unparsed(reason);
            return XDP_PASS;
        }
        Parsed::Attempt(attempt) => attempt,
    };
    let environment = Kernel { context: context.as_ptr() };
    let Some(judgement) = judge(&environment, &attempt) else { return XDP_PASS };
    record::judgement(&judgement);
    act(&context, &attempt, &judgement)
}

/// Passes everything: what costs are measured against.
#[xdp(frags)]
pub fn pass_xdp(_context: XdpContext) -> u32 {
    XDP_PASS
}

#[inline(always)]
fn act(context: &XdpContext, attempt: &Attempt, judgement: &Judgement) -> u32 {
    match judgement.outcome {
        Outcome::Shed(_) | Outcome::ShedAgain(_) if judgement.enforce => {
            if !judgement.reset {
                return XDP_DROP;
            }
            let sent = write_reset(context, attempt).is_some();
            record::reset(judgement, sent);
            if sent { XDP_TX } else { XDP_DROP }
        }
        Outcome::FailOpen(reason) => {
            debug!(context, "port {} passed unjudged: {}", attempt.destination_port, reason as u32);
            XDP_PASS
        }
        _ => XDP_PASS,
    }
}

struct Frame<'a>(&'a XdpContext);

impl PacketBytes for Frame<'_> {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        // SAFETY: the pointer is within the frame, which `bytes_at` has checked; bytes have no alignment.
        bytes_at::<N>(self.0, offset).map(|bytes| unsafe { bytes.read() })
    }
}

/// The `N` bytes at `offset` of the frame.
#[inline(always)]
fn bytes_at<const N: usize>(context: &XdpContext, offset: usize) -> Option<*mut [u8; N]> {
    pointer::bytes_at(context.data(), context.data_end(), offset)
}

/// Turns the SYN into the RST that answers it.
#[inline(always)]
fn write_reset(context: &XdpContext, attempt: &Attempt) -> Option<()> {
    let link_header_len = LINK_HEADER_LEN.load();
    // SAFETY: the context is the program's own.
    let frame_len = unsafe { bpf_xdp_get_buff_len(context.ctx) } as u32;
    let reply_len = reset::frame_len(attempt, link_header_len, frame_len);
    let delta = reply_len as i32 - frame_len as i32;
    // SAFETY: the context is the program's own; packet pointers are taken anew below.
    if unsafe { bpf_xdp_adjust_tail(context.ctx, delta) } != 0 {
        return None;
    }
    let network_offset = attempt.network_offset as usize & 0x3f;
    if attempt.ipv6 {
        let bytes = bytes_at::<60>(context, network_offset)?.cast::<u8>();
        // SAFETY: 60 bytes from here are within the frame.
        unsafe {
            bytes.cast::<[u8; 8]>().write(reset::ipv6_start());
            bytes.add(8).cast::<[u32; 4]>().write_unaligned(attempt.destination.words);
            bytes.add(24).cast::<[u32; 4]>().write_unaligned(attempt.source.words);
            bytes.add(40).cast::<[u8; 20]>().write(reset::tcp_header(attempt));
        }
    } else {
        let bytes = bytes_at::<40>(context, network_offset)?.cast::<u8>();
        // SAFETY: 40 bytes from here are within the frame.
        unsafe {
            bytes.cast::<[u8; 20]>().write(reset::ipv4_header(attempt));
            bytes.add(20).cast::<[u8; 20]>().write(reset::tcp_header(attempt));
        }
        // What pads the frame to the shortest length on the wire is not left over from the SYN.
        if let Some(padding) = bytes_at::<6>(context, network_offset + 40) {
            // SAFETY: within the frame.
            unsafe { padding.write([0; 6]) };
        } else if let Some(padding) = bytes_at::<2>(context, network_offset + 40) {
            // SAFETY: within the frame.
            unsafe { padding.write([0; 2]) };
        }
    }
    if link_header_len != 0 {
        let macs = bytes_at::<12>(context, 0)?;
        // SAFETY: within the frame.
        unsafe { macs.write(reset::swapped_macs(macs.read())) };
    }
    Some(())
}
