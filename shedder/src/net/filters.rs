//! The BPF filters that a clsact qdisc runs.

use netlink_packet_core::Emitable;
use netlink_packet_route::tc::{TcHandle, TcHeader};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::NetError;
use super::netlink::{NetlinkSocket, attribute, attribute_u32};

const TC_HEADER_BYTES: usize = 20;
const CLSACT_INGRESS: TcHandle = TcHandle { major: 0xffff, minor: 0xfff2 };
const TCA_BPF_ID: u16 = 11;

/// Ids of the programs that clsact runs on what an interface receives. None where there is no such interface.
///
/// # Errors
///
/// The kernel refuses the question.
pub fn ingress_programs(ifindex: u32) -> Result<Vec<u32>, NetError> {
    let doing = "list the filters of an interface";
    let mut netlink = NetlinkSocket::open(NETLINK_ROUTE).map_err(NetError::while_doing(doing))?;
    let index = ifindex.cast_signed();
    let request = Request(TcHeader { index, parent: CLSACT_INGRESS, ..TcHeader::default() });
    netlink
        .dump(libc::RTM_GETTFILTER, &request, |programs: &mut Vec<u32>, payload| {
            programs.extend(program(payload));
        })
        .map_err(NetError::while_doing(doing))
}

/// The header alone.
struct Request(TcHeader);

impl Emitable for Request {
    fn buffer_len(&self) -> usize {
        self.0.buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.0.emit(buffer);
    }
}

/// The program of one filter, where it has one.
fn program(payload: &[u8]) -> Option<u32> {
    let attributes = payload.get(TC_HEADER_BYTES..)?;
    attribute_u32(attribute(attributes, libc::TCA_OPTIONS)?, TCA_BPF_ID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::links;
    use crate::net::sandbox::{in_namespace, ip, tc};
    use proptest::prelude::*;

    #[test]
    fn where_nothing_is_there_is_none() {
        in_namespace(|| {
            ip("link add va type veth peer name vb");
            let ifindex = links::list().unwrap().into_iter().find(|link| link.name == "va").unwrap().ifindex;
            assert_eq!(ingress_programs(ifindex).unwrap(), Vec::<u32>::new());
            tc("qdisc add dev va clsact");
            assert_eq!(ingress_programs(ifindex).unwrap(), Vec::<u32>::new());
            assert_eq!(ingress_programs(9999).unwrap(), Vec::<u32>::new());
        });
    }

    proptest! {
        #[test]
        fn any_payload_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            program(&bytes);
        }
    }
}
