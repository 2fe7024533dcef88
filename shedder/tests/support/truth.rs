//! What others say of the connections that shedder counts.

use std::process::Command;
use std::time::Duration;

use xtask::testbed::{Namespace, http_get};

use super::{Daemon, Net, eventually, holds_in_time};

/// States of a connection between the handshake and the last acknowledgement.
const LIVE: [&str; 6] = ["established", "fin-wait-1", "fin-wait-2", "close-wait", "last-ack", "closing"];

/// Live connections of a local port as `ss` counts them; what waits out its time is no socket any more.
pub fn ss_count(namespace: &Namespace, port: &str) -> u64 {
    let mut command = Command::new("ss");
    command.args(["-H", "-t", "-n", "-o"]);
    for state in LIVE {
        command.args(["state", state]);
    }
    command.args(["sport", "=", &format!(":{port}")]);
    let output = namespace.output(&mut command).unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().filter(|line| !line.contains("timer:(timewait")).count().try_into().unwrap()
}

/// Closes connections of a local port as `ss -K` does; returns how many.
pub fn ss_kill(namespace: &Namespace, port: &str) -> usize {
    let mut command = Command::new("ss");
    command.args(["-H", "-K", "-t", "-n", "state", "established", "sport", "=", &format!(":{port}")]);
    let output = namespace.output(&mut command).unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().count()
}

/// `shedder_active_connections` of a port at the endpoint.
pub fn metric_active(net: &Net, port: &str) -> u64 {
    let get = || http_get("127.0.0.1:9464".parse().unwrap(), "/metrics", Duration::from_secs(5)).unwrap();
    let (status, body) = net.server.enter(get).unwrap();
    assert_eq!(status, 200);
    let series = format!("shedder_active_connections{{port=\"{port}\"}} ");
    let line = body.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or_else(|| panic!("no {series} in\n{body}")).parse().unwrap()
}

/// A counter of `/proc/net/snmp` or `/proc/net/netstat` of a namespace, such as `TcpExt SyncookiesRecv`.
pub fn kernel_counter(namespace: &Namespace, group: &str, name: &str) -> u64 {
    let file = if group == "TcpExt" { "netstat" } else { "snmp" };
    let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let text = namespace.enter(read).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no {name}")).1.parse().unwrap()
}

/// Connections of a port as `ss`, the status and the endpoint count them.
fn counts(net: &Net, daemon: &Daemon, port: &str) -> [u64; 3] {
    [ss_count(&net.server, port), daemon.active(port), metric_active(net, port)]
}

/// Sees that the kernel counted right by itself.
pub fn was_not_corrected(daemon: &Daemon) {
    let log = daemon.log();
    assert!(!log.contains("is corrected by"), "{log}");
}

/// Waits until `ss`, status and endpoint say one number, and say it still two ticks later.
pub fn counts_agree(net: &Net, daemon: &Daemon, port: &str) -> u64 {
    let mut all = [0; 3];
    let agreed = holds_in_time(|| {
        all = counts(net, daemon, port);
        let agreed = all.iter().all(|count| *count == all[0]);
        if agreed {
            two_ticks_pass(daemon);
        }
        agreed && counts(net, daemon, port) == all
    });
    assert!(agreed, "port {port}: ss, status and endpoint say {all:?}");
    all[0]
}

/// Waits until `ss`, status and endpoint say this number.
pub fn counts_become(net: &Net, daemon: &Daemon, port: &str, count: usize) {
    let count = u64::try_from(count).unwrap();
    let mut all = [0; 3];
    let became = holds_in_time(|| {
        all = counts(net, daemon, port);
        all == [count; 3]
    });
    assert!(became, "port {port}: ss, status and endpoint say {all:?} instead of {count}");
}

/// Waits until the daemon has looked at the kernel's counts anew, twice.
pub fn two_ticks_pass(daemon: &Daemon) {
    let total = || daemon.status()["ticks"]["total"].as_u64().unwrap();
    let start = total();
    eventually("the daemon ticks", || total() >= start + 2);
}
