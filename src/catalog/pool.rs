//! The key pool of one provider: which variables its keys come from, how a key is named without being told, and which
//! keys share an account. Pure: the variables are handed in.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ring::hmac;

use super::check::is_visible;
use super::provider::Key;
use super::slots::Slots;
use super::vault::Vault;
use crate::base::rng::fill_random;
use crate::base::text::{Secret, hex};

/// The source of a key that was pasted or imported; no variable can be called so.
pub const PASTED: &str = "vault";
/// Most keys of one provider.
const POOL_MAX: usize = 64;
/// Bytes of a fingerprint that are kept: 64 bits tell a few dozen keys apart for ever.
const FINGERPRINT_BYTES: usize = 8;

/// Names keys by a hash that only this box can make, so that an id says nothing about its key and stays the same when
/// keys are added, removed or reordered.
pub struct Fingerprints {
    key: hmac::Key,
    lasting: bool,
}

/// What the key that seals pasted keys is derived under. No provider's id can begin like this.
const SEALING: &[u8] = b"\x01freeway: pasted keys";

impl Fingerprints {
    /// Names keys by the secret of this box.
    pub fn new(box_key: &[u8; 32]) -> Fingerprints {
        Fingerprints { key: hmac::Key::new(hmac::HMAC_SHA256, box_key), lasting: true }
    }

    /// Names keys for this process only, because the box has no secret that could be used.
    pub fn fleeting() -> Fingerprints {
        let mut secret = [0; 32];
        fill_random(&mut secret);
        Fingerprints { lasting: false, ..Fingerprints::new(&secret) }
    }

    /// Whether the next process names keys the same.
    pub fn are_lasting(&self) -> bool {
        self.lasting
    }

    /// The key under which this box seals what is pasted.
    pub fn sealing_key(&self) -> [u8; 32] {
        hmac::sign(&self.key, SEALING).as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// The fingerprint of a key of one provider.
    pub fn of(&self, provider: &str, secret: &str) -> String {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(provider.as_bytes());
        context.update(&[0]);
        context.update(secret.as_bytes());
        hex(&context.sign().as_ref()[..FINGERPRINT_BYTES])
    }
}

impl fmt::Debug for Fingerprints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprints(…)")
    }
}

/// Where the keys of a provider come from.
#[derive(Debug)]
pub struct PoolSpec<'a> {
    pub provider: &'a str,
    /// Variables in order.
    pub env_keys: &'a [String],
    /// Groups of variables whose keys share an account, each with its name.
    pub accounts: &'a [(String, Vec<String>)],
    /// Whether keys that stand in no group share one account.
    pub one_account: bool,
    /// Everything that was pasted, of other providers too.
    pub pasted: &'a Vault,
}

/// The keys that are set, in order, and what is wrong with those that cannot be used (never the key itself).
pub fn keys(
    spec: &PoolSpec<'_>,
    variables: &BTreeMap<String, String>,
    fingerprints: &Fingerprints,
    slots: &mut Slots,
) -> (Vec<Key>, Vec<String>) {
    let mut keys: Vec<Key> = Vec::new();
    let mut faults = Vec::new();
    let pasted = spec.pasted.of(spec.provider).map(|key| (PASTED, key.secret.expose()));
    for (source, secret) in secrets(spec.env_keys, variables).into_iter().chain(pasted) {
        if !is_visible(secret) {
            faults.push(format!(
                "{source}: the key holds a space or a character that no header can carry; copy it again"
            ));
            continue;
        }
        if keys.iter().any(|known| known.secret.expose() == secret) {
            continue;
        }
        if keys.len() == POOL_MAX {
            faults.push(format!("{source}: more than {POOL_MAX} keys; the rest is not used"));
            break;
        }
        let fingerprint = fingerprints.of(spec.provider, secret);
        let id: Arc<str> = format!("{}:{fingerprint}", spec.provider).into();
        let group = spec.accounts.iter().find(|(_, members)| members.iter().any(|member| member == source));
        let account = match group {
            Some((name, _)) => name.as_str(),
            None if spec.one_account => "all",
            None => &fingerprint,
        };
        keys.push(Key {
            slot: slots.intern(&format!("key/{id}")),
            account: slots.intern(&format!("account/{}:{account}", spec.provider)),
            id,
            masked: Secret::new(secret).masked(),
            secret: Secret::new(secret),
            source: source.to_owned(),
        });
    }
    (keys, faults)
}

