//! Tells that links, addresses or default routes changed, so that nothing has to be polled.

use std::io;
use std::time::Duration;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::LinkHeader;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use tokio::io::unix::AsyncFd;

use super::NetError;
use super::links::default_route;
use super::netlink::messages;

/// One change rarely comes alone: bringing up an interface takes a dozen messages.
const SETTLE: Duration = Duration::from_millis(20);

/// Messages that are read before others get their turn.
const READS_AT_ONCE: usize = 1024;

/// Only the kind of a message and its first attributes matter; what does not fit is cut off.
const READ_BYTES: usize = 8 * 1024;

const DOING: &str = "follow changes of links, addresses and routes";

/// What changed since the last notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// An interface came, went or changed, or a program was attached to one.
    pub links: bool,
    /// An address came or went.
    pub addresses: bool,
    /// A default route of the main table came, or may have gone.
    pub routes: bool,
}

impl Changed {
    /// Messages were lost: anything may have changed.
    pub const EVERYTHING: Self = Self { links: true, addresses: true, routes: true };

    /// Whether anything changed.
    #[must_use]
    pub const fn any(self) -> bool {
        self.links || self.addresses || self.routes
    }

    fn add(&mut self, other: Self) {
        self.links |= other.links;
        self.addresses |= other.addresses;
        self.routes |= other.routes;
    }
}

/// A subscription to the kernel's notices.
#[derive(Debug)]
pub struct Changes {
    socket: AsyncFd<Socket>,
    /// Seen but not yet told. It stays here when [`Self::next`] is dropped halfway.
    pending: Changed,
}

impl Changes {
    /// Subscribes in the network namespace of the calling thread, which must be in a tokio runtime with io and
    /// time. Read the state after this call: what changes from then on is told.
    ///
    /// # Errors
    ///
    /// The kernel refuses the subscription.
    pub fn subscribe() -> Result<Self, NetError> {
        Self::open().map_err(NetError::while_doing(DOING))
    }

    fn open() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.bind(&SocketAddr::new(0, groups.unsigned_abs()))?;
        #[expect(unsafe_code, reason = "tokio cannot know that the descriptor stays the same")]
        // SAFETY: the socket owns its descriptor, never exchanges it, and closes it when it is dropped.
        let socket = unsafe { AsyncFd::register(socket) }?;
        Ok(Self { socket, pending: Changed::default() })
    }

    /// Waits for a change, lets the burst that it is part of settle, and tells it as one. May be dropped and
    /// called anew at any time without losing anything.
    ///
    /// # Errors
    ///
    /// The socket is broken; subscribe anew and take it that everything changed.
    pub async fn next(&mut self) -> Result<Changed, NetError> {
        while !self.pending.any() {
            let mut guard = self.socket.readable().await.map_err(NetError::while_doing(DOING))?;
            let (changed, drained) = drain(guard.get_inner()).map_err(NetError::while_doing(DOING))?;
            self.pending.add(changed);
            if drained {
                guard.clear_ready();
            }
        }
        tokio::time::sleep(SETTLE).await;
        let (changed, _) = drain(self.socket.get_ref()).map_err(NetError::while_doing(DOING))?;
        self.pending.add(changed);
        Ok(std::mem::take(&mut self.pending))
    }
}

