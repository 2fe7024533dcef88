//! Which port policies are in force: those of the file, or of the ports that listen; and what was set since.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::config::assignments;
use crate::config::model::{Config, PortPolicy};

/// Most ports that are followed without a file; hosts with more should have one.
const MAX_FOLLOWED: usize = 500;

/// Policies and their changes at run time.
#[derive(Clone, Debug)]
pub(super) struct Policies {
    config: Config,
    /// By label: what `set` changed.
    overrides: BTreeMap<String, PortPolicy>,
    pending: Option<Pending>,
}

/// A change that goes back unless it is confirmed.
#[derive(Clone, Debug)]
struct Pending {
    until: Duration,
    before: BTreeMap<String, PortPolicy>,
}

impl Policies {
    /// The policies of a configuration.
    #[must_use]
    pub(super) const fn new(config: Config) -> Self {
        Self { config, overrides: BTreeMap::new(), pending: None }
    }

    /// The configuration with all that is in force.
    #[must_use]
    pub(super) fn effective(&self) -> Config {
        let mut config = self.config.clone();
        for policy in &mut config.ports {
            if let Some(changed) = self.overrides.get(&policy.label()) {
                policy.clone_from(changed);
            }
        }
        config
    }

    /// The configuration as loaded.
    #[must_use]
    pub(super) const fn config(&self) -> &Config {
        &self.config
    }

    /// Takes a new configuration. What was set at run time is gone: the file is what is meant now.
    pub(super) fn reload(&mut self, config: Config) {
        *self = Self::new(config);
    }

    /// Follows the ports that listen. Returns whether anything changed, and how many ports found no place.
    pub(super) fn follow(&mut self, listening: &BTreeSet<u16>) -> (bool, usize) {
        let guard = &self.config.guard.ports;
        let wanted: Vec<u16> =
            listening.iter().copied().filter(|port| *port != 0 && !guard.contains(port)).collect();
        let left_out = wanted.len().saturating_sub(MAX_FOLLOWED);
        let ports: Vec<PortPolicy> = wanted.into_iter().take(MAX_FOLLOWED).map(PortPolicy::of_port).collect();
        if ports == self.config.ports {
            return (false, left_out);
        }
        self.config.ports = ports;
        (true, left_out)
    }

    /// Changes limits of a policy. With `confirm_until` the change goes back at that time unless confirmed.
    ///
    /// # Errors
    ///
    /// No such policy, or an assignment that is none; nothing has changed then.
    pub(super) fn set(
        &mut self,
        port: &str,
        changes: &[(String, String)],
        confirm_until: Option<Duration>,
    ) -> Result<(), String> {
        let Some(policy) = self.config.ports.iter().find(|policy| policy.label() == port) else {
            return Err(self.no_such_policy(port));
        };
        let mut changed = self.overrides.get(port).unwrap_or(policy).clone();
        for (key, value) in changes {
            assignments::apply(&mut changed, key, value)?;
        }
        if let Some(until) = confirm_until {
            // A second change before the confirmation goes back together with the first.
            let before = self.pending.take().map_or_else(|| self.overrides.clone(), |pending| pending.before);
            self.pending = Some(Pending { until, before });
        }
        self.overrides.insert(port.to_owned(), changed);
        Ok(())
    }

    fn no_such_policy(&self, port: &str) -> String {
        if self.config.ports.is_empty() {
            return format!(
                "no port has a policy, so {port} cannot be set; add a [[port]] to the configuration"
            );
        }
        let mut labels: Vec<String> = self.config.ports.iter().take(20).map(PortPolicy::label).collect();
        if self.config.ports.len() > labels.len() {
            labels.push("…".to_owned());
        }
        format!("port {port} has no policy; those with one: {}", labels.join(", "))
    }

    /// Keeps what waits for confirmation. Returns whether anything did.
    pub(super) fn confirm(&mut self) -> bool {
        self.pending.take().is_some()
    }

    /// Takes back what was not confirmed in time. Returns whether anything was.
    pub(super) fn expire(&mut self, now: Duration) -> bool {
        match self.pending.take_if(|pending| now >= pending.until) {
            Some(pending) => {
                self.overrides = pending.before;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::RateLimit;

    fn policies(ports: &[u16]) -> Policies {
        let mut config = Config::observe_default();
        config.ports = ports.iter().copied().map(PortPolicy::of_port).collect();
        Policies::new(config)
    }

    fn rate(policies: &Policies) -> RateLimit {
        policies.effective().ports[0].rate
    }

    fn change(key: &str, value: &str) -> Vec<(String, String)> {
        vec![(key.to_owned(), value.to_owned())]
    }

    #[test]
    fn an_unconfirmed_change_goes_back_and_a_confirmed_one_stays() {
        let at = Duration::from_secs;
        let mut policies = policies(&[80]);
        policies.set("80", &change("rate", "5/s"), None).unwrap();
        policies.set("80", &change("rate", "7/s"), Some(at(10))).unwrap();
        policies.set("80", &change("rate", "9/s"), Some(at(20))).unwrap();
        assert!(!policies.expire(at(19)));
        assert_eq!(rate(&policies), RateLimit::PerSecond(9.0));
        assert!(policies.expire(at(20)));
        assert_eq!(rate(&policies), RateLimit::PerSecond(5.0));
        policies.set("80", &change("rate", "9/s"), Some(at(30))).unwrap();
        assert!(policies.confirm());
        assert!(!policies.confirm());
        assert!(!policies.expire(at(40)));
        assert_eq!(rate(&policies), RateLimit::PerSecond(9.0));
    }

    #[test]
    fn a_wrong_change_changes_nothing_and_says_why() {
        let mut policies = policies(&[80, 443]);
        let before = policies.effective();
        let error = policies.set("8080", &change("rate", "5/s"), None).unwrap_err();
        assert!(error.contains("80, 443"), "{error}");
        let both = [("burst".to_owned(), "5".to_owned()), ("rat".to_owned(), "5/s".to_owned())];
        let error = policies.set("80", &both, None).unwrap_err();
        assert!(error.contains("rate"), "{error}");
        assert_eq!(policies.effective(), before);
    }

    #[test]
    fn listening_ports_are_followed_but_for_guarded_ones() {
        let mut policies = policies(&[]);
        assert_eq!(policies.follow(&BTreeSet::from([22, 80, 443])), (true, 0));
        let labels: Vec<_> = policies.effective().ports.iter().map(PortPolicy::label).collect();
        assert_eq!(labels, ["80", "443"]);
        assert_eq!(policies.follow(&BTreeSet::from([22, 80, 443])), (false, 0));
        policies.set("80", &change("rate", "5/s"), None).unwrap();
        policies.follow(&BTreeSet::from([443]));
        policies.follow(&BTreeSet::from([80, 443]));
        assert_eq!(rate(&policies), RateLimit::PerSecond(5.0));
        assert_eq!(policies.follow(&(1..=65535).collect()).1, 65535 - 6 - 500);
    }
}
