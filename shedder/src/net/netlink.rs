//! Dump requests over a netlink socket that is opened once and used again.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use netlink_packet_core::{
    DoneBuffer, Emitable, ErrorBuffer, NLA_HEADER_SIZE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer, NetlinkHeader, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt;
use shedder_common::address::Address;

/// The kernel fills at most 32 KiB for each read of a dump.
const READ_BYTES: usize = 64 * 1024;

/// How often a dump is begun anew because what it shows changed meanwhile.
const ATTEMPTS: u32 = 8;

/// The kernel answers at once; this only keeps a lost answer from stopping the caller for ever.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

const HEADER_BYTES: usize = 16;

/// A netlink socket for requests.
#[derive(Debug)]
pub(super) struct NetlinkSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket of a `NETLINK_*` protocol that hears the kernel only.
    pub(super) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        match socket.set_netlink_get_strict_chk(true) {
            // Kernels before 4.20 do not know it and filter less.
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => return Err(error),
            _ => {}
        }
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(READ_BYTES) })
    }

    /// Asks for everything that `request` selects and folds the payloads into a fresh state.
    ///
    /// A dump that was interrupted by a change is begun anew with another fresh state.
    pub(super) fn dump<S: Default>(
        &mut self,
        message_type: u16,
        request: &dyn Emitable,
        fold: impl Fn(&mut S, &[u8]),
    ) -> io::Result<S> {
        for _ in 0..ATTEMPTS {
            let mut state = S::default();
            if self.dump_once(message_type, request, &mut |payload| fold(&mut state, payload))? {
                return Ok(state);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "it changes faster than it can be read"))
    }

    /// One dump; says whether what it shows stood still meanwhile.
    fn dump_once(
        &mut self,
        message_type: u16,
        request: &dyn Emitable,
        each: &mut dyn FnMut(&[u8]),
    ) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let message = message(message_type, self.sequence, request)?;
        self.socket.send(&message, 0)?;
        let mut whole = true;
        loop {
            self.buffer.clear();
            let length = loop {
                match self.socket.recv(&mut self.buffer, libc::MSG_TRUNC) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            if length > self.buffer.len() {
                return Err(invalid("a netlink answer is larger than 64 KiB"));
            }
            for message in messages(&self.buffer) {
                let message = message?;
                // What is left of a dump that was given up.
                if message.sequence_number() != self.sequence {
                    continue;
                }
                whole &= message.flags() & NLM_F_DUMP_INTR == 0;
                match message.message_type() {
                    NLMSG_DONE => return finish(message.payload()).map(|()| whole),
                    NLMSG_ERROR => return fail(message.payload()).map(|()| whole),
                    NLMSG_NOOP | NLMSG_OVERRUN => {}
                    _ => each(message.payload()),
                }
            }
        }
    }
}

/// A dump request as bytes.
fn message(message_type: u16, sequence_number: u32, request: &dyn Emitable) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES + request.buffer_len()];
    let mut header = NetlinkHeader::default();
    header.length = u32::try_from(bytes.len()).map_err(|_| invalid("a netlink request is too large"))?;
    header.message_type = message_type;
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    header.sequence_number = sequence_number;
    let (head, body) = bytes.split_at_mut(HEADER_BYTES);
    header.emit(head);
    request.emit(body);
    Ok(bytes)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The result that ends a dump.
fn finish(payload: &[u8]) -> io::Result<()> {
    // Old kernels send no code.
    result(DoneBuffer::new_checked(payload).map_or(0, |done| done.code()))
}

/// The error that stands in the place of an answer.
fn fail(payload: &[u8]) -> io::Result<()> {
    let error = ErrorBuffer::new_checked(payload).map_err(|_| invalid("a netlink error is too short"))?;
    result(error.code().map_or(0, std::num::NonZeroI32::get))
}

fn result(code: i32) -> io::Result<()> {
    if code < 0 { Err(io::Error::from_raw_os_error(code.saturating_neg())) } else { Ok(()) }
}

/// The messages of one read.
pub(super) fn messages(bytes: &[u8]) -> impl Iterator<Item = io::Result<NetlinkBuffer<&[u8]>>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Ok(message) = NetlinkBuffer::new_checked(rest) else {
            rest = &[];
            return Some(Err(invalid("a netlink message is cut short")));
        };
        let length = usize::try_from(message.length()).unwrap_or(usize::MAX).next_multiple_of(4);
        rest = rest.get(length..).unwrap_or_default();
        Some(Ok(message))
    })
}

/// The value of the first attribute of that kind. What follows a malformed attribute is not looked at.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let found = NlasIterator::new(attributes).map_while(Result::ok).find(|nla| nla.kind() == kind)?;
    let length = usize::from(found.length());
    found.into_inner().get(NLA_HEADER_SIZE..length)
}

/// An attribute that is a u32 in host order.
pub(super) fn attribute_u32(attributes: &[u8], kind: u16) -> Option<u32> {
    attribute(attributes, kind)?.try_into().ok().map(u32::from_ne_bytes)
}

/// An attribute that is text with an ending NUL.
pub(super) fn attribute_text(attributes: &[u8], kind: u16) -> Option<String> {
    let bytes = attribute(attributes, kind)?;
    let text = bytes.split(|byte| *byte == 0).next()?;
    String::from_utf8(text.to_vec()).ok()
}

/// An attribute that is an address of either family.
pub(super) fn attribute_address(attributes: &[u8], kind: u16) -> Option<IpAddr> {
    let value = attribute(attributes, kind)?;
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|octets| Ipv6Addr::from(octets).into())
}

/// An address in the common form.
pub(super) const fn common(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => Address::from_v4(address.octets()),
        IpAddr::V6(address) => Address::from_v6(address.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            for message in messages(&bytes).flatten() {
                let payload = message.payload();
                prop_assert!(payload.len() <= bytes.len());
                for kind in 0..8 {
                    attribute_u32(payload, kind);
                    attribute_text(payload, kind);
                    attribute_address(payload, kind);
                }
                drop(finish(payload));
                drop(fail(payload));
            }
        }
    }

    #[test]
    fn a_cut_message_is_an_error_and_ends_the_read() {
        let mut bytes = message(7, 1, &Body(&[1, 2, 3, 4])).unwrap();
        bytes.extend_from_slice(&bytes.clone());
        bytes.truncate(bytes.len() - 1);
        let read: Vec<_> = messages(&bytes).map(|message| message.map(|m| m.payload().to_vec())).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(*read[0].as_ref().unwrap(), vec![1, 2, 3, 4]);
        assert!(read[1].is_err());
    }

    #[test]
    fn error_codes_become_errno() {
        assert_eq!(result(-2).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert!(result(0).is_ok());
        assert!(result(i32::MIN).is_err());
    }

    struct Body<'a>(&'a [u8]);

    impl Emitable for Body<'_> {
        fn buffer_len(&self) -> usize {
            self.0.len()
        }
        fn emit(&self, buffer: &mut [u8]) {
            buffer.copy_from_slice(self.0);
        }
    }
}
