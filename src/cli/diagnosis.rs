//! What `freeway doctor` makes of what it sees: findings, each with what is amiss, where, and what to do. Pure; what it is
//! handed was read elsewhere.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::backup::record::Record;
use crate::base::calendar;
use crate::base::clock::Now;
use crate::base::text::{closest, human_duration};
use crate::catalog::discovery::Discovered;
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{ModelSource, Provider};
use crate::catalog::settings::{AdminKey, ScanMode, Settings};
use crate::catalog::{Issue, IssueLevel, clients};
use crate::quota::{Bench, Cause, Scope};
use crate::route::live::Live;

/// How bad something is. The order is that of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The gateway does not start, does not serve, or loses what it should keep.
    Error,
    /// It works, but not as its owner would wish.
    Warning,
    /// Good to know.
    Note,
}

impl Severity {
    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// A word for programs.
    pub code: &'static str,
    /// A file, a provider, a setting.
    pub place: String,
    pub what: String,
    pub todo: String,
}

impl Finding {
    /// As `--json` has it.
    pub fn to_json(&self) -> Value {
        json!({
            "severity": self.severity.name(), "code": self.code, "where": self.place, "what": self.what,
            "do": self.todo,
        })
    }
}

/// A finding.
pub fn finding(
    severity: Severity,
    code: &'static str,
    place: impl Into<String>,
    what: impl Into<String>,
    todo: impl Into<String>,
) -> Finding {
    Finding { severity, code, place: place.into(), what: what.into(), todo: todo.into() }
}

use Severity::{Error, Note, Warning};

/// What the files hold that is wrong.
pub fn files(issues: &[Issue]) -> Vec<Finding> {
    let one = |issue: &Issue| {
        let severity = if issue.level == IssueLevel::Error { Error } else { Warning };
        let todo = match &issue.provider {
            Some(id) => format!("mend the file, then `freeway provider verify {id}`"),
            None => "mend it; `freeway config check` says when all is well".to_owned(),
        };
        finding(severity, "file", &issue.file, &issue.message, todo)
    };
    issues.iter().map(one).collect()
}

/// The clock: certificates and daily quotas hang on it.
pub fn clock(now: Now, built_s: u64, follows: Option<bool>) -> Option<Finding> {
    let todo = "have it set from the network: `sudo timedatectl set-ntp true`, then `timedatectl`";
    if now.wall_ms / 1_000 < built_s {
        let what = format!(
            "it shows {}, before this program was built: certificates and daily quotas go wrong",
            calendar::date(now.wall_ms)
        );
        return Some(finding(Error, "clock_behind", "clock", what, todo));
    }
    let what =
        "nothing keeps it right: it may drift, and a machine without a clock chip starts with a wrong time";
    (follows == Some(false)).then(|| finding(Warning, "clock_alone", "clock", what, todo))
}

/// Less room than this stops the gateway from saving within hours; less than that within weeks.
const SPACE_ERROR: u64 = 32 << 20;
const SPACE_WARNING: u64 = 512 << 20;

/// The room on the disk of the data folder.
pub fn space(data: &Path, free: Option<u64>, database: u64) -> Option<Finding> {
    let free = free?;
    let severity = match free {
        0..SPACE_ERROR => Error,
        SPACE_ERROR..SPACE_WARNING => Warning,
        _ => return None,
    };
    let mib = |bytes: u64| bytes >> 20;
    let what = format!("{} MiB are free on its disk; the history takes {} MiB", mib(free), mib(database));
    let todo = "free some space, or keep less history: `history.mib`, `history.days`";
    Some(finding(severity, "space", data.display().to_string(), what, todo))
}

/// A file or folder that is the owner's alone, as it was found.
#[derive(Clone, Debug)]
pub struct Private {
    pub path: PathBuf,
    pub mode: u32,
    pub is_folder: bool,
    /// Whether this user may write it.
    pub writable: bool,
}

