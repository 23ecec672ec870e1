//! Reads everything the owner wrote, files and variables, into one [`Snapshot`]. A provider file that turned bad keeps
//! its last good version, a folder that vanished keeps its last good set, a bad configuration keeps the last good
//! settings, an unreadable `.env` its variables; each is an issue. Only a first start with one of the last two is refused.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::client_key::{ClientKey, ClientSource};
use super::config::Origins;
use super::discovery::{self, Discovered};
use super::env::{self, Paths, Variables, read_bounded};
use super::names::Names;
use super::overrides::{self, Overrides};
use super::pool::Fingerprints;
use super::provider::Provider;
use super::settings::{AdminKey, Settings};
use super::slots::Slots;
use super::spec::{self, Context};
use super::vault::{self, Sealer, Vault};
use super::{Catalog, Issue, IssueLevel, boxfile, bundled, clients, config};
use crate::base::redact::Redactor;
use crate::base::text::Secret;

/// Everything configured, immutable. One request uses one snapshot from start to end.
#[derive(Debug)]
pub struct Snapshot {
    pub catalog: Catalog,
    pub settings: Settings,
    /// Which of them were set, and where.
    pub origins: Origins,
    /// Resolves model strings; made for this very catalog.
    pub names: Names,
    pub redactor: Redactor,
    /// Provider keys that were pasted; they stand in the pools of their providers already.
    pub pasted: Vault,
    /// Under which pasted keys are sealed.
    pub passphrase: Option<Secret>,
    /// Under which backups are sealed, where a variable sets it.
    pub backup_key: Option<Secret>,
    /// What the owner changed beside the files; counted in already.
    pub overrides: Overrides,
    /// The names of the configuration alone, for what is to be overridden next.
    pub configured_names: overrides::Names,
    pub issues: Vec<Issue>,
    /// Where all of it was read.
    pub paths: Paths,
    /// Grows with each load of this process.
    pub id: u64,
    /// The last good text of each provider file of the owner.
    sources: Sources,
    /// Which file each provider comes from.
    files: BTreeMap<Arc<str>, String>,
    /// Credentials of the configuration, kept for the case that its next version is bad.
    secrets: Vec<Secret>,
    /// The variables of the `.env` file, for the same case.
    env_file: OfFile,
}

/// Variables that may hold keys, and are never shown.
struct OfFile(Variables);

impl std::fmt::Debug for OfFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OfFile({} variables)", self.0.len())
    }
}

impl Snapshot {
    /// The name of the file that a provider comes from, and its text as it was read; no text for a built-in file.
    pub fn file_of(&self, id: &str) -> Option<(&str, Option<&str>)> {
        let file = self.files.get(id)?;
        Some((file, self.sources.get(file).map(|text| &**text)))
    }

    /// The keys of clients and of the owner, as far as they are known in plain.
    pub fn credentials(&self) -> &[Secret] {
        &self.secrets
    }

