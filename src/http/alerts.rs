//! `GET /api/alerts`: what the owner should look at, worst first, and when quotas run dry.
use std::cmp::Reverse;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::answer::Answer;
use super::backups;
use super::conn::Admission;
use super::look::{self, Bar, Look};
use super::probes::KeyReport;
use super::providers::unusable_because;
use super::routes::Visit;
use crate::base::clock::{self, Now};
use crate::base::text::{human_count, human_duration};
use crate::catalog::IssueLevel;
use crate::catalog::provider::{Provider, Slot};
use crate::guard::limiter::{Had, Scope};
use crate::guard::rules::Severity;
use crate::quota::forecast::{Forecast, Level, Standing, forecast};
use crate::relay::findings::Found;
use crate::relay::gateway::Gateway;

/// Alerts told at once.
const ALERTS_MAX: usize = 200;
/// Callers told at once.
const CALLERS_MAX: usize = 100;
/// How long, and how many of each kind, findings of the scan are alerts.
const FINDINGS_MS: u64 = 3_600_000;
const FINDINGS_MAX: usize = 20;
/// Limits of single models that are told of one provider, the most urgent ones.
const MODEL_FORECASTS_MAX: usize = 8;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    #[serde(serialize_with = "as_word")]
    level: Level,
    source: &'static str,
    message: String,
    provider_id: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProviderForecast {
    provider_id: Arc<str>,
    #[serde(skip)]
    label: String,
    #[serde(serialize_with = "as_word")]
    level: Level,
    /// The worst line, when there is one to worry about.
    headline: Option<String>,
    forecasts: Vec<Line>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    key: &'static str,
    /// The model whose own limit it is.
    model: Option<Arc<str>>,
    #[serde(serialize_with = "look::plain")]
    used: f64,
    #[serde(serialize_with = "look::plain")]
    limit: f64,
    #[serde(serialize_with = "look::plain")]
    pct: f64,
    window: String,
    #[serde(serialize_with = "look::plain")]
    burn_per_hour: f64,
    exhausts_in_ms: Option<u64>,
    resets_first: bool,
    resets_at: Option<u64>,
    #[serde(serialize_with = "as_word")]
    level: Level,
    message: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn as_word<S: serde::Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(level.name())
}

