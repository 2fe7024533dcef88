//! Tuning a running daemon, and running one without a configuration.

#![cfg(test)]

mod support;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use support::run::{must, shedder_in};
use support::{Daemon, Net, PATIENCE, SHEDDER, Setup, bpf, connect, eventually, now};

/// Nobody accepts in these tests, so the accept queue has no say.
const PORT: &str = "[[port]]\nport = 8080\nrate = \"0/s\"\nqueue_wait = \"unlimited\"\n[[port]]\nport = \"9000-9001\"\nshared = true\n[[port]]\nport = \"9100-9102\"\n";

struct Site {
    net: Net,
    daemon: Daemon,
    address: SocketAddr,
    _listener: TcpListener,
}

impl Site {
    fn new() -> Self {
        let net = Net::new();
        let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: PORT });
        let address = SocketAddr::new(net.server_ip(false), 8080);
        let listener = net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
        Self { net, daemon, address, _listener: listener }
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        connect(&self.net.client, self.address, PATIENCE)
    }
}

#[test]
fn set_takes_effect_at_once_without_a_new_attachment_and_counters_go_on() {
    let site = Site::new();
    assert!(site.connect().is_err());
    let links = bpf::interface_links(site.daemon.pid());
    let programs = bpf::held(site.daemon.pid()).programs;

    let started = now();
    site.daemon.must(&["set", "port", "8080", "rate=1000/s", "burst=10"]);
    site.connect().unwrap();
    let took = started.elapsed();
    println!("`shedder set` and the first connection that it admits: {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    site.daemon.must(&["set", "port", "8080", "rate=0/s"]);
    assert!(site.connect().is_err(), "the answer comes when the kernel obeys");

    let counts = site.daemon.counts("8080");
    assert_eq!((counts.admitted, counts.shed, counts.resets_sent), (1, 2, 2));
    assert_eq!(bpf::interface_links(site.daemon.pid()), links);
    assert_eq!(bpf::held(site.daemon.pid()).programs, programs);
    let port = site.daemon.port("8080");
    assert_eq!(port["rate"], "0/s", "status shows what is in force");
    site.daemon.must(&["set", "port", "9000-9001", "connections=5"]);
    assert_eq!(site.daemon.port("9000-9001")["classes"]["interactive"]["quota"]["connections"], 5);
    // The range has one policy for each port.
    site.daemon.must(&["set", "port", "9100-9102", "connections=7"]);
    for port in ["9100", "9101", "9102"] {
        assert_eq!(site.daemon.port(port)["classes"]["interactive"]["quota"]["connections"], 7);
    }
}

#[test]
fn what_was_set_is_shown_and_dropped_by_a_reload_that_says_so() {
    let site = Site::new();
    site.daemon.must(&["set", "port", "8080", "rate=9/s", "--confirm", "10m"]);
    let set = site.daemon.port("8080")["set"]["rate"].clone();
    assert_eq!(
        (&set["value"], &set["configured"], &set["goes_back"]["to"]),
        (&"9/s".into(), &"0/s".into(), &"0/s".into())
    );
    let left = set["goes_back"]["remaining_seconds"].as_f64().unwrap();
    assert!((500.0..=600.0).contains(&left), "{left}");
    for verb in [["status"].as_slice(), &["explain", "8080"]] {
        let text = String::from_utf8(site.daemon.verb(verb).stdout).unwrap();
        let sentence = "set by an operator: rate=9/s (the configuration says 0/s), goes back in ";
        assert!(text.contains(sentence) && text.contains("unless confirmed"), "{text}");
    }
    // Nothing that was set elsewhere goes back with it.
    site.daemon.must(&["set", "port", "9000-9001", "connections=5", "--confirm", "1s"]);
    let rate = || site.daemon.port("9000-9001")["set"].clone();
    eventually("it goes back", || rate() == serde_json::json!({}));
    assert_eq!(site.daemon.port("8080")["rate"], "9/s");
    site.daemon.must(&["confirm"]);
    assert_eq!(site.daemon.port("8080")["set"]["rate"]["goes_back"], serde_json::Value::Null);

    site.daemon.must(&["mode", "observe"]);
    site.daemon.signal(rustix::process::Signal::HUP);
    eventually("the file holds again", || site.daemon.status()["mode"] == "enforce");
    assert_eq!(site.daemon.port("8080")["set"], serde_json::json!({}));
    let log = site.daemon.log();
    for line in [
        "An operator sets port 8080: rate=9/s; it goes back in 600 s unless `shedder confirm` keeps it.",
        "What was set on port 9000-9001 was not confirmed in time and is taken back.",
        "What was set on port 8080 is confirmed and stays.",
        "the file is what holds now: mode observe -> enforce; `set` values of port 8080.",
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }
}

#[test]
fn an_unconfirmed_change_goes_back_and_a_confirmed_one_stays() {
    let site = Site::new();
    let nothing = site.daemon.verb(&["confirm"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("nothing waits for confirmation"));

    site.daemon.must(&["set", "port", "8080", "rate=unlimited", "--confirm", "1s"]);
    site.connect().unwrap();
    eventually("it goes back", || site.connect().is_err());
    assert!(site.daemon.log().contains("not confirmed in time"), "{}", site.daemon.log());

    site.daemon.must(&["set", "port", "8080", "rate=unlimited", "--confirm", "1s"]);
    site.daemon.must(&["confirm"]);
    let total = || site.daemon.status()["ticks"]["total"].as_u64().unwrap();
    let before = total();
    eventually("more than a second passes", || total() > before + 15);
    site.connect().unwrap();
}

#[test]
fn wrong_use_says_what_is_right_and_changes_nothing() {
    let site = Site::new();
    let before = site.daemon.port("8080");
    for (arguments, sentence) in [
        (
            ["set", "port", "8081", "rate=5/s"].as_slice(),
            "port 8081 has no policy; those with one: 8080, 9000-9001, 9100-9102",
        ),
        (
            &["set", "port", "9000", "rate=5/s"],
            "9000 is covered by 9000-9001, which shares one limit: set that",
        ),
        (&["set", "port", "8080", "rat=5/s"], "unknown key `rat`, did you mean `rate`?"),
        (&["set", "port", "8080", "quota=5/s"], "unknown key `quota`"),
        (&["set", "port", "8080", "burst=5", "rate=5"], "write \"5/s\""),
        (&["set", "port", "8080", "rate=-5/s"], "rate: "),
        (&["set", "port", "8080", "queue_depth=1.5"], "queue_depth: "),
        (&["set", "port", "8080", "action=explode"], "action: "),
        (&["set", "port", "8080", "connections=2147483648000"], "connections: "),
        (&["set", "port", "8080", "rate"], "write KEY=VALUE"),
        (&["set", "port", "8080", "rate=5/s", "--confirm", "60"], "has no unit"),
        (&["mode", "observ"], "a similar value exists: 'observe'"),
        (&["level", "panic"], "possible values: auto, normal"),
        (&["level", "emergency", "--for", "2"], "has no unit"),
    ] {
        let output = site.daemon.verb(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(sentence), "{arguments:?}: {stderr}");
    }
    let after = site.daemon.port("8080");
    assert_eq!((&after["rate"], &after["classes"]), (&before["rate"], &before["classes"]));
    assert_eq!(site.daemon.status()["mode"], "enforce");
}

#[test]
fn a_pinned_level_ends_by_itself() {
    let site = Site::new();
    site.daemon.must(&["set", "port", "8080", "rate=1000/s", "class=optional"]);
    site.connect().unwrap();
    site.daemon.must(&["level", "emergency", "--for", "2s"]);
    let host = || site.daemon.status()["levels"][0].clone();
    assert_eq!((host()["level"].as_str(), host()["signal"].as_str()), (Some("emergency"), Some("operator")));
    assert!(site.connect().is_err(), "the share of optional is 0 at emergency");
    eventually("the level ends", || host()["level"] == "normal");
    eventually("the share climbs back", || site.connect().is_ok());

    site.daemon.must(&["level", "emergency"]);
    assert!(site.connect().is_err());
    site.daemon.must(&["level", "auto"]);
    eventually("the share climbs back", || site.connect().is_ok());
}

/// What is there without `--config` is there once on a machine, so this uses the defaults of everything.
#[test]
fn without_a_configuration_it_observes_the_ports_that_listen_and_refuses_nothing() {
    let net = Net::new();
    must(&format!("ip -netns {} route add default via {}", net.server.name(), net.link.a.ipv4));
    let address = |port| SocketAddr::new(net.server_ip(false), port);
    let listen = |port| net.server.enter(|| TcpListener::bind(address(port)).unwrap()).unwrap();
    let _listeners = [listen(8080), listen(22), listen(10250)];
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(SHEDDER);
    command.arg("run").stderr(log.reopen().unwrap());
    let mut child = net.server.spawn(&mut command).unwrap();
    let status = || {
        let told = shedder_in(&net.server, &["status", "--json"]);
        (told.code == Some(0)).then(|| serde_json::from_str::<serde_json::Value>(&told.stdout).unwrap())
    };
    let ports = || -> Vec<String> {
        let Some(status) = status() else { return Vec::new() };
        let ports = status["ports"].as_array().unwrap();
        ports.iter().map(|port| port["port"].as_str().unwrap().to_owned()).collect()
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // Its own endpoint is guarded as 22 and 10250 are.
        eventually("it follows the port that listens", || ports() == ["8080"]);
        let found = status().unwrap();
        assert_eq!((&found["mode"], found["daemon"].as_bool()), (&"observe".into(), Some(true)));
        assert_eq!(found["attachments"][0]["interface"], net.link.b.interface.as_str());
        let second = listen(8081);
        eventually("it follows another", || ports() == ["8080", "8081"]);
        drop(second);
        eventually("and leaves it", || ports() == ["8080"]);

        let set = shedder_in(&net.server, &["set", "port", "8080", "rate=0/s"]);
        assert_eq!(set.code, Some(0), "{set:?}");
        for port in [8080, 22, 10250] {
            connect(&net.client, address(port), PATIENCE).unwrap();
        }
        let found = status().unwrap();
        let class = &found["ports"][0]["classes"]["interactive"];
        assert_eq!(class["would_shed"]["closed"], 1, "{class}");
        assert_eq!(class["shed"]["closed"], 0);
        let guarded = shedder_in(&net.server, &["set", "port", "22", "rate=0/s"]);
        assert_eq!(guarded.code, Some(2), "{guarded:?}");
        let unload = shedder_in(&net.server, &["unload"]);
        assert_eq!(unload.code, Some(0), "{unload:?}");
    }));
    if outcome.is_err() {
        child.kill().unwrap();
        drop(shedder_in(&net.server, &["unload"]));
    }
    let code = child.wait().unwrap().code();
    if let Err(panic) = outcome {
        eprintln!("{}", std::fs::read_to_string(log.path()).unwrap());
        std::panic::resume_unwind(panic);
    }
    assert_eq!(code, Some(0));
    assert!(!std::path::Path::new("/sys/fs/bpf/shedder").exists());
    assert!(!std::path::Path::new("/run/shedder/control.sock").exists());
}
