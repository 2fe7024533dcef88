//! Network interfaces, and which of them the configuration means.

use std::collections::{BTreeSet, HashSet};
use std::io;

use globset::Glob;
use netlink_packet_core::Emitable;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{LinkFlags, LinkHeader, LinkLayerType};
use netlink_packet_route::route::{RouteHeader, RouteType};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::NetError;
use super::ethtool::rx_vlan_offload;
use super::netlink::{NetlinkSocket, attribute, attribute_text, attribute_u32};
use crate::config::model::InterfacePattern;

const LINK_HEADER_BYTES: usize = 16;
const ROUTE_HEADER_BYTES: usize = 12;
const NEXT_HOP_BYTES: usize = 8;

const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;

/// What is known of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// Name.
    pub name: String,
    /// Index.
    pub ifindex: u32,
    /// Administratively up.
    pub up: bool,
    /// The loopback device.
    pub loopback: bool,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Bytes of link-layer header in front of the network header; `None` where `link_type` is not one that
    /// shedder can parse.
    pub link_header_len: Option<u32>,
    /// Type of the link layer, as the kernel names it.
    pub link_type: String,
    /// Kind of virtual device, such as `veth`; `None` on hardware.
    pub kind: Option<String>,
    /// A tunnel that is told by each packet where to send it, and drops what does not say so.
    pub external_tunnel: bool,
    /// Frames with VLAN tags may concern this host: a VLAN device of this namespace stands on it or on what it is a port
    /// of, such as a bond, or that one is a bridge that tells VLANs apart.
    pub vlan_uppers: bool,
    /// Whether the device takes VLAN tags off received frames; `None` where it does not tell.
    pub rx_vlan_offload: Option<bool>,
    /// Id of an XDP program that is attached, whoever it belongs to.
    pub xdp_attached: Option<u32>,
}

impl LinkFacts {
    /// Why the interface cannot be served, where it cannot.
    #[must_use]
    pub fn unsupported(&self) -> Option<String> {
        self.link_header_len.is_none().then(|| {
            format!("{} has a link layer of type {}, whose header is not known", self.name, self.link_type)
        })
    }
}

/// Every interface of the namespace, by index.
///
/// # Errors
///
/// The kernel refuses the question.
pub fn list() -> Result<Vec<LinkFacts>, NetError> {
    let doing = "list network interfaces";
    let mut netlink = NetlinkSocket::open(NETLINK_ROUTE).map_err(NetError::while_doing(doing))?;
    let raw: Vec<RawLink> = netlink
        .dump(libc::RTM_GETLINK, &LinkHeader::default(), |links: &mut Vec<RawLink>, payload| {
            links.extend(RawLink::parse(payload));
        })
        .map_err(NetError::while_doing(doing))?;
    let mut links = facts(raw);
    // Without a socket to ask through it is unknown, which is no reason to fail.
    if let Ok(socket) = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)) {
        for link in links.iter_mut().filter(|link| !link.loopback) {
            link.rx_vlan_offload = rx_vlan_offload(&socket, &link.name);
        }
    }
    Ok(links)
}

/// The name that the interface of an index has now; `None` where there is none.
///
/// # Errors
///
/// The kernel refuses the question.
pub fn name(ifindex: u32) -> Result<Option<String>, NetError> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0));
    let name = socket.and_then(|socket| Ok(rustix::net::netdevice::index_to_name(&socket, ifindex)?));
    match name {
        Ok(name) => Ok(Some(name)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(NetError::while_doing("name a network interface")(error)),
    }
}

/// One message about one link.
#[derive(Clone, Debug)]
struct RawLink {
    facts: LinkFacts,
    /// Index of the link it stands on, where that lies in this namespace.
    lower: Option<u32>,
    /// Index of the link it is a port of.
    master: Option<u32>,
    /// A switch that takes tags off and puts them on.
    switches_vlans: bool,
}

