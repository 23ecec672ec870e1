//! Reads `freeway.config.json` and the variables into [`Settings`], strictly: a wrong type or value refuses and says
//! where, an unknown key is a warning with a suggestion. Pure: text and variables in, settings out.
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::check::{check, parse_sha256, reserved_names, value_of};
use super::client_key::{ClientKey, ClientLimits, ClientRules, ClientSource};
use super::fields::{shown, whole};
use super::json;
use super::settings::*;
use super::table::{self, TABLE};
use super::{Issue, IssueLevel};
use crate::base::text::{Secret, closest};

/// What callers may have beyond loopback where nothing is set: far more than people at home ask for, and little enough
/// that an app that runs wild leaves something to the others.
const KEY_RPM: u64 = 120;
const KEY_CONCURRENCY: u64 = 8;
const ADDRESS_RPM: u64 = 240;
const ADDRESS_CONCURRENCY: u64 = 16;

/// Settings that hold, what was found about them, and every client credential seen in plain.
#[derive(Debug)]
pub struct Read {
    pub settings: Settings,
    pub warnings: Vec<Issue>,
    /// For the redactor.
    pub secrets: Vec<Secret>,
    /// What was set, by name, and where.
    pub origins: Origins,
}

/// Settings that are not at their default.
pub type Origins = BTreeMap<&'static str, Set>;

/// A setting that was set.
#[derive(Clone, Debug)]
pub struct Set {
    /// As it may be shown: nothing of a credential, the number of client keys.
    pub value: Value,
    pub origin: Origin,
}

/// Where a setting was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    File,
    /// By the variable of this name.
    Variable(&'static str),
}

/// Reads a configuration. `text` is the file's, empty when there is none; `file` its name for messages.
pub fn read(file: &str, text: &str, variables: &BTreeMap<String, String>) -> Result<Read, Vec<Issue>> {
    let mut reader = Reader {
        file,
        issues: Vec::new(),
        values: BTreeMap::new(),
        by_variable: BTreeMap::new(),
        key_source: ClientSource::Config,
    };
    if !text.trim().is_empty() {
        match json::parse(text) {
            Ok(Value::Object(map)) => reader.walk(&map, ""),
            Ok(_) => reader.error("must be an object"),
            Err(error) => reader.error(&error),
        }
    }
    reader.take_variables(variables);
    reader.check_aliases();
    let (errors, mut warnings): (Vec<_>, Vec<_>) =
        reader.issues.drain(..).partition(|issue| issue.level == IssueLevel::Error);
    if !errors.is_empty() {
        return Err(errors.into_iter().chain(warnings).collect());
    }
    let (secrets, origins) = (reader.secrets(), reader.origins());
    let settings = reader.settings(&mut warnings);
    Ok(Read { settings, warnings, secrets, origins })
}

impl Default for Settings {
    fn default() -> Settings {
        match read("", "", &BTreeMap::new()) {
            Ok(read) => read.settings,
            Err(issues) => unreachable!("the defaults of the table are valid: {issues:?}"),
        }
    }
}

/// The password of a web address, or all that stands before its host where that has no name.
fn credentials(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
    let user = authority.rsplit_once('@')?.0;
    Some(user.split_once(':').map_or(user, |(_, password)| password)).filter(|secret| !secret.is_empty())
}

/// A web address as it may be shown; any other text as it is.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let rest = rest.split('?').next().unwrap_or_default();
    let end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..end].rsplit_once('@').map_or(&rest[..end], |(_, host)| host);
    format!("{scheme}://{host}{}", &rest[end..])
}

struct Reader<'a> {
    file: &'a str,
    issues: Vec<Issue>,
    /// What the file or a variable sets, checked.
    values: BTreeMap<&'static str, Value>,
    /// The variables that set what they set.
    by_variable: BTreeMap<&'static str, &'static str>,
    /// Where the client keys come from: a variable replaces those of the file.
    key_source: ClientSource,
}