    /// The owner's key, for who has to present it.
    pub fn admin_key(&self) -> Option<&Secret> {
        let known = self.settings.admin_key?;
        self.secrets.iter().find(|secret| AdminKey::new(secret.expose()) == known)
    }
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
    let mut issues = Vec::new();
    let env_file = read_env_file(inputs, &mut issues)?;
    let variables = env::over(inputs.process, env_file.clone());
    let Configured { mut settings, secrets, origins } = read_settings(inputs, &variables, &mut issues)?;
    read_client_keys(inputs, &mut settings, &mut issues);
    if let Some(previous) = inputs.previous {
        keep_what_listens(&mut settings, &previous.settings, &inputs.paths.config, &mut issues);
    }
    let passphrase = vault::passphrase(&variables);
    let mut pasted = sealer(inputs, passphrase).read();
    if let Some(previous) = inputs.previous.filter(|_| pasted.is_lost) {
        pasted.keys.clone_from(&previous.pasted.keys);
        pasted.issues.iter_mut().for_each(|issue| issue.message.push_str("; the last good keys go on"));
    }
    issues.append(&mut pasted.issues);
    let mut sources = Sources::new();
    let mut context = Context {
        variables: &variables,
        settings: &settings,
        fingerprints: inputs.fingerprints,
        pasted: &pasted,
        slots,
    };
    let (mut providers, files) = read_providers(inputs, &mut context, &mut sources, &mut issues);
    for provider in &mut providers {
        if let Some(list) = inputs.discovered.lists.get(&*provider.id).filter(|_| settings.discovery.enabled)
        {
            discovery::merge(provider, list, slots);
        }
    }
    let configured_names = overrides::Names::of(&settings);
    let overrides = read_overrides(inputs, &configured_names, &mut issues);
    issues.extend(overrides.apply(&mut providers, &mut settings));
    let keys = providers.iter().flat_map(|provider| &provider.keys).map(|key| key.secret.clone());
    let woven = woven_secrets(&providers, &variables);
    // Those of providers that are not there, too.
    let sealed = pasted.keys.iter().map(|key| key.secret.clone()).chain(passphrase.map(Secret::new));
    let backup_key = backup_key(&variables);
    let sealed = sealed.chain(backup_key.clone());
    issues.extend(backup_key.as_ref().and_then(short_backup_key));
    let redactor = Redactor::new(keys.chain(secrets.iter().cloned()).chain(woven).chain(sealed));
    for issue in &mut issues {
        // Messages quote what is wrong.
        issue.message = redactor.redact(&issue.message).into_owned();
    }
    let catalog = Catalog { providers };
    Ok(Snapshot {
        names: Names::regrouped(&catalog, &overrides.regroup),
        catalog,
        settings,
        redactor,
        passphrase: passphrase.map(Secret::new),
        backup_key,
        pasted,
        overrides,
        configured_names,
        issues,
        paths: inputs.paths.clone(),
        id: inputs.previous.map_or(1, |previous| previous.id + 1),
        sources,
        files,
        secrets,
        origins,
        env_file: OfFile(env_file),
    })
}

/// The variables of the `.env` file; the last good ones where it cannot be read. Without any it is not known whom they
/// would have kept out, so that a first load refuses.
fn read_env_file(inputs: &Inputs<'_>, issues: &mut Vec<Issue>) -> Result<Variables, Vec<Issue>> {
    match (env::read_file(&inputs.paths.env_file), inputs.previous) {
        (Ok((variables, odd)), _) => {
            issues.extend(odd);
            Ok(variables)
        }
        (Err(issue), None) => Err(vec![issue]),
        (Err(mut issue), Some(previous)) => {
            issue.message.push_str("; the last good variables go on");
            issues.push(issue);
            Ok(previous.env_file.0.clone())
        }
    }
}

/// Adds the client keys of the data folder. Where its file has a fault, the last good ones go on; at a first load those
/// that can be read are all there are, and with none at all nobody may be let in.
fn read_client_keys(inputs: &Inputs<'_>, settings: &mut Settings, issues: &mut Vec<Issue>) {
    let (keys, mut faults) = clients::read(&inputs.paths.data);
    let mut keys: Vec<Arc<ClientKey>> = keys.into_iter().map(Arc::new).collect();
    settings.keys_lost = !faults.is_empty();
    if let Some(previous) = inputs.previous.filter(|_| settings.keys_lost) {
        let of_file = |key: &&Arc<ClientKey>| key.source == ClientSource::File;
        keys = previous.settings.keys.iter().filter(of_file).cloned().collect();
        faults.iter_mut().for_each(|fault| fault.message.push_str("; the last good keys go on"));
    }
    issues.extend(faults);
    for key in keys {
        if !settings.keys.iter().any(|known| known.sha256 == key.sha256) {
            settings.keys.push(key);
        }
    }
}

/// The variable that holds the key of backups.
pub const BACKUP_KEY_VARIABLE: &str = "FREEWAY_BACKUP_KEY";

/// Shortest key of backups that is taken, in characters.
const BACKUP_KEY_MIN: usize = 16;

fn short_backup_key(key: &Secret) -> Option<Issue> {
    let message = backup_key_problem(key.expose())?;
    Some(Issue { file: "environment".into(), provider: None, level: IssueLevel::Error, message })
}

/// What is wrong with a key of backups.
pub fn backup_key_problem(key: &str) -> Option<String> {
    let short = key.chars().count() < BACKUP_KEY_MIN;
    short.then(|| {
        format!("{BACKUP_KEY_VARIABLE} is shorter than {BACKUP_KEY_MIN} characters; choose a longer one")
    })
}

/// The key of backups, where the variable sets one.
pub fn backup_key(variables: &Variables) -> Option<Secret> {
    let text = variables.get(BACKUP_KEY_VARIABLE).map(|key| key.trim());
    text.filter(|key| !key.is_empty()).map(Secret::new)
}

