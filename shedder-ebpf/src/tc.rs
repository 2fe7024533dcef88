//! Judging on TCX and clsact ingress.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_PSEUDO_HDR, TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_adj_room_mode::BPF_ADJ_ROOM_NET,
};
use aya_ebpf::helpers::generated::{
    bpf_l4_csum_replace, bpf_redirect, bpf_skb_adjust_room, bpf_skb_change_tail, bpf_skb_load_bytes,
    bpf_skb_pull_data, bpf_skb_store_bytes, bpf_skb_vlan_pop, bpf_skb_vlan_push,
};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use shedder_common::counters::Unparsed;
use shedder_common::packet::checksum::Sum;
use shedder_common::packet::parse::{
    Attempt, ETHERNET_LEN, Glance, MAX_WALKED_LEN, Parsed, VLAN_TAG_LEN, parse, parse_plain,
};
use shedder_common::packet::{IPV4_LEN, IPV6_LEN, PacketBytes, TCP_LEN, Window as _, reset};

use crate::globals::LINK_HEADER_LEN;
use crate::pointer::Bytes;
use crate::record;
use crate::tunnel;
use crate::verdict::{self, Action, GROUP, LOOPBACK, SOURCE_MAC_AT};

/// Lets the next program decide: others on the same hook keep their say.
const NEXT: i32 = TC_ACT_UNSPEC;

const CHECKSUM_OFFSET: u32 = 16;

/// Bytes of a packet that are made readable where its headers are not: enough for nearly all.
const PULLED_LEN: u32 = 256;

/// What [`tc_walk`] says of a packet that is no attempt, and of one that is; the rest is an [`Unparsed`] more than
/// these.
const OTHER: u64 = 0;
const ATTEMPT: u64 = 1;
const UNPARSED: u64 = 2;

/// Judges new connections.
#[classifier]
pub fn shed_tc(context: TcContext) -> i32 {
    let mut place = MaybeUninit::uninit();
    match parse_plain(&Frame(&context), LINK_HEADER_LEN.load(), &mut place) {
        Glance::Attempt => {}
        Glance::Other => return NEXT,
        Glance::Unclear => {
            if tc_parse(context.skb.skb, place.write(Attempt::default())) == 0 {
                return NEXT;
            }
        }
    }
    // SAFETY: written in either way that leads here.
    let attempt = unsafe { place.assume_init_mut() };
    let verdict = verdict::of(&context, attempt);
    match verdict.action {
        Action::Pass => return NEXT,
        Action::Drop => return TC_ACT_SHOT,
        Action::Reset if !may_answer(&context, attempt) => return TC_ACT_SHOT,
        Action::Reset => {}
    }
    let written = tc_reset(context.skb.skb, attempt) != 0;
    record::reset(verdict.policy, verdict.class, written);
    if !written {
        return TC_ACT_SHOT;
    }
    // SAFETY: reads the context, queues the packet back to the interface that it came from.
    unsafe { bpf_redirect((*context.skb.skb).ifindex, 0) as i32 }
}

/// Passes everything: what costs are measured against.
#[classifier]
pub fn pass_tc(_context: TcContext) -> i32 {
    NEXT
}

/// [`parse`]: 1 where it found an attempt, and 0 where there is none, which is counted. Headers that do not lie
/// in the readable part of the packet are brought there.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn tc_parse(skb: *mut __sk_buff, attempt: *mut Attempt) -> u64 {
    // SAFETY: whoever calls passes an attempt of its own.
    let Some(attempt) = (unsafe { attempt.as_mut() }) else { return 0 };
    let context = TcContext::new(skb);
    pull(&context, PULLED_LEN);
    let mut found = tc_walk(skb, attempt);
    if found >= UNPARSED && pull(&context, MAX_WALKED_LEN) {
        found = tc_walk(skb, attempt);
    }
    if found == ATTEMPT && has_third_tag(&context, attempt) {
        found = UNPARSED + Unparsed::VlanDepth as u64;
    }
    if let Some(reason) = Unparsed::from_index(found.wrapping_sub(UNPARSED) as u8) {
        record::unparsed(reason);
    }
    u64::from(found == ATTEMPT)
}

/// [`parse`] of what is readable. A function by itself, so that the verifier walks it once and not for each call.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn tc_walk(skb: *mut __sk_buff, attempt: *mut Attempt) -> u64 {
    // SAFETY: whoever calls passes an attempt of its own.
    let Some(attempt) = (unsafe { attempt.as_mut() }) else { return OTHER };
    match parse(&Frame(&TcContext::new(skb)), LINK_HEADER_LEN.load()) {
        Parsed::Attempt(found) => {
            *attempt = found;
            ATTEMPT
        }
        Parsed::Unparsed(reason) => UNPARSED + reason as u64,
        Parsed::Other => OTHER,
    }
}