impl Reader<'_> {
    fn report(&mut self, file: &str, level: IssueLevel, message: String) {
        self.issues.push(Issue { file: file.into(), provider: None, level, message });
    }

    fn error(&mut self, message: &str) {
        self.report(self.file, IssueLevel::Error, message.into());
    }

    /// Takes the members of one object; `prefix` is its path with a trailing dot.
    fn walk(&mut self, map: &Map<String, Value>, prefix: &str) {
        for (key, value) in map {
            if key.starts_with("//") || key == "$schema" {
                continue;
            }
            let path = format!("{prefix}{key}");
            let section = format!("{path}.");
            if let Some(row) = table::find(&path) {
                let mut warnings = Vec::new();
                match check(row, value, &mut warnings) {
                    Ok(Some(value)) => drop(self.values.insert(row.name, value)),
                    Ok(None) => {}
                    Err(message) => self.error(&message),
                }
                for warning in warnings {
                    self.report(self.file, IssueLevel::Warning, warning);
                }
            } else if TABLE.iter().any(|row| row.name.starts_with(&section)) {
                match value {
                    Value::Object(inner) => self.walk(inner, &section),
                    Value::Null => {}
                    other => self.error(&format!("{path}: must be an object (it is {})", shown(other))),
                }
            } else {
                let hint =
                    suggestion(&path).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
                self.report(
                    self.file,
                    IssueLevel::Warning,
                    format!("{path}: unknown setting, not used{hint}"),
                );
            }
        }
    }

    fn take_variables(&mut self, variables: &BTreeMap<String, String>) {
        for row in TABLE {
            let set = row.variables.iter().find_map(|name| {
                variables
                    .get(*name)
                    .filter(|value| !value.trim().is_empty())
                    .map(|value| (*name, value.trim()))
            });
            let Some((name, text)) = set else { continue };
            match check(row, &value_of(&row.shape, text), &mut Vec::new()) {
                Ok(Some(value)) => {
                    self.values.insert(row.name, value);
                    self.by_variable.insert(row.name, name);
                    if row.name == "keys" {
                        self.key_source = ClientSource::Variable;
                    }
                }
                Ok(None) => {}
                // The message speaks of the setting; the owner looks for the variable.
                Err(message) => {
                    let what = message.split_once(": ").map_or(message.as_str(), |(_, what)| what).to_owned();
                    self.report("environment", IssueLevel::Error, format!("{name}: {what}"));
                }
            }
        }
        let known = || {
            let paths = table::PATH_VARIABLES.iter().map(|(name, ..)| *name);
            TABLE.iter().flat_map(|row| row.variables.iter().copied()).chain(paths)
        };
        for name in variables.keys().filter(|name| name.starts_with("FREEWAY_")) {
            if !known().any(|k| k == name.as_str()) {
                // Only a near miss is worth a word: other tools may have variables of this prefix.
                if let Some(near) = closest(name, known().filter(|k| k.starts_with("FREEWAY_"))) {
                    let message = format!("{name}: unknown variable, not used; did you mean `{near}`?");
                    self.report("environment", IssueLevel::Warning, message);
                }
            }
        }
    }

    /// Finds aliases and profiles that lead back to themselves, or whose names are taken: nobody could ask for these.
    fn check_aliases(&mut self) {
        let mut next: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        if let Some(Value::Object(profiles)) = self.values.get("profiles") {
            next.extend(profiles.iter().map(|(name, profile)| {
                (name.to_lowercase(), texts(profile.get("models").unwrap_or(profile)))
            }));
        }
        if let Some(Value::Object(aliases)) = self.values.get("aliases") {
            for (name, target) in aliases {
                next.insert(name.to_lowercase(), vec![target.as_str().unwrap_or_default().to_owned()]);
            }
        }
        for message in reserved_names(&self.values) {
            self.report(self.file, IssueLevel::Warning, message);
        }
        if let Some(active) = self.values.get("activeProfile").and_then(Value::as_str) {
            let profiles = self.values.get("profiles").and_then(Value::as_object);
            if !profiles.into_iter().flatten().any(|(name, _)| name.eq_ignore_ascii_case(active)) {
                self.error(&format!("activeProfile: `{active}` is no profile; add it under profiles"));
            }
        }
        for start in next.keys() {
            if let Some(cycle) = cycle_from(start, &next) {
                // Every name of the cycle finds it; the smallest one tells it.
                if cycle.iter().min() == Some(start) {
                    let message = format!(
                        "aliases: {} leads back to itself ({} -> {start}); point it at a model",
                        start,
                        cycle.join(" -> ")
                    );
                    self.error(&message);
                }
            }
        }
    }

    fn origins(&self) -> Origins {
        let set = |(name, value): (&&'static str, &Value)| {
            let value = match table::find(name).map(|row| row.shape) {
                Some(table::Shape::Secret) => Value::Null,
                Some(table::Shape::Keys) => value.as_array().map_or(0, Vec::len).into(),
                // A web address may hold a password.
                _ if *name == "backup.target" => value.as_str().map(without_credentials).into(),
                _ => value.clone(),
            };
            let origin =
                self.by_variable.get(name).map_or(Origin::File, |variable| Origin::Variable(variable));
            (*name, Set { value, origin })
        };
        self.values.iter().map(set).collect()
    }

    fn secrets(&self) -> Vec<Secret> {
        let target = self.text("backup.target");
        let of_target = target.as_deref().and_then(credentials);
        let plain = |value: &Value| value.as_str().or_else(|| value.get("key")?.as_str()).map(Secret::new);
        let keys = self.values.get("keys").and_then(Value::as_array).into_iter().flatten();
        let keys = keys.filter_map(plain).chain(self.values.get("adminKey").and_then(plain));
        keys.chain(of_target.map(Secret::new)).collect()
    }

    /// The value of a row: what was set, or its default.
    fn value(&self, name: &str) -> Value {
        let default = || {
            let row = table::find(name).unwrap_or_else(|| unreachable!("{name} stands in the table"));
            serde_json::from_str(row.default).expect("the defaults of the table are JSON")
        };
        self.values.get(name).cloned().unwrap_or_else(default)
    }

    fn whole(&self, name: &str) -> u64 {
        whole(&self.value(name)).unwrap_or_default()
    }

    fn some_whole(&self, name: &str) -> Option<u64> {
        whole(&self.value(name))
    }

    fn size(&self, name: &str) -> usize {
        usize::try_from(self.whole(name)).unwrap_or(usize::MAX)
    }

    fn flag(&self, name: &str) -> bool {
        self.value(name).as_bool().unwrap_or_default()
    }

    fn text(&self, name: &str) -> Option<String> {
        self.value(name).as_str().map(|text| text.trim().to_owned())
    }

    /// The address to listen on; one of IPv6 may stand in brackets, as it does in a URL.
    fn host(&self) -> String {
        let host = self.text("host").unwrap_or_default();
        host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map_or(host.clone(), str::to_owned)
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let value = self.value(name);
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(|text| text.trim().to_owned())
            .collect()
    }

    fn settings(&self, warnings: &mut Vec<Issue>) -> Settings {
        let mut cors_origins = self.texts("corsOrigins");
        if cors_origins.iter().any(|origin| origin == "*") {
            cors_origins.retain(|origin| origin != "*");
            let message =
                "corsOrigins: `*` is not taken, any page could then spend your quota; name the origins"
                    .into();
            warnings.push(Issue {
                file: self.file.into(),
                provider: None,
                level: IssueLevel::Warning,
                message,
            });
        }
        // Browsers send an origin without a slash at its end.
        cors_origins.iter_mut().for_each(|origin| origin.truncate(origin.trim_end_matches('/').len()));
        let strategy = |text: Option<String>| text.and_then(|name| Strategy::by_name(&name));
        Settings {
            host: self.host(),
            port: u16::try_from(self.whole("port")).unwrap_or_default(),
            strategy: strategy(self.text("strategy")).unwrap_or(Strategy::Priority),
            max_attempts: self.whole("maxAttempts") as u32,
            cooldown_ms: (self.value("cooldownSeconds").as_f64().unwrap_or_default() * 1000.0) as u64,
            timeout_ms: self.whole("timeoutMs"),
            stream_timeout_ms: self.some_whole("streamTimeoutMs"),
            keys: client_keys(&self.value("keys"), self.key_source),
            keys_lost: false,
            admin_key: self.text("adminKey").as_deref().map(AdminKey::new),
            cors_origins,
            hosts: self.texts("hosts").iter().map(|host| host.to_ascii_lowercase()).collect(),
            trusted_proxies: self
                .texts("trustedProxies")
                .iter()
                .filter_map(|text| text.parse().ok())
                .collect(),
            aliases: self.aliases(),
            profiles: self.profiles(),
            active_profile: self.text("activeProfile"),
            allow_paid: self.flag("allowPaid"),
            server: self.server(),
            failover: FailoverSettings { budget_ms: self.whole("failover.budgetMs"), bench: self.bench() },
            stream: StreamSettings {
                hold_ms: self.whole("stream.holdMs"),
                keep_alive_ms: self.whole("stream.keepAliveMs"),
            },
            history: HistorySettings { days: self.whole("history.days"), mib: self.whole("history.mib") },
            discovery: DiscoverySettings {
                enabled: self.flag("discovery.enabled"),
                ttl_ms: self.whole("discovery.ttlMs"),
            },
            semantic: SemanticSettings {
                enabled: self.flag("cache.semantic.enabled"),
                threshold: self.value("cache.semantic.threshold").as_f64().unwrap_or(1.0),
                model: self.text("cache.semantic.model").unwrap_or_default(),
                max_entries: self.size("cache.semantic.maxEntries"),
            },
            context: self.context(),
            max_messages: self.size("guard.maxMessages"),
            guard: self.guard(),
            key_health_ms: self.flag("guard.keyHealth").then(|| self.whole("guard.keyHealthIntervalMs")),
            cache: self.cache(),
            sessions: self.sessions(),
            sticky_ms: self.whole("routing.stickyMs"),
            handoff: self.flag("routing.handoff"),
            log: self.log(),
            backup: self.backup(),
        }
    }

    fn backup(&self) -> BackupSettings {
        BackupSettings {
            target: self.text("backup.target"),
            every_ms: self.whole("backup.everyHours") * 3_600_000,
            keep: self.size("backup.keep"),
            sessions: self.flag("backup.sessions"),
        }
    }

    fn log(&self) -> LogSettings {
        LogSettings {
            previews: self.flag("log.previews"),
            level: match self.text("log.level").as_deref() {
                Some("error") => LogLevel::Error,
                Some("warn") => LogLevel::Warn,
                Some("debug") => LogLevel::Debug,
                _ => LogLevel::Info,
            },
        }
    }

    fn context(&self) -> ContextSettings {
        ContextSettings {
            enabled: self.flag("context.enabled"),
            prefer_fit: self.flag("context.preferFit"),
            max_turns: self.size("context.maxTurns"),
            reserve_output: self.whole("context.reserveOutputTokens"),
            compact_model: self.text("context.compactModel").unwrap_or_default(),
            auto_compact_at: self.value("context.autoCompactAt").as_f64().unwrap_or(1.0),
        }
    }

    fn sessions(&self) -> SessionSettings {
        SessionSettings {
            days: self.whole("sessions.days"),
            max: self.size("sessions.max"),
            bytes: self.size("sessions.mib") << 20,
        }
    }

    fn server(&self) -> ServerSettings {
        // The newer name wins where both are set.
        let old_name =
            !self.values.contains_key("server.bodyBytes") && self.values.contains_key("guard.maxBodyBytes");
        ServerSettings {
            workers: self.size("server.workers"),
            queue: self.size("server.queue"),
            connections: self.some_whole("server.connections").map(|n| n as usize),
            per_address: self.size("server.perAddress"),
            body_bytes: self.size(if old_name { "guard.maxBodyBytes" } else { "server.bodyBytes" }),
            bodies_in_flight_bytes: self.size("server.bodiesInFlightBytes"),
            head_ms: self.whole("server.headMs"),
            body_ms: self.whole("server.bodyMs"),
            idle_ms: self.whole("server.idleMs"),
            write_ms: self.whole("server.writeMs"),
            stop_ms: self.whole("server.stopMs"),
        }
    }

    fn guard(&self) -> GuardSettings {
        let limits = |scope: &str| {
            let limit = |name: &str| self.some_whole(&format!("guard.{scope}.{name}"));
            ClientLimits { rpm: limit("rpm"), concurrency: limit("concurrency"), ..ClientLimits::default() }
        };
        let open = !self.text("host").is_some_and(|host| is_loopback(&host));
        let beyond_loopback = |rpm, concurrency| {
            let limit = |max| Some(max).filter(|_| open);
            ClientLimits { rpm: limit(rpm), concurrency: limit(concurrency), ..ClientLimits::default() }
        };
        let tokens_and_day = ClientLimits {
            tpm: self.some_whole("guard.perKey.tpm"),
            rpd: self.some_whole("guard.perKey.rpd"),
            ..limits("perKey")
        };
        GuardSettings {
            per_key: tokens_and_day.or(beyond_loopback(KEY_RPM, KEY_CONCURRENCY)),
            per_address: limits("perIp"),
            per_stranger: beyond_loopback(ADDRESS_RPM, ADDRESS_CONCURRENCY),
            scan: ScanSettings {
                mode: match self.text("guard.scan.mode").as_deref() {
                    Some("off") => ScanMode::Off,
                    Some("block") => ScanMode::Block,
                    _ => ScanMode::Flag,
                },
                secrets: self.flag("guard.scan.secrets"),
                pii: self.flag("guard.scan.pii"),
                injection: self.flag("guard.scan.injection"),
            },
        }
    }

    fn cache(&self) -> CacheSettings {
        CacheSettings {
            mode: match self.text("cache.mode").as_deref() {
                Some("off") => CacheMode::Off,
                Some("aggressive") => CacheMode::Aggressive,
                _ => CacheMode::Safe,
            },
            scope: match self.text("cache.scope").as_deref() {
                Some("key") => CacheScope::Key,
                _ => CacheScope::Shared,
            },
            ttl_ms: self.whole("cache.ttlMs"),
            max_entries: self.size("cache.maxEntries"),
            max_bytes: self.whole("cache.maxBytes"),
            max_entry_bytes: self.size("cache.maxEntryBytes"),
            ignore: self.texts("cache.ignore"),
        }
    }

    fn aliases(&self) -> BTreeMap<String, String> {
        let value = self.value("aliases");
        let text = |(name, target): (&String, &Value)| {
            Some((name.trim().to_owned(), target.as_str()?.trim().to_owned()))
        };
        value.as_object().into_iter().flatten().filter_map(text).collect()
    }

    fn profiles(&self) -> BTreeMap<String, Profile> {
        let value = self.value("profiles");
        let profile = |(name, profile): (&String, &Value)| {
            let models = profile.get("models").unwrap_or(profile).as_array().into_iter().flatten();
            let models = models.filter_map(Value::as_str).map(|text| text.trim().to_owned()).collect();
            let strategy = profile.get("strategy").and_then(Value::as_str).and_then(Strategy::by_name);
            (name.trim().to_owned(), Profile { models, strategy })
        };
        value.as_object().into_iter().flatten().map(profile).collect()
    }

    fn bench(&self) -> BTreeMap<String, BenchSteps> {
        let value = self.value("failover.bench");
        let steps = |(cause, steps): (&String, &Value)| {
            let first_ms = whole(steps.get("firstMs")?)?;
            Some((cause.clone(), BenchSteps { first_ms, cap_ms: whole(steps.get("capMs")?)? }))
        };
        value.as_object().into_iter().flatten().filter_map(steps).collect()
    }
}

