//! The last answer of a request that nobody served. Its status says what would help: time (429), a shorter request
//! (413), configuration (503), another model (400, 404), or another try (502, 504).
//!
//! Every text names the next step, and none of them holds a key.
use serde_json::{Value, json};

use super::failover::{Dead, DeadEnd, Failover, Hop};
use super::network;
use super::outcome::{Class, Failure};
use super::plan::{Ask, Blocked, Obstacle, Why};
use crate::base::redact::Redactor;
use crate::base::text::{closest, human_count, human_duration};
use crate::catalog::names::{How, Kind, Resolution};
use crate::catalog::provider::{Caps, Metric, Standing};
use crate::catalog::{Catalog, ModelIx};
use crate::quota::{Bench, Cause, Scope};
use crate::wire::error::{ApiError, ErrorType};
use crate::wire::upstream_error::mask_ids;

/// Blocked models that one answer lists.
const BLOCKED_MAX: usize = 50;
/// Providers whose variables one message names.
const ADVICE_MAX: usize = 4;
/// Told to a client when somebody will be free again and nobody knows when: a call in flight has to end first.
const RETRY_UNKNOWN_MS: u64 = 1_000;

/// What an answer speaks about.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub catalog: &'a Catalog,
    pub resolution: &'a Resolution,
    /// The model string as the client wrote it.
    pub model: &'a str,
    pub redactor: &'a Redactor,
}

/// The answer when a request's failover has come to its end.
pub fn answer(dead: &Dead, failover: &Failover, asked: &Asked<'_>) -> ApiError {
    let error = match (dead.end, failover.hops().last()) {
        (DeadEnd::ClientLeft, _) => ApiError::new(499, "client_closed_request", "the client left"),
        (DeadEnd::Offline, _) => ApiError::new(
            503,
            "offline",
            "this machine has no network: its providers cannot even be reached; check its connection, \
             the gateway tries again on its own",
        )
        .retry_after(network::RETRY_MS),
        (DeadEnd::Returned, Some(hop)) => return with_attempts(returned(hop, asked), failover, asked),
        (DeadEnd::Blocked, _) | (_, None) => blocked(&dead.blocked, failover.ask(), asked),
        (DeadEnd::Failed, Some(last)) => failed(&dead.blocked, failover, last, asked),
    };
    with_attempts(with_blocked(error, &dead.blocked, failover.ask(), asked), failover, asked)
}

/// The answer when the model string means nothing here.
pub fn unmatched(resolution: &Resolution, model: &str) -> ApiError {
    // The list of suggestions is generous; the sentence speaks only of what may really have been meant.
    let near = resolution.suggestions.iter().find(|reference| is_near(model, reference));
    let near = match near {
        Some(near) => format!("; did you mean `{near}`?"),
        None => "; GET /v1/models lists those that this key may use".to_owned(),
    };
    let of_list = resolution.route.starts_with("list:");
    ApiError::new(404, "model_not_found", format!("no model `{model}`{near}"))
        .param(if of_list { "models" } else { "model" })
        .with("requested", model)
        .with("resolution", resolution.route.as_str())
        .with("suggestions", resolution.suggestions.clone())
}

/// Whether a model string may be a slip in a model's reference, or in its id alone.
fn is_near(model: &str, reference: &str) -> bool {
    let id = reference.split_once('/').map_or(reference, |(_, id)| id);
    closest(model, [reference, id]).is_some()
}

/// A model that time will free again, and how soon.
fn soonest(blocked: &[Blocked]) -> Option<&Blocked> {
    let by_time = blocked.iter().filter(|blocked| blocked.why() == Why::Time);
    by_time.min_by_key(|blocked| blocked.retry_in_ms.unwrap_or(u64::MAX))
}

