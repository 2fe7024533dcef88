//! How the snapshot reaches who shows it: made when somebody asks, and held by nobody else, so that neither a tick
//! nor the memory between two looks pays for it.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::snapshot::Snapshot;

/// Questions that wait for the control loop; more askers wait for their turn.
const QUEUE: usize = 64;

/// Somebody who waits for a snapshot; may be gone when it comes.
pub type Asker = oneshot::Sender<Arc<Snapshot>>;

/// The control loop's end.
pub type Askers = mpsc::Receiver<Asker>;

/// Where everybody else asks.
#[derive(Clone, Debug)]
pub struct SnapshotReader(Source);

#[derive(Clone, Debug)]
enum Source {
    Loop(mpsc::Sender<Asker>),
    /// What a test shows.
    #[cfg(test)]
    Shown(tokio::sync::watch::Receiver<Arc<Snapshot>>),
}

/// Both ends.
#[must_use]
pub fn channel() -> (SnapshotReader, Askers) {
    let (sender, askers) = mpsc::channel(QUEUE);
    (SnapshotReader(Source::Loop(sender)), askers)
}

impl SnapshotReader {
    /// The snapshot of now; `None` where the control loop has ended.
    pub async fn latest(&self) -> Option<Arc<Snapshot>> {
        match &self.0 {
            Source::Loop(askers) => {
                let (asker, answer) = oneshot::channel();
                askers.send(asker).await.ok()?;
                answer.await.ok()
            }
            #[cfg(test)]
            Source::Shown(shown) => Some(Arc::clone(&shown.borrow())),
        }
    }
}

#[cfg(test)]
impl From<tokio::sync::watch::Receiver<Arc<Snapshot>>> for SnapshotReader {
    fn from(shown: tokio::sync::watch::Receiver<Arc<Snapshot>>) -> Self {
        Self(Source::Shown(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_asks_is_answered_until_the_loop_ends() {
        let (reader, mut askers) = channel();
        let asking = tokio::spawn({
            let reader = reader.clone();
            async move { reader.latest().await }
        });
        let asker = askers.recv().await.unwrap();
        let snapshot = Arc::new(Snapshot { version: 7, ..Snapshot::default() });
        asker.send(Arc::clone(&snapshot)).unwrap();
        assert_eq!(asking.await.unwrap(), Some(snapshot));

        let waiting = tokio::spawn({
            let reader = reader.clone();
            async move { reader.latest().await }
        });
        drop(askers.recv().await.unwrap());
        drop(askers);
        assert_eq!(waiting.await.unwrap(), None);
        assert_eq!(reader.latest().await, None);
    }
}
