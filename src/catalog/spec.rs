//! The provider file format: one JSON object in, one checked [`Provider`] out, with every default filled in and every
//! variable in its place. Pure: it reads no file and no environment.
//!
//! Any error refuses the whole file (the loader then keeps its last good version); warnings do not.
use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{Fields, Findings, shown};
use super::pool::{self, Fingerprints, PoolSpec};
use super::provider::*;
use super::settings::Settings;
use super::slots::Slots;
use super::vault::Vault;
use super::{Issue, IssueLevel, address, discovery, json, spec_model};
use crate::base::redact::Redactor;
use crate::base::text::{mask, truncate};

/// What a file needs besides its own text.
pub struct Context<'a> {
    pub variables: &'a BTreeMap<String, String>,
    pub settings: &'a Settings,
    pub fingerprints: &'a Fingerprints,
    pub pasted: &'a Vault,
    pub slots: &'a mut Slots,
}

/// Longest provider id: it stands in headers, file names and metrics.
const ID_MAX: usize = 64;
/// Longest time that a file may set.
const TIMEOUT_MAX_MS: u64 = 3_600_000;
/// Between data events of a stream, unless the file says otherwise.
const IDLE_MS: u64 = 60_000;
const CONNECT_MS: u64 = 10_000;
const PRIORITY: f64 = 50.0;

/// Reads one file. The provider is absent when there is an error among the issues.
pub fn read(file: &str, text: &str, context: &mut Context<'_>) -> (Option<Provider>, Vec<Issue>) {
    let findings = RefCell::new(Findings::new(file));
    let provider = match json::parse(text) {
        Ok(Value::Object(map)) => {
            let fields = Fields::new(&map, String::new(), &findings);
            let provider = read_fields(&fields, context);
            fields.finish();
            provider
        }
        Ok(other) => {
            findings
                .borrow_mut()
                .add(IssueLevel::Error, format!("must be an object (it is {})", shown(&other)));
            None
        }
        Err(error) => {
            findings.borrow_mut().add(IssueLevel::Error, error);
            None
        }
    };
    let findings = findings.into_inner();
    let provider = provider.filter(|_| !findings.has_errors());
    (provider, findings.issues)
}

/// Whether a text can be a provider's id.
pub fn is_provider_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    id.len() <= ID_MAX && id.bytes().next().is_some_and(plain) && id.bytes().all(|b| plain(b) || b == b'-')
}

/// The provider behind the fields of a file; faults are left with the fields.
pub(super) fn read_fields(fields: &Fields<'_>, context: &mut Context<'_>) -> Option<Provider> {
    // Without one the file is refused, and all else that is wrong with it is told at once.
    let id = read_id(fields).unwrap_or_default();
    // The only value there is; kept so that files of the original are taken.
    fields.word("adapter", &[("openai", ())]);
    let (base_url, local, mut missing_vars) = read_base_url(fields, context);
    let headers = read_headers(fields, context, &mut missing_vars);
    let limits_scope = fields.word("limitsScope", &SCOPES).unwrap_or(LimitsScope::Key);
    let credentials = read_credentials(fields, &id, limits_scope, context);
    let billing = fields.word("billing", &Billing::NAMES).unwrap_or(Billing::FreeTier);
    let allow_paid = fields.flag("allowPaid").unwrap_or(false) || context.settings.allow_paid;
    let standing = if billing == Billing::Paid && !allow_paid { Standing::Paid } else { Standing::Free };
    let models = spec_model::read_all(fields, &id, standing, context.slots);
    let paths = fields.object("paths");
    Some(Provider {
        slot: context.slots.intern(&format!("provider/{id}")),
        label: fields.owned("label").unwrap_or_else(|| id.clone()),
        docs: fields.owned("docs"),
        console: fields.owned("console"),
        signup: fields.owned("signup"),
        notes: fields.owned("notes"),
        terms: read_terms(fields),
        enabled: fields.flag("enabled").unwrap_or(true),
        priority: fields.number("priority").unwrap_or(PRIORITY),
        base_url,
        local,
        auth: credentials.auth,
        keys: credentials.keys,
        env_keys: credentials.env_keys,
        missing_vars,
        limits: spec_model::read_limits(fields),
        limits_scope,
        limits_source: fields.word("limitsSource", &LimitsSource::NAMES).unwrap_or(LimitsSource::Unverified),
        verified_on: read_date(fields),
        models_endpoint: read_models_endpoint(fields, paths.as_ref()),
        models_path: read_models_path(fields),
        paths: read_paths(paths),
        quirks: read_quirks(fields),
        timeouts: read_timeouts(fields, context.settings.timeout_ms),
        headers,
        reset_zone: read_zone(fields),
        counts_max_tokens: fields.flag("countsMaxTokens").unwrap_or(false),
        billing,
        allow_paid,
        last_resort: fields.flag("lastResort").unwrap_or(false),
        models,
        id: id.into(),
    })
}

