//! The one thing that only ethtool tells: whether the device takes VLAN tags off received frames.

use std::os::fd::AsRawFd;

/// `ETHTOOL_GFLAGS`: offloads as one word. Needs no privilege.
const ETHTOOL_GFLAGS: u32 = 0x25;

/// Bit of that word: tags are taken off received frames.
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_value`
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Whether the device of that name takes VLAN tags off; `None` where it cannot be asked.
///
/// Any socket will do for the question; it decides the namespace in which the name is looked up.
pub(super) fn rx_vlan_offload(socket: &impl AsRawFd, name: &str) -> Option<bool> {
    let mut value = EthtoolValue { command: ETHTOOL_GFLAGS, data: 0 };
    let mut ifr_name: [libc::c_char; libc::IFNAMSIZ] = [0; libc::IFNAMSIZ];
    // The last place stays NUL.
    if name.is_empty() || name.len() >= ifr_name.len() {
        return None;
    }
    for (place, byte) in ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    let mut request = libc::ifreq {
        ifr_name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut value).cast() },
    };
    #[expect(unsafe_code, reason = "no safe wrapper of SIOCETHTOOL is at hand")]
    // SAFETY: the kernel reads one ifreq and reads and writes the EthtoolValue that it points to; both live
    // until the call returns.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    (answer == 0).then_some(value.data & ETH_FLAG_RXVLAN != 0)
}
