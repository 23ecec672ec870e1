//! Who notices that a client has left while its request is served: one thread for all connections, told by the kernel.
//!
//! The thread of the connection itself is busy with the upstream then and reads nothing. A stop of the client's sending
//! side counts as leaving, whatever it has sent before that nobody has read yet.
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;

use super::line::Line;
use super::registry::Registry;
use super::sock::{Interest, ReadyQueue};

/// Connections looked at after one wait.
const BATCH: usize = 64;
/// How often the thread looks whether the last connection is gone, once the server stops.
const STOP_LOOK_MS: i32 = 100;

/// The lines that are watched.
#[derive(Debug)]
pub struct Hangups {
    queue: ReadyQueue,
    /// By descriptor. A place is taken over by the next line of the same number, so nothing has to be taken off.
    lines: Mutex<Vec<Weak<Line>>>,
}

impl Hangups {
    /// Starts the thread. It ends when `listener` has been shut down and no connection is left.
    ///
    /// # Errors
    /// When the system grants no descriptor or no thread.
    pub fn start(listener: &TcpListener, registry: &Arc<Registry>) -> io::Result<Arc<Hangups>> {
        let hangups = Arc::new(Hangups { queue: ReadyQueue::new()?, lines: Mutex::default() });
        hangups.queue.add(listener, Interest::Hangup)?;
        let (watcher, registry) = (Arc::clone(&hangups), Arc::clone(registry));
        thread::Builder::new().name("hangup".into()).spawn(move || watcher.run(&registry))?;
        Ok(hangups)
    }

    /// Watches `line` as long as it lives.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn watch(&self, line: &Arc<Line>) -> io::Result<()> {
        let at = place(line.as_raw_fd());
        let mut lines = self.lines.lock();
        if lines.len() <= at {
            lines.resize(at + 1, Weak::new());
        }
        lines[at] = Arc::downgrade(line);
        drop(lines);
        self.queue.add(line.as_ref(), Interest::Hangup)
    }

    fn run(&self, registry: &Registry) {
        let mut hung_up = [0; BATCH];
        loop {
            let stopping = registry.is_stopping();
            if stopping && registry.is_empty() {
                return;
            }
            let timeout_ms = if stopping { STOP_LOOK_MS } else { -1 };
            for descriptor in self.queue.wait(&mut hung_up, timeout_ms) {
                let line = self.lines.lock().get(place(*descriptor)).and_then(Weak::upgrade);
                // The news may be of an earlier connection with this number, so the line is looked at.
                if let Some(line) = line.filter(|line| line.has_hung_up()) {
                    line.hang_up();
                }
            }
        }
    }
}

fn place(descriptor: RawFd) -> usize {
    usize::try_from(descriptor).unwrap_or(0)
}
