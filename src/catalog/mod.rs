//! What there is: providers, models, keys, names and settings, loaded from files and variables into one immutable
//! snapshot that is swapped whole.
//!
//! `load` makes the snapshot and is, with `env`, `clients`, `vault` and `boxfile`, the only part that reads files. `spec` turns a
//! provider file into a [`provider::Provider`]; `config` turns the configuration into [`settings::Settings`] by the
//! `table`; `names` says what a model string means.
pub mod provider;
pub mod settings;
pub mod slots;

pub mod load;

pub mod boxfile;
pub mod bundled;
pub mod client_key;
pub mod clients;
pub mod env;
pub mod example;

pub mod address;
pub mod discovery;
pub mod fields;
pub mod json;
pub mod pool;
pub mod spec;
pub mod spec_model;
pub mod splice;

pub mod overrides;

pub mod check;
pub mod config;
pub mod table;

pub mod listing;
pub mod names;
pub mod unified;

pub mod key_export;
pub mod key_import;
pub mod key_names;
pub mod vault;

#[cfg(test)]
pub mod fixture;

use provider::{Model, Provider, Slot};

/// All providers of one snapshot, by id.
#[derive(Debug, Default)]
pub struct Catalog {
    pub providers: Vec<Provider>,
}

/// Where a model stands in a [`Catalog`]. Valid only with the catalog that it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelIx {
    pub provider: u16,
    pub model: u16,
}

impl Catalog {
    /// The provider of a model.
    pub fn provider(&self, at: ModelIx) -> &Provider {
        &self.providers[usize::from(at.provider)]
    }

    /// The model itself.
    pub fn model(&self, at: ModelIx) -> &Model {
        &self.provider(at).models[usize::from(at.model)]
    }

    /// The model that has this slot, if it is still there.
    pub fn model_of(&self, slot: Slot) -> Option<&Model> {
        self.providers.iter().flat_map(|provider| &provider.models).find(|model| model.slot == slot)
    }

    /// Every model of every provider, switched on or not.
    pub fn all(&self) -> impl Iterator<Item = ModelIx> {
        self.providers.iter().enumerate().flat_map(|(p, provider)| {
            (0..provider.models.len()).map(move |m| ModelIx { provider: p as u16, model: m as u16 })
        })
    }
}

/// Something wrong with a file or a variable, kept and shown instead of being fatal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    pub file: String,
    pub provider: Option<String>,
    pub level: IssueLevel,
    /// What and where, such as `limits.rpm: must be a positive number`, and what to do.
    pub message: String,
}

/// How bad an [`Issue`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueLevel {
    /// Something is not used as it stands.
    Error,
    /// All is used, and something is odd.
    Warning,
}

impl IssueLevel {
    /// Its word in the API and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            IssueLevel::Error => "error",
            IssueLevel::Warning => "warning",
        }
    }
}
