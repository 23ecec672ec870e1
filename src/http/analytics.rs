//! The owner's views of what happened: usage, analytics, and single requests.
use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::answer::Answer;
use super::conn::Admission;
use super::query::Query;
use super::routes::Visit;
use super::{providers, views};
use crate::base::clock;
use crate::base::histogram::Histogram;
use crate::store::analytics::{self, Filter, Group, provider_of};
use crate::store::figures::{Figures, Sample, Totals};
use crate::store::page::{self, Ask, PAGE_MAX};
use crate::store::span::{Range, Span};
use crate::store::{NoView, Row, RowCache, RowKind, RowOutcome, Seen};
use crate::wire::error::ApiError;

/// Groups that are listed, with the most requests first.
const MODELS_SHOWN: usize = 20;
const KEYS_SHOWN: usize = 50;
const CLIENTS_SHOWN: usize = 50;
const ERRORS_SHOWN: usize = 20;
/// Requests of a page when the query names no number.
const PAGE_DEFAULT: usize = 50;
/// The last requests, which `/api/usage` adds up.
const WINDOW: usize = 500;
/// Zones of the earth, in minutes east of UTC.
const OFFSET_MIN: i64 = -12 * 60;
const OFFSET_MAX: i64 = 14 * 60;

fn answer(visit: Visit<'_>, told: Result<Value, ApiError>) -> Admission {
    match told {
        Ok(body) => views::respond(visit, 200, &body),
        Err(error) => visit.answer(Answer::error(&error)),
    }
}

fn no_view(reason: NoView) -> ApiError {
    let (message, retry_ms) = match reason {
        NoView::Busy => ("too many views are being read at once; ask again in a moment", 1_000),
        NoView::TooLong => ("this view took longer than two seconds; ask for less, or again later", 5_000),
    };
    ApiError::new(503, "overloaded", message).retry_after(retry_ms)
}

fn filter(query: &Query) -> Filter {
    let text = |name: &str| query.text(name).map(str::to_owned);
    Filter { provider: text("provider"), model: text("model"), key: text("key"), client: text("client") }
}

/// `GET /api/analytics`.
pub fn analytics(visit: Visit<'_>) -> Admission {
    let told = analytics_of(&visit);
    answer(visit, told)
}

fn analytics_of(visit: &Visit<'_>) -> Result<Value, ApiError> {
    let known = ["range", "tzOffset", "provider", "model", "key", "client"];
    let query = Query::read(visit.head.query(), &known)?;
    let ranges = Range::ALL.map(|range| (range.name(), range));
    let range = query.word("range", &ranges)?.unwrap_or(Range::Day);
    let offset_minutes = query.whole("tzOffset", OFFSET_MIN..=OFFSET_MAX)?.unwrap_or(0);
    let filter = filter(&query);
    let now_ms = clock::now().wall_ms;
    let span = Span::new(range, now_ms, offset_minutes);
    let report = visit.gateway.store.view(|seen| analytics::report(seen, &span, &filter)).map_err(no_view)?;
    let summary = report.summary();
    let timeline = report.timeline.iter().enumerate().map(|(bucket, found)| {
        let mut view = figures(found);
        view["at"] = span.start_ms(bucket).into();
        view
    });
    let (bucket, bucket_ms) = if range.by_day() { ("day", 86_400_000) } else { ("hour", 3_600_000) };
    let failed = summary.totals.failed;
    let errors = report.errors.iter().take(ERRORS_SHOWN).map(|(code, requests)| {
        json!({"code": code, "requests": requests, "share": *requests as f64 / failed.max(1) as f64})
    });
    let kinds = report.kinds.iter().map(|(kind, found)| group(Some(kind.name()), found));
    Ok(json!({
        "range": range.name(),
        "from": span.start_ms(0),
        "to": now_ms,
        "tzOffset": offset_minutes,
        "bucket": bucket,
        "bucketMs": bucket_ms,
        "filters": {
            "provider": filter.provider, "model": filter.model, "key": filter.key, "client": filter.client,
        },
        "summary": figures(&summary),
        "timeline": timeline.collect::<Vec<_>>(),
        "byProvider": groups(&report.providers, usize::MAX),
        "byModel": models(&report.models),
        "byKey": keys(&report.keys),
        "byClient": groups(&report.clients, CLIENTS_SHOWN),
        "byKind": kinds.collect::<Vec<_>>(),
        "errors": errors.collect::<Vec<_>>(),
        "counts": {
            "providers": report.providers.len(),
            "models": report.models.len(),
            "keys": report.keys.len(),
            "clients": report.clients.len(),
        },
    }))
}