const SCOPES: [(&str, LimitsScope); 3] =
    [("key", LimitsScope::Key), ("model", LimitsScope::Model), ("account", LimitsScope::Account)];
const ERROR_WORDS: [(&str, ErrorWord); 10] = [
    ("auth", ErrorWord::Auth),
    ("credit", ErrorWord::Credit),
    ("forbidden", ErrorWord::Forbidden),
    ("rateLimit", ErrorWord::RateLimit),
    ("dailyQuota", ErrorWord::DailyQuota),
    ("modelMissing", ErrorWord::ModelMissing),
    ("contextLength", ErrorWord::ContextLength),
    ("unavailable", ErrorWord::Unavailable),
    ("policy", ErrorWord::Policy),
    ("request", ErrorWord::Request),
];

fn read_id(fields: &Fields<'_>) -> Option<String> {
    let id = fields.text("id");
    match id {
        Some(id) if is_provider_id(id) => {
            fields.set_provider(id);
            Some(id.to_owned())
        }
        Some(id) => {
            let id = truncate(id, ID_MAX);
            fields.error(
                "id",
                format!("must be lower-case letters, digits and `-`, at most {ID_MAX} (it is `{id}`)"),
            );
            None
        }
        None => {
            if fields.value("id").is_none() {
                fields.error("id", "is missing; it names the provider, such as `acme`");
            }
            None
        }
    }
}

/// The address, whether it is near, and the variables that it lacks. Empty while a variable is missing or wrong.
fn read_base_url(fields: &Fields<'_>, context: &Context<'_>) -> (String, bool, Vec<String>) {
    let nothing = || (String::new(), false, Vec::new());
    let Some(template) = fields.text("baseUrl") else {
        if fields.value("baseUrl").is_none() {
            fields.error(
                "baseUrl",
                "is missing; it is the part before /chat/completions, such as https://api.acme.example/v1",
            );
        }
        return nothing();
    };
    let (text, missing) = match address::interpolate(template, context.variables) {
        Ok(found) => found,
        Err(error) => {
            fields.error("baseUrl", error);
            return nothing();
        }
    };
    if !missing.is_empty() {
        return (String::new(), false, missing);
    }
    match address::base_url(&address::with_scheme(template, text)) {
        Ok(address) => {
            if address.url.starts_with("http://") && !address.local {
                fields.warn(
                    "baseUrl",
                    "is http:// to a host outside this network: key and prompts travel in clear text",
                );
            }
            (address.url, address.local, Vec::new())
        }
        Err(error) if template.contains("${") => {
            // The file is fine, the variable is not: the provider stays, without an address.
            let names = address::variable_names(template);
            fields.warn("baseUrl", format!("{error}; check the variable {}", names.join(", ")));
            (String::new(), false, names)
        }
        Err(error) => {
            fields.error("baseUrl", error);
            nothing()
        }
    }
}

fn read_headers(
    fields: &Fields<'_>,
    context: &Context<'_>,
    missing_vars: &mut Vec<String>,
) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for (name, value) in fields.members("headers").into_iter().flatten() {
        let at = format!("headers.{name}");
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(token) {
            fields.error(&at, "is no header name");
            continue;
        }
        if RESERVED_HEADERS.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
            fields.error(&at, "is set by the gateway itself; keys go under `auth`");
            continue;
        }
        let Some(template) = value.as_str() else {
            fields.error(&at, format!("must be a text (it is {})", shown(value)));
            continue;
        };
        match address::interpolate(template, context.variables) {
            Ok((_, missing)) if !missing.is_empty() => missing_vars.extend(missing),
            Ok((text, _)) if text.bytes().all(|b| b == b'\t' || (b' '..0x7f).contains(&b)) => {
                headers.push((name.to_ascii_lowercase(), text));
            }
            Ok(_) => fields.error(&at, "holds a character that no header can carry"),
            Err(error) => fields.error(&at, error),
        }
    }
    headers
}

/// Headers that frame the request or carry its key.
const RESERVED_HEADERS: [&str; 9] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "expect",
    "authorization",
    "accept-encoding",
    "te",
];

