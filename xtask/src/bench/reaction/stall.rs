//! What hurts: a process of its own, so that it can have its own control group and limits, and can end at any time.
//!
//! It obeys lines on standard input: `listen` (answered with `ready`), `start`, `stop`; at their end it ends.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::{Advice, fadvise};
use rustix::process::{Resource, getrlimit, setrlimit};
use xtask::testbed::{cpus, listen_on};

/// Which resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// More threads that compute than there are CPUs
    Cpu,
    /// A working set that is larger than the memory of its control group
    Memory,
    /// A process that opens files until it has few descriptors left
    Fds,
    /// A server that stops accepting
    Accept,
}

/// What the process is told at its start.
#[derive(Debug, clap::Args)]
pub(crate) struct Stall {
    kind: Kind,
    /// Where it listens, in its network namespace
    #[arg(long)]
    listen: SocketAddr,
    /// What it reads; for `memory`
    #[arg(long)]
    file: Option<PathBuf>,
}

pub(super) const BACKLOG: u16 = 32;
const THREADS_BY_CPU: usize = 2;
const OPEN_FILES_MAX: u64 = 100;
/// How many descriptors are left while it hurts.
const OPEN_FILES_LEFT: usize = 2;
const READERS: usize = 4;
const PAGE_BYTES: usize = 4096;
const ACCEPT_STEP: Duration = Duration::from_millis(2);

/// Runs it until its standard input ends.
pub(crate) fn run(stall: Stall) -> anyhow::Result<()> {
    let switch = Arc::new(Switch::default());
    let mut lines = io::stdin().lock().lines();
    let say = |word: &str| writeln!(io::stdout(), "{word}").and_then(|()| io::stdout().flush());
    while let Some(line) = lines.next().transpose()? {
        match line.as_str() {
            "listen" => {
                prepare(&stall, &switch)?;
                say("ready")?;
            }
            "start" => switch.set(true),
            "stop" => switch.set(false),
            other => anyhow::bail!("{other:?} is none of listen, start, stop"),
        }
    }
    // Its threads never end by themselves.
    exit(0)
}

fn prepare(stall: &Stall, switch: &Arc<Switch>) -> anyhow::Result<()> {
    let listener = listen_on(stall.listen, BACKLOG).with_context(|| stall.listen.to_string())?;
    let accepts_always = stall.kind != Kind::Accept;
    let accept = Arc::clone(switch);
    thread::spawn(move || {
        loop {
            if accepts_always || !accept.is_on() {
                // Whoever comes is let go at once.
                while listener.accept().is_ok() {}
            }
            thread::sleep(ACCEPT_STEP);
        }
    });
    match stall.kind {
        Kind::Cpu => {
            for _ in 0..cpus()?.len() * THREADS_BY_CPU {
                let switch = Arc::clone(switch);
                thread::spawn(move || {
                    loop {
                        switch.wait_until_on();
                        while switch.is_on() {
                            std::hint::spin_loop();
                        }
                    }
                });
            }
        }
        Kind::Memory => {
            let path = stall.file.as_ref().context("--file is missing")?;
            let file = File::open(path).with_context(|| path.display().to_string())?;
            let pages = file.metadata()?.len() / PAGE_BYTES as u64;
            fadvise(&file, 0, None, Advice::Random)?;
            let file = Arc::new(file);
            // The control group is full, and its pages have been used more than once, before it starts to hurt.
            for seed in 0..2 {
                Reader::new(&file, pages, seed).read(2 * pages)?;
            }
            for seed in 0..READERS {
                let switch = Arc::clone(switch);
                let mut reader = Reader::new(&file, pages, seed as u64 + 10);
                thread::spawn(move || {
                    loop {
                        switch.wait_until_on();
                        if reader.read(1).is_err() {
                            exit(1);
                        }
                    }
                });
            }
        }
        Kind::Fds => {
            let mut limit = getrlimit(Resource::Nofile);
            limit.current = Some(OPEN_FILES_MAX);
            setrlimit(Resource::Nofile, limit)?;
            let switch = Arc::clone(switch);
            thread::spawn(move || {
                loop {
                    switch.wait_until_on();
                    let mut open: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
                    open.truncate(open.len().saturating_sub(OPEN_FILES_LEFT));
                    switch.wait_until_off();
                }
            });
        }
        Kind::Accept => {}
    }
    Ok(())
}

/// Reads pages in an order that no readahead foresees.
struct Reader {
    file: Arc<File>,
    pages: u64,
    state: u64,
}

impl Reader {
    fn new(file: &Arc<File>, pages: u64, seed: u64) -> Self {
        Self {
            file: Arc::clone(file),
            pages: pages.max(1),
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn read(&mut self, count: u64) -> io::Result<()> {
        let mut page = [0; PAGE_BYTES];
        for _ in 0..count {
            let page_number = self.next();
            self.file.read_exact_at(&mut page, page_number * PAGE_BYTES as u64)?;
        }
        Ok(())
    }

    /// xorshift64
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.pages
    }
}

/// Whether it hurts now.
#[derive(Debug, Default)]
struct Switch {
    on: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Switch {
    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn set(&self, on: bool) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.on.store(on, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn wait_until_on(&self) {
        self.wait(true);
    }

    fn wait_until_off(&self) {
        self.wait(false);
    }

    fn wait(&self, on: bool) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.is_on() != on {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_all_over_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 64 * PAGE_BYTES]).unwrap();
        let mut reader = Reader::new(&Arc::new(file), 64, 3);
        reader.read(10).unwrap();
        let pages: std::collections::BTreeSet<_> = (0..1000).map(|_| reader.next()).collect();
        assert_eq!(pages.len(), 64);
        assert_eq!(pages.last(), Some(&63));
    }

    #[test]
    fn the_switch_wakes_who_waits() {
        let switch = Arc::new(Switch::default());
        let waiting = Arc::clone(&switch);
        let thread = thread::spawn(move || {
            waiting.wait_until_on();
            waiting.wait_until_off();
        });
        switch.set(true);
        assert!(switch.is_on());
        switch.set(false);
        drop(thread);
    }
}
