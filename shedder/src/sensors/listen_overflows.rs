//! `listen_overflows`: finished handshakes refused because an accept queue was full; per second, by port.
//!
//! The kernel counts them for the whole namespace (`ListenOverflows`), and for each listener only how much it dropped
//! for whatever reason, as for want of a place in the SYN queue. A port has overflowed no more often than either says,
//! so that neither another port's overflows nor its own other drops are its overflows. A port that drops nothing is not
//! told of again and again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, ListenerFact};
use super::kept::Kept;
use super::reading::{Reading, Scope, Unavailable};
use super::source::{Source, garbage, under};
use super::window::{CounterWindow, not_over};
use super::{Sensor, names_of, report};
use crate::config::model::{Signal, SignalSource};

/// A single overflow must not look like many a second.
const WINDOW: Duration = Duration::from_secs(1);
/// Least time between two looks, a tick and a half: the kernel adds up a hundred counters of every CPU for each.
const REST: Duration = Duration::from_millis(150);

/// For the signals that count overflows.
pub(super) fn build(root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let names = names_of(signals, &SignalSource::ListenOverflows);
    (!names.is_empty()).then(|| {
        Box::new(ListenOverflows {
            names,
            netstat: Kept::new(under(root, "proc/net/netstat")),
            overflows: CounterWindow::new(WINDOW),
            ports: BTreeMap::new(),
            due_at: Duration::ZERO,
            source: Source::default(),
        }) as Box<dyn Sensor>
    })
}

#[derive(Debug)]
struct ListenOverflows {
    names: Vec<Arc<str>>,
    netstat: Kept,
    /// Of the namespace.
    overflows: CounterWindow,
    ports: BTreeMap<u16, Port>,
    due_at: Duration,
    source: Source,
}

/// What the listeners of a port have dropped.
#[derive(Debug)]
struct Port {
    /// By inode, as the kernel counts; a socket that is closed takes its count with it.
    sockets: BTreeMap<u32, u32>,
    total: u64,
    drops: CounterWindow,
    /// When it was told of without any.
    calm_at: Option<Duration>,
}

impl ListenOverflows {
    /// Of the namespace, per second.
    fn overflows(&mut self, now: Duration) -> Result<f64, Unavailable> {
        let text = self.netstat.read(&mut self.source).map_err(|error| error.at(self.netstat.path()))?;
        let total = overflows(text)
            .ok_or_else(|| garbage(self.netstat.path(), "`ListenOverflows` under `TcpExt`"))?;
        self.overflows.push(now, total).ok_or_else(not_over)
    }
}

impl Port {
    fn new() -> Self {
        Self { sockets: BTreeMap::new(), total: 0, drops: CounterWindow::new(WINDOW), calm_at: None }
    }

    /// Drops of its listeners, per second.
    fn drops(&mut self, now: Duration, listeners: &[&ListenerFact]) -> Result<f64, Unavailable> {
        let before = std::mem::take(&mut self.sockets);
        for listener in listeners {
            let drops = listener.drops.ok_or_else(|| {
                Unavailable::absent("the kernel does not tell what a listener drops: it needs Linux 4.10")
            })?;
            let more = before.get(&listener.inode).map_or(0, |before| drops.wrapping_sub(*before));
            self.total = self.total.saturating_add(u64::from(more));
            self.sockets.insert(listener.inode, drops);
        }
        self.drops.push(now, self.total).ok_or_else(not_over)
    }

    /// Whether there is nothing new to tell: none, as was told within the pace.
    fn is_calm(&mut self, value: &Result<f64, Unavailable>, now: Duration, pace: Duration) -> bool {
        if *value != Ok(0.0) {
            self.calm_at = None;
            return false;
        }
        let told = self.calm_at.is_some_and(|at| now.saturating_sub(at) < pace);
        if !told {
            self.calm_at = Some(now);
        }
        told
    }
}

/// A line of names, then a line of values.
fn overflows(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let position = lines.next()?.split_ascii_whitespace().position(|name| name == "ListenOverflows")?;
    lines.next()?.split_ascii_whitespace().nth(position)?.parse().ok()
}