/// The names on the way from `start` back to `start`, or `None` when the way ends.
pub fn cycle_from(start: &str, next: &BTreeMap<String, Vec<String>>) -> Option<Vec<String>> {
    let mut path: Vec<(String, usize)> = vec![(start.to_owned(), 0)];
    let mut done: Vec<String> = Vec::new();
    while let Some((name, branch)) = path.last_mut() {
        let target = next.get(name.as_str()).and_then(|targets| targets.get(*branch)).map(|t| name_in(t));
        *branch += 1;
        match target {
            None => done.extend(path.pop().map(|(name, _)| name)),
            Some(target) if target == start => return Some(path.into_iter().map(|(name, _)| name).collect()),
            Some(target) if done.contains(&target) || path.iter().any(|(name, _)| *name == target) => {}
            Some(target) => path.push((target, 0)),
        }
    }
    None
}

/// The alias or profile that a model string may name.
fn name_in(target: &str) -> String {
    let lower = target.trim().to_lowercase();
    lower.strip_prefix("auto:").map(|name| name.trim().to_owned()).unwrap_or(lower)
}

fn client_keys(value: &Value, source: ClientSource) -> Vec<Arc<ClientKey>> {
    let mut keys: Vec<Arc<ClientKey>> = Vec::new();
    for item in value.as_array().into_iter().flatten() {
        let text = item.as_str().or_else(|| item.get("key")?.as_str());
        let hash = item.get("sha256").and_then(Value::as_str).and_then(parse_sha256);
        let Some(sha256) = hash.or_else(|| Some(Sha256::digest(text?).into())) else { continue };
        if keys.iter().any(|known| known.sha256 == sha256) {
            continue;
        }
        let name = item.get("name").and_then(Value::as_str).map(|name| name.trim().to_owned());
        // They were checked when the setting was.
        let rules = item.as_object().and_then(|map| ClientRules::read("", map).ok()).unwrap_or_default();
        let name = name.unwrap_or_else(|| format!("key-{}", keys.len() + 1)).into();
        keys.push(Arc::new(ClientKey { name, sha256, source, created_ms: None, rules }));
    }
    keys
}

