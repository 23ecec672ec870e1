//! One client key: whose it is, and what it may do. Its form is the same in the configuration, in `data/clients.json`
//! and in the API. Pure.
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::fields::{shown, whole};
use super::names::AUTO;
use super::settings::Strategy;
use super::table::{LIMIT_MAX, STRATEGIES};
use crate::base::text::closest;

/// Longest name of a key, in bytes.
const NAME_MAX: usize = 64;
/// Most model strings that a key is confined to.
const MODELS_MAX: usize = 100;
/// Longest of them, in bytes.
const MODEL_MAX: usize = 256;

/// Who owns what a request leaves behind: the first eight bytes of the SHA-256 of the key that it presented. Neither a
/// name, which may change, nor anything that a key could be found from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(u64);

impl Principal {
    /// Of the key with this SHA-256.
    pub fn of(sha256: &[u8; 32]) -> Principal {
        Principal(sha256.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Reads what [`Display`](fmt::Display) writes.
    pub fn parse(text: &str) -> Option<Principal> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| digits).map(Principal)
    }
}

/// Sixteen hexadecimal digits.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A key that an app presents.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientKey {
    /// Shown in logs; `key-1`, `key-2`, ... when none was given.
    pub name: Arc<str>,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    pub source: ClientSource,
    /// Milliseconds since 1970, where it is known.
    pub created_ms: Option<u64>,
    pub rules: ClientRules,
}

/// Where a client key was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientSource {
    /// By `freeway clients new`, `freeway init` or the page.
    File,
    Config,
    /// `FREEWAY_KEYS`.
    Variable,
}

impl ClientSource {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            ClientSource::File => "clients",
            ClientSource::Config => "config",
            ClientSource::Variable => "env",
        }
    }
}

/// What a client key may do, and how it is served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientRules {
    /// The only model strings that it may use; empty for all of them.
    pub models: Vec<String>,
    /// In place of the configured one, where the request names none.
    pub strategy: Option<Strategy>,
    /// Whether its requests may be answered from a cache, and their answers be kept; `None` as configured.
    pub cache: Option<bool>,
    pub limits: ClientLimits,
}

/// What one client may use, over the defaults of `guard.perKey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    pub rpm: Option<u64>,
    pub tpm: Option<u64>,
    pub rpd: Option<u64>,
    pub concurrency: Option<u64>,
}

impl ClientLimits {
    /// Whether anything is limited.
    pub fn is_limited(&self) -> bool {
        *self != ClientLimits::default()
    }

    /// These limits, and where they say nothing the others.
    pub fn or(self, other: ClientLimits) -> ClientLimits {
        ClientLimits {
            rpm: self.rpm.or(other.rpm),
            tpm: self.tpm.or(other.tpm),
            rpd: self.rpd.or(other.rpd),
            concurrency: self.concurrency.or(other.concurrency),
        }
    }
}

/// Members that hold the rules.
pub const RULE_MEMBERS: [&str; 4] = ["models", "strategy", "limits", "cache"];
const LIMIT_NAMES: [&str; 4] = ["rpm", "tpm", "rpd", "concurrency"];

impl ClientKey {
    pub fn principal(&self) -> Principal {
        Principal::of(&self.sha256)
    }

    /// As the API and the terminal have it: everything but the hash.
    pub fn to_json(&self) -> Value {
        let mut view = json!({
            "id": self.principal().to_string(),
            "name": self.name,
            "source": self.source.name(),
            "revocable": self.source == ClientSource::File,
            "createdAt": self.created_ms,
        });
        self.rules.write_into(&mut view);
        view
    }
}

