//! Who may call upstreams: a fixed number of workers' places, and a bounded queue before them.
//!
//! The thread that has read a request takes a place for the time of its call and gives it back, so that a call needs no
//! second thread, and nobody has to be woken to begin it.
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::upstream::cut::Cut;

/// The places of all workers.
#[derive(Debug)]
pub struct Workers {
    places: usize,
    queue_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    busy: usize,
    /// Who came first stands first.
    queue: VecDeque<Arc<Desk>>,
}

/// What the workers are doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Places taken.
    pub busy: usize,
    /// Requests that wait for a place.
    pub queued: usize,
}

/// What came of asking for a place.
#[derive(Debug)]
pub enum Entry {
    Place(Place),
    /// Nobody waits for its answer any more.
    Ended,
    /// All places are taken, and the queue is full.
    Full,
}

/// A worker's place; free again when dropped.
#[derive(Debug)]
pub struct Place(Arc<Workers>);

/// Where a thread waits for a place.
#[derive(Debug, Default)]
struct Desk {
    news: Mutex<Option<News>>,
    told: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Granted,
    Ended,
}

impl Workers {
    /// All places are free, and the queue before them holds `queue_max` requests.
    pub fn new(places: usize, queue_max: usize) -> Arc<Workers> {
        Arc::new(Workers { places, queue_max, state: Mutex::default() })
    }

    /// Takes a place, or waits for one until `cut`.
    pub fn enter(self: &Arc<Workers>, cut: &Cut) -> Entry {
        let mut state = self.state.lock();
        if state.busy < self.places {
            state.busy += 1;
            return Entry::Place(Place(Arc::clone(self)));
        }
        if state.queue.len() >= self.queue_max {
            return Entry::Full;
        }
        let desk = Arc::new(Desk::default());
        state.queue.push_back(Arc::clone(&desk));
        drop(state);
        let at_desk = Arc::clone(&desk);
        cut.on_cut(Box::new(move || at_desk.tell(News::Ended)));
        match desk.wait() {
            News::Ended if self.leave(&desk) => Entry::Ended,
            // Not in the queue any more: a place was granted, perhaps at the moment of the cut.
            News::Ended | News::Granted => Entry::Place(Place(Arc::clone(self))),
        }
    }

    /// What the workers are doing now.
    pub fn load(&self) -> Load {
        let state = self.state.lock();
        Load { busy: state.busy, queued: state.queue.len() }
    }

    /// Leaves the queue; false for one who is not in it.
    fn leave(&self, desk: &Arc<Desk>) -> bool {
        let mut state = self.state.lock();
        let at = state.queue.iter().position(|queued| Arc::ptr_eq(queued, desk));
        at.and_then(|at| state.queue.remove(at)).is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let next = state.queue.pop_front();
        if next.is_none() {
            state.busy -= 1;
        }
        drop(state);
        if let Some(desk) = next {
            desk.tell(News::Granted);
        }
    }
}

impl Desk {
    fn tell(&self, news: News) {
        let mut told = self.news.lock();
        if told.is_none() {
            *told = Some(news);
            self.told.notify_one();
        }
    }

    fn wait(&self) -> News {
        let mut news = self.news.lock();
        loop {
            match *news {
                Some(news) => return news,
                None => self.told.wait(&mut news),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn places_and_queue_are_bounded() {
        let workers = Workers::new(2, 0);
        let cut = Cut::new();
        let places = [workers.enter(&cut), workers.enter(&cut)];
        assert!(matches!(places, [Entry::Place(_), Entry::Place(_)]));
        assert!(matches!(workers.enter(&cut), Entry::Full));
        assert_eq!(workers.load(), Load { busy: 2, queued: 0 });
        drop(places);
        assert_eq!(workers.load(), Load::default());
        assert!(matches!(workers.enter(&cut), Entry::Place(_)));
    }

    #[test]
    fn who_waits_longest_is_next() {
        let workers = Workers::new(1, 9);
        let first = workers.enter(&Cut::new());
        let (tell, told) = channel();
        thread::scope(|scope| {
            for number in 0..4 {
                let (tell, workers) = (tell.clone(), &workers);
                scope.spawn(move || {
                    let place = workers.enter(&Cut::new());
                    assert!(matches!(place, Entry::Place(_)));
                    tell.send(number).unwrap();
                });
                eventually("it waits", || workers.load().queued == number + 1);
            }
            drop(first);
            assert!((0..4).all(|number| told.recv().unwrap() == number));
        });
        assert_eq!(workers.load(), Load::default());
    }

    #[test]
    fn who_has_left_waits_no_longer() {
        let workers = Workers::new(1, 1);
        let place = workers.enter(&Cut::new());
        let cut = Cut::new();
        thread::scope(|scope| {
            let waits = scope.spawn(|| matches!(workers.enter(&cut), Entry::Ended));
            eventually("it waits", || workers.load().queued == 1);
            cut.cut();
            assert!(waits.join().unwrap());
        });
        assert_eq!(workers.load(), Load { busy: 1, queued: 0 });
        // One that was cut before it came does not wait at all.
        assert!(matches!(workers.enter(&cut), Entry::Ended));
        drop(place);
        assert_eq!(workers.load(), Load::default());
    }

    #[test]
    fn a_place_that_is_granted_to_one_who_leaves_is_not_lost() {
        let workers = Workers::new(1, 64);
        for _ in 0..200 {
            let place = workers.enter(&Cut::new());
            let cut = Cut::new();
            thread::scope(|scope| {
                scope.spawn(|| drop(workers.enter(&cut)));
                eventually("it waits", || workers.load().queued == 1);
                scope.spawn(|| cut.cut());
                drop(place);
            });
            assert_eq!(workers.load(), Load::default());
        }
    }
}
