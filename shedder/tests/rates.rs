//! Rates, measured with SYNs that are made by hand: what passes is counted by shedder, and by the resets with which
//! the kernel answers, since nobody listens.
#![cfg(test)]

mod support;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use support::syn::{Flood, Sender};
use support::truth::{kernel_counter, two_ticks_pass};
use support::{Counts, Daemon, Net, Setup, connect, connect_from, holds_in_time, now};
use xtask::testbed::cpus;

const PORT: &str = "8080";

/// Beyond the rate: what arrives within one step of the clock that the kernel measures by, at 1,000 a second.
const CLOCK_STEP: u64 = 11;

fn start(rest: &str) -> (Net, Daemon) {
    let net = Net::new();
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest });
    // Until a neighbour is known its packets wait, and so would the flood.
    for (_, to) in routes(&net) {
        let elsewhere = SocketAddr::new(to.ip(), 9);
        let refused = connect(&net.client, elsewhere, Duration::from_secs(10)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    (net, daemon)
}

/// Both families in turn.
fn routes(net: &Net) -> Vec<(IpAddr, SocketAddr)> {
    let sources: [IpAddr; 2] = [net.link.a.ipv4.into(), net.link.a.ipv6.into()];
    sources.into_iter().map(|from| (from, SocketAddr::new(net.server_ip(from.is_ipv6()), 8080))).collect()
}

/// Counts once all of `sent` are in them.
fn counts_of(daemon: &Daemon, sent: u64) -> Counts {
    let mut counts = Counts::default();
    let all = holds_in_time(|| {
        counts = daemon.counts(PORT);
        counts.admitted + counts.shed == sent
    });
    assert!(all, "of {sent} SYNs were counted: {counts:?}");
    counts
}

/// Sends 8,000 a second for ten seconds to a port with 1,000, evenly from these CPUs, while the quota is written
/// anew all the time.
fn a_thousand_of_eight_thousand(cpus: &[usize]) {
    let (net, daemon) = start("[[port]]\nport = 8080\nrate = \"1000/s\"\nburst = 100\naction = \"drop\"\n");
    let sender = Sender::new(&net.client);
    let resets_before = kernel_counter(&net.server, "Tcp", "OutRsts");
    let share = 8000 / u32::try_from(cpus.len()).unwrap();
    let over = AtomicBool::new(false);
    let (took, writes) = scope(|scope| {
        let writer = scope.spawn(|| {
            let mut writes = 0_u32;
            while !over.load(Ordering::Relaxed) {
                // The same quota, and one that differs but in its burst.
                for burst in ["burst=100", "burst=101"] {
                    daemon.must(&["set", "port", PORT, "rate=1000/s", burst]);
                    writes += 1;
                }
            }
            writes
        });
        let began = now();
        let floods: Vec<_> = (0_u16..)
            .zip(cpus)
            .map(|(number, cpu)| {
                let routes = routes(&net);
                let count = share * 10;
                let flood = Flood { routes, per_second: Some(share), count, cpu: Some(*cpu), number };
                let sender = &sender;
                scope.spawn(move || flood.run(sender))
            })
            .collect();
        for flood in floods {
            flood.join().unwrap();
        }
        let took = began.elapsed();
        over.store(true, Ordering::Relaxed);
        (took, writer.join().unwrap())
    });
    let counts = counts_of(&daemon, 80_000);
    let rate = took.as_secs_f64() * 1000.0;
    let admitted = counts.admitted as f64;
    assert!(admitted <= rate * 1.02 + 101.0, "{admitted} admitted in {took:?}");
    assert!(admitted >= rate * 0.98, "{admitted} admitted in {took:?}");
    assert!(writes >= 20, "{writes} writes");
    assert_eq!(kernel_counter(&net.server, "Tcp", "OutRsts") - resets_before, counts.admitted);
}

#[test]
fn the_rate_holds_on_one_cpu_for_both_families_together() {
    a_thousand_of_eight_thousand(&cpus().unwrap()[..1]);
}

#[test]
fn the_rate_holds_on_two_cpus_for_both_families_together() {
    let cpus = cpus().unwrap();
    assert!(cpus.len() >= 2, "this test needs two CPUs");
    a_thousand_of_eight_thousand(&cpus[..2]);
}

#[test]
fn idleness_refills_the_burst_and_no_more() {
    let (net, daemon) = start("[[port]]\nport = 8080\nrate = \"10000/s\"\nburst = 5000\naction = \"drop\"\n");
    let sender = Sender::new(&net.client);
    let flood = Flood { routes: routes(&net), per_second: None, count: 12_000, cpu: None, number: 0 };
    let mut before = Counts::default();
    let mut sent = 0;
    for number in 0..2 {
        let took = Flood { number, ..flood.clone() }.run(&sender);
        sent += 12_000;
        let counts = counts_of(&daemon, sent);
        let admitted = counts.admitted - before.admitted;
        let most = 5000 + u64::try_from(took.as_micros()).unwrap() / 100 + 10 * CLOCK_STEP;
        assert!((5000..=most).contains(&admitted) && most < 12_000, "{admitted} of {most} in {took:?}");
        before = counts;
        // Longer than the burst takes to refill, by a factor of eight.
        sleep(Duration::from_secs(4));
    }
}

/// Nothing is kept by source, so there is no table that a flood from false addresses could fill.
#[test]
fn a_million_sources_share_the_quota_with_the_one_that_asks_most() {
    let (net, daemon) = start("[[port]]\nport = 8080\nrate = \"1000/s\"\nburst = 100\naction = \"drop\"\n");
    let to = |source: IpAddr| (source, SocketAddr::new(net.server_ip(source.is_ipv6()), 8080));
    let often: IpAddr = net.link.a.ipv4.into();
    let routes = (0..500_000_u32).flat_map(|number| {
        let ipv4 = Ipv4Addr::from_bits(0x0b00_0000 + number * 7);
        let network = 0x2001_0db8_u128 << 96 | u128::from(number) << 64;
        [to(ipv4.into()), to(often), to(Ipv6Addr::from_bits(network | 1).into())]
    });
    let flood = Flood { routes: routes.collect(), per_second: None, count: 1_500_000, cpu: None, number: 0 };
    let took = flood.run(&Sender::new(&net.client)).as_secs_f64();
    let counts = counts_of(&daemon, 1_500_000);
    let admitted = counts.admitted as f64;
    assert!((took * 900.0..=took * 1020.0 + 111.0).contains(&admitted), "{admitted} in {took} s");
}

#[test]
fn a_rate_of_zero_admits_none() {
    let (net, daemon) = start("[[port]]\nport = 8080\nrate = \"0/s\"\naction = \"drop\"\n");
    let resets_before = kernel_counter(&net.server, "Tcp", "OutRsts");
    let flood = Flood { routes: routes(&net), per_second: None, count: 2000, cpu: None, number: 0 };
    flood.run(&Sender::new(&net.client));
    let counts = counts_of(&daemon, 2000);
    two_ticks_pass(&daemon);
    assert_eq!((counts.admitted, counts.shed), (0, 2000));
    assert_eq!(daemon.counts(PORT), counts);
    assert_eq!(kernel_counter(&net.server, "Tcp", "OutRsts"), resets_before);
}

#[test]
fn a_class_without_a_share_keeps_its_floor_however_the_others_flood() {
    let net = Net::new();
    let source = net.link.a.add_sources(1).unwrap().ipv4[0];
    let rest = format!(
        "[[port]]\nport = 8080\nrate = \"1000/s\"\nburst = 100\naction = \"drop\"\n\
         [classes.batch]\nfloor = 0.05\n[classes.interactive]\nfloor = 0.02\n\
         [[source]]\ncidr = \"{source}/32\"\nclass = \"batch\"\n"
    );
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: &rest });
    let to = SocketAddr::new(net.server_ip(false), 8080);
    for from in [source, net.link.a.ipv4.into()] {
        connect_from(&net.client, from, SocketAddr::new(to.ip(), 9)).unwrap_err();
    }
    daemon.must(&["level", "emergency"]);
    let sender = Sender::new(&net.client);
    let flood = |from, per_second: u32, number| {
        let count = per_second * 5;
        Flood { routes: vec![(from, to)], per_second: Some(per_second), count, cpu: None, number }
    };
    let began = now();
    scope(|scope| {
        let batch = scope.spawn(|| flood(source, 500, 1).run(&sender));
        flood(net.link.a.ipv4.into(), 4000, 2).run(&sender);
        batch.join().unwrap();
    });
    let took = began.elapsed().as_secs_f64();
    counts_of(&daemon, 22_500);
    let admitted = |class: &str| daemon.port(PORT)["classes"][class]["admitted"].as_u64().unwrap() as f64;
    // 50 a second are the floor of batch, 20 and at most 100 are what interactive has; bursts are as large a part.
    // What a machine sends late comes when a burst is full already.
    let [batch, interactive] = ["batch", "interactive"].map(admitted);
    assert!((25.0 * took..=51.0 * took + 10.0).contains(&batch), "{batch} of batch in {took} s");
    assert!((10.0 * took..=102.0 * took + 30.0).contains(&interactive), "{interactive} in {took} s");
}
