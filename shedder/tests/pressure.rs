//! Pressure moves the quotas of whom it concerns, and lets go again.

#![cfg(test)]

mod support;

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;
use support::churn::Server;
use support::signal::{SignalFile, section};
use support::{Daemon, Net, Setup, connect_from, eventually};

const CONNECT: Duration = Duration::from_secs(5);

/// Two neighbours of known rate, and a signal of the first one's own.
struct Bench {
    net: Net,
    daemon: Daemon,
    age: SignalFile,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn start(rest: impl FnOnce(&Net) -> String) -> Self {
        let net = Net::new();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("age");
        let age = SignalFile::new(&path, "0");
        let rest = format!(
            "{}\n{}\n[levels]\nhold = \"1s\"\nramp = \"1s\"\n",
            rest(&net),
            section("queue_age", &path, "port:8080")
        );
        let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: &rest });
        Self { net, daemon, age, _directory: directory }
    }

    fn neighbours() -> Self {
        let port = |port| format!("[[port]]\nport = {port}\nrate = \"100/s\"\nburst = 10\n");
        Self::start(|_| port(8080) + &port(8081))
    }

    fn level(&self, port: &str) -> String {
        self.daemon.port(port)["level"].as_str().unwrap().to_owned()
    }

    fn wait_for_level(&self, port: &str, level: &str) -> Value {
        eventually(&format!("port {port} is at {level}"), || self.level(port) == level);
        self.daemon.port(port)
    }

    /// Steps of a scope as (from, to, signal, how often).
    fn steps(&self, scope: &str) -> Vec<(String, String, String, u64)> {
        let status = self.daemon.status();
        let scopes = status["levels"].as_array().unwrap();
        let Some(state) = scopes.iter().find(|state| state["scope"] == scope) else { return Vec::new() };
        let word = |step: &Value, key: &str| step[key].as_str().unwrap().to_owned();
        let steps = state["transitions"].as_array().unwrap().iter();
        steps
            .map(|step| {
                let total = step["total"].as_u64().unwrap();
                (word(step, "from"), word(step, "to"), word(step, "signal"), total)
            })
            .collect()
    }

    fn signal_up(&self, signal: &str) -> bool {
        let metrics = get(&self.net, "/metrics").1;
        let series = format!("shedder_signal_up{{signal=\"{signal}\"");
        let line = metrics.lines().find(|line| line.starts_with(&series)).unwrap();
        line.ends_with(" 1") || line.ends_with(" 1.0")
    }

    fn lines_of_log(&self, piece: &str) -> usize {
        self.daemon.log().lines().filter(|line| line.contains(piece)).count()
    }
}

fn get(net: &Net, path: &str) -> (u16, String) {
    let endpoint = SocketAddr::from(([127, 0, 0, 1], 9464));
    net.server.enter(|| xtask::testbed::http_get(endpoint, path, CONNECT)).unwrap().unwrap()
}

fn rate(port: &Value, class: &str) -> Option<f64> {
    port["classes"][class]["quota"]["rate_per_second"].as_f64()
}

fn closed(port: &Value, class: &str) -> bool {
    port["classes"][class]["quota"]["closed"].as_bool().unwrap()
}

fn about(value: Option<f64>, expected: f64) -> bool {
    value.is_some_and(|value| (value - expected).abs() < expected * 0.001)
}

#[test]
fn a_ports_own_signal_moves_its_quotas_and_not_its_neighbours() {
    let bench = Bench::neighbours();
    let calm = bench.daemon.port("8080");
    assert_eq!(calm["level"], "normal");
    assert!(about(rate(&calm, "batch"), 100.0), "{calm}");
    bench.age.set("2.2");
    // Level and quotas come from one tick, so whoever sees the one sees the other.
    let pressed = bench.wait_for_level("8080", "high");
    assert!(closed(&pressed, "batch"), "{pressed}");
    assert!(about(rate(&pressed, "optional"), 10.0), "{pressed}");
    assert!(about(rate(&pressed, "interactive"), 70.0), "{pressed}");
    assert!(about(rate(&pressed, "core"), 100.0), "{pressed}");
    let neighbour = bench.daemon.port("8081");
    assert_eq!(neighbour["level"], "normal");
    assert!(about(rate(&neighbour, "batch"), 100.0), "{neighbour}");
    assert_eq!(bench.daemon.status()["levels"][0]["level"], "normal", "the host");
}

