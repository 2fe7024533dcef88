//! Frames on the way to a neighbour, past the IP layer of the namespace, whose routing costs more than the rest.

use std::fs;
use std::io;
use std::mem::size_of;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use libc::{AF_PACKET, sockaddr_ll, socklen_t};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Nobody's address. What answers a frame by turning it round comes back to it, so that the IP layer of the
/// namespace leaves it alone at once; packet sockets get it all the same.
const FROM: [u8; 6] = [0x02, 0, 0, 0x5e, 0xed, 0x01];
const DISCARD_PORT: u16 = 9;
const TRIES: u32 = 200;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// A way to a neighbour.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: OwnedFd,
    pub(super) header: [u8; 14],
}

impl Link {
    /// To a neighbour of the namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no such neighbour.
    pub(super) fn to(neighbour: Ipv4Addr) -> io::Result<Self> {
        let (interface, address) = find(neighbour)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Without a protocol it receives nothing.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        bind(&socket, name_to_index(&socket, &interface)?)?;
        let mut header = [0; 14];
        for (place, byte) in header.iter_mut().zip(address.into_iter().chain(FROM).chain([0x08, 0x00])) {
            *place = byte;
        }
        Ok(Self { socket, header })
    }

    /// The frame of a packet that starts with its IP header.
    pub(super) fn frame(&self, packet: &[u8]) -> Vec<u8> {
        [&self.header, packet].concat()
    }
}

/// The interface and link-layer address of a neighbour.
fn find(neighbour: Ipv4Addr) -> io::Result<(String, [u8; 6])> {
    let provoke = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    provoke.connect(SocketAddr::from((neighbour, DISCARD_PORT)))?;
    for _ in 0..TRIES {
        if let Some(found) = parse(&fs::read_to_string("/proc/thread-self/net/arp")?, neighbour) {
            return Ok(found);
        }
        // It need not arrive.
        provoke.send(&[]).ok();
        sleep(BETWEEN_TRIES);
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{neighbour} does not answer ARP")))
}

/// Finds an address that is complete in the text of `/proc/net/arp`.
fn parse(table: &str, neighbour: Ipv4Addr) -> Option<(String, [u8; 6])> {
    let line = table.lines().find_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        (fields.first()?.parse() == Ok(neighbour)).then_some(fields)
    })?;
    let [_, _, _, address, _, interface] = line.as_slice() else { return None };
    let mut bytes = [0; 6];
    let mut parts = address.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    (bytes != [0; 6]).then(|| ((*interface).to_owned(), bytes))
}

fn bind(socket: impl AsFd, index: u32) -> io::Result<()> {
    let number = |value: i32| u16::try_from(value).unwrap_or(0);
    let address = sockaddr_ll {
        sll_family: number(AF_PACKET),
        sll_protocol: 0,
        sll_ifindex: i32::try_from(index).map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let size = socklen_t::try_from(size_of::<sockaddr_ll>()).map_err(io::Error::other)?;
    let fd = socket.as_fd().as_raw_fd();
    let value: *const sockaddr_ll = &raw const address;
    #[expect(unsafe_code, reason = "no safe wrapper knows this address")]
    // SAFETY: the descriptor is open, and the kernel reads `size` bytes of a struct of that size.
    let result = unsafe { libc::bind(fd, value.cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_is_found_in_the_table() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
                     10.77.0.3        0x1         0x0         00:00:00:00:00:00     *        a0\n\
                     10.77.0.2        0x1         0x2         02:0a:ff:00:00:17     *        a0\n";
        let found = parse(table, Ipv4Addr::new(10, 77, 0, 2));
        assert_eq!(found, Some(("a0".to_owned(), [0x02, 0x0a, 0xff, 0, 0, 0x17])));
        assert_eq!(parse(table, Ipv4Addr::new(10, 77, 0, 3)), None, "not known yet");
        assert_eq!(parse(table, Ipv4Addr::new(10, 77, 0, 4)), None);
    }
}
