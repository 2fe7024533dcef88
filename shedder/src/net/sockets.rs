//! TCP sockets of the namespace, by `sock_diag`.

use std::collections::HashMap;

use netlink_packet_core::Parseable;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags, Timer,
};
use netlink_packet_sock_diag::{AF_INET, AF_INET6, INET_DIAG_SKV6ONLY, IPPROTO_TCP, SOCK_DIAG_BY_FAMILY};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use shedder_common::address::Address;

use super::NetError;
use super::netlink::{NetlinkSocket, attribute, common};

const RESPONSE_BYTES: usize = 72;

/// `INET_DIAG_SKMEMINFO`, and the place of `SK_MEMINFO_DROPS` in it, since Linux 4.10.
const INET_DIAG_SKMEMINFO: u16 = 7;
const DROPS_AT: std::ops::Range<usize> = 32..36;

/// `INET_DIAG_CGROUP_ID`, since Linux 5.8.
const INET_DIAG_CGROUP_ID: u16 = 21;

/// A socket in state LISTEN. With `SO_REUSEPORT` several share a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Local port.
    pub port: u16,
    /// Local address; the unspecified one of its family where it listens on all.
    pub address: Address,
    /// Whether the socket is an IPv6 one.
    pub ipv6: bool,
    /// An IPv6 socket that takes no IPv4 connections.
    pub v6_only: bool,
    /// Inode number of the socket, as `/proc/PID/fd` shows it.
    pub inode: u32,
    /// User that owns the socket.
    pub uid: u32,
    /// Connections that wait for `accept`.
    pub accept_queue: u32,
    /// The listen backlog; the queue is full above it.
    pub backlog: u32,
    /// Attempts and handshakes that the kernel has dropped here, for whatever reason; wraps. `None` where the kernel does
    /// not tell.
    pub drops: Option<u32>,
    /// Id (inode number) of the owner's cgroup v2; `None` where the kernel does not tell.
    pub cgroup_id: Option<u64>,
}

/// A socket of `sock_diag`, opened once in the namespace of the calling thread.
#[derive(Debug)]
pub struct SocketTables {
    netlink: NetlinkSocket,
}

impl SocketTables {
    /// Opens the channel.
    ///
    /// # Errors
    ///
    /// The kernel or the container has no `sock_diag`.
    pub fn open() -> Result<Self, NetError> {
        let netlink =
            NetlinkSocket::open(NETLINK_SOCK_DIAG).map_err(NetError::while_doing("open sock_diag"))?;
        Ok(Self { netlink })
    }

    /// All listening TCP sockets of both families, by port.
    ///
    /// # Errors
    ///
    /// The kernel refuses the question.
    pub fn listeners(&mut self) -> Result<Vec<Listener>, NetError> {
        let doing = "list listening sockets over sock_diag (it needs the kernel module tcp_diag)";
        let mut listeners = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let found = self
                .netlink
                .dump(
                    SOCK_DIAG_BY_FAMILY,
                    &request(family, StateFlags::LISTEN, ExtensionFlags::SKMEMINFO),
                    |found: &mut Vec<Listener>, payload| found.extend(listener(payload)),
                )
                .map_err(NetError::while_doing(doing))?;
            listeners.extend(found);
        }
        listeners.sort_by_key(|listener| (listener.port, listener.address.octets(), listener.inode));
        Ok(listeners)
    }

    /// Counts live TCP connections by local port: those that the kernel has not closed, whether or not the
    /// application has accepted them or still holds them. Time-wait stubs and half-open requests are none.
    ///
    /// `ports` says which local ports are asked for, `is_local` which remote addresses are the host's own and
    /// not to be counted. The kernel does not tell who opened a connection: one that the host itself opened
    /// from such a local port is counted too.
    ///
    /// # Errors
    ///
    /// The kernel refuses the question.
    pub fn count_connections(
        &mut self,
        ports: &dyn Fn(u16) -> bool,
        is_local: &dyn Fn(&Address) -> bool,
    ) -> Result<HashMap<u16, u32>, NetError> {
        let doing = "count connections over sock_diag (it needs the kernel module tcp_diag)";
        let mut counts = HashMap::new();
        for family in [AF_INET, AF_INET6] {
            let found = self
                .netlink
                .dump(
                    SOCK_DIAG_BY_FAMILY,
                    &request(family, live_states(), ExtensionFlags::empty()),
                    |counts: &mut HashMap<u16, u32>, payload| {
                        if let Some(port) = live_connection(payload, ports, is_local) {
                            let count = counts.entry(port).or_default();
                            *count = count.saturating_add(1);
                        }
                    },
                )
                .map_err(NetError::while_doing(doing))?;
            for (port, more) in found {
                let count: &mut u32 = counts.entry(port).or_default();
                *count = count.saturating_add(more);
            }
        }
        Ok(counts)
    }
}

