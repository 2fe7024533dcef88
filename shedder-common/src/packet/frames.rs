//! Frames for tests and benchmarks, and what is true of the frame that answers one. Written apart from the code
//! that they test: it shares neither its parser nor its sums.

use std::vec;
use std::vec::Vec;

/// An IPv6 extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    /// Hop-by-hop options, destination options or routing, of that many units of 8 bytes beyond the first.
    Options(u8, u8),
    /// A segment routing header with one segment: how many are left.
    Routing(u8),
    /// A fragment header: offset in units of 8 bytes, and whether more follow.
    Fragment(u16, bool),
}

/// A TCP segment and all that is around it. The default is a plain SYN over IPv4 and Ethernet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// With an Ethernet header.
    pub(crate) ethernet: bool,
    /// Ethernet destination.
    pub(crate) to_mac: [u8; 6],
    /// Types of VLAN tags, outermost first.
    pub(crate) tags: Vec<u16>,
    /// Over IPv6.
    pub(crate) ipv6: bool,
    /// Source; the first four bytes for IPv4.
    pub(crate) source: [u8; 16],
    /// Destination; the first four bytes for IPv4.
    pub(crate) destination: [u8; 16],
    /// Bytes of IPv4 options, a multiple of four.
    pub(crate) ip_options: usize,
    /// IPv4 fragment offset and flags.
    pub(crate) ipv4_fragment: u16,
    /// IPv6 extension headers.
    pub(crate) extensions: Vec<Extension>,
    /// IP protocol after the headers above.
    pub(crate) protocol: u8,
    /// TCP source port.
    pub(crate) source_port: u16,
    /// TCP destination port.
    pub(crate) destination_port: u16,
    /// TCP sequence number.
    pub(crate) sequence: u32,
    /// TCP flags.
    pub(crate) flags: u8,
    /// Bytes of TCP options, a multiple of four.
    pub(crate) tcp_options: usize,
    /// Bytes of data.
    pub(crate) payload: usize,
    /// Zeros are added to this length.
    pub(crate) padded_to: usize,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            ethernet: true,
            to_mac: [2, 0, 0, 0, 0, 1],
            tags: Vec::new(),
            ipv6: false,
            source: address([192, 0, 2, 1]),
            destination: address([198, 51, 100, 7]),
            ip_options: 0,
            ipv4_fragment: 0x4000,
            extensions: Vec::new(),
            protocol: 6,
            source_port: 40_000,
            destination_port: 80,
            sequence: 0x0102_0304,
            flags: 0x02,
            tcp_options: 0,
            payload: 0,
            padded_to: 0,
        }
    }
}

/// An IPv4 address where [`Frame`] wants one.
pub(crate) fn address([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&[a, b, c, d]);
    bytes
}

