//! Reads everything the owner wrote, files and variables, into one [`Snapshot`]. A provider file that turned bad keeps
//! its last good version, a folder that vanished keeps its last good set, a bad configuration keeps the last good
//! settings; each is an issue. Only a first start with a bad configuration is refused.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::bundled::BUNDLED;
use super::discovery::{self, Discovered};
use super::env::{self, Paths, Variables, read_bounded};
use super::names::Names;
use super::pool::Fingerprints;
use super::provider::Provider;
use super::settings::Settings;
use super::slots::Slots;
use super::spec::{self, Context};
use super::{Catalog, Issue, IssueLevel, clients, config};
use crate::base::text::{Redactor, Secret};

/// Everything configured, immutable. One request uses one snapshot from start to end.
#[derive(Debug)]
pub struct Snapshot {
    pub catalog: Catalog,
    pub settings: Settings,
    /// Resolves model strings; made for this very catalog.
    pub names: Names,
    pub redactor: Redactor,
    pub issues: Vec<Issue>,
    /// Grows with each load of this process.
    pub id: u64,
    /// The last good text of each provider file.
    sources: Sources,
    /// Credentials of the configuration, kept for the case that its next version is bad.
    secrets: Vec<Secret>,
}

/// What a load needs.
pub struct Inputs<'a> {
    pub paths: &'a Paths,
    /// The process's own variables; the `.env` file is read at each load.
    pub process: &'a Variables,
    pub fingerprints: &'a Fingerprints,
    pub discovered: &'a Discovered,
    pub previous: Option<&'a Snapshot>,
}

/// Texts of provider files, by file name.
type Sources = BTreeMap<String, Arc<str>>;

/// A provider file larger than this is something else.
const PROVIDER_FILE_MAX_BYTES: u64 = 4 << 20;
const CONFIG_MAX_BYTES: u64 = 4 << 20;
/// Most provider files; positions in the catalog have 16 bits, and people have fewer accounts.
const PROVIDERS_MAX: usize = 500;
/// While a file of this name stands in the folder, the built-in files count beside those of the folder.
pub const WITH_BUNDLED: &str = "_bundled.json";

/// Loads a snapshot. An error is a configuration that refuses, with every reason.
pub fn load(inputs: &Inputs<'_>, slots: &mut Slots) -> Result<Snapshot, Vec<Issue>> {
    let (variables, mut issues) = env::variables(inputs.process, &inputs.paths.env_file);
    let (mut settings, secrets) = read_settings(inputs, &variables, &mut issues)?;
    let (more_keys, key_issues) = clients::read(&inputs.paths.data);
    issues.extend(key_issues);
    for key in more_keys {
        if !settings.keys.iter().any(|known| known.sha256 == key.sha256) {
            settings.keys.push(key);
        }
    }
    let mut sources = Sources::new();
    let mut context =
        Context { variables: &variables, settings: &settings, fingerprints: inputs.fingerprints, slots };
    let mut providers = read_providers(inputs, &mut context, &mut sources, &mut issues);
    for provider in &mut providers {
        if let Some(list) = inputs.discovered.lists.get(&*provider.id).filter(|_| settings.discovery.enabled)
        {
            discovery::merge(provider, list, settings.allow_paid, slots);
        }
    }
    let keys = providers.iter().flat_map(|provider| &provider.keys).map(|key| key.secret.clone());
    let redactor = Redactor::new(keys.chain(secrets.iter().cloned()));
    let catalog = Catalog { providers };
    Ok(Snapshot {
        names: Names::new(&catalog),
        catalog,
        settings,
        redactor,
        issues,
        id: inputs.previous.map_or(1, |previous| previous.id + 1),
        sources,
        secrets,
    })
}

fn read_settings(
    inputs: &Inputs<'_>,
    variables: &Variables,
    issues: &mut Vec<Issue>,
) -> Result<(Settings, Vec<Secret>), Vec<Issue>> {
    let name = file_name(&inputs.paths.config);
    let read = match read_bounded(&inputs.paths.config, CONFIG_MAX_BYTES) {
        Ok(text) => config::read(&name, &text.unwrap_or_default(), variables),
        Err(error) => {
            let message = format!("cannot be read: {error}");
            Err(vec![Issue { file: name, provider: None, level: IssueLevel::Error, message }])
        }
    };
    match (read, inputs.previous) {
        (Ok(read), _) => {
            issues.extend(read.warnings);
            Ok((read.settings, read.secrets))
        }
        (Err(errors), None) => Err(errors),
        (Err(errors), Some(previous)) => {
            issues.extend(errors);
            Ok((previous.settings.clone(), previous.secrets.clone()))
        }
    }
}

