//! Writes provider keys out, in plain text: as a `.env` file, as JSON that `keys import` reads, as CSV. Pure.
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Catalog;
use super::bundled;
use super::key_import::{ADDRESS_END, Format};
use super::key_names::stem;
use super::provider::{Auth, Key, Provider};
use super::vault::Vault;
use crate::base::calendar;

/// What everybody should know who holds such a file.
pub const WARNING: &str = "these are your provider keys in plain text: whoever reads this file can use them";

/// One key on its way out.
struct Line<'a> {
    /// The provider's id.
    provider: &'a str,
    /// The first variable of its pool.
    variable: Option<&'a str>,
    /// Where it goes, for a provider that only its owner knows.
    base_url: Option<&'a str>,
    key: &'a str,
    label: &'a str,
}

/// The keys of all providers that `wanted` lets through, in this form; pasted keys of providers that are not there any
/// more among them.
pub fn write(
    format: Format,
    catalog: &Catalog,
    pasted: &Vault,
    wanted: &dyn Fn(&Provider, &Key) -> bool,
    now_ms: u64,
) -> String {
    let label = |provider: &str, key: &str| {
        let mut same =
            pasted.keys.iter().filter(|other| other.provider == provider && other.secret.expose() == key);
        same.next().and_then(|other| other.label.as_deref()).unwrap_or_default()
    };
    let built_in = bundled::files();
    let is_built_in =
        |id: &str| built_in.iter().any(|bundled| bundled.file.strip_suffix(".json") == Some(id));
    let providers = catalog.providers.iter().filter(|provider| provider.auth != Auth::None);
    let mut lines: Vec<Line<'_>> = providers
        .flat_map(|provider| provider.keys.iter().map(move |key| (provider, key)))
        .filter(|(provider, key)| wanted(provider, key))
        .map(|(provider, key)| Line {
            provider: &provider.id,
            variable: provider.env_keys.first().map(String::as_str),
            base_url: (!is_built_in(&provider.id)).then_some(&provider.base_url),
            key: key.secret.expose(),
            label: label(&provider.id, key.secret.expose()),
        })
        .collect();
    let is_there = |id: &str| catalog.providers.iter().any(|provider| *provider.id == *id);
    lines.extend(pasted.keys.iter().filter(|key| !is_there(&key.provider)).map(|key| Line {
        provider: &key.provider,
        variable: None,
        base_url: None,
        key: key.secret.expose(),
        label: key.label.as_deref().unwrap_or_default(),
    }));
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
        let own = line.variable.map(str::to_owned);
        let name = own
            .unwrap_or_else(|| format!("{}_API_KEY", line.provider.to_ascii_uppercase().replace('-', "_")));
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        if let Some(url) = line.base_url.filter(|_| *count == 1) {
            // Beside its key, under the name that the reader of such files knows.
            text += &format!("{}{ADDRESS_END}={}\n", stem(&name), quoted(url));
        }
        // The numbers that a pool is read by begin at 2.
        let name = if *count == 1 { name } else { format!("{name}_{count}") };
        text += &format!("{name}={}\n", quoted(line.key));
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
        .map(|line| {
            let mut key = json!({"provider": line.provider, "key": line.key, "label": line.label});
            if let Some(url) = line.base_url {
                key["baseUrl"] = url.into();
            }
            key
        })
        .collect();
    let all = json!({
        "version": 1,
        "exportedAt": calendar::instant(now_ms),
        "source": "freeway",
        "warning": WARNING,
        "keys": keys,
    });
    serde_json::to_string_pretty(&all).unwrap_or_default() + "\n"
}

fn csv(lines: &[Line<'_>]) -> String {
    let mut text = String::from("provider,key,label,base_url\r\n");
    for line in lines {
        let label = harmless(line.label);
        let cells = [line.provider, line.key, &label, line.base_url.unwrap_or_default()];
        text += &(cells.map(cell).join(",") + "\r\n");
    }
    text
}

/// Whether a spreadsheet may take a text for a formula; its marks of text before it do not count.
fn is_formula(text: &str) -> bool {
    text.trim_start_matches('\'').starts_with(['=', '+', '-', '@', '\t', '\r'])
}

/// A label that no spreadsheet takes for a formula.
fn harmless(label: &str) -> String {
    if is_formula(label) { format!("'{label}") } else { label.to_owned() }
}

/// The label that [`harmless`] made harmless.
pub(super) fn as_it_was(label: &str) -> &str {
    label.strip_prefix('\'').filter(|bare| is_formula(bare)).unwrap_or(label)
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
    use crate::catalog::vault::PastedKey;

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
    fn fl_40_what_only_its_owner_knows_is_kept() {
        let mut catalog = catalog();
        let mut own =
            catalog.providers.iter().find(|provider| &*provider.id == "groq").expect("built in").clone();
        (own.id, own.base_url) = ("acme".into(), "https://acme.example/v1".into());
        own.env_keys = vec!["ACME_TOKEN".into()];
        own.keys[0].secret = Secret::new("acme-key-1");
        catalog.providers.push(own);
        let key = |provider: &str, secret: &str, label: &str| PastedKey {
            id: secret.into(),
            provider: provider.into(),
            secret: Secret::new(secret),
            label: Some(label.into()),
            added_ms: 0,
        };
        let labels = ["=1+1", "'quoted", "'=both", "a, \"b\"", "-x"];
        let mut pasted = Vault::default();
        pasted.keys.push(key("acme", "acme-key-1", "mine"));
        pasted
            .keys
            .extend(labels.iter().enumerate().map(|(n, label)| key("gone", &format!("gone-{n}"), label)));
        for format in [Format::Env, Format::Json, Format::Csv] {
            let text = write(format, &catalog, &pasted, &|_, _| true, 0);
            let preview = read(&text, None, &KeyNames::of(&catalog), &|_, _| false);
            let found = |key: &str| {
                preview
                    .entries
                    .iter()
                    .find(|entry| entry.secret.expose() == key)
                    .unwrap_or_else(|| panic!("{text}"))
            };
            assert_eq!(found("acme-key-1").base_url.as_deref(), Some("https://acme.example/v1"), "{text}");
            for (n, label) in labels.iter().enumerate() {
                let entry = found(&format!("gone-{n}"));
                assert_eq!(entry.state, State::Unknown, "{text}");
                assert!(format == Format::Env || entry.label.as_deref() == Some(label), "{label}: {text}");
            }
            assert_eq!(preview.faults, Vec::<String>::new(), "{text}");
        }
        // Where nobody knows the provider, the address says what to do.
        let text = write(Format::Env, &catalog, &pasted, &|_, _| true, 0);
        let elsewhere = read(&text, None, &KeyNames::default(), &|_, _| false);
        let entry =
            elsewhere.entries.iter().find(|entry| entry.secret.expose() == "acme-key-1").expect("found");
        let note = entry.note.as_deref().unwrap_or_default();
        assert!(note.contains("provider new acme --url https://acme.example/v1"), "{note}");
    }

    #[test]
    fn labels_are_no_formulas() {
        assert_eq!((harmless("=1+1").as_str(), harmless("mine").as_str()), ("'=1+1", "mine"));
        assert_eq!(cell("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