/// Reads what has arrived; says whether nothing is left.
fn drain(socket: &Socket) -> io::Result<(Changed, bool)> {
    let mut changed = Changed::default();
    let mut buffer: Vec<u8> = Vec::with_capacity(READ_BYTES);
    for _ in 0..READS_AT_ONCE {
        buffer.clear();
        match socket.recv(&mut buffer, 0) {
            Ok(0) => return Ok((changed, true)),
            Ok(_) => changed.add(meaning(&buffer)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed.add(Changed::EVERYTHING),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((changed, true)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((changed, false))
}

/// What one datagram tells. A message that cannot be read may mean anything.
fn meaning(datagram: &[u8]) -> Changed {
    let mut changed = Changed::default();
    for message in messages(datagram) {
        let Ok(message) = message else { return Changed::EVERYTHING };
        let payload = message.payload();
        match message.message_type() {
            // IPv4 routes go silently with their link or address.
            libc::RTM_NEWLINK | libc::RTM_DELLINK if !is_bridge_port(payload) => {
                changed.add(Changed { links: true, routes: true, ..Changed::default() });
            }
            libc::RTM_NEWADDR => changed.addresses = true,
            libc::RTM_DELADDR => {
                changed.add(Changed { addresses: true, routes: true, ..Changed::default() });
            }
            // A router learns thousands of routes a second; only default routes matter here.
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
                changed.routes |= [AddressFamily::Inet, AddressFamily::Inet6]
                    .into_iter()
                    .any(|family| !default_route(payload, family).is_empty());
            }
            _ => {}
        }
    }
    changed
}

/// Bridges tell of their ports on the same channel.
fn is_bridge_port(payload: &[u8]) -> bool {
    LinkHeader::parse(payload).is_ok_and(|header| header.interface_family == AddressFamily::Bridge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::sandbox::{in_namespace, ip};
    use proptest::prelude::*;

    fn with_runtime(test: impl AsyncFnOnce() + Send) {
        in_namespace(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test());
        });
    }

    /// Waits until all that is named has been told.
    async fn told(changes: &mut Changes, wanted: Changed) {
        let mut seen = Changed::default();
        let wait = async {
            while (wanted.links && !seen.links)
                || (wanted.addresses && !seen.addresses)
                || (wanted.routes && !seen.routes)
            {
                seen.add(changes.next().await.unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the kernel tells");
    }

    #[test]
    fn links_addresses_and_default_routes_are_told() {
        with_runtime(async || {
            let mut changes = Changes::subscribe().unwrap();
            let (links, addresses, routes) = (
                Changed { links: true, ..Changed::default() },
                Changed { addresses: true, ..Changed::default() },
                Changed { routes: true, ..Changed::default() },
            );
            ip("link add va type veth peer name vb");
            told(&mut changes, links).await;
            ip("link set va up");
            ip("link set vb up");
            ip("addr add 10.0.0.1/24 dev va");
            told(&mut changes, addresses).await;
            ip("-6 addr add fd00::1/64 dev va nodad");
            told(&mut changes, addresses).await;
            ip("route add default via 10.0.0.2");
            told(&mut changes, routes).await;
            ip("-6 route add default via fd00::2");
            told(&mut changes, routes).await;
            ip("-6 route del default via fd00::2");
            told(&mut changes, routes).await;
            ip("link del va");
            told(&mut changes, Changed::EVERYTHING).await;
        });
    }

    #[test]
    fn a_dropped_wait_loses_nothing_and_other_routes_wake_nobody() {
        with_runtime(async || {
            let mut changes = Changes::subscribe().unwrap();
            ip("route add 10.9.0.0/16 dev lo");
            ip("addr add 10.0.0.1/32 dev lo");
            {
                // The first poll registers, the second reads and begins to settle; then the wait is dropped.
                let mut wait = std::pin::pin!(changes.next());
                for _ in 0..2 {
                    std::future::poll_fn(|context| {
                        assert!(wait.as_mut().poll(context).is_pending());
                        std::task::Poll::Ready(())
                    })
                    .await;
                    tokio::task::yield_now().await;
                }
            }
            assert!(changes.pending.addresses, "dropped halfway");
            let changed = changes.next().await.unwrap();
            assert!(changed.addresses && !changed.routes && !changed.links, "{changed:?}");
        });
    }

    #[test]
    fn an_overrun_means_that_everything_may_have_changed() {
        with_runtime(async || {
            let mut changes = Changes::subscribe().unwrap();
            changes.socket.get_ref().set_rx_buf_sz(1_i32).unwrap();
            for index in 0..40 {
                ip(&format!("addr add 10.0.1.{index}/32 dev lo"));
            }
            assert_eq!(changes.next().await.unwrap(), Changed::EVERYTHING);
            // The subscription lives on.
            while let Ok(Ok(_)) = tokio::time::timeout(Duration::from_millis(100), changes.next()).await {}
            ip("addr del 10.0.1.1/32 dev lo");
            told(&mut changes, Changed { addresses: true, ..Changed::default() }).await;
        });
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            meaning(&bytes);
        }
    }

    #[test]
    fn a_datagram_that_was_cut_may_mean_anything() {
        assert_eq!(meaning(&[1, 2, 3]), Changed::EVERYTHING);
        assert_eq!(meaning(&[]), Changed::default());
    }
}