impl RawLink {
    /// Only the attributes that are needed are looked at, so that one of a newer kernel cannot hide a link.
    fn parse(payload: &[u8]) -> Option<Self> {
        let header = LinkHeader::parse(payload).ok()?;
        let attributes = payload.get(LINK_HEADER_BYTES..)?;
        let info = attribute(attributes, libc::IFLA_LINKINFO).unwrap_or_default();
        let xdp = attribute(attributes, libc::IFLA_XDP).unwrap_or_default();
        let foreign_lower = attribute(attributes, libc::IFLA_LINK_NETNSID).is_some();
        Some(Self {
            facts: LinkFacts {
                name: attribute_text(attributes, libc::IFLA_IFNAME)?,
                ifindex: header.index,
                up: header.flags.contains(LinkFlags::Up),
                loopback: header.flags.contains(LinkFlags::Loopback),
                mtu: attribute_u32(attributes, libc::IFLA_MTU).unwrap_or(0),
                link_header_len: link_header_len(header.link_layer_type),
                link_type: header.link_layer_type.to_string(),
                external_tunnel: is_external_tunnel(info),
                kind: attribute_text(info, libc::IFLA_INFO_KIND),
                vlan_uppers: false,
                rx_vlan_offload: None,
                xdp_attached: [
                    IFLA_XDP_PROG_ID,
                    IFLA_XDP_DRV_PROG_ID,
                    IFLA_XDP_SKB_PROG_ID,
                    IFLA_XDP_HW_PROG_ID,
                ]
                .into_iter()
                .find_map(|kind| attribute_u32(xdp, kind).filter(|id| *id != 0)),
            },
            lower: attribute_u32(attributes, libc::IFLA_LINK).filter(|_| !foreign_lower),
            master: attribute_u32(attributes, libc::IFLA_MASTER),
            switches_vlans: switches_vlans(info),
        })
    }
}

/// Kinds of tunnels, with the attribute of theirs that says `external`.
const EXTERNAL: [(&str, u16); 2] = [("vxlan", 25), ("geneve", 6)];

fn is_external_tunnel(info: &[u8]) -> bool {
    let kind = attribute_text(info, libc::IFLA_INFO_KIND);
    let Some((_, number)) = EXTERNAL.iter().find(|(name, _)| kind.as_deref() == Some(*name)) else {
        return false;
    };
    let data = attribute(info, libc::IFLA_INFO_DATA).unwrap_or_default();
    // One kind gives a number, the other says it by being there.
    attribute(data, *number).is_some_and(|value| value != [0])
}

const IFLA_BR_VLAN_FILTERING: u16 = 7;

fn switches_vlans(info: &[u8]) -> bool {
    match attribute_text(info, libc::IFLA_INFO_KIND).as_deref() {
        Some("bridge") => {
            let data = attribute(info, libc::IFLA_INFO_DATA).unwrap_or_default();
            attribute(data, IFLA_BR_VLAN_FILTERING).is_some_and(|value| value != [0])
        }
        Some("openvswitch") => true,
        _ => false,
    }
}

/// Bytes in front of the network header on links of that type.
const fn link_header_len(link_type: LinkLayerType) -> Option<u32> {
    match link_type {
        LinkLayerType::Ether | LinkLayerType::Loopback => Some(14),
        LinkLayerType::None
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre
        | LinkLayerType::Ip6gre
        | LinkLayerType::Rawip
        | LinkLayerType::Ppp => Some(0),
        _ => None,
    }
}

/// Puts together what one message alone does not say.
fn facts(raw: Vec<RawLink>) -> Vec<LinkFacts> {
    let tagged = under_tags(&raw);
    let mut links: Vec<LinkFacts> = raw.into_iter().map(|link| link.facts).collect();
    for link in &mut links {
        link.vlan_uppers = tagged.contains(&link.ifindex);
    }
    links.sort_by_key(|link| link.ifindex);
    links
}

/// Indexes of the links whose frames have tags that somebody above them reads.
fn under_tags(raw: &[RawLink]) -> HashSet<u32> {
    let is = |link: &RawLink, kind| link.facts.kind.as_deref() == Some(kind);
    let mut tagged: HashSet<u32> =
        raw.iter().filter(|link| is(link, "vlan")).filter_map(|link| link.lower).collect();
    tagged.extend(raw.iter().filter(|link| link.switches_vlans).map(|link| link.facts.ifindex));
    loop {
        let mut found = HashSet::new();
        for link in raw {
            if link.master.is_some_and(|master| tagged.contains(&master)) {
                found.insert(link.facts.ifindex);
            }
            // What a macvlan gets came with its tags through the link it stands on.
            if is(link, "macvlan") && tagged.contains(&link.facts.ifindex) {
                found.extend(link.lower);
            }
        }
        let known = tagged.len();
        tagged.extend(found);
        if tagged.len() == known {
            return tagged;
        }
    }
}