/// What `auth` and the variables come to.
struct Credentials {
    auth: Auth,
    env_keys: Vec<String>,
    keys: Vec<Key>,
}

#[derive(Clone, Copy, PartialEq)]
enum AuthType {
    Bearer,
    Header,
    Query,
    None,
}

const AUTH_TYPES: [(&str, AuthType); 4] = [
    ("bearer", AuthType::Bearer),
    ("header", AuthType::Header),
    ("query", AuthType::Query),
    ("none", AuthType::None),
];

fn read_credentials(
    fields: &Fields<'_>,
    id: &str,
    scope: LimitsScope,
    context: &mut Context<'_>,
) -> Credentials {
    let keyless = fields.flag("keyless").unwrap_or(false);
    let auth = fields.object("auth");
    if auth.is_none() && !keyless && fields.value("auth").is_none() {
        fields.error("auth", r#"is missing; write {"type": "none"} when this provider wants no key"#);
    }
    let (mut kind, mut env_keys, mut accounts) = (Auth::None, Vec::new(), Vec::new());
    if let Some(auth) = &auth {
        kind = read_auth(auth);
        env_keys = auth.texts("envKeys");
        accounts = read_accounts(auth);
        // What stands here by mistake may be the key itself, and its shape tells even where it could be a name.
        let is_key = |name: &str| Redactor::default().redact(name) != name;
        if let Some(bad) = env_keys.iter().find(|name| !is_variable_name(name) || is_key(name)) {
            let shown = mask(bad);
            auth.error(
                "envKeys",
                format!("`{shown}` is no variable name; write the name here and the key into .env"),
            );
        }
        if kind != Auth::None && env_keys.is_empty() && !keyless {
            auth.error("envKeys", "must name at least one variable that holds the key, such as ACME_API_KEY");
        }
        auth.finish();
    }
    if kind == Auth::None {
        return Credentials { auth: kind, env_keys, keys: vec![pool::keyless(id, context.slots)] };
    }
    let spec = PoolSpec {
        provider: id,
        env_keys: &env_keys,
        accounts: &accounts,
        one_account: scope == LimitsScope::Account,
        pasted: context.pasted,
    };
    let (mut keys, faults) = pool::keys(&spec, context.variables, context.fingerprints, context.slots);
    for fault in faults {
        fields.warn("auth.envKeys", fault);
    }
    if keys.is_empty() && keyless {
        // It also serves those who have no key.
        kind = Auth::None;
        keys.push(pool::keyless(id, context.slots));
    }
    Credentials { auth: kind, env_keys, keys }
}

fn read_auth(auth: &Fields<'_>) -> Auth {
    let kind = auth.word("type", &AUTH_TYPES).unwrap_or(AuthType::Bearer);
    let prefix = auth.any_text("prefix").map(str::to_owned);
    if prefix.as_deref().is_some_and(|prefix| !prefix.bytes().all(|b| (b' '..0x7f).contains(&b))) {
        auth.error("prefix", "holds a character that no header can carry");
    }
    let (header, query) = (auth.owned("header"), auth.owned("query"));
    match kind {
        AuthType::Bearer => Auth::Bearer { prefix: prefix.unwrap_or_else(|| "Bearer ".into()) },
        AuthType::Header => {
            if header.is_none() {
                auth.error(
                    "header",
                    "is missing; it names the header that carries the key, such as x-api-key",
                );
            }
            let name = header.unwrap_or_default().to_ascii_lowercase();
            if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
                auth.error("header", "is no header name");
            }
            Auth::Header { name, prefix: prefix.unwrap_or_default() }
        }
        AuthType::Query => {
            if query.is_none() {
                auth.error("query", "is missing; it names the parameter that carries the key, such as key");
            }
            Auth::Query { param: query.unwrap_or_default() }
        }
        AuthType::None => Auth::None,
    }
}

/// `accounts` is a list of lists of variables, or an object from name to such a list.
fn read_accounts(auth: &Fields<'_>) -> Vec<(String, Vec<String>)> {
    match auth.value("accounts") {
        None => Vec::new(),
        Some(Value::Array(groups)) => groups
            .iter()
            .enumerate()
            .map(|(i, group)| ((i + 1).to_string(), auth.texts_of(&format!("accounts[{i}]"), group)))
            .collect(),
        Some(Value::Object(groups)) => groups
            .iter()
            .map(|(name, group)| (name.clone(), auth.texts_of(&format!("accounts.{name}"), group)))
            .collect(),
        Some(other) => {
            auth.error("accounts", format!("must be a list of lists of variables (it is {})", shown(other)));
            Vec::new()
        }
    }
}

