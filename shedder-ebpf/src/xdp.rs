//! Judging on XDP, native and generic.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::{bpf_xdp_adjust_tail, bpf_xdp_get_buff_len};
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use shedder_common::packet::parse::{Attempt, Glance, parse, parse_plain};
use shedder_common::packet::{PacketBytes, Window as _, reset};

use crate::globals::LINK_HEADER_LEN;
use crate::pointer::Bytes;
use crate::record;
use crate::verdict::{self, Action, GROUP, LOOPBACK, SOURCE_MAC_AT};

/// Drivers put at least that much of a frame into its first piece.
const SHORTEST_FIRST_PIECE: u32 = 256;

/// Judges new connections.
#[xdp(frags)]
pub fn shed_xdp(context: XdpContext) -> u32 {
    let mut place = MaybeUninit::uninit();
    match parse_plain(&Frame(&context), LINK_HEADER_LEN.load(), &mut place) {
        Glance::Attempt => {}
        Glance::Other => return XDP_PASS,
        Glance::Unclear => {
            if xdp_parse(context.ctx, place.write(Attempt::default())) == 0 {
                return XDP_PASS;
            }
        }
    }
    // SAFETY: written in either way that leads here.
    let attempt = unsafe { place.assume_init_mut() };
    let verdict = verdict::of(&context, attempt);
    match verdict.action {
        Action::Pass => return XDP_PASS,
        Action::Drop => return XDP_DROP,
        Action::Reset if !may_answer(&context, attempt) => return XDP_DROP,
        Action::Reset => {}
    }
    let sent = write_reset(&context, attempt).is_some();
    record::reset(verdict.policy, verdict.class, sent);
    if sent { XDP_TX } else { XDP_DROP }
}

/// Passes everything: what costs are measured against.
#[xdp(frags)]
pub fn pass_xdp(_context: XdpContext) -> u32 {
    XDP_PASS
}

/// [`parse`]: 1 where it found an attempt, and 0 where there is none, which is counted.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn xdp_parse(context: *mut xdp_md, attempt: *mut Attempt) -> u64 {
    // SAFETY: whoever calls passes an attempt of its own.
    let Some(attempt) = (unsafe { attempt.as_mut() }) else { return 0 };
    let context = XdpContext::new(context);
    u64::from(verdict::unwrap(parse(&Frame(&context), LINK_HEADER_LEN.load()), attempt))
}

struct Frame<'a>(&'a XdpContext);

impl PacketBytes for Frame<'_> {
    type Window<const N: usize> = Bytes<N>;

    #[inline(always)]
    fn window<const N: usize>(&self, offset: usize) -> Option<Bytes<N>> {
        Bytes::at(self.0.data(), self.0.data_end(), offset)
    }

    #[inline(always)]
    fn holds(&self, len: usize) -> bool {
        // SAFETY: the context is the program's own.
        self.0.data_end() - self.0.data() >= len || unsafe { bpf_xdp_get_buff_len(self.0.ctx) } >= len as u64
    }
}

/// Length of the whole frame, from whose end is cut what is cut. A call for short frames would cost as much as half the
/// answer.
#[inline(always)]
fn frame_len(context: &XdpContext) -> u32 {
    let readable_len = (context.data_end() - context.data()) as u32;
    if readable_len < SHORTEST_FIRST_PIECE {
        readable_len
    } else {
        // SAFETY: the context is the program's own.
        unsafe { bpf_xdp_get_buff_len(context.ctx) as u32 }
    }
}

/// Whether the answer would go to whoever asked.
#[inline(always)]
fn may_answer(context: &XdpContext, attempt: &Attempt) -> bool {
    let group_mac = LINK_HEADER_LEN.load() != 0
        && Frame(context).window::<12>(0).is_none_or(|macs| macs.byte::<SOURCE_MAC_AT>() & GROUP != 0);
    // SAFETY: reads the context.
    reset::may_answer(attempt, group_mac, || unsafe { (*context.ctx).ingress_ifindex } == LOOPBACK)
}

/// Turns the SYN into the RST that answers it.
#[inline(always)]
fn write_reset(context: &XdpContext, attempt: &Attempt) -> Option<()> {
    let link_header_len = LINK_HEADER_LEN.load();
    let frame_len = frame_len(context);
    let reply_len = reset::frame_len(attempt, link_header_len, frame_len);
    let delta = reply_len as i32 - frame_len as i32;
    // SAFETY: the context is the program's own; packet pointers are taken anew below.
    if unsafe { bpf_xdp_adjust_tail(context.ctx, delta) } != 0 {
        return None;
    }
    let frame = Frame(context);
    let network_offset = attempt.network_offset as usize & 0x1f;
    if attempt.ipv6 {
        let bytes = frame.window::<60>(network_offset)?;
        bytes.write(0, &reset::ipv6_header(attempt));
        bytes.write(40, &reset::tcp_header(attempt));
    } else {
        let bytes = frame.window::<40>(network_offset)?;
        bytes.write(0, &reset::ipv4_header(attempt));
        bytes.write(20, &reset::tcp_header(attempt));
        // What pads the frame to the shortest length on the wire is not left over from the SYN.
        if let Some(padding) = frame.window::<6>(network_offset + 40) {
            padding.write(0, &[0]);
            padding.write(2, &[0]);
        } else if let Some(padding) = frame.window::<2>(network_offset + 40) {
            // SAFETY: within the frame.
            unsafe { padding.pointer().write([0; 2]) };
        }
    }
    if link_header_len != 0 {
        let link = frame.window::<12>(0)?;
        link.write(0, &reset::swapped_macs([link.word::<0>(), link.word::<4>(), link.word::<8>()]));
    }
    Some(())
}
