//! A client that does not slow down when the server does.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use super::clock;
use super::cpu;
use super::namespace::Namespace;
use super::outcome::Outcome;
use super::server::ANSWER;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: testbed\r\nConnection: close\r\n\r\n";

/// How often the client looks whether it shall stop.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// When connections are attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At fixed times, however the server fares.
    Open {
        /// Connections per second.
        per_second: u32,
    },
    /// As soon as an earlier one is done, so that this many are always under way.
    Closed {
        /// Concurrent connections.
        connections: usize,
    },
}

/// A load of fresh connections, each with one HTTP request, on a [`super::Server`].
///
/// Latency counts from the intended start, so that a client which is held up does not hide what its users
/// would have waited. A client whose patience ends closes its socket as browsers do, with FIN: the server
/// cannot tell and answers anyway.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where the server listens.
    pub target: SocketAddr,
    /// Addresses to connect from, in turn; none leaves it to the kernel. One address is good for some 28,000
    /// connections a minute.
    pub sources: Vec<IpAddr>,
    /// When connections are attempted.
    pub pace: Pace,
    /// For how long connections are attempted; those under way then are still seen to their end.
    pub duration: Duration,
    /// From the intended start to giving up.
    pub patience: Duration,
    /// The CPU the client stays on.
    pub cpu: Option<usize>,
}

/// Counts of a load while it runs, and the way to stop it.
#[derive(Debug, Default)]
pub struct Live {
    /// Set it to end the load early, with [`io::ErrorKind::Interrupted`].
    pub stop: Arc<AtomicBool>,
    /// Connections attempted.
    pub offered: AtomicU64,
    /// Complete answers in time.
    pub useful: AtomicU64,
    /// Connections refused.
    pub refused: AtomicU64,
    /// Connections without an answer in time.
    pub gave_up: AtomicU64,
}

impl Load {
    /// Ten seconds, a patience of 250 ms, from the address that the kernel chooses, on any CPU.
    #[must_use]
    pub fn new(target: SocketAddr, pace: Pace) -> Self {
        Self {
            target,
            sources: Vec::new(),
            pace,
            duration: Duration::from_secs(10),
            patience: Duration::from_millis(250),
            cpu: None,
        }
    }

    /// Runs the load from within `namespace`, on one thread, until the last connection is done.
    ///
    /// # Errors
    /// When the client cannot work at all, or was stopped. What happens to a connection is no error but
    /// counted.
    pub fn run_in(&self, namespace: &Namespace, live: &Live) -> io::Result<Outcome> {
        namespace.enter(|| self.run(live))?
    }

    /// As [`Load::run_in`], on the calling thread and in its namespace; pins the thread if a CPU is given.
    ///
    /// # Errors
    /// As [`Load::run_in`].
    pub fn run(&self, live: &Live) -> io::Result<Outcome> {
        cpu::be_punctual(self.cpu)?;
        Client {
            load: self,
            live,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            start: clock::now(),
            attempts: HashMap::new(),
            deadlines: VecDeque::new(),
            outcome: Outcome::over(self.duration),
            latencies: Vec::new(),
        }
        .run()
    }

    /// When the connection after `offered` earlier ones shall start, counted from the start of the load;
    /// `None` when it waits for another to end.
    fn intended(&self, offered: u64, under_way: usize, now: Duration) -> Option<Duration> {
        match self.pace {
            Pace::Open { per_second } => {
                let ns = u128::from(offered) * 1_000_000_000 / u128::from(per_second.max(1));
                Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
            }
            Pace::Closed { connections } => (under_way < connections).then_some(now),
        }
    }
}

struct Client<'a> {
    load: &'a Load,
    live: &'a Live,
    epoll: OwnedFd,
    start: Instant,
    attempts: HashMap<u64, Attempt>,
    /// In ascending order, since patience is the same for all; also of attempts that are done.
    deadlines: VecDeque<(Duration, u64)>,
    outcome: Outcome,
    latencies: Vec<Duration>,
}

struct Attempt {
    socket: OwnedFd,
    /// From the start of the load.
    intended: Duration,
    connected: bool,
    answer: Vec<u8>,
}

/// How an attempt ended.
enum End {
    Answered,
    Refused,
    Failed(String),
}

impl From<Errno> for End {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE => Self::Refused,
            other => Self::Failed(other.to_string()),
        }
    }
}