/// Nobody could be asked.
fn blocked(all: &[Blocked], ask: &Ask, asked: &Asked<'_>) -> ApiError {
    let is = |why: Why| all.iter().any(|blocked| blocked.why() == why);
    let model = asked.model;
    if let Some(first) = soonest(all) {
        let wait = first.retry_in_ms.unwrap_or(RETRY_UNKNOWN_MS);
        let message = format!(
            "every provider for `{model}` is busy or resting; the first is free again in {}: {}: {}",
            human_duration(wait),
            asked.catalog.model(first.at).reference,
            reason(first, ask, asked.catalog),
        );
        return ApiError::new(429, "all_providers_blocked", message);
    }
    if is(Why::Size) {
        return too_large(all, ask, asked);
    }
    if is(Why::Missing) {
        let message = format!("no provider has `{model}` (any more); GET /v1/models lists what there is");
        return ApiError::new(404, "model_not_found", message).param("model");
    }
    let anybody = asked.catalog.providers.iter().any(|provider| provider.enabled && provider.configured());
    if is(Why::Config) || (all.is_empty() && !anybody) {
        return not_configured(all, ask, asked);
    }
    if all.is_empty() && ask.kind == Kind::Chat {
        // Not that they could not do it: a profile whose models are gone, or a provider whose list has not come yet.
        let message = format!(
            "no model is there for `{model}` just now: none of those that it stands for is known, or no model list has \
             been fetched; `freeway doctor` tells more"
        );
        return ApiError::new(503, "no_provider_configured", message);
    }
    lacks_capability(all, ask, asked)
}

/// The request is larger than anybody takes.
fn too_large(all: &[Blocked], ask: &Ask, asked: &Asked<'_>) -> ApiError {
    let room = |blocked: &Blocked| match blocked.obstacle {
        Obstacle::TooLong { room, .. } => Some((room, blocked.at, needed(ask))),
        // A limit holds for all inputs of embeddings together, a window for each.
        Obstacle::NeverFits { metric, limit } if metric.is_none_or(counts_tokens) => {
            let all = ask.shrink.map_or(ask.prompt_tokens, |shrink| shrink.core_tokens);
            Some((limit as u64, blocked.at, all))
        }
        _ => None,
    };
    let widest = all.iter().filter_map(room).max_by_key(|(room, ..)| *room);
    let available = widest.map(|(room, ..)| room);
    let need = widest.map_or_else(|| needed(ask), |(.., need)| need);
    let most = available.map_or(String::new(), |most| format!(" but only {most} are available at most"));
    let what = if ask.kind == Kind::Chat { "the conversation" } else { "`input`" };
    let message = format!(
        "the request needs ~{need} tokens{most}; shorten {what}, or add a provider whose model takes more than `{}` \
         does",
        asked.model
    );
    let error = ApiError::new(413, "context_length_exceeded", message)
        .param(content_field(ask))
        .with("code", "context_too_large")
        .with("required", need)
        .with("available", available);
    match widest {
        Some((_, at, _)) => error
            .with("provider", &*asked.catalog.provider(at).id)
            .with("model", &*asked.catalog.model(at).id),
        None => error,
    }
}

/// What has to fit somewhere: all of the request, or what cannot be left out of it.
fn needed(ask: &Ask) -> u64 {
    ask.shrink.map_or(ask.window_tokens, |shrink| shrink.core_tokens)
}

fn counts_tokens(metric: Metric) -> bool {
    matches!(metric, Metric::Tpm | Metric::Tph | Metric::Tpd | Metric::Tpmo)
}

/// Keys or switches are missing.
fn not_configured(all: &[Blocked], ask: &Ask, asked: &Asked<'_>) -> ApiError {
    let mut advice: Vec<String> = Vec::new();
    let mut seen: Vec<u16> = Vec::new();
    for blocked in all.iter().filter(|blocked| blocked.why() == Why::Config) {
        if advice.len() < ADVICE_MAX && !seen.contains(&blocked.at.provider) {
            seen.push(blocked.at.provider);
            let provider = &asked.catalog.provider(blocked.at).id;
            advice.push(format!("{provider}: {}", reason(blocked, ask, asked.catalog)));
        }
    }
    if advice.is_empty() {
        // Not even a model is known: name the providers that only lack a key.
        let lacking = asked.catalog.providers.iter().filter(|provider| provider.enabled);
        let lacking = lacking.filter_map(|provider| Some((&provider.id, provider.config_error()?)));
        advice.extend(lacking.take(ADVICE_MAX).map(|(id, what)| format!("{id}: {what}")));
    }
    let kind = if ask.kind == Kind::Embed { " for embeddings" } else { "" };
    let message = match advice.is_empty() {
        true => {
            format!("no provider{kind} is set up for `{}`; add one with `freeway provider new`", asked.model)
        }
        false => format!("no provider{kind} is ready for `{}`; {}", asked.model, advice.join("; ")),
    };
    ApiError::new(503, "no_provider_configured", message)
}

