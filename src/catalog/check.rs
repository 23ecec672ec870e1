//! Checks of one setting's value against its row of the table, and what a variable's text stands for. Pure.
use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value};

use super::client_key::{ClientRules, RULE_MEMBERS};
use super::fields::{shown, whole};
use super::names::AUTO;
use super::settings::Strategy;
use super::table::{self, BENCH_CAUSES, Row, Shape};
use crate::base::text::closest;

/// The value that a variable's text stands for.
pub fn value_of(shape: &Shape, text: &str) -> Value {
    match shape {
        Shape::Flag => match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "on" | "yes" => true.into(),
            "false" | "0" | "off" | "no" => false.into(),
            _ => text.into(),
        },
        Shape::Whole(..) | Shape::Number(..) => {
            serde_json::from_str::<serde_json::Number>(text).map_or_else(|_| text.into(), Value::Number)
        }
        Shape::Texts | Shape::Addresses | Shape::Origins | Shape::Hosts | Shape::Keys => {
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().into()
        }
        _ => text.into(),
    }
}

/// Checks one value against its row: `None` for a `null` that means the default, the message when it is wrong. What is
/// merely odd goes to `warnings`.
pub fn check(row: &Row, value: &Value, warnings: &mut Vec<String>) -> Result<Option<Value>, String> {
    let name = row.name;
    if value.is_null() {
        // `null` stands for "not set" everywhere, which is the default.
        return Ok(None);
    }
    let ok = match row.shape {
        Shape::Flag => value.is_boolean(),
        Shape::Whole(min, max) => whole(value).is_some_and(|n| (min..=max).contains(&n)),
        Shape::Number(min, max) => value.as_f64().is_some_and(|n| (min..=max).contains(&n)),
        Shape::Text => is_text(value),
        Shape::Word(words) => {
            if let Some(near) = value
                .as_str()
                .filter(|text| !words.contains(text))
                .and_then(|text| closest(text, words.iter().copied()))
            {
                let must = table::must_be(&row.shape);
                return Err(format!(
                    "{name}: must be {must} (it is {}); did you mean `{near}`?",
                    shown(value)
                ));
            }
            value.as_str().is_some_and(|text| words.contains(&text))
        }
        Shape::Secret => {
            return if value.as_str().is_some_and(is_visible) {
                Ok(Some(value.clone()))
            } else {
                Err(format!("{name}: must be {}; leave it out to have none", table::must_be(&row.shape)))
            };
        }
        Shape::Keys => return check_keys(name, value, warnings).map(|()| Some(value.clone())),
        Shape::Profiles => return check_profiles(name, value, warnings).map(|()| Some(value.clone())),
        Shape::Bench => return check_bench(name, value).map(|()| Some(value.clone())),
        Shape::Texts
        | Shape::Addresses
        | Shape::Origins
        | Shape::Hosts
        | Shape::TextMap
        | Shape::NumberMap => {
            return check_members(row, value).map(|()| Some(value.clone()));
        }
    };
    if ok { Ok(Some(value.clone())) } else { Err(wrong(name, &table::must_be(&row.shape), value)) }
}

fn wrong(at: &str, must_be: &str, value: &Value) -> String {
    format!("{at}: must be {must_be} (it is {})", shown(value))
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.trim().is_empty())
}

fn is_address(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.trim().parse::<IpAddr>().is_ok())
}

/// What a `Host` can say: no scheme, no path, and no stars, which would let in any name.
fn is_host(value: &Value) -> bool {
    let plain = |c: char| !c.is_whitespace() && !"/\\*@?#".contains(c);
    value.as_str().map(str::trim).is_some_and(|text| !text.is_empty() && text.chars().all(plain))
}

/// A scheme and a host, as browsers send them; a slash at the end is forgiven. `*` is dealt with where it is read.
fn is_origin(value: &Value) -> bool {
    value.as_str().map(str::trim).is_some_and(|text| {
        let host = text.split_once("://").map(|(_, host)| host.trim_end_matches('/'));
        text == "*" || host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '*', ' ']))
    })
}

/// Checks a list or an object whose members are all of one kind, and names the first that is not.
fn check_members(row: &Row, value: &Value) -> Result<(), String> {
    let name = row.name;
    let is_weight = |value: &Value| value.as_f64().is_some_and(|n| n.is_finite() && n >= 0.0);
    let (must_be, is_right): (&str, fn(&Value) -> bool) = match row.shape {
        Shape::Addresses => ("an IP address", is_address),
        Shape::Origins => ("an origin such as https://chat.example", is_origin),
        Shape::Hosts => ("a host name such as freeway.example, with a port or without", is_host),
        Shape::NumberMap => ("a number of at least zero", is_weight),
        _ => ("a text that is not empty", is_text),
    };
    let is_map = matches!(row.shape, Shape::TextMap | Shape::NumberMap);
    let culprit = match value {
        Value::Array(items) if !is_map => items
            .iter()
            .enumerate()
            .find(|(_, item)| !is_right(item))
            .map(|(i, item)| (format!("{name}[{i}]"), item)),
        Value::Object(map) if is_map => {
            map.iter().find(|(_, item)| !is_right(item)).map(|(key, item)| (format!("{name}.{key}"), item))
        }
        _ => return Err(wrong(name, &table::must_be(&row.shape), value)),
    };
    culprit.map_or(Ok(()), |(at, item)| Err(wrong(&at, must_be, item)))
}

/// Whether a text can be a credential in a header.
pub fn is_visible(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| (0x21..0x7f).contains(&b))
}

