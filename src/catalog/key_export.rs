//! Writes provider keys out, in plain text: as a `.env` file, as JSON that `keys import` reads, as CSV. Pure.
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Catalog;
use super::key_import::Format;
use super::provider::{Auth, Key, Provider};
use super::vault::Vault;
use crate::base::calendar;

/// What everybody should know who holds such a file.
pub const WARNING: &str = "these are your provider keys in plain text: whoever reads this file can use them";

/// One key on its way out.
struct Line<'a> {
    provider: &'a Provider,
    key: &'a Key,
    label: &'a str,
}

/// The keys of all providers that `wanted` lets through, in this form.
pub fn write(
    format: Format,
    catalog: &Catalog,
    pasted: &Vault,
    wanted: &dyn Fn(&Provider, &Key) -> bool,
    now_ms: u64,
) -> String {
    let label = |provider: &Provider, key: &Key| {
        let secret = key.secret.expose();
        let found = pasted
            .keys
            .iter()
            .find(|other| other.provider == *provider.id && other.secret.expose() == secret);
        found.and_then(|other| other.label.as_deref()).unwrap_or_default()
    };
    let providers = catalog.providers.iter().filter(|provider| provider.auth != Auth::None);
    let lines: Vec<Line<'_>> = providers
        .flat_map(|provider| provider.keys.iter().map(move |key| (provider, key)))
        .filter(|(provider, key)| wanted(provider, key))
        .map(|(provider, key)| Line { provider, key, label: label(provider, key) })
        .collect();
    match format {
        Format::Env => env(&lines, now_ms),
        Format::Json => json_text(&lines, now_ms),
        Format::Csv => csv(&lines),
    }
}

fn env(lines: &[Line<'_>], now_ms: u64) -> String {
    let mut text = format!("# Exported {}: {WARNING}.\n", calendar::date(now_ms));
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for line in lines {
        let own = line.provider.env_keys.first().cloned();
        let name = own.unwrap_or_else(|| {
            format!("{}_API_KEY", line.provider.id.to_ascii_uppercase().replace('-', "_"))
        });
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        // The numbers that a pool is read by begin at 2.
        let name = if *count == 1 { name } else { format!("{name}_{count}") };
        text += &format!("{name}={}\n", quoted(line.key.secret.expose()));
    }
    text
}

/// A value as a `.env` file holds it: in quotes only where it must be.
fn quoted(value: &str) -> String {
    let plain = value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:/+=~@%".contains(&b));
    if plain {
        return value.to_owned();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$"))
}

fn json_text(lines: &[Line<'_>], now_ms: u64) -> String {
    let keys: Vec<Value> = lines
        .iter()
        .map(|line| json!({"provider": line.provider.id, "key": line.key.secret.expose(), "label": line.label}))
        .collect();
    let all = json!({
        "version": 1,
        "exportedAt": calendar::stamp(now_ms),
        "source": "freeway",
        "warning": WARNING,
        "keys": keys,
    });
    serde_json::to_string_pretty(&all).unwrap_or_default() + "\n"
}

fn csv(lines: &[Line<'_>]) -> String {
    let mut text = String::from("provider,key,label\r\n");
    for line in lines {
        let cells = [cell(&line.provider.id), cell(line.key.secret.expose()), cell(&harmless(line.label))];
        text += &(cells.join(",") + "\r\n");
    }
    text
}

/// A label that no spreadsheet takes for a formula.
fn harmless(label: &str) -> String {
    if label.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{label}") } else { label.to_owned() }
}

fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::text::Secret;
    use crate::catalog::bundled::tests::catalog;
    use crate::catalog::key_import::{State, read};
    use crate::catalog::key_names::KeyNames;

    #[test]
    fn fl_40_what_is_exported_can_be_imported() {
        let mut catalog = catalog();
        let groq =
            catalog.providers.iter_mut().find(|provider| &*provider.id == "groq").expect("it is built in");
        let mut second = groq.keys[0].clone();
        second.secret = Secret::new("gsk_#\"$\\second=1");
        groq.keys.push(second);
        let all: usize = catalog
            .providers
            .iter()
            .filter(|provider| provider.auth != Auth::None)
            .map(|p| p.keys.len())
            .sum();
        for format in [Format::Env, Format::Json, Format::Csv] {
            let text = write(format, &catalog, &Vault::default(), &|_, _| true, 0);
            let preview = read(&text, None, &KeyNames::of(&catalog), &|_, _| false);
            assert_eq!(
                (preview.format, preview.entries.len(), &preview.faults[..]),
                (format, all, &[][..]),
                "{text}"
            );
            let new = preview.entries.iter().filter(|entry| entry.state == State::New).count();
            assert_eq!(new, all, "{text}");
            assert!(
                preview.entries.iter().any(|entry| entry.secret.expose() == "gsk_#\"$\\second=1"),
                "{text}"
            );
        }
        let env = write(Format::Env, &catalog, &Vault::default(), &|_, _| true, 0);
        assert!(env.contains("\nGROQ_API_KEY=") && env.contains("\nGROQ_API_KEY_2="), "{env}");
        assert!(!write(Format::Csv, &catalog, &Vault::default(), &|_, _| false, 0).contains("groq"));
    }

    #[test]
    fn labels_are_no_formulas() {
        assert_eq!((harmless("=1+1").as_str(), harmless("mine").as_str()), ("'=1+1", "mine"));
        assert_eq!(cell("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