/// What opens pasted keys.
fn sealer<'a>(inputs: &'a Inputs<'_>, passphrase: Option<&'a str>) -> Sealer<'a> {
    Sealer { data: &inputs.paths.data, fingerprints: inputs.fingerprints, passphrase }
}

/// The overrides of the data folder; the last good ones where they refuse.
fn read_overrides(inputs: &Inputs<'_>, configured: &overrides::Names, issues: &mut Vec<Issue>) -> Overrides {
    let read = overrides::read_file(&inputs.paths.data);
    let faults = match read.map(|read| (read.conflict(configured), read)) {
        Ok((None, read)) => return read,
        Ok((Some(conflict), _)) => vec![conflict],
        Err(faults) => faults,
    };
    let kept = match inputs.previous {
        Some(_) => "; the last good ones go on",
        None => "; nothing is overridden until it is mended",
    };
    issues.extend(faults.into_iter().map(|fault| Issue {
        file: overrides::FILE.into(),
        provider: None,
        level: IssueLevel::Error,
        message: format!("{fault}{kept}"),
    }));
    inputs.previous.map(|previous| previous.overrides.clone()).unwrap_or_default()
}

/// The process goes on listening where it does, and a gateway that others can reach never loses its last client key.
fn keep_what_listens(settings: &mut Settings, before: &Settings, config: &Path, issues: &mut Vec<Issue>) {
    let mut issue = |level, message: String| {
        issues.push(Issue { file: file_name(config), provider: None, level, message });
    };
    if (&settings.host, settings.port) != (&before.host, before.port) {
        issue(IssueLevel::Warning, "host, port: another address is listened on after a restart".into());
        (settings.host, settings.port) = (before.host.clone(), before.port);
    }
    if let Some(problem) = settings.bind_problem() {
        issue(IssueLevel::Error, format!("{problem}; until then the keys of before count"));
        settings.keys.clone_from(&before.keys);
    }
}

