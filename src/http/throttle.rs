//! Whoever presents wrong keys is slowed down, by address. Right keys from the same address are not: a neighbour behind
//! the same router must not pay for an app with a typing error. Pure: the time is handed in.
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use crate::guard::limiter::household;

/// Wrong keys that an address may present in a row at no cost.
const FREE: u64 = 20;
/// One of them is forgiven each time that this has passed.
const FORGIVEN_EVERY_MS: u64 = 3_000;
/// Longest time that an address is told to wait.
const WAIT_MAX_MS: u64 = 60_000;
/// Addresses remembered; the one that was quiet for longest is forgotten first.
const ADDRESSES_MAX: usize = 1_024;
/// An address beyond its free ones waits this long for each answer. It holds the thread of its connection, no more, and
/// connections of one address are counted.
pub const PAUSE: Duration = Duration::from_millis(300);

/// The wrong keys of late, by address.
#[derive(Debug, Default)]
pub struct Throttle {
    seen: Mutex<HashMap<IpAddr, Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Wrong keys that are not forgiven yet.
    count: u64,
    /// Monotonic time of the last change of `count`.
    at_ms: u64,
}

impl Seen {
    fn after(self, now_ms: u64) -> Seen {
        let forgiven = now_ms.saturating_sub(self.at_ms) / FORGIVEN_EVERY_MS;
        match self.count.saturating_sub(forgiven) {
            0 => Seen { count: 0, at_ms: now_ms },
            count => Seen { count, at_ms: self.at_ms + forgiven * FORGIVEN_EVERY_MS },
        }
    }
}

impl Throttle {
    /// Notes a wrong key. The time that the address has to wait, in milliseconds, once it has used up its free ones.
    pub fn wrong(&self, address: IpAddr, now_ms: u64) -> Option<u64> {
        let address = household(address);
        let mut seen = self.seen.lock();
        let before = seen.get(&address).map_or(Seen { count: 0, at_ms: now_ms }, |seen| seen.after(now_ms));
        // Bounded, so that a long attack is forgiven in a time that a person can wait.
        let count = (before.count + 1).min(FREE + WAIT_MAX_MS / FORGIVEN_EVERY_MS);
        if seen.len() >= ADDRESSES_MAX && !seen.contains_key(&address) {
            forget_one(&mut seen, now_ms);
        }
        seen.insert(address, Seen { count, ..before });
        (count > FREE).then(|| ((count - FREE) * FORGIVEN_EVERY_MS).min(WAIT_MAX_MS))
    }
}

/// Makes room: for all that are forgiven, else for the oldest.
fn forget_one(seen: &mut HashMap<IpAddr, Seen>, now_ms: u64) {
    seen.retain(|_, entry| entry.after(now_ms).count > 0);
    if seen.len() >= ADDRESSES_MAX {
        let oldest = seen.iter().min_by_key(|(address, entry)| (entry.at_ms, **address));
        if let Some(oldest) = oldest.map(|(address, _)| *address) {
            seen.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a6_wrong_keys_are_slowed_down_and_forgiven() {
        let throttle = Throttle::default();
        let guess = |now_ms| throttle.wrong(address("192.0.2.1"), now_ms);
        for _ in 0..FREE {
            assert_eq!(guess(0), None);
        }
        assert_eq!((guess(0), guess(0)), (Some(3_000), Some(6_000)));
        assert_eq!(throttle.wrong(address("192.0.2.2"), 0), None, "another address");
        for _ in 0..1_000 {
            assert!(guess(1).is_some_and(|wait_ms| wait_ms <= WAIT_MAX_MS));
        }
        assert_eq!(guess(1 + WAIT_MAX_MS + FORGIVEN_EVERY_MS), None, "waiting as told is enough");
        assert_eq!(guess(10 * WAIT_MAX_MS), None);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let throttle = Throttle::default();
        for n in 0..FREE {
            assert_eq!(throttle.wrong(address(&format!("2001:db8::{n}")), 0), None);
        }
        assert!(throttle.wrong(address("2001:db8::ffff"), 0).is_some());
        assert!(throttle.wrong(address("2001:db8:0:1::1"), 0).is_none());
    }

    #[test]
    fn a6_the_table_is_bounded() {
        let throttle = Throttle::default();
        for n in 0..3 * ADDRESSES_MAX as u32 {
            throttle.wrong(IpAddr::from(n.to_be_bytes()), u64::from(n) / 1_000);
        }
        assert!(throttle.seen.lock().len() <= ADDRESSES_MAX);
    }
}
