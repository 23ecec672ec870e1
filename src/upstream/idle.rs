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
    pub fn take(&self, peer: &Peer, now: Instant) -> Option<Wire> {
        let mut wires = self.0.lock();
        let at = wires.iter().rposition(|(_, wire)| wire.peer == *peer)?;
        let (since, wire) = wires.remove(at)?;
        drop(wires);
        (!is_old(since, now)).then_some(wire)
    }

    /// Keeps a connection for the next call, unless there are enough.
    pub fn put(&self, wire: Wire, now: Instant) {
        let mut wires = self.0.lock();
        let expired = wires.iter().take_while(|(since, _)| is_old(*since, now)).count();
        let expired: Vec<_> = wires.drain(..expired).collect();
        let of_peer = wires.iter().filter(|(_, other)| other.peer == wire.peer).count();
        let crowded = match of_peer >= IDLE_PER_PEER_MAX {
            true => wires.iter().position(|(_, other)| other.peer == wire.peer),
            false => (wires.len() >= IDLE_MAX).then_some(0),
        };
        let closed = crowded.and_then(|at| wires.remove(at));
        wires.push_back((now, wire));
        drop(wires);
        // Closing is a system call, so it happens without the lock.
        drop((expired, closed));
    }

    /// Closes what has been idle for too long, and what its peer has closed.
    pub fn sweep(&self, now: Instant) {
        let mut wires = self.0.lock();
        let all = std::mem::take(&mut *wires);
        let (kept, closed): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|(since, wire)| !is_old(*since, now) && wire.is_idle());
        *wires = kept;
        drop(wires);
        drop(closed);
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}

fn is_old(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= IDLE_FOR
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use super::*;

    fn peer(port: u16) -> Peer {
        Peer { tls: false, host: "up.test".into(), port, proxy: None }
    }

    /// Makes connections to one listener, whose backlog keeps their other ends open.
    struct Wires(TcpListener);

    impl Wires {
        fn new() -> Wires {
            Wires(TcpListener::bind("127.0.0.1:0").unwrap())
        }

        fn wire(&self, peer: Peer) -> Wire {
            let socket = TcpStream::connect(self.0.local_addr().unwrap()).unwrap();
            Wire::new(peer, Arc::new(socket))
        }
    }

    #[test]
    fn connections_are_kept_for_equal_peers_and_not_for_long() {
        let (wires, idle, now) = (Wires::new(), Idle::default(), Instant::now());
        idle.put(wires.wire(peer(1)), now);
        let mut others =
            vec![peer(2), Peer { tls: true, ..peer(1) }, Peer { host: "b.test".into(), ..peer(1) }];
        others.push(Peer { proxy: Some("HTTP_PROXY".into()), ..peer(1) });
        for other in others {
            assert!(idle.take(&other, now).is_none(), "{other:?}");
        }
        assert!(idle.take(&peer(1), now).is_some());
        idle.put(wires.wire(peer(1)), now);
        assert!(idle.take(&peer(1), now + IDLE_FOR).is_none());
        idle.put(wires.wire(peer(1)), now);
        idle.put(wires.wire(peer(2)), now + IDLE_FOR);
        assert_eq!(idle.len(), 1);
        idle.sweep(now + IDLE_FOR);
        assert_eq!(idle.len(), 1);
        idle.sweep(now + IDLE_FOR * 2);
        assert_eq!(idle.len(), 0);
    }

    #[test]
    fn the_last_one_put_back_is_taken_first() {
        let (wires, idle, now) = (Wires::new(), Idle::default(), Instant::now());
        let (first, second) = (wires.wire(peer(1)), wires.wire(peer(1)));
        let last = Arc::clone(second.socket());
        idle.put(first, now);
        idle.put(second, now);
        assert!(Arc::ptr_eq(idle.take(&peer(1), now).unwrap().socket(), &last));
    }

    #[test]
    fn there_are_never_more_than_the_bounds() {
        let (wires, idle, now) = (Wires::new(), Idle::default(), Instant::now());
        let accepting = wires.0.try_clone().unwrap();
        std::thread::spawn(move || accepting.incoming().collect::<Vec<_>>());
        for _ in 0..IDLE_PER_PEER_MAX + 3 {
            idle.put(wires.wire(peer(1)), now);
        }
        assert_eq!(idle.len(), IDLE_PER_PEER_MAX);
        for port in 0..IDLE_MAX as u16 {
            idle.put(wires.wire(peer(10 + port)), now);
        }
        assert_eq!(idle.len(), IDLE_MAX);
        assert!(idle.take(&peer(1), now).is_none());
        assert!(idle.take(&peer(10), now).is_some());
    }
}
