//! A pool of threads that is as large as its work: threads are spawned on demand up to a bound, the one that became
//! idle last is used first, and those idle for long end.
//!
//! It knows nothing of HTTP: a job is whatever `run` takes. A job that panics is one failed job.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Bounds and sizes of one pool.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Shown in thread lists.
    pub name: &'static str,
    pub threads_max: usize,
    pub stack_bytes: usize,
    /// A thread without work ends after this.
    pub idle: Duration,
}

/// What a pool is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Threads at work.
    pub busy: usize,
    /// Threads that wait for work.
    pub idle: usize,
    /// Jobs that have panicked since the start.
    pub panicked: u64,
}

/// A pool that calls one function on jobs of one type.
pub struct Pool<J> {
    shared: Arc<Shared<J>>,
}

struct Shared<J> {
    sizes: Sizes,
    run: Box<dyn Fn(J) + Send + Sync>,
    state: Mutex<State<J>>,
}

struct State<J> {
    threads: usize,
    /// The one that became idle last stands last.
    idle: Vec<Arc<Desk<J>>>,
    panicked: u64,
    closed: bool,
}

/// Where a thread waits for its next job.
struct Desk<J> {
    order: Mutex<Order<J>>,
    changed: Condvar,
}

enum Order<J> {
    Wait,
    Do(J),
    GoHome,
}

impl<J: Send + 'static> Pool<J> {
    /// A pool without threads yet.
    pub fn new(sizes: Sizes, run: impl Fn(J) + Send + Sync + 'static) -> Pool<J> {
        let state = State { threads: 0, idle: Vec::new(), panicked: 0, closed: false };
        Pool { shared: Arc::new(Shared { sizes, run: Box::new(run), state: Mutex::new(state) }) }
    }

    /// Hands `job` to a thread.
    ///
    /// # Errors
    /// The job itself when all threads are busy, or the system grants none.
    pub fn submit(&self, job: J) -> Result<(), J> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if let Some(desk) = state.idle.pop() {
            drop(state);
            desk.give(Order::Do(job));
            return Ok(());
        }
        if state.threads >= shared.sizes.threads_max {
            return Err(job);
        }
        state.threads += 1;
        drop(state);
        Shared::spawn(shared, job).inspect_err(|_| shared.state.lock().threads -= 1)
    }

    /// What the pool is doing now.
    pub fn load(&self) -> Load {
        let state = self.shared.state.lock();
        let idle = state.idle.len();
        Load { busy: state.threads - idle, idle, panicked: state.panicked }
    }
}

impl<J> Drop for Pool<J> {
    /// Sends idle threads home; busy ones go when their job is done.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let idle = std::mem::take(&mut state.idle);
        state.threads -= idle.len();
        drop(state);
        idle.iter().for_each(|desk| desk.give(Order::GoHome));
    }
}

impl<J: Send + 'static> Shared<J> {
    /// Gives the job back when the system grants no thread.
    fn spawn(shared: &Arc<Shared<J>>, job: J) -> Result<(), J> {
        let desk = Arc::new(Desk { order: Mutex::new(Order::Do(job)), changed: Condvar::new() });
        let (house, seat) = (Arc::clone(shared), Arc::clone(&desk));
        let thread =
            std::thread::Builder::new().name(shared.sizes.name.into()).stack_size(shared.sizes.stack_bytes);
        match thread.spawn(move || house.work(&seat)) {
            Ok(_) => Ok(()),
            Err(_) => match std::mem::replace(&mut *desk.order.lock(), Order::Wait) {
                Order::Do(job) => Err(job),
                // The desk was never seen by anybody else.
                Order::Wait | Order::GoHome => Ok(()),
            },
        }
    }

    /// The life of one thread.
    fn work(&self, desk: &Arc<Desk<J>>) {
        while let Some(job) = self.next_order(desk) {
            // The hook has reported a panic already, and what the job owned is dropped with it.
            let panicked = catch_unwind(AssertUnwindSafe(|| (self.run)(job))).is_err();
            let mut state = self.state.lock();
            state.panicked += u64::from(panicked);
            if state.closed {
                state.threads -= 1;
                return;
            }
            state.idle.push(Arc::clone(desk));
        }
    }

    /// Waits at the desk; `None` when this thread is to end.
    fn next_order(&self, desk: &Arc<Desk<J>>) -> Option<J> {
        let mut order = desk.order.lock();
        loop {
            match std::mem::replace(&mut *order, Order::Wait) {
                Order::Do(job) => return Some(job),
                Order::GoHome => return None,
                Order::Wait => {}
            }
            if desk.changed.wait_for(&mut order, self.sizes.idle).timed_out() && matches!(*order, Order::Wait)
            {
                // The state is never locked by anyone who holds a desk, but for this thread, which lets go first.
                drop(order);
                if self.leave(desk) {
                    return None;
                }
                order = desk.order.lock();
            }
        }
    }

    /// Takes this thread off the list of idle ones; false when somebody has taken it off to give it a job.
    fn leave(&self, desk: &Arc<Desk<J>>) -> bool {
        let mut state = self.state.lock();
        let Some(at) = state.idle.iter().position(|idle| Arc::ptr_eq(idle, desk)) else {
            return false;
        };
        state.idle.remove(at);
        state.threads -= 1;
        true
    }
}