/// One provider text to read, and the last good one to fall back to.
struct Source {
    file: String,
    text: Result<Arc<str>, String>,
    bundled: bool,
}

fn read_providers(
    inputs: &Inputs<'_>,
    context: &mut Context<'_>,
    good: &mut Sources,
    issues: &mut Vec<Issue>,
) -> Vec<Provider> {
    let mut providers: Vec<Provider> = Vec::new();
    let mut origins: BTreeMap<Arc<str>, String> = BTreeMap::new();
    for source in sources(inputs, issues) {
        let issue =
            |level, message: String| Issue { file: source.file.clone(), provider: None, level, message };
        if providers.len() == PROVIDERS_MAX {
            issues.push(issue(
                IssueLevel::Error,
                format!("is not used: there are more than {PROVIDERS_MAX} files"),
            ));
            break;
        }
        let last_good = inputs.previous.and_then(|previous| previous.sources.get(&source.file));
        let read = match &source.text {
            Ok(text) => spec::read(&source.file, text, context),
            Err(error) => (None, vec![issue(IssueLevel::Error, error.clone())]),
        };
        let (provider, text) = match (read, last_good) {
            ((Some(provider), found), _) => {
                issues.extend(found);
                (provider, source.text.unwrap_or_default())
            }
            ((None, found), Some(last_good)) => {
                issues.extend(found);
                let (Some(provider), _) = spec::read(&source.file, last_good, context) else { continue };
                let message = "is not used as it stands; its last good version goes on".into();
                issues.push(issue(IssueLevel::Warning, message));
                (provider, Arc::clone(last_good))
            }
            ((None, found), None) => {
                issues.extend(found);
                continue;
            }
        };
        match origins.get(&provider.id) {
            // An owner's file under another name replaces the built-in one, and comes first in the list of sources.
            Some(_) if source.bundled => {}
            Some(first) => {
                let message =
                    format!("id: `{}` is taken by {first}; give this provider another id", provider.id);
                issues.push(issue(IssueLevel::Error, message));
            }
            None => {
                origins.insert(Arc::clone(&provider.id), source.file.clone());
                if !source.bundled {
                    good.insert(source.file, text);
                }
                providers.push(provider);
            }
        }
    }
    providers.sort_by(|a, b| a.id.cmp(&b.id));
    providers
}

/// The texts to read: the folder's files by name, then the built-in ones where they count.
fn sources(inputs: &Inputs<'_>, issues: &mut Vec<Issue>) -> Vec<Source> {
    let folder = &inputs.paths.providers;
    let bundled = || {
        BUNDLED.iter().map(|file| Source {
            file: file.file.into(),
            text: Ok(file.text.into()),
            bundled: true,
        })
    };
    let mut sources = match folder_sources(folder) {
        Ok(sources) => sources,
        Err(error) => {
            let had = inputs.previous.map(|previous| &previous.sources).filter(|sources| !sources.is_empty());
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            if missing && had.is_none() && !inputs.paths.providers_named {
                return bundled().collect();
            }
            let what = if had.is_some() { "its last good files go on" } else { "no provider is there" };
            let message = format!("the folder of provider files cannot be read ({error}); {what}");
            issues.push(Issue {
                file: folder.display().to_string(),
                provider: None,
                level: IssueLevel::Error,
                message,
            });
            let keep = |(file, text): (&String, &Arc<str>)| Source {
                file: file.clone(),
                text: Ok(Arc::clone(text)),
                bundled: false,
            };
            return had.into_iter().flatten().map(keep).collect();
        }
    };
    if folder.join(WITH_BUNDLED).exists() {
        let own: Vec<String> = sources.iter().map(|source| source.file.clone()).collect();
        sources.extend(bundled().filter(|source| !own.contains(&source.file)));
    }
    sources
}

/// The folder's files, sorted by name; names that begin with `_` or `.` and other kinds of files are left out.
fn folder_sources(folder: &Path) -> std::io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let file = file_name(&path);
        let named = file.ends_with(".json") && !file.starts_with(['_', '.']);
        if named && path.is_file() {
            let text = match read_bounded(&path, PROVIDER_FILE_MAX_BYTES) {
                Ok(Some(text)) => Ok(text.into()),
                // It went away between the listing and the reading.
                Ok(None) => continue,
                Err(error) => Err(format!("cannot be read: {error}")),
            };
            sources.push(Source { file, text, bundled: false });
        }
    }
    sources.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(sources)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