#[test]
fn what_lets_go_comes_down_in_steps_and_climbs_back() {
    let bench = Bench::neighbours();
    bench.age.set("7");
    bench.wait_for_level("8080", "emergency");
    bench.age.set("0");
    eventually("everything is as before", || {
        let port = bench.daemon.port("8080");
        port["level"] == "normal"
            && about(rate(&port, "batch"), 100.0)
            && port["ramp_remaining_seconds"].is_null()
    });
    let step = |from: &str, to: &str| (from.to_owned(), to.to_owned(), "queue_age".to_owned(), 1);
    let mut steps = bench.steps("port:8080");
    steps.sort();
    let expected = [
        step("emergency", "high"),
        step("high", "moderate"),
        step("moderate", "normal"),
        step("normal", "emergency"),
    ];
    assert_eq!(steps, expected);
    // One line for each step, and none for anything else.
    assert_eq!(bench.lines_of_log("The level of port:8080"), 4);
}

#[test]
fn batch_is_closed_before_interactive_and_core_keeps_its_share() {
    let bench = Bench::start(|net| {
        // The second and third source of the client; the first is of the port's own class.
        let (core, batch) = (source(net, 100), source(net, 101));
        format!(
            "[[port]]\nport = 8080\nconnections = 10\nqueue_wait = \"unlimited\"\nrate = \"unlimited\"\n\
             [[source]]\ncidr = \"{core}/32\"\nclass = \"core\"\n[[source]]\ncidr = \"{batch}/32\"\nclass = \"batch\"\n"
        )
    });
    bench.net.link.a.add_sources(2).unwrap();
    let [own, core, batch] = [bench.net.link.a.ipv4.into(), source(&bench.net, 100), source(&bench.net, 101)];
    let address = SocketAddr::new(bench.net.server_ip(false), 8080);
    let listener = bench.net.server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    // Both ends, so that the connection ends with them.
    let connect = |from: IpAddr| {
        let client = connect_from(&bench.net.client, from, address)?;
        std::io::Result::Ok((client, listener.accept()?.0))
    };
    let mut open: Vec<(TcpStream, TcpStream)> = [own, core, batch].map(|from| connect(from).unwrap()).into();
    open.clear();
    eventually("all are gone", || bench.daemon.active("8080") == 0);

    bench.age.set("2.2");
    bench.wait_for_level("8080", "high");
    assert_eq!(connect(batch).unwrap_err().kind(), ErrorKind::ConnectionRefused, "batch at high");
    open.push(connect(own).unwrap());

    bench.age.set("3.3");
    bench.wait_for_level("8080", "emergency");
    // One of ten is open, and interactive sees one of ten; core sees five.
    assert_eq!(connect(own).unwrap_err().kind(), ErrorKind::ConnectionRefused, "interactive at emergency");
    open.push(connect(core).unwrap());
    assert_eq!(connect(batch).unwrap_err().kind(), ErrorKind::ConnectionRefused, "batch at emergency");

    bench.age.set("0");
    bench.wait_for_level("8080", "normal");
    open.clear();
    eventually("batch is admitted again", || connect(batch).is_ok());
}

/// One of the addresses that [`xtask::testbed`] adds to the client.
fn source(net: &Net, host: u8) -> IpAddr {
    let [a, b, c, _] = net.link.a.ipv4.octets();
    IpAddr::from([a, b, c, host])
}