/// Whether a text can be the name of an environment variable.
pub fn is_variable_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn read_terms(fields: &Fields<'_>) -> Option<Terms> {
    let terms = fields.object("terms")?;
    let verdict = terms.word(
        "verdict",
        &[
            ("ok", "ok"),
            ("caution", "caution"),
            ("ambiguous", "ambiguous"),
            ("avoid", "avoid"),
            ("unknown", "unknown"),
        ],
    );
    let note = terms.owned("note");
    terms.finish();
    Some(Terms { verdict: verdict.unwrap_or("unknown").into(), note })
}

fn read_date(fields: &Fields<'_>) -> Option<String> {
    let date = fields.text("verifiedOn")?;
    let shape: Vec<bool> = date.bytes().map(|b| b.is_ascii_digit()).collect();
    let dashes = date.len() == 10 && (0..10).all(|i| shape[i] != (i == 4 || i == 7));
    if !dashes || date.as_bytes()[4] != b'-' || date.as_bytes()[7] != b'-' {
        fields.warn("verifiedOn", "should be a date such as 2026-08-16");
    }
    Some(date.to_owned())
}

/// An explicit `null` switches discovery off; `paths.models` is another way to write it.
fn read_models_endpoint(fields: &Fields<'_>, paths: Option<&Fields<'_>>) -> Option<String> {
    let other = paths.and_then(|paths| paths.text("models"));
    if fields.raw("modelsEndpoint").is_some_and(Value::is_null) {
        return None;
    }
    Some(with_slash(fields.text("modelsEndpoint").or(other).unwrap_or("/models")))
}

fn read_models_path(fields: &Fields<'_>) -> String {
    let path = fields.text("modelsPath").unwrap_or("data[].id");
    if let Err(error) = discovery::IdPath::parse(path) {
        fields.error("modelsPath", error);
    }
    path.to_owned()
}

fn with_slash(path: &str) -> String {
    let path = path.trim();
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn read_paths(paths: Option<Fields<'_>>) -> Endpoints {
    let text = |name| paths.as_ref().and_then(|paths| paths.text(name));
    let read = Endpoints {
        chat: with_slash(text("chat").unwrap_or("/chat/completions")),
        embeddings: with_slash(text("embeddings").unwrap_or("/embeddings")),
        completions: with_slash(text("completions").unwrap_or("/completions")),
    };
    if let Some(paths) = paths {
        paths.finish();
    }
    read
}

fn read_quirks(fields: &Fields<'_>) -> Quirks {
    let flag = |name, default| fields.flag(name).unwrap_or(default);
    Quirks {
        drop_params: fields.texts("dropParams"),
        rename_params: read_renames(fields),
        force_params: read_params(fields, "forceParams"),
        default_params: read_params(fields, "defaultParams"),
        max_tokens_field: fields.owned("maxTokensField"),
        stream_usage: flag("streamUsage", true),
        flatten_content: flag("flattenContent", false),
        tool_ids: fields
            .word("toolIds", &[("any", ToolIds::Any), ("alnum9", ToolIds::Alnum9)])
            .unwrap_or_default(),
        drop_message_fields: fields.texts("dropMessageFields"),
        developer_role: flag("developerRole", false),
        null_content_refused: flag("nullContentRefused", false),
        token_inputs: flag("tokenInputs", false),
        error_words: read_error_words(fields),
    }
}

/// Fields that routing lives on: a file may not take them away from a request.
const FIXED_PARAMS: [&str; 4] = ["model", "messages", "stream", "input"];

fn read_renames(fields: &Fields<'_>) -> Vec<(String, String)> {
    let mut waiting = Vec::new();
    for (from, to) in fields.members("renameParams").into_iter().flatten() {
        match to.as_str().filter(|to| !to.is_empty()) {
            Some(to) => waiting.push((from.clone(), to.to_owned())),
            None => fields.error(&format!("renameParams.{from}"), "must be the new name as a text"),
        }
    }
    // A field takes its new name after the one that had it has got another: no field is renamed twice.
    let mut renames = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let free = |(from, to): &(String, String)| from == to || waiting.iter().all(|(other, _)| other != to);
        let Some(at) = waiting.iter().position(free) else {
            fields.error("renameParams", format!("goes in a circle at `{}`", waiting[0].0));
            break;
        };
        renames.push(waiting.remove(at));
    }
    renames
}