/// No model gives so many answers at once. `said` is what the last one said to it, if one was asked.
fn fewer_choices(said: Option<String>, ask: &Ask, asked: &Asked<'_>) -> ApiError {
    let said = said.map_or(String::new(), |said| format!(": {said}"));
    let message = format!(
        "no model behind `{}` gives {} choices at once{said}; ask with `n`: 1",
        asked.model, ask.choices
    );
    ApiError::new(400, "capability_unavailable", message).param("n")
}

/// No model can do what is asked.
fn lacks_capability(all: &[Blocked], ask: &Ask, asked: &Asked<'_>) -> ApiError {
    if all.iter().any(|blocked| blocked.obstacle == Obstacle::FewerChoices) {
        return fewer_choices(None, ask, asked);
    }
    let missing = |blocked: &Blocked| match blocked.obstacle {
        Obstacle::LacksCaps(caps) => Some(caps),
        _ => None,
    };
    // Of several, the model that lacks least is the one to speak of.
    let least = all.iter().filter_map(missing).min_by_key(|caps| caps.0.count_ones()).unwrap_or(ask.needed());
    let others = match asked.resolution.how {
        _ if least == Caps::TOKEN_INPUTS => "send `input` as text",
        How::Auto => "add a provider whose model has it",
        _ => "ask for `auto` or a model that GET /v1/models lists with it",
    };
    let message = format!("no model behind `{}` has: {}; {others}", asked.model, names(least));
    let fields = [
        (Caps::TOOLS, "tools"),
        (Caps::JSON, "response_format"),
        (Caps::VISION, "messages"),
        (Caps::TOKEN_INPUTS, "input"),
    ];
    let param = fields.into_iter().find(|(cap, _)| least.has(*cap)).map_or("model", |(_, param)| param);
    ApiError::new(400, "capability_unavailable", message).param(param)
}

fn names(caps: Caps) -> String {
    let ids = caps.has(Caps::TOKEN_INPUTS).then_some("token ids as input");
    caps.names().chain(ids).collect::<Vec<_>>().join(", ")
}

/// Somebody was asked, nobody answered.
fn failed(all: &[Blocked], failover: &Failover, last: &Hop, asked: &Asked<'_>) -> ApiError {
    let waiting = soonest(all);
    if waiting.is_none() && failover.only(Class::is_size) {
        let error = too_large(all, failover.ask(), asked);
        return if all.iter().any(|blocked| blocked.why() == Why::Size) {
            error
        } else {
            said_too_large(last, failover.ask(), asked)
        };
    }
    if waiting.is_none() && failover.only(|class| class == Class::FewerChoices) {
        return fewer_choices(Some(said(last, asked)), failover.ask(), asked);
    }
    if waiting.is_none() && failover.only(|class| class == Class::ModelMissing) {
        let message = format!("no provider has `{}` (any more): {}", asked.model, said(last, asked));
        return ApiError::new(404, "model_not_found", message).param("model");
    }
    // What was too large says less than what went wrong elsewhere.
    let telling = failover.hops().iter().rev().find(|hop| !hop.failure.class.is_size()).unwrap_or(last);
    let status = match telling.failure.class {
        Class::RateLimited | Class::QuotaSpent => 429,
        class if class.is_size() => 429,
        _ if telling.failure.timed_out => 504,
        _ => 502,
    };
    let message = format!(
        "{} of {} upstream calls failed; the last one: {}: {}",
        failover.hops().len(),
        failover.calls(),
        asked.catalog.model(telling.at).reference,
        said(telling, asked),
    );
    let error = ApiError::new(status, "all_attempts_failed", message);
    match waiting.and_then(|blocked| blocked.retry_in_ms).or(telling.failure.wait_ms) {
        Some(ms) => error.retry_after(ms),
        None => error,
    }
}

/// The request is too large, and only the upstream knows by how much.
fn said_too_large(last: &Hop, ask: &Ask, asked: &Asked<'_>) -> ApiError {
    ApiError::new(413, "context_length_exceeded", said(last, asked))
        .param(content_field(ask))
        .with("code", "context_too_large")
}