/// Sums as the API has them.
fn totals(totals: &Totals) -> Value {
    json!({
        "requests": totals.requests,
        "ok": totals.ok(),
        "failed": totals.failed,
        "canceled": totals.canceled,
        "cached": totals.cached(),
        "cachedExact": totals.cached_exact,
        "cachedSemantic": totals.cached_semantic,
        "streamed": totals.streamed,
        "estimated": totals.estimated,
        "refit": totals.refit,
        "attempts": totals.attempts,
        "tokensIn": totals.tokens_in,
        "tokensOut": totals.tokens_out,
        "successRate": totals.success_rate(),
        "freeShare": totals.free_share(),
        "savedUsd": totals.saved_usd(),
    })
}

fn figures(figures: &Figures) -> Value {
    let times = |times: &Histogram| {
        json!({
            "avg": times.mean().map(|mean| mean.round() as u64),
            "p50": times.percentile(0.5),
            "p95": times.percentile(0.95),
        })
    };
    let mut view = totals(&figures.totals);
    view["latencyMs"] = times(&figures.latency);
    view["firstTokenMs"] = times(&figures.first_token);
    view
}

fn group(id: Option<&str>, found: &Figures) -> Value {
    let mut view = figures(found);
    view["id"] = id.into();
    view
}

fn groups(found: &[Group], shown_max: usize) -> Vec<Value> {
    found.iter().take(shown_max).map(|(id, found)| group(id.as_deref(), found)).collect()
}

fn models(found: &[Group]) -> Vec<Value> {
    let view = |(id, found): &Group| {
        let mut view = group(id.as_deref(), found);
        let (provider, model) = id.as_deref().and_then(|id| id.split_once('/')).unzip();
        (view["provider"], view["model"]) = (provider.into(), model.into());
        view
    };
    found.iter().take(MODELS_SHOWN).map(view).collect()
}

fn keys(found: &[Group]) -> Vec<Value> {
    let view = |(id, found): &Group| {
        let mut view = group(id.as_deref(), found);
        view["provider"] =
            id.as_deref().and_then(|id| id.split_once(':')).map(|(provider, _)| provider).into();
        view
    };
    found.iter().take(KEYS_SHOWN).map(view).collect()
}

/// `GET /api/requests`.
pub fn requests(visit: Visit<'_>) -> Admission {
    let told = requests_of(&visit);
    answer(visit, told)
}

fn requests_of(visit: &Visit<'_>) -> Result<Value, ApiError> {
    let known = [
        "limit", "before", "from", "to", "provider", "model", "key", "client", "kind", "outcome", "cache",
        "error",
    ];
    let query = Query::read(visit.head.query(), &known)?;
    let kinds = RowKind::ALL.map(|kind| (kind.name(), kind));
    let outcomes = RowOutcome::ALL.map(|outcome| (outcome.name(), outcome));
    let mut caches = vec![("none", None)];
    caches.extend(RowCache::ALL.map(|cache| (cache.name(), Some(cache))));
    let limit = query.whole("limit", 1..=PAGE_MAX as i64)?.map_or(PAGE_DEFAULT, |limit| limit as usize);
    let time = |name: &str| query.whole(name, 0..=i64::MAX).map(|ms| ms.map(|ms| ms as u64));
    let ask = Ask {
        limit,
        before: query.whole("before", 0..=i64::MAX)?,
        names: filter(&query),
        kind: query.word("kind", &kinds)?,
        outcome: query.word("outcome", &outcomes)?,
        cache: query.word("cache", &caches)?,
        error: query.text("error").filter(|error| !error.is_empty()).map(str::to_owned),
        from_ms: time("from")?,
        to_ms: time("to")?,
    };
    let page = visit.gateway.store.view(|seen| page::page(seen, &ask)).map_err(no_view)?;
    let next = page.rows.last().filter(|_| page.more).map(|(id, _)| id.to_string());
    let rows: Vec<Value> = page.rows.iter().map(|(id, row)| request(*id, row)).collect();
    Ok(json!({"requests": rows, "next": next}))
}

