//! Catalogs for tests, made from provider files in short form. Exists only in test builds.
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Catalog;
use super::pool::Fingerprints;
use super::provider::Provider;
use super::settings::Settings;
use super::slots::Slots;
use super::spec::{self, Context};
use super::vault::Vault;

/// A provider from its file; what is missing of address and auth is filled in, with a key that is set.
pub fn provider(mut file: Value, slots: &mut Slots) -> Provider {
    let defaults = [
        ("baseUrl", json!("http://127.0.0.1:9/v1")),
        ("auth", json!({"type": "bearer", "envKeys": ["TEST_KEY"]})),
    ];
    let members = file.as_object_mut().expect("a file is an object");
    for (name, value) in defaults {
        members.entry(name).or_insert(value);
    }
    let variables = BTreeMap::from([("TEST_KEY".to_owned(), "test-key-1".to_owned())]);
    let settings = Settings::default();
    let fingerprints = Fingerprints::new(&[7; 32]);
    let mut context = Context {
        variables: &variables,
        settings: &settings,
        fingerprints: &fingerprints,
        pasted: &Vault::default(),
        slots,
    };
    let (provider, issues) = spec::read("test.json", &file.to_string(), &mut context);
    provider.unwrap_or_else(|| panic!("{issues:?}"))
}

/// A catalog of such providers, in the order given.
pub fn catalog(files: &[Value]) -> Catalog {
    let mut slots = Slots::default();
    Catalog { providers: files.iter().map(|file| provider(file.clone(), &mut slots)).collect() }
}
