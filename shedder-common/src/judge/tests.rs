use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::memory::{Memory, Word};
use super::*;
use crate::address::Address;
use crate::class::CLASSES;
use crate::gate::Gate;
use crate::gcra::UNITS_PER_SECOND;
use crate::limits::{CLOSED, ClassLimits, DEPTH_ONE, RESET, SourceRule, UNLIMITED};

const PORT: u16 = 80;
const POLICY: u32 = 1;
const HOST: Address = Address::from_v4([198, 51, 100, 7]);
const SECOND_NS: u64 = 1_000_000_000;
const SHED: bool = false;

fn rate(per_second: u64, burst: u64) -> Rate {
    let interval = UNITS_PER_SECOND / per_second;
    Rate { interval, tolerance: interval * (burst - 1) }
}

fn open() -> PolicyLimits {
    PolicyLimits::unlimited(Class::Interactive)
}

/// The limits of a port with that rate, by share in thousandths.
fn with_rate(per_second: u64, burst: u64, shares: [u64; CLASSES]) -> PolicyLimits {
    let mut limits = open();
    for (class, share) in limits.classes.iter_mut().zip(shares) {
        if share == 0 {
            class.flags |= CLOSED;
        } else {
            let rate = rate(per_second * share / 1000, (burst * share / 1000).max(1));
            (class.interval, class.tolerance) = (rate.interval, rate.tolerance);
        }
    }
    for index in 0..CLASSES {
        let first = shares.iter().position(|share| *share == shares[index]).unwrap();
        limits.rate_leader[index] = u8::try_from(first).unwrap();
    }
    limits
}

fn with_floor(limits: &mut PolicyLimits, class: Class, per_second: u64, burst: u64) {
    let floor = rate(per_second, burst);
    let class = &mut limits.classes[class.index()];
    (class.floor_interval, class.floor_tolerance) = (floor.interval, floor.tolerance);
}

fn every_class(limits: &mut PolicyLimits, change: impl Fn(&mut ClassLimits)) {
    limits.classes.iter_mut().for_each(change);
}

fn memory(limits: PolicyLimits) -> Memory {
    let mut memory = Memory::new(Mode::Enforce);
    memory.ports.insert(PORT, POLICY);
    memory.limits.insert(POLICY, limits);
    memory.local.push(HOST);
    // One source for each class.
    for class in Class::ALL {
        memory.add_source(source(class), 128, SourceRule { class: Some(class), exempt: false });
    }
    memory
}

fn source(class: Class) -> Address {
    Address::from_v4([10, 0, 0, class as u8])
}

/// A new attempt each time its number differs.
fn attempt(number: u32) -> Attempt {
    Attempt {
        source: Address::from_v4([192, 0, 2, 1]),
        destination: HOST,
        source_port: 1024,
        destination_port: PORT,
        sequence: number,
        segment_len: 20,
        network_offset: 14,
        transport_offset: 34,
        ..Attempt::default()
    }
}

fn of(class: Class, number: u32) -> Attempt {
    Attempt { source: source(class), ..attempt(number) }
}

fn outcome(memory: &Memory, attempt: &Attempt) -> Outcome {
    judge(memory, attempt).expect("a policy speaks of it").outcome()
}

/// Whether a class is admitted.
fn admits(memory: &Memory, class: Class, number: u32) -> bool {
    match outcome(memory, &of(class, number)) {
        Outcome::Admit => true,
        Outcome::Shed(_) => SHED,
        other => panic!("{other:?}"),
    }
}

fn listener(accept_queue: u32, backlog: u32, wait_us: u64) -> Socket {
    let oldest_us = 1_000_000_000 - wait_us;
    Socket::Listener(Listener { accept_queue, backlog, syn_queue: 0, oldest_us })
}

#[test]
fn a_port_without_policy_is_not_spoken_of() {
    let memory = memory(open());
    assert_eq!(judge(&memory, &Attempt { destination_port: 81, ..attempt(1) }), None);
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::Admit);
}