/// `GET /api/alerts`.
pub fn list(visit: Visit<'_>) -> Admission {
    let gateway = visit.gateway;
    let now = clock::now();
    let forecasts = forecasts(gateway, now);
    let keys = KeyReport::of(gateway);
    let mut alerts = box_alerts(gateway);
    alerts.extend(findings(gateway, now));
    alerts.extend(forecasts.iter().filter_map(|provider| {
        let message = format!("{}: {}", provider.label, provider.headline.as_ref()?);
        let provider_id = Some(provider.provider_id.to_string());
        Some(Alert { level: provider.level, source: "quota", message, provider_id })
    }));
    alerts.extend(keys.actionable.iter().map(|row| {
        let detail = row.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
        let message = format!("{}: key {} is {}{detail}", row.provider_id, row.masked, row.verdict);
        let provider_id = Some(row.provider_id.clone());
        Alert { level: Level::Critical, source: "key-health", message, provider_id }
    }));
    let snapshot = gateway.snapshot();
    let lasting = gateway.mishaps.iter().filter(|mishap| !snapshot.issues.contains(mishap));
    alerts.extend(snapshot.issues.iter().chain(lasting).map(|issue| {
        let level = if issue.level == IssueLevel::Error { Level::Critical } else { Level::Warn };
        let message = format!("{}: {}", issue.file, issue.message);
        Alert { level, source: "registry", message, provider_id: issue.provider.clone() }
    }));
    alerts.sort_by_key(|alert| Reverse(alert.level));
    alerts.truncate(ALERTS_MAX);
    let body = json!({
        "alerts": alerts,
        "forecasts": forecasts,
        "keyHealth": keys,
        // No limits are learned from headers, so there is nothing to tell of them.
        "calibration": [],
        "callers": callers(gateway, now),
    });
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

/// What callers have had within the last minute, the busiest first.
fn callers(gateway: &Gateway, now: Now) -> Vec<Value> {
    let mut all = gateway.limiter.lock().list(now);
    all.sort_by_key(|had| Reverse(had.requests_in_minute));
    let view = |had: &Had| {
        let id = match had.scope {
            Scope::Key(principal) => principal.to_string(),
            Scope::Address(address) => address.to_string(),
        };
        json!({
            "id": id,
            "scope": had.scope.name(),
            "rpm": had.requests_in_minute,
            "tpm": had.tokens_in_minute,
            "inFlight": had.in_flight,
        })
    };
    all.iter().take(CALLERS_MAX).map(view).collect()
}

/// What the scan found within the last hour. Trifles, such as an address of e-mail, are told as nothing to worry about and
/// take no room from the rest.
fn findings(gateway: &Gateway, now: Now) -> Vec<Alert> {
    let recent =
        gateway.found.newest().into_iter().filter(|found| now.wall_ms.abs_diff(found.at_ms) <= FINDINGS_MS);
    let alert = |found: Arc<Found>| {
        let worst = found.findings.iter().max_by_key(|finding| finding.rule.severity)?;
        let level = if worst.rule.severity == Severity::Low { Level::Ok } else { Level::Warn };
        let who = found.client.as_deref().map(|client| format!(" of {client}")).unwrap_or_default();
        let what = if found.refused { "was refused for" } else { "held" };
        let message =
            format!("a request{who} {what} {} ({}) in {}", worst.rule.name, worst.sample, worst.path);
        Some(Alert { level, source: "scan", message, provider_id: None })
    };
    let (trifles, rest): (Vec<Alert>, Vec<Alert>) =
        recent.filter_map(alert).partition(|alert| alert.level == Level::Ok);
    rest.into_iter().take(FINDINGS_MAX).chain(trifles.into_iter().take(FINDINGS_MAX)).collect()
}

/// What is amiss with the box itself.
fn box_alerts(gateway: &Gateway) -> Vec<Alert> {
    let alert = |level, source, message: String| Alert { level, source, message, provider_id: None };
    let mut alerts = Vec::new();
    if gateway.live.lock().network.offline() {
        let message = "the box has no network: no remote provider can be reached";
        alerts.push(alert(Level::Critical, "network", message.into()));
    }
    let health = gateway.store.health();
    if let Some((trouble, message)) = health.trouble {
        alerts.push(alert(Level::Critical, "disk", format!("{}: {message}", trouble.code())));
    }
    if health.rows_dropped > 0 {
        let message = format!("{} rows of the log were never written", health.rows_dropped);
        alerts.push(alert(Level::Warn, "disk", message));
    }
    if let Some(failed) = backups::failure(gateway) {
        alerts.push(alert(Level::Warn, "backup", format!("the last backup failed: {}", failed.error)));
    }
    if clock::is_behind() {
        let message = "the clock stands before this program was built; set it, or certificates and daily quotas go wrong";
        alerts.push(alert(Level::Critical, "clock", message.into()));
    }
    alerts
}

/// The forecasts of all providers that can be used.
fn forecasts(gateway: &Gateway, now: Now) -> Vec<ProviderForecast> {
    let snapshot = gateway.snapshot();
    let usable = snapshot.catalog.providers.iter().filter(|provider| unusable_because(provider).is_none());
    let one = |provider: &Provider| {
        let live = gateway.live.lock();
        of_provider(&Look { live: &live, snapshot: &snapshot, now }, provider)
    };
    usable.map(one).filter(|provider| !provider.forecasts.is_empty()).collect()
}

fn of_provider(look: &Look<'_>, provider: &Provider) -> ProviderForecast {
    let bars = look.provider_bars(provider);
    let mut forecasts: Vec<Line> =
        bars.into_iter().filter_map(|bar| line(look, bar, provider.slot, None)).collect();
    let models = provider.models.iter().filter(|model| model.enabled);
    let mut own: Vec<Line> = models
        .flat_map(|model| {
            let used = look.model_bars(provider, model).into_iter().filter(|bar| bar.used > 0.0);
            used.filter_map(|bar| line(look, bar, model.slot, Some(&model.reference))).collect::<Vec<_>>()
        })
        .collect();
    own.sort_by_key(|line| (Reverse(line.level), line.exhausts_in_ms.unwrap_or(u64::MAX)));
    own.truncate(MODEL_FORECASTS_MAX);
    forecasts.append(&mut own);
    let worst =
        forecasts.iter().min_by_key(|line| (Reverse(line.level), line.exhausts_in_ms.unwrap_or(u64::MAX)));
    let level = worst.map_or(Level::Ok, |line| line.level);
    let headline = worst.filter(|line| line.level != Level::Ok).map(|line| line.message.clone());
    ProviderForecast {
        provider_id: Arc::clone(&provider.id),
        label: provider.label.clone(),
        level,
        headline,
        forecasts,
    }
}

/// What comes of one limit; `None` for calls in flight, which are not used up.
fn line(look: &Look<'_>, bar: Bar, whose: Slot, model: Option<&Arc<str>>) -> Option<Line> {
    let burn_per_hour = match (bar.rolling_ms, bar.resets_at) {
        (Some(window_ms), _) => bar.used * 3_600_000.0 / window_ms as f64,
        (None, Some(_)) => look.live.burns.per_hour(whose, bar.metric, bar.used, look.now),
        (None, None) => return None,
    };
    let resets_in_ms = bar.resets_at.map(|at_ms| at_ms.saturating_sub(look.now.wall_ms));
    let found = forecast(&Standing { used: bar.used, limit: bar.limit, burn_per_hour, resets_in_ms });
    let message = message(&bar, model, &found, resets_in_ms);
    let Forecast { level, exhausts_in_ms, resets_first } = found;
    Some(Line {
        key: bar.key,
        model: model.map(Arc::clone),
        used: bar.used,
        limit: bar.limit,
        pct: bar.pct,
        window: bar.window,
        burn_per_hour: (burn_per_hour * 100.0).round() / 100.0,
        exhausts_in_ms,
        resets_first,
        resets_at: bar.resets_at,
        level,
        message,
    })
}

fn message(bar: &Bar, model: Option<&Arc<str>>, found: &Forecast, resets_in_ms: Option<u64>) -> String {
    let whose = model.map(|model| format!(" of {model}")).unwrap_or_default();
    let state =
        format!("{}{whose} {} of {} {}", bar.key, human_count(bar.used), human_count(bar.limit), bar.window);
    match (found.exhausts_in_ms, resets_in_ms) {
        (Some(dry_ms), _) => format!("{state}, dry in {}", human_duration(dry_ms)),
        (None, Some(resets_ms)) if found.level > Level::Ok => {
            format!("{state}, begins anew in {}", human_duration(resets_ms))
        }
        _ => state,
    }
}

/// Notes how much of each limit of the calendar is used, for the forecasts.
pub fn sample(gateway: &Gateway) {
    let (snapshot, now) = (gateway.snapshot(), clock::now());
    for provider in snapshot.catalog.providers.iter().filter(|provider| unusable_because(provider).is_none())
    {
        let mut live = gateway.live.lock();
        let look = Look { live: &live, snapshot: &snapshot, now };
        let mut found: Vec<(Slot, Bar)> =
            look.provider_bars(provider).into_iter().map(|bar| (provider.slot, bar)).collect();
        for model in provider.models.iter().filter(|model| model.enabled) {
            found.extend(look.model_bars(provider, model).into_iter().map(|bar| (model.slot, bar)));
        }
        for (whose, bar) in found.into_iter().filter(|(_, bar)| bar.resets_at.is_some()) {
            live.burns.note(whose, bar.metric, bar.used, now);
        }
    }
}
