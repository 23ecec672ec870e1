//! Who is connected: the list of all lines, and the caps on how many there may be.
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::line::Line;
use super::sock::Ends;
use crate::base::clock;
use crate::guard::limiter::household;

/// Connections kept free for the box's own programs, so that others cannot lock the owner out.
const LOOPBACK_RESERVE: usize = 16;

/// A thread that is not starved has looked at the first bytes of its connection within this. Longer than that they are
/// no reason to spare it, or slow heads would last.
const BEGINNING_MS: u64 = 500;

/// Why a newcomer is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// No more connections at all.
    Everybody,
    /// No more from this address.
    Address,
}

/// The list and its caps.
#[derive(Debug)]
pub struct Registry {
    connections_max: usize,
    per_address_max: usize,
    stopping: AtomicBool,
    seats: Mutex<Seats>,
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct Seats {
    lines: HashMap<Ends, Weak<Line>>,
    of_address: HashMap<IpAddr, usize>,
}

/// The place of one connection; free again when dropped.
///
/// A line drops it after its socket: until then the ends must count as known, or the search for the next accepted
/// socket could find this one.
#[derive(Debug)]
pub struct Seat {
    registry: Arc<Registry>,
    ends: Ends,
}

impl Registry {
    /// An empty list under these caps.
    pub fn new(connections_max: usize, per_address_max: usize) -> Arc<Registry> {
        Arc::new(Registry {
            connections_max,
            per_address_max,
            stopping: AtomicBool::new(false),
            seats: Mutex::default(),
            emptied: Condvar::new(),
        })
    }

    /// Whether a connection of these ends is on the list.
    pub fn knows(&self, ends: &Ends) -> bool {
        self.seats.lock().lines.contains_key(ends)
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.seats.lock().lines.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a place for a connection. When all are taken, the connection idle for longest is closed for it.
    ///
    /// Loopback has no cap per address: everybody behind a reverse proxy on this box comes from there.
    ///
    /// # Errors
    /// When the newcomer must be turned away.
    pub fn seat(self: &Arc<Registry>, ends: Ends) -> Result<Seat, Full> {
        let address = household(ends.peer.ip());
        let mut seats = self.seats.lock();
        if !address.is_loopback()
            && seats.of_address.get(&address).is_some_and(|count| *count >= self.per_address_max)
        {
            return Err(Full::Address);
        }
        let kept = if address.is_loopback() { 0 } else { LOOPBACK_RESERVE.min(self.connections_max / 2) };
        if seats.lines.len() >= self.connections_max - kept {
            drop(seats);
            // It is gone in a moment, which the distance of the cap to the descriptor limit has room for.
            if !self.close_longest_idle() {
                return Err(Full::Everybody);
            }
            seats = self.seats.lock();
        }
        seats.lines.insert(ends, Weak::new());
        *seats.of_address.entry(address).or_default() += 1;
        Ok(Seat { registry: Arc::clone(self), ends })
    }

    /// Closes the connection that has been without a request for longest; false when none is without. One that has
    /// only just come, with a request that its thread has not seen yet, is spared while there are others.
    pub fn close_longest_idle(&self) -> bool {
        let lines = self.lines();
        let now_ms = clock::uptime_ms();
        let mut idle: Vec<_> =
            lines.iter().filter_map(|line| line.idle_since_ms().map(|ms| (ms, line))).collect();
        idle.sort_by_key(|(since_ms, _)| *since_ms);
        let beginning = |since_ms: u64, line: &Line| since_ms + BEGINNING_MS > now_ms && line.has_input();
        let quiet = idle.iter().filter(|(since_ms, line)| !beginning(*since_ms, line));
        // The longest idle one may become busy between the two looks; then the next will do.
        quiet.chain(&idle).any(|(_, line)| line.close_if_idle())
    }

    /// The server stops: answers say `Connection: close`, connections end with the request that they are serving.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Begins the stop, and closes all connections without a request.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for line in self.lines() {
            line.close_if_idle();
        }
    }

    /// Ends what is still going on.
    pub fn cut_all(&self) {
        for line in self.lines() {
            line.cut();
        }
    }

    /// Waits until no connection is left; false when some still are at `deadline`.
    pub fn wait_until_empty(&self, deadline: Instant) -> bool {
        let mut seats = self.seats.lock();
        while !seats.lines.is_empty() {
            if self.emptied.wait_until(&mut seats, deadline).timed_out() {
                return seats.lines.is_empty();
            }
        }
        true
    }

    /// All lines. They are handed out, so that the last reference to one never drops under the lock, which the drop
    /// itself takes.
    fn lines(&self) -> Vec<Arc<Line>> {
        self.seats.lock().lines.values().filter_map(Weak::upgrade).collect()
    }
}

impl Seat {
    /// The ends of its connection.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// The list that it is a place of.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Puts `line` on this seat, so that the registry can reach it.
    pub fn occupy(line: &Arc<Line>, seat: &Seat) {
        if let Some(entry) = seat.registry.seats.lock().lines.get_mut(&seat.ends) {
            *entry = Arc::downgrade(line);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let address = household(self.ends.peer.ip());
        let mut seats = self.registry.seats.lock();
        seats.lines.remove(&self.ends);
        if let Some(count) = seats.of_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                seats.of_address.remove(&address);
            }
        }
        if seats.lines.is_empty() {
            self.registry.emptied.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(peer: &str) -> Ends {
        Ends { local: "127.0.0.1:8787".parse().unwrap(), peer: peer.parse().unwrap() }
    }

    #[test]
    fn each_address_has_its_cap_and_loopback_has_none() {
        let registry = Registry::new(100, 2);
        let take = |peer: &str| registry.seat(ends(peer));
        let lan = [take("192.168.1.2:1").unwrap(), take("[::ffff:192.168.1.2]:2").unwrap()];
        assert_eq!(take("192.168.1.2:3").map(|_| ()), Err(Full::Address));
        let _other = take("192.168.1.3:1").unwrap();
        let _one_household = [take("[2001:db8::1]:1").unwrap(), take("[2001:db8::2:1]:1").unwrap()];
        assert_eq!(take("[2001:db8:0:0:9::9]:1").map(|_| ()), Err(Full::Address));
        let _next_household = take("[2001:db8:0:1::1]:1").unwrap();
        let _own: Vec<_> = (1..9).map(|port| take(&format!("127.0.0.1:{port}")).unwrap()).collect();
        drop(lan);
        assert!(take("192.168.1.2:3").is_ok());
    }

    #[test]
    fn some_places_are_kept_for_loopback() {
        let registry = Registry::new(20, 100);
        let take = |peer: String| registry.seat(ends(&peer));
        let lan: Vec<_> = (0..10).map_while(|i| take(format!("10.0.0.{i}:1")).ok()).collect();
        assert_eq!(lan.len(), 10);
        let own: Vec<_> = (1..30).map_while(|port| take(format!("127.0.0.1:{port}")).ok()).collect();
        assert_eq!(own.len(), 10);
        assert_eq!(registry.len(), 20);
        drop((lan, own));
        assert!(registry.wait_until_empty(Instant::now()));
        assert!(registry.seats.lock().of_address.is_empty());
    }
}