#[test]
fn off_decides_and_changes_nothing() {
    let mut memory = memory(with_rate(1, 1, [1000; 5]));
    for word in [0, 3, u32::MAX] {
        memory.control.mode = word;
        assert_eq!(judge(&memory, &attempt(1)), None, "mode word {word}");
    }
    assert!(memory.state_of(POLICY).tats.iter().all(|tat| *tat == Word::default()));
}

#[test]
fn an_expired_lease_passes_everything() {
    let mut limits = open();
    every_class(&mut limits, |class| class.flags |= CLOSED);
    let mut memory = memory(limits);
    memory.control.lease_expires_ns = memory.now_ns + 1;
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::Shed(Gate::Closed));
    memory.now_ns += 1;
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::FailOpen(FailOpen::LeaseExpired));
}

#[test]
fn missing_tables_pass() {
    let mut memory = memory(open());
    memory.limits.clear();
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::FailOpen(FailOpen::MissingState));
    memory.limits.insert(POLICY, PolicyLimits { class: 9, ..open() });
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::FailOpen(FailOpen::MissingState));
    memory.ports.insert(PORT, 1000);
    memory.limits.insert(1000, open());
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::FailOpen(FailOpen::MissingState));
}

#[test]
fn a_policy_covers_what_it_says() {
    let elsewhere = Attempt { destination: Address::from_v4([203, 0, 113, 9]), ..attempt(1) };
    let exempt = Outcome::Exempt(Exempt::Destination);
    let mut memory = memory(PolicyLimits { scope: Scope::Local as u32, ..open() });
    assert_eq!(outcome(&memory, &elsewhere), exempt);
    memory.limits.insert(POLICY, PolicyLimits { scope: Scope::Any as u32, ..open() });
    assert_eq!(outcome(&memory, &elsewhere), Outcome::Admit);
    memory.limits.insert(POLICY, PolicyLimits { scope: Scope::Listed as u32, ..open() });
    memory.listed.push((POLICY, Address::from_v4([203, 0, 113, 0]), 96 + 24));
    memory.listed.push((POLICY + 1, HOST, 128));
    assert_eq!(outcome(&memory, &Attempt { sequence: 2, ..elsewhere }), Outcome::Admit);
    assert_eq!(outcome(&memory, &attempt(1)), exempt);
}

#[test]
fn each_gate_refuses_by_its_share() {
    let half = [Class::Optional, Class::Batch];
    let refused = |change: &dyn Fn(&mut PolicyLimits), socket| {
        let mut limits = open();
        change(&mut limits);
        let mut memory = memory(limits);
        memory.socket = socket;
        memory.correction = 50;
        let outcomes: Vec<Outcome> =
            Class::ALL.iter().map(|class| outcome(&memory, &of(*class, 1))).collect();
        outcomes
    };
    let expect = |outcomes: Vec<Outcome>, gate| {
        for (class, outcome) in Class::ALL.into_iter().zip(outcomes) {
            let expected = if half.contains(&class) { Outcome::Shed(gate) } else { Outcome::Admit };
            assert_eq!(outcome, expected, "{class:?}");
        }
    };
    let by_share = |limits: &mut PolicyLimits, change: &dyn Fn(&mut ClassLimits)| {
        half.iter().for_each(|class| change(&mut limits.classes[class.index()]));
    };
    let closed = |limits: &mut PolicyLimits| by_share(limits, &|class| class.flags |= CLOSED);
    expect(refused(&closed, Socket::Unknown), Gate::Closed);
    let connections = |limits: &mut PolicyLimits| {
        limits.connections = 100;
        every_class(limits, |class| class.connections = 100);
        by_share(limits, &|class| class.connections = 50);
    };
    expect(refused(&connections, Socket::Unknown), Gate::Connections);
    let depth = |limits: &mut PolicyLimits| {
        limits.queue_depth = DEPTH_ONE;
        every_class(limits, |class| class.queue_depth = DEPTH_ONE);
        by_share(limits, &|class| class.queue_depth = DEPTH_ONE / 2);
    };
    expect(refused(&depth, listener(5, 9, 0)), Gate::QueueDepth);
    let wait = |limits: &mut PolicyLimits| {
        limits.queue_wait_us = 50_000;
        every_class(limits, |class| class.queue_wait_us = 50_000);
        by_share(limits, &|class| class.queue_wait_us = 25_000);
    };
    expect(refused(&wait, listener(1, 9, 25_000)), Gate::QueueWait);
}

