//! Frames made and read byte by byte, with arithmetic of their own: nothing here is the product's.

use std::net::IpAddr;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;
pub const ECE_CWR: u8 = 0xc0;

pub const VLAN: u16 = 0x8100;
pub const QINQ: u16 = 0x88a8;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// The two ends of a segment that is made.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub source_mac: [u8; 6],
    pub destination_mac: [u8; 6],
    pub source: IpAddr,
    pub destination: IpAddr,
}

/// A TCP segment to be made: a plain SYN unless told otherwise.
#[derive(Clone, Debug)]
pub struct Segment {
    pub ends: Ends,
    /// EtherType and tag control information, outermost first.
    pub tags: Vec<(u16, u16)>,
    pub source_port: u16,
    pub destination_port: u16,
    pub sequence: u32,
    pub flags: u8,
    pub tcp_options: Vec<u8>,
    pub payload: Vec<u8>,
    pub ip_options: Vec<u8>,
    /// Number of each and its bytes but the first, which names the next; IPv6.
    pub extensions: Vec<(u8, Vec<u8>)>,
    pub dont_fragment: bool,
    /// Flags and offset of an IPv4 fragment, besides DF.
    pub fragment: u16,
    /// Filled up to the 60 bytes of the wire, with bytes that are not zero.
    pub padded: bool,
    /// The checksum covers the pseudo-header alone, as where the device completes it.
    pub partial: bool,
}

impl Segment {
    pub fn syn(ends: Ends, source_port: u16, destination_port: u16, sequence: u32) -> Self {
        Self {
            ends,
            tags: Vec::new(),
            source_port,
            destination_port,
            sequence,
            flags: SYN,
            tcp_options: Vec::new(),
            payload: Vec::new(),
            ip_options: Vec::new(),
            extensions: Vec::new(),
            dont_fragment: true,
            fragment: 0,
            padded: false,
            partial: false,
        }
    }

    /// Where TCP begins in the frame.
    pub fn transport_offset(&self) -> usize {
        let ip = if self.ends.source.is_ipv4() {
            20 + self.ip_options.len()
        } else {
            40 + self.extensions.iter().map(|(_, bytes)| 1 + bytes.len()).sum::<usize>()
        };
        14 + 4 * self.tags.len() + ip
    }

