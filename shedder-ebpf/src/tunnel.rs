//! The way back through a tunnel.

use aya_ebpf::bindings::{__sk_buff, BPF_F_TUNINFO_IPV6, bpf_tunnel_key};
use aya_ebpf::helpers::generated::{bpf_skb_get_tunnel_key, bpf_skb_set_tunnel_key};

/// What the helper says where the tunnel runs over the other family.
const OTHER_FAMILY: i64 = -71; // EPROTO

/// Addresses a packet that answers one from a tunnel to the end that this one came from. A device that serves many
/// tunnels (`external`, as those of container networks are) drops what is not addressed. `false` where the answer
/// would be lost.
#[inline(always)]
pub(crate) fn turn_back(skb: *mut __sk_buff) -> bool {
    // SAFETY: all zero is a value of this structure of numbers.
    let mut key: bpf_tunnel_key = unsafe { core::mem::zeroed() };
    let len = size_of::<bpf_tunnel_key>() as u32;
    let mut flags = 0;
    // SAFETY: the helper writes that many bytes.
    let mut result = unsafe { bpf_skb_get_tunnel_key(skb, &raw mut key, len, flags) };
    if result == OTHER_FAMILY {
        flags = u64::from(BPF_F_TUNINFO_IPV6);
        // SAFETY: as above.
        result = unsafe { bpf_skb_get_tunnel_key(skb, &raw mut key, len, flags) };
    }
    if result != 0 {
        // It came through no such device.
        return true;
    }
    // Not what is left of the SYN's, but what the host's own packets have.
    (key.tunnel_ttl, key.tunnel_tos) = (0, 0);
    // SAFETY: the helper reads that many bytes. It takes the end that a packet came from for the one to send to.
    unsafe { bpf_skb_set_tunnel_key(skb, &raw mut key, len, flags) == 0 }
}