/// Indexes of the interfaces that a default route of the main table leads through, IPv4 and IPv6, every next
/// hop of a multipath route.
///
/// # Errors
///
/// The kernel refuses the question.
pub fn default_route_interfaces() -> Result<BTreeSet<u32>, NetError> {
    let doing = "read the default routes";
    let mut netlink = NetlinkSocket::open(NETLINK_ROUTE).map_err(NetError::while_doing(doing))?;
    let mut interfaces = BTreeSet::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let request = RouteRequest(RouteHeader {
            address_family: family,
            table: RouteHeader::RT_TABLE_MAIN,
            ..RouteHeader::default()
        });
        let found = netlink.dump(libc::RTM_GETROUTE, &request, |interfaces: &mut BTreeSet<u32>, payload| {
            interfaces.extend(default_route(payload, family));
        });
        match found {
            Ok(found) => interfaces.extend(found),
            Err(error) if has_no_routes(&error) => {}
            Err(error) => return Err(NetError::while_doing(doing)(error)),
        }
    }
    Ok(interfaces)
}

/// A namespace without any route has no main table, a kernel without IPv6 no such family.
fn has_no_routes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
}

/// The header alone; the route message of the library would put attributes behind it.
struct RouteRequest(RouteHeader);

impl Emitable for RouteRequest {
    fn buffer_len(&self) -> usize {
        self.0.buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.0.emit(buffer);
    }
}

/// Interfaces of one route message, where it is a default route that forwards.
pub(super) fn default_route(payload: &[u8], family: AddressFamily) -> Vec<u32> {
    let Ok(header) = RouteHeader::parse(payload) else { return Vec::new() };
    let attributes = payload.get(ROUTE_HEADER_BYTES..).unwrap_or_default();
    let table = attribute_u32(attributes, libc::RTA_TABLE).unwrap_or_else(|| header.table.into());
    if header.address_family != family
        || table != u32::from(RouteHeader::RT_TABLE_MAIN)
        || header.destination_prefix_length != 0
        || header.kind != RouteType::Unicast
    {
        return Vec::new();
    }
    let mut interfaces: Vec<u32> = attribute_u32(attributes, libc::RTA_OIF).into_iter().collect();
    let mut hops = attribute(attributes, libc::RTA_MULTIPATH).unwrap_or_default();
    // struct rtnexthop: u16 length, u8 flags, u8 hops, i32 interface, attributes.
    while let Some([a, b, _, _, c, d, e, f]) = hops.first_chunk::<NEXT_HOP_BYTES>() {
        interfaces.push(u32::from_ne_bytes([*c, *d, *e, *f]));
        let length = usize::from(u16::from_ne_bytes([*a, *b])).max(NEXT_HOP_BYTES).next_multiple_of(4);
        hops = hops.get(length..).unwrap_or_default();
    }
    interfaces
}

/// What the patterns of the configuration mean right now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Interfaces to serve, by index.
    pub chosen: Vec<LinkFacts>,
    /// Patterns that no interface matches.
    pub unmatched: Vec<InterfacePattern>,
}

/// Finds the interfaces that the patterns mean. Loopback is served only where it is named.
#[must_use]
pub fn select(
    patterns: &[InterfacePattern],
    links: &[LinkFacts],
    default_routes: &BTreeSet<u32>,
) -> Selection {
    let mut indexes = BTreeSet::new();
    let mut unmatched = Vec::new();
    for pattern in patterns {
        let matches = matcher(pattern, default_routes);
        let mut found = links.iter().filter(|link| matches(link)).map(|link| link.ifindex).peekable();
        if found.peek().is_none() {
            unmatched.push(pattern.clone());
        }
        indexes.extend(found);
    }
    let mut chosen: Vec<LinkFacts> =
        links.iter().filter(|link| indexes.contains(&link.ifindex)).cloned().collect();
    chosen.sort_by_key(|link| link.ifindex);
    Selection { chosen, unmatched }
}