/// The field that holds what a request is about.
fn content_field(ask: &Ask) -> &'static str {
    if ask.kind == Kind::Chat { "messages" } else { "input" }
}

/// What an upstream said, fit for a client.
fn said(hop: &Hop, asked: &Asked<'_>) -> String {
    let text = asked.redactor.redact(&hop.failure.message).into_owned();
    match hop.failure.class {
        Class::BadKey => format!("the provider refused key {} of its pool: {text}", hop.key + 1),
        _ => text,
    }
}

/// An upstream's own error, in our envelope.
fn returned(hop: &Hop, asked: &Asked<'_>) -> ApiError {
    let Failure { class, status, code, kind, param, raw, .. } = &hop.failure;
    let status = status.filter(|status| (400..500).contains(status)).unwrap_or(400);
    let code = match (class, code) {
        (Class::ModelMissing, _) => "model_not_found",
        (_, Some(code)) => code,
        (_, None) => "",
    };
    let mut error = ApiError::new(status, code, asked.redactor.redact(&hop.failure.message));
    if kind.as_deref() == Some("invalid_request_error") {
        error.kind = ErrorType::InvalidRequest;
    }
    error.param = param.clone();
    let raw = asked.redactor.redact(&mask_ids(raw)).into_owned();
    let body = serde_json::from_str::<Value>(&raw).unwrap_or(Value::String(raw));
    error.with("upstream", json!({"status": hop.failure.status, "body": body}))
}

fn with_attempts(error: ApiError, failover: &Failover, asked: &Asked<'_>) -> ApiError {
    let attempts: Vec<Value> = failover
        .hops()
        .iter()
        .map(|hop| {
            json!({
                "provider": &*asked.catalog.provider(hop.at).id,
                "model": &*asked.catalog.model(hop.at).id,
                "key": hop.key + 1,
                "status": hop.failure.status,
                "ms": hop.took_ms,
                "cause": hop.failure.cause,
                "error": asked.redactor.redact(&hop.failure.message),
            })
        })
        .collect();
    let error = error.with("requested", asked.model).with("resolution", asked.resolution.route.as_str());
    if attempts.is_empty() { error } else { error.with("attempts", attempts) }
}

fn with_blocked(error: ApiError, all: &[Blocked], ask: &Ask, asked: &Asked<'_>) -> ApiError {
    let catalog = asked.catalog;
    let listed: Vec<Value> = all
        .iter()
        .take(BLOCKED_MAX)
        .map(|blocked| {
            json!({
                "provider": &*catalog.provider(blocked.at).id,
                "model": &*catalog.model(blocked.at).id,
                "reason": reason(blocked, ask, catalog),
                "retryAfterMs": blocked.retry_in_ms,
            })
        })
        .collect();
    let mut error = error.with("blocked", listed);
    if all.len() > BLOCKED_MAX {
        error = error.with("blockedMore", all.len() - BLOCKED_MAX);
    }
    // Other answers are not mended by waiting.
    let Some(first) = soonest(all).filter(|_| matches!(error.status, 429 | 502 | 504)) else {
        let wait = error.retry_after_ms;
        return error.with("retryAfterMs", wait);
    };
    let wait = error.retry_after_ms.or(first.retry_in_ms).unwrap_or(RETRY_UNKNOWN_MS);
    let (provider, model) = (catalog.provider(first.at), catalog.model(first.at));
    error
        .retry_after(wait)
        .with("retryAfterMs", wait)
        .with("nextEligible", json!({"provider": &*provider.id, "model": &*model.id, "inMs": wait}))
        .with("next_eligible_model", &*model.reference)
}

