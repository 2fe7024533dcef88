//! Places for the connections of a server: never more than so many, and where all are taken, the client that has been
//! silent for longest makes room, so that silence keeps nobody out.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// All places of a server.
#[derive(Debug)]
pub(crate) struct Slots {
    most: usize,
    free: Arc<Semaphore>,
    /// By age, the oldest first; some of them have asked or gone meanwhile.
    silent: VecDeque<Weak<Client>>,
    spared: Arc<Notify>,
}

/// The place of one client, free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    client: Arc<Client>,
    /// Says that the client that was to make room has asked just in time.
    spared: Arc<Notify>,
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Default)]
struct Client {
    state: AtomicU8,
    is_needed: Notify,
}

const SILENT: u8 = 0;
const HAS_ASKED: u8 = 1;
const MAKES_ROOM: u8 = 2;

impl Slots {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            free: Arc::new(Semaphore::new(most)),
            silent: VecDeque::new(),
            spared: Arc::new(Notify::new()),
        }
    }

    /// A place for a client that has just come. Where all are taken by clients that have asked, it waits for one.
    pub(crate) async fn take(&mut self) -> Slot {
        let place = loop {
            if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
                break Some(place);
            }
            self.cut_off_oldest();
            tokio::select! {
                // The semaphore is never closed; if it were, there would be no limit and still an answer.
                place = Arc::clone(&self.free).acquire_owned() => break place.ok(),
                () = self.spared.notified() => {}
            }
        };
        let client = Arc::new(Client::default());
        if self.silent.len() >= self.most.saturating_mul(2) {
            self.silent.retain(|client| client.upgrade().is_some_and(|client| client.is_silent()));
        }
        self.silent.push_back(Arc::downgrade(&client));
        Slot { client, spared: Arc::clone(&self.spared), _place: place }
    }

    fn cut_off_oldest(&mut self) {
        while let Some(client) = self.silent.pop_front() {
            if client.upgrade().is_some_and(|client| client.make_room()) {
                return;
            }
        }
    }
}

impl Client {
    fn is_silent(&self) -> bool {
        self.state.load(Ordering::Relaxed) == SILENT
    }

    /// Whether it will.
    fn make_room(&self) -> bool {
        let chosen =
            self.state.compare_exchange(SILENT, MAKES_ROOM, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if chosen {
            self.is_needed.notify_one();
        }
        chosen
    }
}

impl Slot {
    /// The whole request of the client has come: it keeps its place until it is answered.
    pub(crate) fn has_asked(&self) {
        if self.client.state.swap(HAS_ASKED, Ordering::Relaxed) == MAKES_ROOM {
            self.spared.notify_one();
        }
    }

    /// Ends when the client must make room, which is never once it has asked.
    pub(crate) async fn is_needed(&self) {
        self.client.is_needed.notified().await;
        if self.client.state.load(Ordering::Relaxed) != MAKES_ROOM {
            pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    async fn ends(future: impl Future<Output = ()>) -> bool {
        timeout(SOON, future).await.is_ok()
    }

    #[tokio::test]
    async fn the_oldest_silent_client_makes_room_and_nobody_else() {
        let mut slots = Slots::new(3);
        let asked = slots.take().await;
        asked.has_asked();
        let (oldest, newest) = (slots.take().await, slots.take().await);
        assert!(!ends(oldest.is_needed()).await, "nobody waits");
        let taking = tokio::spawn(async move { slots.take().await });
        oldest.is_needed().await;
        assert!(!ends(asked.is_needed()).await && !ends(newest.is_needed()).await);
        drop(oldest);
        let _taken = taking.await.unwrap();
    }

    #[tokio::test]
    async fn who_asks_just_in_time_is_spared_and_the_next_one_makes_room() {
        let mut slots = Slots::new(2);
        let (first, second) = (slots.take().await, slots.take().await);
        let taking = tokio::spawn(async move { slots.take().await });
        tokio::task::yield_now().await;
        first.has_asked();
        assert!(!ends(first.is_needed()).await);
        second.is_needed().await;
        drop(second);
        let _taken = taking.await.unwrap();
    }

    #[tokio::test]
    async fn where_all_have_asked_the_next_one_waits() {
        let mut slots = Slots::new(1);
        let asked = slots.take().await;
        asked.has_asked();
        let mut taking = tokio::spawn(async move { slots.take().await });
        assert!(timeout(SOON, &mut taking).await.is_err());
        drop(asked);
        let _taken = taking.await.unwrap();
    }

    #[tokio::test]
    async fn who_is_gone_is_forgotten() {
        let mut slots = Slots::new(2);
        let _silent = slots.take().await;
        for _ in 0..1_000 {
            drop(slots.take().await);
        }
        assert!(slots.silent.len() <= 4, "{}", slots.silent.len());
    }
}
