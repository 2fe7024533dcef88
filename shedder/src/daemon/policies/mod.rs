//! Which port policies are in force: those of the file, or of the ports that listen; and what was set since.

mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ranges::{PortRange, range_of};
use crate::config::assignments;
use crate::config::model::{Config, PortPolicy};
use crate::snapshot::{GoesBack, SetLimit};

/// Most ports that are followed without a file; hosts with more should have one.
const MAX_FOLLOWED: usize = 500;

/// Policies and their changes at run time.
#[derive(Clone, Debug)]
pub(super) struct Policies {
    config: Config,
    /// What `set` made of them.
    overrides: BTreeMap<PortRange, PortPolicy>,
    waiting: BTreeMap<PortRange, Waiting>,
}

/// A change that goes back unless it is confirmed.
#[derive(Clone, Debug)]
struct Waiting {
    until: Duration,
    /// What it goes back to; `None` is what the configuration says.
    before: Option<PortPolicy>,
}

impl Policies {
    /// The policies of a configuration.
    #[must_use]
    pub(super) const fn new(config: Config) -> Self {
        Self { config, overrides: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// The configuration with all that is in force.
    #[must_use]
    pub(super) fn effective(&self) -> Config {
        let mut config = self.config.clone();
        for policy in &mut config.ports {
            if let Some(changed) = self.overrides.get(&range_of(policy)) {
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

    /// Changes limits of every policy within a port or range, and tells which those are. With `confirm_until` the
    /// change goes back at that time unless confirmed, together with what waits at the same policy already. Without it
    /// the change stays, also where another one waits and goes back.
    ///
    /// # Errors
    ///
    /// No such policy, an assignment that is none, or two of the same limit; nothing has changed then.
    pub(super) fn set(
        &mut self,
        ports: &str,
        changes: &[(String, String)],
        confirm_until: Option<Duration>,
    ) -> Result<Vec<PortRange>, String> {
        assignments::check_distinct(changes)?;
        let mut changed = Vec::new();
        for configured in targets::meant(&self.config.ports, ports)? {
            let range = range_of(configured);
            let current = self.overrides.get(&range);
            let after = with(current.unwrap_or(configured), changes)?;
            let waiting = match (confirm_until, self.waiting.get(&range)) {
                (Some(until), Some(waiting)) => Some(Waiting { until, before: waiting.before.clone() }),
                (Some(until), None) => Some(Waiting { until, before: current.cloned() }),
                (None, Some(waiting)) => {
                    let before = with(waiting.before.as_ref().unwrap_or(configured), changes)?;
                    (before != after).then_some(Waiting { until: waiting.until, before: Some(before) })
                }
                (None, None) => None,
            };
            changed.push((range, after, waiting));
        }
        let ranges = changed.iter().map(|(range, _, _)| *range).collect();
        for (range, after, waiting) in changed {
            self.overrides.insert(range, after);
            match waiting {
                Some(waiting) => self.waiting.insert(range, waiting),
                None => self.waiting.remove(&range),
            };
        }
        Ok(ranges)
    }

    /// Keeps what waits for confirmation, and tells where something did.
    pub(super) fn confirm(&mut self) -> Vec<PortRange> {
        std::mem::take(&mut self.waiting).into_keys().collect()
    }

    /// Takes back what was not confirmed in time, and tells where something was.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<PortRange> {
        let due: Vec<PortRange> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| now >= waiting.until)
            .map(|(range, _)| *range)
            .collect();
        for range in &due {
            match self.waiting.remove(range).and_then(|waiting| waiting.before) {
                Some(before) => self.overrides.insert(*range, before),
                None => self.overrides.remove(range),
            };
        }
        due
    }

    /// What was set and differs from the configuration, or goes back to something else; by policy and key.
    pub(super) fn set_limits(&self, now: Duration) -> BTreeMap<PortRange, BTreeMap<String, SetLimit>> {
        let of = |configured: &PortPolicy| {
            let range = range_of(configured);
            let current = self.overrides.get(&range)?;
            let waiting = self.waiting.get(&range);
            let limits: BTreeMap<String, SetLimit> = assignments::KEYS
                .into_iter()
                .filter_map(|key| Some((key.to_owned(), set_limit(now, key, configured, current, waiting)?)))
                .collect();
            (!limits.is_empty()).then_some((range, limits))
        };
        self.config.ports.iter().filter_map(of).collect()
    }
}

/// A policy with assignments applied.
fn with(policy: &PortPolicy, changes: &[(String, String)]) -> Result<PortPolicy, String> {
    let mut changed = policy.clone();
    for (key, value) in changes {
        assignments::apply(&mut changed, key, value)?;
    }
    Ok(changed)
}

fn set_limit(
    now: Duration,
    key: &str,
    configured: &PortPolicy,
    current: &PortPolicy,
    waiting: Option<&Waiting>,
) -> Option<SetLimit> {
    let of = |policy: &PortPolicy| assignments::show(policy, key);
    let (value, configured_value) = (of(current), of(configured));
    let goes_back = waiting.and_then(|waiting| {
        let to = of(waiting.before.as_ref().unwrap_or(configured));
        let remaining_seconds = waiting.until.saturating_sub(now).as_secs_f64();
        (to != value).then_some(GoesBack { to, remaining_seconds })
    });
    (value != configured_value || goes_back.is_some()).then_some(SetLimit {
        value,
        configured: configured_value,
        goes_back,
    })
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
        assert!(policies.expire(at(19)).is_empty());
        assert_eq!(rate(&policies), RateLimit::PerSecond(9.0));
        assert_eq!(policies.expire(at(20)), [(80, 80)]);
        assert_eq!(rate(&policies), RateLimit::PerSecond(5.0));
        policies.set("80", &change("rate", "9/s"), Some(at(30))).unwrap();
        assert_eq!(policies.confirm(), [(80, 80)]);
        assert!(policies.confirm().is_empty());
        assert!(policies.expire(at(40)).is_empty());
        assert_eq!(rate(&policies), RateLimit::PerSecond(9.0));
    }

    #[test]
    fn only_what_waits_goes_back() {
        let at = Duration::from_secs;
        let mut policies = policies(&[80, 443]);
        policies.set("80", &change("rate", "5/s"), Some(at(60))).unwrap();
        policies.set("443", &change("rate", "9/s"), None).unwrap();
        policies.set("443", &change("connections", "7"), Some(at(90))).unwrap();
        // Set without --confirm where something waits: it stays, and the rest goes back.
        policies.set("80", &change("burst", "3"), None).unwrap();
        assert_eq!(policies.expire(at(60)), [(80, 80)]);
        let ports = policies.effective().ports;
        assert_eq!((ports[0].rate, ports[0].burst), (RateLimit::Learned, Some(3)));
        assert_eq!((ports[1].rate, ports[1].connections), (RateLimit::PerSecond(9.0), Some(7)));
        assert_eq!(policies.expire(at(90)), [(443, 443)]);
        let ports = policies.effective().ports;
        assert_eq!((ports[1].rate, ports[1].connections), (RateLimit::PerSecond(9.0), None));
        // The later word about the same limit is the one that stays.
        policies.set("80", &change("rate", "5/s"), Some(at(100))).unwrap();
        policies.set("80", &change("rate", "6/s"), None).unwrap();
        assert!(policies.confirm().is_empty() && policies.expire(at(100)).is_empty());
        assert_eq!(rate(&policies), RateLimit::PerSecond(6.0));
    }

    #[test]
    fn a_limit_is_set_once_at_a_time() {
        let mut policies = policies(&[80]);
        let twice = [change("rate", "5/s"), change("burst", "5"), change("rate", "6/s")].concat();
        assert_eq!(policies.set("80", &twice, None).unwrap_err(), "`rate` is set twice: keep one");
        assert_eq!(policies.effective(), *policies.config());
        policies.set("80", &twice[..2], None).unwrap();
    }

    #[test]
    fn a_range_is_set_whole_or_not_at_all() {
        let mut policies = policies(&[80, 8000, 8001, 8002]);
        let both = [("rate".to_owned(), "5/s".to_owned()), ("burst".to_owned(), "0".to_owned())];
        policies.set("8000-8002", &both, None).unwrap_err();
        assert_eq!(policies.effective(), *policies.config());
        let set = policies.set("8000-8002", &change("rate", "5/s"), Some(Duration::from_secs(9))).unwrap();
        assert_eq!(set, [(8000, 8000), (8001, 8001), (8002, 8002)]);
        let rates = |policies: &Policies| {
            policies.effective().ports.into_iter().map(|port| port.rate).collect::<Vec<_>>()
        };
        let five = RateLimit::PerSecond(5.0);
        assert_eq!(rates(&policies), [RateLimit::Learned, five, five, five]);
        assert_eq!(policies.expire(Duration::from_secs(9)).len(), 3);
        assert_eq!(policies.effective(), *policies.config());
    }

    #[test]
    fn what_was_set_is_told_beside_what_is_configured() {
        let at = Duration::from_secs;
        let mut policies = policies(&[80, 443]);
        assert!(policies.set_limits(at(0)).is_empty());
        policies.set("80", &change("rate", "9/s"), None).unwrap();
        policies.set("80", &change("connections", "5"), Some(at(60))).unwrap();
        policies.set("443", &change("rate", "learned"), None).unwrap();
        let set = policies.set_limits(at(52));
        assert_eq!(set.keys().collect::<Vec<_>>(), [&(80, 80)], "443 is as configured");
        let port = &set[&(80, 80)];
        let rate = SetLimit { value: "9/s".to_owned(), configured: "learned".to_owned(), goes_back: None };
        assert_eq!(port["rate"], rate);
        let goes_back = Some(GoesBack { to: "unlimited".to_owned(), remaining_seconds: 8.0 });
        let connections = SetLimit { value: "5".to_owned(), configured: "unlimited".to_owned(), goes_back };
        assert_eq!(port["connections"], connections);
        assert_eq!(port.len(), 2);
        // What is as configured now and will not be is told too.
        policies.set("80", &change("rate", "learned"), Some(at(60))).unwrap();
        let rate = policies.set_limits(at(52))[&(80, 80)]["rate"].clone();
        assert_eq!((rate.value, rate.goes_back.unwrap().to), ("learned".to_owned(), "9/s".to_owned()));
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
