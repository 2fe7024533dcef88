//! A client's and a server's namespace, made anew for every run so that none inherits TIME_WAIT or conntrack
//! entries of another.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use xtask::testbed::{Namespace, STATELESS_NETWORK, VethPair, stateless_source};

pub(super) const PORT: u16 = 8080;
/// With 64,000 ports each, no connection waits for the end of an earlier one's TIME_WAIT.
const SOCKET_SOURCES: u8 = 16;
const STATELESS_SOURCES: u8 = 64;

/// Who connects: the pattern repeats over the sources, and so over the connections.
pub(super) const CLASSES: [&str; 3] = ["control", "interactive", "batch"];
/// Of eight connections one is control, three are interactive and four batch.
pub(super) const PATTERN: [u8; 8] = [0, 1, 2, 1, 2, 1, 2, 2];

pub(super) struct Net {
    pub(super) client: Namespace,
    pub(super) server: Namespace,
    pub(super) interface: String,
    pub(super) target: SocketAddrV4,
    /// For clients with sockets.
    pub(super) sources: Vec<IpAddr>,
    /// For the client without.
    pub(super) stateless: Vec<Ipv4Addr>,
}

impl Net {
    pub(super) fn new() -> anyhow::Result<Self> {
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        let link = VethPair::new(&client, &server)?;
        let sources = link.a.add_sources(SOCKET_SOURCES)?.ipv4;
        link.b.add_route(STATELESS_NETWORK, link.a.ipv4)?;
        for namespace in [&client, &server] {
            namespace.set_sysctl("ipv4/ip_local_port_range", "1024 65535")?;
        }
        let stateless = (0..STATELESS_SOURCES).map(|place| {
            let group = PATTERN.iter().cycle().nth(place.into()).copied().unwrap_or(0);
            stateless_source(group, place + 1)
        });
        Ok(Self {
            client,
            server,
            interface: link.b.interface,
            target: SocketAddrV4::new(link.b.ipv4, PORT),
            sources,
            stateless: stateless.collect(),
        })
    }

    /// The sources of the classes, as the configuration takes them.
    pub(super) fn source_tables(&self) -> String {
        let line = |cidr: String, class: usize| {
            let class = CLASSES.get(class).copied().unwrap_or_default();
            format!("[[source]]\ncidr = \"{cidr}\"\nclass = \"{class}\"\n\n")
        };
        let sockets = self
            .sources
            .iter()
            .enumerate()
            .map(|(place, source)| line(format!("{source}/32"), class_of(place)));
        let stateless = (0_u8..)
            .zip(CLASSES)
            .map(|(group, _)| line(format!("{}/24", stateless_source(group, 0)), group.into()));
        sockets.chain(stateless).collect()
    }
}

/// The place in [`CLASSES`] of the class of a source by its place, the same for both clients.
pub(super) fn class_of(place: usize) -> usize {
    PATTERN.iter().cycle().nth(place % PATTERN.len()).copied().unwrap_or(0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clients_repeat_the_pattern() {
        for sources in [SOCKET_SOURCES, STATELESS_SOURCES] {
            assert_eq!(usize::from(sources) % PATTERN.len(), 0);
        }
        let classes: Vec<_> = (0..16).map(class_of).collect();
        assert_eq!(classes.iter().filter(|class| **class == 0).count(), 2);
        assert_eq!(classes.iter().filter(|class| **class == 2).count(), 8);
    }
}
