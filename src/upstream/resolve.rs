//! Host names to addresses, kept for a minute. Refuses addresses that no provider can have.
//!
//! Look-ups run on threads of their own, one per name at a time, because the system's resolver can neither be given a
//! deadline nor be cut.
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::watch::Current;
use crate::catalog::address::is_never_called;
use crate::wire::exchange::{Fault, FaultKind};

/// How long an answer is used without asking again.
const FRESH_FOR: Duration = Duration::from_secs(60);
/// How long a look-up may take before an old answer is used in its place.
const STALE_AFTER: Duration = Duration::from_secs(2);
/// A waiting call looks this often whether it was cut; only look-ups that are slow anyway notice.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const NAMES_MAX: usize = 256;
const LOOKUPS_MAX: usize = 16;
const ADDRESSES_MAX: usize = 16;
/// The system's resolver is known to need more than the smallest stack.
const STACK_BYTES: usize = 512 * 1024;

pub(super) type Lookup = dyn Fn(&str) -> std::io::Result<Vec<IpAddr>> + Send + Sync;

pub(super) struct Resolver {
    lookup: Arc<Lookup>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    names: HashMap<String, Name>,
    lookups: usize,
}

#[derive(Debug, Default)]
struct Name {
    addresses: Vec<IpAddr>,
    fetched: Option<Instant>,
    /// Counts finished look-ups, so that a waiter sees that the one it waits for is over.
    round: u64,
    looking: bool,
    /// Whether IPv6 answered last time.
    prefer_v6: Option<bool>,
}

impl Name {
    /// The family that answered last comes first; else as the system sorted them.
    fn ordered(&self) -> Vec<IpAddr> {
        let mut addresses = self.addresses.clone();
        if let Some(v6) = self.prefer_v6 {
            addresses.sort_by_key(|address| address.is_ipv6() != v6);
        }
        addresses
    }
}

impl Resolver {
    pub fn system() -> Resolver {
        Resolver::with(Arc::new(|name| {
            // A hosts file may know one family only, and what listens here may do so on the other.
            if name.eq_ignore_ascii_case("localhost") {
                return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
            }
            Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
        }))
    }

    /// A resolver that asks `lookup`, which may block.
    pub fn with(lookup: Arc<Lookup>) -> Resolver {
        Resolver { lookup, shared: Arc::default() }
    }

    /// The addresses of `host` in the order to try them, at least one.
    pub fn resolve(&self, host: &str, call: &Current) -> Result<Vec<IpAddr>, Fault> {
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => self.look_up(host, call)?,
        };
        let allowed: Vec<IpAddr> = found.into_iter().filter(|address| !is_never_called(*address)).collect();
        if allowed.is_empty() { Err(blocked(call)) } else { Ok(allowed) }
    }

    /// Refuses a host that is such an address literally. Names behind a proxy are resolved by the proxy alone.
    pub fn refuse_literal(&self, host: &str, call: &Current) -> Result<(), Fault> {
        match host.parse() {
            Ok(address) if is_never_called(address) => Err(blocked(call)),
            _ => Ok(()),
        }
    }

    /// `address` answered: its family comes first from now on.
    pub fn works(&self, host: &str, address: IpAddr) {
        if let Some(name) = self.shared.state.lock().names.get_mut(host) {
            name.prefer_v6 = Some(address.is_ipv6());
        }
    }

    /// No address answered: ask anew next time.
    pub fn forget(&self, host: &str) {
        if let Some(name) = self.shared.state.lock().names.get_mut(host) {
            name.fetched = None;
        }
    }

    fn look_up(&self, host: &str, call: &Current) -> Result<Vec<IpAddr>, Fault> {
        let began = Instant::now();
        let mut awaited = None;
        let mut state = self.shared.state.lock();
        loop {
            let name = state.names.get(host);
            let fresh = name.filter(|name| name.fetched.is_some_and(|at| at.elapsed() < FRESH_FOR));
            if let Some(name) = fresh {
                return Ok(name.ordered());
            }
            let stale = name.filter(|name| !name.addresses.is_empty()).map(Name::ordered);
            let round = name.map_or(0, |name| name.round);
            let failed = awaited.is_some_and(|awaited| round > awaited);
            match stale {
                Some(stale) if failed || began.elapsed() >= STALE_AFTER => return Ok(stale),
                None if failed => return Err(call.fault(FaultKind::Dns, "its name cannot be resolved")),
                _ => {}
            }
            if name.is_some_and(|name| name.looking) {
                awaited.get_or_insert(round);
            } else if self.begin(&mut state, host) {
                awaited = Some(round);
            }
            let patience = parking_lot::MutexGuard::unlocked(&mut state, || call.patience())?;
            self.shared.changed.wait_for(&mut state, patience.min(LOOK_EVERY));
        }
    }

    /// Starts a look-up of `host`; false when too many run already.
    fn begin(&self, state: &mut State, host: &str) -> bool {
        if state.lookups >= LOOKUPS_MAX {
            return false;
        }
        if state.names.len() >= NAMES_MAX && !state.names.contains_key(host) {
            state.names.retain(|_, name| name.looking);
        }
        state.names.entry(host.to_owned()).or_default().looking = true;
        state.lookups += 1;
        let (host_name, lookup, shared) =
            (host.to_owned(), Arc::clone(&self.lookup), Arc::clone(&self.shared));
        let thread = thread::Builder::new().name("resolve".into()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            let found = lookup(&host_name).unwrap_or_default();
            shared.finish(&host_name, found, &mut shared.state.lock());
        });
        if spawned.is_err() {
            self.shared.finish(host, Vec::new(), state);
        }
        true
    }
}

