//! How much each caller may have: requests, tokens, and requests at once, per client key and per address. One app that
//! runs wild must not drain every free tier, nor keep the others waiting.
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use crate::base::clock::Now;
use crate::catalog::client_key::{ClientLimits, Principal};
use crate::quota::window::Rolling;

/// Callers that are remembered. A household has a handful; beyond this those that are idle for longest are forgotten.
const CALLERS_MAX: usize = 1_024;
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
/// When a caller with too many requests at once may try again; nobody knows when one of them ends.
const BUSY_RETRY_MS: u64 = 1_000;

/// Who is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    Key(Principal),
    /// An address as [`Scope::of_address`] makes it.
    Address(IpAddr),
}

impl Scope {
    /// The scope of whoever calls from `address`.
    pub fn of_address(address: IpAddr) -> Scope {
        Scope::Address(household(address))
    }

    /// Its word in `x-freeway-limit-scope`.
    pub const fn name(self) -> &'static str {
        match self {
            Scope::Key(_) => "key",
            Scope::Address(_) => "ip",
        }
    }
}

/// The address that stands for whoever calls from `address`: an IPv6 /64, which one household has to itself, counts as
/// one.
pub fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        other => other,
    }
}

/// What a request is turned away for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub scope: Scope,
    /// The name of the limit in the settings: `rpm`, `tpm`, `rpd` or `concurrency`.
    pub limit: &'static str,
    pub max: u64,
    pub retry_in_ms: u64,
}

/// What callers have had.
#[derive(Debug, Default)]
pub struct Limiter {
    callers: HashMap<Scope, Meter>,
}

/// One caller's counters, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Had {
    pub scope: Scope,
    pub requests_in_minute: u64,
    pub tokens_in_minute: u64,
    pub in_flight: u64,
}

impl Limiter {
    /// Whether each of `callers` may have one more request of `tokens`. Nothing is counted.
    ///
    /// # Errors
    /// The limit that is reached, of the caller that has to wait longest.
    pub fn look(&self, callers: &[(Scope, ClientLimits)], tokens: u64, now: Now) -> Result<(), Refused> {
        let refused = callers.iter().filter_map(|(scope, allowed)| {
            let (limit, max, retry_in_ms) = self.callers.get(scope)?.obstacle(allowed, tokens, now)?;
            Some(Refused { scope: *scope, limit, max, retry_in_ms })
        });
        refused.max_by_key(|refused| refused.retry_in_ms).map_or(Ok(()), Err)
    }

    /// Counts a request of `tokens`, which is in flight until [`Limiter::leave`].
    ///
    /// # Errors
    /// As for [`Limiter::look`]; then nothing is counted for anybody.
    pub fn enter(&mut self, callers: &[(Scope, ClientLimits)], tokens: u64, now: Now) -> Result<(), Refused> {
        self.look(callers, tokens, now)?;
        for (scope, _) in callers {
            self.make_room();
            let meter = self.callers.entry(*scope).or_insert_with(Meter::new);
            meter.requests.add(1, now.mono_ms);
            meter.tokens.add(tokens, now.mono_ms);
            meter.day.add(1, now.mono_ms);
            meter.in_flight += 1;
            meter.used_ms = now.mono_ms;
        }
        Ok(())
    }

    /// A request has ended, and has used `tokens` more than it was counted for.
    pub fn leave(&mut self, callers: impl IntoIterator<Item = Scope>, tokens: u64, now: Now) {
        for scope in callers {
            if let Some(meter) = self.callers.get_mut(&scope) {
                meter.in_flight = meter.in_flight.saturating_sub(1);
                meter.tokens.add(tokens, now.mono_ms);
                meter.used_ms = now.mono_ms;
            }
        }
    }

    /// What callers have had within the last minute, in the order of their scopes.
    pub fn list(&self, now: Now) -> Vec<Had> {
        let had = |(scope, meter): (&Scope, &Meter)| Had {
            scope: *scope,
            requests_in_minute: meter.requests.used(now.mono_ms),
            tokens_in_minute: meter.tokens.used(now.mono_ms),
            in_flight: meter.in_flight,
        };
        let mut list: Vec<Had> = self.callers.iter().map(had).collect();
        list.sort_by_key(|had| had.scope);
        list
    }

