//! The one verdict on a key and on its provider: from the bench, from what it served, and from checks that were made
//! without a request.
use std::collections::HashMap;

use super::live::Live;
use super::outcome::Class;
use super::plan::key_scopes;
use crate::base::clock::Now;
use crate::catalog::provider::{Key, Provider, Slot};
use crate::quota::{Bench, Cause, Scope, SlotHash};

/// What is known of a key's right to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHealth {
    Unknown,
    Healthy,
    Limited,
    Invalid,
    Forbidden,
    Unreachable,
    /// Its provider is switched off.
    Disabled,
}

impl KeyHealth {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            KeyHealth::Unknown => "unknown",
            KeyHealth::Healthy => "healthy",
            KeyHealth::Limited => "limited",
            KeyHealth::Invalid => "invalid",
            KeyHealth::Forbidden => "forbidden",
            KeyHealth::Unreachable => "unreachable",
            KeyHealth::Disabled => "disabled",
        }
    }

    /// What a failure says of the key that met it.
    pub const fn of_class(class: Class) -> KeyHealth {
        match class {
            Class::BadKey => KeyHealth::Invalid,
            Class::Forbidden => KeyHealth::Forbidden,
            Class::NoCredit | Class::RateLimited | Class::QuotaSpent => KeyHealth::Limited,
            Class::ProviderDown | Class::Unreachable => KeyHealth::Unreachable,
            _ => KeyHealth::Unknown,
        }
    }

    /// Whether the owner has something to do about it.
    pub const fn is_actionable(self) -> bool {
        matches!(self, KeyHealth::Invalid | KeyHealth::Forbidden | KeyHealth::Unreachable)
    }
}

/// What a check of a key found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub verdict: KeyHealth,
    /// Milliseconds since 1970.
    pub at_wall_ms: u64,
    pub took_ms: u64,
    /// Whether the provider answered at all; `None` when nobody was asked.
    pub reachable: Option<bool>,
    /// For people, redacted.
    pub detail: Option<String>,
    /// What the key had served by then: what it serves later is the better witness.
    served: u64,
}

/// Keys whose checks are remembered.
const CHECKS_MAX: usize = 4_096;

/// The last check of each key.
#[derive(Clone, Debug, Default)]
pub struct Checks(HashMap<Slot, Check, SlotHash>);

impl Checks {
    /// The last check of a key.
    pub fn of(&self, key: Slot) -> Option<&Check> {
        self.0.get(&key)
    }
}

/// A check as it comes in.
#[derive(Clone, Debug)]
pub struct Found {
    pub verdict: KeyHealth,
    pub took_ms: u64,
    pub reachable: Option<bool>,
    pub detail: Option<String>,
}

impl Live {
    /// Remembers what a check of a key found.
    pub fn checked(&mut self, key: Slot, found: Found, now: Now) {
        if self.checks.0.len() >= CHECKS_MAX && !self.checks.0.contains_key(&key) {
            return;
        }
        let served = self.scoreboard.of(key).ok;
        let Found { verdict, took_ms, reachable, detail } = found;
        let check = Check { verdict, at_wall_ms: now.wall_ms, took_ms, reachable, detail, served };
        self.checks.0.insert(key, check);
    }

    /// What keeps a key from its soonest model; `None` while it may call any.
    pub fn bench_of_key(&self, provider: &Provider, key: &Key, now: Now) -> Option<Bench> {
        if self.benches.is_empty() {
            return None;
        }
        let of = |scopes: &[Scope]| self.benches.blocking(scopes, now).copied();
        let mut soonest = of(&[Scope::Key(key.slot), Scope::Account(key.account)]);
        for (place, model) in provider.models.iter().filter(|model| model.enabled).enumerate() {
            let bench = of(&key_scopes(key, model.slot))?;
            if place == 0 || soonest.is_some_and(|known| bench.until_ms < known.until_ms) {
                soonest = Some(bench);
            }
        }
        soonest
    }

