//! Small questions to a provider with one key: which models are there, and does a model answer. For discovery, key
//! health and `freeway provider verify`.
use std::time::{Duration, Instant};

use serde_json::json;

use super::adapt::is_for_embeddings;
use super::client::{Accept, Call, Client, Method, Reply};
use super::cut::Cut;
use super::watch::Watch;
use crate::catalog::discovery::{self, DiscoveredModel};
use crate::catalog::provider::{Caps, Key, Metric, Model, Provider};
use crate::wire::exchange::{Fault, Headers};

/// Largest model list that is read.
const LIST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// As much of any other answer as is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Longest wait for one answer, whatever the file says: a probe is a small question.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Tokens asked for: some providers refuse fewer than three.
const PROBE_TOKENS: u32 = 4;

/// An answer to a probe.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Headers,
    pub body: Vec<u8>,
    pub took_ms: u64,
}

/// Asks for the model list. `None` when the provider's file switches discovery off.
pub fn list(client: &Client, provider: &Provider, key: &Key) -> Option<Result<Answer, Fault>> {
    let path = provider.models_endpoint.as_deref()?;
    Some(ask(client, provider, key, Method::Get, path, &[], LIST_BYTES_MAX))
}

/// The models of a list that was answered with 2xx; else what came instead.
pub fn models_of(provider: &Provider, answer: &Answer) -> Result<Vec<DiscoveredModel>, String> {
    if !(200..300).contains(&answer.status) {
        return Err(format!("the model list answered {}", answer.status));
    }
    discovery::parse_models(provider, &answer.body)
}

/// A fetched model list.
#[derive(Debug)]
pub struct Fetched {
    pub models: Vec<DiscoveredModel>,
    pub took_ms: u64,
}

/// Fetches the model list with the first key that is let in. The error is of the last key tried, unredacted.
pub fn fetch_models(client: &Client, provider: &Provider) -> Result<Fetched, String> {
    if let Some(error) = provider.config_error() {
        return Err(error);
    }
    let mut failed = String::new();
    for key in &provider.keys {
        let answered = list(client, provider, key);
        let answered = answered.ok_or("its file switches discovery off (modelsEndpoint is null)")?;
        let fetched = answered.map_err(|fault| fault.message).and_then(|answer| {
            let models = models_of(provider, &answer)?;
            Ok(Fetched { models, took_ms: answer.took_ms })
        });
        match fetched {
            Ok(fetched) => return Ok(fetched),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Asks one model for a few tokens, or for the vector of one word.
pub fn try_model(client: &Client, provider: &Provider, model: &Model, key: &Key) -> Result<Answer, Fault> {
    let (path, body) = if model.caps.has(Caps::EMBED) {
        let mut body = json!({"model": *model.id, "input": "ping"});
        let forced = provider.quirks.force_params.iter().filter(|(name, _)| is_for_embeddings(name));
        forced.for_each(|(name, value)| body[name] = value.clone());
        (&provider.paths.embeddings, body)
    } else {
        let cap = provider.quirks.max_tokens_field.as_deref().unwrap_or("max_tokens");
        let messages = json!([{"role": "user", "content": "hi"}]);
        let mut body = json!({"model": *model.id, "messages": messages, cap: PROBE_TOKENS});
        // What it insists on, it insists on here, too.
        provider.quirks.force_params.iter().for_each(|(name, value)| body[name] = value.clone());
        (&provider.paths.chat, body)
    };
    ask(client, provider, key, Method::Post, path, body.to_string().as_bytes(), ANSWER_BYTES_MAX)
}

fn ask(
    client: &Client,
    provider: &Provider,
    key: &Key,
    method: Method,
    path: &str,
    body: &[u8],
    max_bytes: usize,
) -> Result<Answer, Fault> {
    let started = Instant::now();
    let wait = Duration::from_millis(provider.timeouts.first_byte_ms).min(WAIT_MAX);
    let (cut, watch) = (Cut::new(), Watch::new(started + wait));
    let call =
        Call { provider, key, method, path, body: &[body], accept: Accept::Json, cut: &cut, watch: &watch };
    let Reply { status, headers, body: mut reply } = client.send(&call)?;
    // Half a list is no list, half an error is still an error.
    let body = if (200..300).contains(&status) {
        reply.read_all(max_bytes)?
    } else {
        reply.read_some(ANSWER_BYTES_MAX)
    };
    Ok(Answer { status, headers, body, took_ms: started.elapsed().as_millis() as u64 })
}

/// Limits that an answer's headers tell together with their window. Those that leave the window open are passed over:
/// guessing it from the time to the next reset writes wrong numbers.
pub fn observed_limits(headers: &Headers) -> Vec<(Metric, f64)> {
    const NAMED: [(&str, Metric); 6] = [
        ("x-ratelimit-limit-requests-minute", Metric::Rpm),
        ("x-ratelimit-limit-requests-hour", Metric::Rph),
        ("x-ratelimit-limit-requests-day", Metric::Rpd),
        ("x-ratelimit-limit-tokens-minute", Metric::Tpm),
        ("x-ratelimit-limit-tokens-hour", Metric::Tph),
        ("x-ratelimit-limit-tokens-day", Metric::Tpd),
    ];
    let amount = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
    let mut found: Vec<(Metric, f64)> =
        NAMED.iter().filter_map(|(name, metric)| Some((*metric, amount(headers.get(name)?)?))).collect();
    // `RateLimit-Limit: 100;w=60`
    for item in headers.get("ratelimit-limit").unwrap_or_default().split(',') {
        let Some((limit, policy)) = item.split_once(';') else { continue };
        let window = policy.split(';').find_map(|part| part.trim().strip_prefix("w="));
        let metric = match window {
            Some("1") => Metric::Rps,
            Some("60") => Metric::Rpm,
            Some("3600") => Metric::Rph,
            Some("86400") => Metric::Rpd,
            _ => continue,
        };
        if let Some(limit) = amount(limit).filter(|_| !found.iter().any(|(known, _)| *known == metric)) {
            found.push((metric, limit));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_limits_with_a_window_are_believed() {
        let check = |pairs: &[(&str, &str)], expected: &[(Metric, f64)]| {
            let headers: Headers = pairs.iter().copied().collect();
            assert_eq!(observed_limits(&headers), expected, "{pairs:?}");
        };
        check(
            &[("x-ratelimit-limit-requests-day", "14400"), ("x-ratelimit-limit-tokens-minute", "6000")],
            &[(Metric::Rpd, 14_400.0), (Metric::Tpm, 6_000.0)],
        );
        check(
            &[("ratelimit-limit", "100, 100;w=60, 5000;w=86400;name=day")],
            &[(Metric::Rpm, 100.0), (Metric::Rpd, 5_000.0)],
        );
        check(&[("x-ratelimit-limit-requests", "30"), ("x-ratelimit-reset-requests", "2s")], &[]);
        check(&[("x-ratelimit-limit-requests-hour", "-3"), ("ratelimit-limit", "x;w=60")], &[]);
    }
}
