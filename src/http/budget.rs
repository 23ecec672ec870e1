//! The memory that request bodies of all clients may hold at once.
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a body waits for others to be finished before its request is refused.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Bodies up to this size are not counted: connections bound them, all together to a quarter of the budget. Most questions
/// are that short, and must find their way past any number of slow uploads.
const FREE_BYTES: usize = 8 * 1024;
/// Bodies up to this size may use all of the budget. Larger ones leave a part of it alone, so that a few slow uploads
/// cannot keep everybody else out for as long as they take.
const SMALL_BYTES: usize = 256 * 1024;
/// Which part of the budget that is.
const KEPT_PART: usize = 8;

/// The budget. Every body takes from it as it grows, not as it is announced: who only announces holds nothing.
#[derive(Debug)]
pub struct Budget {
    max_bytes: usize,
    used_bytes: Mutex<usize>,
    freed: Condvar,
}

impl Budget {
    /// A budget of which nothing is used.
    pub fn new(max_bytes: usize) -> Arc<Budget> {
        Arc::new(Budget { max_bytes, used_bytes: Mutex::new(0), freed: Condvar::new() })
    }

    /// Whether a share may grow from `held` to `bytes` while all together use `used`. A body that is alone may use all.
    fn has_room(&self, used: usize, held: usize, bytes: usize) -> bool {
        let others = used - held;
        let kept = if bytes > SMALL_BYTES && others > 0 { self.max_bytes / KEPT_PART } else { 0 };
        others + bytes <= self.max_bytes - kept
    }

    /// What all bodies hold now.
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
        if bytes <= FREE_BYTES && self.bytes == 0 {
            return true;
        }
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else {
            return true;
        };
        let mut used = self.budget.used_bytes.lock();
        let is_full = |used: usize| !self.budget.has_room(used, self.bytes, bytes);
        if is_full(*used) {
            let deadline = Instant::now() + wait;
            while is_full(*used) {
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

    const KIB: usize = 1024;

    #[test]
    fn shares_are_given_back() {
        let budget = Budget::new(100 * KIB);
        let (mut first, mut second) = (Share::new(&budget), Share::new(&budget));
        assert!(first.cover(60 * KIB) && first.cover(50 * KIB) && second.cover(40 * KIB));
        assert!(!second.cover_within(41 * KIB, Duration::ZERO));
        drop(first);
        assert!(second.cover_within(100 * KIB, Duration::ZERO));
        second.trim(30 * KIB);
        assert_eq!(budget.used_bytes(), 30 * KIB);
        drop(second);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn large_bodies_leave_room_for_small_ones() {
        let budget = Budget::new(8 * SMALL_BYTES);
        let (mut first, mut second) = (Share::new(&budget), Share::new(&budget));
        assert!(first.cover_within(8 * SMALL_BYTES, Duration::ZERO), "it is alone");
        first.trim(5 * SMALL_BYTES);
        assert!(!second.cover_within(2 * SMALL_BYTES + 1, Duration::ZERO));
        assert!(second.cover_within(2 * SMALL_BYTES, Duration::ZERO));
        let mut small = Share::new(&budget);
        assert!(small.cover_within(SMALL_BYTES, Duration::ZERO));
        assert!(!Share::new(&budget).cover_within(FREE_BYTES + 1, Duration::ZERO));
    }

    #[test]
    fn the_smallest_bodies_need_no_room() {
        let budget = Budget::new(16 * KIB);
        let (mut all, mut tiny) = (Share::new(&budget), Share::new(&budget));
        assert!(all.cover_within(16 * KIB, Duration::ZERO));
        assert!(tiny.cover_within(FREE_BYTES, Duration::ZERO));
        assert!(!tiny.cover_within(FREE_BYTES + 1, Duration::ZERO));
        drop(tiny);
        assert_eq!(budget.used_bytes(), 16 * KIB);
    }

    #[test]
    fn a_body_waits_for_others_to_be_finished() {
        let budget = Budget::new(100 * KIB);
        let mut first = Share::new(&budget);
        assert!(first.cover(60 * KIB));
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn({
            let budget = Arc::clone(&budget);
            move || {
                tell.send(()).unwrap();
                Share::new(&budget).cover_within(80 * KIB, Duration::from_secs(10))
            }
        });
        told.recv().unwrap();
        drop(first);
        assert!(waiter.join().unwrap());
    }
}
