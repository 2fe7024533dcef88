//! A client for more connections than sockets could make: it keeps nothing of a connection but its number, which
//! is its initial sequence number and so comes back in every answer.
//!
//! Its connections are complete: SYN, request, answer, end. Its addresses belong to no interface, so that the
//! kernel of its namespace leaves the answers to it; the server's namespace needs a route to them. It gives up by
//! ceasing to wait: unlike a socket it does not say so.

mod filter;
mod link;
mod segment;

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU32;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, MMsgHdr, Protocol, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType,
    recv, sendmmsg, socket_with, sockopt,
};
use rustix::process::setpriority_process;
use rustix::thread::gettid;

use self::filter::{Filter, passed};
use self::link::Link;
use self::segment::{ACK, FIN, PSH, SYN, Segment};
use super::attempt::REQUEST;
use super::clock;
use super::cpu;
use super::load::Live;
use super::namespace::Namespace;
use super::record::{Fate, Record};
use super::schedule::Schedule;

/// Of RFC 2544, for benchmarks: no interface has such an address.
const NETWORK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const NETWORK_MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 0, 0);
const GROUP_MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
const ETH_P_IP: u16 = 0x0800;
const BATCH: u64 = 64;
/// How long it sleeps at most while it has something to send.
const PACE: Duration = Duration::from_micros(250);
const IDLE: Duration = Duration::from_millis(5);
/// What is later than this is left out: a load that runs behind would go on after its end.
const LAG_MAX: Duration = Duration::from_millis(50);
/// Beside a client with sockets on the same CPU this one is the one to wait.
const NICE: i32 = 5;
const FIRST_PORT: u64 = 1024;
const PORTS: u64 = 65_536 - FIRST_PORT;
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// The network of all sources, as `ip route` takes it.
pub const STATELESS_NETWORK: &str = "198.18.0.0/16";

/// A load of connections without sockets, on a [`super::Server`].
#[derive(Clone, Debug)]
pub struct StatelessLoad {
    /// Where the server listens.
    pub target: SocketAddrV4,
    /// Addresses to connect from, in turn; see [`stateless_source`].
    pub sources: Vec<Ipv4Addr>,
    /// When connections are attempted.
    pub schedule: Schedule,
    /// From the intended start until an answer is no use any more.
    pub patience: Duration,
    /// The CPU the client stays on.
    pub cpu: Option<usize>,
}

/// What became of a [`StatelessLoad`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatelessOutcome {
    /// Attempts that were answered: useful, or too late and so given up.
    pub records: Vec<Record>,
    /// Refusals that arrived until a moment, by group, cumulative; in ascending order.
    pub refused: Vec<(Duration, Vec<u64>)>,
    /// Attempts, by number, that came too late to be made, in ascending order.
    pub left_out: Vec<Range<u64>>,
    /// How far a batch was behind its schedule, by the time for which it was intended.
    pub lags: Vec<(Duration, Duration)>,
}

/// The address of a source in one of 256 groups of 254.
#[must_use]
pub fn stateless_source(group: u8, host: u8) -> Ipv4Addr {
    let [first, second, ..] = NETWORK.octets();
    Ipv4Addr::new(first, second, group, host)
}

impl StatelessLoad {
    /// Runs the load from within `namespace` until the last patience ends. Refusals are counted at every
    /// `boundaries`, which ascend, and at the end.
    ///
    /// # Errors
    /// When the client cannot work at all, or was stopped.
    pub fn run_in(
        &self,
        namespace: &Namespace,
        boundaries: &[Duration],
        live: &Live,
    ) -> io::Result<StatelessOutcome> {
        namespace.enter(|| Client::new(self, boundaries, live)?.run())?
    }