/// Members of a client key object that say which one it is.
const KEY_MEMBERS: [&str; 3] = ["name", "key", "sha256"];

fn check_keys(name: &str, value: &Value, warnings: &mut Vec<String>) -> Result<(), String> {
    let items =
        value.as_array().ok_or_else(|| format!("{name}: must be {}", table::must_be(&Shape::Keys)))?;
    for (i, item) in items.iter().enumerate() {
        let at = format!("{name}[{i}]");
        match item {
            // A wrong key is never shown: it may be a good one with a slip in it.
            Value::String(key) if is_visible(key) => {}
            Value::String(_) => return Err(format!("{at}: must be visible ASCII characters without spaces")),
            Value::Object(map) => check_key_object(&at, map, warnings)?,
            _ => return Err(format!("{at}: must be a text or an object")),
        }
    }
    Ok(())
}

fn check_key_object(at: &str, map: &Map<String, Value>, warnings: &mut Vec<String>) -> Result<(), String> {
    warn_unknown(at, map, &[&KEY_MEMBERS[..], &RULE_MEMBERS].concat(), warnings);
    if map.get("name").is_some_and(|name| name.as_str().is_none_or(|text| text.trim().is_empty())) {
        return Err(format!("{at}.name: must be a text that is not empty"));
    }
    ClientRules::read(&format!("{at}."), map)?;
    match (map.get("key"), map.get("sha256")) {
        (Some(Value::String(key)), None) if is_visible(key) => Ok(()),
        (Some(_), None) => Err(format!("{at}.key: must be visible ASCII characters without spaces")),
        (None, Some(Value::String(hash))) if parse_sha256(hash).is_some() => Ok(()),
        (None, Some(_)) => Err(format!("{at}.sha256: must be 64 hexadecimal digits")),
        _ => Err(format!("{at}: must have either `key` or `sha256`")),
    }
}

/// Warns of members that no key or profile has.
fn warn_unknown(at: &str, map: &Map<String, Value>, known: &[&str], warnings: &mut Vec<String>) {
    for name in map.keys().filter(|name| !name.starts_with("//") && !known.contains(&name.as_str())) {
        let hint = closest(name, known.iter().copied());
        let hint = hint.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        warnings.push(format!("{at}.{name}: unknown, not used{hint}"));
    }
}

fn check_profiles(name: &str, value: &Value, warnings: &mut Vec<String>) -> Result<(), String> {
    let map =
        value.as_object().ok_or_else(|| format!("{name}: must be {}", table::must_be(&Shape::Profiles)))?;
    for (profile, body) in map {
        let at = format!("{name}.{profile}");
        let models = match body {
            Value::Array(models) => models,
            Value::Object(members) => {
                warn_unknown(&at, members, &["models", "strategy"], warnings);
                if let Some(strategy) = members.get("strategy") {
                    if strategy.as_str().and_then(Strategy::by_name).is_none() {
                        let all = table::STRATEGIES.join(", ");
                        return Err(format!(
                            "{at}.strategy: must be one of {all} (it is {})",
                            shown(strategy)
                        ));
                    }
                }
                let models = members.get("models").and_then(Value::as_array);
                models.ok_or_else(|| format!("{at}.models: must be a list of model strings"))?
            }
            other => return Err(format!("{at}: must be a list or an object (it is {})", shown(other))),
        };
        if models.is_empty() || !models.iter().all(|m| m.as_str().is_some_and(|text| !text.trim().is_empty()))
        {
            return Err(format!("{at}: must name at least one model, each as a text"));
        }
    }
    Ok(())
}

fn check_bench(name: &str, value: &Value) -> Result<(), String> {
    /// A bench longer than this is no bench but a switch.
    const BENCH_MAX_MS: u64 = 30 * 86_400_000;
    let map =
        value.as_object().ok_or_else(|| format!("{name}: must be {}", table::must_be(&Shape::Bench)))?;
    for (cause, steps) in map {
        if !BENCH_CAUSES.contains(&cause.as_str()) {
            return Err(format!("{name}.{cause}: unknown cause; it is one of {}", BENCH_CAUSES.join(", ")));
        }
        let ms = |member: &str| steps.get(member).and_then(whole).filter(|n| (1..=BENCH_MAX_MS).contains(n));
        match (ms("firstMs"), ms("capMs")) {
            (Some(first), Some(cap)) if first <= cap => {}
            _ => {
                return Err(format!(
                    "{name}.{cause}: must have firstMs and capMs, whole milliseconds from 1 to {BENCH_MAX_MS}, firstMs not above capMs"
                ));
            }
        }
    }
    Ok(())
}

/// What is to be said of aliases and profiles whose names always mean something else.
pub fn reserved_names(values: &BTreeMap<&'static str, Value>) -> Vec<String> {
    let active = values.get("activeProfile").and_then(Value::as_str).unwrap_or_default();
    let mut found = Vec::new();
    for section in ["aliases", "profiles"] {
        let names = values.get(section).and_then(Value::as_object);
        let reserved = |name: &&String| AUTO.contains(&name.trim().to_lowercase().as_str());
        for name in names.into_iter().flat_map(Map::keys).filter(reserved) {
            // The active profile is `auto`, whatever its name.
            if section == "profiles" && name.eq_ignore_ascii_case(active) {
                continue;
            }
            let todo = "to choose what `auto` means, add a profile and name it in activeProfile";
            found.push(format!("{section}.{name}: not used, `{name}` always means `auto`; {todo}"));
        }
    }
    found
}

/// 64 hexadecimal digits as bytes.
pub fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let mut out = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] * 16 + pair[1];
    }
    Some(out)
}
