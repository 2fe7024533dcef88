//! What stands before the server.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use xtask::testbed::Namespace;

use super::net::{Net, PORT};
use super::plan::whole;
use super::services::Scenario;
use crate::daemon::Daemon;

/// What the clients of a server wait at most, if its limit is right.
const TARGET_LATENCY_SECONDS: f64 = 0.05;

/// Who limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Variant {
    Nothing,
    Shedder,
    Nftables,
}

impl Variant {
    pub(super) const ALL: [Self; 3] = [Self::Nothing, Self::Shedder, Self::Nftables];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "without",
            Self::Shedder => "shedder",
            Self::Nftables => "nftables",
        }
    }
}

/// A limit in force.
pub(super) enum Limiter {
    /// Also what goes with the namespace.
    None,
    Daemon(Daemon),
}

impl Limiter {
    pub(super) fn start(
        variant: Variant,
        scenario: Scenario,
        net: &Net,
        shedder: &Path,
        capacity_per_second: f64,
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        match variant {
            Variant::Nothing => Ok(Self::None),
            Variant::Shedder => {
                let text = policy(scenario, net, capacity_per_second);
                Ok(Self::Daemon(Daemon::start(shedder, &net.server, &net.interface, &text, stop)?))
            }
            Variant::Nftables => {
                load_rules(&net.server, &rules(capacity_per_second))?;
                Ok(Self::None)
            }
        }
    }

    /// Ends it; what it complains about at its end is an error.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Daemon(daemon) => daemon.stop(),
        }
    }
}

/// Connections that a server can have under way and still be in time (Little's law).
fn connections(capacity_per_second: f64) -> u32 {
    whole(capacity_per_second * TARGET_LATENCY_SECONDS).max(1)
}

fn policy(scenario: Scenario, net: &Net, capacity_per_second: f64) -> String {
    // The load shares this machine's CPUs with the server, and what it presses is not what its server would see.
    let port = format!("[signals.psi_cpu_some]\nenabled = false\n\n[[port]]\nport = {PORT}\n");
    match scenario {
        Scenario::Queue => port + "queue_wait = \"50ms\"\n",
        Scenario::EventLoop | Scenario::Nginx => {
            port + &format!("connections = {}\n", connections(capacity_per_second))
        }
        // Of what waits 50 ms, batch may cause a half and interactive four fifths.
        Scenario::Classes => {
            let shares = "[classes.interactive]\nshares = [0.8, 0.8, 0.7, 0.1]\n\n\
                          [classes.batch]\nshares = [0.5, 0.25, 0.0, 0.0]\n\n";
            format!("{shares}{}{port}queue_wait = \"50ms\"\n", net.source_tables())
        }
    }
}

/// The best that these rules can be told: the measured capacity, and the connections that it can serve in time.
fn rules(capacity_per_second: f64) -> String {
    let rate = whole(capacity_per_second).max(1);
    let connections = connections(capacity_per_second);
    format!(
        "table ip limits {{
    chain raw {{
        type filter hook prerouting priority raw;
        tcp dport {PORT} tcp flags & (syn | ack) == syn limit rate over {rate}/second burst {connections} packets drop
    }}
    chain input {{
        type filter hook input priority filter;
        tcp dport {PORT} ct state new ct count over {connections} reject with tcp reset
    }}
}}
"
    )
}

fn load_rules(namespace: &Namespace, rules: &str) -> anyhow::Result<()> {
    let directory = tempfile::Builder::new().prefix("shedder-").tempdir()?;
    let file = directory.path().join("rules.nft");
    fs::write(&file, rules)?;
    let output = namespace.output(Command::new("nft").arg("-f").arg(&file))?;
    anyhow::ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_from_the_capacity() {
        assert_eq!(connections(1600.0), 80);
        assert_eq!(connections(0.0), 1);
        let rules = rules(1587.4);
        assert!(rules.contains("limit rate over 1587/second burst 79 packets drop"), "{rules}");
        assert!(rules.contains("ct count over 79 reject with tcp reset"), "{rules}");
    }
}