impl Client<'_> {
    fn run(mut self) -> io::Result<Outcome> {
        let mut events = Vec::with_capacity(1024);
        loop {
            if self.live.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let next_start = self.start_due();
            let next_deadline = self.give_up_due();
            if next_start.is_none() && self.attempts.is_empty() && self.now() >= self.load.duration {
                break;
            }
            self.wait(next_start, next_deadline)?;
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::default()))?;
            for event in &events {
                self.handle(event.data.u64());
            }
        }
        Ok(self.outcome.with_latencies(self.latencies))
    }

    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.start)
    }

    /// Starts what is due and says when the next one is.
    fn start_due(&mut self) -> Option<Duration> {
        loop {
            let now = self.now();
            let intended = self.load.intended(self.outcome.offered, self.attempts.len(), now)?;
            if intended >= self.load.duration {
                return None;
            }
            if intended > now {
                return Some(intended);
            }
            self.outcome.lag_max = self.outcome.lag_max.max(now - intended);
            self.attempt(intended);
        }
    }

    fn attempt(&mut self, intended: Duration) {
        let id = self.outcome.offered;
        self.outcome.offered += 1;
        self.live.offered.fetch_add(1, Ordering::Relaxed);
        match self.open(id) {
            Ok(socket) => {
                self.deadlines.push_back((intended + self.load.patience, id));
                self.attempts.insert(id, Attempt { socket, intended, connected: false, answer: Vec::new() });
            }
            Err(errno) => self.end(intended, errno.into()),
        }
    }

    fn open(&self, id: u64) -> rustix::io::Result<OwnedFd> {
        let target = self.load.target;
        let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        let turn = usize::try_from(id).unwrap_or(usize::MAX).checked_rem(self.load.sources.len());
        if let Some(&source) = turn.and_then(|turn| self.load.sources.get(turn)) {
            bind(&socket, &SocketAddr::new(source, 0))?;
        }
        match connect(&socket, &target) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &socket, EventData::new_u64(id), edges)?;
        Ok(socket)
    }

    /// Gives up what has waited too long and says when the next patience ends.
    fn give_up_due(&mut self) -> Option<Duration> {
        while let Some(&(deadline, id)) = self.deadlines.front() {
            if self.attempts.contains_key(&id) {
                if deadline > self.now() {
                    return Some(deadline);
                }
                if let Some(attempt) = self.attempts.remove(&id) {
                    self.gave_up(attempt.connected);
                }
            }
            self.deadlines.pop_front();
        }
        None
    }

    fn gave_up(&mut self, connected: bool) {
        self.live.gave_up.fetch_add(1, Ordering::Relaxed);
        self.outcome.gave_up += 1;
        self.outcome.gave_up_unconnected += u64::from(!connected);
    }

    /// Until something happens or is due. `epoll_wait` itself knows only milliseconds on older kernels.
    fn wait(&self, next_start: Option<Duration>, next_deadline: Option<Duration>) -> io::Result<()> {
        let now = self.now();
        let due = [next_start, next_deadline].into_iter().flatten().min().unwrap_or(Duration::MAX);
        let timeout =
            Timespec::try_from(due.saturating_sub(now).min(STOP_CHECK)).map_err(io::Error::other)?;
        match poll(&mut [PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn handle(&mut self, id: u64) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if let Some(end) = attempt.advance() {
            let intended = attempt.intended;
            let connected = attempt.connected;
            self.attempts.remove(&id);
            if self.now().saturating_sub(intended) > self.load.patience {
                self.gave_up(connected);
            } else {
                self.end(intended, end);
            }
        }
    }

    fn end(&mut self, intended: Duration, end: End) {
        match end {
            End::Answered => {
                self.live.useful.fetch_add(1, Ordering::Relaxed);
                self.latencies.push(self.now().saturating_sub(intended));
            }
            End::Refused => {
                self.live.refused.fetch_add(1, Ordering::Relaxed);
                self.outcome.refused += 1;
            }
            End::Failed(why) => *self.outcome.failed.entry(why).or_default() += 1,
        }
    }
}

impl Attempt {
    /// Does what the socket allows now; the end, once there is one.
    fn advance(&mut self) -> Option<End> {
        self.try_advance().unwrap_or_else(|errno| Some(errno.into()))
    }

    fn try_advance(&mut self) -> rustix::io::Result<Option<End>> {
        if !self.connected {
            sockopt::socket_error(&self.socket)??;
            match write(&self.socket, REQUEST) {
                Ok(sent) if sent == REQUEST.len() => self.connected = true,
                Ok(_) => return Ok(Some(End::Failed("the request did not fit the socket".to_owned()))),
                // Not established yet.
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        let mut chunk = [0; 256];
        loop {
            match read(&self.socket, &mut chunk) {
                Ok(0) if self.answer == ANSWER => return Ok(Some(End::Answered)),
                Ok(0) => return Ok(Some(End::Failed("closed without a complete answer".to_owned()))),
                Ok(count) => self.answer.extend(chunk.iter().take(count)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(pace: Pace) -> Load {
        Load::new(([127, 0, 0, 1], 1).into(), pace)
    }

    #[test]
    fn an_open_load_keeps_its_times_whatever_is_under_way() {
        let load = load(Pace::Open { per_second: 4000 });
        for (under_way, now) in [(0, Duration::ZERO), (10_000, Duration::from_secs(9))] {
            assert_eq!(load.intended(0, under_way, now), Some(Duration::ZERO));
            assert_eq!(load.intended(1, under_way, now), Some(Duration::from_micros(250)));
            assert_eq!(load.intended(40_000, under_way, now), Some(Duration::from_secs(10)));
        }
    }

    #[test]
    fn a_closed_load_waits_for_a_place() {
        let load = load(Pace::Closed { connections: 2 });
        let now = Duration::from_millis(7);
        assert_eq!(load.intended(5, 1, now), Some(now));
        assert_eq!(load.intended(5, 2, now), None);
    }

    proptest! {
        #[test]
        fn an_open_load_attempts_its_rate_in_every_second(per_second in 1_u32..200_000, second in 0_u64..1000) {
            let load = load(Pace::Open { per_second });
            let first = u64::from(per_second) * second;
            let at = |offered| load.intended(offered, 0, Duration::ZERO).unwrap();
            prop_assert_eq!(at(first), Duration::from_secs(second));
            prop_assert!(at(first + u64::from(per_second) - 1) < Duration::from_secs(second + 1));
        }
    }
}
