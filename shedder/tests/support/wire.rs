//! The wire at one end of a link: frames put on it as they are, and what comes in with how far its checksum is.
#![expect(unsafe_code, reason = "packet sockets with auxiliary data have no safe wrapper at hand")]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use xtask::testbed::{End, Namespace};

use super::frames::{ACK, Ends, RST, Seen, Segment};
use super::{Net, PATIENCE, now};

const PACKET_AUXDATA: i32 = 8;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const TP_STATUS_CSUMNOTREADY: u32 = 1 << 3;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// No policy of a test covers it and nobody listens there: the kernel itself refuses.
const FENCE_PORT: u16 = 9;

/// An end of a link where frames are sent and incoming frames are captured.
#[derive(Debug)]
pub struct Tap {
    capture: OwnedFd,
    sender: OwnedFd,
    partial_sender: OwnedFd,
}

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// All of it; a tag that the kernel has taken off is back in its place.
    pub bytes: Vec<u8>,
    /// Whether the checksum is complete, not left for a device to finish.
    pub checksum_complete: bool,
}

impl Captured {
    pub fn segment(&self) -> Option<Seen> {
        Seen::read(&self.bytes)
    }
}

impl Tap {
    pub fn open(namespace: &Namespace, end: &End) -> Self {
        Self::open_for(namespace, end, false)
    }

    /// Captures what goes out too.
    pub fn open_both_ways(namespace: &Namespace, end: &End) -> Self {
        Self::open_for(namespace, end, true)
    }