impl Frame {
    /// A plain SYN over IPv6.
    pub(crate) fn v6() -> Self {
        let mut source = [0; 16];
        source[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        let mut destination = source;
        (source[15], destination[15]) = (1, 7);
        Self { ipv6: true, source, destination, ..Self::default() }
    }

    /// Where the IP header begins.
    pub(crate) fn network_offset(&self) -> usize {
        if self.ethernet { 14 + 4 * self.tags.len() } else { 0 }
    }

    /// Bytes of the IPv6 extension headers.
    pub(crate) fn extensions_len(&self) -> usize {
        self.extensions
            .iter()
            .map(|extension| match extension {
                Extension::Options(_, units) => (usize::from(*units) + 1) * 8,
                Extension::Routing(_) => 24,
                Extension::Fragment(..) => 8,
            })
            .sum()
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.link();
        let tcp = self.tcp();
        if self.ipv6 {
            bytes.extend(self.ipv6_headers(tcp.len()));
        } else {
            bytes.extend(self.ipv4_header(tcp.len()));
        }
        bytes.extend(tcp);
        if bytes.len() < self.padded_to {
            bytes.resize(self.padded_to, 0);
        }
        bytes
    }

    fn link(&self) -> Vec<u8> {
        if !self.ethernet {
            return Vec::new();
        }
        let mut bytes = self.to_mac.to_vec();
        bytes.extend([2, 0, 0, 0, 0, 2]);
        for (number, tag) in self.tags.iter().enumerate() {
            bytes.extend(tag.to_be_bytes());
            bytes.extend([0x20, u8::try_from(number).unwrap() + 5]);
        }
        bytes.extend(if self.ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        bytes
    }

    fn ipv4_header(&self, tcp_len: usize) -> Vec<u8> {
        let header_len = 20 + self.ip_options;
        let total_len = u16::try_from(header_len + tcp_len).unwrap();
        let mut header = vec![0x40 | u8::try_from(header_len / 4).unwrap(), 0];
        header.extend(total_len.to_be_bytes());
        header.extend([0x12, 0x34]);
        header.extend(self.ipv4_fragment.to_be_bytes());
        header.extend([61, self.protocol, 0, 0]);
        header.extend(&self.source[..4]);
        header.extend(&self.destination[..4]);
        header.resize(header_len, 1);
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn ipv6_headers(&self, tcp_len: usize) -> Vec<u8> {
        let len = u16::try_from(self.extensions_len() + tcp_len).unwrap();
        let kinds: Vec<u8> = self
            .extensions
            .iter()
            .map(|extension| match extension {
                Extension::Options(kind, _) => *kind,
                Extension::Routing(_) => 43,
                Extension::Fragment(..) => 44,
            })
            .chain([self.protocol])
            .collect();
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(len.to_be_bytes());
        bytes.extend([kinds[0], 61]);
        bytes.extend(self.source);
        bytes.extend(self.destination);
        for (extension, next) in self.extensions.iter().zip(&kinds[1..]) {
            match extension {
                Extension::Options(_, units) => {
                    bytes.extend([*next, *units]);
                    bytes.extend(vec![0; 6 + usize::from(*units) * 8]);
                }
                Extension::Routing(left) => {
                    bytes.extend([*next, 2, 4, *left, 0, 0, 0, 0]);
                    bytes.extend(self.source);
                }
                Extension::Fragment(offset, more) => {
                    bytes.extend([*next, 0]);
                    bytes.extend((offset << 3 | u16::from(*more)).to_be_bytes());
                    bytes.extend([0xca, 0xfe, 0xba, 0xbe]);
                }
            }
        }
        bytes
    }

    fn tcp(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.source_port.to_be_bytes());
        tcp.extend(self.destination_port.to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend([
            u8::try_from((20 + self.tcp_options) / 4).unwrap() << 4,
            self.flags,
            0xfa,
            0xf0,
            0,
            0,
            0,
            0,
        ]);
        tcp.extend(vec![1; self.tcp_options]);
        tcp.extend((0..self.payload).map(|index| u8::try_from(index % 251).unwrap()));
        let sum = checksum(&self.with_pseudo_header(&tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp
    }

    fn with_pseudo_header(&self, tcp: &[u8]) -> Vec<u8> {
        let len = if self.ipv6 { 16 } else { 4 };
        pseudo_header(&self.source[..len], &self.destination[..len], tcp)
    }
}

fn pseudo_header(source: &[u8], destination: &[u8], tcp: &[u8]) -> Vec<u8> {
    let mut bytes = [source, destination].concat();
    bytes.extend(u32::try_from(tcp.len()).unwrap().to_be_bytes());
    bytes.extend([0, 0, 0, 6]);
    bytes.extend(tcp);
    bytes
}

/// The Internet checksum as RFC 1071 spells it: 0 over bytes that hold a right one.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        let word = u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum += word;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Asserts that `reply` is the one RST that answers a SYN. Returns where it ends; what follows is padding.
pub(crate) fn assert_reset(syn: &Frame, reply: &[u8]) -> usize {
    let syn_bytes = syn.bytes();
    let network = syn.network_offset();
    let ip_len = if syn.ipv6 { 40 } else { 20 };
    let end = network + ip_len + 20;
    assert!(reply.len() >= end, "{} bytes are no RST: {reply:02x?}", reply.len());
    if syn.ethernet {
        assert_eq!(reply[..6], syn_bytes[6..12], "goes to whoever asked");
        assert_eq!(reply[6..12], syn_bytes[..6], "comes from whom was asked");
        assert_eq!(reply[12..network], syn_bytes[12..network], "same tags");
    }
    let (ip, tcp) = (&reply[network..network + ip_len], &reply[network + ip_len..end]);
    let (source, destination) = if syn.ipv6 {
        assert_eq!(ip[0] >> 4, 6);
        assert_eq!(ip[4..8], [0, 20, 6, ip[7]]);
        assert!(ip[7] >= 32, "hop limit");
        (&ip[8..24], &ip[24..40])
    } else {
        assert_eq!(ip[0], 0x45);
        assert_eq!(ip[2..4], [0, 40]);
        assert_eq!(u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff, 0, "no fragment");
        assert!(ip[8] >= 32, "time to live");
        assert_eq!(ip[9], 6);
        assert_eq!(checksum(ip), 0, "IP checksum");
        (&ip[12..16], &ip[16..20])
    };
    assert_eq!(source, &syn.destination[..source.len()]);
    assert_eq!(destination, &syn.source[..destination.len()]);
    assert_eq!(tcp[0..2], syn.destination_port.to_be_bytes());
    assert_eq!(tcp[2..4], syn.source_port.to_be_bytes());
    assert_eq!(tcp[4..8], [0; 4], "sequence number");
    let acknowledged = syn.sequence.wrapping_add(1 + u32::try_from(syn.payload).unwrap());
    assert_eq!(tcp[8..12], acknowledged.to_be_bytes(), "acknowledgement");
    assert_eq!(tcp[12..14], [0x50, 0x14], "five words, RST and ACK");
    assert_eq!(tcp[18..20], [0; 2], "urgent pointer");
    assert_eq!(checksum(&pseudo_header(source, destination, tcp)), 0, "TCP checksum");
    end
}
