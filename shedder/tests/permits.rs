//! The life of a permit: `connections` admits so many at once, and a permit comes back when its socket closes,
//! once, and for no other reason.
#![cfg(test)]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use support::syn::{ACK, FIN, RST, Segment, Sender};
use support::truth::{kernel_counter, ss_count, two_ticks_pass};
use support::{Daemon, Net, Setup, connect, eventually};

const PORT: &str = "8080";
const LIMIT: usize = 3;
const PATIENCE: Duration = Duration::from_secs(5);

/// A port with three permits, and who wants them.
struct Scene {
    daemon: Daemon,
    net: Net,
    address: SocketAddr,
}

/// How the server listens and the client asks.
#[derive(Clone, Copy, Debug)]
enum Family {
    Ipv4,
    Ipv6,
    /// An IPv4 client at a listener of both families.
    Mapped,
}

const FAMILIES: [Family; 3] = [Family::Ipv4, Family::Ipv6, Family::Mapped];

impl Scene {
    fn new(family: Family) -> (Self, TcpListener) {
        let net = Net::new();
        let rest = "[[port]]\nport = 8080\nconnections = 3\nqueue_wait = \"unlimited\"\n";
        let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest });
        let address = SocketAddr::new(net.server_ip(matches!(family, Family::Ipv6)), 8080);
        let scene = Self { daemon, net, address };
        let listener = scene.listen(match family {
            Family::Mapped => Ipv6Addr::UNSPECIFIED.into(),
            Family::Ipv4 | Family::Ipv6 => scene.address.ip(),
        });
        (scene, listener)
    }

    fn listen(&self, on: IpAddr) -> TcpListener {
        self.net.server.enter(|| TcpListener::bind((on, 8080))).unwrap().unwrap()
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        connect(&self.net.client, self.address, PATIENCE)
    }

    /// Takes all permits.
    fn fill(&self) -> Vec<TcpStream> {
        let connections = (0..LIMIT).map(|_| self.connect().unwrap()).collect();
        self.expect_free(0);
        connections
    }

    fn expect_refused(&self) {
        let kind = self.connect().map_err(|error| error.kind());
        assert_eq!(kind.err(), Some(ErrorKind::ConnectionRefused));
    }

    /// Waits until so many permits are free, sees that the count stays, and is what `ss` says.
    fn expect_free(&self, free: usize) {
        let taken = u64::try_from(LIMIT - free).unwrap();
        eventually(&format!("{taken} permits are taken"), || self.daemon.active(PORT) == taken);
        two_ticks_pass(&self.daemon);
        assert_eq!((self.daemon.active(PORT), ss_count(&self.net.server, PORT)), (taken, taken));
        if free == 0 {
            self.expect_refused();
        }
    }

    /// Sees that exactly one permit is free, by taking it.
    fn expect_one_back(&self) -> TcpStream {
        self.expect_free(1);
        let connection = self.connect().unwrap();
        self.expect_free(0);
        connection
    }
}

/// A process that holds a socket and does nothing.
fn held_by_process(socket: impl Into<OwnedFd>) -> Child {
    Command::new("sleep").arg("1000").stdin(Stdio::from(socket.into())).spawn().unwrap()
}

fn kill(mut process: Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

fn reset(connection: TcpStream) {
    set_socket_linger(&connection, Some(Duration::ZERO)).unwrap();
    drop(connection);
}

#[test]
fn three_of_twelve_are_admitted_and_nine_refused() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let connects: Vec<_> = (0..12).map(|_| scene.connect()).collect();
        let admitted = connects.iter().filter(|connect| connect.is_ok()).count();
        let refused = connects
            .iter()
            .filter(|connect| {
                connect.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            })
            .count();
        assert_eq!((admitted, refused), (3, 9), "{family:?}");
        eventually("refusals are counted", || scene.daemon.counts(PORT).shed == 9);
        assert_eq!(scene.daemon.counts(PORT).admitted, 3);
        scene.expect_free(0);
        drop(connects);
        drop(listener);
        scene.expect_free(3);
    }
}

#[test]
fn one_closed_before_it_was_accepted_comes_back_when_the_server_has_closed_it() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let mut connections = scene.fill();
        drop(connections.remove(0));
        // The client is gone, but the server's socket waits to be accepted.
        eventually("the FIN is there", || {
            let waiting = scene.net.server.output(Command::new("ss").args(["-Htn", "state", "close-wait"]));
            !waiting.unwrap().stdout.is_empty()
        });
        scene.expect_free(0);
        drop(listener.accept().unwrap());
        let _fourth = scene.expect_one_back();
    }
}

