//! What an operator asks between ticks; it takes effect at once.

use std::time::Duration;

use shedder_common::control::Mode;

use super::ControlLoop;
use super::tell::tell_steps;
use crate::config::model::Config;
use crate::config::range;
use crate::control::protocol::{Command, LevelChoice, Payload, Refusal};
use crate::daemon::clock;
use crate::daemon::ranges::PortRange;
use crate::explain;

impl ControlLoop {
    /// Takes a new configuration. What needs a restart is said and left as it is.
    pub(in crate::daemon) fn reload(&mut self, config: Config) {
        let running = self.policies.config();
        let new_endpoint = config.metrics.listen.map(|address| address.port());
        if (&config.daemon, &config.metrics) != (&running.daemon, &running.metrics) {
            tracing::warn!(
                "[daemon] and [metrics] are read at the start only: restart shedder to change them."
            );
        }
        let mut config =
            Config { daemon: running.daemon.clone(), metrics: running.metrics.clone(), ..config };
        if let Some(port) = config.metrics.listen.map(|address| address.port())
            && Some(port) != new_endpoint
        {
            // The file was checked against the endpoint that it names, which is not the one that runs.
            if let Some(policy) =
                config.ports.iter().find(|policy| (policy.first..=policy.last).contains(&port))
            {
                tracing::error!(
                    "The running configuration stays: port {} of the new one covers {port}, where the endpoint listens \
                     until shedder is restarted.",
                    policy.label()
                );
                return;
            }
            config.guard.ports.push(port);
        }
        let dropped = dropped(
            (running.mode, self.mode, config.mode),
            self.policies.set_limits(Duration::ZERO).into_keys(),
        );
        if let Some(dropped) = dropped {
            tracing::warn!(
                "What an operator set at run time is dropped, the file is what holds now: {dropped}."
            );
        }
        self.set_mode(config.mode);
        self.policies.reload(config);
        self.apply_policies();
        let transitions = self.pressure.set_config(clock::monotonic(), &self.config);
        tell_steps(&transitions);
        self.sync_sources();
        self.dirty.links = true;
        tracing::info!("The configuration is read again; mode {}.", self.mode.name());
    }

    /// Does what a control client asks, at once.
    pub(in crate::daemon) fn command(&mut self, command: Command, now: Duration) -> Result<Payload, Refusal> {
        self.fresh = None;
        match command {
            Command::Set { port, assignments, confirm_seconds } => {
                self.set(&port, &assignments, confirm_seconds, now)
            }
            Command::Confirm => {
                let confirmed = self.policies.confirm();
                if confirmed.is_empty() {
                    return Err(Refusal::failed("nothing waits for confirmation"));
                }
                tracing::info!("What was set on {} is confirmed and stays.", ports(&confirmed));
                Ok(Payload::Message("the change stays".to_owned()))
            }
            Command::Mode { mode } => {
                let before = self.mode;
                self.set_mode(mode);
                self.write_quotas(now);
                tracing::info!("Mode {} is now {}.", before.name(), mode.name());
                Ok(Payload::Message(format!("mode is {}, it was {}", mode.name(), before.name())))
            }
            Command::Level { level, for_seconds } => {
                self.pin_level(level, for_seconds, now);
                self.write_quotas(now);
                Ok(Payload::Message(match level {
                    LevelChoice::Auto => "the signals decide the level again".to_owned(),
                    LevelChoice::Pinned(level) => {
                        let until = for_seconds.map_or_else(
                            || "until told otherwise".to_owned(),
                            |seconds| format!("for {seconds} s, then the signals decide again"),
                        );
                        format!("level is {} {until}", level.name())
                    }
                }))
            }
            Command::Explain { port } => explain::answer(&self.snapshot(now), port.as_deref()),
            // Those the server answers itself, and after an unload there is no loop that could.
            Command::Status | Command::Record { .. } | Command::Unload => {
                Err(Refusal::failed("this daemon does not know that command"))
            }
        }
    }

