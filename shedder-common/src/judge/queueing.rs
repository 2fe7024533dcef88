//! A queue in front of one server, judged as the kernel judges: how long those wait who are admitted.

use std::collections::VecDeque;
use std::vec::Vec;

use super::memory::Memory;
use crate::address::Address;
use crate::class::Class;
use crate::control::Mode;
use crate::judge::{Cell, Listener, Outcome, Socket, judge};
use crate::limits::{PolicyLimits, Scope, SourceRule};
use crate::packet::parse::Attempt;

const POLICY: u32 = 1;
const LIMIT_US: u32 = 50_000;
/// 1,600 connections a second.
const SERVICE_US: u64 = 625;
/// Short stalls and pages with several connections are usual.
const PAGE: u64 = 6;
/// The clock of the programs stands still for so long.
const CLOCK_STEP_NS: u64 = 4_000_000;
const BACKLOG: u32 = 1023;
const START_US: u64 = 1_000_000_000;

fn source(class: Class) -> Address {
    Address::from_v4([192, 0, 2, class as u8])
}

struct Line {
    memory: Memory,
    queue: VecDeque<u64>,
    /// When those arrive whose handshake is not complete.
    approaching: VecDeque<u64>,
    round_trip_us: u64,
    /// Attempts from false addresses, which complete no handshake.
    false_per_second: u64,
    now_us: u64,
    free_us: u64,
    service_us: u64,
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
        for class in Class::ALL {
            memory.add_source(source(class), 128, SourceRule { class: Some(class), exempt: false });
        }
        Self {
            memory,
            queue: VecDeque::new(),
            approaching: VecDeque::new(),
            round_trip_us: 200,
            false_per_second: 0,
            now_us: START_US,
            free_us: START_US,
            service_us: SERVICE_US,
            waits_us: Vec::new(),
            refused: 0,
            attempts: 0,
        }
    }

    /// Connections at an even pace for a time.
    fn offer(&mut self, per_second: u64, seconds: u64) {
        let end_us = self.now_us + seconds * 1_000_000;
        let (mut due_us, mut false_due_us) = (self.now_us, self.now_us);
        while due_us < end_us {
            while self.false_per_second != 0 && false_due_us <= due_us {
                self.step(false_due_us);
                self.ask();
                false_due_us += 1_000_000 / self.false_per_second;
            }
            self.step(due_us);
            match self.ask() {
                Outcome::Admit => self.approaching.push_back(due_us + self.round_trip_us),
                _ => self.refused += 1,
            }
            due_us += 1_000_000 / per_second;
        }
    }

    fn step(&mut self, time_us: u64) {
        self.pass_until(time_us);
        self.now_us = time_us;
    }

    fn pass_until(&mut self, time_us: u64) {
        while let Some(established_us) = self.approaching.pop_front_if(|arrival_us| *arrival_us <= time_us) {
            self.serve_until(established_us);
            // The kernel drops what finds the queue full.
            if self.queue.len() <= BACKLOG as usize {
                self.queue.push_back(established_us);
                let service = &self.memory.state_of(POLICY).service;
                service.established.add(1);
                service.approach.observe(self.round_trip_us);
            }
        }
        self.serve_until(time_us);
    }

    fn serve_until(&mut self, time_us: u64) {
        while let Some(established_us) = self.queue.front() {
            let accepted_us = self.free_us.max(*established_us);
            if accepted_us > time_us {
                return;
            }
            self.waits_us.push(accepted_us - established_us);
            self.free_us = accepted_us + self.service_us;
            self.queue.pop_front();
        }
    }

    fn ask(&mut self) -> Outcome {
        self.ask_as(Class::Interactive)
    }

    fn ask_as(&mut self, class: Class) -> Outcome {
        self.memory.now_ns = self.now_us * 1000 / CLOCK_STEP_NS * CLOCK_STEP_NS;
        self.memory.socket = Socket::Listener(Listener {
            accept_queue: u32::try_from(self.queue.len()).unwrap(),
            backlog: BACKLOG,
            syn_queue: 0,
            oldest_us: self.queue.front().copied().unwrap_or(0),
        });
        self.attempts += 1;
        let attempt = Attempt {
            source: source(class),
            destination_port: 80,
            sequence: self.attempts,
            segment_len: 20,
            ..Attempt::default()
        };
        judge(&self.memory, &attempt).unwrap().outcome()
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
    for round_trip_us in [50, 200, 1000, 4000] {
        for per_second in [2000, 4000, 16_000, 160_000] {
            let mut line = Line::new();
            line.round_trip_us = round_trip_us;
            line.offer(per_second, 1);
            line.look();
            line.offer(per_second, 5);
            let (wait_us, served) = line.look();
            let case = std::format!("{per_second}/s, {round_trip_us} us");
            assert!((7_920..=8_001).contains(&served), "{case}: {served} served in 5 s");
            assert!(wait_us <= 55_000 + round_trip_us, "{case}: waits of {wait_us} us");
        }
    }
}