#[test]
fn one_reset_before_it_was_accepted_comes_back_at_once_and_not_again_when_accepted() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let mut connections = scene.fill();
        reset(connections.remove(0));
        let _fourth = scene.expect_one_back();
        // The application accepts the dead connection and closes it.
        drop(listener.accept().unwrap());
        scene.expect_free(0);
    }
}

#[test]
fn one_reset_after_it_was_accepted_comes_back_and_not_again_when_closed() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let mut connections = scene.fill();
        let (accepted, _) = listener.accept().unwrap();
        reset(connections.remove(0));
        let _fourth = scene.expect_one_back();
        drop(accepted);
        scene.expect_free(0);
    }
}

#[test]
fn one_closed_by_the_server_comes_back_once() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let mut connections = scene.fill();
        let (accepted, _) = listener.accept().unwrap();
        drop(accepted);
        // The server's side stands in FIN_WAIT2, which is a stub once nobody holds the socket.
        let _fourth = scene.expect_one_back();
        drop(connections.remove(0));
        scene.expect_free(0);
    }
}

#[test]
fn one_whose_client_dies_comes_back_when_the_server_closes() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let mut connections = scene.fill();
        let (mut accepted, _) = listener.accept().unwrap();
        kill(held_by_process(connections.remove(0)));
        assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
        scene.expect_free(0);
        drop(accepted);
        let _fourth = scene.expect_one_back();
    }
}

#[test]
fn one_whose_server_process_dies_comes_back() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let mut connections = scene.fill();
        let process = held_by_process(listener.accept().unwrap().0);
        // Unread data makes the kernel reset where it would else end in order.
        connections[0].write_all(b"never read").unwrap();
        kill(process);
        let _fourth = scene.expect_one_back();
        let end = connections[0].read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
    }
}

#[test]
fn a_listener_that_closes_returns_what_nobody_accepted() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let _connections = scene.fill();
        let (accepted, _) = listener.accept().unwrap();
        let on = listener.local_addr().unwrap().ip();
        drop(listener);
        scene.expect_free(2);
        let _again = scene.listen(on);
        let _taken = [scene.connect().unwrap(), scene.connect().unwrap()];
        scene.expect_free(0);
        drop(accepted);
        let _fourth = scene.expect_one_back();
    }
}

#[test]
fn one_whose_server_is_killed_with_its_listener_comes_back_with_the_others() {
    let (scene, listener) = Scene::new(Family::Ipv4);
    let _connections = scene.fill();
    kill(held_by_process(listener));
    scene.expect_free(3);
}

#[test]
fn a_half_closed_connection_keeps_its_permit() {
    for family in FAMILIES {
        let (scene, listener) = Scene::new(family);
        let mut connections = scene.fill();
        let (mut accepted, _) = listener.accept().unwrap();
        connections[0].shutdown(Shutdown::Write).unwrap();
        assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
        scene.expect_free(0);
        // The client still reads.
        accepted.write_all(b"!").unwrap();
        let mut answer = [0];
        connections[0].read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"!");
        scene.expect_free(0);
        drop(accepted);
        let _fourth = scene.expect_one_back();
    }
}

#[test]
fn a_half_close_by_the_server_keeps_the_permit() {
    let (scene, listener) = Scene::new(Family::Ipv4);
    let mut connections = scene.fill();
    let (accepted, _) = listener.accept().unwrap();
    accepted.shutdown(Shutdown::Write).unwrap();
    assert_eq!(connections[0].read(&mut [0]).unwrap(), 0);
    scene.expect_free(0);
    drop(accepted);
    let _fourth = scene.expect_one_back();
}

#[test]
fn forged_segments_return_nothing() {
    for family in FAMILIES {
        let (scene, _listener) = Scene::new(family);
        let connections = scene.fill();
        let sender = Sender::new(&scene.net.client);
        let received = || kernel_counter(&scene.net.server, "Tcp", "InSegs");
        let before = received();
        let mut sent = 0;
        for connection in &connections {
            for flags in [RST, RST | ACK, FIN, FIN | ACK] {
                // A window is 64 KiB of 4 GiB: these are outside of it.
                for sequence in [0, 0x5555_5555, 0xaaaa_aaaa] {
                    sender.send(&Segment {
                        source: connection.local_addr().unwrap(),
                        destination: scene.address,
                        sequence,
                        acknowledgement: sequence ^ 0x1111_1111,
                        flags,
                    });
                    sent += 1;
                }
            }
        }
        eventually("the forgeries are there", || received() >= before + sent);
        scene.expect_free(0);
        for connection in &connections {
            connection.set_nonblocking(true).unwrap();
            let alive = connection.peek(&mut [0]).map_err(|error| error.kind());
            assert_eq!(alive, Err(ErrorKind::WouldBlock));
        }
    }
}