#[test]
fn a_limit_begins_where_it_says() {
    let mut limits = open();
    limits.connections = 10;
    let mut memory = memory(PolicyLimits { ..limits });
    memory.correction = 9;
    assert!(admits(&memory, Class::Core, 1));
    memory.correction = 10;
    assert!(!admits(&memory, Class::Core, 2));
    memory.correction = 4;
    memory.state_of(POLICY).active.store(5);
    assert!(admits(&memory, Class::Core, 3));
    memory.state_of(POLICY).active.store(6);
    assert!(!admits(&memory, Class::Core, 4));
    // A correction takes away as well, but never more than is there.
    memory.correction = -1;
    memory.state_of(POLICY).active.store(10);
    assert!(admits(&memory, Class::Core, 7));
    memory.correction = -20;
    assert!(admits(&memory, Class::Core, 8));
    memory.correction = 4;
    // Half-open requests are on the way to be connections.
    memory.state_of(POLICY).active.store(0);
    let half_open = |syn_queue| Socket::Listener(Listener { syn_queue, backlog: 100, ..Listener::default() });
    memory.socket = half_open(5);
    assert!(admits(&memory, Class::Core, 5));
    memory.socket = half_open(6);
    assert!(!admits(&memory, Class::Core, 6));
}

#[test]
fn the_backlog_holds_one_more_than_it_says() {
    let mut limits = open();
    limits.queue_depth = DEPTH_ONE;
    let mut memory = memory(limits);
    memory.socket = listener(9, 9, 0);
    assert!(admits(&memory, Class::Core, 1));
    memory.socket = listener(10, 9, 0);
    assert!(!admits(&memory, Class::Core, 2));
    // An empty queue refuses nobody, whatever the backlog.
    memory.socket = listener(0, 0, 0);
    assert!(admits(&memory, Class::Core, 3));
}

#[test]
fn a_wait_that_is_not_known_refuses_nobody() {
    let mut limits = open();
    limits.queue_wait_us = 1;
    let mut memory = memory(limits);
    for socket in [
        Socket::Unknown,
        listener(0, 9, 500_000_000),
        Socket::Listener(Listener { accept_queue: 3, backlog: 9, syn_queue: 0, oldest_us: 0 }),
        // The clock stands behind.
        Socket::Listener(Listener { accept_queue: 3, backlog: 9, syn_queue: 0, oldest_us: u64::MAX }),
    ] {
        memory.socket = socket;
        assert_eq!(outcome(&memory, &attempt(memory.lookups.get())), Outcome::Admit, "{socket:?}");
    }
    memory.socket = listener(1, 9, 1);
    let judgement = judge(&memory, &attempt(9)).unwrap();
    assert_eq!((judgement.outcome(), judgement.wait_us), (Outcome::Shed(Gate::QueueWait), 1));
}

