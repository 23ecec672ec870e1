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
use super::{Issue, IssueLevel, address, discovery, json, spec_model};
use crate::base::text::truncate;

/// What a file needs besides its own text.
pub struct Context<'a> {
    pub variables: &'a BTreeMap<String, String>,
    pub settings: &'a Settings,
    pub fingerprints: &'a Fingerprints,
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
            let provider = read_provider(&fields, context);
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

fn read_provider(fields: &Fields<'_>, context: &mut Context<'_>) -> Option<Provider> {
    let id = read_id(fields)?;
    // The only value there is; kept so that files of the original are taken.
    fields.word("adapter", &[("openai", ())]);
    let (base_url, local, mut missing_vars) = read_base_url(fields, context);
    let headers = read_headers(fields, context, &mut missing_vars);
    let limits_scope = fields.word("limitsScope", &SCOPES).unwrap_or(LimitsScope::Key);
    let credentials = read_credentials(fields, &id, limits_scope, context);
    let billing = fields.word("billing", &BILLINGS).unwrap_or(Billing::FreeTier);
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
        limits_source: fields.word("limitsSource", &SOURCES).unwrap_or(LimitsSource::Unverified),
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
        last_resort: fields.flag("lastResort").unwrap_or(false),
        models,
        id: id.into(),
    })
}

const SCOPES: [(&str, LimitsScope); 3] =
    [("key", LimitsScope::Key), ("model", LimitsScope::Model), ("account", LimitsScope::Account)];
const SOURCES: [(&str, LimitsSource); 3] = [
    ("docs", LimitsSource::Docs),
    ("observed", LimitsSource::Observed),
    ("unverified", LimitsSource::Unverified),
];
const BILLINGS: [(&str, Billing); 4] = [
    ("free", Billing::Free),
    ("freeTier", Billing::FreeTier),
    ("mixed", Billing::Mixed),
    ("paid", Billing::Paid),
];
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
    let (mut text, missing) = match address::interpolate(template, context.variables) {
        Ok(found) => found,
        Err(error) => {
            fields.error("baseUrl", error);
            return nothing();
        }
    };
    if !missing.is_empty() {
        return (String::new(), false, missing);
    }
    // Ollama's own variable is commonly set as `host:port`.
    if template.starts_with("${") && !text.contains("://") {
        text.insert_str(0, "http://");
    }
    match address::base_url(&text) {
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
            let names = variable_names(template);
            fields.warn("baseUrl", format!("{error}; check the variable {}", names.join(", ")));
            (String::new(), false, names)
        }
        Err(error) => {
            fields.error("baseUrl", error);
            nothing()
        }
    }
}

fn variable_names(template: &str) -> Vec<String> {
    template
        .split("${")
        .skip(1)
        .filter_map(|part| part.split_once('}'))
        .map(|(name, _)| name.to_owned())
        .collect()
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
        if let Some(bad) = env_keys.iter().find(|name| !is_variable_name(name)) {
            auth.error(
                "envKeys",
                format!("`{bad}` is no variable name; write the name here and the key into .env"),
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

fn read_paths(paths: Option<Fields<'_>>) -> Paths {
    let text = |name| paths.as_ref().and_then(|paths| paths.text(name));
    let read = Paths {
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
    let mut renames = Vec::new();
    for (from, to) in fields.members("renameParams").into_iter().flatten() {
        match to.as_str().filter(|to| !to.is_empty()) {
            Some(to) => renames.push((from.clone(), to.to_owned())),
            None => fields.error(&format!("renameParams.{from}"), "must be the new name as a text"),
        }
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