impl ClientRules {
    /// Reads the rules of a key. `at` is where it stands, with a dot at its end if it is not empty.
    ///
    /// # Errors
    /// What is wrong, beginning with the member at fault.
    pub fn read(at: &str, map: &Map<String, Value>) -> Result<ClientRules, String> {
        let member = |name: &str| map.get(name).filter(|value| !value.is_null());
        Ok(ClientRules {
            models: member("models").map_or(Ok(Vec::new()), |value| read_models(at, value))?,
            strategy: member("strategy").map(|value| read_strategy(at, value)).transpose()?,
            cache: member("cache").map(|value| read_cache(at, value)).transpose()?,
            limits: member("limits").map_or(Ok(ClientLimits::default()), |value| read_limits(at, value))?,
        })
    }

    /// Whether the key may use this model string. `provider/*` allows all models of a provider by their full names, `*`
    /// allows all there is, and no string at all means `auto`.
    pub fn allow(&self, model: &str) -> bool {
        let model = model.trim();
        let is_auto = |text: &str| AUTO.iter().any(|known| known.eq_ignore_ascii_case(text));
        let fits = |allowed: &String| match allowed.strip_suffix("/*") {
            _ if allowed == "*" => true,
            _ if is_auto(allowed) => is_auto(model),
            Some(provider) => {
                model.split_once('/').is_some_and(|(asked, _)| asked.eq_ignore_ascii_case(provider))
            }
            None => allowed.eq_ignore_ascii_case(model),
        };
        self.models.is_empty() || self.models.iter().any(fits)
    }

    /// Adds the members of the rules, `null` for what is not set.
    pub fn write_into(&self, view: &mut Value) {
        let limits = &self.limits;
        view["models"] = if self.models.is_empty() { Value::Null } else { json!(self.models) };
        view["strategy"] = json!(self.strategy.map(Strategy::name));
        view["cache"] = json!(self.cache);
        view["limits"] = json!({
            "rpm": limits.rpm, "tpm": limits.tpm, "rpd": limits.rpd, "concurrency": limits.concurrency,
        });
    }
}

/// Whether a text can be the name of a key; the error says what it must be.
///
/// # Errors
/// What a name must be.
pub fn check_name(name: &str) -> Result<&str, String> {
    let name = name.trim();
    let fine = !name.is_empty() && name.len() <= NAME_MAX && !name.contains(char::is_control);
    fine.then_some(name)
        .ok_or_else(|| format!("must be a text of 1 to {NAME_MAX} bytes without control characters"))
}

fn read_models(at: &str, value: &Value) -> Result<Vec<String>, String> {
    let items = value
        .as_array()
        .ok_or_else(|| format!("{at}models: must be a list of model strings (it is {})", shown(value)))?;
    if items.is_empty() || items.len() > MODELS_MAX {
        return Err(format!(
            "{at}models: must name 1 to {MODELS_MAX} model strings; leave it out to allow all"
        ));
    }
    let mut models = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        match item.as_str().map(str::trim).filter(|text| !text.is_empty() && text.len() <= MODEL_MAX) {
            Some(text) => models.push(text.to_owned()),
            None => return Err(format!("{at}models[{i}]: must be a model string (it is {})", shown(item))),
        }
    }
    Ok(models)
}

fn read_strategy(at: &str, value: &Value) -> Result<Strategy, String> {
    value.as_str().and_then(Strategy::by_name).ok_or_else(|| {
        format!("{at}strategy: must be one of {} (it is {})", STRATEGIES.join(", "), shown(value))
    })
}

fn read_cache(at: &str, value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(on) => Ok(*on),
        Value::String(word) if word == "on" => Ok(true),
        Value::String(word) if word == "off" => Ok(false),
        other => Err(format!("{at}cache: must be true or false (it is {})", shown(other))),
    }
}