fn read_params(fields: &Fields<'_>, name: &'static str) -> Vec<(String, Value)> {
    let mut params = Vec::new();
    for (param, value) in fields.members(name).into_iter().flatten() {
        if FIXED_PARAMS.contains(&param.as_str()) {
            fields.error(&format!("{name}.{param}"), "is set by the gateway itself");
        } else {
            params.push((param.clone(), value.clone()));
        }
    }
    params
}

fn read_error_words(fields: &Fields<'_>) -> Vec<(String, ErrorWord)> {
    let Some(words) = fields.object("errorWords") else { return Vec::new() };
    let mut read = Vec::new();
    for text in words.names() {
        if let Some(meaning) = words.word_at(text, &ERROR_WORDS) {
            read.push((text.to_lowercase(), meaning));
        }
    }
    read
}

fn read_timeouts(fields: &Fields<'_>, timeout_ms: u64) -> Timeouts {
    let timeouts = fields.object("timeouts");
    let ms = |name| timeouts.as_ref().and_then(|timeouts| timeouts.count(name, TIMEOUT_MAX_MS));
    let read = Timeouts {
        connect_ms: ms("connectMs").unwrap_or(CONNECT_MS),
        first_byte_ms: ms("firstByteMs").unwrap_or(timeout_ms),
        idle_ms: ms("idleMs").unwrap_or(IDLE_MS),
        total_ms: ms("totalMs").unwrap_or(timeout_ms),
    };
    if let Some(timeouts) = timeouts {
        timeouts.finish();
    }
    read
}

/// Zones are written `UTC`, `+08:00`, or by the two names that providers use.
fn read_zone(fields: &Fields<'_>) -> ResetZone {
    let Some(text) = fields.text("resetZone") else { return ResetZone::Fixed(0) };
    match text {
        "UTC" | "Z" => ResetZone::Fixed(0),
        "America/Los_Angeles" | "US/Pacific" => ResetZone::UsPacific,
        "Asia/Shanghai" => ResetZone::Fixed(8 * 60),
        _ => match offset_minutes(text) {
            Some(minutes) => ResetZone::Fixed(minutes),
            None => {
                fields.error("resetZone", format!("must be UTC, America/Los_Angeles, Asia/Shanghai or an offset such as +05:30 (it is `{text}`)"));
                ResetZone::Fixed(0)
            }
        },
    }
}