/// The one credential of a provider that wants none.
pub fn keyless(provider: &str, slots: &mut Slots) -> Key {
    let id: Arc<str> = format!("{provider}:keyless").into();
    Key {
        slot: slots.intern(&format!("key/{id}")),
        account: slots.intern(&format!("account/{id}")),
        id,
        secret: Secret::new(""),
        masked: "no key".into(),
        source: "none".into(),
    }
}

/// Every key with its variable: `NAME`, then `NAME_2`, `NAME_3` and so on, each a comma list.
fn secrets<'v>(env_keys: &[String], variables: &'v BTreeMap<String, String>) -> Vec<(&'v str, &'v str)> {
    let mut found = Vec::new();
    for name in env_keys {
        let mut sources: Vec<(u64, &str, &str)> = Vec::new();
        if let Some((source, value)) = variables.get_key_value(name) {
            sources.push((1, source, value));
        }
        let prefix = format!("{name}_");
        for (source, value) in
            variables.range(prefix.clone()..).take_while(|(known, _)| known.starts_with(&prefix))
        {
            let number = source[prefix.len()..].parse::<u64>().ok().filter(|n| *n >= 2);
            if let Some(number) = number {
                sources.push((number, source, value));
            }
        }
        sources.sort();
        for (_, source, value) in sources {
            found.extend(
                value.split(',').map(str::trim).filter(|key| !key.is_empty()).map(|key| (source, key)),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(
        env_keys: &[&str],
        accounts: &[(&str, &[&str])],
        variables: &[(&str, &str)],
    ) -> (Vec<Key>, Vec<String>) {
        let env_keys: Vec<String> = env_keys.iter().map(|name| name.to_string()).collect();
        let accounts: Vec<(String, Vec<String>)> = accounts
            .iter()
            .map(|(name, members)| {
                (name.to_string(), members.iter().map(|member| member.to_string()).collect())
            })
            .collect();
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let spec = PoolSpec {
            provider: "acme",
            env_keys: &env_keys,
            accounts: &accounts,
            one_account: false,
            pasted: &Vault::default(),
        };
        keys(&spec, &variables, &Fingerprints::new(&[7; 32]), &mut Slots::default())
    }

    fn sources(keys: &[Key]) -> Vec<(&str, &str)> {
        keys.iter().map(|key| (key.source.as_str(), key.secret.expose())).collect()
    }

    #[test]
    fn a_pool_keeps_its_order_and_folds_duplicates() {
        let set = [
            ("K", "one, two,one"),
            ("K_10", "ten"),
            ("K_2", "two,three"),
            ("K_X", "no"),
            ("K_1", "no"),
            ("L", "last"),
        ];
        let (keys, faults) = pool(&["K", "L", "K_2"], &[], &set);
        assert_eq!(
            sources(&keys),
            [("K", "one"), ("K", "two"), ("K_2", "three"), ("K_10", "ten"), ("L", "last")]
        );
        assert!(faults.is_empty());
    }

    #[test]
    fn c3_a_key_keeps_its_id_wherever_it_stands() {
        let (first, _) = pool(&["K"], &[], &[("K", "test-key-a,test-key-b")]);
        let (second, _) = pool(&["K"], &[], &[("K", "test-key-b"), ("K_2", "test-key-a")]);
        assert_eq!(first[0].id, second[1].id);
        assert_eq!(first[1].id, second[0].id);
        assert_ne!(first[0].id, first[1].id);
        assert!(first[0].id.starts_with("acme:") && !first[0].id.contains("test-key"));
        let other_box = Fingerprints::new(&[8; 32]).of("acme", "test-key-a");
        assert!(!first[0].id.ends_with(&other_box));
    }

    #[test]
    fn a3_a_key_that_no_header_can_carry_is_left_out_and_not_told() {
        let (keys, faults) = pool(&["K"], &[], &[("K", "good,ba\nd-secret,ü-secret,sp ace-secret")]);
        assert_eq!(sources(&keys), [("K", "good")]);
        assert_eq!(faults.len(), 3);
        assert!(
            faults.iter().all(|fault| fault.starts_with("K: ") && !fault.contains("secret")),
            "{faults:?}"
        );
    }

    #[test]
    fn accounts_group_keys() {
        let set = [("A", "k1,k2"), ("B", "k3"), ("C", "k4")];
        let (keys, _) = pool(&["A", "B", "C"], &[("home", &["A", "B"])], &set);
        assert!(keys[0].account == keys[1].account && keys[1].account == keys[2].account);
        assert_ne!(keys[2].account, keys[3].account);
    }
}