/// States of a connection between the handshake and the last acknowledgement.
fn live_states() -> StateFlags {
    StateFlags::ESTABLISHED
        | StateFlags::FIN_WAIT1
        | StateFlags::FIN_WAIT2
        | StateFlags::CLOSE_WAIT
        | StateFlags::LAST_ACK
        | StateFlags::CLOSING
}

/// A dump of the TCP sockets of one family in these states.
fn request(family: u8, states: StateFlags, extensions: ExtensionFlags) -> InetRequest {
    InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions,
        states,
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    }
}

fn listener(payload: &[u8]) -> Option<Listener> {
    let header = InetResponseHeader::parse(payload).ok()?;
    let attributes = payload.get(RESPONSE_BYTES..)?;
    Some(Listener {
        port: header.socket_id.source_port,
        address: common(header.socket_id.source_address),
        ipv6: header.family == AF_INET6,
        v6_only: matches!(attribute(attributes, INET_DIAG_SKV6ONLY), Some([only, ..]) if *only != 0),
        inode: header.inode,
        uid: header.uid,
        accept_queue: header.recv_queue,
        backlog: header.send_queue,
        drops: attribute(attributes, INET_DIAG_SKMEMINFO)
            .and_then(|memory| memory.get(DROPS_AT)?.try_into().ok())
            .map(u32::from_ne_bytes),
        cgroup_id: attribute(attributes, INET_DIAG_CGROUP_ID)
            .and_then(|value| value.try_into().ok())
            .map(u64::from_ne_bytes)
            .filter(|id| *id != 0),
    })
}

