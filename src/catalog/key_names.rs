//! Whose key a name or a shape stands for: `GEMINI_API_KEY`, `groq`, `HF_TOKEN_2`, `gsk_...`. Learned from the provider
//! files themselves, so that a new file needs nothing here. Pure.
use std::collections::{BTreeMap, BTreeSet};

use super::Catalog;
use super::provider::{Auth, Provider};
use super::table::{PATH_VARIABLES, TABLE};

/// What the names of keys end in.
const ENDS: [&str; 7] = ["_API_KEYS", "_API_KEY", "_API_TOKEN", "_ACCESS_TOKEN", "_TOKEN", "_KEY", "_SECRET"];

/// How the keys of well-known services begin, and one of the variables that name these.
const SHAPES: [(&str, &str); 8] = [
    ("sk-or-", "OPENROUTER_API_KEY"),
    ("gsk_", "GROQ_API_KEY"),
    ("AIza", "GEMINI_API_KEY"),
    ("hf_", "HF_TOKEN"),
    ("nvapi-", "NVIDIA_API_KEY"),
    ("csk-", "CEREBRAS_API_KEY"),
    ("github_pat_", "GITHUB_MODELS_TOKEN"),
    ("ghp_", "GITHUB_MODELS_TOKEN"),
];

/// The names by which the keys of all providers are known.
#[derive(Debug, Default)]
pub struct KeyNames {
    /// From a name in upper case to a provider's id.
    by_name: BTreeMap<String, String>,
    /// Variables that are settings, addresses or accounts.
    others: BTreeSet<String>,
}

impl KeyNames {
    /// Of these providers.
    pub fn of(catalog: &Catalog) -> KeyNames {
        let mut names = KeyNames::default();
        let wanting = || catalog.providers.iter().filter(|provider| provider.auth != Auth::None);
        // Their own variables first, then what others may call them.
        for provider in wanting() {
            for name in &provider.env_keys {
                names.add(name, provider);
            }
        }
        for provider in wanting() {
            names.add(&provider.id, provider);
            names.add(&provider.label, provider);
            for name in &provider.env_keys {
                names.add(stem(&normal(name)), provider);
            }
        }
        names.others.extend(TABLE.iter().flat_map(|row| row.variables).map(|name| (*name).to_owned()));
        names.others.extend(PATH_VARIABLES.iter().map(|(name, ..)| (*name).to_owned()));
        for provider in &catalog.providers {
            names.others.extend(provider.missing_vars.iter().cloned());
        }
        names
    }

    fn add(&mut self, name: &str, provider: &Provider) {
        self.by_name.entry(normal(name)).or_insert_with(|| provider.id.to_string());
    }

    /// The provider that a name of a key belongs to.
    pub fn provider(&self, name: &str) -> Option<String> {
        let name = normal(name);
        let bare = without_number(&name);
        let stems = [name.as_str(), bare, stem(bare)];
        stems.iter().find_map(|name| self.by_name.get(*name)).cloned()
    }

    /// The provider whose keys begin like this one.
    pub fn provider_by_shape(&self, key: &str) -> Option<String> {
        let (_, name) = SHAPES.iter().find(|(start, _)| key.starts_with(start))?;
        self.provider(name)
    }

    /// Whether a variable is known, yet holds no key of a provider.
    pub fn is_other(&self, name: &str) -> bool {
        self.others.contains(name) || name.starts_with("FREEWAY_") || name.ends_with("_ACCOUNT_ID")
    }
}

/// A name as it is compared.
fn normal(name: &str) -> String {
    name.trim().to_ascii_uppercase().replace(['-', ' ', '.'], "_")
}

/// A name without `_2` or `2` at its end.
fn without_number(name: &str) -> &str {
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match bare.len() {
        0 => name,
        _ => bare.trim_end_matches('_'),
    }
}

/// A name without what the names of keys end in.
pub(super) fn stem(name: &str) -> &str {
    ENDS.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The names of a few of the built-in providers.
    pub fn names() -> KeyNames {
        let mut names = KeyNames::default();
        for (id, variables) in [
            ("groq", &["GROQ_API_KEY"][..]),
            ("google-ai", &["GOOGLE_AI_API_KEY", "GEMINI_API_KEY"]),
            ("huggingface", &["HF_TOKEN", "HUGGINGFACE_API_KEY"]),
            ("cloudflare", &["CLOUDFLARE_API_TOKEN"]),
        ] {
            for name in variables.iter().flat_map(|name| [*name, stem(name)]).chain([id]) {
                names.by_name.entry(normal(name)).or_insert_with(|| id.to_owned());
            }
        }
        names.others.insert("PORT".into());
        names
    }

    #[test]
    fn names_lead_to_their_providers() {
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(names().provider(name).as_deref(), expected, "{name}");
        };
        for name in
            ["GROQ_API_KEY", "groq", "Groq", "GROQ_KEY", "GROQ_API_KEY_2", "GROQ_KEY3", "groq_token", "GROQ"]
        {
            check(name, Some("groq"));
        }
        check("GEMINI_KEY", Some("google-ai"));
        check("google-ai", Some("google-ai"));
        check("HF_API_KEY", Some("huggingface"));
        check("CLOUDFLARE_API_KEY", Some("cloudflare"));
        for name in ["PORT", "ACME_KEY", "KEY", "API_KEY", "", "2"] {
            check(name, None);
        }
        assert_eq!(names().provider_by_shape("gsk_123").as_deref(), Some("groq"));
        assert_eq!(names().provider_by_shape("sk-or-123"), None, "there is no such provider here");
        assert!(
            names().is_other("PORT")
                && names().is_other("CLOUDFLARE_ACCOUNT_ID")
                && !names().is_other("GROQ_KEY")
        );
    }

    #[test]
    fn every_built_in_provider_is_found_by_its_own_variables() {
        let catalog = crate::catalog::bundled::tests::catalog();
        let names = KeyNames::of(&catalog);
        for provider in catalog.providers.iter().filter(|provider| provider.auth != Auth::None) {
            for name in &provider.env_keys {
                let found = names.provider(name).expect(name);
                let owner = catalog.providers.iter().find(|other| *other.id == *found).expect("it is there");
                assert!(owner.env_keys.contains(name), "{name} leads to {found}");
            }
        }
    }
}
