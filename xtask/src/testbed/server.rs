//! A single-threaded HTTP/1.1 server of known capacity, which knows nothing of load shedding.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use rustix::thread::{ClockId, clock_nanosleep_relative};

use super::clock;
use super::cpu;
use super::namespace::Namespace;

/// What every request is answered with.
pub(crate) const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";

/// Whether these bytes are a whole answer: ours, or with further headers that of a proxy in front.
pub(super) fn is_answer(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.1 200 ") && bytes.ends_with(b"\r\n\r\nok\n")
}

/// How often an idle server looks whether it shall stop.
const IDLE_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// A client that sends nothing holds the only thread for this long at most.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// A server that lost more than this to others on the machine does not make up for it.
const CATCH_UP_MAX: Duration = Duration::from_millis(20);

/// How a [`Server`] serves.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// The listen backlog, capped by the kernel's `somaxconn`.
    pub backlog: u16,
    /// Time that each request takes; the capacity is its inverse.
    pub service_time: Duration,
    /// The CPU it stays on.
    pub cpu: Option<usize>,
}

impl Default for ServerOptions {
    /// Backlog 1024, 1,600 requests a second, any CPU.
    fn default() -> Self {
        Self { backlog: 1024, service_time: Duration::from_micros(625), cpu: None }
    }
}

/// A running server: one thread, one request per connection, one after the other in order of arrival.
///
/// Each request takes its service time by the schedule, whatever the thread's wake-ups cost, so that the
/// capacity does not depend on the machine. A client that gave up costs as much as one that waits: its
/// request was read, and only the answer finds nobody. The server stops on drop.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a server did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Requests that were worked on and answered, whether or not the client still waited.
    pub answered: u64,
    /// Connections that ended before their request was complete.
    pub aborted: u64,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    aborted: AtomicU64,
}

impl Server {
    /// Listens on `address` in `namespace` and serves. With port 0 the kernel chooses one.
    ///
    /// # Errors
    /// When the address is taken or not there.
    pub fn start(namespace: &Namespace, address: SocketAddr, options: ServerOptions) -> io::Result<Self> {
        let listener = namespace.enter(|| listen_on(address, options.backlog))??;
        Self::serve_on(listener, options)
    }

    /// As [`Server::start`], in the namespace of the calling thread.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_here(address: SocketAddr, options: ServerOptions) -> io::Result<Self> {
        Self::serve_on(listen_on(address, options.backlog)?, options)
    }

    fn serve_on(listener: TcpListener, options: ServerOptions) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let worker = Worker { listener, options, shared: Arc::clone(&shared) };
        let thread = thread::Builder::new().name("server".to_owned()).spawn(move || worker.run())?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it did until now.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        ServerCounts {
            answered: self.shared.answered.load(Ordering::Relaxed),
            aborted: self.shared.aborted.load(Ordering::Relaxed),
        }
    }

    /// Ends it and says what it did; connections that still wait are reset.
    #[must_use = "drop the server to stop it without looking"]
    pub fn stop(mut self) -> ServerCounts {
        self.join();
        self.counts()
    }

    fn join(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the server on {} panicked", self.address);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.join();
    }
}

/// A non-blocking listener with a backlog of its own, in the namespace of the calling thread.
///
/// # Errors
/// When the address is taken or not there.
pub fn listen_on(address: SocketAddr, backlog: u16) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, backlog.into())?;
    Ok(socket.into())
}

struct Worker {
    listener: TcpListener,
    options: ServerOptions,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(self) {
        if let Err(error) = cpu::be_punctual(self.options.cpu) {
            eprintln!("the server is less exact than it should be: {error}");
        }
        let mut schedule = Schedule::new(self.options.service_time, clock::now());
        while !self.shared.stop.load(Ordering::Relaxed) {
            match self.listener.accept() {
                Ok((stream, _)) => self.serve(stream, &mut schedule),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait();
                    schedule.was_idle(clock::now());
                }
                // The connection died in the queue.
                Err(_) => count(&self.shared.aborted),
            }
        }
    }

    fn wait(&self) {
        let mut readable = [PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        // An interrupted wait ends early, and the caller looks again anyway.
        poll(&mut readable, Some(&IDLE_CHECK)).ok();
    }

    fn serve(&self, mut stream: TcpStream, schedule: &mut Schedule) {
        if read_request(&mut stream).is_err() {
            return count(&self.shared.aborted);
        }
        let now = clock::now();
        let work = schedule.next(now).saturating_duration_since(now);
        if let Ok(work) = Timespec::try_from(work) {
            // An early wake-up shortens this request; the schedule evens it out.
            drop(clock_nanosleep_relative(ClockId::Monotonic, &work));
        }
        // Whether the client still listens is not the server's business.
        drop(stream.write_all(ANSWER));
        count(&self.shared.answered);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn read_request(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => request.extend(chunk.iter().take(read)),
        }
    }
    Ok(())
}

/// When each request is done: back to back while there is work, so that late wake-ups do not add up.
#[derive(Debug)]
struct Schedule {
    service_time: Duration,
    free_at: Instant,
}

impl Schedule {
    fn new(service_time: Duration, now: Instant) -> Self {
        Self { service_time, free_at: now }
    }

    /// There was no work until `now`: the time is lost.
    fn was_idle(&mut self, now: Instant) {
        self.free_at = self.free_at.max(now);
    }

    /// When a request that is taken up at `now` is done.
    fn next(&mut self, now: Instant) -> Instant {
        let start = now.checked_sub(CATCH_UP_MAX).map_or(self.free_at, |oldest| self.free_at.max(oldest));
        self.free_at = start + self.service_time;
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_is_whole_and_good() {
        assert!(is_answer(ANSWER));
        assert!(is_answer(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nok\n"));
        assert!(!is_answer(&ANSWER[..ANSWER.len() - 1]));
        assert!(!is_answer(b"HTTP/1.1 502 Bad Gateway\r\n\r\nok\n"));
        assert!(!is_answer(b""));
    }

    #[test]
    fn late_wake_ups_do_not_add_up() {
        let start = clock::now();
        let mut schedule = Schedule::new(MS, start);
        let mut now = start;
        for request in 1..=100 {
            let done = schedule.next(now);
            assert_eq!(done, start + request * MS);
            now = done + MS / 4;
        }
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let start = clock::now();
        let mut schedule = Schedule::new(MS, start);
        schedule.was_idle(start + 10 * MS);
        assert_eq!(schedule.next(start + 10 * MS), start + 11 * MS);
    }

    #[test]
    fn a_stall_is_made_up_for_in_part() {
        let start = clock::now();
        let mut schedule = Schedule::new(MS, start);
        let now = start + Duration::from_secs(1);
        assert_eq!(schedule.next(now), now - CATCH_UP_MAX + MS);
    }
}
