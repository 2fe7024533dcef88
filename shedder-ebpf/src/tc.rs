//! Judging on TCX and clsact ingress.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{BPF_F_PSEUDO_HDR, TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_adj_room_mode::BPF_ADJ_ROOM_NET};
use aya_ebpf::helpers::generated::{
    bpf_l4_csum_replace, bpf_redirect, bpf_skb_adjust_room, bpf_skb_change_tail, bpf_skb_load_bytes,
    bpf_skb_store_bytes, bpf_skb_vlan_pop, bpf_skb_vlan_push,
};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use aya_log_ebpf::debug;
use shedder_common::counters::Unparsed;
use shedder_common::judge::{Judgement, Outcome, judge};
use shedder_common::packet::PacketBytes;
use shedder_common::packet::checksum::Sum;
use shedder_common::packet::parse::{Attempt, ETHERNET_LEN, Parsed, parse};
use shedder_common::packet::reset;

use crate::environment::Kernel;
use crate::globals::LINK_HEADER_LEN;
use crate::pointer;
use crate::record;

/// Lets the next program decide: others on the same hook keep their say.
const NEXT: i32 = TC_ACT_UNSPEC;

const CHECKSUM_OFFSET: u32 = 16;

const VLAN_TAG_LEN: u32 = 4;

/// Judges new connections.
#[classifier]
pub fn shed_tc(context: TcContext) -> i32 {
    let attempt = match parse(&Frame(&context), LINK_HEADER_LEN.load()) {
        Parsed::Other => return NEXT,
        Parsed::Unparsed(reason) => {
            record::unparsed(reason);
            return NEXT;
        }
        Parsed::Attempt(attempt) => attempt,
    };
    if has_third_tag(&context, &attempt) {
        record::unparsed(Unparsed::VlanDepth);
        return NEXT;
    }
    let environment = Kernel { context: context.as_ptr() };
    let Some(judgement) = judge(&environment, &attempt) else { return NEXT };
    record::judgement(&judgement);
    act(&context, &attempt, &judgement)
}

/// Passes everything: what costs are measured against.
#[classifier]
pub fn pass_tc(_context: TcContext) -> i32 {
    NEXT
}

#[inline(always)]
fn act(context: &TcContext, attempt: &Attempt, judgement: &Judgement) -> i32 {
    match judgement.outcome {
        Outcome::Shed(_) | Outcome::ShedAgain(_) if judgement.enforce => {
            if !judgement.reset {
                return TC_ACT_SHOT;
            }
            let written = write_reset(context, attempt).is_some();
            record::reset(judgement, written);
            if written {
                // SAFETY: reads the context, queues the packet back to the interface that it came from.
                unsafe { bpf_redirect((*context.skb.skb).ifindex, 0) as i32 }
            } else {
                TC_ACT_SHOT
            }
        }
        Outcome::FailOpen(reason) => {
            debug!(context, "port {} passed unjudged: {}", attempt.destination_port, reason as u32);
            NEXT
        }
        _ => NEXT,
    }
}

/// The kernel has taken the outermost tag off; with it there are more than two, which XDP does not parse either.
#[inline(always)]
fn has_third_tag(context: &TcContext, attempt: &Attempt) -> bool {
    // SAFETY: reads the context.
    let outermost_taken_off = unsafe { (*context.skb.skb).vlan_present } != 0;
    outermost_taken_off && attempt.network_offset > ETHERNET_LEN + VLAN_TAG_LEN
}

struct Frame<'a>(&'a TcContext);

impl PacketBytes for Frame<'_> {
    /// Headers nearly always lie in the linear part; what does not is copied.
    #[inline(always)]
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        // SAFETY: within the linear part, which `bytes_at` has checked; bytes have no alignment.
        pointer::bytes_at::<N>(self.0.data(), self.0.data_end(), offset).map(|bytes| unsafe { bytes.read() })
    }
}

#[inline(always)]
fn load<const N: usize>(context: &TcContext, offset: u32) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the helper checks the range in the packet and writes N bytes.
    let result =
        unsafe { bpf_skb_load_bytes(context.skb.skb.cast(), offset, bytes.as_mut_ptr().cast(), N as u32) };
    (result == 0).then_some(bytes)
}

#[inline(always)]
fn store<const N: usize>(context: &TcContext, offset: u32, bytes: &[u8; N]) -> Option<()> {
    // SAFETY: the helper checks the range in the packet and reads N bytes.
    let result = unsafe { bpf_skb_store_bytes(context.skb.skb, offset, bytes.as_ptr().cast(), N as u32, 0) };
    (result == 0).then_some(())
}

