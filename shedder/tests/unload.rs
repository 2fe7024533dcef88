//! Nothing is left behind, and nobody else is touched.

#![cfg(test)]

mod support;

use std::process::{Command, Stdio};

use aya::Ebpf;
use aya::programs::LinkOrder;
use aya::programs::tc::{NlOptions, SchedClassifier, TcAttachOptions, TcAttachType, qdisc_add_clsact};
use rustix::process::Signal;
use shedder_common::abi::map;
use support::bpf::Held;
use support::run::{Told, must, shedder, shedder_in, unload};
use support::{Daemon, Net, SHEDDER, Setup, bpf};

const PORT: &str = "[[port]]\nport = 8080\nrate = \"0/s\"\n";

fn start(net: &Net) -> Daemon {
    Daemon::start(net, &Setup { mode: "enforce", via: "auto", rest: PORT })
}

/// A configuration with `on_exit` of one's own.
fn keeping(net: &Net, on_exit: &str) -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n[attach]\ninterfaces = [\"{}\"]\n\
         [daemon]\nsocket = \"{{socket}}\"\nbpffs = \"{{bpffs}}\"\non_exit = \"{on_exit}\"\n{PORT}",
        net.link.b.interface
    )
}

fn assert_nothing_left(daemon: &Daemon, net: &Net, held: &Held) {
    bpf::eventually_gone(held);
    assert!(!daemon.bpffs().exists());
    assert!(!daemon.socket().exists());
    assert_eq!(bpf::tcx(&net.server, &net.link.b.interface), Vec::<String>::new());
}

fn assert_done(told: &Told) {
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""), "{told:?}");
}

#[test]
fn unload_twice_with_a_daemon_leaves_nothing_and_the_daemon_exits_0() {
    let net = Net::new();
    let mut daemon = start(&net);
    let held = bpf::held(daemon.pid());
    let first = unload(&daemon.config_file());
    assert_done(&first);
    // Told when it was done.
    assert!(!daemon.bpffs().exists(), "{first:?}");
    assert_eq!(daemon.exit_code(), Some(0));
    let second = unload(&daemon.config_file());
    assert_done(&second);
    assert!(second.stdout.starts_with("nothing of shedder is pinned"), "{second:?}");
    assert_nothing_left(&daemon, &net, &held);
}

#[test]
fn two_unloads_at_once_both_succeed() {
    let net = Net::new();
    let mut daemon = start(&net);
    let held = bpf::held(daemon.pid());
    let file = daemon.config_file();
    let unloads: Vec<_> = (0..4)
        .map(|_| {
            let mut command = Command::new(SHEDDER);
            command.arg("unload").arg("--config").arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for child in unloads {
        assert_done(&child.wait_with_output().unwrap().into());
    }
    assert_eq!(daemon.exit_code(), Some(0));
    assert_nothing_left(&daemon, &net, &held);
}

#[test]
fn unload_twice_after_kill_9_leaves_nothing() {
    let net = Net::new();
    let mut daemon = start(&net);
    let held = bpf::held(daemon.pid());
    daemon.kill();
    assert_eq!(bpf::tcx(&net.server, &net.link.b.interface), ["shed_tc"]);
    let first = unload(&daemon.config_file());
    assert_done(&first);
    assert!(first.stdout.contains("15 pins"), "{first:?}");
    assert_done(&unload(&daemon.config_file()));
    std::fs::remove_file(daemon.socket()).unwrap();
    assert_nothing_left(&daemon, &net, &held);
}

#[test]
fn unload_refuses_to_pull_the_pins_from_under_a_daemon_that_it_does_not_reach() {
    let net = Net::new();
    let daemon = start(&net);
    let file = daemon.config_file();
    let told = shedder(&["unload", "--config", file.to_str().unwrap(), "--socket", "/nonexistent.sock"]);
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.stderr.contains("another shedder uses"), "{told:?}");
    assert!(told.stderr.contains(&format!("(process {} holds it)", daemon.pid())), "{told:?}");
    assert!(daemon.pins().join("CONTROL").exists());
    assert_eq!(daemon.status()["mode"], "enforce");
}

#[test]
fn sigterm_and_sigint_detach() {
    for signal in [Signal::TERM, Signal::INT] {
        let net = Net::new();
        let mut daemon = start(&net);
        let held = bpf::held(daemon.pid());
        assert_eq!(daemon.stop(signal), Some(0));
        let log = daemon.log();
        assert!(
            log.contains("runs in mode enforce; policies: 1.") && log.contains("detached and unpinned"),
            "{log}"
        );
        assert_nothing_left(&daemon, &net, &held);
    }
}

#[test]
fn on_exit_keep_leaves_everything_pinned_until_unload() {
    let net = Net::new();
    let config = keeping(&net, "keep");
    let mut daemon = Daemon::launch_with(&net.server, &config);
    daemon.wait_until_ready();
    let held = bpf::held(daemon.pid());
    assert_eq!(daemon.stop(Signal::TERM), Some(0));
    assert_eq!(bpf::tcx(&net.server, &net.link.b.interface), ["shed_tc"]);
    assert!(daemon.pins().join("CONTROL").exists());

    let (pins, directory) = daemon.into_remains();
    let mut daemon = Daemon::relaunch_with(&net.server, &config, pins, directory);
    daemon.wait_until_ready();
    assert!(daemon.log().contains("adopted"), "{}", daemon.log());
    // Constants are in maps of their own, which belong to the programs.
    assert_eq!(bpf::held(daemon.pid()).maps.intersection(&held.maps).count(), map::ALL.len());
    assert_eq!(daemon.stop(Signal::INT), Some(0));
    assert_done(&unload(&daemon.config_file()));
    assert_nothing_left(&daemon, &net, &held);
}

fn classifier<'a>(foreign: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    foreign.program_mut(name).unwrap().try_into().unwrap()
}

