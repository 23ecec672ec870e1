//! Who watches the log live. News are handed over without waiting: a reader that is too slow misses some and is told how
//! many, so that it can neither hold up a request nor make memory grow.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::record::TurnRecord;

/// Readers at once; each holds a connection and its thread.
pub const READERS_MAX: usize = 16;
/// News that wait for one reader.
const NEWS_MAX: usize = 256;

/// What readers are told.
#[derive(Clone, Debug)]
pub enum News {
    Turn(Arc<TurnRecord>),
    /// Something that the views show has changed, such as `overrides`.
    Changed(&'static str),
    /// Nothing: somebody waits for a place, so that a reader whose client is gone is to notice.
    Look,
}

/// All readers.
#[derive(Debug, Default)]
pub(super) struct Readers {
    readers: Vec<Reader>,
    last_id: u64,
    closed: bool,
}

#[derive(Debug)]
struct Reader {
    id: u64,
    sender: Sender<News>,
    missed: Arc<AtomicU64>,
}

/// One reader's end.
#[derive(Debug)]
pub struct Watcher {
    pub(super) id: u64,
    /// Closed when the gateway stops.
    pub news: Receiver<News>,
    missed: Arc<AtomicU64>,
}

impl Watcher {
    /// How many news were left out since this was asked last.
    pub fn take_missed(&self) -> u64 {
        self.missed.swap(0, Ordering::AcqRel)
    }
}

impl Readers {
    /// A new reader; `None` when there are too many.
    pub fn join(&mut self) -> Option<Watcher> {
        if self.readers.len() >= READERS_MAX || self.closed {
            return None;
        }
        self.last_id += 1;
        let (sender, news) = bounded(NEWS_MAX);
        let missed = Arc::new(AtomicU64::new(0));
        self.readers.push(Reader { id: self.last_id, sender, missed: Arc::clone(&missed) });
        Some(Watcher { id: self.last_id, news, missed })
    }

    pub fn leave(&mut self, id: u64) {
        self.readers.retain(|reader| reader.id != id);
    }

    pub fn count(&self) -> usize {
        self.readers.len()
    }

    pub fn tell(&self, news: impl Fn() -> News) {
        for reader in &self.readers {
            // A reader that has just left is taken off the list by itself.
            if reader.sender.try_send(news()).is_err_and(|error| error.is_full()) {
                reader.missed.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Has every reader look whether its client is still there; one that has news to tell finds out anyway.
    pub fn look(&self) {
        for reader in &self.readers {
            drop(reader.sender.try_send(News::Look));
        }
    }

    /// Ends all watching, for good.
    pub fn close(&mut self) {
        self.closed = true;
        self.readers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b10_a_reader_that_is_too_slow_misses_news_and_is_told_how_many() {
        let mut readers = Readers::default();
        let slow = readers.join().expect("there is room");
        for _ in 0..NEWS_MAX + 7 {
            readers.tell(|| News::Changed("reload"));
        }
        assert_eq!((slow.news.len(), slow.take_missed(), slow.take_missed()), (NEWS_MAX, 7, 0));
        assert!(slow.news.try_recv().is_ok());
        readers.tell(|| News::Changed("reload"));
        assert_eq!(slow.take_missed(), 0, "it has caught up");
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let mut readers = Readers::default();
        let all: Vec<Watcher> = std::iter::from_fn(|| readers.join()).collect();
        assert_eq!((all.len(), readers.count()), (READERS_MAX, READERS_MAX));
        readers.leave(all[3].id);
        assert!(readers.join().is_some_and(|watcher| all.iter().all(|other| other.id != watcher.id)));
        readers.close();
        assert!(all[0].news.recv().is_err());
        assert!(readers.join().is_none(), "nobody begins to watch what has ended");
    }
}