/// The setting that an unknown path was meant to be: the same word in another section, or a near miss.
fn suggestion(path: &str) -> Option<&'static str> {
    let names = || TABLE.iter().map(|row| row.name);
    // A slip in the name of a section is told as that.
    let levels = path.matches('.').count();
    let section = |name: &'static str| {
        let (end, _) = name.match_indices('.').nth(levels)?;
        Some(&name[..end])
    };
    if let Some(near) = names().filter_map(section).find(|section| section.eq_ignore_ascii_case(path)) {
        return Some(near);
    }
    let last = |name: &'static str| name.rsplit('.').next().unwrap_or(name);
    let word = path.rsplit('.').next().unwrap_or(path);
    closest(path, names()).or_else(|| {
        let near = closest(word, names().map(last))?;
        names().find(|name| last(name) == near)
    })
}

/// The settings as JSON, for `config check --json`: credentials are left out.
pub fn to_json(settings: &Settings) -> Value {
    json!({
        "host": settings.host,
        "port": settings.port,
        "strategy": settings.strategy.name(),
        "keys": settings.keys.iter().map(|key| &*key.name).collect::<Vec<_>>(),
        "adminKey": settings.admin_key.is_some(),
        "maxAttempts": settings.max_attempts,
        "allowPaid": settings.allow_paid,
        "aliases": settings.aliases,
        "profiles": settings.profiles.keys().collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(text: &str, variables: &[(&str, &str)]) -> Result<Read, Vec<Issue>> {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        read("freeway.config.json", text, &variables)
    }

    fn settings(text: &str, variables: &[(&str, &str)]) -> Settings {
        read_with(text, variables).expect("a valid configuration").settings
    }

    fn messages(issues: &[Issue]) -> String {
        issues.iter().map(|issue| format!("{}: {}", issue.file, issue.message)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_row_of_the_table_is_sound() {
        for row in TABLE {
            let default: Value = serde_json::from_str(row.default).expect(row.name);
            assert!(check(row, &default, &mut Vec::new()).is_ok(), "{}", row.name);
            assert!(!row.text.is_empty() && !row.text.ends_with('.'), "{}", row.name);
            assert_eq!(TABLE.iter().filter(|other| other.name == row.name).count(), 1, "{}", row.name);
        }
        let names: Vec<&str> = Strategy::NAMES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, table::STRATEGIES);
    }

    #[test]
    fn without_a_file_the_defaults_hold() {
        let settings = settings("", &[]);
        assert_eq!((settings.host.as_str(), settings.port), ("127.0.0.1", 8787));
        assert_eq!((settings.max_attempts, settings.cooldown_ms, settings.timeout_ms), (3, 60_000, 60_000));
        assert_eq!((settings.server.workers, settings.server.body_bytes), (64, 8 << 20));
        assert_eq!((settings.failover.budget_ms, settings.stream.hold_ms), (180_000, 15_000));
        assert!(settings.context.prefer_fit && settings.keys.is_empty() && settings.admin_key.is_none());
    }

    #[test]
    fn variables_win_over_the_file_and_empty_ones_count_as_unset() {
        let text = r#"{"port": 1, "strategy": "fastest", "keys": ["from-file"]}"#;
        let read =
            settings(text, &[("PORT", "2"), ("FREEWAY_PORT", "3"), ("FREEWAY_KEYS", "a-one, b-two,a-one,")]);
        assert_eq!((read.port, read.strategy, read.keys.len()), (2, Strategy::Fastest, 2));
        let read = settings(text, &[("PORT", ""), ("FREEWAY_PORT", " 3 "), ("FREEWAY_KEYS", " ")]);
        assert_eq!((read.port, read.keys.len(), &*read.keys[0].name), (3, 1, "key-1"));
        assert_eq!(settings("", &[("PORT", "0")]).port, 0);
    }

    #[test]
    fn a8_wrong_types_and_values_refuse_and_say_where() {
        let check = |text: &str, expected: &str| {
            let found = messages(&read_with(text, &[]).expect_err(text));
            assert!(found.contains(expected), "{text}: {found}");
        };
        check(
            r#"{"guard": {"maxBodyBytes": "8mb"}}"#,
            "guard.maxBodyBytes: must be a whole number from 1024",
        );
        check(
            r#"{"guard": {"scan": {"mode": "blok"}}}"#,
            "guard.scan.mode: must be one of flag, off, block (it is \"blok\"); did you mean `block`?",
        );
        check(r#"{"adminKey": ""}"#, "adminKey: must be a text of visible ASCII");
        check(
            r#"{"server": {"workers": 0}}"#,
            "server.workers: must be a whole number from 1 to 4096 (it is 0)",
        );
        check(r#"{"server": {"workers": 1.5}}"#, "server.workers");
        check(r#"{"server": 5}"#, "server: must be an object (it is 5)");
        check(r#"{"port": -1}"#, "port: must be");
        check(r#"{"maxAttempts": true}"#, "maxAttempts: must be");
        check(r#"{"strategy": "random"}"#, "strategy: must be one of priority");
        check(r#"{"cooldownSeconds": 0}"#, "cooldownSeconds: must be");
        check(r#"{"trustedProxies": ["home"]}"#, "trustedProxies[0]: must be an IP address (it is \"home\")");
        for origin in ["chat.example", "https://", "https://a.example/app", "https://*.example", ""] {
            let text = json!({"corsOrigins": [origin]}).to_string();
            check(&text, "corsOrigins[0]: must be an origin such as https://chat.example");
        }
        for host in ["https://a.example", "a.example/v1", "*.example", "a b", ""] {
            let text = json!({"hosts": [host]}).to_string();
            check(&text, "hosts[0]: must be a host name such as freeway.example");
        }
        check(r#"{"trustedProxies": "::1"}"#, "trustedProxies: must be a list of IP addresses");
        check(r#"{"aliases": {"fast": 3}}"#, "aliases.fast: must be a text");
        check(r#"{"profiles": {"p": {"models": ["a"], "strategy": "x"}}}"#, "profiles.p.strategy");
        check(r#"{"profiles": {"p": []}}"#, "profiles.p: must name at least one model");
        check(
            r#"{"failover": {"bench": {"rateLimit": {"firstMs": 5, "capMs": 1}}}}"#,
            "failover.bench.rateLimit",
        );
        check(r#"{"keys": [{"name": "a"}]}"#, "keys[0]: must have either");
        check(r#"{"keys": [{"sha256": "12"}]}"#, "keys[0].sha256: must be 64");
        check("[]", "must be an object");
        check("{\n \"port\": }", "line 2");
        check(r#"{"port": 1, "port": 2}"#, "`port` stands twice");
        let found = messages(&read_with("", &[("PORT", "http")]).expect_err("a bad variable"));
        assert!(found.starts_with("environment: PORT: must be a whole number from 0 to 65535"), "{found}");
    }

    #[test]
    fn a_wrong_credential_is_not_shown() {
        for text in
            [r#"{"adminKey": "se cret"}"#, r#"{"keys": ["se cret"]}"#, r#"{"keys": [{"key": "se cret"}]}"#]
        {
            let found = messages(&read_with(text, &[]).expect_err(text));
            assert!(!found.contains("cret"), "{found}");
        }
    }

    #[test]
    fn unknown_keys_are_warnings_with_a_suggestion() {
        let check = |text: &str, variables: &[(&str, &str)], expected: &str| {
            let found = messages(&read_with(text, variables).expect(text).warnings);
            assert!(found.contains(expected), "{text}: {found}");
        };
        check(
            r#"{"maxAtempts": 2}"#,
            &[],
            "maxAtempts: unknown setting, not used; did you mean `maxAttempts`?",
        );
        check(
            r#"{"server": {"wokers": 2}}"#,
            &[],
            "server.wokers: unknown setting, not used; did you mean `server.workers`?",
        );
        check(r#"{"zzz": {"a": 1}}"#, &[], "zzz: unknown setting, not used");
        check(
            r#"{"keys": [{"key": "k", "modles": []}]}"#,
            &[],
            "keys[0].modles: unknown, not used; did you mean `models`?",
        );
        check(r#"{"profiles": {"p": {"models": ["m"], "x": 1}}}"#, &[], "profiles.p.x: unknown, not used");
        check(r#"{"aliases": {"Auto": "p/m"}}"#, &[], "aliases.Auto: not used, `Auto` always means `auto`");
        check(r#"{"profiles": {"default": ["p/m"]}}"#, &[], "profiles.default: not used");
        let active = r#"{"profiles": {"auto": ["p/m"]}, "activeProfile": "auto"}"#;
        assert!(read_with(active, &[]).expect("fine").warnings.is_empty(), "it is what `auto` means");
        check(
            "",
            &[("FREEWAY_STRATAGY", "x")],
            "FREEWAY_STRATAGY: unknown variable, not used; did you mean `FREEWAY_STRATEGY`?",
        );
        assert_eq!(settings(r#"{"host": "[::1]"}"#, &[]).host, "::1");
        check(r#"{"corsOrigins": ["*", "https://a.example"]}"#, &[], "corsOrigins: `*` is not taken");
        check(r#"{"guard": {"perkey": {"rpm": 1}}}"#, &[], "did you mean `guard.perKey`?");
        assert!(
            read_with(r#"{"// note": 1, "$schema": "x", "cache": {"mode": "off"}}"#, &[])
                .expect("known")
                .warnings
                .is_empty()
        );
    }

    #[test]
    fn a7_alias_cycles_are_refused() {
        let check = |text: &str, expected: Option<&str>| match (read_with(text, &[]), expected) {
            (Ok(_), None) => {}
            (Err(issues), Some(expected)) => {
                assert_eq!(issues.len(), 1, "{issues:?}");
                assert!(messages(&issues).contains(expected), "{}", messages(&issues));
            }
            (other, _) => panic!("{text}: {other:?}"),
        };
        check(r#"{"aliases": {"x": "y", "Y": "x"}}"#, Some("x leads back to itself (x -> y -> x)"));
        check(r#"{"aliases": {"x": "x"}}"#, Some("x leads back to itself"));
        check(
            r#"{"aliases": {"a": "p"}, "profiles": {"p": ["groq/m", "a"]}}"#,
            Some("a leads back to itself"),
        );
        check(r#"{"profiles": {"P": ["auto:p"]}}"#, Some("p leads back to itself"));
        check(r#"{"activeProfile": "x"}"#, Some("activeProfile: `x` is no profile"));
        check(r#"{"aliases": {"a": "b", "b": "c", "c": "groq/m", "d": "b"}}"#, None);
        check(r#"{"aliases": {"constructor": "auto"}}"#, None);
    }

    #[test]
    fn keys_are_hashed_and_folded() {
        let hash = crate::base::text::hex(&Sha256::digest("fw-b"));
        let text = format!(
            r#"{{"keys": ["fw-a", {{"name": "phone", "sha256": "{hash}"}}, {{"name": "again", "key": "fw-b"}}]}}"#
        );
        let read = read_with(&text, &[]).expect("valid");
        let names: Vec<&str> = read.settings.keys.iter().map(|key| &*key.name).collect();
        assert_eq!(names, ["key-1", "phone"]);
        assert_eq!(read.settings.keys[0].sha256, <[u8; 32]>::from(Sha256::digest("fw-a")));
        assert_eq!(read.secrets.len(), 2);
    }

    #[test]
    fn an_open_gateway_stays_on_this_machine() {
        let problem = |text: &str| settings(text, &[]).bind_problem().is_some();
        assert!(!problem(r#"{"host": "::1"}"#) && !problem(r#"{"host": "LOCALHOST"}"#) && !problem("{}"));
        assert!(!problem(r#"{"host": "127.0.0.9"}"#) && !problem(r#"{"host": "::ffff:127.0.0.1"}"#));
        assert!(
            problem(r#"{"host": "0.0.0.0"}"#)
                && problem(r#"{"host": "::"}"#)
                && problem(r#"{"host": "pi.local"}"#)
        );
        assert!(!problem(r#"{"host": "0.0.0.0", "keys": ["fw-a"]}"#));
    }

    #[test]
    fn the_old_name_of_the_body_limit_still_counts() {
        assert_eq!(settings(r#"{"guard": {"maxBodyBytes": 4096}}"#, &[]).server.body_bytes, 4096);
        let both = r#"{"guard": {"maxBodyBytes": 4096}, "server": {"bodyBytes": 8192}}"#;
        assert_eq!(settings(both, &[]).server.body_bytes, 8192);
    }
}
