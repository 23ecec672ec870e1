//! Tells a dead network of this box from dead providers: when three remote hosts in a row cannot even be reached, it is
//! not they who are down, and nobody deserves a bench.
use std::collections::VecDeque;

use crate::base::clock::Now;
use crate::catalog::provider::Provider;

/// So many different remote hosts must fail ...
const HOSTS: usize = 3;
/// ... within so long, with no success in between.
const WITHIN_MS: u64 = 10_000;
/// Failures remembered at once.
const FAILURES_MAX: usize = 16;
/// While offline, one call in so long is let through to find out whether that has ended.
const PROBE_EVERY_MS: u64 = 2_000;
/// What a client is told to wait.
pub const RETRY_MS: u64 = 5_000;

#[derive(Clone, Debug)]
struct Unreached {
    host: String,
    at_ms: u64,
    bench: u64,
}

/// What is known of the box's own network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    failures: VecDeque<Unreached>,
    offline: bool,
    probed_ms: u64,
}

impl Network {
    /// Whether the box has no network, as far as known.
    pub fn offline(&self) -> bool {
        self.offline
    }

    /// Whether a remote provider may be called now.
    pub fn admits(&self, now: Now) -> bool {
        !self.offline || now.mono_ms >= self.probed_ms.saturating_add(PROBE_EVERY_MS)
    }

    /// A remote provider is being called.
    pub fn calling(&mut self, now: Now) {
        if self.offline {
            self.probed_ms = now.mono_ms;
        }
    }

    /// A remote host could not be reached, and `bench` is the id of the bench put for that. Gives the benches to lift
    /// again, once it is clear that the network is at fault.
    pub fn unreached(&mut self, provider: &Provider, bench: u64, now: Now) -> Vec<u64> {
        self.failures.retain(|failure| now.mono_ms.saturating_sub(failure.at_ms) <= WITHIN_MS);
        if self.failures.len() >= FAILURES_MAX {
            self.failures.pop_front();
        }
        let host = host_of(&provider.base_url).to_owned();
        self.failures.push_back(Unreached { host, at_ms: now.mono_ms, bench });
        let mut hosts: Vec<&str> = self.failures.iter().map(|failure| failure.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if !self.offline && hosts.len() >= HOSTS {
            self.offline = true;
            self.probed_ms = now.mono_ms;
        }
        if !self.offline {
            return Vec::new();
        }
        self.failures.drain(..).map(|failure| failure.bench).collect()
    }

    /// A remote host answered, whatever it said.
    pub fn reached(&mut self) {
        self.failures.clear();
        self.offline = false;
    }
}

/// The host of an URL, with its port.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixture;
    use crate::catalog::slots::Slots;

    fn remote(host: &str) -> Provider {
        let file = serde_json::json!({"id": host, "baseUrl": format!("https://{host}.test/v1")});
        fixture::provider(file, &mut Slots::default())
    }

    fn at(ms: u64) -> Now {
        Now::at(3_600_000 + ms, 0)
    }

    #[test]
    fn three_hosts_within_ten_seconds_mean_offline() {
        let mut network = Network::default();
        assert!(network.unreached(&remote("a"), 1, at(0)).is_empty());
        assert!(network.unreached(&remote("b"), 2, at(4_000)).is_empty());
        assert!(network.unreached(&remote("b"), 3, at(5_000)).is_empty(), "two hosts are not three");
        assert!(!network.offline());
        assert_eq!(network.unreached(&remote("c"), 4, at(10_000)), [1, 2, 3, 4]);
        assert!(network.offline());
        assert_eq!(network.unreached(&remote("a"), 5, at(60_000)), [5], "while offline nobody is benched");
    }

    #[test]
    fn old_failures_and_successes_in_between_do_not_count() {
        let mut network = Network::default();
        network.unreached(&remote("a"), 1, at(0));
        network.unreached(&remote("b"), 2, at(6_000));
        assert!(network.unreached(&remote("c"), 3, at(10_001)).is_empty());
        network.reached();
        network.unreached(&remote("d"), 4, at(10_002));
        network.unreached(&remote("e"), 5, at(10_003));
        assert!(!network.offline());
    }

    #[test]
    fn offline_lets_one_call_in_two_seconds_find_out() {
        let mut network = Network::default();
        for (bench, host) in ["a", "b", "c"].into_iter().enumerate() {
            network.unreached(&remote(host), bench as u64, at(0));
        }
        assert!(!network.admits(at(1_999)));
        assert!(network.admits(at(2_000)));
        network.calling(at(2_000));
        assert!(!network.admits(at(2_001)));
        network.reached();
        assert!(network.admits(at(2_002)) && !network.offline());
    }

    #[test]
    fn hosts_are_cut_out_of_addresses() {
        assert_eq!(host_of("https://u@api.example.test:8443/v1"), "api.example.test:8443");
        assert_eq!(host_of("http://[::1]:9/v1?a=b"), "[::1]:9");
    }
}
