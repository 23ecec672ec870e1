//! What the gateway tells about itself: health and the owner's views.
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;
use serde_json::{Value, json};

use super::answer::Answer;
use super::backups;
use super::conn::Admission;
use super::query::Query;
use super::routes::Visit;
use crate::base::clock;
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{Model, ModelSource, Provider};
use crate::catalog::{Issue, IssueLevel, discovery};
use crate::discover::{self, Which};
use crate::relay::feed::READERS_MAX;
use crate::relay::gateway::Gateway;
use crate::relay::record::TurnView;

/// Turns listed when the query names no number, and at most.
const LOGS_DEFAULT: usize = 100;
const LOGS_MAX: usize = 500;

/// An answer of JSON.
pub fn respond(visit: Visit<'_>, status: u16, body: &Value) -> Admission {
    visit.answer(Answer::json(status, body.to_string().into_bytes()))
}

/// `GET /healthz`: that the process lives, and nothing else.
pub fn health(visit: Visit<'_>) -> Admission {
    let body = json!({
        "ok": true,
        "version": env!("CARGO_PKG_VERSION"),
        "uptimeSec": clock::uptime_ms() / 1000,
    });
    respond(visit, 200, &body)
}

/// `GET /readyz`: whether requests can be served. Reasons may be warnings while it is ready.
pub fn ready(visit: Visit<'_>) -> Admission {
    let (ready, reasons) = readiness(visit.gateway);
    respond(visit, if ready { 200 } else { 503 }, &json!({"ready": ready, "reasons": reasons}))
}

/// Whether requests can be served, and the codes of what is amiss.
pub fn readiness(gateway: &Gateway) -> (bool, Vec<&'static str>) {
    let snapshot = gateway.snapshot();
    let mut reasons = Vec::new();
    let usable = usable(&snapshot) > 0;
    if !usable {
        reasons.push("no_provider_configured");
    }
    let offline = gateway.live.lock().network.offline();
    if offline {
        reasons.push("offline");
    }
    if let Some((trouble, _)) = gateway.store.health().trouble {
        reasons.push(trouble.code());
    }
    if clock::is_behind() {
        reasons.push("clock_behind");
    }
    if backups::failure(gateway).is_some() {
        reasons.push("backup_failing");
    }
    if snapshot.issues.iter().any(|issue| issue.level == IssueLevel::Error) {
        reasons.push("configuration_issue");
    }
    (usable && !offline, reasons)
}

/// Providers that are switched on, configured, and have a model.
fn usable(snapshot: &Snapshot) -> usize {
    let providers = snapshot.catalog.providers.iter();
    providers
        .filter(|provider| provider.enabled && provider.configured() && !provider.models.is_empty())
        .count()
}

/// `GET /api/stats`.
pub fn stats(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let counts = &visit.gateway.counts;
    let providers = &snapshot.catalog.providers;
    let models = || providers.iter().flat_map(|provider| &provider.models);
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (ready, reasons) = readiness(visit.gateway);
    let store = visit.gateway.store.health();
    let body = json!({
        "requests": {
            "requests": count(&counts.requests),
            "ok": count(&counts.succeeded),
            "fail": count(&counts.failed),
            "providers": providers.len(),
        },
        "providers": {
            "total": providers.len(),
            "enabled": providers.iter().filter(|provider| provider.enabled).count(),
            "configured": providers.iter().filter(|provider| provider.configured()).count(),
            "usable": usable(&snapshot),
        },
        "models": {
            "total": models().count(),
            "enabled": models().filter(|model| model.enabled).count(),
            "discovered": models().filter(|model| model.source == ModelSource::Discovered).count(),
        },
        "strategy": snapshot.settings.strategy.name(),
        "activeProfile": snapshot.settings.active_profile,
        "uptimeSec": clock::uptime_ms() / 1000,
        "version": env!("CARGO_PKG_VERSION"),
        "ready": ready,
        "reasons": reasons,
        "rows": {"written": store.rows_written, "dropped": store.rows_dropped},
        "streams": {"open": visit.gateway.turns.watched_by(), "max": READERS_MAX},
        "listen": {"host": snapshot.settings.host, "port": snapshot.settings.port, "lan": lan_address()},
    });
    respond(visit, 200, &body)
}

/// The address of this machine in its home network, as the system would choose it to reach others; nothing is sent.
fn lan_address() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then(|| address.to_string())
}

/// `GET /api/logs?limit=N`: the last turns, newest first.
pub fn logs(visit: Visit<'_>) -> Admission {
    let read = Query::read(visit.head.query(), &["limit"]).and_then(|query| query.limit("limit", LOGS_MAX));
    let limit = match read {
        Ok(limit) => limit.unwrap_or(LOGS_DEFAULT),
        Err(error) => return visit.answer(Answer::error(&error)),
    };
    let newest = visit.gateway.turns.newest(limit, &visit.gateway.store);
    let snapshot = visit.gateway.snapshot();
    let logs: Vec<TurnView<'_>> = newest.iter().map(|turn| turn.view(&snapshot.redactor)).collect();
    respond(visit, 200, &json!({"logs": logs}))
}

/// `POST /api/reload`. Not `ok` when a file was refused: what was there before goes on, and an issue names the file.
pub fn reload(visit: Visit<'_>) -> Admission {
    let gateway = visit.gateway;
    let (taken, snapshot) = match gateway.reload() {
        Ok(snapshot) => (true, snapshot),
        Err(_) => (false, gateway.snapshot()),
    };
    let ok = taken && !snapshot.issues.iter().any(|issue| issue.level == IssueLevel::Error);
    // A provider that just got its key may have no models yet.
    discover::start(gateway, Which::Due);
    let body = json!({
        "ok": ok,
        "providers": snapshot.catalog.providers.len(),
        "usable": usable(&snapshot),
        "issues": issues(&snapshot.issues),
    });
    respond(visit, 200, &body)
}

/// How long an answer waits for model lists; what takes longer goes on without it.
const REFRESH_WAIT: Duration = Duration::from_secs(15);

/// `POST /api/refresh`: fetches all model lists again. Not `ok` when one could not be fetched: what was known before goes
/// on, and `error` says why.
pub fn refresh(visit: Visit<'_>) -> Admission {
    let done = match discover::start(visit.gateway, Which::All) {
        // Nothing comes but the end.
        Some(ended) => ended.recv_timeout(REFRESH_WAIT) == Err(RecvTimeoutError::Disconnected),
        None => !visit.gateway.discovering.load(Ordering::Acquire),
    };
    let snapshot = visit.gateway.snapshot();
    let unlisted = visit.gateway.unlisted.lock().clone();
    let models = |provider: &Provider| {
        let found = |model: &&Model| model.source == ModelSource::Discovered;
        json!({
            "id": provider.id,
            "models": provider.models.len(),
            "discovered": provider.models.iter().filter(found).count(),
            "error": unlisted.get(&provider.id),
        })
    };
    let asked = || snapshot.catalog.providers.iter().filter(|provider| discovery::asks(provider));
    let ok = !asked().any(|provider| unlisted.contains_key(&provider.id));
    let body = json!({"ok": ok, "done": done, "providers": asked().map(models).collect::<Vec<_>>()});
    respond(visit, 200, &body)
}

/// Issues as the API has them.
pub fn issues(issues: &[Issue]) -> Vec<Value> {
    let one = |issue: &Issue| {
        let level = issue.level.name();
        json!({"file": issue.file, "providerId": issue.provider, "level": level, "message": issue.message})
    };
    issues.iter().map(one).collect()
}
