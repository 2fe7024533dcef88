//! Two namespaces joined by a pair of virtual Ethernet interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU8, Ordering};

use super::namespace::{Namespace, ip};

/// The first of the extra source addresses of [`End::add_sources`].
const FIRST_SOURCE: u8 = 100;

/// A link between two namespaces: `10.77.x.1` and `fd77:x::1` at end `a`, `.2` and `::2` at end `b`, with an
/// `x` of its own for each pair. It goes with its namespaces.
#[derive(Debug)]
pub struct VethPair {
    /// The end in the first namespace.
    pub a: End,
    /// The end in the second namespace.
    pub b: End,
}

/// One end of a [`VethPair`].
#[derive(Debug)]
pub struct End {
    /// The interface's name.
    pub interface: String,
    /// Its IPv4 address, of a /24.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address, of a /64.
    pub ipv6: Ipv6Addr,
    namespace: String,
    subnet: u8,
}

/// Addresses that clients may connect from.
#[derive(Debug, Default)]
pub struct Sources {
    /// IPv4 addresses.
    pub ipv4: Vec<IpAddr>,
    /// IPv6 addresses.
    pub ipv6: Vec<IpAddr>,
}

impl VethPair {
    /// Joins two namespaces, with the MTU of Ethernet.
    ///
    /// # Errors
    /// With the words of `ip`.
    pub fn new(a: &Namespace, b: &Namespace) -> anyhow::Result<Self> {
        Self::with_mtu(a, b, 1500)
    }

    /// Joins two namespaces.
    ///
    /// # Errors
    /// With the words of `ip`, for example for an MTU beyond 65535.
    pub fn with_mtu(a: &Namespace, b: &Namespace, mtu_bytes: u32) -> anyhow::Result<Self> {
        static MADE: AtomicU8 = AtomicU8::new(0);
        let subnet = MADE.fetch_add(1, Ordering::Relaxed);
        let pair = Self { a: End::new(a, subnet, 'a', 1), b: End::new(b, subnet, 'b', 2) };
        let mtu = mtu_bytes.to_string();
        let (a, b) = (&pair.a, &pair.b);
        #[rustfmt::skip]
        ip(&[
            "link", "add", &a.interface, "netns", &a.namespace, "mtu", &mtu, "type", "veth",
            "peer", "name", &b.interface, "netns", &b.namespace, "mtu", &mtu,
        ])?;
        for end in [a, b] {
            end.add_address(end.ipv4.into())?;
            end.add_address(end.ipv6.into())?;
            ip(&["-netns", &end.namespace, "link", "set", &end.interface, "up"])?;
        }
        Ok(pair)
    }
}

impl End {
    fn new(namespace: &Namespace, subnet: u8, letter: char, host: u8) -> Self {
        Self {
            interface: format!("sd-{subnet}{letter}"),
            ipv4: ipv4(subnet, host),
            ipv6: ipv6(subnet, host),
            namespace: namespace.name().to_owned(),
            subnet,
        }
    }

    /// Gives the interface further addresses of both families, so that many connections a second do not run
    /// out of ports; 100 at most.
    ///
    /// # Errors
    /// With the words of `ip`, for example when this end has such addresses already.
    pub fn add_sources(&self, count: u8) -> anyhow::Result<Sources> {
        anyhow::ensure!(count <= 100, "{count} source addresses: 100 at most");
        let mut sources = Sources::default();
        for host in (FIRST_SOURCE..).take(count.into()) {
            let (ipv4, ipv6) = (ipv4(self.subnet, host).into(), ipv6(self.subnet, host).into());
            self.add_address(ipv4)?;
            self.add_address(ipv6)?;
            sources.ipv4.push(ipv4);
            sources.ipv6.push(ipv6);
        }
        Ok(sources)
    }

    /// Sends what is for `network` through a neighbour on this link.
    ///
    /// # Errors
    /// With the words of `ip`.
    pub fn add_route(&self, network: &str, through: Ipv4Addr) -> anyhow::Result<()> {
        ip(&["-netns", &self.namespace, "route", "add", network, "via", &through.to_string()])
    }

    fn add_address(&self, address: IpAddr) -> anyhow::Result<()> {
        let with_prefix = format!("{address}/{}", if address.is_ipv4() { 24 } else { 64 });
        let mut arguments =
            vec!["-netns", &self.namespace, "address", "add", &with_prefix, "dev", &self.interface];
        if address.is_ipv6() {
            // Else it cannot be used for the second that the search for duplicates takes.
            arguments.push("nodad");
        }
        ip(&arguments)
    }
}

fn ipv4(subnet: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, subnet, host)
}

fn ipv6(subnet: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, subnet.into(), 0, 0, 0, 0, 0, host.into())
}