/// Whether a link is meant by the pattern. A glob that cannot be read means none.
fn matcher<'a>(
    pattern: &'a InterfacePattern,
    default_routes: &'a BTreeSet<u32>,
) -> Box<dyn Fn(&LinkFacts) -> bool + 'a> {
    match pattern {
        InterfacePattern::DefaultRoute => {
            Box::new(|link| !link.loopback && default_routes.contains(&link.ifindex))
        }
        InterfacePattern::Name(name) => Box::new(move |link| link.name == *name),
        InterfacePattern::Glob(glob) => match Glob::new(glob).map(|glob| glob.compile_matcher()) {
            Ok(glob) => Box::new(move |link| !link.loopback && glob.is_match(&link.name)),
            Err(_) => Box::new(|_| false),
        },
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{
        InfoBridge, InfoData, InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp, XdpAttached,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::net::sandbox::{in_namespace, ip};

    fn link(ifindex: u32, name: &str) -> LinkFacts {
        LinkFacts { name: name.into(), ifindex, loopback: name == "lo", ..LinkFacts::default() }
    }

    fn names(selection: &Selection) -> Vec<&str> {
        selection.chosen.iter().map(|link| link.name.as_str()).collect()
    }

    #[test]
    fn patterns_choose_names_globs_and_default_routes() {
        let links = [link(1, "lo"), link(2, "eth0"), link(3, "eth1"), link(4, "wlan0")];
        let routes = BTreeSet::from([4]);
        let glob = InterfacePattern::Glob("eth*".into());
        assert_eq!(names(&select(&[InterfacePattern::DefaultRoute], &links, &routes)), ["wlan0"]);
        assert_eq!(
            names(&select(&[glob.clone(), InterfacePattern::Name("eth1".into())], &links, &routes)),
            ["eth0", "eth1"]
        );
        let everything = select(&[InterfacePattern::Glob("*".into())], &links, &routes);
        assert_eq!(names(&everything), ["eth0", "eth1", "wlan0"], "loopback is chosen by name only");
        assert_eq!(names(&select(&[InterfacePattern::Name("lo".into())], &links, &routes)), ["lo"]);

        let missing = [InterfacePattern::Name("eth9".into()), InterfacePattern::DefaultRoute];
        let selection = select(&missing, &links, &BTreeSet::new());
        assert!(selection.chosen.is_empty());
        assert_eq!(selection.unmatched, missing);
        let broken = InterfacePattern::Glob("eth[".into());
        assert_eq!(select(std::slice::from_ref(&broken), &links, &routes).unmatched, [broken]);
    }

    fn message(index: u32, kind: Option<InfoKind>, attributes: Vec<LinkAttribute>) -> Vec<u8> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.attributes = attributes;
        message.attributes.push(LinkAttribute::IfName(format!("if{index}")));
        if let Some(kind) = kind {
            message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
        }
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    #[test]
    fn a_vlan_marks_the_link_it_stands_on() {
        let vlan = InfoKind::Vlan;
        let raw = [
            message(5, Some(vlan.clone()), vec![LinkAttribute::Link(2)]),
            message(2, None, vec![LinkAttribute::Mtu(9000)]),
            message(3, Some(InfoKind::Veth), vec![LinkAttribute::Link(2)]),
            message(4, None, vec![]),
            // Stands on index 4 of another namespace.
            message(6, Some(vlan), vec![LinkAttribute::Link(4), LinkAttribute::LinkNetNsId(0)]),
        ];
        let links = facts(raw.iter().map(|bytes| RawLink::parse(bytes).unwrap()).collect());
        let uppers: Vec<_> = links.iter().map(|link| (link.ifindex, link.vlan_uppers)).collect();
        assert_eq!(uppers, [(2, true), (3, false), (4, false), (5, false), (6, false)]);
        assert_eq!(links[0].mtu, 9000);
        assert_eq!(links[1].kind.as_deref(), Some("veth"));
    }

    #[test]
    fn tags_come_through_the_ports_of_who_reads_them() {
        let port_of = |master| vec![LinkAttribute::Controller(master)];
        let switch = |index, filters| {
            let data = InfoData::Bridge(vec![InfoBridge::VlanFiltering(filters)]);
            let info = vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(data)];
            message(index, None, vec![LinkAttribute::LinkInfo(info)])
        };
        let vlan = |index, lower| message(index, Some(InfoKind::Vlan), vec![LinkAttribute::Link(lower)]);
        let raw = [
            // The bond 3 is a port of the bridge 4.
            message(2, None, port_of(3)),
            message(3, Some(InfoKind::Bond), port_of(4)),
            switch(4, false),
            vlan(5, 4),
            // A bridge that tells VLANs apart needs no VLAN device.
            message(10, None, port_of(11)),
            switch(11, true),
            message(12, None, port_of(13)),
            switch(13, false),
            // A VLAN on a macvlan, which stands on 20.
            message(20, None, vec![]),
            message(21, Some(InfoKind::MacVlan), vec![LinkAttribute::Link(20)]),
            vlan(22, 21),
            // There is no such ring.
            message(30, None, port_of(31)),
            message(31, None, port_of(30)),
        ];
        let links = facts(raw.iter().map(|bytes| RawLink::parse(bytes).unwrap()).collect());
        let tagged: Vec<_> = links.iter().filter(|link| link.vlan_uppers).map(|link| link.ifindex).collect();
        assert_eq!(tagged, [2, 3, 4, 10, 11, 20, 21]);
    }

    #[test]
    fn an_attached_xdp_program_is_seen_in_every_mode() {
        let attached = |xdp| {
            let bytes = message(2, None, vec![LinkAttribute::Xdp(xdp)]);
            RawLink::parse(&bytes).unwrap().facts.xdp_attached
        };
        assert_eq!(attached(vec![LinkXdp::Attached(XdpAttached::None)]), None);
        let driver = XdpAttached::Driver;
        assert_eq!(
            attached(vec![LinkXdp::Attached(driver), LinkXdp::ProgId(7), LinkXdp::DrvProgId(7)]),
            Some(7)
        );
        // With programs in several modes there is no single id.
        let several =
            vec![LinkXdp::Attached(XdpAttached::Multiple), LinkXdp::SkbProgId(9), LinkXdp::HwProgId(8)];
        assert_eq!(attached(several), Some(9));
    }

    #[test]
    fn unknown_link_types_say_so() {
        assert_eq!(link_header_len(LinkLayerType::Infiniband), None);
        let mut facts = link(3, "ib0");
        facts.link_type = LinkLayerType::Infiniband.to_string();
        assert!(facts.unsupported().unwrap().contains("INFINIBAND"));
        facts.link_header_len = link_header_len(LinkLayerType::Sit);
        assert_eq!(facts.unsupported(), None);
    }

    proptest! {
        #[test]
        fn any_payload_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            RawLink::parse(&bytes);
            default_route(&bytes, AddressFamily::Inet);
            default_route(&bytes, AddressFamily::Inet6);
        }
    }

    fn by_name(name: &str) -> LinkFacts {
        list().unwrap().into_iter().find(|link| link.name == name).unwrap()
    }

    #[test]
    fn real_links_are_described() {
        in_namespace(|| {
            ip("link add va mtu 9000 type veth peer name vb");
            ip("link set va up");
            ip("tuntap add dev tun0 mode tun");
            ip("link add vx0 type vxlan id 5 remote 10.0.0.2 dstport 4789");
            ip("link add vx1 type vxlan external dstport 4790");
            let lo = by_name("lo");
            assert!(lo.loopback && lo.up);
            assert_eq!(lo.link_header_len, Some(14));
            let veth = by_name("va");
            assert_eq!(veth.kind.as_deref(), Some("veth"));
            assert_eq!((veth.mtu, veth.up, veth.loopback), (9000, true, false));
            assert_eq!((veth.link_header_len, veth.vlan_uppers, veth.xdp_attached), (Some(14), false, None));
            assert!(veth.rx_vlan_offload.is_some(), "veth answers ethtool");
            assert!(!by_name("vb").up);
            assert_eq!(by_name("tun0").link_header_len, Some(0));
            let external = ["va", "tun0", "vx0", "vx1"].map(|name| by_name(name).external_tunnel);
            assert_eq!(external, [false, false, false, true]);
        });
    }

    #[test]
    fn offload_of_an_unknown_device_is_unknown() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(rx_vlan_offload(&socket, "no-such-device"), None);
        assert_eq!(rx_vlan_offload(&socket, "a-name-that-is-too-long"), None);
    }

    #[test]
    fn default_routes_of_both_families_and_all_next_hops_are_found() {
        in_namespace(|| {
            assert!(default_route_interfaces().unwrap().is_empty(), "no routes at all");
            for (index, pair) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
                ip(&format!("link add {pair}0 type veth peer name {pair}1"));
                ip(&format!("link set {pair}0 up"));
                ip(&format!("link set {pair}1 up"));
                ip(&format!("addr add 10.0.{index}.1/24 dev {pair}0"));
                ip(&format!("-6 addr add fd00:{index}::1/64 dev {pair}0 nodad"));
            }
            ip("route add default nexthop via 10.0.0.2 dev a0 nexthop via 10.0.1.2 dev b0");
            ip("-6 route add default via fd00:2::2 dev c0");
            // Neither a default route of another table nor one that refuses counts.
            ip("route add default via 10.0.3.2 dev d0 table 100");
            ip("-6 route add unreachable default metric 4000 dev lo");
            ip("route add 10.9.0.0/16 via 10.0.4.2 dev e0");
            let expected: BTreeSet<u32> =
                ["a0", "b0", "c0"].into_iter().map(|name| by_name(name).ifindex).collect();
            assert_eq!(default_route_interfaces().unwrap(), expected);
            ip("-6 route add default metric 2000 nexthop via fd00:3::2 dev d0 nexthop via fd00:4::2 dev e0");
            assert_eq!(default_route_interfaces().unwrap().len(), 5);
        });
    }
}
