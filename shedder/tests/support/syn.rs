//! Raw TCP segments, made by hand and sent from a namespace: floods of SYN, and forgeries.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use rustix::thread::{CpuSet, sched_setaffinity};
use xtask::testbed::Namespace;

use super::now;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

const PROTOCOL_TCP: u8 = 6;

/// A TCP segment without options or data.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
}

impl Segment {
    pub fn syn(source: SocketAddr, destination: SocketAddr, sequence: u32) -> Self {
        Self { source, destination, sequence, acknowledgement: 0, flags: SYN }
    }

    /// From the network header on, with valid checksums.
    pub fn packet(&self) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(20);
        tcp.extend(self.source.port().to_be_bytes());
        tcp.extend(self.destination.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledgement.to_be_bytes());
        // 20 bytes of header, flags, window, and no checksum or urgent pointer yet.
        tcp.extend([5 << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        let (source, destination) = (octets(self.source.ip()), octets(self.destination.ip()));
        let pseudo = [&source[..], &destination[..], &[0, PROTOCOL_TCP, 0, 20]].concat();
        let checksum = checksum(&[&pseudo[..], &tcp[..]].concat());
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        let mut packet = match self.source.ip() {
            // The kernel fills in id and checksum.
            IpAddr::V4(_) => vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, PROTOCOL_TCP, 0, 0],
            IpAddr::V6(_) => vec![0x60, 0, 0, 0, 0, 20, PROTOCOL_TCP, 64],
        };
        packet.extend(source);
        packet.extend(destination);
        packet.extend(tcp);
        packet
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Sends segments from a namespace, under any source address.
pub struct Sender {
    ipv4: OwnedFd,
    ipv6: OwnedFd,
}

impl Sender {
    pub fn new(namespace: &Namespace) -> Self {
        let raw = |family| socket(family, SocketType::RAW, Some(ipproto::RAW)).unwrap();
        namespace.enter(|| Self { ipv4: raw(AddressFamily::INET), ipv6: raw(AddressFamily::INET6) }).unwrap()
    }

    pub fn send(&self, segment: &Segment) {
        self.try_send(segment).unwrap();
    }

    /// Fails with EPERM where a firewall of the namespace drops it.
    pub fn try_send(&self, segment: &Segment) -> std::io::Result<()> {
        let socket = if segment.destination.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        // To a raw socket a port is a protocol number.
        let to = SocketAddr::new(segment.destination.ip(), 0);
        let packet = segment.packet();
        let sent = sendto(socket, &packet, SendFlags::empty(), &to)?;
        assert_eq!(sent, packet.len());
        Ok(())
    }
}

/// Different SYNs at an even pace. Each comes from another port or with another sequence number, so none repeats.
#[derive(Clone, Debug)]
pub struct Flood {
    /// Who asks whom, taken in turn; the ports of the sources are replaced.
    pub routes: Vec<(IpAddr, SocketAddr)>,
    /// SYNs a second; `None` is as fast as possible.
    pub per_second: Option<u32>,
    pub count: u32,
    /// Where to send from, and so, over a veth pair, where the SYNs are judged.
    pub cpu: Option<usize>,
    /// Floods with different numbers never send the same SYN.
    pub number: u16,
}

impl Flood {
    /// Sends all and tells how long it took. What the machine's noise delayed is sent at once when it is over.
    pub fn run(&self, sender: &Sender) -> Duration {
        if let Some(cpu) = self.cpu {
            let mut only = CpuSet::new();
            only.set(cpu);
            sched_setaffinity(None, &only).unwrap();
        }
        let start = now();
        for index in 0..self.count {
            if let Some(per_second) = self.per_second {
                let due = Duration::from_secs(1) * index / per_second;
                let ahead = due.saturating_sub(start.elapsed());
                if !ahead.is_zero() {
                    sleep(ahead);
                }
            }
            let (source, destination) = self.routes[index as usize % self.routes.len()];
            let port = 1024 + u16::try_from(index % 60_000).unwrap();
            let sequence = u32::from(self.number) << 22 | index;
            sender.send(&Segment::syn(SocketAddr::new(source, port), destination, sequence));
        }
        start.elapsed()
    }
}
