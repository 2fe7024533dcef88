//! A queue in front of one server, judged as the kernel judges: how long those wait who are admitted.

use std::collections::VecDeque;
use std::vec::Vec;

use super::memory::Memory;
use crate::address::Address;
use crate::class::Class;
use crate::control::Mode;
use crate::judge::{Cell, Listener, Outcome, Socket, judge};
use crate::limits::{PolicyLimits, Scope};
use crate::packet::parse::Attempt;

const POLICY: u32 = 1;
const LIMIT_US: u32 = 50_000;
/// 1,600 connections a second.
const SERVICE_US: u64 = 625;
/// The clock of the programs stands still for so long.
const CLOCK_STEP_NS: u64 = 4_000_000;
const BACKLOG: u32 = 1023;
const START_US: u64 = 1_000_000_000;

struct Line {
    memory: Memory,
    queue: VecDeque<u64>,
    now_us: u64,
    free_us: u64,
    waits_us: Vec<u64>,
    refused: usize,
    attempts: u32,
}

impl Line {
    fn new() -> Self {
        let mut limits = PolicyLimits::unlimited(Class::Interactive);
        limits.scope = Scope::Any as u32;
        limits.queue_wait_us = LIMIT_US;
        for class in &mut limits.classes {
            class.queue_wait_us = LIMIT_US;
        }
        let mut memory = Memory::new(Mode::Enforce);
        memory.ports.insert(80, POLICY);
        memory.limits.insert(POLICY, limits);
        Self {
            memory,
            queue: VecDeque::new(),
            now_us: START_US,
            free_us: START_US,
            waits_us: Vec::new(),
            refused: 0,
            attempts: 0,
        }
    }

    /// Connections at an even pace for a time.
    fn offer(&mut self, per_second: u64, seconds: u64) {
        let end_us = self.now_us + seconds * 1_000_000;
        let mut due_us = self.now_us;
        while due_us < end_us {
            self.serve_until(due_us);
            self.now_us = due_us;
            self.arrive();
            due_us += 1_000_000 / per_second;
        }
    }

    fn serve_until(&mut self, time_us: u64) {
        while let Some(established_us) = self.queue.front() {
            let accepted_us = self.free_us.max(*established_us);
            if accepted_us > time_us {
                return;
            }
            self.waits_us.push(accepted_us - established_us);
            self.free_us = accepted_us + SERVICE_US;
            self.queue.pop_front();
        }
    }

    fn arrive(&mut self) {
        // The kernel drops what finds the queue full.
        if self.queue.len() > BACKLOG as usize {
            return;
        }
        self.memory.now_ns = self.now_us * 1000 / CLOCK_STEP_NS * CLOCK_STEP_NS;
        self.memory.socket = Socket::Listener(Listener {
            accept_queue: u32::try_from(self.queue.len()).unwrap(),
            backlog: BACKLOG,
            syn_queue: 0,
            oldest_us: self.queue.front().copied().unwrap_or(0),
        });
        self.attempts += 1;
        let attempt = Attempt {
            source: Address::from_v4([192, 0, 2, 1]),
            destination_port: 80,
            sequence: self.attempts,
            segment_len: 20,
            ..Attempt::default()
        };
        match judge(&self.memory, &attempt).unwrap().outcome() {
            Outcome::Admit => {
                self.queue.push_back(self.now_us);
                let established = &self.memory.state_of(POLICY).service.established;
                established.store(established.load() + 1);
            }
            _ => self.refused += 1,
        }
    }

    /// The 99th of a hundred waits since the last look, and how many there were.
    fn look(&mut self) -> (u64, usize) {
        let mut waits_us = std::mem::take(&mut self.waits_us);
        waits_us.sort_unstable();
        (waits_us[waits_us.len() * 99 / 100], waits_us.len())
    }
}

#[test]
fn overload_of_any_size_keeps_the_server_busy_and_the_wait_at_the_limit() {
    for per_second in [2000, 4000, 16_000, 100_000] {
        let mut line = Line::new();
        line.offer(per_second, 1);
        line.look();
        line.offer(per_second, 5);
        let (wait_us, served) = line.look();
        assert!((7_990..=8_001).contains(&served), "{per_second}: {served} served in 5 s");
        assert!(wait_us <= 52_000, "{per_second}: {wait_us} us");
    }
}

#[test]
fn a_server_that_keeps_up_refuses_nobody() {
    let mut line = Line::new();
    line.offer(1500, 5);
    assert_eq!(line.refused, 0);
    // Neither after an overload.
    line.offer(8000, 3);
    line.offer(800, 1);
    let refused = line.refused;
    line.offer(1500, 5);
    assert_eq!(line.refused, refused);
}

#[test]
fn a_server_that_gets_faster_is_soon_believed() {
    let mut line = Line::new();
    line.offer(4000, 2);
    // Something else held the server up; now it takes what has waited at once.
    line.free_us += 2_000_000;
    line.offer(4000, 2);
    line.look();
    line.offer(4000, 5);
    let (_, served) = line.look();
    assert!(served >= 7_800, "{served} served in 5 s");
}