#[test]
fn the_cheapest_gate_that_refuses_is_the_reason() {
    let mut limits = with_rate(1, 1, [1000; 5]);
    (limits.connections, limits.queue_depth, limits.queue_wait_us) = (10, DEPTH_ONE / 2, 1000);
    every_class(&mut limits, |class| class.flags |= CLOSED);
    let mut memory = memory(limits);
    memory.correction = 10;
    memory.socket = listener(9, 9, 5000);
    let mut next = 100;
    let mut expect = |memory: &Memory, gate| {
        next += 1;
        assert_eq!(outcome(memory, &attempt(next)), Outcome::Shed(gate));
    };
    expect(&memory, Gate::Closed);
    let limits = memory.limits.get_mut(&POLICY).unwrap();
    every_class(limits, |class| class.flags &= !CLOSED);
    memory.state_of(POLICY).tats[0].store(gcra::units(memory.now_ns) + 1);
    expect(&memory, Gate::Rate);
    memory.state_of(POLICY).tats[0].store(0);
    expect(&memory, Gate::Connections);
    assert_eq!(memory.lookups.get(), 0, "no gate that refuses needed the listener");
    memory.correction = 0;
    expect(&memory, Gate::QueueDepth);
    memory.limits.get_mut(&POLICY).unwrap().queue_depth = UNLIMITED;
    expect(&memory, Gate::QueueWait);
    assert_eq!(memory.state_of(POLICY).tats[0], Word::default(), "what is refused is not charged");
}

#[test]
fn nobody_pays_for_a_listener_that_no_gate_asks_for() {
    let memory = memory(with_rate(1000, 10, [1000; 5]));
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::Admit);
    assert_eq!(memory.lookups.get(), 0);
}

#[test]
fn a_repeat_of_an_admitted_attempt_is_neither_charged_nor_refused() {
    let mut memory = memory(with_rate(1, 1, [1000; 5]));
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::Admit);
    let tats = memory.state_of(POLICY).tats.clone();
    for _ in 0..3 {
        assert_eq!(outcome(&memory, &attempt(1)), Outcome::Repeat);
    }
    assert_eq!(memory.state_of(POLICY).tats, tats);
    every_class(memory.limits.get_mut(&POLICY).unwrap(), |class| class.flags |= CLOSED);
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::Repeat);
    assert_eq!(outcome(&memory, &attempt(2)), Outcome::Shed(Gate::Closed));
}

#[test]
fn a_repeat_of_a_refused_attempt_is_judged_afresh_and_told_apart() {
    let mut memory = memory(with_rate(1, 1, [1000; 5]));
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::Admit);
    assert_eq!(outcome(&memory, &attempt(2)), Outcome::Shed(Gate::Rate));
    assert_eq!(outcome(&memory, &attempt(2)), Outcome::ShedAgain(Gate::Rate));
    memory.now_ns += SECOND_NS;
    assert_eq!(outcome(&memory, &attempt(2)), Outcome::Admit);
    assert_eq!(outcome(&memory, &attempt(2)), Outcome::Repeat);
}

#[test]
fn an_attempt_that_the_kernel_knows_is_a_repeat() {
    let mut limits = with_rate(1, 1, [1000; 5]);
    limits.queue_depth = DEPTH_ONE;
    let mut memory = memory(limits);
    memory.socket = Socket::Existing;
    assert_eq!(outcome(&memory, &attempt(1)), Outcome::Repeat);
    assert_eq!(memory.state_of(POLICY).tats[0], Word::default());
}

/// Such an attempt was never admitted, so it opens nothing once that connection is gone.
#[test]
fn an_attempt_that_the_kernel_knew_is_judged_when_it_does_not_know_it_any_more() {
    let mut limits = open();
    limits.queue_depth = DEPTH_ONE / 2;
    let mut memory = memory(limits);
    memory.socket = Socket::Existing;
    assert_eq!(outcome(&memory, &attempt(9)), Outcome::Repeat);
    assert_eq!(outcome(&memory, &attempt(9)), Outcome::Repeat);
    memory.socket = listener(128, 127, 0);
    assert_eq!(outcome(&memory, &attempt(9)), Outcome::Shed(Gate::QueueDepth));
}

#[test]
fn refused_ones_make_no_admitted_one_forgotten() {
    let mut memory = memory(with_rate(1, 1, [1000; 5]));
    assert_eq!(outcome(&memory, &attempt(0)), Outcome::Admit);
    // Several for each slot.
    for other in 1..=300_000 {
        assert!(!admits(&memory, Class::Core, other));
    }
    assert_eq!(outcome(&memory, &attempt(0)), Outcome::Repeat);
    // They are remembered themselves, but for those that would stand in its place.
    let again = (299_000..=300_000)
        .filter(|other| matches!(outcome(&memory, &of(Class::Core, *other)), Outcome::ShedAgain(_)));
    assert!(again.count() > 900);
    // When it cannot come any more its place is free.
    memory.now_ns += 130 * SECOND_NS;
    assert_eq!(outcome(&memory, &attempt(0)), Outcome::Admit);
}

