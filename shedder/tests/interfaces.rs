//! Interfaces that are missing, come, go, are of other kinds, or have somebody else's program.

#![cfg(test)]

mod support;

use std::net::{SocketAddr, TcpListener};

use aya::EbpfLoader;
use aya::programs::{Xdp, XdpMode};
use serde_json::Value;
use support::run::must;
use support::{Daemon, Net, PATIENCE, Setup, bpf, connect, eventually};
use xtask::testbed::{Namespace, PinDirectory, VethPair};

fn config(interface: &str, via: &str, rest: &str) -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n[attach]\ninterfaces = [\"{interface}\"]\nvia = \"{via}\"\n\
         [daemon]\nsocket = \"{{socket}}\"\nbpffs = \"{{bpffs}}\"\n{rest}\n"
    )
}

const CLOSED: &str = "[[port]]\nport = 8080\nrate = \"0/s\"\n";
const CLOSED_DROP: &str = "[[port]]\nport = 8080\nrate = \"0/s\"\naction = \"drop\"\n";

fn ip(namespace: &Namespace, arguments: &str) {
    must(&format!("ip -netns {} {arguments}", namespace.name()));
}

/// How an interface is served; `None` where it is not listed.
fn attachment(daemon: &Daemon, interface: &str) -> Option<Value> {
    let status = daemon.status();
    let attachments = status["attachments"].as_array().unwrap();
    attachments.iter().find(|attachment| attachment["interface"] == interface).cloned()
}

fn mode(daemon: &Daemon, interface: &str) -> Option<String> {
    attachment(daemon, interface).map(|attachment| attachment["mode"].as_str().unwrap().to_owned())
}

fn warned(daemon: &Daemon, text: &str) -> bool {
    let status = daemon.status();
    status["warnings"].as_array().unwrap().iter().any(|warning| warning.as_str().unwrap().contains(text))
}

/// Links of the programs that count connections.
const COUNTING: usize = 2;

/// Names of the pinned links.
fn pinned_links(daemon: &Daemon) -> usize {
    std::fs::read_dir(daemon.pins().join("links")).unwrap().count()
}

#[test]
fn an_interface_is_served_whenever_it_is_there() {
    let namespace = Namespace::new().unwrap();
    let daemon = Daemon::launch_with(&namespace, &config("late0", "tc", CLOSED));
    daemon.wait_until_ready();
    for _ in 0..3 {
        eventually("its absence is said", || warned(&daemon, "there is no interface late0"));
        assert_eq!((attachment(&daemon, "late0"), pinned_links(&daemon)), (None, COUNTING));
        ip(&namespace, "link add late0 type veth peer name late1");
        eventually("it is served", || mode(&daemon, "late0").as_deref() == Some("tcx"));
        assert_eq!(bpf::tcx(&namespace, "late0"), ["shed_tc"]);
        assert_eq!(pinned_links(&daemon), 1 + COUNTING, "it and the counting of connections");
        assert!(!warned(&daemon, "late0"));
        ip(&namespace, "link delete late0");
        eventually("it is not served any more", || attachment(&daemon, "late0").is_none());
    }
    assert_eq!(bpf::interface_links(daemon.pid()).len(), 0);
}

#[test]
fn an_interface_that_was_replaced_under_its_index_is_served_again() {
    let namespace = Namespace::new().unwrap();
    let daemon = Daemon::launch_with(&namespace, &config("late0", "tc", CLOSED));
    daemon.wait_until_ready();
    let add = "link add late0 index 77 type veth peer name late1";
    ip(&namespace, add);
    eventually("it is served", || mode(&daemon, "late0").as_deref() == Some("tcx"));
    // Stopped, the daemon sees both events at once.
    daemon.signal(rustix::process::Signal::STOP);
    ip(&namespace, "link delete late0");
    ip(&namespace, add);
    assert_eq!(bpf::tcx(&namespace, "late0"), Vec::<String>::new());
    daemon.signal(rustix::process::Signal::CONT);
    eventually("the new one is served", || bpf::tcx(&namespace, "late0") == ["shed_tc"]);
}

#[test]
fn a_glob_serves_all_that_match_and_no_other() {
    let namespace = Namespace::new().unwrap();
    ip(&namespace, "link add web0 type veth peer name other0");
    let daemon = Daemon::launch_with(&namespace, &config("web*", "tc", CLOSED));
    daemon.wait_until_ready();
    assert_eq!(mode(&daemon, "web0").as_deref(), Some("tcx"));
    ip(&namespace, "link add web1 type veth peer name other1");
    eventually("web1 is served", || mode(&daemon, "web1").as_deref() == Some("tcx"));
    ip(&namespace, "link set web1 name gone1");
    eventually("what is called otherwise is not", || attachment(&daemon, "web1").is_none());
    assert_eq!(bpf::tcx(&namespace, "gone1"), Vec::<String>::new());
    assert_eq!(bpf::tcx(&namespace, "other0"), Vec::<String>::new());
    assert_eq!(mode(&daemon, "web0").as_deref(), Some("tcx"));
}