    fn groups(&self) -> Vec<u8> {
        let mut groups: Vec<_> = self.sources.iter().map(|source| source.octets()[2]).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Where an attempt comes from: its place among the sources, and its address.
    fn source(&self, attempt: u64) -> Option<(usize, SocketAddrV4)> {
        let count = u64::try_from(self.sources.len()).ok()?;
        let place = usize::try_from(attempt.checked_rem(count)?).ok()?;
        let port = u16::try_from(FIRST_PORT + (attempt / count) % PORTS).ok()?;
        Some((place, SocketAddrV4::new(*self.sources.get(place)?, port)))
    }
}

struct Client<'a> {
    load: &'a StatelessLoad,
    boundaries: &'a [Duration],
    live: &'a Live,
    link: Link,
    receiver: OwnedFd,
    /// One socket for each group, never read: the kernel counts what it would get.
    counters: Vec<OwnedFd>,
    refused: Vec<u64>,
    start: Instant,
    sent: u64,
    answered: HashSet<u64>,
    outcome: StatelessOutcome,
}

impl<'a> Client<'a> {
    fn new(load: &'a StatelessLoad, boundaries: &'a [Duration], live: &'a Live) -> io::Result<Self> {
        cpu::be_punctual(load.cpu)?;
        setpriority_process(Some(gettid()), NICE)?;
        let link = Link::to(*load.target.ip())?;
        let receiver = packet_socket(Filter { network: NETWORK, mask: NETWORK_MASK, resets: false })?;
        sockopt::set_socket_recv_buffer_size_force(&receiver, RECEIVE_BUFFER_BYTES)?;
        let groups = load.groups();
        let counter = |group: &u8| {
            let network = stateless_source(*group, 0);
            let counter = packet_socket(Filter { network, mask: GROUP_MASK, resets: true })?;
            // As little as there can be: it is never read.
            sockopt::set_socket_recv_buffer_size(&counter, 0)?;
            Ok(counter)
        };
        Ok(Self {
            load,
            boundaries,
            live,
            link,
            receiver,
            counters: groups.iter().map(counter).collect::<io::Result<_>>()?,
            refused: vec![0; groups.len()],
            start: clock::now(),
            sent: 0,
            answered: HashSet::new(),
            outcome: StatelessOutcome::default(),
        })
    }

    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.start)
    }

    fn run(mut self) -> io::Result<StatelessOutcome> {
        let end = self.load.schedule.duration() + self.load.patience;
        let mut buffer = [0; 2048];
        loop {
            if self.live.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let now = self.now();
            self.count_refusals(now)?;
            if now >= end && self.sent >= self.load.schedule.total() {
                self.count(now)?;
                return Ok(self.outcome);
            }
            let more = self.send_due(now)?;
            let received = self.receive(&mut buffer)?;
            if !more && !received {
                self.wait()?;
            }
        }
    }

    /// Sends what is due, a batch at most; whether more is due.
    fn send_due(&mut self, now: Duration) -> io::Result<bool> {
        let due = self.load.schedule.due(now);
        self.leave_out(now);
        if due <= self.sent {
            return Ok(false);
        }
        if let Some(intended) = self.load.schedule.intended(self.sent) {
            self.outcome.lags.push((intended, now.saturating_sub(intended)));
        }
        let batch = (self.sent..due).take(usize::try_from(BATCH).unwrap_or(usize::MAX));
        let frames: Vec<_> = batch.filter_map(|attempt| self.syn(attempt)).collect();
        self.send(&frames)?;
        let count = (due - self.sent).min(BATCH);
        self.sent += count;
        self.live.offered.fetch_add(count, Ordering::Relaxed);
        Ok(due > self.sent)
    }

    fn leave_out(&mut self, now: Duration) {
        let Some(oldest) = now.checked_sub(LAG_MAX) else { return };
        let overdue = self.load.schedule.due(oldest);
        if overdue > self.sent {
            self.outcome.left_out.push(self.sent..overdue);
            self.sent = overdue;
        }
    }

    fn syn(&self, attempt: u64) -> Option<Vec<u8>> {
        let (_, from) = self.load.source(attempt)?;
        let segment = Segment {
            from,
            to: self.load.target,
            sequence: sequence(attempt),
            acknowledgement: 0,
            flags: SYN,
            payload: &[],
        };
        Some(self.link.frame(&segment.packet()))
    }

    fn send(&self, frames: &[Vec<u8>]) -> io::Result<()> {
        let slices: Vec<_> = frames.iter().map(|frame| [IoSlice::new(frame)]).collect();
        let mut nothing: Vec<_> = frames.iter().map(|_| SendAncillaryBuffer::default()).collect();
        let mut messages: Vec<_> =
            slices.iter().zip(&mut nothing).map(|(slice, nothing)| MMsgHdr::new(slice, nothing)).collect();
        let mut rest = messages.as_mut_slice();
        while !rest.is_empty() {
            match sendmmsg(&self.link.socket, rest, SendFlags::empty()) {
                Ok(sent) => rest = rest.get_mut(sent..).unwrap_or_default(),
                // The link is full: these are lost, as on a real one.
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Answers what came; whether anything did.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut replies = Vec::new();
        let mut received = false;
        for _ in 0..BATCH {
            let length = match recv(&self.receiver, &mut *buffer, RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno.into()),
            };
            received = true;
            let packet = buffer.get(..length).unwrap_or_default();
            if let Some(segment) = Segment::parse(packet)
                && segment.from == self.load.target
            {
                replies.extend(self.reply(&segment).map(|packet| self.link.frame(&packet)));
            }
        }
        self.send(&replies)?;
        Ok(received)
    }

    /// What a client says to this; a whole answer is counted.
    fn reply(&mut self, segment: &Segment<'_>) -> Option<Vec<u8>> {
        let reply = |flags, sequence, acknowledgement, payload| {
            let (from, to) = (segment.to, segment.from);
            let segment = Segment { from, to, sequence, acknowledgement, flags, payload };
            Some(segment.packet())
        };
        if segment.flags & (SYN | ACK) == SYN | ACK {
            let next = segment.sequence.wrapping_add(1);
            return reply(ACK | PSH, segment.acknowledgement, next, REQUEST);
        }
        if segment.payload.ends_with(b"\n\r\nok\n") || segment.payload == b"ok\n" {
            self.answer(segment.acknowledgement);
        }
        if segment.flags & FIN == 0 {
            return None;
        }
        let length = u32::try_from(segment.payload.len()).unwrap_or(0);
        let next = segment.sequence.wrapping_add(length).wrapping_add(1);
        reply(FIN | ACK, segment.acknowledgement, next, &[])
    }

    fn answer(&mut self, acknowledgement: u32) {
        let length = u32::try_from(REQUEST.len()).unwrap_or(0);
        let low = acknowledgement.wrapping_sub(1).wrapping_sub(length);
        let Some(attempt) = self.attempt(low) else { return };
        let Some(intended) = self.load.schedule.intended(attempt) else { return };
        let Some((source, _)) = self.load.source(attempt) else { return };
        // The server repeats what was not acknowledged in time.
        if !self.answered.insert(attempt) {
            return;
        }
        let ended = self.now();
        let useful = ended.saturating_sub(intended) <= self.load.patience;
        let fate = if useful { Fate::Useful } else { Fate::GaveUp };
        let counter = if useful { &self.live.useful } else { &self.live.gave_up };
        counter.fetch_add(1, Ordering::Relaxed);
        self.outcome.records.push(Record { source, intended, started: intended, ended, fate });
    }

    /// The latest attempt with this initial sequence number.
    fn attempt(&self, low: u32) -> Option<u64> {
        let last = self.sent.checked_sub(1)?;
        last.checked_sub(u64::from(sequence(last).wrapping_sub(low)))
    }

    fn count_refusals(&mut self, now: Duration) -> io::Result<()> {
        let counted = self.outcome.refused.len();
        if self.boundaries.get(counted).is_some_and(|boundary| now >= *boundary) {
            self.count(now)
        } else {
            Ok(())
        }
    }

    fn count(&mut self, now: Duration) -> io::Result<()> {
        for (counter, refused) in self.counters.iter().zip(&mut self.refused) {
            let count = passed(counter)?;
            *refused += count;
            self.live.refused.fetch_add(count, Ordering::Relaxed);
        }
        self.outcome.refused.push((now, self.refused.clone()));
        Ok(())
    }

    /// Until something comes, or the next attempt is due.
    fn wait(&self) -> io::Result<()> {
        let busy = self.sent < self.load.schedule.total()
            && self.load.schedule.intended(self.sent).is_some_and(|next| next <= self.now() + IDLE);
        let timeout = Timespec::try_from(if busy { PACE } else { IDLE }).map_err(io::Error::other)?;
        match poll(&mut [PollFd::from_borrowed_fd(self.receiver.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn sequence(attempt: u64) -> u32 {
    u32::try_from(attempt & u64::from(u32::MAX)).unwrap_or(0)
}

/// A socket that sees the IPv4 packets which arrive in the namespace of the calling thread.
fn packet_socket(filter: Filter) -> io::Result<OwnedFd> {
    let protocol = NonZeroU32::new(ETH_P_IP.to_be().into()).map(Protocol::from_raw);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, protocol)?;
    filter.attach(&socket)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::super::schedule::Step;
    use super::*;

    fn load() -> StatelessLoad {
        StatelessLoad {
            target: SocketAddrV4::new([10, 77, 0, 2].into(), 8080),
            sources: vec![stateless_source(0, 1), stateless_source(2, 1), stateless_source(2, 2)],
            schedule: Schedule::new([Step { per_second: 10, duration: Duration::from_secs(1) }]),
            patience: Duration::from_millis(250),
            cpu: None,
        }
    }

    #[test]
    fn attempts_take_addresses_and_ports_in_turn() {
        let load = load();
        let at = |attempt| load.source(attempt).unwrap();
        assert_eq!(at(0), (0, SocketAddrV4::new(stateless_source(0, 1), 1024)));
        assert_eq!(at(2), (2, SocketAddrV4::new(stateless_source(2, 2), 1024)));
        assert_eq!(at(3), (0, SocketAddrV4::new(stateless_source(0, 1), 1025)));
        assert_eq!(at(3 * PORTS), at(0));
        assert_eq!(load.groups(), [0, 2]);
        assert_eq!(StatelessLoad { sources: Vec::new(), ..load }.source(0), None);
    }

    #[test]
    fn an_attempt_is_known_by_its_sequence_number() {
        let (load, live) = (load(), Live::default());
        // Only the arithmetic is asked for; any socket will do.
        let socket = || OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let mut client = Client {
            load: &load,
            boundaries: &[],
            live: &live,
            link: Link { socket: socket(), header: [0; 14] },
            receiver: socket(),
            counters: Vec::new(),
            refused: Vec::new(),
            start: clock::now(),
            sent: 5,
            answered: HashSet::new(),
            outcome: StatelessOutcome::default(),
        };
        assert_eq!(client.attempt(3), Some(3));
        assert_eq!(client.attempt(5), None, "not sent yet");
        client.sent = (1 << 32) + 5;
        assert_eq!(client.attempt(3), Some((1 << 32) + 3));
        assert_eq!(client.attempt(7), Some(7));
        client.sent = 5;
        let length = u32::try_from(REQUEST.len()).unwrap();
        client.answer(2 + 1 + length);
        client.answer(2 + 1 + length);
        assert_eq!(client.outcome.records.len(), 1, "once only");
        assert_eq!(client.outcome.records[0].intended, Duration::from_millis(200));
        assert_eq!(client.outcome.records[0].source, 2);
    }
}
