//! `accept_queue`: connections that wait for `accept` over the listen backlog; ratio, 1 at most, by port.
//!
//! A port may have several listeners (`SO_REUSEPORT`, IPv4 and IPv6): the fullest counts, since connections that
//! fall to it wait there whatever room the others have. An empty queue is not told of again and again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, depth_ratio};
use super::reading::{Reading, Scope};
use super::{Sensor, names_of, report};
use crate::config::model::{Signal, SignalSource};

/// For the signals that look at accept queues.
pub(super) fn build(_root: &Path, signals: &[Signal]) -> Option<Box<dyn Sensor>> {
    let names = names_of(signals, &SignalSource::AcceptQueue);
    (!names.is_empty()).then(|| Box::new(AcceptQueue { names, empty: BTreeMap::new() }) as Box<dyn Sensor>)
}

#[derive(Debug)]
struct AcceptQueue {
    names: Vec<Arc<str>>,
    /// When an empty queue of a port was told of.
    empty: BTreeMap<u16, Duration>,
}

impl Sensor for AcceptQueue {
    fn read(&mut self, context: &Context<'_>, out: &mut Vec<Reading>) {
        if !context.listeners_are_new {
            return;
        }
        let mut fullest: BTreeMap<u16, f64> = BTreeMap::new();
        for listener in context.listeners {
            let depth = depth_ratio(listener.accept_queue, listener.backlog);
            let of_port = fullest.entry(listener.port).or_default();
            *of_port = of_port.max(depth);
        }
        self.empty.retain(|port, _| fullest.get(port) == Some(&0.0));
        for (port, depth) in fullest {
            if depth == 0.0 {
                let told = self.empty.get(&port);
                if told.is_some_and(|at| context.now.saturating_sub(*at) < context.pace) {
                    continue;
                }
                self.empty.insert(port, context.now);
            }
            report(&self.names, &Scope::Port(port), &Ok(depth), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::context::ListenerFact;
    use crate::sensors::testing::{Bench, signal};

    fn listener(port: u16, accept_queue: u32, backlog: u32) -> ListenerFact {
        ListenerFact { port, inode: 0, accept_queue, backlog, drops: Some(0), cgroup_id: None }
    }

    #[test]
    fn the_fullest_listener_of_a_port_counts() {
        let mut bench = Bench::new([signal("accept_queue", SignalSource::AcceptQueue)]);
        bench.listeners = vec![
            listener(80, 10, 100),
            listener(80, 90, 100),
            listener(80, 0, 1_000),
            listener(81, 130, 128),
            listener(82, 0, 0),
            listener(83, 1, 0),
        ];
        bench.tick(0);
        assert_eq!(bench.value("accept_queue", "port:80"), Ok(0.9));
        assert_eq!(bench.value("accept_queue", "port:81"), Ok(1.0), "one more than the backlog may wait");
        assert_eq!(bench.value("accept_queue", "port:82"), Ok(0.0));
        assert_eq!(bench.value("accept_queue", "port:83"), Ok(1.0));
    }

    #[test]
    fn without_a_listener_there_is_nothing_to_say() {
        let mut bench = Bench::new([signal("accept_queue", SignalSource::AcceptQueue)]);
        assert!(bench.tick(0).is_empty());
    }
}