fn offset_minutes(text: &str) -> Option<i32> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let number = |part: &str| (part.len() == 2).then(|| part.parse::<u8>().ok()).flatten().map(i32::from);
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours <= 14 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_with(file: Value, variables: &[(&str, &str)]) -> (Option<Provider>, String) {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let (settings, fingerprints) = (Settings::default(), Fingerprints::new(&[7; 32]));
        let mut slots = Slots::default();
        let mut context = Context {
            variables: &variables,
            settings: &settings,
            fingerprints: &fingerprints,
            pasted: &Vault::default(),
            slots: &mut slots,
        };
        let text = file.as_str().map_or_else(|| file.to_string(), str::to_owned);
        let (provider, issues) = read("acme.json", &text, &mut context);
        (provider, issues.iter().map(|issue| format!("{:?} {}\n", issue.level, issue.message)).collect())
    }

    /// A small whole file with some members set otherwise; `null` takes one away.
    fn file(changes: Value) -> Value {
        let mut file = json!({
            "id": "acme",
            "baseUrl": "https://api.acme.example/v1/",
            "auth": {"type": "bearer", "envKeys": ["ACME_KEY"]},
            "models": [{"id": "acme-turbo"}],
        });
        for (name, value) in changes.as_object().expect("changes are an object") {
            file[name] = value.clone();
        }
        file
    }

    fn good(changes: Value) -> Provider {
        let (provider, issues) = read_with(file(changes), &[("ACME_KEY", "test-key-1")]);
        assert_eq!(issues, "");
        provider.expect("a provider")
    }

    #[test]
    fn a_short_file_gets_every_default() {
        let acme = good(json!({}));
        assert_eq!(
            (&*acme.id, acme.label.as_str(), acme.base_url.as_str()),
            ("acme", "acme", "https://api.acme.example/v1")
        );
        assert_eq!((acme.enabled, acme.priority, acme.local, acme.last_resort), (true, 50.0, false, false));
        assert_eq!(acme.auth, Auth::Bearer { prefix: "Bearer ".into() });
        assert_eq!(
            (acme.models_endpoint.as_deref(), acme.models_path.as_str()),
            (Some("/models"), "data[].id")
        );
        assert_eq!(acme.paths.chat, "/chat/completions");
        assert_eq!(
            acme.timeouts,
            Timeouts { connect_ms: 10_000, first_byte_ms: 60_000, idle_ms: 60_000, total_ms: 60_000 }
        );
        assert_eq!(
            (acme.billing, acme.limits_scope, acme.reset_zone),
            (Billing::FreeTier, LimitsScope::Key, ResetZone::Fixed(0))
        );
        assert!(acme.quirks.stream_usage && !acme.quirks.developer_role && acme.configured());
        let model = &acme.models[0];
        assert_eq!(
            (&*model.reference, model.caps, model.priority, model.context),
            ("acme/acme-turbo", Caps::CHAT, 50.0, None)
        );
    }

    #[test]
    fn every_field_arrives() {
        let changes = r#"{
            "label": "Acme", "priority": 7.5, "enabled": false, "adapter": "openai",
            "paths": {"chat": "chat", "embeddings": "/e", "models": "list", "completions": "/c"},
            "renameParams": {"seed": "random_seed"}, "dropParams": ["logit_bias"], "forceParams": {"store": false},
            "defaultParams": {"top_p": 1}, "maxTokensField": "max_tokens", "streamUsage": false, "flattenContent": true,
            "toolIds": "alnum9", "dropMessageFields": ["reasoning_content"], "developerRole": true,
            "nullContentRefused": true, "tokenInputs": true, "errorWords": {"Free Promotion Has Ended": "modelMissing"},
            "limitsScope": "account", "limitsSource": "observed", "verifiedOn": "2026-08-16",
            "limits": {"rpm": 30, "rpd": null, "tpm": {"max": 6000, "window": "calendar"}, "concurrency": 2, "creditsPerRequest": 15},
            "timeouts": {"connectMs": 1, "firstByteMs": 2, "idleMs": 3, "totalMs": 4},
            "headers": {"X-Title": "Freeway"}, "resetZone": "+05:30", "countsMaxTokens": true, "billing": "mixed",
            "lastResort": true, "signup": "https://acme.example", "terms": {"verdict": "ok", "note": "fine"},
            "auth": {"type": "header", "header": "X-Api-Key", "prefix": "k ", "envKeys": ["ACME_KEY"], "accounts": [["ACME_KEY"]]},
            "models": [{
                "id": "@cf/a/b:free", "label": "B", "alias": ["fast"], "context": 8192, "maxOutput": 1024, "caps": ["chat", "tools"],
                "priority": 1, "enabled": true, "limits": {"rpd": 1000}, "dropParams": ["seed"], "tier": "Large", "rank": 6,
                "credits": {"perMTokIn": 1, "perMTokOut": null}, "paidEquivalent": {"inPerM": 0.1, "outPerM": 0.2}, "dimensions": 8,
            }],
        }"#;
        let acme = good(json::parse(changes).expect("JSON"));
        assert_eq!((acme.models_endpoint.as_deref(), acme.paths.chat.as_str()), (Some("/list"), "/chat"));
        assert_eq!(acme.quirks.rename_params, [("seed".to_owned(), "random_seed".to_owned())]);
        let names = |json: Value| good(json).quirks.rename_params.into_iter().map(|(from, _)| from);
        let chain = json!({"renameParams": {"a": "b", "b": "c", "c": "d", "x": "x"}});
        assert_eq!(names(chain).collect::<String>(), "cbax", "no field is renamed twice");
        assert_eq!(acme.quirks.force_params, [("store".to_owned(), json!(false))]);
        assert_eq!(
            acme.quirks.error_words,
            [("free promotion has ended".to_owned(), ErrorWord::ModelMissing)]
        );
        assert_eq!(acme.limits.max[&Metric::Tpm], Limit { amount: 6000.0, window: WindowKind::Calendar });
        assert_eq!(acme.limits.max[&Metric::Rpm], Limit { amount: 30.0, window: WindowKind::Rolling });
        assert_eq!((acme.limits.max.len(), acme.limits.credits_per_request), (3, Some(15.0)));
        assert_eq!(acme.timeouts, Timeouts { connect_ms: 1, first_byte_ms: 2, idle_ms: 3, total_ms: 4 });
        assert_eq!(acme.auth, Auth::Header { name: "x-api-key".into(), prefix: "k ".into() });
        assert_eq!(acme.headers, [("x-title".to_owned(), "Freeway".to_owned())]);
        assert_eq!(acme.reset_zone, ResetZone::Fixed(330));
        let model = &acme.models[0];
        assert_eq!((model.rank, model.dimensions, model.max_output), (Some(6), Some(8), Some(1024)));
        assert_eq!(model.limits.max[&Metric::Rpd].window, WindowKind::Calendar);
    }

    #[test]
    fn w4_limits_belong_to_each_key_unless_the_file_says_otherwise() {
        let keys = &[("ACME_KEY", "test-key-1,test-key-2")];
        let accounts = |changes: Value| -> Vec<Slot> {
            let (provider, _) = read_with(file(changes), keys);
            provider.expect("a provider").keys.iter().map(|key| key.account).collect()
        };
        let own = accounts(json!({"limits": {"rpm": 2}}));
        assert_ne!(own[0], own[1]);
        let shared = accounts(json!({"limits": {"rpm": 2}, "limitsScope": "account"}));
        assert_eq!(shared[0], shared[1]);
        assert_eq!(good(json!({"limitsScope": "model"})).limits_scope, LimitsScope::Model);
    }

    #[test]
    fn faults_say_where_and_what_to_do() {
        let check = |changes: Value, expected: &str| {
            let (provider, issues) = read_with(file(changes.clone()), &[("ACME_KEY", "test-key-1")]);
            assert!(provider.is_none(), "{changes}");
            assert!(issues.contains(&format!("Error {expected}")), "{changes}: {issues}");
        };
        check(json!({"id": "Acme"}), "id: must be lower-case letters");
        check(json!({"id": null}), "id: is missing");
        check(json!({"id": "a".repeat(65)}), "id: must be");
        check(json!({"baseUrl": null}), "baseUrl: is missing");
        check(json!({"baseUrl": "api.acme.example"}), "baseUrl: must begin with https://");
        check(json!({"baseUrl": 7}), "baseUrl: must be a text");
        check(json!({"adapter": "gemini"}), "adapter: must be one of openai");
        check(json!({"auth": null}), "auth: is missing");
        check(
            json!({"auth": {"type": "bearr", "envKeys": ["K"]}}),
            "auth.type: must be one of bearer, header, query, none (it is \"bearr\"); did you mean `bearer`?",
        );
        check(json!({"auth": {"type": "bearer"}}), "auth.envKeys: must name at least one variable");
        check(
            json!({"auth": {"envKeys": ["sk-pasted-key"]}}),
            "auth.envKeys: `sk-p…-key` is no variable name",
        );
        let whole = format!("gsk_{}", "Ab1c".repeat(8));
        check(json!({"auth": {"envKeys": [whole]}}), "auth.envKeys: `gsk_…Ab1c` is no variable name");
        check(json!({"auth": {"type": "header", "envKeys": ["K"]}}), "auth.header: is missing");
        check(json!({"auth": {"type": "query", "envKeys": ["K"]}}), "auth.query: is missing");
        check(json!({"limits": {"rpm": 0}}), "limits.rpm: must be a number above 0, or null");
        check(json!({"limits": {"rpm": -1}}), "limits.rpm");
        let model = |name: &str, value| json!({"models": [{"id": "m", name: value}]});
        check(model("credits", json!({"perMTokIn": -1})), "models[0].credits.perMTokIn: must be a number of");
        check(
            model("paidEquivalent", json!({"inPerM": 1, "outPerM": -1})),
            "models[0].paidEquivalent.outPerM",
        );
        check(json!({"limits": {"rpm": "30"}}), "limits.rpm");
        check(
            json!({"limits": {"rpd": {"max": 1, "window": "daily"}}}),
            "limits.rpd.window: must be one of rolling, calendar",
        );
        check(json!({"limits": []}), "limits: must be an object");
        check(json!({"models": [{"id": "a"}, {"id": "a"}]}), "models[1].id: `a` stands twice");
        check(json!({"models": [{"label": "x"}]}), "models[0].id: is missing");
        check(json!({"models": ["x"]}), "models[0]: must be an object");
        check(json!({"models": [{"id": "a", "context": 1.5}]}), "models[0].context: must be a whole number");
        check(json!({"models": [{"id": "a", "alias": "fast"}]}), "models[0].alias: must be a list");
        check(json!({"headers": {"Authorization": "x"}}), "headers.Authorization: is set by the gateway");
        check(json!({"headers": {"X-A": "a\nb"}}), "headers.X-A: holds a character");
        check(json!({"forceParams": {"model": "x"}}), "forceParams.model: is set by the gateway");
        check(json!({"resetZone": "Mars"}), "resetZone: must be UTC");
        check(json!({"modelsPath": "data[0].id"}), "modelsPath: `data[0]` is no step");
        check(json!({"errorWords": {"x": "boom"}}), "errorWords.x: must be one of auth");
        check(json!({"timeouts": {"idleMs": 0}}), "timeouts.idleMs: must be a whole number from 1");
        let (_, issues) = read_with(json!("{\n  \"id\": \"acme\"\n  \"x\": 1}"), &[]);
        assert!(issues.starts_with("Error line 3, column 3"), "{issues}");
    }

    #[test]
    fn what_is_merely_odd_is_a_warning() {
        let check = |changes: Value, expected: &str| {
            let (provider, issues) = read_with(file(changes.clone()), &[("ACME_KEY", "test-key-1")]);
            assert!(
                provider.is_some() && issues.contains(&format!("Warning {expected}")),
                "{changes}: {issues}"
            );
        };
        check(json!({"Priority": 1}), "Priority: unknown field, not used; did you mean `priority`?");
        check(
            json!({"auth": {"envKeys": ["ACME_KEY"], "typ": "bearer"}}),
            "auth.typ: unknown field, not used; did you mean `type`?",
        );
        check(
            json!({"models": [{"id": "a", "caps": ["chat", "tool"]}]}),
            "models[0].caps: `tool` is not known and not used",
        );
        check(json!({"baseUrl": "http://api.acme.example/v1"}), "baseUrl: is http:// to a host outside");
        check(json!({"verifiedOn": "yesterday"}), "verifiedOn: should be a date");
    }

    #[test]
    fn a_file_without_an_id_is_told_all_that_is_wrong_with_it() {
        let (provider, told) =
            read_with(file(json!({"id": "Bad!", "baseUrl": "ftp://x", "notse": "x"})), &[]);
        let lines: Vec<&str> = told.lines().collect();
        assert!(provider.is_none() && lines.len() == 3, "{told}");
        assert!(lines[0].starts_with("Error id: ") && lines[1].starts_with("Error baseUrl: "), "{told}");
        assert!(lines[2].starts_with("Warning notse: unknown field"), "{told}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let (acme, issues) = read_with(file(json!({"baseUrl": "https://x.example/${ACCOUNT_ID}/v1"})), &[]);
        let acme = acme.expect("a provider without its variables is still one");
        assert_eq!((issues.as_str(), acme.base_url.as_str()), ("", ""));
        assert_eq!(acme.config_error().as_deref(), Some("missing environment variable(s): ACCOUNT_ID"));
        let (acme, _) = read_with(file(json!({"auth": {"envKeys": ["A", "B"]}})), &[]);
        let error = acme.expect("a provider").config_error();
        assert_eq!(error.as_deref(), Some("no API key found (set one of: A, B)"));
    }

    #[test]
    fn w2_keyless_providers_are_configured() {
        let local = json!({"baseUrl": "${OLLAMA_HOST}/v1", "auth": {"type": "none"}});
        let (ollama, _) = read_with(file(local.clone()), &[("OLLAMA_HOST", "127.0.0.1:11434")]);
        let ollama = ollama.expect("a provider");
        assert_eq!(
            (ollama.base_url.as_str(), ollama.local, ollama.configured()),
            ("http://127.0.0.1:11434/v1", true, true)
        );
        assert_eq!((ollama.keys.len(), ollama.keys[0].secret.expose()), (1, ""));
        let (ollama, issues) = read_with(file(local), &[("OLLAMA_HOST", "ftp://x")]);
        assert!(
            !ollama.expect("a provider").configured() && issues.contains("check the variable OLLAMA_HOST"),
            "{issues}"
        );
        let (open, _) = read_with(file(json!({"keyless": true})), &[]);
        let open = open.expect("a provider");
        assert_eq!((open.auth.clone(), open.configured()), (Auth::None, true));
        let (open, _) = read_with(file(json!({"keyless": true})), &[("ACME_KEY", "test-key-1")]);
        assert_eq!(open.expect("a provider").keys[0].secret.expose(), "test-key-1");
    }

    #[test]
    fn paid_providers_wait_for_leave() {
        let (paid, _) = read_with(file(json!({"billing": "paid"})), &[("ACME_KEY", "test-key-1")]);
        let model = &paid.expect("a provider").models[0];
        assert_eq!((model.enabled, model.standing), (false, Standing::Paid));
        assert!(model.off_reason().is_some_and(|reason| reason.contains("allowPaid")));
        let (paid, _) =
            read_with(file(json!({"billing": "paid", "allowPaid": true})), &[("ACME_KEY", "test-key-1")]);
        assert!(paid.expect("a provider").models[0].enabled);
    }
}