    /// The verdict on a key. `bench` is [`Live::bench_of_key`].
    pub fn health_of_key(
        &self,
        provider: &Provider,
        key: &Key,
        bench: Option<&Bench>,
        now: Now,
    ) -> KeyHealth {
        let score = self.scoreboard.of(key.slot);
        let check = self.checks.of(key.slot);
        match bench.map(|bench| bench.cause) {
            _ if !provider.enabled => KeyHealth::Disabled,
            Some(Cause::Auth) => KeyHealth::Invalid,
            Some(Cause::Forbidden) => KeyHealth::Forbidden,
            Some(_) => KeyHealth::Limited,
            None if self.benches.blocking(&[Scope::Provider(provider.slot)], now).is_some() => {
                KeyHealth::Unreachable
            }
            None => match check {
                Some(check) if check.served >= score.ok => check.verdict,
                // A failure that was the key's own has put it on a bench.
                _ if score.ok > 0 => KeyHealth::Healthy,
                Some(check) => check.verdict,
                None => KeyHealth::Unknown,
            },
        }
    }

    /// The verdict on a provider: that on its best key.
    pub fn health_of_provider(&self, provider: &Provider, now: Now) -> KeyHealth {
        const BEST_FIRST: [KeyHealth; 6] = [
            KeyHealth::Healthy,
            KeyHealth::Unknown,
            KeyHealth::Limited,
            KeyHealth::Unreachable,
            KeyHealth::Forbidden,
            KeyHealth::Invalid,
        ];
        if !provider.enabled {
            return KeyHealth::Disabled;
        }
        let verdicts = provider.keys.iter().map(|key| {
            let bench = self.bench_of_key(provider, key, now);
            self.health_of_key(provider, key, bench.as_ref(), now)
        });
        let rank = |verdict: &KeyHealth| BEST_FIRST.iter().position(|known| known == verdict);
        verdicts.min_by_key(rank).unwrap_or(KeyHealth::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalog::fixture::provider;
    use crate::catalog::slots::Slots;
    use crate::quota::Term;

    fn found(verdict: KeyHealth) -> Found {
        Found { verdict, took_ms: 5, reachable: Some(true), detail: None }
    }

    #[test]
    fn the_newer_witness_is_believed() {
        let acme = provider(json!({"id": "acme", "models": [{"id": "m"}]}), &mut Slots::default());
        let (key, now) = (&acme.keys[0], Now::at(3_600_000, 1_800_000_000_000));
        let mut live = Live::new();
        let verdict = |live: &Live, now: Now| {
            let bench = live.bench_of_key(&acme, key, now);
            live.health_of_key(&acme, key, bench.as_ref(), now)
        };
        assert_eq!(verdict(&live, now), KeyHealth::Unknown);
        live.scoreboard.served([acme.slot, key.slot]);
        assert_eq!(verdict(&live, now), KeyHealth::Healthy);
        live.scoreboard.failed([acme.slot, key.slot], "500: down");
        assert_eq!(verdict(&live, now), KeyHealth::Healthy, "it has served, and nothing keeps it back");
        live.checked(key.slot, found(KeyHealth::Forbidden), now);
        assert_eq!(verdict(&live, now), KeyHealth::Forbidden, "checked after it served");
        live.scoreboard.served([acme.slot, key.slot]);
        assert_eq!(verdict(&live, now), KeyHealth::Healthy, "it served after the check");
        live.benches.put(Scope::Key(key.slot), Cause::Auth, Term::Named { ms: 1_000 }, now.mono_ms, now);
        assert_eq!(
            (verdict(&live, now), verdict(&live, now.plus_ms(1_001))),
            (KeyHealth::Invalid, KeyHealth::Healthy)
        );
        assert_eq!(
            live.health_of_provider(&Provider { enabled: false, ..acme.clone() }, now),
            KeyHealth::Disabled
        );
    }

    #[test]
    fn a_provider_is_as_well_as_its_best_key() {
        let mut acme = provider(json!({"id": "acme", "models": [{"id": "m"}]}), &mut Slots::default());
        let second = Key { slot: Slot(900), ..acme.keys[0].clone() };
        acme.keys.push(second);
        let now = Now::at(3_600_000, 1_800_000_000_000);
        let mut live = Live::new();
        live.checked(acme.keys[0].slot, found(KeyHealth::Invalid), now);
        assert_eq!(live.health_of_provider(&acme, now), KeyHealth::Unknown);
        live.checked(Slot(900), found(KeyHealth::Unreachable), now);
        assert_eq!(live.health_of_provider(&acme, now), KeyHealth::Unreachable);
    }
}