#[test]
fn a_foreign_tcx_program_keeps_its_place_before_or_after_ours() {
    for (order, expected) in
        [(LinkOrder::first(), ["pass_tc", "shed_tc"]), (LinkOrder::last(), ["shed_tc", "pass_tc"])]
    {
        let net = Net::new();
        let interface = net.link.b.interface.as_str();
        let setup = Setup { mode: "enforce", via: "auto", rest: PORT };
        let mut daemon = Daemon::start(&net, &setup);
        let mut foreign = bpf::foreign();
        let program = classifier(&mut foreign, "pass_tc");
        program.load().unwrap();
        let attach = || {
            program.attach_with_options(interface, TcAttachType::Ingress, TcAttachOptions::TcxOrder(order))
        };
        net.server.enter(attach).unwrap().unwrap();
        assert_eq!(bpf::tcx(&net.server, interface), expected);
        daemon.kill();
        let daemon = daemon.restart(&net, &setup);
        assert_eq!(bpf::tcx(&net.server, interface), expected, "a restart keeps the order");
        assert_done(&unload(&daemon.config_file()));
        assert_eq!(bpf::tcx(&net.server, interface), ["pass_tc"]);
    }
}

#[test]
fn a_filter_of_ours_on_clsact_goes_and_a_foreign_one_stays() {
    let net = Net::new();
    let interface = net.link.b.interface.as_str();
    let setup = Setup { mode: "enforce", via: "auto", rest: PORT };
    let daemon = Daemon::start(&net, &setup);
    // One as a daemon leaves it that was killed on a kernel without TCX.
    let mut foreign = bpf::foreign();
    for name in ["pass_tc", "shed_tc"] {
        let program = classifier(&mut foreign, name);
        program.load().unwrap();
        let attach = || {
            // Both are added to one qdisc.
            drop(qdisc_add_clsact(interface));
            let options = TcAttachOptions::Netlink(NlOptions::default());
            let id = program.attach_with_options(interface, TcAttachType::Ingress, options).unwrap();
            std::mem::forget(program.take_link(id).unwrap());
        };
        net.server.enter(attach).unwrap();
    }
    let filters = || must(&format!("tc -netns {} filter show dev {interface} ingress", net.server.name()));
    assert!(filters().contains("shed_tc") && filters().contains("pass_tc"), "{}", filters());
    let file = daemon.config_file();
    for _ in 0..2 {
        assert_done(&shedder_in(&net.server, &["unload", "--config", file.to_str().unwrap()]));
    }
    assert!(!filters().contains("shed_tc"), "{}", filters());
    assert!(filters().contains("pass_tc"), "{}", filters());
}