#[test]
fn exempt_sources_pass_within_their_rate_and_are_judged_beyond() {
    let mut limits = open();
    every_class(&mut limits, |class| class.flags |= CLOSED);
    let mut memory = memory(limits);
    memory.add_source(Address::from_v4([192, 0, 2, 0]), 96 + 24, SourceRule { class: None, exempt: true });
    for number in 0..100 {
        assert_eq!(outcome(&memory, &attempt(number)), Outcome::Exempt(Exempt::Source), "no rate");
    }
    let guard = rate(10, 3);
    (memory.control.exempt_interval, memory.control.exempt_tolerance) = (guard.interval, guard.tolerance);
    let outcomes: Vec<Outcome> = (200..205).map(|number| outcome(&memory, &attempt(number))).collect();
    let exempt = Outcome::Exempt(Exempt::Source);
    let shed = Outcome::Shed(Gate::Closed);
    assert_eq!(outcomes, [exempt, exempt, exempt, shed, shed]);
    (memory.control.exempt_interval, memory.control.exempt_tolerance) = (NOBODY_EXEMPT, 0);
    memory.now_ns += SECOND_NS;
    assert_eq!(outcome(&memory, &attempt(299)), shed, "a rate of nothing is for nobody");
    memory.control.flags = 0;
    assert_eq!(outcome(&memory, &attempt(300)), shed, "without sources nobody is exempt");
}

#[test]
fn a_source_has_a_class_only_where_the_operator_says_so() {
    let memory = memory(PolicyLimits { class: Class::Batch as u32, ..open() });
    assert_eq!(judge(&memory, &attempt(1)).unwrap().class, Class::Batch);
    for class in Class::ALL {
        assert_eq!(judge(&memory, &of(class, 1)).unwrap().class, class);
    }
}

#[test]
fn a_refusal_is_answered_as_its_class_says_and_never_a_fragment() {
    let mut limits = open();
    every_class(&mut limits, |class| class.flags |= CLOSED);
    limits.classes[Class::Core.index()].flags |= RESET;
    let memory = memory(limits);
    assert!(judge(&memory, &of(Class::Core, 1)).unwrap().reset());
    assert!(!judge(&memory, &of(Class::Batch, 1)).unwrap().reset());
    let fragment = Attempt { fragmented: true, ..of(Class::Core, 2) };
    let judgement = judge(&memory, &fragment).unwrap();
    assert_eq!((judgement.outcome(), judgement.reset()), (Outcome::Shed(Gate::Closed), false));
}

#[test]
fn ipv4_and_ipv6_share_one_budget() {
    let memory = &mut memory(with_rate(1, 4, [1000; 5]));
    let v6 = Address::from_v6([0x20; 16]);
    memory.local.push(v6);
    let admitted = (0..10).filter(|number| {
        let (destination, ipv6) = if number % 2 == 0 { (HOST, false) } else { (v6, true) };
        outcome(memory, &Attempt { destination, ipv6, ..attempt(*number) }) == Outcome::Admit
    });
    assert_eq!(admitted.count(), 4);
}

#[test]
fn the_total_of_all_classes_counts() {
    // optional and batch see a tenth.
    let memory = memory(with_rate(1000, 100, [1000, 1000, 1000, 100, 100]));
    let count = |class, numbers: core::ops::Range<u32>| {
        u32::try_from(numbers.filter(|number| admits(&memory, class, *number)).count()).unwrap()
    };
    assert_eq!(count(Class::Batch, 0..5), 5);
    assert_eq!(count(Class::Optional, 0..100), 5, "the two classes share their tenth");
    assert_eq!(count(Class::Batch, 100..200), 0);
    assert_eq!(count(Class::Core, 0..50), 50);
    assert_eq!(count(Class::Interactive, 0..1000), 40, "what the others took is gone");
    assert_eq!(count(Class::Control, 0..1000), 0);
}