/// Values of variables that stand in headers and addresses of providers: credentials and account ids, as far as they
/// look like one and not like a host or a word.
fn woven_secrets(providers: &[Provider], variables: &Variables) -> Vec<Secret> {
    const SHORTEST: usize = 12;
    let looks_like_one = |value: &&String| {
        value.len() >= SHORTEST && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    let woven = |value: &&String| {
        providers.iter().any(|provider| {
            let headers = provider.headers.iter().map(|(_, header)| header);
            headers.chain([&provider.base_url]).any(|text| text.contains(value.as_str()))
        })
    };
    variables.values().filter(looks_like_one).filter(woven).map(|value| Secret::new(value.as_str())).collect()
}

/// What the configuration comes to.
struct Configured {
    settings: Settings,
    secrets: Vec<Secret>,
    origins: Origins,
}

/// The settings alone, for what has to be known before everything else can be read.
///
/// # Errors
/// What a load would refuse.
pub fn settings(config: &Path, variables: &Variables) -> Result<Settings, Vec<Issue>> {
    read_config(config, variables).map(|read| read.settings)
}

fn read_config(path: &Path, variables: &Variables) -> Result<config::Read, Vec<Issue>> {
    let name = file_name(path);
    match read_bounded(path, CONFIG_MAX_BYTES) {
        Ok(text) => config::read(&name, &text.unwrap_or_default(), variables),
        Err(error) => {
            let message = format!("cannot be read: {error}");
            Err(vec![Issue { file: name, provider: None, level: IssueLevel::Error, message }])
        }
    }
}

fn read_settings(
    inputs: &Inputs<'_>,
    variables: &Variables,
    issues: &mut Vec<Issue>,
) -> Result<Configured, Vec<Issue>> {
    match (read_config(&inputs.paths.config, variables), inputs.previous) {
        (Ok(read), _) => {
            issues.extend(read.warnings);
            Ok(Configured { settings: read.settings, secrets: read.secrets, origins: read.origins })
        }
        (Err(errors), None) => Err(errors),
        (Err(errors), Some(previous)) => {
            issues.extend(errors);
            let (mut settings, secrets) = (previous.settings.clone(), previous.secrets.clone());
            // What the data folder adds is read anew: a key that was revoked meanwhile must not live on.
            settings.keys.retain(|key| key.source != ClientSource::File);
            previous.configured_names.clone().put(&mut settings);
            Ok(Configured { settings, secrets, origins: previous.origins.clone() })
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
) -> (Vec<Provider>, BTreeMap<Arc<str>, String>) {
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
                let provider = Some(provider.id.to_string());
                issues.push(Issue { provider, ..issue(IssueLevel::Error, message) });
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
    (providers, origins)
}

/// The texts to read: the folder's files by name, then the built-in ones where they count.
fn sources(inputs: &Inputs<'_>, issues: &mut Vec<Issue>) -> Vec<Source> {
    let folder = &inputs.paths.providers;
    let bundled = || {
        let files = bundled::files().into_iter();
        files.map(|file| Source { file: file.file, text: Ok(file.text.into()), bundled: true })
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
    if sources.is_empty() {
        let message = format!(
            "holds no provider file, so that there is no provider; remove the folder to have the built-in ones, \
             or put an empty file `{WITH_BUNDLED}` into it to have them beside your own"
        );
        let file = folder.display().to_string();
        issues.push(Issue { file, provider: None, level: IssueLevel::Warning, message });
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

/// Where fetched model lists are kept, below the data folder.
const DISCOVERED_FILE: &str = "discovered.json";
const DISCOVERED_MAX_BYTES: u64 = 64 << 20;

/// The model lists of the last run. What cannot be read is as good as never fetched.
pub fn read_discovered(data: &Path) -> Discovered {
    let text = read_bounded(&data.join(DISCOVERED_FILE), DISCOVERED_MAX_BYTES).ok().flatten();
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Keeps the model lists for the next start.
pub fn write_discovered(data: &Path, discovered: &Discovered) -> std::io::Result<()> {
    let text = serde_json::to_vec(discovered).map_err(std::io::Error::other)?;
    boxfile::write_private(&data.join(DISCOVERED_FILE), &text)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::discovery::{DiscoveredList, DiscoveredModel};
    use crate::catalog::names::Kind;
    use std::fs;

    /// A root folder with a gateway's files, loaded again and again.
    struct Site {
        folder: tempfile::TempDir,
        process: Variables,
        slots: Slots,
        discovered: Discovered,
        fingerprints: Fingerprints,
    }

    impl Site {
        fn new() -> Site {
            let folder = tempfile::tempdir().expect("a folder");
            fs::create_dir(folder.path().join("providers")).expect("made");
            let process = Variables::from([("ACME_KEY".into(), "test-key-1".into())]);
            let fingerprints = Fingerprints::new(&[7; 32]);
            Site { folder, process, slots: Slots::default(), discovered: Discovered::default(), fingerprints }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.folder.path().join(name), text).expect("written");
        }

        fn acme(&self, file: &str, id: &str, model: &str) {
            let text = format!(
                r#"{{"id": "{id}", "baseUrl": "https://acme.example/v1", "auth": {{"envKeys": ["ACME_KEY"]}}, "models": [{{"id": "{model}"}}]}}"#
            );
            self.write(&format!("providers/{file}"), &text);
        }

        fn try_load(&mut self, previous: Option<&Snapshot>) -> Result<Snapshot, Vec<Issue>> {
            let paths = env::places(&self.process, self.folder.path());
            let inputs = Inputs {
                paths: &paths,
                process: &self.process,
                fingerprints: &self.fingerprints,
                discovered: &self.discovered,
                previous,
            };
            load(&inputs, &mut self.slots)
        }

        fn load(&mut self, previous: Option<&Snapshot>) -> Snapshot {
            self.try_load(previous).expect("a snapshot")
        }
    }

    fn models(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.catalog.all().map(|at| &*snapshot.catalog.model(at).reference).collect()
    }

    fn issues(snapshot: &Snapshot) -> String {
        snapshot.issues.iter().map(|issue| format!("{}: {}\n", issue.file, issue.message)).collect()
    }

    #[test]
    fn a_folder_is_the_whole_set_and_is_read_by_name() {
        let mut site = Site::new();
        site.acme("b.json", "beta", "m");
        site.acme("a.json", "zeta", "m");
        site.acme("_off.json", "off", "m");
        site.acme(".hidden.json", "hidden", "m");
        site.write("providers/readme.txt", "no provider");
        fs::create_dir(site.folder.path().join("providers/dir.json")).expect("made");
        let snapshot = site.load(None);
        assert_eq!(
            (models(&snapshot), issues(&snapshot).as_str(), snapshot.id),
            (vec!["beta/m", "zeta/m"], "", 1)
        );
    }

    #[test]
    fn without_a_folder_the_built_in_files_count() {
        let mut site = Site::new();
        fs::remove_dir(site.folder.path().join("providers")).expect("gone");
        let snapshot = site.load(None);
        assert_eq!(snapshot.catalog.providers.len(), bundled::files().len());
        assert_eq!(issues(&snapshot), "");
        site.process.insert("FREEWAY_PROVIDERS".into(), "elsewhere".into());
        let snapshot = site.load(None);
        assert!(snapshot.catalog.providers.is_empty() && issues(&snapshot).contains("cannot be read"));
    }

    #[test]
    fn a_marker_keeps_the_built_in_files_beside_those_of_the_folder() {
        let mut site = Site::new();
        site.write(&format!("providers/{WITH_BUNDLED}"), "");
        site.acme("acme.json", "acme", "m");
        site.acme("mine.json", "groq", "replaced");
        let snapshot = site.load(None);
        assert_eq!(
            (snapshot.catalog.providers.len(), issues(&snapshot).as_str()),
            (bundled::files().len() + 1, "")
        );
        assert!(models(&snapshot).contains(&"groq/replaced") && models(&snapshot).contains(&"acme/m"));
    }

    #[test]
    fn d_a_file_that_turns_bad_keeps_its_last_good_version() {
        let mut site = Site::new();
        site.acme("acme.json", "acme", "old");
        let first = site.load(None);
        site.write("providers/acme.json", "{ \"id\": \"acme\", ");
        site.acme("other.json", "other", "m");
        let second = site.load(Some(&first));
        assert_eq!(models(&second), ["acme/old", "other/m"]);
        assert!(
            issues(&second).contains("acme.json: line 1") && issues(&second).contains("last good version")
        );
        // It goes on for as long as the file is bad, with the variables of the day.
        site.process.insert("ACME_KEY".into(), "test-key-2".into());
        let third = site.load(Some(&second));
        assert_eq!(third.catalog.providers[0].keys[0].secret.expose(), "test-key-2");
        site.acme("acme.json", "acme", "new");
        let fourth = site.load(Some(&third));
        assert_eq!(
            (models(&fourth), issues(&fourth).as_str(), fourth.id),
            (vec!["acme/new", "other/m"], "", 4)
        );
        fs::remove_file(site.folder.path().join("providers/acme.json")).expect("gone");
        assert_eq!(models(&site.load(Some(&fourth))), ["other/m"]);
    }

    #[test]
    fn a_file_that_was_never_good_is_left_out_and_told() {
        let mut site = Site::new();
        site.write("providers/bad.json", r#"{"id": "bad"}"#);
        site.acme("good.json", "good", "m");
        let snapshot = site.load(None);
        assert_eq!(models(&snapshot), ["good/m"]);
        assert!(issues(&snapshot).contains("bad.json: baseUrl: is missing"), "{}", issues(&snapshot));
        assert_eq!(snapshot.issues[0].provider.as_deref(), Some("bad"));
    }

    #[test]
    fn d_a_folder_that_vanishes_keeps_its_last_good_set() {
        let mut site = Site::new();
        site.acme("acme.json", "acme", "m");
        let first = site.load(None);
        fs::remove_dir_all(site.folder.path().join("providers")).expect("gone");
        let second = site.load(Some(&first));
        assert!(
            models(&second) == ["acme/m"] && issues(&second).contains("last good files go on"),
            "{}",
            issues(&second)
        );
        assert_eq!(models(&site.load(Some(&second))), ["acme/m"]);
    }

    #[test]
    fn an_id_is_taken_once() {
        let mut site = Site::new();
        site.acme("a.json", "acme", "first");
        site.acme("b.json", "acme", "second");
        let snapshot = site.load(None);
        assert_eq!(models(&snapshot), ["acme/first"]);
        assert!(issues(&snapshot).contains("b.json: id: `acme` is taken by a.json"));
    }

    #[test]
    fn a_bad_configuration_refuses_at_first_and_is_passed_over_later() {
        let mut site = Site::new();
        site.write("freeway.config.json", r#"{"port": 9, "maxAttempts": "x"}"#);
        let errors = site.try_load(None).expect_err("it refuses");
        assert!(errors[0].message.starts_with("maxAttempts: must be"));
        site.write("freeway.config.json", r#"{"port": 9} // fine"#);
        let first = site.load(None);
        site.write("freeway.config.json", r#"{"port": 10, "keys": [1]}"#);
        let second = site.load(Some(&first));
        assert!(second.settings.port == 9 && issues(&second).contains("keys[0]"));
    }

    #[test]
    fn a_reload_neither_moves_nor_opens_what_listens() {
        let mut site = Site::new();
        site.write(".env", "HOST=0.0.0.0\nPORT=9\nFREEWAY_KEYS=fw-test-key");
        let first = site.load(None);
        site.write(".env", "HOST=127.0.0.1\nPORT=10\nFREEWAY_KEYS=fw-test-key");
        let second = site.load(Some(&first));
        assert_eq!((second.settings.host.as_str(), second.settings.port), ("0.0.0.0", 9));
        assert!(issues(&second).contains("after a restart"), "{}", issues(&second));
        site.write(".env", "HOST=0.0.0.0\nPORT=9");
        let third = site.load(Some(&second));
        assert_eq!(third.settings.keys.len(), 1, "it never becomes open");
        assert!(issues(&third).contains("FREEWAY_KEYS"), "{}", issues(&third));
    }

    #[test]
    fn an_env_file_that_cannot_be_read_takes_no_key_away() {
        let mut site = Site::new();
        site.write(
            ".env",
            "FREEWAY_KEYS=fw-test-key\nFREEWAY_ADMIN_KEY=fw-admin-key\nFREEWAY_PROVIDERS=mine\n",
        );
        fs::create_dir(site.folder.path().join("mine")).expect("made");
        let first = site.load(None);
        fs::write(site.folder.path().join(".env"), b"# f\xfcr\nFREEWAY_KEYS=fw-test-key\n").expect("written");
        let second = site.load(Some(&first));
        assert_eq!((second.settings.keys.len(), second.settings.admin_key.is_some()), (1, true));
        assert!(
            issues(&second).contains(".env: cannot be read: is not UTF-8; the last good variables go on")
        );
        assert!(!format!("{second:?}").contains("fw-admin-key"));
        assert_eq!(site.load(Some(&second)).settings.keys.len(), 1, "for as long as it lasts");
        let refused = site.try_load(None).expect_err("nobody knows whom it would keep out");
        assert_eq!(refused[0].file, ".env");
    }

    #[test]
    fn a_damaged_file_of_client_keys_never_opens_the_door() {
        let mut site = Site::new();
        let data = site.folder.path().join("data");
        let key = clients::add(&data, "phone", Default::default(), 1).expect("a key").0;
        let first = site.load(None);
        let whole = fs::read_to_string(data.join(clients::FILE)).expect("the file");
        for bad in ["", "{ cut", "[]", &whole.replace("sha256", "sha")] {
            fs::write(data.join(clients::FILE), bad).expect("written");
            let next = site.load(Some(&first));
            assert_eq!(next.settings.keys, first.settings.keys, "{bad}");
            assert!(
                issues(&next).contains("the last good keys go on") && next.settings.bind_problem().is_none()
            );
            assert_eq!(site.load(Some(&next)).settings.keys.len(), 1, "for as long as it lasts");
            // Nothing is known of before: nobody is let in, on loopback neither.
            let fresh = site.load(None);
            assert!(
                fresh.settings.bind_problem().is_some_and(|problem| problem.contains(clients::FILE)),
                "{bad}"
            );
        }
        // Other keys keep the door.
        site.process.insert("FREEWAY_KEYS".into(), key);
        let kept = site.load(None);
        assert!(kept.settings.bind_problem().is_none());
        site.process.remove("FREEWAY_KEYS");
        assert_eq!(site.load(Some(&kept)).settings.keys.len(), 1, "the last one stays");
    }

    #[test]
    fn a_bad_configuration_keeps_no_revoked_key_and_no_removed_override() {
        let mut site = Site::new();
        let data = site.folder.path().join("data");
        clients::add(&data, "phone", Default::default(), 1).expect("a key");
        clients::add(&data, "desk", Default::default(), 1).expect("a key");
        fs::write(data.join(overrides::FILE), r#"{"aliases": {"mine": "acme/m"}}"#).expect("written");
        let first = site.load(None);
        assert!(first.settings.aliases.contains_key("mine"));
        site.write("freeway.config.json", r#"{"port": "many"}"#);
        let second = site.load(Some(&first));
        assert_eq!((second.settings.keys.len(), second.settings.aliases.len()), (2, 1));
        clients::revoke(&data, "phone").expect("written");
        fs::write(data.join(overrides::FILE), "{}").expect("written");
        let third = site.load(Some(&second));
        let names: Vec<&str> = third.settings.keys.iter().map(|key| &*key.name).collect();
        assert_eq!((names, third.settings.aliases.len()), (vec!["desk"], 0));
    }

    #[test]
    fn d_the_env_file_is_read_at_each_load() {
        let mut site = Site::new();
        site.process.clear();
        site.acme("acme.json", "acme", "m");
        let first = site.load(None);
        assert!(!first.catalog.providers[0].configured());
        site.write(".env", "ACME_KEY=\"test-key-9\" # mine\nFREEWAY_STRATEGY=fastest\n");
        let second = site.load(Some(&first));
        assert_eq!(second.catalog.providers[0].keys[0].secret.expose(), "test-key-9");
        assert_eq!(second.settings.strategy.name(), "fastest");
        assert!(!second.redactor.redact("with test-key-9 inside").contains("test-key-9"));
    }

    #[test]
    fn account_ids_and_secrets_of_headers_are_redacted() {
        let mut site = Site::new();
        site.process.insert("ACCOUNT".into(), "0123456789abcdef".into());
        site.process.insert("TOKEN".into(), "plain-token-of-a-header".into());
        let file = r#"{"id": "acme", "baseUrl": "https://acme.example/${ACCOUNT}/v1", "auth": {"type": "none"},
            "headers": {"x-token": "t ${TOKEN}"}}"#;
        site.write("providers/acme.json", file);
        let snapshot = site.load(None);
        let text = snapshot.redactor.redact("no route /0123456789abcdef/v1 with plain-token-of-a-header");
        assert!(!text.contains("0123456789abcdef") && !text.contains("plain-token-of-a-header"), "{text}");
        assert!(text.starts_with("no route /"), "{text}");
    }

    #[test]
    fn c3_slots_and_ids_outlive_a_reload() {
        let mut site = Site::new();
        site.process.insert("ACME_KEY".into(), "test-key-1,test-key-2".into());
        site.acme("acme.json", "acme", "m");
        let first = site.load(None);
        site.process.insert("ACME_KEY".into(), "test-key-0,test-key-2,test-key-1".into());
        let second = site.load(Some(&first));
        let (old, new) = (&first.catalog.providers[0], &second.catalog.providers[0]);
        assert_eq!((old.keys[0].slot, &old.keys[0].id), (new.keys[2].slot, &new.keys[2].id));
        assert_eq!(old.keys[1].slot, new.keys[1].slot);
        assert_eq!(old.models[0].slot, new.models[0].slot);
    }

    #[test]
    fn w3_a_provider_without_models_routes_what_was_discovered() {
        let mut site = Site::new();
        let file =
            r#"{"id": "acme", "baseUrl": "https://acme.example/v1", "auth": {"envKeys": ["ACME_KEY"]}}"#;
        site.write("providers/acme.json", file);
        let models =
            vec![DiscoveredModel { id: "found".into(), caps: vec!["chat".into()], ..Default::default() }];
        let list = DiscoveredList { fetched_wall_ms: 1, base_url: "https://acme.example/v1".into(), models };
        site.discovered.lists.insert("acme".into(), list);
        write_discovered(site.folder.path(), &site.discovered).expect("written");
        site.discovered = read_discovered(site.folder.path());
        let snapshot = site.load(None);
        let found = snapshot.names.resolve(&snapshot.catalog, &snapshot.settings, "", Kind::Chat);
        assert_eq!(found.models.len(), 1);
        site.write("discovered.json", "{ cut");
        assert_eq!(read_discovered(site.folder.path()), Discovered::default());
    }

    #[test]
    fn keys_of_the_clients_file_count() {
        let mut site = Site::new();
        let key =
            clients::add(&site.folder.path().join("data"), "phone", Default::default(), 1).expect("a key").0;
        let snapshot = site.load(None);
        assert_eq!(snapshot.settings.keys.len(), 1);
        site.process.insert("FREEWAY_KEYS".into(), key);
        assert_eq!(site.load(None).settings.keys.len(), 1);
    }
}
