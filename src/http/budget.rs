//! The memory that request bodies of all clients may hold at once.
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a body waits for others to be finished before its request is refused.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The budget. Every body takes from it as it grows, not as it is announced: who only announces holds nothing.
#[derive(Debug)]
pub struct Budget {
    max_bytes: usize,
    used_bytes: Mutex<usize>,
    freed: Condvar,
}

impl Budget {
    pub fn new(max_bytes: usize) -> Arc<Budget> {
        Arc::new(Budget { max_bytes, used_bytes: Mutex::new(0), freed: Condvar::new() })
    }

    pub fn used_bytes(&self) -> usize {
        *self.used_bytes.lock()
    }
}

/// What one request holds of the budget; given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// An empty share.
    pub fn new(budget: &Arc<Budget>) -> Share {
        Share { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Grows to `bytes`, if need be after a wait for others; false when there was no room within two seconds.
    pub fn cover(&mut self, bytes: usize) -> bool {
        self.cover_within(bytes, WAIT_MAX)
    }

    /// Gives back what exceeds `bytes`.
    pub fn trim(&mut self, bytes: usize) {
        if let Some(less) = self.bytes.checked_sub(bytes).filter(|less| *less > 0) {
            *self.budget.used_bytes.lock() -= less;
            self.bytes = bytes;
            self.budget.freed.notify_all();
        }
    }

    fn cover_within(&mut self, bytes: usize, wait: Duration) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else {
            return true;
        };
        let mut used = self.budget.used_bytes.lock();
        if *used + more > self.budget.max_bytes {
            let deadline = Instant::now() + wait;
            while *used + more > self.budget.max_bytes {
                if self.budget.freed.wait_until(&mut used, deadline).timed_out() {
                    return false;
                }
            }
        }
        *used += more;
        self.bytes = bytes;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_back() {
        let budget = Budget::new(100);
        let (mut first, mut second) = (Share::new(&budget), Share::new(&budget));
        assert!(first.cover(60) && first.cover(50) && second.cover(40));
        assert!(!second.cover_within(41, Duration::ZERO));
        drop(first);
        assert!(second.cover_within(100, Duration::ZERO));
        second.trim(30);
        assert_eq!(budget.used_bytes(), 30);
        drop(second);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_body_waits_for_others_to_be_finished() {
        let budget = Budget::new(100);
        let mut first = Share::new(&budget);
        assert!(first.cover(60));
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn({
            let budget = Arc::clone(&budget);
            move || {
                tell.send(()).unwrap();
                Share::new(&budget).cover_within(80, Duration::from_secs(10))
            }
        });
        told.recv().unwrap();
        drop(first);
        assert!(waiter.join().unwrap());
    }
}
