//! What an operator asks between ticks; it takes effect at once.

use std::time::Duration;

use shedder_common::control::Mode;

use super::ControlLoop;
use super::tell::tell_steps;
use crate::config::model::Config;
use crate::control::protocol::{Command, LevelChoice, Payload, Refusal};
use crate::daemon::clock;
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
                if self.policies.confirm() {
                    Ok(Payload::Message("the change stays".to_owned()))
                } else {
                    Err(Refusal::failed("nothing waits for confirmation"))
                }
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
        self.policies.set(port, assignments, confirm_until).map_err(Refusal::wrong_use)?;
        self.apply_policies();
        // The first policy that answers with RST may need another hook.
        self.dirty.links = true;
        self.write_quotas(now);
        let changes: Vec<String> = assignments.iter().map(|(key, value)| format!("{key}={value}")).collect();
        tracing::info!("Port {port}: {}.", changes.join(" "));
        let confirm = confirm_seconds.map_or_else(String::new, |seconds| {
            format!("; it goes back in {seconds} s unless `shedder confirm` keeps it")
        });
        Ok(Payload::Message(format!("port {port}: {}{confirm}", changes.join(" "))))
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
