//! Connections that end in every way.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{JoinHandle, scope, sleep};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, listen, sendto, socket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;

use super::{Net, now};

/// How a connection ends. The client tells the server in the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ending {
    /// The client closes first.
    ClientCloses = b'c',
    /// The server closes first.
    ServerCloses = b's',
    /// The client resets.
    ClientResets = b'r',
    /// The server resets.
    ServerResets = b'R',
    /// The client closes its half, the server answers and closes.
    HalfClose = b'h',
    /// The client closes at once without a word, perhaps before the server accepts.
    ClientLeaves = b'-',
    /// The client resets at once without a word.
    ClientVanishes = b'x',
    /// Both keep it.
    Open = b'o',
}

/// One of 251 stays open.
const ENDINGS: [Ending; 7] = [
    Ending::ClientCloses,
    Ending::ServerCloses,
    Ending::ClientResets,
    Ending::ServerResets,
    Ending::HalfClose,
    Ending::ClientLeaves,
    Ending::ClientVanishes,
];
const ONE_STAYS_OF: usize = 251;

/// Connections of one client at a time.
const WINDOW: usize = 16;

const PATIENCE: Duration = Duration::from_secs(10);

/// Accepts at once and does what clients ask. Dropping it closes listener and connections.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on both families.
    pub fn start(net: &Net, port: u16) -> Self {
        let listener = listener(net, port);
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(listener) => (),
                    _ = stopped => (),
                }
            });
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Listens on both families with the longest backlog, and accepts nothing.
pub fn listener(net: &Net, port: u16) -> TcpListener {
    let listener = net.server.enter(|| TcpListener::bind(("::", port))).unwrap().unwrap();
    listen(&listener, 4096).unwrap();
    listener
}

async fn accept(listener: tokio::net::TcpListener) {
    loop {
        // A client may have gone before it was accepted.
        if let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(serve(connection));
        }
    }
}

/// Errors are what clients cause on purpose.
async fn serve(mut connection: tokio::net::TcpStream) {
    let mut first = [0];
    if connection.read_exact(&mut first).await.is_err() {
        return;
    }
    if first[0] == Ending::ServerResets as u8 {
        set_socket_linger(&connection, Some(Duration::ZERO)).unwrap();
    } else if first[0] != Ending::ServerCloses as u8 {
        drop(connection.read(&mut first).await);
        drop(connection.write_all(b"!").await);
    }
}

/// Clients in two threads that connect with both families in turn.
pub struct Clients<'a> {
    pub net: &'a Net,
    pub port: u16,
    /// Sends the first byte with the SYN.
    pub fast_open: bool,
    /// Of each thread.
    pub per_second: Option<u32>,
}

/// What became of them.
#[derive(Debug, Default)]
pub struct Churned {
    pub connected: usize,
    pub refused: usize,
    pub open: Vec<TcpStream>,
}

impl Clients<'_> {
    /// Connects as long as `go_on` says, which is told how many its thread has made.
    pub fn run(&self, go_on: impl Fn(usize) -> bool + Sync) -> Churned {
        let mut all = Churned::default();
        scope(|scope| {
            let client = || self.net.client.enter(|| self.one_client(&go_on)).unwrap();
            let threads = [scope.spawn(client), scope.spawn(client)];
            for thread in threads {
                let one = thread.join().unwrap();
                all.connected += one.connected;
                all.refused += one.refused;
                all.open.extend(one.open);
            }
        });
        all
    }

    fn one_client(&self, go_on: impl Fn(usize) -> bool) -> Churned {
        let mut churned = Churned::default();
        let mut waiting: VecDeque<(TcpStream, Ending)> = VecDeque::new();
        let begun = now();
        let mut made = 0;
        while go_on(made) {
            if let Some(per_second) = self.per_second {
                let due = Duration::from_secs(1) * u32::try_from(made).unwrap() / per_second;
                sleep(due.saturating_sub(begun.elapsed()));
            }
            let to = SocketAddr::new(self.net.server_ip(made % 2 == 1), self.port);
            let ending =
                if made % ONE_STAYS_OF == 7 { Ending::Open } else { ENDINGS[(made / 2) % ENDINGS.len()] };
            match self.ask(to, ending) {
                Ok(connection) => {
                    churned.connected += 1;
                    waiting.push_back((connection, ending));
                }
                Err(_) => churned.refused += 1,
            }
            if waiting.len() > WINDOW
                && let Some((connection, ending)) = waiting.pop_front()
            {
                churned.open.extend(end(connection, ending));
            }
            made += 1;
        }
        churned.open.extend(waiting.into_iter().filter_map(|(connection, ending)| end(connection, ending)));
        churned
    }

    fn ask(&self, to: SocketAddr, ending: Ending) -> io::Result<TcpStream> {
        let byte = [ending as u8];
        if self.fast_open {
            return connect_fast(to, &byte);
        }
        let mut connection = TcpStream::connect_timeout(&to, PATIENCE)?;
        if !matches!(ending, Ending::ClientLeaves | Ending::ClientVanishes) {
            // It may have been closed or killed meanwhile.
            drop(connection.write_all(&byte));
        }
        Ok(connection)
    }
}

/// Connects with data on the SYN.
pub fn connect_fast(to: SocketAddr, data: &[u8]) -> io::Result<TcpStream> {
    let family = if matches!(to.ip(), IpAddr::V4(_)) { AddressFamily::INET } else { AddressFamily::INET6 };
    let fresh = socket(family, SocketType::STREAM, Some(ipproto::TCP))?;
    const MSG_FASTOPEN: u32 = 0x2000_0000;
    sendto(&fresh, data, SendFlags::from_bits_retain(MSG_FASTOPEN), &to)?;
    Ok(fresh.into())
}

/// Ends a connection, but for one that stays open.
fn end(mut connection: TcpStream, ending: Ending) -> Option<TcpStream> {
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    match ending {
        Ending::Open => return Some(connection),
        Ending::ClientResets | Ending::ClientVanishes => {
            set_socket_linger(&connection, Some(Duration::ZERO)).unwrap();
        }
        Ending::HalfClose => {
            // It fails where the connection was killed.
            drop(connection.shutdown(Shutdown::Write));
            drop(connection.read_to_end(&mut Vec::new()));
        }
        Ending::ServerCloses | Ending::ServerResets => drop(connection.read_to_end(&mut Vec::new())),
        Ending::ClientCloses | Ending::ClientLeaves => {}
    }
    None
}
