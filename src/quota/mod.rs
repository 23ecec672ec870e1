//! Quota: what each key, model and account has used of its limits, and who sits on the bench. Pure: no I/O, no clock;
//! time comes in as [`Now`](crate::base::clock::Now).
pub mod bench;
pub mod forecast;
pub mod ledger;
mod meter;
pub mod saved;
mod wall;
pub mod window;
pub mod zone;

pub use bench::{Bench, Benches, Cause, Term};
pub use ledger::{Ledger, Reservation, Room, Spent, Want};
pub use meter::Rule;

use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Deref;

use crate::catalog::provider::{Key, Limits, LimitsScope, Model, Provider, ResetZone, Slot};

/// What counters and benches hang on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Provider(Slot),
    Account(Slot),
    /// One model for all keys of an account: account, model.
    AccountModel(Slot, Slot),
    Key(Slot),
    /// One model for one key: key, model.
    KeyModel(Slot, Slot),
    Model(Slot),
}

/// One set of limits that a call is held against.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub scope: Scope,
    pub limits: &'a Limits,
    pub zone: ResetZone,
}

/// No call is held against more sets of limits than this.
pub const CLAIMS_MAX: usize = 4;

/// The claims of one call: a slice of at most [`CLAIMS_MAX`], without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'a> {
    claims: [Claim<'a>; CLAIMS_MAX],
    len: usize,
}

impl<'a> Claims<'a> {
    /// What a call of `model` with `key` is held against: the provider's limits in the scope that its file names
    /// (`limitsScope`), and the model's own limits for that key, or for the account where limits are the account's.
    pub fn of_call(provider: &'a Provider, key: &Key, model: &'a Model) -> Claims<'a> {
        let (whole, own) = match provider.limits_scope {
            LimitsScope::Key => (Scope::Key(key.slot), Scope::KeyModel(key.slot, model.slot)),
            LimitsScope::Model => {
                (Scope::KeyModel(key.slot, model.slot), Scope::KeyModel(key.slot, model.slot))
            }
            LimitsScope::Account => {
                (Scope::Account(key.account), Scope::AccountModel(key.account, model.slot))
            }
        };
        let zone = provider.reset_zone;
        Claims::from([
            Claim { scope: whole, limits: &provider.limits, zone },
            Claim { scope: own, limits: &model.limits, zone },
        ])
    }
}

impl<'a, const N: usize> From<[Claim<'a>; N]> for Claims<'a> {
    fn from(given: [Claim<'a>; N]) -> Claims<'a> {
        const { assert!(N >= 1 && N <= CLAIMS_MAX, "a call has one to CLAIMS_MAX claims") };
        let mut claims = [given[0]; CLAIMS_MAX];
        claims[..N].copy_from_slice(&given);
        Claims { claims, len: N }
    }
}

impl<'a> Deref for Claims<'a> {
    type Target = [Claim<'a>];

    fn deref(&self) -> &[Claim<'a>] {
        &self.claims[..self.len]
    }
}

/// Hashes slots and scopes: a few small numbers of our own making, so that speed matters and flooding cannot happen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotHasher(u64);

pub(crate) type SlotHash = BuildHasherDefault<SlotHasher>;

impl SlotHasher {
    fn mix(&mut self, number: u64) {
        // The odd constant is 2^64 over the golden ratio: it spreads neighbouring numbers over all high bits.
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        // The map takes its bucket from the low bits, multiplication mixes best into the high ones.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.mix(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.mix(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }

    fn write_isize(&mut self, number: isize) {
        self.mix(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalog::fixture;
    use crate::catalog::provider::Credits;
    use crate::catalog::slots::Slots;

    fn provider(limits_scope: LimitsScope) -> Provider {
        let file = json!({
            "id": "acme",
            "limits": {"creditsPerRequest": 2},
            "models": [{"id": "big", "maxOutput": 8_000}],
        });
        Provider { limits_scope, ..fixture::provider(file, &mut Slots::default()) }
    }

    fn key() -> Key {
        let key = provider(LimitsScope::Key).keys.remove(0);
        Key { slot: Slot(1), account: Slot(2), ..key }
    }

    fn model() -> Model {
        let model = provider(LimitsScope::Key).models.remove(0);
        Model { slot: Slot(3), ..model }
    }

    #[test]
    fn the_file_says_whose_the_limits_are() {
        let check = |limits_scope, expected: [Scope; 2]| {
            let (provider, model) = (provider(limits_scope), model());
            let claims = Claims::of_call(&provider, &key(), &model);
            assert_eq!([claims[0].scope, claims[1].scope], expected, "{limits_scope:?}");
            assert_eq!(claims.len(), 2);
        };
        let of_model = Scope::KeyModel(Slot(1), Slot(3));
        check(LimitsScope::Key, [Scope::Key(Slot(1)), of_model]);
        check(LimitsScope::Model, [of_model, of_model]);
        check(LimitsScope::Account, [Scope::Account(Slot(2)), Scope::AccountModel(Slot(2), Slot(3))]);
    }

    #[test]
    fn expected_output_is_the_least_of_what_is_known() {
        let check = |counts_max_tokens, recent: u64, max_output: Option<u64>, expected: (u64, bool)| {
            let provider = Provider { counts_max_tokens, ..provider(LimitsScope::Key) };
            let mut ledger = Ledger::new();
            (0..20).for_each(|_| ledger.record_output(Slot(3), recent));
            let want = |choices| Want::of_call(&ledger, &provider, &model(), 10, max_output, choices);
            assert_eq!(want(3).output_tokens, 3 * want(1).output_tokens, "each choice may be as long");
            let want = want(1);
            let what = (counts_max_tokens, recent, max_output);
            assert_eq!((want.output_tokens, want.output_is_charged), expected, "{what:?}");
        };
        check(false, 300, None, (300, false));
        check(false, 300, Some(100), (100, false));
        check(false, 300, Some(50_000), (300, false));
        check(false, 20_000, Some(50_000), (8_000, false));
        // An embedding has no output.
        check(false, 300, Some(0), (0, false));
        check(true, 300, Some(50_000), (8_000, true));
        check(true, 300, Some(100), (100, true));
        check(true, 300, None, (300, false));
    }

    #[test]
    fn credits_follow_the_rates_of_the_model_before_the_flat_price() {
        let provider = provider(LimitsScope::Key);
        let mut model = model();
        assert_eq!(ledger::credits(&provider, &model, 1_000, 1_000), 2.0);
        model.credits = Some(Credits { per_m_tok_in: Some(4_119.0), per_m_tok_out: Some(34_868.0) });
        assert_eq!(ledger::credits(&provider, &model, 1_000, 0), 4.119);
        assert_eq!(ledger::credits(&provider, &model, 0, 1_000), 34.868);
        model.credits = Some(Credits { per_m_tok_in: None, per_m_tok_out: None });
        model.limits.credits_per_request = Some(7.0);
        assert_eq!(ledger::credits(&provider, &model, 1_000, 1_000), 7.0);
    }
}