    fn set(
        &mut self,
        port: &str,
        assignments: &[(String, String)],
        confirm_seconds: Option<f64>,
        now: Duration,
    ) -> Result<Payload, Refusal> {
        let confirm_until = match confirm_seconds.map(Duration::try_from_secs_f64) {
            None => None,
            Some(Ok(time)) => Some(now + time),
            Some(Err(error)) => return Err(Refusal::wrong_use(format!("--confirm: {error}"))),
        };
        let set = self.policies.set(port, assignments, confirm_until).map_err(Refusal::wrong_use)?;
        self.apply_policies();
        // The first policy that answers with RST may need another hook.
        self.dirty.links = true;
        self.write_quotas(now);
        let changes: Vec<String> = assignments.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let confirm = confirm_seconds.map_or_else(String::new, |seconds| {
            format!("; it goes back in {seconds} s unless `shedder confirm` keeps it")
        });
        let message = format!("{}: {}{confirm}", ports(&set), changes.join(" "));
        tracing::info!("An operator sets {message}.");
        Ok(Payload::Message(message))
    }

    /// Takes back what was not confirmed in time.
    pub(super) fn take_back_unconfirmed(&mut self, now: Duration) {
        let taken_back = self.policies.expire(now);
        if taken_back.is_empty() {
            return;
        }
        tracing::warn!("What was set on {} was not confirmed in time and is taken back.", ports(&taken_back));
        self.apply_policies();
        self.dirty.links = true;
    }

    fn pin_level(&mut self, level: LevelChoice, for_seconds: Option<f64>, now: Duration) {
        let level = match level {
            LevelChoice::Auto => None,
            LevelChoice::Pinned(level) => Some(level),
        };
        let until =
            for_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).map(|time| now + time);
        let transitions = self.pressure.pin(now, level, until);
        self.read_counters(now);
        let counters = (self.mode != Mode::Off).then_some(&self.counters);
        self.pressure.follow_levels(now, &self.config, counters);
        tell_steps(&transitions);
    }
}

/// `port 8080`, or `ports 443, 8000-8099 (101 policies)`
fn ports(ranges: &[PortRange]) -> String {
    let listed = range::list(ranges.iter().copied());
    match ranges {
        [_] => format!("port {listed}"),
        ranges => format!("ports {listed} ({} policies)", ranges.len()),
    }
}

/// What a new configuration puts an end to: a mode that an operator chose, and what was set on policies.
fn dropped(
    (configured, running, new): (Mode, Mode, Mode),
    set: impl Iterator<Item = PortRange>,
) -> Option<String> {
    let mode = (running != configured && running != new)
        .then(|| format!("mode {} -> {}", running.name(), new.name()));
    let set: Vec<PortRange> = set.collect();
    let set = (!set.is_empty()).then(|| format!("`set` values of {}", ports(&set)));
    let dropped: Vec<String> = mode.into_iter().chain(set).collect();
    (!dropped.is_empty()).then(|| dropped.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_names_what_it_drops() {
        use Mode::{Enforce, Observe, Off};
        let dropped = |modes, set: &[PortRange]| dropped(modes, set.iter().copied());
        assert_eq!(dropped((Observe, Observe, Observe), &[]), None);
        assert_eq!(dropped((Observe, Observe, Enforce), &[]), None, "the file says so");
        assert_eq!(dropped((Observe, Enforce, Enforce), &[]), None, "nothing changes");
        assert_eq!(dropped((Observe, Enforce, Off), &[]).unwrap(), "mode enforce -> off");
        assert_eq!(
            dropped((Observe, Enforce, Observe), &[(80, 80), (8000, 8000), (8001, 8001)]).unwrap(),
            "mode enforce -> observe; `set` values of ports 80, 8000-8001 (3 policies)"
        );
        assert_eq!(dropped((Off, Off, Off), &[(80, 80)]).unwrap(), "`set` values of port 80");
    }
}