#[test]
fn an_interface_goes_by_the_name_that_it_has_now() {
    let namespace = Namespace::new().unwrap();
    ip(&namespace, "link add web0 type veth peer name other0");
    let daemon = Daemon::launch_with(&namespace, &config("web*", "tc", CLOSED));
    daemon.wait_until_ready();
    assert_eq!(mode(&daemon, "web0").as_deref(), Some("tcx"));
    ip(&namespace, "link set web0 name web1");
    eventually("it is listed by its new name", || mode(&daemon, "web1").as_deref() == Some("tcx"));
    assert_eq!(attachment(&daemon, "web0"), None);
    assert_eq!(bpf::tcx(&namespace, "web1"), ["shed_tc"]);
    assert!(daemon.log().contains("web0 is called web1 now."), "{}", daemon.log());
}

#[test]
fn what_could_not_be_let_go_is_tried_again() {
    let namespace = Namespace::new().unwrap();
    ip(&namespace, "link add web0 type veth peer name other0");
    let daemon = Daemon::launch_with(&namespace, &config("web*", "tc", CLOSED));
    daemon.wait_until_ready();
    let index = attachment(&daemon, "web0").unwrap()["ifindex"].to_string();
    let links = std::fs::read_dir(daemon.pins().join("links")).unwrap();
    let mut pins = links.map(|entry| entry.unwrap().path());
    let pin = pins.find(|path| path.to_str().unwrap().ends_with(&index)).unwrap();
    // What is no file is not removed as one.
    std::fs::remove_file(&pin).unwrap();
    std::fs::create_dir(&pin).unwrap();
    ip(&namespace, "link set web0 name gone0");
    eventually("it is said", || warned(&daemon, "gone0 stays served by tcx: letting go of it failed"));
    assert_eq!(bpf::tcx(&namespace, "gone0"), ["shed_tc"]);
    std::fs::remove_dir(&pin).unwrap();
    eventually("it is let go", || attachment(&daemon, "gone0").is_none());
    assert_eq!(bpf::tcx(&namespace, "gone0"), Vec::<String>::new());
    assert!(!warned(&daemon, "gone0"));
}

#[test]
fn the_interface_of_a_default_route_is_served_when_the_route_comes() {
    let net = Net::new();
    let daemon = Daemon::launch_with(&net.server, &config("default-route", "auto", CLOSED));
    daemon.wait_until_ready();
    assert!(warned(&daemon, "no interface holds a default route"));
    let interface = net.link.b.interface.as_str();
    ip(&net.server, &format!("route add default via {}", net.link.a.ipv4));
    eventually("it is served", || mode(&daemon, interface).as_deref() == Some("tcx"));
    ip(&net.server, "route delete default");
    eventually("it is not served any more", || attachment(&daemon, interface).is_none());
    ip(&net.server, &format!("-6 route add default via {}", net.link.a.ipv6));
    eventually("it is served again", || mode(&daemon, interface).as_deref() == Some("tcx"));
}

#[test]
fn a_foreign_xdp_program_is_left_alone() {
    for xdp_mode in [XdpMode::Driver, XdpMode::Skb] {
        let net = Net::new();
        let interface = net.link.b.interface.as_str();
        let mut foreign = bpf::foreign();
        let program: &mut Xdp = foreign.program_mut("pass_xdp").unwrap().try_into().unwrap();
        program.load().unwrap();
        net.server.enter(|| program.attach(interface, xdp_mode).unwrap()).unwrap();
        let theirs = bpf::xdp(&net.server, interface).unwrap();

        let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: CLOSED_DROP });
        let served = attachment(&daemon, interface).unwrap();
        assert_eq!(served["mode"], "tcx");
        let reason = served["reason"].as_str().unwrap();
        assert!(
            reason.contains(&format!(
                "another XDP program is attached to {interface} (id {theirs}, name pass_xdp)"
            )),
            "{reason}"
        );
        assert!(reason.ends_with("so TCX serves it"), "{reason}");
        drop(daemon);

        let mut strict = Daemon::launch_with(&net.server, &config(interface, "native", CLOSED_DROP));
        assert_eq!(strict.exit_code(), Some(1), "{}", strict.log());
        assert!(
            strict.log().contains("name pass_xdp); it is left alone: detach it, or set attach.via = \"tc\""),
            "{}",
            strict.log()
        );
        assert!(!strict.bpffs().exists());
        assert_eq!(bpf::xdp(&net.server, interface), Some(theirs));
    }
}

#[test]
fn a_strict_hook_serves_an_interface_that_comes_later() {
    let namespace = Namespace::new().unwrap();
    let daemon = Daemon::launch_with(&namespace, &config("late0", "native", CLOSED_DROP));
    daemon.wait_until_ready();
    ip(&namespace, "link add late0 type veth peer name late1");
    eventually("it is served", || mode(&daemon, "late0").as_deref() == Some("native"));
}