#[test]
fn a_signal_that_vanishes_or_turns_to_garbage_sheds_nothing() {
    let bench = Bench::neighbours();
    bench.wait_for_level("8080", "normal");
    eventually("it is read", || bench.signal_up("queue_age"));
    let lost = "The signal queue_age of port:8080 is unavailable";
    let found = "The signal queue_age of port:8080 is there";
    for (n, break_it) in
        [SignalFile::vanish as fn(&SignalFile), |file| file.set("99 problems")].iter().enumerate()
    {
        break_it(&bench.age);
        eventually("it is said to be unavailable", || !bench.signal_up("queue_age"));
        eventually("one line tells it", || bench.lines_of_log(lost) == n + 1);
        assert_eq!(bench.level("8080"), "normal");
        bench.age.set("0");
        eventually("it is read again", || bench.signal_up("queue_age"));
        eventually("one line tells it", || bench.lines_of_log(found) == n + 1);
    }
    assert!(bench.steps("port:8080").is_empty());

    // A level that it had demanded ends with it.
    bench.age.set("3");
    bench.wait_for_level("8080", "emergency");
    bench.age.vanish();
    bench.wait_for_level("8080", "normal");
    assert_eq!(bench.lines_of_log(lost), 3);
    let explained = bench.daemon.verb(&["explain", "8080"]);
    let text = String::from_utf8(explained.stdout).unwrap();
    assert!(text.contains("unavailable, so it demands nothing: "), "{text}");
}

#[test]
fn thresholds_that_are_changed_are_judged_anew_at_once() {
    // No step down could come from `hold` within the time that a test waits.
    let bench = Bench::start(|_| "[[port]]\nport = 8080\nrate = \"100/s\"\n".to_owned());
    let file = bench.daemon.config_file();
    let with_hold = fs::read_to_string(&file).unwrap().replace("hold = \"1s\"", "hold = \"1h\"");
    let reload = |config: &str| {
        fs::write(&file, config).unwrap();
        bench.daemon.signal(rustix::process::Signal::HUP);
    };
    bench.age.set("0.9");
    reload(
        &with_hold
            .replace("enter = 2.0, exit = 1.5", "enter = 0.8, exit = 0.6")
            .replace("enter = 1.0", "enter = 0.7"),
    );
    let pressed = bench.wait_for_level("8080", "high");
    assert!(closed(&pressed, "batch"), "{pressed}");
    // 0.9 would not enter moderate as the file has it now, and is above its exit: the demand stays.
    reload(&with_hold);
    bench.wait_for_level("8080", "moderate");
    let with_hold = with_hold.replace("exit = 0.5", "exit = 0.95");
    reload(&with_hold);
    let calm = bench.wait_for_level("8080", "normal");
    assert!(!closed(&calm, "batch"), "{calm}");
    let ended = |from: &str, to: &str| (from.to_owned(), to.to_owned(), "configuration".to_owned(), 1);
    let steps = bench.steps("port:8080");
    assert!(steps.contains(&ended("high", "moderate")), "{steps:?}");
    assert!(steps.contains(&ended("moderate", "normal")), "{steps:?}");
    // A file with an error changes nothing.
    bench.age.set("2.2");
    bench.wait_for_level("8080", "high");
    reload(&with_hold.replace("exit = 0.95", "exit = 5"));
    eventually("the error is told", || bench.lines_of_log("is not valid") == 1);
    assert_eq!(bench.level("8080"), "high");
}

