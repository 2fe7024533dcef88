//! The one thread that carries a load out: starts on time, watches all sockets, gives up on time.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::attempt::{Attempt, End, Life};
use super::clock;
use super::load::{Live, Load};
use super::outcome::Outcome;
use super::record::{Fate, Record};

/// How often the client looks whether it shall stop.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// How many connections a client that lags starts in one go.
const STARTS_MAX: u32 = 32;

pub(super) struct Client<'a> {
    load: &'a Load,
    live: &'a Live,
    epoll: OwnedFd,
    start: Instant,
    attempts: HashMap<u64, Attempt>,
    /// In ascending order, since patience is the same for all; also of attempts that are done.
    deadlines: VecDeque<(Duration, u64)>,
    outcome: Outcome,
    records: Vec<Record>,
}

impl<'a> Client<'a> {
    pub(super) fn new(load: &'a Load, live: &'a Live) -> io::Result<Self> {
        Ok(Self {
            load,
            live,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            start: clock::now(),
            attempts: HashMap::new(),
            deadlines: VecDeque::new(),
            outcome: Outcome::over(load.duration),
            records: Vec::new(),
        })
    }

    /// Until the last connection is done, or `live.stop`.
    pub(super) fn run(mut self) -> io::Result<Outcome> {
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
        Ok(self.outcome.with_records(self.records))
    }

    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.start)
    }

    /// Starts what is due, a few at most before the sockets get their turn, and says when the next one is.
    fn start_due(&mut self) -> Option<Duration> {
        for _ in 0..STARTS_MAX {
            let now = self.now();
            let intended = self.load.intended(self.outcome.offered, self.attempts.len(), now)?;
            if intended >= self.load.duration {
                return None;
            }
            if intended > now {
                return Some(intended);
            }
            self.outcome.lag_max = self.outcome.lag_max.max(now - intended);
            self.attempt(intended, now);
        }
        Some(self.now())
    }

    fn attempt(&mut self, intended: Duration, now: Duration) {
        let id = self.outcome.offered;
        let life = Life { source: self.source(id), intended, started: now };
        self.outcome.offered += 1;
        self.live.offered.fetch_add(1, Ordering::Relaxed);
        match self.open(id, life) {
            Ok(attempt) => {
                self.deadlines.push_back((intended + self.load.patience, id));
                self.attempts.insert(id, attempt);
            }
            Err(errno) => self.end(life, errno.into()),
        }
    }

    fn source(&self, id: u64) -> usize {
        usize::try_from(id).unwrap_or(usize::MAX).checked_rem(self.load.sources.len()).unwrap_or(0)
    }

    fn open(&self, id: u64, life: Life) -> rustix::io::Result<Attempt> {
        let source = self.load.sources.get(life.source).copied();
        let attempt = Attempt::start(self.load.target, source, life)?;
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &attempt.socket, EventData::new_u64(id), edges)?;
        Ok(attempt)
    }

    /// Gives up what has waited too long and says when the next patience ends.
    fn give_up_due(&mut self) -> Option<Duration> {
        while let Some(&(deadline, id)) = self.deadlines.front() {
            if self.attempts.contains_key(&id) {
                if deadline > self.now() {
                    return Some(deadline);
                }
                if let Some(attempt) = self.attempts.remove(&id) {
                    self.gave_up(&attempt);
                }
            }
            self.deadlines.pop_front();
        }
        None
    }

    fn gave_up(&mut self, attempt: &Attempt) {
        self.live.gave_up.fetch_add(1, Ordering::Relaxed);
        self.outcome.gave_up += 1;
        self.outcome.gave_up_unconnected += u64::from(!attempt.connected);
        self.record(attempt.life, Fate::GaveUp);
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
        let Some(end) = attempt.advance() else { return };
        let Some(attempt) = self.attempts.remove(&id) else { return };
        if self.now().saturating_sub(attempt.life.intended) > self.load.patience {
            self.gave_up(&attempt);
        } else {
            self.end(attempt.life, end);
        }
    }

    fn end(&mut self, life: Life, end: End) {
        let fate = match end {
            End::Answered => {
                self.live.useful.fetch_add(1, Ordering::Relaxed);
                Fate::Useful
            }
            End::Refused => {
                self.live.refused.fetch_add(1, Ordering::Relaxed);
                self.outcome.refused += 1;
                Fate::Refused
            }
            End::Failed(why) => {
                *self.outcome.failed.entry(why).or_default() += 1;
                Fate::Failed
            }
        };
        self.record(life, fate);
    }

    fn record(&mut self, life: Life, fate: Fate) {
        let Life { source, intended, started } = life;
        self.records.push(Record { source, intended, started, ended: self.now(), fate });
    }
}