#[test]
fn when_shares_part_nothing_starts_anew() {
    let mut memory = memory(with_rate(1000, 100, [1000; 5]));
    assert_eq!((0..500).filter(|number| admits(&memory, Class::Core, *number)).count(), 100);
    memory.limits.insert(POLICY, with_rate(1000, 100, [1000, 1000, 1000, 500, 500]));
    assert!(!admits(&memory, Class::Batch, 1));
    assert!(!admits(&memory, Class::Optional, 1));
}

#[test]
fn a_floor_admits_what_the_share_refuses() {
    let mut limits = with_rate(1000, 100, [1000, 1000, 0, 1000, 1000]);
    with_floor(&mut limits, Class::Interactive, 20, 2);
    let mut memory = memory(limits);
    let count = |memory: &Memory, from: u32| {
        (from..from + 100).filter(|number| admits(memory, Class::Interactive, *number)).count()
    };
    assert_eq!(count(&memory, 0), 2);
    memory.now_ns += SECOND_NS / 20;
    assert_eq!(count(&memory, 100), 1);
    // What the floor takes is charged to the others.
    memory.now_ns += 10 * SECOND_NS;
    assert_eq!(count(&memory, 200), 2);
    assert_eq!((0..500).filter(|number| admits(&memory, Class::Core, *number)).count(), 98);
}

#[test]
fn a_floor_admits_nobody_beyond_the_limit_itself() {
    let mut limits = with_rate(1000, 100, [0; 5]);
    (limits.connections, limits.queue_depth, limits.queue_wait_us) = (10, DEPTH_ONE, 1000);
    for class in Class::ALL {
        with_floor(&mut limits, class, 1000, 1000);
    }
    let mut memory = memory(limits);
    assert!(admits(&memory, Class::Core, 1));
    memory.correction = 10;
    assert_eq!(outcome(&memory, &attempt(2)), Outcome::Shed(Gate::Connections));
    memory.correction = 0;
    memory.socket = listener(10, 9, 0);
    assert_eq!(outcome(&memory, &attempt(3)), Outcome::Shed(Gate::QueueDepth));
    memory.socket = listener(1, 9, 1000);
    assert_eq!(outcome(&memory, &attempt(4)), Outcome::Shed(Gate::QueueWait));
    memory.socket = listener(1, 9, 999);
    assert_eq!(outcome(&memory, &attempt(5)), Outcome::Admit);
}

#[test]
fn a_floor_also_rescues_from_the_gates_of_the_listener() {
    let mut limits = open();
    limits.queue_wait_us = 100_000;
    every_class(&mut limits, |class| class.queue_wait_us = 10_000);
    with_floor(&mut limits, Class::Core, 10, 1);
    let mut memory = memory(limits);
    memory.socket = listener(1, 9, 50_000);
    assert_eq!(outcome(&memory, &of(Class::Core, 1)), Outcome::Admit);
    assert_eq!(outcome(&memory, &of(Class::Core, 2)), Outcome::Shed(Gate::QueueWait));
    assert_eq!(outcome(&memory, &of(Class::Batch, 1)), Outcome::Shed(Gate::QueueWait));
}

#[test]
fn a_minute_at_a_tenth_more_than_the_rate_admits_the_rate() {
    let mut memory = memory(with_rate(1000, 100, [1000; 5]));
    let start_ns = memory.now_ns;
    let mut admitted = 0;
    for number in 0..66_000 {
        memory.now_ns = start_ns + u64::from(number) * 60 * SECOND_NS / 66_000;
        admitted += u32::from(admits(&memory, Class::Interactive, number));
    }
    assert!((58_800..=61_200).contains(&admitted), "{admitted}");
    assert!((59_999..=60_101).contains(&admitted), "{admitted}");
}