impl<J> Desk<J> {
    fn give(&self, order: Order<J>) {
        *self.order.lock() = order;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;
    use std::time::Instant;

    use super::*;

    type Job = Box<dyn FnOnce() + Send>;

    fn pool(threads_max: usize, idle_ms: u64) -> Pool<Job> {
        let idle = Duration::from_millis(idle_ms);
        let sizes = Sizes { name: "test", threads_max, stack_bytes: 128 << 10, idle };
        Pool::new(sizes, |job: Job| job())
    }

    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Occupies one thread until the sender is dropped.
    fn occupy(pool: &Pool<Job>) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel::<()>();
        assert!(pool.submit(Box::new(move || assert!(held.recv().is_err()))).is_ok());
        release
    }

    fn thread_of(pool: &Pool<Job>) -> ThreadId {
        let (tell, told) = mpsc::channel();
        assert!(pool.submit(Box::new(move || tell.send(std::thread::current().id()).unwrap())).is_ok());
        let id = told.recv().unwrap();
        eventually("the thread is idle again", || pool.load().busy == 0);
        id
    }

    #[test]
    fn threads_are_bounded() {
        let pool = pool(2, 10_000);
        let held = [occupy(&pool), occupy(&pool)];
        assert!(pool.submit(Box::new(|| ())).is_err());
        assert_eq!(pool.load(), Load { busy: 2, idle: 0, panicked: 0 });
        drop(held);
        eventually("all are idle", || pool.load() == Load { busy: 0, idle: 2, panicked: 0 });
    }

    #[test]
    fn the_thread_that_became_idle_last_works_first() {
        let pool = pool(4, 10_000);
        let held: Vec<_> = (0..3).map(|_| occupy(&pool)).collect();
        drop(held);
        eventually("all are idle", || pool.load().idle == 3);
        let first = thread_of(&pool);
        assert!((0..20).all(|_| thread_of(&pool) == first));
    }

    #[test]
    fn idle_threads_end() {
        let pool = pool(4, 20);
        drop((0..3).map(|_| occupy(&pool)).collect::<Vec<_>>());
        eventually("none is left", || pool.load() == Load::default());
        thread_of(&pool);
    }

    #[test]
    fn a_panic_is_one_failed_job() {
        let pool = pool(1, 10_000);
        assert!(pool.submit(Box::new(|| panic!("on purpose"))).is_ok());
        eventually("the thread survives", || pool.load() == Load { busy: 0, idle: 1, panicked: 1 });
        thread_of(&pool);
    }

    #[test]
    fn a_dropped_pool_goes_home_when_its_jobs_are_done() {
        let pool = pool(2, 10_000);
        let shared = Arc::downgrade(&pool.shared);
        let held = occupy(&pool);
        thread_of_idle(&pool);
        drop(pool);
        assert!(shared.upgrade().is_some());
        drop(held);
        eventually("its threads are gone", || shared.upgrade().is_none());
    }

    /// Lets one thread become idle beside a busy one.
    fn thread_of_idle(pool: &Pool<Job>) {
        drop(occupy(pool));
        eventually("one is idle", || pool.load().idle == 1);
    }
}