/// Why a model cannot be called, and what to do about it.
pub fn reason(blocked: &Blocked, ask: &Ask, catalog: &Catalog) -> String {
    let (provider, model) = (catalog.provider(blocked.at), catalog.model(blocked.at));
    let pool = provider.keys.len();
    let whose = match blocked.key {
        Some(key) if pool > 1 => format!("all {pool} keys are out; soonest is key {}: ", key + 1),
        _ => String::new(),
    };
    let what = match blocked.obstacle {
        Obstacle::LacksCaps(caps) => {
            format!("missing capability: {} (ask for a model that has it)", names(caps))
        }
        Obstacle::FewerChoices => {
            format!("gives fewer than {} choices at once (ask with `n`: 1)", ask.choices)
        }
        Obstacle::ProviderOff => {
            "provider disabled (switch it on in the page, or set `\"enabled\": true` in its file)".to_owned()
        }
        Obstacle::NotConfigured => {
            format!("provider not configured: {}", provider.config_error().unwrap_or_default())
        }
        Obstacle::ModelOff if model.standing == Standing::Paid => {
            model.off_reason().unwrap_or_default().to_owned()
        }
        Obstacle::ModelOff => {
            "model disabled (switch it on in the page, or set `\"enabled\": true` in its file)".to_owned()
        }
        Obstacle::TooLong { window, room } => format!(
            "context window {} < required {} tokens (shorten the conversation, or ask for a larger model)",
            human_count(window as f64),
            human_count((needed(ask) + window.saturating_sub(room)) as f64)
        ),
        Obstacle::NeverFits { metric, limit } => format!(
            "this one request is above the {} limit of {} (shorten it)",
            metric.map_or("token rate", Metric::name),
            human_count(limit)
        ),
        Obstacle::Benched(bench) => benched(&bench, blocked, catalog),
        Obstacle::Full { metric, used, limit, .. } => {
            let until = match blocked.retry_in_ms {
                Some(ms) => format!("free again in {}", human_duration(ms)),
                None => "free again when a call in flight ends".to_owned(),
            };
            format!("{} limit reached ({}/{}); {until}", metric.name(), human_count(used), human_count(limit))
        }
        Obstacle::Short(short) => format!(
            "what the provider says to be left of its {} is in use; free again in {}",
            if short.tokens { "tokens" } else { "requests" },
            human_duration(short.retry_in_ms)
        ),
        Obstacle::Offline => "this machine has no network (check its connection)".to_owned(),
        Obstacle::Tried => "failed in this request".to_owned(),
    };
    whose + &what
}

fn benched(bench: &Bench, blocked: &Blocked, catalog: &Catalog) -> String {
    let provider = catalog.provider(blocked.at);
    let who = match bench.scope {
        Scope::Provider(_) => "provider",
        Scope::Model(_) => "model",
        Scope::Key(_) => "key",
        Scope::KeyModel(..) => "key, for this model,",
        Scope::Account(_) => "account",
        Scope::AccountModel(..) => "account, for this model,",
    };
    let source = blocked.key.and_then(|key| provider.keys.get(key)).map_or("its variable", |key| &key.source);
    let why = match bench.cause {
        Cause::Auth => format!("its key was refused; put a valid one into {source}"),
        Cause::Credit => "it is out of credit; top it up or wait".to_owned(),
        Cause::Forbidden => {
            "it may not be used with this key; ask the provider, or use another key".to_owned()
        }
        Cause::RateLimit => "rate limit; wait, or add a key".to_owned(),
        Cause::Quota => "its quota is used up; wait, or add a key".to_owned(),
        Cause::ModelMissing => "the provider does not have it (any more); check its id".to_owned(),
        Cause::Unavailable => "it failed or did not answer; it is asked again on its own".to_owned(),
        Cause::NoAnswer => "it answered with nothing useful; it is asked again on its own".to_owned(),
    };
    let left = human_duration(blocked.retry_in_ms.unwrap_or(0));
    format!("{who} cooling down for {left}: {why} (bench {})", bench.id)
}

/// Whether a resolution has nothing to try, so that [`unmatched`] is the answer.
pub fn is_unmatched(resolution: &Resolution) -> bool {
    resolution.models.is_empty() && !matches!(resolution.how, How::Auto | How::PinProvider | How::Profile)
}

/// The hops of a trail: `provider/model:cause`.
pub fn trail(hops: &[Hop], catalog: &Catalog) -> Vec<String> {
    hops.iter().map(|hop| format!("{}:{}", reference(catalog, hop.at), hop.failure.cause)).collect()
}