fn read_limits(at: &str, value: &Value) -> Result<ClientLimits, String> {
    let map =
        value.as_object().ok_or_else(|| format!("{at}limits: must be an object (it is {})", shown(value)))?;
    if let Some(name) = map.keys().find(|name| !LIMIT_NAMES.contains(&name.as_str())) {
        let hint = closest(name, LIMIT_NAMES).map(|near| format!("; did you mean `{near}`?"));
        let known = LIMIT_NAMES.join(", ");
        return Err(format!("{at}limits.{name}: is none of {known}{}", hint.unwrap_or_default()));
    }
    let limit = |name: &str| match map.get(name).filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(value) => whole(value).filter(|n| (1..=LIMIT_MAX).contains(n)).map(Some).ok_or_else(|| {
            format!(
                "{at}limits.{name}: must be a whole number from 1 to {LIMIT_MAX} (it is {})",
                shown(value)
            )
        }),
    };
    Ok(ClientLimits {
        rpm: limit("rpm")?,
        tpm: limit("tpm")?,
        rpd: limit("rpd")?,
        concurrency: limit("concurrency")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::text::hex;
    use sha2::{Digest, Sha256};

    fn rules(value: Value) -> Result<ClientRules, String> {
        ClientRules::read("keys[0].", value.as_object().expect("an object"))
    }

    #[test]
    fn a_principal_is_the_start_of_the_hash() {
        let sha256: [u8; 32] = Sha256::digest("fw-a").into();
        let principal = Principal::of(&sha256);
        assert_eq!(principal.to_string(), hex(&sha256)[..16]);
        assert_eq!(Principal::parse(&principal.to_string()), Some(principal));
        assert_eq!([Principal::parse("0a"), Principal::parse("+000000000000001")], [None, None]);
    }

    #[test]
    fn rules_are_read_and_written() {
        let given = json!({"models": [" fast ", "groq/*"], "strategy": "Fastest", "cache": "off",
            "limits": {"rpm": 5, "tpm": null}});
        let read = rules(given).expect("valid");
        assert_eq!(read.models, ["fast", "groq/*"]);
        assert_eq!((read.strategy, read.cache), (Some(Strategy::Fastest), Some(false)));
        assert_eq!(read.limits, ClientLimits { rpm: Some(5), ..ClientLimits::default() });
        let mut view = json!({});
        read.write_into(&mut view);
        assert_eq!(rules(view), Ok(read));
        assert_eq!(rules(json!({"models": null})), Ok(ClientRules::default()));
    }

    #[test]
    fn wrong_rules_say_where() {
        let check = |value: Value, expected: &str| {
            let error = rules(value.clone()).expect_err("it is wrong");
            assert!(error.starts_with(expected), "{value}: {error}");
        };
        check(json!({"models": "fast"}), "keys[0].models: must be a list");
        check(json!({"models": []}), "keys[0].models: must name 1 to 100");
        check(json!({"models": ["a", " "]}), "keys[0].models[1]: must be a model string");
        check(json!({"strategy": "random"}), "keys[0].strategy: must be one of priority");
        check(json!({"cache": "maybe"}), "keys[0].cache: must be true or false");
        check(json!({"limits": 5}), "keys[0].limits: must be an object");
        check(
            json!({"limits": {"concurency": 5}}),
            "keys[0].limits.concurency: is none of rpm, tpm, rpd, concurrency; did you mean `concurrency`?",
        );
        check(json!({"limits": {"rpd": 0}}), "keys[0].limits.rpd: must be a whole number");
    }

    #[test]
    fn a_key_may_be_confined_to_models() {
        let confined = rules(json!({"models": ["fast", "groq/*", "acme/big"]})).expect("valid");
        for allowed in ["fast", "FAST", "groq/anything", "acme/big"] {
            assert!(confined.allow(allowed), "{allowed}");
        }
        for refused in ["", "auto", "acme/small", "groq", "fast2"] {
            assert!(!confined.allow(refused), "{refused}");
        }
        assert!(rules(json!({"models": ["auto"]})).expect("valid").allow(""));
        assert!(rules(json!({"models": ["*"]})).expect("valid").allow("anything"));
        assert!(ClientRules::default().allow("anything"));
    }

    #[test]
    fn names_are_short_lines() {
        assert_eq!(check_name(" phone "), Ok("phone"));
        assert!(
            check_name(" ").is_err() && check_name("a\nb").is_err() && check_name(&"x".repeat(65)).is_err()
        );
    }
}