/// Cuts options or extension headers out, which are not answered. The helper keeps a partial checksum in place.
#[inline(always)]
fn cut(context: &TcContext, extra: u32) -> Option<()> {
    // SAFETY: the context is the program's own; packet pointers are not kept.
    let result = unsafe { bpf_skb_adjust_room(context.skb.skb, -(extra as i32), BPF_ADJ_ROOM_NET, 0) };
    (result == 0).then_some(())
}

/// As [`cut`] where the inner of two tags stands in the frame, where the helper expects the IP header: without
/// the outer tag the kernel keeps the inner one beside the frame, and puts it back when the outer one comes.
#[inline(always)]
fn cut_behind_tag(context: &TcContext, extra: u32) -> Option<()> {
    let skb = context.skb.skb;
    // SAFETY: reads the context.
    let (present, protocol, tag) = unsafe { ((*skb).vlan_present, (*skb).vlan_proto, (*skb).vlan_tci) };
    // SAFETY: the context is the program's own; packet pointers are not kept.
    if present == 0 || unsafe { bpf_skb_vlan_pop(skb) } != 0 {
        return None;
    }
    cut(context, extra)?;
    // SAFETY: as above.
    let result = unsafe { bpf_skb_vlan_push(skb, protocol as u16, tag as u16) };
    (result == 0).then_some(())
}

/// Turns the SYN into the RST that answers it.
///
/// The SYN's checksum may be complete, or partial: then it covers the pseudo-header alone and whoever sends the
/// packet adds the rest. The program cannot tell, so the field is moved by differences that the helper applies
/// as the packet needs: first that of the pseudo-header, which counts for both; then one that leads a complete
/// checksum to the right value and that the helper leaves out for a partial one.
#[inline(always)]
fn write_reset(context: &TcContext, attempt: &Attempt) -> Option<()> {
    let skb = context.skb.skb;
    let link_header_len = LINK_HEADER_LEN.load();
    let ip_len = if attempt.ipv6 { reset::IPV6_LEN } else { reset::IPV4_LEN } as u32;
    let tcp_offset = attempt.network_offset + ip_len;
    let extra = attempt.transport_offset.checked_sub(tcp_offset)?;
    if extra != 0 {
        if link_header_len != 0 && attempt.network_offset > ETHERNET_LEN {
            cut_behind_tag(context, extra)?;
        } else {
            cut(context, extra)?;
        }
    }
    // SAFETY: as above.
    if unsafe { bpf_skb_change_tail(skb, tcp_offset + reset::TCP_LEN as u32, 0) } != 0 {
        return None;
    }
    if link_header_len != 0 {
        let macs = load::<12>(context, 0)?;
        store(context, 0, &reset::swapped_macs(macs))?;
    }
    if attempt.ipv6 {
        store(context, attempt.network_offset, &reset::ipv6_start())?;
        store(context, attempt.network_offset + 8, &attempt.destination.octets())?;
        store(context, attempt.network_offset + 24, &attempt.source.octets())?;
    } else {
        store(context, attempt.network_offset, &reset::ipv4_header(attempt))?;
    }
    let [high, low] = load::<2>(context, tcp_offset + CHECKSUM_OFFSET)?;
    let old_checksum = u16::from_be_bytes([high, low]);
    let mut header = reset::tcp_header(attempt);
    let (old_bytes, new_checksum) = ([high, low], reset::tcp_checksum(attempt));
    [header[16], header[17]] = old_bytes;
    store(context, tcp_offset, &header)?;
    let after_pseudo = Sum::new()
        .add16(!old_checksum)
        .add16(!(attempt.segment_len as u16))
        .add16(reset::TCP_LEN as u16)
        .checksum();
    let difference = Sum::new().add16(!new_checksum).add16(after_pseudo).folded();
    let field = tcp_offset + CHECKSUM_OFFSET;
    // SAFETY: the helper checks the range; lengths and sums are passed in network order.
    let (pseudo, rest) = unsafe {
        (
            bpf_l4_csum_replace(
                skb,
                field,
                u64::from((attempt.segment_len as u16).to_be()),
                u64::from((reset::TCP_LEN as u16).to_be()),
                u64::from(BPF_F_PSEUDO_HDR) | 2,
            ),
            bpf_l4_csum_replace(skb, field, 0, u64::from(difference.to_be()), 0),
        )
    };
    (pseudo == 0 && rest == 0).then_some(())
}