    /// Forgets whoever is idle for longest when there are too many. Nobody with a request in flight is forgotten; these
    /// are bounded by the connections.
    fn make_room(&mut self) {
        if self.callers.len() < CALLERS_MAX {
            return;
        }
        let idle = self.callers.iter().filter(|(_, meter)| meter.in_flight == 0);
        if let Some(oldest) = idle.min_by_key(|(_, meter)| meter.used_ms).map(|(scope, _)| *scope) {
            self.callers.remove(&oldest);
        }
    }
}

#[derive(Debug)]
struct Meter {
    requests: Rolling,
    tokens: Rolling,
    day: Rolling,
    in_flight: u64,
    used_ms: u64,
}

impl Meter {
    fn new() -> Meter {
        Meter {
            requests: Rolling::within(MINUTE_MS),
            tokens: Rolling::within(MINUTE_MS),
            day: Rolling::within(DAY_MS),
            in_flight: 0,
            used_ms: 0,
        }
    }

    /// What one more request of `tokens` would exceed: the limit's name, the limit, and how long it will.
    fn obstacle(&self, allowed: &ClientLimits, tokens: u64, now: Now) -> Option<(&'static str, u64, u64)> {
        let busy = allowed.concurrency.filter(|max| self.in_flight >= *max);
        let windows = [
            ("rpm", &self.requests, allowed.rpm, 1),
            ("tpm", &self.tokens, allowed.tpm, tokens),
            ("rpd", &self.day, allowed.rpd, 1),
        ];
        let full = windows.into_iter().filter_map(|(name, window, max, wanted)| {
            let max = max?;
            let used = window.used(now.mono_ms);
            // A request that is larger than the limit waits until nothing else counts, and is then let through.
            let over = used.saturating_add(wanted).saturating_sub(max).min(used);
            Some((name, max, window.wait_ms(over, now.mono_ms)?)).filter(|_| over > 0)
        });
        full.chain(busy.map(|max| ("concurrency", max, BUSY_RETRY_MS))).max_by_key(|(.., wait_ms)| *wait_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Scope {
        Scope::Key(Principal::of(&[byte; 32]))
    }

    fn at(seconds: u64) -> Now {
        Now::at(3_600_000 + seconds * 1_000, 0)
    }

    const RPM_2: ClientLimits = ClientLimits { rpm: Some(2), tpm: None, rpd: None, concurrency: None };

    #[test]
    fn requests_run_out_and_come_back() {
        let mut limiter = Limiter::default();
        let me = [(key(1), RPM_2)];
        assert_eq!(limiter.enter(&me, 10, at(0)), Ok(()));
        assert_eq!(limiter.enter(&me, 10, at(30)), Ok(()));
        let refused = limiter.enter(&me, 10, at(31)).expect_err("the third in a minute");
        assert_eq!((refused.limit, refused.max, refused.scope.name()), ("rpm", 2, "key"));
        let later = at(31).plus_ms(refused.retry_in_ms);
        assert!(limiter.look(&me, 10, Now { mono_ms: later.mono_ms - 1, ..later }).is_err());
        assert_eq!(limiter.enter(&me, 10, later), Ok(()));
        // Another key has its own.
        assert_eq!(limiter.enter(&[(key(2), RPM_2)], 10, at(31)), Ok(()));
    }

    #[test]
    fn nobody_waits_longer_than_the_window() {
        let me = |limit: &str| {
            let one = |name: &str| (name == limit).then_some(1);
            [(key(1), ClientLimits { rpm: one("rpm"), tpm: one("tpm"), rpd: one("rpd"), concurrency: None })]
        };
        for (limit, window_s) in [("rpm", 60), ("tpm", 60), ("rpd", 24 * 3_600)] {
            for offset_ms in (0..3_000).step_by(7) {
                let mut limiter = Limiter::default();
                let start = at(0).plus_ms(offset_ms);
                assert_eq!(limiter.enter(&me(limit), 1, start), Ok(()));
                let refused = limiter.look(&me(limit), 1, start).expect_err("one was had");
                let wait_s = refused.retry_in_ms.div_ceil(1_000);
                let least_s = window_s - window_s / 20;
                assert!((least_s..=window_s).contains(&wait_s), "{limit}: {wait_s}");
            }
        }
    }

    #[test]
    fn tokens_are_counted_before_and_after() {
        let allowed = ClientLimits { tpm: Some(100), ..ClientLimits::default() };
        let mut limiter = Limiter::default();
        let me = [(key(1), allowed)];
        assert_eq!(limiter.enter(&me, 500, at(0)), Ok(()), "a large one is let through when nothing counts");
        assert_eq!(limiter.enter(&me, 1, at(1)).map_err(|refused| refused.limit), Err("tpm"));
        assert_eq!(limiter.enter(&me, 50, at(70)), Ok(()));
        limiter.leave([key(1)], 30, at(71));
        assert_eq!(limiter.look(&me, 20, at(72)), Ok(()));
        assert!(limiter.look(&me, 21, at(72)).is_err());
    }

    #[test]
    fn requests_at_once_are_given_back() {
        let allowed = ClientLimits { concurrency: Some(1), ..ClientLimits::default() };
        let mut limiter = Limiter::default();
        let me = [(key(1), allowed)];
        assert_eq!(limiter.enter(&me, 1, at(0)), Ok(()));
        let refused = limiter.enter(&me, 1, at(0)).expect_err("the second at once");
        assert_eq!((refused.limit, refused.retry_in_ms), ("concurrency", BUSY_RETRY_MS));
        limiter.leave([key(1)], 0, at(1));
        assert_eq!(limiter.enter(&me, 1, at(1)), Ok(()));
    }

    #[test]
    fn a_refusal_of_one_scope_counts_for_none() {
        let mut limiter = Limiter::default();
        let address = Scope::of_address("192.0.2.1".parse().unwrap());
        let once = ClientLimits { rpm: Some(1), ..ClientLimits::default() };
        assert_eq!(limiter.enter(&[(key(1), RPM_2), (address, once)], 1, at(0)), Ok(()));
        let refused = limiter.enter(&[(key(1), RPM_2), (address, once)], 1, at(1));
        assert_eq!(refused.map_err(|refused| refused.scope.name()), Err("ip"));
        assert_eq!(limiter.enter(&[(key(1), RPM_2)], 1, at(2)), Ok(()));
        let had: Vec<_> =
            limiter.list(at(2)).iter().map(|had| (had.requests_in_minute, had.in_flight)).collect();
        assert_eq!(had, [(2, 2), (1, 1)]);
    }

    #[test]
    fn a_household_is_one_caller() {
        let check = |a: &str, b: &str, same: bool| {
            let scope = |text: &str| Scope::of_address(text.parse().unwrap());
            assert_eq!(scope(a) == scope(b), same, "{a} {b}");
        };
        check("2001:db8::1", "2001:db8::ffff:1", true);
        check("2001:db8::1", "2001:db8:0:1::1", false);
        check("192.0.2.1", "::ffff:192.0.2.1", true);
        check("192.0.2.1", "192.0.2.2", false);
    }

    #[test]
    fn callers_are_bounded_and_those_at_work_stay() {
        let mut limiter = Limiter::default();
        for i in 0..CALLERS_MAX as u32 + 50 {
            let scope = Scope::Address(IpAddr::V4((i + 1).into()));
            assert_eq!(limiter.enter(&[(scope, RPM_2)], 1, at(u64::from(i))), Ok(()));
            if i > 0 {
                limiter.leave([scope], 0, at(u64::from(i)));
            }
        }
        assert_eq!(limiter.callers.len(), CALLERS_MAX);
        assert!(limiter.callers.contains_key(&Scope::Address(IpAddr::V4(1.into()))));
    }
}