#[test]
fn a_drained_burst_is_full_again_after_any_idleness() {
    for idle_s in [4, 3600] {
        let mut memory = memory(with_rate(10_000, 1000, [1000; 5]));
        let drain = |memory: &Memory, from: u32| {
            (from..from + 3000).filter(|number| admits(memory, Class::Interactive, *number)).count()
        };
        assert_eq!(drain(&memory, 0), 1000);
        memory.now_ns += idle_s * SECOND_NS;
        assert_eq!(drain(&memory, 10_000), 1000, "after {idle_s} s");
    }
}

#[test]
fn a_flood_of_a_low_class_starves_nobody_and_borrows_nothing() {
    // At `high`: interactive 0.7, optional 0.1, batch 0; floors for core and batch.
    let mut limits = with_rate(1000, 100, [1000, 1000, 700, 100, 0]);
    with_floor(&mut limits, Class::Core, 50, 5);
    with_floor(&mut limits, Class::Batch, 20, 2);
    let mut memory = memory(limits);
    let start_ns = memory.now_ns;
    let mut admitted = [0_u64; CLASSES];
    // Ten seconds: optional floods ten times the rate, core asks for 300 a second, batch for 1000.
    for step in 0..100_000_u32 {
        memory.now_ns = start_ns + u64::from(step) * 100_000;
        let mut ask = |class: Class, every: u32| {
            if step % every == 0 {
                admitted[class.index()] += u64::from(admits(&memory, class, step));
            }
        };
        ask(Class::Optional, 1);
        ask(Class::Core, 33);
        ask(Class::Batch, 10);
    }
    let [_, core, _, optional, batch] = admitted;
    assert_eq!(core, 3031, "core keeps its headroom");
    assert!((200..=205).contains(&batch), "batch keeps its floor and no more: {batch}");
    assert!(optional <= 1010, "optional sees a tenth: {optional}");
}