/// The local port of a connection that counts.
fn live_connection(
    payload: &[u8],
    ports: &dyn Fn(u16) -> bool,
    is_local: &dyn Fn(&Address) -> bool,
) -> Option<u16> {
    let header = InetResponseHeader::parse(payload).ok()?;
    // A time-wait stub in FIN_WAIT2 is told apart by its timer: sockets without a descriptor have no inode
    // either, but are alive.
    let port = header.socket_id.source_port;
    (header.timer != Some(Timer::TimeWait)
        && ports(port)
        && !is_local(&common(header.socket_id.destination_address)))
    .then_some(port)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::net::sandbox::{in_namespace, ip};
    use proptest::prelude::*;

    fn inode_of(socket: &impl AsRawFd) -> u64 {
        std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino()
    }

    /// Lines that `ss` prints for that filter.
    fn ss(arguments: &[&str]) -> Vec<String> {
        let output =
            Command::new("ss").args(["-H", "-t", "-n"]).args(arguments).output().expect("ss, from iproute2");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// Tries until the condition holds. The kernel closes connections in its own time, and a child that another
    /// test starts holds every descriptor until its exec.
    fn eventually(mut condition: impl FnMut() -> bool) {
        for _ in 0..1000 {
            if condition() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it did not come true within ten seconds");
    }

    fn count(tables: &mut SocketTables, port: u16) -> u32 {
        let counts = tables.count_connections(&|local| local == port, &|_| false).unwrap();
        assert!(counts.keys().all(|counted| *counted == port));
        counts.get(&port).copied().unwrap_or(0)
    }

    #[test]
    fn listeners_are_described_as_ss_describes_them() {
        in_namespace(|| {
            let mut tables = SocketTables::open().unwrap();
            assert!(tables.listeners().unwrap().is_empty());
            let v4 = TcpListener::bind("127.0.0.1:8080").unwrap();
            let v6 = TcpListener::bind("[::]:8081").unwrap();
            rustix::net::listen(&v4, 7).unwrap();
            let waiting: Vec<_> = (0..3).map(|_| TcpStream::connect("127.0.0.1:8080").unwrap()).collect();
            let connected = TcpStream::connect("[::1]:8081").unwrap();
            let found = tables.listeners().unwrap();
            assert_eq!(found.len(), 2, "{found:?}");
            let (first, second) = (found[0], found[1]);
            assert_eq!((first.port, first.address), (8080, Address::from_v4([127, 0, 0, 1])));
            assert_eq!((first.accept_queue, first.backlog, first.ipv6), (3, 7, false));
            assert_eq!(u64::from(first.inode), inode_of(&v4));
            assert_eq!((first.uid, first.drops), (0, Some(0)));
            assert_eq!((second.port, second.address), (8081, Address::from_v6([0; 16])));
            assert_eq!((second.accept_queue, second.ipv6, second.v6_only), (1, true, false));
            assert_eq!(u64::from(second.inode), inode_of(&v6));
            for listener in &found {
                let line = &ss(&["-l", "sport", "=", &format!(":{}", listener.port)])[0];
                let words: Vec<_> = line.split_whitespace().collect();
                assert_eq!(words[1], listener.accept_queue.to_string(), "{line}");
                assert_eq!(words[2], listener.backlog.to_string(), "{line}");
            }
            drop((waiting, connected, v4, v6));
            eventually(|| tables.listeners().unwrap().is_empty());
        });
    }

    #[test]
    fn an_ipv6_only_listener_says_so() {
        in_namespace(|| {
            let socket =
                rustix::net::socket(rustix::net::AddressFamily::INET6, rustix::net::SocketType::STREAM, None)
                    .unwrap();
            rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
            rustix::net::bind(&socket, &"[::]:8082".parse::<SocketAddr>().unwrap()).unwrap();
            rustix::net::listen(&socket, 1).unwrap();
            let found = SocketTables::open().unwrap().listeners().unwrap();
            assert_eq!(found.len(), 1);
            assert!(found[0].v6_only);
        });
    }

    #[test]
    fn a_connection_counts_from_the_handshake_to_the_last_acknowledgement() {
        in_namespace(|| {
            let mut tables = SocketTables::open().unwrap();
            let server = TcpListener::bind("[::]:9000").unwrap();
            assert_eq!(count(&mut tables, 9000), 0);
            // Never accepted, of both families; over a dual-stack listener.
            let mut v4 = TcpStream::connect("127.0.0.1:9000").unwrap();
            let v6 = TcpStream::connect("[::1]:9000").unwrap();
            eventually(|| count(&mut tables, 9000) == 2);
            let (mut accepted, peer) = server.accept().unwrap();
            assert_eq!(peer.port(), v4.local_addr().unwrap().port());
            assert_eq!(count(&mut tables, 9000), 2);
            // The client closes its half: CLOSE_WAIT here.
            v4.shutdown(Shutdown::Write).unwrap();
            accepted.read_to_end(&mut Vec::new()).unwrap();
            assert_eq!(count(&mut tables, 9000), 2);
            accepted.write_all(b"still here").unwrap();
            drop(accepted);
            v4.read_to_end(&mut Vec::new()).unwrap();
            drop(v4);
            eventually(|| count(&mut tables, 9000) == 1);
            // The server closes first and the client keeps its half open: a stub in FIN_WAIT2 remains.
            let (accepted, _) = server.accept().unwrap();
            drop(accepted);
            eventually(|| count(&mut tables, 9000) == 0);
            assert_eq!(
                ss(&["state", "fin-wait-2", "sport", "=", ":9000"]).len(),
                1,
                "the stub that does not count"
            );
            drop((v6, server));
        });
    }

    #[test]
    fn a_closed_half_that_the_application_holds_counts() {
        in_namespace(|| {
            let mut tables = SocketTables::open().unwrap();
            let server = TcpListener::bind("127.0.0.1:9001").unwrap();
            let client = TcpStream::connect("127.0.0.1:9001").unwrap();
            let (accepted, _) = server.accept().unwrap();
            accepted.shutdown(Shutdown::Write).unwrap();
            eventually(|| ss(&["state", "fin-wait-2", "sport", "=", ":9001"]).len() == 1);
            assert_eq!(count(&mut tables, 9001), 1);
            drop((client, accepted));
        });
    }

    #[test]
    fn a_socket_without_descriptor_that_still_sends_counts() {
        in_namespace(|| {
            ip("link add va type veth peer name vb");
            let mut tables = SocketTables::open().unwrap();
            let server = TcpListener::bind("127.0.0.1:9002").unwrap();
            let client = TcpStream::connect("127.0.0.1:9002").unwrap();
            let (accepted, _) = server.accept().unwrap();
            accepted.set_nonblocking(true).unwrap();
            // Nobody reads: data and the FIN behind it stay unacknowledged.
            let mut accepted = accepted;
            let chunk = [0; 65536];
            while accepted.write(&chunk).is_ok() {}
            drop(accepted);
            eventually(|| ss(&["state", "fin-wait-1", "sport", "=", ":9002"]).len() == 1);
            assert_eq!(count(&mut tables, 9002), 1);
            drop(client);
            eventually(|| count(&mut tables, 9002) == 0);
        });
    }

    #[test]
    fn peers_that_are_the_host_itself_can_be_left_out() {
        in_namespace(|| {
            ip("addr add 10.0.0.1/32 dev lo");
            ip("addr add 10.0.0.2/32 dev lo");
            let mut tables = SocketTables::open().unwrap();
            let server = TcpListener::bind("[::]:9003").unwrap();
            let one = TcpStream::connect("127.0.0.1:9003").unwrap();
            let two = TcpStream::connect("10.0.0.1:9003").unwrap();
            eventually(|| count(&mut tables, 9003) == 2);
            let loopback = Address::from_v4([127, 0, 0, 1]);
            let counts = tables.count_connections(&|_| true, &|peer| *peer == loopback).unwrap();
            assert_eq!(counts.get(&9003), Some(&1));
            drop((server, one, two));
        });
    }

    #[test]
    fn many_connections_are_counted_as_ss_counts_them() {
        in_namespace(|| {
            let mut tables = SocketTables::open().unwrap();
            let servers =
                [TcpListener::bind("127.0.0.1:9004").unwrap(), TcpListener::bind("[::1]:9005").unwrap()];
            let mut held = Vec::new();
            for round in 0..600 {
                let server = &servers[round % 2];
                held.push(TcpStream::connect(server.local_addr().unwrap()).unwrap());
                held.push(server.accept().unwrap().0);
            }
            let counts = tables.count_connections(&|port| (9004..=9005).contains(&port), &|_| false).unwrap();
            assert_eq!(counts, HashMap::from([(9004, 300), (9005, 300)]));
            assert_eq!(ss(&["state", "connected", "sport", "=", ":9004"]).len(), 300);
        });
    }

    proptest! {
        #[test]
        fn any_payload_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            listener(&bytes);
            live_connection(&bytes, &|_| true, &|_| false);
        }
    }
}
