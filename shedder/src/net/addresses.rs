//! The addresses of this host.

use netlink_packet_core::Emitable;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressHeader;
use netlink_sys::protocols::NETLINK_ROUTE;
use shedder_common::address::Address;

use super::NetError;
use super::netlink::{NetlinkSocket, attribute_address, common};

const ADDRESS_HEADER_BYTES: usize = 8;

/// Every unicast address of every interface of the namespace, both families, link-local ones too; sorted by
/// their bytes, each once.
///
/// # Errors
///
/// The kernel refuses the question.
pub fn local() -> Result<Vec<Address>, NetError> {
    let doing = "list the addresses of this host";
    let mut netlink = NetlinkSocket::open(NETLINK_ROUTE).map_err(NetError::while_doing(doing))?;
    let mut addresses = netlink
        .dump(libc::RTM_GETADDR, &AllFamilies, |addresses: &mut Vec<Address>, payload| {
            addresses.extend(own_address(payload));
        })
        .map_err(NetError::while_doing(doing))?;
    addresses.sort_by_key(Address::octets);
    addresses.dedup();
    Ok(addresses)
}

/// A header that asks for both families.
struct AllFamilies;

impl Emitable for AllFamilies {
    fn buffer_len(&self) -> usize {
        ADDRESS_HEADER_BYTES
    }

    fn emit(&self, buffer: &mut [u8]) {
        buffer.fill(0);
    }
}

/// The host's side of one address message. On a point-to-point link `IFA_ADDRESS` is the peer.
fn own_address(payload: &[u8]) -> Option<Address> {
    let header = AddressHeader::parse(payload).ok()?;
    if !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6) {
        return None;
    }
    let attributes = payload.get(ADDRESS_HEADER_BYTES..)?;
    attribute_address(attributes, libc::IFA_LOCAL)
        .or_else(|| attribute_address(attributes, libc::IFA_ADDRESS))
        .map(common)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::net::sandbox::{in_namespace, ip};
    use proptest::prelude::*;

    fn v6(text: &str) -> Address {
        Address::from_v6(text.parse::<Ipv6Addr>().unwrap().octets())
    }

    #[test]
    fn addresses_of_both_families_and_the_own_end_of_a_link_are_listed() {
        in_namespace(|| {
            assert_eq!(local().unwrap(), [v6("::1"), Address::from_v4([127, 0, 0, 1])]);
            ip("link add va type veth peer name vb");
            ip("link set va up");
            ip("link set vb up");
            ip("addr add 10.1.0.1 peer 10.1.0.2 dev va");
            ip("addr add 10.1.0.1/24 dev vb");
            ip("-6 addr add fd00::1 peer fd00::2 dev va nodad");
            ip("-6 addr add fd00:5::1/64 dev vb nodad");
            ip("-6 addr add fe80::7/64 dev va nodad");
            let found = local().unwrap();
            for own in [Address::from_v4([10, 1, 0, 1]), v6("fd00::1"), v6("fd00:5::1"), v6("fe80::7")] {
                assert_eq!(found.iter().filter(|address| **address == own).count(), 1, "{own:?}");
            }
            assert!(!found.contains(&Address::from_v4([10, 1, 0, 2])), "the peer is not the host");
            assert!(!found.contains(&v6("fd00::2")), "the peer is not the host");
            ip("-6 addr del fd00:5::1/64 dev vb");
            assert!(!local().unwrap().contains(&v6("fd00:5::1")));
        });
    }

    proptest! {
        #[test]
        fn any_payload_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            own_address(&bytes);
        }
    }
}