impl Sensor for ListenOverflows {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        if !context.listeners_are_new || context.now < self.due_at {
            return;
        }
        self.due_at = context.now.saturating_add(context.pace.min(REST));
        let overflows = self.overflows(context.now);
        let mut listeners: BTreeMap<u16, Vec<&ListenerFact>> = BTreeMap::new();
        for listener in context.listeners {
            listeners.entry(listener.port).or_default().push(listener);
        }
        self.ports.retain(|port, _| listeners.contains_key(port));
        for (number, listeners) in listeners {
            let port = self.ports.entry(number).or_insert_with(Port::new);
            let drops = port.drops(context.now, &listeners);
            let value = match (&overflows, drops) {
                (Ok(overflows), Ok(drops)) => Ok(drops.min(*overflows)),
                (Err(error), _) => Err(error.clone()),
                (_, Err(error)) => Err(error),
            };
            if !port.is_calm(&value, context.now, context.pace) {
                report(&self.names, &Scope::Port(number), &value, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::testing::{Bench, signal};

    /// The first line's last name is another counter, and another protocol has one of the same name.
    fn netstat(overflows: u64, drops: u64) -> String {
        format!(
            "TcpExt: SyncookiesSent SyncookiesRecv ListenOverflows ListenDrops TCPHPHits\n\
             TcpExt: 0 0 {overflows} {drops} 1234\n\
             IpExt: InNoRoutes ListenOverflows\nIpExt: 0 999\n"
        )
    }

    fn listener(port: u16, inode: u32, drops: u32) -> ListenerFact {
        ListenerFact { port, inode, accept_queue: 0, backlog: 128, drops: Some(drops), cgroup_id: None }
    }

    struct Run {
        bench: Bench,
        ms: u64,
    }

    impl Run {
        fn new() -> Self {
            Self { bench: Bench::new([signal("listen_overflows", SignalSource::ListenOverflows)]), ms: 0 }
        }

        /// A look, a fifth of a second after the last; what a port that is not told of had stays.
        fn look(&mut self, overflows: u64, listeners: &[ListenerFact]) {
            self.ms += 200;
            self.bench.write("proc/net/netstat", &netstat(overflows, 50 * overflows));
            self.bench.listeners = listeners.to_vec();
            self.bench.tick(self.ms);
        }

        fn values(&self) -> Vec<(String, Result<f64, String>)> {
            let of = |scope: &str| (scope.to_owned(), self.bench.value("listen_overflows", scope));
            self.bench.scopes("listen_overflows").into_iter().map(of).collect()
        }
    }

    #[test]
    fn overflows_are_those_of_the_port_that_drops() {
        let mut run = Run::new();
        // Each drops the same; the kernel counts as many overflows as one of them.
        for look in 0..=10 {
            run.look(100 + u64::from(look), &[listener(80, 1, 7 + look), listener(81, 2, 5)]);
        }
        assert_eq!(run.bench.value("listen_overflows", "port:80"), Ok(5.0));
        let told: Vec<_> = (0..5)
            .flat_map(|_| {
                run.look(110, &[listener(80, 1, 17), listener(81, 2, 5)]);
                run.values()
            })
            .filter(|(scope, _)| scope == "port:81")
            .collect();
        assert!((1..=3).contains(&told.len()), "not at every look: {told:?}");
        assert!(told.iter().all(|(_, value)| *value == Ok(0.0)), "{told:?}");
    }

    #[test]
    fn other_drops_are_no_overflows() {
        let mut run = Run::new();
        for look in 0..=10 {
            run.look(100, &[listener(80, 1, 1_000 * look)]);
        }
        assert!(run.values().iter().all(|(_, value)| *value == Ok(0.0)), "{:?}", run.values());
    }

    #[test]
    fn listeners_that_share_a_port_are_added_up_and_may_come_and_go() {
        let mut run = Run::new();
        for look in 0..=5 {
            run.look(
                u64::from(4 * look),
                &[listener(80, 1, 2 * look), listener(80, 2, (u32::MAX - 3).wrapping_add(2 * look))],
            );
        }
        assert_eq!(run.bench.value("listen_overflows", "port:80"), Ok(20.0), "the second one wrapped");
        // One is closed, and another opened whose count is not from here.
        for look in 6..=11 {
            run.look(u64::from(4 * look), &[listener(80, 1, 2 * look), listener(80, 3, 1_000_000)]);
        }
        assert_eq!(run.bench.value("listen_overflows", "port:80"), Ok(10.0));
        run.look(100, &[]);
        assert!(run.values().is_empty());
    }

    #[test]
    fn a_counter_that_is_not_there_is_no_zero() {
        let mut run = Run::new();
        for _ in 0..=5 {
            run.look(0, &[ListenerFact { drops: None, ..listener(80, 1, 0) }]);
        }
        assert!(run.bench.value("listen_overflows", "port:80").unwrap_err().contains("Linux 4.10"));
        let text = netstat(5, 6);
        for end in 0..text.find(" 5 ").unwrap() {
            assert_eq!(overflows(&text[..end]), None, "{end}");
        }
        assert_eq!(overflows(&text), Some(5));
    }

    #[test]
    fn a_reset_counter_is_no_burst() {
        let mut run = Run::new();
        for (look, total) in [(0, 5_000), (1, 5_000), (2, 5_000), (3, 3), (4, 3), (5, 3), (6, 3)] {
            run.look(total, &[listener(80, 1, look)]);
            assert!(
                run.values().iter().all(|(_, value)| !matches!(value, Ok(rate) if *rate > 0.0)),
                "at {look}"
            );
        }
    }

    #[test]
    fn the_running_kernel_is_understood() {
        let text = std::fs::read_to_string("/proc/net/netstat").unwrap();
        assert!(overflows(&text).is_some());
    }
}