fn request(id: i64, row: &Row) -> Value {
    let model = row.model.as_deref();
    let (provider_id, model_id) = model.and_then(|model| model.split_once('/')).unzip();
    let trail: Vec<&str> = row.trail.split(", ").filter(|hop| !hop.is_empty()).collect();
    json!({
        "cursor": id.to_string(),
        "id": row.id,
        "at": row.ended_ms.saturating_sub(row.latency_ms),
        "endedAt": row.ended_ms,
        "kind": row.kind.name(),
        "outcome": row.outcome.name(),
        "status": row.status,
        "stream": row.stream,
        "client": row.client,
        "requestedModel": row.requested.as_deref().or(model),
        "resolution": row.route,
        "providerId": provider_id,
        "modelId": model_id,
        "keyId": row.key,
        "ms": row.latency_ms,
        "firstTokenMs": row.first_ms,
        "attempts": row.attempts,
        "tokensIn": row.prompt_tokens,
        "tokensOut": row.output_tokens,
        "estimated": row.estimated,
        "savedUsd": row.saved_nano_usd as f64 / 1e9,
        "cache": row.cache,
        "refit": row.refit,
        "error": row.error,
        "trail": trail,
    })
}

/// `GET /api/usage`.
pub fn usage(visit: Visit<'_>) -> Admission {
    let told = usage_of(&visit);
    answer(visit, told)
}

fn usage_of(visit: &Visit<'_>) -> Result<Value, ApiError> {
    Query::read(visit.head.query(), &[])?;
    let gateway = visit.gateway;
    let ask = Ask { limit: WINDOW, ..Ask::default() };
    let look = |seen: &Seen| Ok((seen.since_start, analytics::all_time(seen)?, page::page(seen, &ask)?.rows));
    let (since_start, all_time, window) = gateway.store.view(look).map_err(no_view)?;
    let window: Vec<Row> = window.into_iter().map(|(_, row)| row).collect();
    let sums = |since_ms: Option<u64>, found: &Totals| {
        let mut view = totals(found);
        (view["since"], view["ms"]) = (since_ms.into(), found.total_ms.into());
        view
    };
    Ok(json!({
        "window": format!("last {} requests", window.len()),
        "totals": window_totals(&window),
        "byProvider": window_providers(&window),
        "byModel": window_models(&window),
        "quota": providers::quota(gateway),
        "sinceStart": sums(Some(gateway.turns.run()), &since_start),
        "allTime": sums(all_time.since_ms, &all_time.totals),
    }))
}

fn sum<'r>(rows: impl IntoIterator<Item = &'r Row>) -> Totals {
    let mut sum = Totals::default();
    rows.into_iter().for_each(|row| sum.add(&Totals::of(&Sample::from(row))));
    sum
}

/// Whoever left before the answer counts as failed here, as ever.
fn window_totals(window: &[Row]) -> Value {
    let sum = sum(window);
    json!({
        "requests": sum.requests,
        "ok": sum.ok(),
        "failed": sum.failed + sum.canceled,
        "canceled": sum.canceled,
        "cached": sum.cached(),
        "streamed": sum.streamed,
        "tokensIn": sum.tokens_in,
        "tokensOut": sum.tokens_out,
        "ms": sum.total_ms,
        "avgMs": sum.total_ms.checked_div(sum.requests).unwrap_or(0),
    })
}

/// Sums by a part of the model's name, most tokens first.
fn window_groups<'r>(window: &'r [Row], part: fn(&'r str) -> &'r str) -> Vec<(&'r str, Totals)> {
    let mut groups: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in window {
        if let Some(model) = row.model.as_deref() {
            groups.entry(part(model)).or_default().push(row);
        }
    }
    let mut groups: Vec<(&str, Totals)> = groups.into_iter().map(|(id, rows)| (id, sum(rows))).collect();
    groups.sort_by_key(|(_, sum)| Reverse(sum.tokens_in + sum.tokens_out));
    groups
}

fn window_providers(window: &[Row]) -> Vec<Value> {
    let view = |(id, sum): &(&str, Totals)| {
        json!({
            "id": id,
            "requests": sum.requests,
            "tokensIn": sum.tokens_in,
            "tokensOut": sum.tokens_out,
            "ms": sum.total_ms,
            "failed": sum.failed + sum.canceled,
        })
    };
    window_groups(window, provider_of).iter().map(view).collect()
}

fn window_models(window: &[Row]) -> Vec<Value> {
    let view = |(reference, sum): &(&str, Totals)| {
        let (provider, id) = reference.split_once('/').unwrap_or(("", reference));
        json!({
            "id": id,
            "provider": provider,
            "requests": sum.requests,
            "tokensIn": sum.tokens_in,
            "tokensOut": sum.tokens_out,
        })
    };
    window_groups(window, |model| model).iter().take(MODELS_SHOWN).map(view).collect()
}