/// Whoever is admitted comes a round trip later, so that no decision can be exact.
#[test]
fn clients_far_away_cost_some_wait_and_some_idleness() {
    for per_second in [2000, 4000, 16_000] {
        let mut line = Line::new();
        line.round_trip_us = 40_000;
        line.offer(per_second, 2);
        line.look();
        line.offer(per_second, 5);
        let (wait_us, served) = line.look();
        assert!(wait_us <= 50_000 + 2 * line.round_trip_us, "{per_second}/s: waits of {wait_us} us");
        assert!(served >= 6_800, "{per_second}/s: {served} served in 5 s");
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

#[test]
fn a_flood_that_completes_no_handshake_refuses_nobody_else() {
    let mut line = Line::new();
    line.offer(1500, 2);
    for false_per_second in [1000, 10_000, 100_000] {
        line.false_per_second = false_per_second;
        line.offer(1500, 1);
        let refused = line.refused;
        line.offer(1500, 5);
        assert_eq!(line.refused - refused, 0, "{false_per_second} false ones a second");
    }
}

#[test]
fn a_stall_that_is_over_refuses_nobody() {
    for stall_us in [60_000, 300_000, 3_000_000] {
        let mut line = Line::new();
        line.offer(1000, 2);
        line.free_us = line.now_us + stall_us;
        line.offer(1000, 1 + stall_us / 1_000_000);
        // It serves what has waited and catches up.
        line.offer(100, 1);
        let refused = line.refused;
        line.offer(1000, 3);
        assert_eq!(line.refused - refused, 0, "after {stall_us} us");
    }
}

/// The part of the limit that a class does not see is for those who see more of it.
#[test]
fn classes_with_more_of_the_limit_get_all_that_they_ask_for() {
    let classes = [Class::Control, Class::Interactive, Class::Batch];
    for round_trip_us in [50, 1000] {
        for per_second in [3000, 4200] {
            let mut line = Line::new();
            line.round_trip_us = round_trip_us;
            let limits = line.memory.limits.get_mut(&POLICY).unwrap();
            limits.classes[Class::Interactive.index()].queue_wait_us = LIMIT_US / 10 * 8;
            limits.classes[Class::Batch.index()].queue_wait_us = LIMIT_US / 2;
            let mut admitted = [0_u64; 3];
            for number in 0..per_second * 6 {
                let due_us = START_US + number * 1_000_000 / per_second;
                let class = usize::try_from(number % 3).unwrap();
                line.step(due_us);
                if line.ask_as(classes[class]) == Outcome::Admit {
                    line.approaching.push_back(due_us + round_trip_us);
                    admitted[class] += u64::from(number >= per_second);
                }
            }
            let [control, interactive, batch] = admitted.map(|count| count * 300 / (5 * per_second));
            let case =
                std::format!("{per_second}/s, {round_trip_us} us: {control}, {interactive}, {batch} %");
            assert!(control >= 99 && batch <= 1, "{case}");
            let served = admitted.iter().sum::<u64>();
            assert!((7_920..=8_001).contains(&served), "{case}: {served} served in 5 s");
        }
    }
}

/// Whether a connection that comes now would wait for less than half of the limit, and the oldest waits less than it.
fn would_be_served_soon(line: &Line) -> bool {
    let ahead = (line.queue.len() + line.approaching.len()) as u64 * line.service_us;
    let wait_us = (line.free_us.saturating_sub(line.now_us) + ahead).saturating_sub(line.round_trip_us);
    let age_us = line.queue.front().map_or(0, |established_us| line.now_us - established_us);
    wait_us < u64::from(LIMIT_US / 2) && age_us < u64::from(LIMIT_US)
}

/// Uneven arrivals, in pages too, at a server that now and then stands still for a moment: what such a moment makes
/// of the measurement must not keep out those who come when it is over.
#[test]
fn a_server_that_stalls_now_and_then_keeps_out_nobody_in_between() {
    for (service_us, per_second, stall_us) in [
        (500, 1500, 30_000),
        (500, 1500, 45_000),
        (500, 1500, 60_000),
        (500, 20, 300_000),
        (2000, 300, 45_000),
    ] {
        for round_trip_us in [200, 30_000] {
            let mut line = Line::new();
            (line.service_us, line.round_trip_us) = (service_us, round_trip_us);
            let (mut random, mut due_us, mut stall_due_us) = (88_172_645_463_325_252_u64, START_US, START_US);
            let mut wrong = 0;
            while due_us < START_US + 60_000_000 {
                if due_us >= stall_due_us {
                    line.step(stall_due_us);
                    line.free_us = line.free_us.max(stall_due_us) + stall_us;
                    stall_due_us += 1_000_000;
                }
                for _ in 0..if next(&mut random).is_multiple_of(6) { PAGE } else { 1 } {
                    line.step(due_us);
                    let soon = would_be_served_soon(&line);
                    match line.ask() {
                        Outcome::Admit => line.approaching.push_back(due_us + round_trip_us),
                        _ => wrong += u32::from(soon),
                    }
                    due_us += 50;
                }
                // A page and five single ones are eleven.
                due_us += next(&mut random) % (2_000_000 * 11 / 6 / per_second);
            }
            let asked = line.attempts;
            assert!(wrong * 300 <= asked, "{per_second}/s, {stall_us} us: {wrong} of {asked} kept out");
        }
    }
}

/// xorshift64
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

#[test]
fn what_was_measured_long_ago_says_nothing() {
    let mut line = Line::new();
    line.service_us = 10_000;
    line.offer(250, 3);
    // An hour later it is twenty times as fast, and a short burst comes.
    line.now_us += 3_600_000_000;
    line.service_us = 500;
    let refused = line.refused;
    let began_us = line.now_us;
    for number in 0..200 {
        let due_us = began_us + number * 300;
        line.step(due_us);
        match line.ask() {
            Outcome::Admit => line.approaching.push_back(due_us + line.round_trip_us),
            _ => line.refused += 1,
        }
    }
    line.offer(1500, 1);
    assert_eq!(line.refused, refused);
}