#[test]
fn jumbo_frames_are_no_obstacle() {
    let (client, server) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let link = VethPair::with_mtu(&client, &server, 9000).unwrap();
    let interface = link.b.interface.clone();
    for (via, rest, expected) in
        [("auto", CLOSED_DROP, "native"), ("auto", CLOSED, "tcx"), ("generic", CLOSED, "generic")]
    {
        let daemon = Daemon::launch_with(&server, &config(&interface, via, rest));
        daemon.wait_until_ready();
        assert_eq!(
            mode(&daemon, &interface).as_deref(),
            Some(expected),
            "{:?}",
            daemon.status()["attachments"]
        );
        let mut daemon = daemon;
        daemon.stop(rustix::process::Signal::TERM);
    }
}

#[test]
fn a_device_without_link_layer_header_is_served_by_tc() {
    let namespace = Namespace::new().unwrap();
    ip(&namespace, "tuntap add dev tun0 mode tun");
    ip(&namespace, "link set tun0 up");
    let daemon = Daemon::launch_with(&namespace, &config("tun0", "auto", CLOSED));
    daemon.wait_until_ready();
    let served = attachment(&daemon, "tun0").unwrap();
    assert_eq!(served["mode"], "tcx");
    assert!(served["reason"].as_str().unwrap().contains("has no Ethernet header"), "{served}");
    assert_eq!(bpf::tcx(&namespace, "tun0"), ["shed_tc"]);
}

#[test]
fn another_action_moves_an_interface_to_the_hook_that_can_do_it() {
    let net = Net::new();
    let interface = net.link.b.interface.as_str();
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest: CLOSED_DROP });
    assert_eq!(mode(&daemon, interface).as_deref(), Some("native"));
    daemon.must(&["set", "port", "8080", "action=reset"]);
    eventually("TC serves it", || mode(&daemon, interface).as_deref() == Some("tcx"));
    assert_eq!(bpf::xdp(&net.server, interface), None);
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let _listener = net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    let refused = connect(&net.client, address, PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    // What serves both stays where it is.
    daemon.must(&["set", "port", "8080", "action=drop"]);
    let ticks = daemon.status()["ticks"]["total"].as_u64().unwrap();
    eventually("two ticks pass", || daemon.status()["ticks"]["total"].as_u64().unwrap() > ticks + 1);
    assert_eq!(mode(&daemon, interface).as_deref(), Some("tcx"));
}

#[test]
fn a_file_that_names_another_hook_moves_the_interface_when_it_is_read_again() {
    let net = Net::new();
    let interface = net.link.b.interface.as_str();
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "tc", rest: CLOSED });
    assert_eq!(mode(&daemon, interface).as_deref(), Some("tcx"));
    let text = std::fs::read_to_string(daemon.config_file()).unwrap();
    std::fs::write(daemon.config_file(), text.replace("via = \"tc\"", "via = \"generic\"")).unwrap();
    daemon.signal(rustix::process::Signal::HUP);
    eventually("generic XDP serves it", || mode(&daemon, interface).as_deref() == Some("generic"));
    assert_eq!(bpf::tcx(&net.server, interface), Vec::<String>::new());
    assert!(bpf::xdp(&net.server, interface).is_some());
    assert_eq!(pinned_links(&daemon), 1 + COUNTING, "it and the counting of connections");
}

#[test]
fn pins_of_another_shape_or_version_are_not_used() {
    let net = Net::new();
    let pins = PinDirectory::new("test");
    let current = support::pins_in(pins.path());
    let old = pins.path().join("abi-0");
    std::fs::create_dir_all(old.join("links")).unwrap();
    std::fs::create_dir_all(&current).unwrap();
    for (directory, entries) in [(&current, 7), (&old, 9)] {
        let mut loader = EbpfLoader::new();
        loader.map_max_entries("COUNTERS", entries).map_pin_path("COUNTERS", directory.join("COUNTERS"));
        drop(loader.load(bpf::OBJECT).unwrap());
    }
    let config = config(&net.link.b.interface, "auto", CLOSED);
    let daemon = Daemon::relaunch_with(&net.server, &config, pins, tempfile::tempdir().unwrap());
    daemon.wait_until_ready();
    assert!(daemon.log().contains("made anew: COUNTERS is "), "{}", daemon.log());
    assert!(!daemon.log().contains("adopted"), "{}", daemon.log());
    assert!(!daemon.bpffs().join("abi-0").exists());
    let address = SocketAddr::new(net.server_ip(false), 8080);
    let _listener = net.server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    assert!(connect(&net.client, address, PATIENCE).is_err());
    eventually("it counts", || daemon.counts("8080").shed == 1);
}