    /// The bytes on the wire.
    pub fn frame(&self) -> Vec<u8> {
        let tcp = self.tcp();
        let ip = match (self.ends.source, self.ends.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.ipv4(source.octets(), destination.octets(), &tcp)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.ipv6(source.octets(), destination.octets(), &tcp)
            }
            _ => panic!("both ends are of one family"),
        };
        let mut frame = [self.ends.destination_mac, self.ends.source_mac].concat();
        for (ethertype, tag) in &self.tags {
            frame.extend(ethertype.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        frame.extend(if self.ends.source.is_ipv4() { IPV4 } else { IPV6 }.to_be_bytes());
        frame.extend(ip);
        if self.padded && frame.len() < 60 {
            frame.resize(60, 0xee);
        }
        frame
    }

    fn tcp(&self) -> Vec<u8> {
        assert!(self.tcp_options.len().is_multiple_of(4));
        let header_len = 20 + self.tcp_options.len();
        let mut tcp = Vec::new();
        tcp.extend(self.source_port.to_be_bytes());
        tcp.extend(self.destination_port.to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(0_u32.to_be_bytes());
        tcp.push(u8::try_from(header_len / 4).unwrap() << 4);
        tcp.push(self.flags);
        tcp.extend(64240_u16.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.tcp_options);
        tcp.extend(&self.payload);
        let pseudo = pseudo_header_sum(self.ends.source, self.ends.destination, tcp.len());
        let field = if self.partial { fold(pseudo) } else { !fold(pseudo + sum(&tcp)) };
        tcp[16..18].copy_from_slice(&field.to_be_bytes());
        tcp
    }

    fn ipv4(&self, source: [u8; 4], destination: [u8; 4], tcp: &[u8]) -> Vec<u8> {
        assert!(self.ip_options.len().is_multiple_of(4));
        let header_len = 20 + self.ip_options.len();
        let total = u16::try_from(header_len + tcp.len()).unwrap();
        let fragment = self.fragment | if self.dont_fragment { 0x4000 } else { 0 };
        let mut ip = vec![0x40 | u8::try_from(header_len / 4).unwrap(), 0];
        ip.extend(total.to_be_bytes());
        ip.extend(0x1234_u16.to_be_bytes());
        ip.extend(fragment.to_be_bytes());
        ip.extend([64, 6, 0, 0]);
        ip.extend(source);
        ip.extend(destination);
        ip.extend(&self.ip_options);
        let checksum = !fold(sum(&ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        ip.extend(tcp);
        ip
    }

    fn ipv6(&self, source: [u8; 16], destination: [u8; 16], tcp: &[u8]) -> Vec<u8> {
        let mut rest = Vec::new();
        let mut following = self.extensions.iter().map(|(number, _)| *number).skip(1).chain([6]);
        for (_, bytes) in &self.extensions {
            assert!((1 + bytes.len()).is_multiple_of(8));
            rest.push(following.next().unwrap());
            rest.extend(bytes);
        }
        rest.extend(tcp);
        let first = self.extensions.first().map_or(6, |(number, _)| *number);
        let mut ip = vec![0x60, 0, 0, 0];
        ip.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
        ip.extend([first, 64]);
        ip.extend(source);
        ip.extend(destination);
        ip.extend(rest);
        ip
    }
}

/// What a captured frame with a TCP segment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub macs: [u8; 12],
    pub tags: Vec<(u16, u16)>,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    /// Bytes of IPv4 options or IPv6 extension headers; the latter are not read further.
    pub ip_options_len: usize,
    pub tcp_options_len: usize,
    pub payload_len: usize,
    /// Whether the IPv4 header sums up; true for IPv6, which has no checksum.
    pub ip_checksum_valid: bool,
    /// Whether pseudo-header and segment sum up.
    pub tcp_checksum_valid: bool,
    /// Whether the checksum is that of the pseudo-header alone, for the sender to complete.
    pub tcp_checksum_partial: bool,
}

impl Seen {
    /// Reads a frame; `None` where it is no TCP.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let macs = *frame.first_chunk::<12>()?;
        let mut tags = Vec::new();
        let mut offset = 12;
        let ethertype = loop {
            let ethertype = u16_at(frame, offset)?;
            offset += 2;
            if ethertype != VLAN && ethertype != QINQ {
                break ethertype;
            }
            tags.push((ethertype, u16_at(frame, offset)?));
            offset += 2;
        };
        let ip = frame.get(offset..)?;
        let (source, destination, header_len, total, protocol): (IpAddr, IpAddr, _, _, _) = match ethertype {
            IPV4 => {
                let header_len = usize::from(ip.first()? & 15) * 4;
                (
                    (<[u8; 4]>::try_from(ip.get(12..16)?).ok()?).into(),
                    (<[u8; 4]>::try_from(ip.get(16..20)?).ok()?).into(),
                    header_len,
                    usize::from(u16_at(ip, 2)?),
                    *ip.get(9)?,
                )
            }
            IPV6 => (
                (<[u8; 16]>::try_from(ip.get(8..24)?).ok()?).into(),
                (<[u8; 16]>::try_from(ip.get(24..40)?).ok()?).into(),
                40,
                40 + usize::from(u16_at(ip, 4)?),
                *ip.get(6)?,
            ),
            _ => return None,
        };
        if protocol != 6 {
            return None;
        }
        let tcp = ip.get(header_len..total)?;
        let tcp_header_len = usize::from(tcp.get(12)? >> 4) * 4;
        let pseudo = pseudo_header_sum(source, destination, tcp.len());
        Some(Self {
            macs,
            tags,
            source,
            destination,
            source_port: u16_at(tcp, 0)?,
            destination_port: u16_at(tcp, 2)?,
            sequence: u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?),
            acknowledgement: u32::from_be_bytes(tcp.get(8..12)?.try_into().ok()?),
            flags: *tcp.get(13)?,
            window: u16_at(tcp, 14)?,
            urgent: u16_at(tcp, 18)?,
            ip_options_len: header_len.checked_sub(if ethertype == IPV4 { 20 } else { 40 })?,
            tcp_options_len: tcp_header_len.checked_sub(20)?,
            payload_len: tcp.len().checked_sub(tcp_header_len)?,
            ip_checksum_valid: ethertype == IPV6 || fold(sum(ip.get(..header_len)?)) == 0xffff,
            tcp_checksum_valid: fold(pseudo + sum(tcp)) == 0xffff,
            tcp_checksum_partial: u16_at(tcp, 16)? == fold(pseudo),
        })
    }

    /// Whether it is the answer to a segment.
    pub fn answers(&self, segment: &Segment) -> bool {
        (self.source, self.destination) == (segment.ends.destination, segment.ends.source)
            && (self.source_port, self.destination_port) == (segment.destination_port, segment.source_port)
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn pseudo_header_sum(source: IpAddr, destination: IpAddr, len: usize) -> u64 {
    let address = |address| match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    };
    address(source) + address(destination) + 6 + len as u64
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}