    fn open_for(namespace: &Namespace, end: &End, outgoing: bool) -> Self {
        namespace
            .enter(|| -> io::Result<Self> {
                let ifindex = ifindex(&end.interface)?;
                let capture = packet_socket(ifindex, libc::ETH_P_ALL)?;
                set_option(&capture, libc::SOL_PACKET, PACKET_AUXDATA, 1)?;
                set_option(&capture, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, i32::from(!outgoing))?;
                set_option(&capture, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 32 << 20)?;
                let partial_sender = packet_socket(ifindex, 0)?;
                set_option(&partial_sender, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
                Ok(Self { capture, sender: packet_socket(ifindex, 0)?, partial_sender })
            })
            .unwrap()
            .unwrap()
    }

    /// Sends bytes as they are.
    pub fn send(&self, frame: &[u8]) {
        rustix::io::write(&self.sender, frame).unwrap();
    }

    /// Sends a segment; a partial checksum is one that the kernel knows of.
    pub fn send_segment(&self, segment: &Segment) {
        let frame = segment.frame();
        if !segment.partial {
            return self.send(&frame);
        }
        let offset = u16::try_from(segment.transport_offset()).unwrap();
        // struct virtio_net_hdr: needs checksum, no GSO.
        let mut bytes = vec![1, 0];
        for field in [0, 0, offset, 16] {
            bytes.extend(u16::to_ne_bytes(field));
        }
        bytes.extend(frame);
        rustix::io::write(&self.partial_sender, &bytes).unwrap();
    }

    /// The next incoming frame.
    pub fn receive(&self, until: Instant) -> Option<Captured> {
        loop {
            if let Some(captured) = self.receive_now() {
                return Some(captured);
            }
            let left = until.checked_duration_since(now())?;
            let mut ready = [rustix::event::PollFd::new(&self.capture, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut ready, Some(&left.try_into().unwrap())).unwrap();
        }
    }

    fn receive_now(&self) -> Option<Captured> {
        let mut bytes = vec![0_u8; 65536];
        let mut control = [0_u64; 16];
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all zero is a value of this structure of numbers and pointers.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<[u64; 16]>();
        // SAFETY: the buffers live until the call returns and their lengths are theirs.
        let len = unsafe { libc::recvmsg(self.capture.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        bytes.truncate(usize::try_from(len).ok()?);
        // SAFETY: the kernel has filled the message in.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() }.unwrap();
        assert_eq!((header.cmsg_level, header.cmsg_type), (libc::SOL_PACKET, PACKET_AUXDATA));
        // SAFETY: a control message of this type holds this structure; it may lie unaligned.
        let auxiliary = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
        if auxiliary.tp_status & TP_STATUS_VLAN_VALID != 0 {
            assert_ne!(auxiliary.tp_status & TP_STATUS_VLAN_TPID_VALID, 0);
            let mut tag = auxiliary.tp_vlan_tpid.to_be_bytes().to_vec();
            tag.extend(auxiliary.tp_vlan_tci.to_be_bytes());
            bytes.splice(12..12, tag);
        }
        Some(Captured { bytes, checksum_complete: auxiliary.tp_status & TP_STATUS_CSUMNOTREADY == 0 })
    }

    /// All that came in until the kernel at the other end has answered a segment sent now; the answer itself
    /// is left out. What came of frames sent before is among it.
    pub fn until_fence(&self, ends: Ends) -> Vec<Captured> {
        let mut captured = self.until_one_fence(ends);
        // What XDP sends leaves when its batch ends, the kernel's own answer before.
        captured.extend(self.until_one_fence(ends));
        captured
    }

    fn until_one_fence(&self, ends: Ends) -> Vec<Captured> {
        let fence = Segment::syn(ends, fence_port(), FENCE_PORT, 0x0fe9_ce00);
        let until = now() + PATIENCE;
        self.send_segment(&fence);
        let mut captured = Vec::new();
        while let Some(frame) = self.receive(until) {
            let seen = frame.segment();
            if seen.as_ref().is_some_and(|seen| seen.answers(&fence)) {
                assert_eq!(seen.unwrap().flags, RST | ACK);
                return captured;
            }
            captured.push(frame);
        }
        panic!("no answer from port {FENCE_PORT} of {} within {PATIENCE:?}", ends.destination);
    }
}

fn fence_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(1024);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The ends of what the client of a net sends to its server.
pub fn ends(net: &Net, ipv6: bool) -> Ends {
    let link = &net.link;
    Ends {
        source_mac: mac(&net.client, &link.a),
        destination_mac: mac(&net.server, &link.b),
        source: if ipv6 { link.a.ipv6.into() } else { link.a.ipv4.into() },
        destination: net.server_ip(ipv6),
    }
}

/// The hardware address of an end.
pub fn mac(namespace: &Namespace, end: &End) -> [u8; 6] {
    let output = Command::new("ip")
        .args(["-netns", namespace.name(), "-json", "link", "show", "dev", &end.interface])
        .output()
        .unwrap();
    let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let address = links[0]["address"].as_str().unwrap();
    let octets: Vec<u8> = address.split(':').map(|octet| u8::from_str_radix(octet, 16).unwrap()).collect();
    octets.try_into().unwrap()
}

/// The index of an interface of the namespace of the calling thread.
pub fn ifindex(interface: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: the name ends with NUL.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Whether the device computes the TCP checksums of what is sent through it, or the stack does before.
pub fn set_tx_checksum_offload(namespace: &Namespace, end: &End, on: bool) {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let request = || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        let mut value = [ETHTOOL_STXCSUM, u32::from(on)];
        // SAFETY: all zero is a value of this structure.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (place, byte) in request.ifr_name.iter_mut().zip(end.interface.bytes()) {
            *place = libc::c_char::from_ne_bytes([byte]);
        }
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        // SAFETY: the kernel reads the request and the two words that it points to, which live until it returns.
        match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    namespace.enter(request).unwrap().unwrap();
}

fn packet_socket(ifindex: u32, protocol: i32) -> io::Result<OwnedFd> {
    let protocol = u16::try_from(protocol).unwrap().to_be();
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zero is a value of this structure of numbers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap();
    address.sll_protocol = protocol;
    address.sll_ifindex = i32::try_from(ifindex).unwrap();
    let len = u32::try_from(size_of::<libc::sockaddr_ll>()).unwrap();
    // SAFETY: the address lives until the call returns and the length is its.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_option(socket: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = u32::try_from(size_of::<i32>()).unwrap();
    // SAFETY: the value lives until the call returns and the length is its.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A segment of each family between the ends of a net has met its neighbour before it is measured.
pub fn meet_neighbours(net: &Net) {
    for ipv6 in [false, true] {
        let address = SocketAddr::new(net.server_ip(ipv6), FENCE_PORT);
        let error = super::connect(&net.client, address, Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
