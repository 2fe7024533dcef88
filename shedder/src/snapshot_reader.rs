//! How the snapshot reaches who shows it: made when somebody asks, so that a tick costs nothing while nobody does.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::snapshot::Snapshot;

/// Where the control loop publishes.
#[derive(Debug)]
pub struct SnapshotPublisher {
    latest: watch::Sender<Arc<Snapshot>>,
    wanted: Arc<Notify>,
}

/// Where everybody else reads.
#[derive(Clone, Debug)]
pub struct SnapshotReader {
    latest: watch::Receiver<Arc<Snapshot>>,
    /// Wakes the publisher; `None` where it publishes without being asked.
    wanted: Option<Arc<Notify>>,
}

/// A publisher and its reader, from a first snapshot.
#[must_use]
pub fn channel(first: Arc<Snapshot>) -> (SnapshotPublisher, SnapshotReader) {
    let (sender, receiver) = watch::channel(first);
    let wanted = Arc::new(Notify::new());
    let publisher = SnapshotPublisher { latest: sender, wanted: Arc::clone(&wanted) };
    (publisher, SnapshotReader { latest: receiver, wanted: Some(wanted) })
}

impl SnapshotPublisher {
    /// Returns when somebody waits for a snapshot. May be dropped before that without losing a request.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Gives it to everybody who waits.
    pub fn publish(&self, snapshot: Arc<Snapshot>) {
        let _older = self.latest.send_replace(snapshot);
    }
}

impl SnapshotReader {
    /// The snapshot of now; the last one there was where the control loop has ended.
    pub async fn latest(&self) -> Arc<Snapshot> {
        let mut latest = self.latest.clone();
        if let Some(wanted) = &self.wanted {
            latest.mark_unchanged();
            wanted.notify_one();
            // An error means that there will be none any more.
            let _ended = latest.changed().await;
        }
        Arc::clone(&latest.borrow())
    }

    /// The last one that was published, however old; for what does not change.
    #[must_use]
    pub fn last_published(&self) -> Arc<Snapshot> {
        Arc::clone(&self.latest.borrow())
    }
}

/// A reader of what is published without being asked for.
impl From<watch::Receiver<Arc<Snapshot>>> for SnapshotReader {
    fn from(latest: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { latest, wanted: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_tick(total: u64) -> Arc<Snapshot> {
        let mut snapshot = Snapshot::default();
        snapshot.ticks.total = total;
        Arc::new(snapshot)
    }

    #[tokio::test]
    async fn one_snapshot_serves_all_who_wait_and_none_is_made_for_nobody() {
        let (publisher, reader) = channel(of_tick(0));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let reader = reader.clone();
                tokio::spawn(async move { reader.latest().await.ticks.total })
            })
            .collect();
        publisher.wanted().await;
        // All of them have asked by now: they ran before this task was woken.
        publisher.publish(of_tick(1));
        for reader in readers {
            assert_eq!(reader.await.unwrap(), 1);
        }
        assert_eq!(reader.last_published().ticks.total, 1);
    }

    #[tokio::test]
    async fn after_the_end_of_the_loop_the_last_one_is_read() {
        let (publisher, reader) = channel(of_tick(7));
        drop(publisher);
        assert_eq!(reader.latest().await.ticks.total, 7);
        let (_sender, receiver) = watch::channel(of_tick(8));
        assert_eq!(SnapshotReader::from(receiver).latest().await.ticks.total, 8);
    }
}