#[test]
fn a_level_that_is_held_for_nothing_is_probed_until_it_gets_worse_or_clients_are_back() {
    let bench = Bench::start(|net| {
        let batch = source(net, 101);
        let port = |port| format!("[[port]]\nport = {port}\nrate = \"100/s\"\nburst = 10\n");
        port(8080) + &port(8081) + &format!("[[source]]\ncidr = \"{batch}/32\"\nclass = \"batch\"\n")
    });
    bench.net.link.a.add_sources(2).unwrap();
    let file = bench.daemon.config_file();
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, config.replace("hold = \"1s\"", "hold = \"1s\"\nmax_hold = \"1s\"")).unwrap();
    bench.daemon.signal(rustix::process::Signal::HUP);
    // As memory that an allocator keeps: the signal says the same for ever.
    bench.age.set("1.2");
    bench.wait_for_level("8080", "moderate");
    let probed = || {
        bench.wait_for_level("8080", "normal");
        let status = bench.daemon.status();
        let signals = status["signals"].as_array().unwrap();
        assert!(signals.iter().any(|signal| signal["demands"] == "moderate"), "{status}");
    };
    probed();
    bench.age.set("1.4");
    bench.wait_for_level("8080", "moderate");
    probed();
    let address = SocketAddr::new(bench.net.server_ip(false), 8080);
    let knock = |from: IpAddr| {
        for _ in 0..50 {
            drop(connect_from(&bench.net.client, from, address));
        }
    };
    let refused = || bench.daemon.counts("8080").shed;
    // What a class with the whole share is refused it would be without the level too.
    bench.age.set("1.6");
    let before = refused();
    for level in ["moderate", "normal"] {
        eventually("the level is probed whoever knocks", || {
            knock(bench.net.link.a.ipv4.into());
            bench.level("8080") == level
        });
    }
    assert!(refused() > before);
    // What is refused for want of a share is more than the quota, so the level is not held for nothing.
    eventually("clients are back, and so is the level", || {
        knock(source(&bench.net, 101));
        bench.level("8080") == "moderate"
    });
    assert_eq!(bench.level("8081"), "normal");
}

#[test]
fn a_port_without_a_rate_is_measured_against_what_it_admitted_before() {
    const CONNECTS: u32 = 300;
    let began = support::now();
    let bench = Bench::start(|_| "[[port]]\nport = 8080\nqueue_wait = \"unlimited\"\n".to_owned());
    let learned = || bench.daemon.port("8080")["learned_rate_per_second"].as_f64();
    let calm = bench.wait_for_level("8080", "normal");
    assert_eq!((learned(), rate(&calm, "interactive")), (None, None));
    let _server = Server::start(&bench.net, 8080);
    let address = SocketAddr::new(bench.net.server_ip(false), 8080);
    for _ in 0..CONNECTS {
        drop(support::connect(&bench.net.client, address, CONNECT).unwrap());
    }
    eventually("all are counted", || bench.daemon.counts("8080").admitted == u64::from(CONNECTS));
    // Less is no history.
    let least_history = Duration::from_secs(5);
    std::thread::sleep((least_history + Duration::from_secs(2)).saturating_sub(began.elapsed()));
    bench.age.set("2.2");
    let pressed = bench.wait_for_level("8080", "high");
    let learned_rate = learned().unwrap();
    // All came since the start; of what takes a slow machine longer than ten seconds a part is forgotten.
    let took = began.elapsed().as_secs_f64();
    let least = if took < 10.0 { f64::from(CONNECTS) / took } else { 10.0 };
    let most = f64::from(CONNECTS) / least_history.as_secs_f64();
    assert!((least..=most).contains(&learned_rate), "{learned_rate} after {took} s");
    assert!(about(rate(&pressed, "interactive"), 0.7 * learned_rate), "{pressed}");
    assert!(about(rate(&pressed, "optional"), 0.1 * learned_rate), "{pressed}");
    assert!(closed(&pressed, "batch"), "{pressed}");
    // Pressure takes nothing from those that it spares.
    assert_eq!(rate(&pressed, "core"), None);
    bench.age.set("0");
    bench.wait_for_level("8080", "normal");
    eventually("nothing is measured any more", || learned().is_none());
    assert_eq!(rate(&bench.daemon.port("8080"), "interactive"), None);
}