fn any_class() -> impl Strategy<Value = Class> {
    (0..CLASSES).prop_map(|index| Class::ALL[index])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_total_never_exceeds_rate_and_burst(
        per_second in 10_u64..20_000,
        burst in 1_u64..200,
        shares in prop::array::uniform5(prop_oneof![Just(1000_u64), 100_u64..1000]),
        asks in prop::collection::vec((any_class(), 0_u64..3_000_000), 1..600),
    ) {
        let mut memory = memory(with_rate(per_second, burst, shares));
        let start_ns = memory.now_ns;
        let mut admitted: Vec<(u64, Class)> = vec![];
        for (number, (class, gap_ns)) in asks.into_iter().enumerate() {
            memory.now_ns += gap_ns;
            if admits(&memory, class, u32::try_from(number).unwrap()) {
                admitted.push((memory.now_ns - start_ns, class));
            }
        }
        let most_in = |span_ns: u64, share: u64| {
            // The interval is cut to whole units and the burst to a whole number.
            let rate = UNITS_PER_SECOND / (UNITS_PER_SECOND / (per_second * share / 1000).max(1));
            (burst * share / 1000).max(1) + span_ns * rate / SECOND_NS + 2
        };
        let widest = *shares.iter().max().unwrap();
        for (first, (from_ns, _)) in admitted.iter().enumerate() {
            for (last, (to_ns, _)) in admitted.iter().enumerate().skip(first) {
                let count = u64::try_from(last - first + 1).unwrap();
                prop_assert!(count <= most_in(to_ns - from_ns, widest), "{count} in {} ns", to_ns - from_ns);
            }
        }
        // Of one class alone no window holds more than its share.
        for class in Class::ALL {
            let times: Vec<u64> = admitted.iter().filter(|(_, of)| *of == class).map(|(at, _)| *at).collect();
            for (first, from_ns) in times.iter().enumerate() {
                for (last, to_ns) in times.iter().enumerate().skip(first) {
                    let count = u64::try_from(last - first + 1).unwrap();
                    prop_assert!(count <= most_in(to_ns - from_ns, shares[class.index()]));
                }
            }
        }
    }

    #[test]
    fn a_floor_is_kept_whatever_the_others_do(
        per_second in 100_u64..10_000,
        others in prop::collection::vec((any_class(), 0_u64..2_000_000), 1..400),
    ) {
        // batch is closed but for a floor of 10/s; it asks each 100 ms.
        let mut limits = with_rate(per_second, 10, [1000, 1000, 700, 100, 0]);
        with_floor(&mut limits, Class::Batch, 10, 1);
        let mut memory = memory(limits);
        let start_ns = memory.now_ns;
        let mut next_ns = start_ns;
        for (number, (class, gap_ns)) in others.into_iter().enumerate() {
            memory.now_ns += gap_ns;
            if memory.now_ns >= next_ns {
                let asked = u32::try_from((next_ns - start_ns) / 1000).unwrap();
                prop_assert!(admits(&memory, Class::Batch, asked));
                next_ns = memory.now_ns + SECOND_NS / 10;
            }
            if class != Class::Batch {
                admits(&memory, class, u32::try_from(number).unwrap());
            }
        }
    }

    #[test]
    fn observing_decides_as_enforcing_does(
        shares in prop::array::uniform5(prop_oneof![Just(0_u64), Just(1000), 100_u64..1000]),
        connections in prop_oneof![Just(UNLIMITED), 0_u32..20],
        asks in prop::collection::vec((any_class(), 0_u64..5_000_000, -3_i64..20, 0_u32..12), 1..200),
    ) {
        let mut limits = with_rate(500, 10, shares);
        with_floor(&mut limits, Class::Core, 10, 2);
        (limits.connections, limits.queue_depth, limits.queue_wait_us) = (connections, DEPTH_ONE / 2, 1_000);
        every_class(&mut limits, |class| class.flags |= RESET);
        let (mut enforce, mut observe) = (memory(limits), memory(limits));
        observe.control.mode = Mode::Observe as u32;
        for (number, (class, gap_ns, correction, depth)) in asks.into_iter().enumerate() {
            for memory in [&mut enforce, &mut observe] {
                memory.now_ns += gap_ns;
                memory.correction = correction;
                memory.socket = listener(depth, 9, gap_ns / 1000);
            }
            let attempt = of(class, u32::try_from(number).unwrap());
            let [enforced, observed] = [&enforce, &observe].map(|memory| judge(memory, &attempt).unwrap());
            prop_assert!(enforced.enforce() && !observed.enforce());
            prop_assert_eq!(enforced.outcome(), observed.outcome());
            prop_assert_eq!(enforced.reset(), observed.reset());
            prop_assert_eq!(enforced.wait_us, observed.wait_us);
        }
        prop_assert_eq!(&enforce.state_of(POLICY).tats, &observe.state_of(POLICY).tats);
    }
}

const SHED_WITHOUT_REFUSAL: u32 = 1;
const RESET_SENT: u32 = 13;

#[test]
fn words_round_trip() {
    let outcomes = [Outcome::Admit, Outcome::Repeat]
        .into_iter()
        .chain(Gate::ALL.map(Outcome::Shed))
        .chain(Gate::ALL.map(Outcome::ShedAgain))
        .chain(Exempt::ALL.map(Outcome::Exempt))
        .chain(FailOpen::ALL.map(Outcome::FailOpen));
    for outcome in outcomes {
        let decision = Decision::from(outcome);
        assert_eq!(Decision::from_word(decision.word()), decision);
        assert_eq!(decision.outcome(), outcome);
        let refuses = matches!(outcome, Outcome::Shed(_) | Outcome::ShedAgain(_));
        assert_eq!(decision.is_refusal(), refuses);
        assert_eq!(decision.is_admission(), outcome == Outcome::Admit);
    }
    // Such as nobody writes.
    for word in [SHED_WITHOUT_REFUSAL, RESET_SENT, 0xff] {
        let unknown = Outcome::FailOpen(FailOpen::MissingState);
        assert_eq!(Decision::from_word(word).outcome(), unknown);
    }
}
