//! Packets whose headers do not lie in the first piece of memory, as some drivers deliver them.
#![cfg(test)]

#[path = "../../shedder-common/src/packet/frames.rs"]
#[expect(dead_code, reason = "the tests of packets need more of it")]
mod frames;
mod support;

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use frames::{Extension, Frame, address};
use support::{Daemon, Net, Setup, eventually};
use xtask::testbed::{Namespace, VethPair};

const ETHERNET_LEN: u16 = 14;
/// The kernel splits no packet that fits a page.
const PAYLOAD_LEN: usize = 6000;

#[test]
fn tc_reads_headers_that_are_not_in_the_linear_part() {
    let (client, server) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let link = VethPair::with_mtu(&client, &server, 9000).unwrap();
    let net = Net { client, server, link };
    let rest = "[[port]]\nport = 8080\nrate = \"0/s\"\naction = \"drop\"\n";
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "tc", rest });
    let v6 = Frame { source: net.link.a.ipv6.octets(), destination: net.link.b.ipv6.octets(), ..Frame::v6() };
    let v4 = Frame {
        source: address(net.link.a.ipv4.octets()),
        destination: address(net.link.b.ipv4.octets()),
        ..Frame::default()
    };
    for (sequence, plain) in (0_u32..).zip([v4, v6]) {
        let syn = Frame { destination_port: 8080, payload: PAYLOAD_LEN, sequence, ..plain };
        net.client.enter(|| send_split(&net.link.a.interface, &syn.bytes()).unwrap()).unwrap();
        eventually("the SYN is shed", || daemon.counts("8080").shed == u64::from(sequence) + 1);
    }
}

/// As many extension headers as are walked, and as long as they fit: nobody hides a SYN behind them.
#[test]
fn headers_may_be_long_and_not_in_the_linear_part() {
    const HOP_BY_HOP: u8 = 0;
    const DESTINATION: u8 = 60;
    let (client, server) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let link = VethPair::with_mtu(&client, &server, 9000).unwrap();
    let net = Net { client, server, link };
    let rest = "[[port]]\nport = 8080\nrate = \"0/s\"\naction = \"drop\"\n";
    for via in ["tc", "native"] {
        let daemon = Daemon::start(&net, &Setup { mode: "enforce", via, rest });
        // In units of 8 bytes. (A veth gives an XDP program some 3500 bytes in the first piece.)
        let chains: [&[u8]; 5] = [&[10], &[24], &[40], &[255], &[100, 100, 30]];
        for (sequence, units) in (0_u32..).zip(chains) {
            let mut extensions = vec![Extension::Options(HOP_BY_HOP, 0)];
            extensions.extend(units.iter().map(|units| Extension::Options(DESTINATION, *units)));
            let syn = Frame {
                source: net.link.a.ipv6.octets(),
                destination: net.link.b.ipv6.octets(),
                destination_port: 8080,
                payload: PAYLOAD_LEN,
                sequence,
                extensions,
                ..Frame::v6()
            };
            net.client.enter(|| send_split(&net.link.a.interface, &syn.bytes()).unwrap()).unwrap();
            let shed = u64::from(sequence) + 1;
            eventually(&format!("{via}: {units:?} are shed"), || daemon.counts("8080").shed == shed);
        }
    }
}

/// Sends a frame of which the receiver gets the Ethernet header alone in the first piece.
#[expect(unsafe_code, reason = "packet sockets have no safe wrapper here")]
fn send_split(interface: &str, frame: &[u8]) -> io::Result<()> {
    const PACKET_VNET_HDR: i32 = 15;
    // SAFETY: no pointer is passed, and the descriptor is checked and nobody else's.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let one = 1_i32;
    // SAFETY: the option is an int, as the length says.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_VNET_HDR,
            (&raw const one).cast(),
            u32::try_from(size_of_val(&one)).unwrap(),
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: the name ends with a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: all zero is a valid value.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = u16::try_from(libc::AF_PACKET).unwrap();
    to.sll_ifindex = i32::try_from(index).unwrap();
    to.sll_protocol = u16::from_ne_bytes([frame[12], frame[13]]);
    // virtio_net_hdr: flags, kind of offload, length of the first piece, and three lengths of no offload.
    let mut message = vec![0; 10];
    message[2..4].copy_from_slice(&ETHERNET_LEN.to_le_bytes());
    message.extend(frame);
    // SAFETY: both pointers are to live values of the lengths that follow them.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            message.as_ptr().cast(),
            message.len(),
            0,
            (&raw const to).cast(),
            u32::try_from(size_of_val(&to)).unwrap(),
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