/// Who may read and write what is private.
pub fn permissions(all: &[Private], runs: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for private in all {
        let path = private.path.display().to_string();
        let wanted = if private.is_folder { "700" } else { "600" };
        if private.mode & 0o077 != 0 {
            let what =
                format!("other users of this machine can look at it (mode {:03o})", private.mode & 0o777);
            findings.push(finding(Warning, "open_to_others", &path, what, format!("chmod {wanted} {path}")));
        }
        // A gateway that runs is another user, as a rule.
        if !private.writable && !runs {
            let what = "cannot be written by the user who asks";
            let todo = "run as the user of the gateway, or give it to them with `chown`";
            findings.push(finding(Error, "not_writable", &path, what, todo));
        }
    }
    findings
}

/// A data folder that the user who asks may not even list.
pub fn closed(data: &Path) -> Finding {
    let what = "the user who asks may not look into it, so that much was not seen";
    let todo = "run this as the user of the gateway, such as `sudo -u freeway freeway doctor`";
    finding(Error, "not_readable", data.display().to_string(), what, todo)
}

/// Providers that are mentioned by name.
const NAMED_MAX: usize = 6;

fn named(ids: &[&str]) -> String {
    let more = ids.len().saturating_sub(NAMED_MAX);
    let shown = ids.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// Whether anybody can be called, and who lacks what.
pub fn providers(all: &[Provider]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let enabled = || all.iter().filter(|provider| provider.enabled);
    if !enabled().any(Provider::configured) {
        let mut free = enabled().filter_map(|provider| Some((provider, provider.signup.as_deref()?)));
        let where_to = free.next().map_or_else(String::new, |(provider, signup)| {
            let variable = provider.env_keys.first().map_or("its variable", String::as_str);
            format!("; {} gives one at {signup}, for {variable}", provider.label)
        });
        let todo = format!("put a key into .env{where_to}; or try `freeway serve --demo`");
        findings.push(finding(Error, "no_provider", "providers", "no provider has a key yet", todo));
    }
    for provider in enabled() {
        let id = &*provider.id;
        if !provider.missing_vars.is_empty() && !provider.keys.is_empty() && !provider.env_keys.is_empty() {
            let missing = provider.missing_vars.join(", ");
            let what = format!("has a key, but not {missing}");
            findings.push(finding(Warning, "variable_missing", id, what, format!("set {missing} in .env")));
        } else if provider.configured() && provider.models.is_empty() {
            let todo =
                format!("`freeway provider refresh {id}`; without a model list, name models in its file");
            findings.push(finding(Warning, "no_models", id, "has a key, but no model is known", todo));
        }
    }
    let waiting: Vec<&str> = enabled()
        .filter(|provider| provider.keys.is_empty() && !provider.env_keys.is_empty())
        .map(|provider| &*provider.id)
        .collect();
    if !waiting.is_empty() {
        let what = format!("{} wait for a key: {}", waiting.len(), named(&waiting));
        findings.push(finding(
            Note,
            "no_key",
            "providers",
            what,
            "`freeway provider list` says where to get one",
        ));
    }
    findings
}

/// Declared models that the provider's own list does not have (any more).
pub fn stale_models(all: &[Provider], discovered: &Discovered) -> Vec<Finding> {
    let mut findings = Vec::new();
    for provider in all.iter().filter(|provider| provider.enabled && provider.configured()) {
        let Some(list) = discovered.lists.get(&*provider.id) else { continue };
        if list.base_url != provider.base_url || list.models.is_empty() {
            continue;
        }
        let declared = provider.models.iter().filter(|model| model.source == ModelSource::Declared);
        for model in declared.filter(|model| !list.models.iter().any(|found| found.id == *model.id)) {
            let near = closest(&model.id, list.models.iter().map(|found| found.id.as_str()));
            let hint = near.map(|near| format!("; did it become `{near}`?")).unwrap_or_default();
            let date = calendar::date(list.fetched_wall_ms);
            let what = format!("{} is not in the provider's list of {date}{hint}", model.id);
            let todo = format!("`freeway provider verify {} --validate --apply`", provider.id);
            findings.push(finding(Warning, "stale_model", &*provider.id, what, todo));
        }
    }
    findings
}

/// Keys and models that were refused, by the state that was saved.
pub fn benches(snapshot: &Snapshot, live: &Live, now: Now) -> Vec<Finding> {
    let catalog = &snapshot.catalog;
    let one = |bench: Bench| {
        let left = human_duration(bench.remaining_ms(now));
        let (slot, model) = match bench.scope {
            Scope::Key(slot) | Scope::KeyModel(slot, _) => (Some(slot), None),
            Scope::Model(slot) => (None, catalog.model_of(slot)),
            _ => (None, None),
        };
        let keys = || catalog.providers.iter().flat_map(|p| p.keys.iter().map(move |key| (p, key)));
        let key = slot.and_then(|slot| keys().find(|(_, key)| key.slot == slot));
        match (bench.cause, key, model) {
            (Cause::Auth, Some((provider, key)), _) => {
                let what = format!("key {} ({}) was refused; it rests for {left}", key.masked, key.source);
                let todo =
                    format!("put a valid one into {}; `freeway provider verify {}`", key.source, provider.id);
                Some(finding(Error, "key_refused", &*provider.id, what, todo))
            }
            (Cause::Credit, Some((provider, key)), _) => {
                let what = format!("key {} is out of credit; it rests for {left}", key.masked);
                Some(finding(Warning, "no_credit", &*provider.id, what, "top it up, or wait"))
            }
            (Cause::ModelMissing, _, Some(model)) => {
                let provider = model.reference.split('/').next().unwrap_or_default();
                let what = format!("{}: the provider says that there is no such model", model.id);
                let todo = format!("`freeway provider verify {provider} --validate --apply`");
                Some(finding(Warning, "stale_model", provider, what, todo))
            }
            _ => None,
        }
    };
    live.benches.list(now).into_iter().filter_map(one).collect()
}

/// Shortest key that is not guessed, and the fewest different characters of one.
const KEY_LENGTH_MIN: usize = 16;
const KEY_LETTERS_MIN: usize = 6;

fn is_weak(key: &str) -> bool {
    let letters: BTreeSet<char> = key.chars().collect();
    key.len() < KEY_LENGTH_MIN || letters.len() < KEY_LETTERS_MIN
}

/// What makes it easier for others than it should be.
pub fn settings(snapshot: &Snapshot) -> Vec<Finding> {
    let settings = &snapshot.settings;
    let mut findings = Vec::new();
    let mut add = |severity, code, place: &str, what: String, todo: &str| {
        findings.push(finding(severity, code, place, what, todo));
    };
    if let Some(problem) = settings.bind_problem() {
        if settings.keys_lost {
            let todo = "mend the file, restore a backup, or move it away and make new keys";
            add(Error, "keys_lost", clients::FILE, problem, todo);
        } else {
            let todo = "`freeway init --lan` makes a client key and an admin key";
            add(Error, "open_to_all", "host", problem, todo);
        }
    }
    let beyond = settings.needs_keys();
    for secret in snapshot.credentials().iter().filter(|secret| is_weak(secret.expose())) {
        let is_admin = settings.admin_key == Some(AdminKey::new(secret.expose()));
        let (place, whose) = if is_admin { ("adminKey", "the admin key") } else { ("keys", "a client key") };
        let severity = if beyond { Error } else { Warning };
        let what = format!(
            "{whose} is easily guessed: under {KEY_LENGTH_MIN} characters, or hardly any different ones"
        );
        let todo = if is_admin {
            "make a longer one, such as by `openssl rand -hex 24`"
        } else {
            "`freeway clients new NAME` makes a good one"
        };
        add(severity, "weak_key", place, what, todo);
    }
    if settings.keys.iter().any(|key| settings.admin_key.is_some_and(|admin| admin.sha256 == key.sha256)) {
        let what = "a client key is the admin key, so that every app has the owner's rights".to_owned();
        add(Error, "same_key", "adminKey", what, "make another one: `freeway clients new NAME`");
    }
    if beyond && settings.admin_key.is_none() {
        let what =
            "there is none, and others can reach this gateway: the page and /api refuse everybody".to_owned();
        add(
            Warning,
            "no_admin_key",
            "adminKey",
            what,
            "`freeway init --lan` makes one, or set FREEWAY_ADMIN_KEY",
        );
    }
    behind_a_proxy(settings, &mut add);
    if settings.guard.scan.mode == ScanMode::Off {
        let what = "prompts are not looked through for keys and personal data".to_owned();
        add(Note, "scan_off", "guard.scan.mode", what, "set it to `flag` to be told, to `block` to be safe");
    }
    if settings.allow_paid {
        let what = "models that cost money may be used".to_owned();
        add(Note, "paid", "allowPaid", what, "nothing, if you meant it");
    }
    findings
}

fn behind_a_proxy(settings: &Settings, add: &mut impl FnMut(Severity, &'static str, &str, String, &str)) {
    let keyless = settings.keys.is_empty();
    if keyless && !settings.trusted_proxies.is_empty() {
        let what = "a proxy brings in strangers, and no client key keeps them out".to_owned();
        add(Warning, "open_proxy", "trustedProxies", what, "make a key: `freeway init`");
    }
    if keyless && !settings.cors_origins.is_empty() {
        let what = format!("pages of {} can use it without a key", settings.cors_origins.join(", "));
        add(Warning, "open_origins", "corsOrigins", what, "make a key: `freeway init`");
    }
}

/// Backups: `plan` is `None` while they are off, an error when they cannot be made as they are set.
pub fn backups(plan: Option<Result<(), String>>, record: &Record) -> Option<Finding> {
    let of = |severity, code, what: String, todo| Some(finding(severity, code, "backup.target", what, todo));
    match plan {
        None => of(
            Warning,
            "no_backup",
            "there are none: what is lost with this disk is lost".into(),
            "name a folder on another disk, or an address: `backup.target`; see `freeway backup --help`",
        ),
        Some(Err(problem)) => of(
            Error,
            "backup_fault",
            format!("none can be made: {problem}"),
            "mend it; then `freeway backup`",
        ),
        Some(Ok(())) => match (&record.failed, record.last()) {
            (Some(failed), _) => {
                let date = calendar::date(failed.at);
                of(
                    Warning,
                    "backup_failed",
                    format!("the last one failed on {date}: {}", failed.error),
                    "mend it; then `freeway backup`",
                )
            }
            (None, None) => {
                of(Note, "backup_waits", "none was made yet".into(), "`freeway backup` makes one at once")
            }
            (None, Some(_)) => None,
        },
    }
}

/// Fewer descriptors than this let a busy home wait.
const DESCRIPTORS_FEW: u64 = 1_024;

/// What the machine grants.
pub fn machine(descriptors: u64, memory_folder: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if descriptors < DESCRIPTORS_FEW {
        let what = format!(
            "{descriptors} files may be open at once, enough for about {} connections",
            descriptors.saturating_sub(64) / 4
        );
        let todo = "raise it: `ulimit -n 4096`, or `LimitNOFILE=` of the service";
        findings.push(finding(Warning, "descriptors", "ulimit -n", what, todo));
    }
    if !memory_folder {
        let what =
            "there is no such folder in memory, so a kill may cost up to a minute of counters".to_owned();
        findings.push(finding(
            Note,
            "no_memory_folder",
            "/dev/shm",
            what,
            "mount a tmpfs there; containers: `--shm-size=16m`",
        ));
    }
    findings
}

/// What a gateway that runs has to tell, as `GET /api/alerts` has it.
pub fn alerts(body: &Value) -> Vec<Finding> {
    let one = |alert: &Value| {
        let text = |name: &str| alert[name].as_str().unwrap_or_default();
        if text("level") == "ok" {
            return None;
        }
        let severity = match (text("source"), text("level")) {
            // Free tiers run dry; others serve meanwhile.
            ("quota", _) | (_, "warn") => Warning,
            _ => Error,
        };
        let place = alert["providerId"].as_str().unwrap_or(text("source"));
        let todo = match text("source") {
            // The same was seen here.
            "registry" | "clock" | "backup" => return None,
            "key-health" if text("message").contains(" is unreachable") => {
                format!(
                    "nothing at the key: its provider fails, or the way to it; `freeway provider verify {place}`"
                )
            }
            "key-health" => format!("put a valid key in its place; `freeway provider verify {place}`"),
            "quota" => "wait, add a key, or lower its priority".to_owned(),
            "disk" => "look at the data folder; saving resumes by itself".to_owned(),
            "network" => "check the connection; the gateway tries again by itself".to_owned(),
            _ => "see it on the page".to_owned(),
        };
        Some(finding(severity, "alert", place, text("message"), todo))
    };
    body["alerts"].as_array().into_iter().flatten().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::record::{Failed, Kept};
    use crate::catalog::discovery::{DiscoveredList, DiscoveredModel};
    use crate::catalog::fixture;

    const DAY_MS: u64 = 86_400_000;
    const BUILT_S: u64 = 1_796_000_000;

    #[test]
    fn a_clock_is_judged_by_the_build_and_by_who_sets_it() {
        let check = |wall_ms: u64, follows, expected: Option<(Severity, &str)>| {
            let found = clock(Now::at(0, wall_ms), BUILT_S, follows);
            assert_eq!(
                found.map(|finding| (finding.severity, finding.code)),
                expected,
                "{wall_ms} {follows:?}"
            );
        };
        let built_ms = BUILT_S * 1_000;
        check(built_ms + DAY_MS, Some(true), None);
        check(built_ms + DAY_MS, None, None);
        check(built_ms + DAY_MS, Some(false), Some((Warning, "clock_alone")));
        check(built_ms - DAY_MS, Some(true), Some((Error, "clock_behind")));
        check(0, None, Some((Error, "clock_behind")));
    }

    #[test]
    fn room_and_descriptors_are_warned_of_before_they_run_out() {
        let check = |mib: u64, expected: Option<Severity>| {
            let found = space(Path::new("/data"), Some(mib << 20), 3 << 20);
            assert_eq!(found.map(|finding| finding.severity), expected, "{mib} MiB");
        };
        check(4_000, None);
        check(100, Some(Warning));
        check(10, Some(Error));
        assert_eq!(space(Path::new("/data"), None, 0), None);
        let codes = |descriptors, memory| {
            machine(descriptors, memory).into_iter().map(|finding| finding.code).collect::<Vec<_>>()
        };
        assert_eq!(
            (codes(4_096, true), codes(256, false)),
            (vec![], vec!["descriptors", "no_memory_folder"])
        );
    }

    #[test]
    fn what_is_private_is_nobody_elses() {
        let at = |mode, writable| {
            let private = Private { path: "/data/keys.json".into(), mode, is_folder: false, writable };
            let codes = |runs| {
                permissions(std::slice::from_ref(&private), runs)
                    .into_iter()
                    .map(|f| f.code)
                    .collect::<Vec<_>>()
            };
            (codes(false), codes(true))
        };
        assert_eq!(at(0o100_600, true), (vec![], vec![]));
        assert_eq!(at(0o100_640, true), (vec!["open_to_others"], vec!["open_to_others"]));
        assert_eq!(at(0o100_600, false), (vec!["not_writable"], vec![]));
    }

    #[test]
    fn keys_that_are_guessed_are_weak() {
        for weak in ["", "secret", "fw-0123456789", "aaaaaaaaaaaaaaaaaaaaaaaa", "abababababababababab"] {
            assert!(is_weak(weak), "{weak}");
        }
        assert!(!is_weak("fw-7f3a9b2c41d85e60"));
    }

    #[test]
    fn backups_are_missed_until_they_are_made() {
        let code = |plan, record: &Record| backups(plan, record).map(|finding| finding.code);
        let fresh = Record::default();
        assert_eq!(code(None, &fresh), Some("no_backup"));
        assert_eq!(code(Some(Err("there is no key".into())), &fresh), Some("backup_fault"));
        assert_eq!(code(Some(Ok(())), &fresh), Some("backup_waits"));
        let kept = vec![Kept { name: "freeway.backup".into(), at: 0, bytes: 1 }];
        let made = Record { kept, ..Record::default() };
        assert_eq!(code(Some(Ok(())), &made), None);
        let failed = Some(Failed { at: 0, error: "the disk is full".into() });
        assert_eq!(code(Some(Ok(())), &Record { failed, ..made }), Some("backup_failed"));
    }

    #[test]
    fn who_is_ready_and_who_waits() {
        let ready = json!({"id": "ready", "models": [{"id": "m"}]});
        let off = json!({"id": "off", "enabled": false, "models": [{"id": "m"}]});
        let codes = |files: &[Value]| {
            let catalog = fixture::catalog(files);
            providers(&catalog.providers).into_iter().map(|finding| finding.code).collect::<Vec<_>>()
        };
        assert_eq!(codes(&[ready.clone(), off.clone()]), Vec::<&str>::new());
        assert_eq!(codes(&[off]), ["no_provider"]);
        assert_eq!(codes(&[json!({"id": "empty", "models": []})]), ["no_models"]);
        let mut catalog = fixture::catalog(&[ready]);
        catalog.providers[0].keys.clear();
        catalog.providers[0].env_keys = vec!["READY_KEY".into()];
        let found = providers(&catalog.providers);
        assert_eq!(found.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["no_provider", "no_key"]);
        assert!(found[1].what.contains("ready"), "{found:?}");
    }

    #[test]
    fn models_that_a_list_has_lost_are_stale() {
        let catalog =
            fixture::catalog(&[json!({"id": "acme", "models": [{"id": "acme-70b"}, {"id": "kept"}]})]);
        let list = |base_url: &str, ids: &[&str]| {
            let models =
                ids.iter().map(|id| DiscoveredModel { id: (*id).into(), ..DiscoveredModel::default() });
            let list =
                DiscoveredList { fetched_wall_ms: 0, base_url: base_url.into(), models: models.collect() };
            Discovered { lists: [("acme".to_owned(), list)].into() }
        };
        let base_url = catalog.providers[0].base_url.clone();
        let found = stale_models(&catalog.providers, &list(&base_url, &["acme-72b", "kept"]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains("acme-70b") && found[0].what.contains("`acme-72b`"), "{found:?}");
        assert!(stale_models(&catalog.providers, &list("https://elsewhere.example", &["x"])).is_empty());
        assert!(stale_models(&catalog.providers, &list(&base_url, &[])).is_empty(), "no list says nothing");
    }

    #[test]
    fn alerts_of_a_gateway_become_findings() {
        let alert = |level: &str, source: &str, provider: Value| json!({"level": level, "source": source, "message": "m", "providerId": provider});
        let body = json!({"alerts": [
            alert("critical", "key-health", json!("acme")),
            alert("exhausted", "quota", json!("acme")),
            alert("warn", "scan", Value::Null),
            alert("critical", "registry", Value::Null),
            alert("ok", "scan", Value::Null),
        ]});
        let found: Vec<(Severity, String)> =
            alerts(&body).into_iter().map(|finding| (finding.severity, finding.place)).collect();
        assert_eq!(found, [(Error, "acme".into()), (Warning, "acme".into()), (Warning, "scan".into())]);
        let away = json!({"level": "critical", "source": "key-health", "message": "acme: key a…b is unreachable", "providerId": "acme"});
        assert!(alerts(&json!({"alerts": [away]}))[0].todo.starts_with("nothing at the key"));
        assert!(alerts(&Value::Null).is_empty());
    }
}