impl Shared {
    /// Takes over what a look-up found; nothing leaves the old answer standing.
    fn finish(&self, host: &str, mut found: Vec<IpAddr>, state: &mut State) {
        state.lookups -= 1;
        if let Some(name) = state.names.get_mut(host) {
            name.looking = false;
            name.round += 1;
            if !found.is_empty() {
                found.truncate(ADDRESSES_MAX);
                name.addresses = found;
                name.fetched = Some(Instant::now());
            }
        }
        self.changed.notify_all();
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

fn blocked(call: &Current) -> Fault {
    let message = "its name leads to a link-local or cloud metadata address, which is never called";
    call.fault(FaultKind::BlockedAddress, message)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::upstream::cut::Cut;
    use crate::upstream::watch::{Freshness, Watch};

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    fn call(within_ms: u64) -> Rc<Current> {
        let within = Duration::from_millis(within_ms);
        Current::new(&Cut::new(), &Watch::new(Instant::now() + within), Freshness::Any, within, None)
    }

    /// A resolver that gives each answer once, in turn, and counts the questions.
    fn scripted(answers: Vec<Option<Vec<IpAddr>>>) -> (Resolver, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let lookup = move |_: &str| {
            let answer = answers.get(count.fetch_add(1, Ordering::SeqCst)).cloned().flatten();
            answer.ok_or_else(|| io::Error::other("no such name"))
        };
        (Resolver::with(Arc::new(lookup)), asked)
    }

    fn expire(resolver: &Resolver) {
        resolver.forget("up.test");
    }

    #[test]
    fn an_answer_is_kept_and_an_old_one_survives_a_failure() {
        let (resolver, asked) = scripted(vec![Some(vec![V6, V4]), None, Some(vec![V4])]);
        let call = call(5_000);
        assert_eq!(resolver.resolve("up.test", &call).unwrap(), [V6, V4]);
        assert_eq!(resolver.resolve("up.test", &call).unwrap(), [V6, V4]);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        expire(&resolver);
        assert_eq!(resolver.resolve("up.test", &call).unwrap(), [V6, V4]);
        assert_eq!(resolver.resolve("up.test", &call).unwrap(), [V4]);
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn net_03_the_family_that_answered_comes_first() {
        let (resolver, _) = scripted(vec![Some(vec![V6, V4]), Some(vec![V6, V4])]);
        let call = call(5_000);
        resolver.resolve("up.test", &call).unwrap();
        resolver.works("up.test", V4);
        assert_eq!(resolver.resolve("up.test", &call).unwrap(), [V4, V6]);
        expire(&resolver);
        assert_eq!(resolver.resolve("up.test", &call).unwrap(), [V4, V6]);
    }

    #[test]
    fn a_name_that_is_none_is_a_dns_fault_and_asked_anew() {
        let (resolver, asked) = scripted(vec![None, Some(vec![V4])]);
        assert_eq!(resolver.resolve("up.test", &call(5_000)).unwrap_err().kind, FaultKind::Dns);
        assert_eq!(resolver.resolve("up.test", &call(5_000)).unwrap(), [V4]);
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_slow_look_up_ends_with_the_deadline_or_the_cut() {
        let resolver = Resolver::with(Arc::new(|_: &str| {
            thread::sleep(Duration::from_secs(3));
            Ok(vec![V4])
        }));
        let began = Instant::now();
        let late = call(80);
        assert_eq!(resolver.resolve("up.test", &late).unwrap_err().kind, FaultKind::Timeout);
        let left = call(60_000);
        let cut = Arc::clone(&left.cut);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            cut.cut();
        });
        assert_eq!(resolver.resolve("up.test", &left).unwrap_err().kind, FaultKind::Cut);
        assert!(began.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn link_local_and_metadata_addresses_are_never_called() {
        for refused in [
            "169.254.169.254",
            "169.254.1.1",
            "100.100.100.200",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(is_never_called(refused.parse().unwrap()), "{refused}");
        }
        for allowed in ["127.0.0.1", "::1", "192.168.1.2", "10.0.0.1", "100.64.0.1", "fd00::1", "8.8.8.8"] {
            assert!(!is_never_called(allowed.parse().unwrap()), "{allowed}");
        }
        let (resolver, _) = scripted(vec![Some(vec!["169.254.169.254".parse().unwrap(), V4])]);
        assert_eq!(resolver.resolve("up.test", &call(5_000)).unwrap(), [V4]);
        let literal = resolver.resolve("169.254.169.254", &call(5_000)).unwrap_err();
        assert_eq!(literal.kind, FaultKind::BlockedAddress);
        assert!(!literal.request_sent);
    }
}
