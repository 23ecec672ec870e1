//! Connections that wait for their next call. Ours rather than ureq's, so that a call knows whether its connection is
//! a used one (only then a silent retry is safe), and because ureq's sorts itself twice a call under one lock.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::wire::{Peer, Wire};

/// Most servers close an idle connection after 60 s or more; leaving first avoids the race.
const IDLE_FOR: Duration = Duration::from_secs(50);
const IDLE_MAX: usize = 256;
const IDLE_PER_PEER_MAX: usize = 64;

/// Idle connections, the longest idle in front.
#[derive(Debug, Default)]
pub(super) struct Idle(Mutex<VecDeque<(Instant, Wire)>>);

impl Idle {
    /// A connection to `peer`, the last one put back: it is the likeliest to live, and the others may grow old.
    pub fn take(&self, peer: &Peer) -> Option<Wire> {
        let mut wires = self.0.lock();
        let at = wires.iter().rposition(|(_, wire)| wire.peer == *peer)?;
        let (since, wire) = wires.remove(at)?;
        drop(wires);
        (since.elapsed() < IDLE_FOR).then_some(wire)
    }

    /// Keeps a connection for the next call, unless there are enough.
    pub fn put(&self, wire: Wire) {
        let mut wires = self.0.lock();
        let expired = wires.iter().take_while(|(since, _)| since.elapsed() >= IDLE_FOR).count();
        let expired: Vec<_> = wires.drain(..expired).collect();
        let of_peer = wires.iter().filter(|(_, other)| other.peer == wire.peer).count();
        let crowded = match of_peer >= IDLE_PER_PEER_MAX {
            true => wires.iter().position(|(_, other)| other.peer == wire.peer),
            false => (wires.len() >= IDLE_MAX).then_some(0),
        };
        let closed = crowded.and_then(|at| wires.remove(at));
        wires.push_back((Instant::now(), wire));
        drop(wires);
        // Closing is a system call, so it happens without the lock.
        drop((expired, closed));
    }

    /// Closes what has been idle for too long, and what its peer has closed.
    pub fn sweep(&self) {
        let mut wires = self.0.lock();
        let all = std::mem::take(&mut *wires);
        let (kept, closed): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|(since, wire)| since.elapsed() < IDLE_FOR && wire.is_idle());
        *wires = kept;
        drop(wires);
        drop(closed);
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}