fn reference(catalog: &Catalog, at: ModelIx) -> &str {
    &catalog.model(at).reference
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::failover::Next;
    use super::super::live::Live;
    use super::super::manner::Manner;
    use super::super::plan::Order;
    use super::super::speed::Answer;
    use super::super::verdict::Policy;
    use super::*;
    use crate::base::clock::Now;
    use crate::catalog::fixture;
    use crate::catalog::settings::{Settings, Strategy};
    use crate::quota::Term;

    const NOW: Now = Now::at(10 * 3_600_000, 1_796_104_800_000);

    fn ask(kind: Kind, caps: Caps) -> Ask {
        Ask {
            kind,
            caps,
            prompt_tokens: 9_000,
            window_tokens: 9_000,
            shrink: None,
            max_output: None,
            choices: 1,
            answer: Answer::Whole,
        }
    }

    /// The answer of a request for which nobody can be called.
    fn dead(files: &[Value], ask: Ask, prepare: impl Fn(&Catalog, &mut Live)) -> ApiError {
        let catalog = fixture::catalog(files);
        let resolution = Resolution {
            route: "auto".into(),
            models: catalog.all().collect(),
            how: How::Auto,
            strategy: None,
            keep_order: false,
            suggestions: Vec::new(),
        };
        let mut live = Live::new();
        prepare(&catalog, &mut live);
        let order = Arc::new(Order::new(&catalog, &resolution, ask.needed()));
        let manner = Manner {
            route: "auto",
            strategy: Strategy::Priority,
            keep_order: false,
            pinned: false,
            fill_max: 1.0,
        };
        let policy = Policy::new(&Settings::default());
        let mut failover = Failover::new(order, ask, policy, &manner, &mut live, NOW);
        let Next::GiveUp(dead) = failover.next(&catalog, &mut live, NOW) else { panic!("somebody serves") };
        let redactor = Redactor::default();
        let asked = Asked { catalog: &catalog, resolution: &resolution, model: "auto", redactor: &redactor };
        answer(&dead, &failover, &asked)
    }

    #[track_caller]
    fn check(error: &ApiError, status: u16, code: &str, hint: &str) {
        assert_eq!((error.status, error.code.as_str()), (status, code), "{}", error.message);
        assert!(error.message.contains(hint), "{}", error.message);
    }

    #[test]
    fn the_status_says_what_would_help() {
        let chat = ask(Kind::Chat, Caps::default());
        let tools = ask(Kind::Chat, Caps::TOOLS);
        let off = json!({"id": "off", "enabled": false, "models": [{"id": "m"}]});
        let bare = json!({"id": "bare", "auth": {"type": "bearer", "envKeys": ["BARE_KEY"]}, "models": [{"id": "m"}]});
        let small = json!({"id": "small", "models": [{"id": "m", "context": 8_192}]});
        let plain = json!({"id": "plain", "models": [{"id": "m"}]});
        let rest = |catalog: &Catalog, live: &mut Live| {
            let last = catalog.providers.last().expect("a provider");
            let term = Term::Named { ms: 41_200 };
            live.benches.put(Scope::Provider(last.slot), Cause::Unavailable, term, NOW.mono_ms, NOW);
        };
        let nothing = |_: &Catalog, _: &mut Live| {};

        let error = dead(&[off.clone(), small.clone(), plain.clone()], chat, rest);
        check(&error, 429, "all_providers_blocked", "plain/m: provider cooling down for 41 s");
        assert_eq!(error.retry_after_s(), Some(42), "QUO-09");
        assert_eq!(error.kind, ErrorType::RateLimit);
        let error = dead(&[off.clone(), bare.clone(), small.clone()], chat, nothing);
        check(&error, 413, "context_length_exceeded", "needs ~9000 tokens but only 8192 are available");
        assert_eq!((error.retry_after_s(), error.freeway["retryAfterMs"].clone()), (None, Value::Null));
        let error = dead(&[off.clone(), bare.clone()], chat, nothing);
        check(
            &error,
            503,
            "no_provider_configured",
            "bare: provider not configured: no API key found (set BARE_KEY)",
        );
        check(&error, 503, "no_provider_configured", "off: provider disabled");
        let error = dead(std::slice::from_ref(&plain), tools, nothing);
        check(&error, 400, "capability_unavailable", "tools");
        assert_eq!(error.param.as_deref(), Some("tools"));
        check(&dead(&[plain, bare], tools, nothing), 400, "capability_unavailable", "tools");
        check(&dead(&[], chat, nothing), 503, "no_provider_configured", "freeway provider new");
    }

    #[test]
    fn missing_models_are_a_404_without_a_wait() {
        let plain = json!({"id": "plain", "models": [{"id": "m"}]});
        let error = dead(&[plain], ask(Kind::Chat, Caps::default()), |catalog, live| {
            let scope = Scope::Model(catalog.providers[0].models[0].slot);
            live.benches.put(scope, Cause::ModelMissing, Term::Named { ms: 9_000 }, NOW.mono_ms, NOW);
        });
        check(&error, 404, "model_not_found", "GET /v1/models");
        assert_eq!(error.retry_after_s(), None);
    }

    #[test]
    fn long_lists_are_cut() {
        let models: Vec<Value> = (0..80).map(|n| json!({"id": format!("m{n}"), "context": 10})).collect();
        let error =
            dead(&[json!({"id": "a", "models": models})], ask(Kind::Chat, Caps::default()), |_, _| {});
        assert_eq!(error.freeway["blocked"].as_array().map(Vec::len), Some(BLOCKED_MAX));
        assert_eq!(error.freeway["blockedMore"], 30);
    }

    #[test]
    fn an_unknown_model_gets_suggestions() {
        let resolution = Resolution {
            route: "unmatched:gpt-9".into(),
            models: Vec::new(),
            how: How::Unmatched,
            strategy: None,
            keep_order: false,
            suggestions: vec!["a/gpt-5".into()],
        };
        assert!(is_unmatched(&resolution));
        let error = unmatched(&resolution, "gpt-9");
        check(&error, 404, "model_not_found", "did you mean `a/gpt-5`?");
        assert_eq!(error.freeway["suggestions"], json!(["a/gpt-5"]));
    }

    #[test]
    fn every_reason_names_the_next_step() {
        let catalog = fixture::catalog(&[json!({"id": "a", "models": [{"id": "m", "enabled": false}]})]);
        let at = ModelIx { provider: 0, model: 0 };
        let (provider, model) = (&catalog.providers[0], &catalog.providers[0].models[0]);
        let mut live = Live::new();
        let mut bench = |scope, cause| {
            Obstacle::Benched(live.benches.put(scope, cause, Term::Named { ms: 90_000 }, NOW.mono_ms, NOW))
        };
        let check = |obstacle, expected: &str| {
            let blocked = Blocked::new(at, Some(0), obstacle, NOW);
            assert_eq!(reason(&blocked, &ask(Kind::Chat, Caps::default()), &catalog), expected);
        };
        check(Obstacle::LacksCaps(Caps::VISION), "missing capability: vision (ask for a model that has it)");
        check(
            Obstacle::ProviderOff,
            "provider disabled (switch it on in the page, or set `\"enabled\": true` in its file)",
        );
        check(
            Obstacle::ModelOff,
            "model disabled (switch it on in the page, or set `\"enabled\": true` in its file)",
        );
        check(
            Obstacle::TooLong { window: 8_192, room: 8_192 },
            "context window 8.2K < required 9.0K tokens (shorten the conversation, or ask for a larger model)",
        );
        check(
            Obstacle::NeverFits { metric: Some(Metric::Tpm), limit: 6_000.0 },
            "this one request is above the tpm limit of 6.0K (shorten it)",
        );
        check(
            Obstacle::Full { metric: Metric::Rpm, used: 2.0, limit: 2.0, retry_in_ms: Some(41_200) },
            "rpm limit reached (2/2); free again in 41 s",
        );
        check(
            Obstacle::Full { metric: Metric::Concurrency, used: 1.0, limit: 1.0, retry_in_ms: None },
            "concurrency limit reached (1/1); free again when a call in flight ends",
        );
        check(
            bench(Scope::Key(provider.keys[0].slot), Cause::Auth),
            "key cooling down for 90 s: its key was refused; put a valid one into TEST_KEY (bench 1)",
        );
        check(
            bench(Scope::KeyModel(provider.keys[0].slot, model.slot), Cause::RateLimit),
            "key, for this model, cooling down for 90 s: rate limit; wait, or add a key (bench 2)",
        );
        check(
            bench(Scope::Provider(provider.slot), Cause::Unavailable),
            "provider cooling down for 90 s: it failed or did not answer; it is asked again on its own (bench 3)",
        );
    }
}
