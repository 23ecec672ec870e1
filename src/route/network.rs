//! Tells a dead network of this box from dead providers: when there is no route to anywhere, or three remote hosts in a
//! row cannot even be reached, it is not they who are down, and nobody deserves a bench.
use std::collections::VecDeque;

use crate::base::clock::Now;
use crate::catalog::provider::Provider;

/// So many different remote hosts must fail ...
const HOSTS: usize = 3;
/// ... within so long, with no success in between.
const WITHIN_MS: u64 = 10_000;
/// Failures remembered at once.
const FAILURES_MAX: usize = 16;
/// While offline, one call at a time finds out whether that has ended: most fail at once, and the first one after the
/// network has returned is served. One that takes longer than this lets others try.
const PROBE_MS_MAX: u64 = 2_000;
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
    /// Since when a call is finding out.
    probing_ms: Option<u64>,
}

impl Network {
    /// Whether the box has no network, as far as known.
    pub fn offline(&self) -> bool {
        self.offline
    }

    /// Whether a remote provider may be called now.
    pub fn admits(&self, now: Now) -> bool {
        !self.offline || self.probing_ms.is_none_or(|began| now.mono_ms >= began.saturating_add(PROBE_MS_MAX))
    }

    /// A remote provider is being called.
    pub fn calling(&mut self, now: Now) {
        if self.offline {
            self.probing_ms = Some(now.mono_ms);
        }
    }

    /// This machine has no route to anywhere. Gives the benches to lift again, because that explains them.
    pub fn lost(&mut self) -> Vec<u64> {
        self.offline = true;
        self.probing_ms = None;
        self.failures.drain(..).map(|failure| failure.bench).collect()
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
        if self.offline || hosts.len() >= HOSTS { self.lost() } else { Vec::new() }
    }

    /// A remote host answered, whatever it said.
    pub fn reached(&mut self) {
        self.failures.clear();
        self.offline = false;
        self.probing_ms = None;
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
    fn offline_lets_one_call_at_a_time_find_out() {
        let mut network = Network::default();
        for (bench, host) in ["a", "b", "c"].into_iter().enumerate() {
            network.unreached(&remote(host), bench as u64, at(0));
        }
        assert!(network.admits(at(1)));
        network.calling(at(1));
        assert!(!network.admits(at(2_000)), "one is finding out");
        assert!(network.admits(at(2_001)), "it takes too long");
        network.calling(at(2_001));
        assert_eq!(network.unreached(&remote("a"), 7, at(2_002)), [7]);
        assert!(network.admits(at(2_003)) && network.offline());
        network.calling(at(2_003));
        network.reached();
        assert!(network.admits(at(2_004)) && !network.offline());
    }

    #[test]
    fn without_a_route_one_failure_is_enough() {
        let mut network = Network::default();
        assert!(network.unreached(&remote("a"), 1, at(0)).is_empty());
        assert_eq!(network.lost(), [1], "it explains the failure before");
        assert!(network.offline() && network.admits(at(1)));
    }

    #[test]
    fn hosts_are_cut_out_of_addresses() {
        assert_eq!(host_of("https://u@api.example.test:8443/v1"), "api.example.test:8443");
        assert_eq!(host_of("http://[::1]:9/v1?a=b"), "[::1]:9");
    }
}