/// Makes the first so many bytes of a packet readable, or all. `false` where nothing more can be read than before.
#[inline(always)]
fn pull(context: &TcContext, wanted: u32) -> bool {
    let readable_len = context.data_end() - context.data();
    let len = context.len();
    let wanted = if len < wanted { len } else { wanted };
    // SAFETY: the context is the program's own; packet pointers are not kept.
    readable_len < wanted as usize && unsafe { bpf_skb_pull_data(context.skb.skb, wanted) } == 0
}

/// Whether the answer would go to whoever asked.
#[inline(always)]
fn may_answer(context: &TcContext, attempt: &Attempt) -> bool {
    let group_mac = LINK_HEADER_LEN.load() != 0
        && Frame(context).window::<12>(0).is_none_or(|macs| macs.byte::<SOURCE_MAC_AT>() & GROUP != 0);
    // SAFETY: reads the context.
    reset::may_answer(attempt, group_mac, || unsafe { (*context.skb.skb).ifindex } == LOOPBACK)
}

/// [`write_reset`]: 1 where the RST is written and finds its way back.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn tc_reset(context: *mut __sk_buff, attempt: *mut Attempt) -> u64 {
    // SAFETY: whoever calls passes an attempt of its own.
    let Some(attempt) = (unsafe { attempt.as_mut() }) else { return 0 };
    u64::from(write_reset(&TcContext::new(context), attempt).is_some() && tunnel::turn_back(context))
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
    type Window<const N: usize> = Bytes<N>;

    #[inline(always)]
    fn window<const N: usize>(&self, offset: usize) -> Option<Bytes<N>> {
        Bytes::at(self.0.data(), self.0.data_end(), offset)
    }

    #[inline(always)]
    fn holds(&self, len: usize) -> bool {
        self.0.len() as usize >= len
    }
}

/// Words of the packet in memory order.
#[inline(always)]
fn load<const N: usize>(context: &TcContext, offset: u32) -> Option<[u32; N]> {
    let mut words = [0_u32; N];
    let len = size_of_val(&words) as u32;
    // SAFETY: the helper checks the range in the packet and writes that many bytes.
    let result =
        unsafe { bpf_skb_load_bytes(context.skb.skb.cast(), offset, words.as_mut_ptr().cast(), len) };
    (result == 0).then_some(words)
}

#[inline(always)]
fn store<const N: usize>(context: &TcContext, offset: u32, words: &[u32; N]) -> Option<()> {
    let len = size_of_val(words) as u32;
    // SAFETY: the helper checks the range in the packet and reads that many bytes.
    let result = unsafe { bpf_skb_store_bytes(context.skb.skb, offset, words.as_ptr().cast(), len, 0) };
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
    let ip_len = if attempt.ipv6 { IPV6_LEN } else { IPV4_LEN };
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
    if unsafe { bpf_skb_change_tail(skb, tcp_offset + TCP_LEN, 0) } != 0 {
        return None;
    }
    if link_header_len != 0 {
        let macs = load::<3>(context, 0)?;
        store(context, 0, &reset::swapped_macs(macs))?;
    }
    if attempt.ipv6 {
        store(context, attempt.network_offset, &reset::ipv6_header(attempt))?;
    } else {
        store(context, attempt.network_offset, &reset::ipv4_header(attempt))?;
    }
    let [old] = load::<1>(context, tcp_offset + CHECKSUM_OFFSET)?;
    let mut header = reset::tcp_header(attempt);
    let new_checksum = reset::checksum_of(&header);
    let [high, low, ..] = old.to_ne_bytes();
    let old_checksum = u16::from_be_bytes([high, low]);
    header[4] = u32::from_ne_bytes([high, low, 0, 0]);
    store(context, tcp_offset, &header)?;
    let after_pseudo =
        Sum::new().add16(!old_checksum).add16(!(attempt.segment_len as u16)).add16(TCP_LEN as u16).checksum();
    let difference = Sum::new().add16(!new_checksum).add16(after_pseudo).folded();
    let field = tcp_offset + CHECKSUM_OFFSET;
    // SAFETY: the helper checks the range; lengths and sums are passed in network order.
    let (pseudo, rest) = unsafe {
        (
            bpf_l4_csum_replace(
                skb,
                field,
                u64::from((attempt.segment_len as u16).to_be()),
                u64::from((TCP_LEN as u16).to_be()),
                u64::from(BPF_F_PSEUDO_HDR) | 2,
            ),
            bpf_l4_csum_replace(skb, field, 0, u64::from(difference.to_be()), 0),
        )
    };
    (pseudo == 0 && rest == 0).then_some(())
}
