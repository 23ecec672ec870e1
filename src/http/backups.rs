//! Backups of the running gateway: by themselves once a day, on demand, and what is known of them.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::answer::{Answer, Responder};
use super::change::{change_by, only};
use super::conn::{Admission, Next};
use super::routes::Visit;
use crate::backup::record::{Failed, Record};
use crate::backup::target::Target;
use crate::backup::{self, Making, Plan, When};
use crate::base::clock;
use crate::catalog::load::Snapshot;
use crate::relay::gateway::Gateway;
use crate::wire::error::ApiError;

/// The last failure, where backups are on and none was made since.
pub fn failure(gateway: &Gateway) -> Option<Failed> {
    gateway.snapshot().settings.backup.target.as_ref()?;
    gateway.backups.record.lock().failed.clone()
}

fn plan(gateway: &Gateway, snapshot: &Snapshot) -> Option<Result<Plan, String>> {
    // The data folder is that of the start, whatever the files say now.
    debug_assert_eq!(gateway.data, snapshot.paths.data);
    Plan::new(&snapshot.settings.backup, snapshot.backup_key.as_ref(), &snapshot.paths)
}

/// Begins a backup on a thread of its own when it is time and something may have changed.
pub fn start_if_due(gateway: &Arc<Gateway>) {
    let snapshot = gateway.snapshot();
    let settings = &snapshot.settings.backup;
    let now_ms = clock::now().wall_ms;
    // Names tell the date, and so does what is due: a clock that is not set says neither.
    if settings.target.is_none() || now_ms < clock::built_s() * 1000 {
        return;
    }
    let due = gateway.backups.record.lock().is_due(settings.every_ms, now_ms);
    let seen = backup::looks(&gateway.data, &gateway.store);
    if !due || gateway.backups.seen.lock().as_ref() == Some(&seen) {
        return;
    }
    let gateway = Arc::clone(gateway);
    let run = move || {
        // What came of it is logged and noted.
        let _ = run(&gateway, When::Changed);
    };
    if std::thread::Builder::new().name("backup".into()).spawn(run).is_err() {
        log::warn!("no thread for a backup; it is tried again");
    }
}

/// Makes a backup now; false when nothing changed since the last one.
///
/// # Errors
/// Says what is in the way. One that is under way is in the way too.
pub fn run(gateway: &Gateway, when: When) -> Result<bool, String> {
    let snapshot = gateway.snapshot();
    let Some(plan) = plan(gateway, &snapshot) else {
        return Err("backup.target is not set; set it to a folder or a URL (FREEWAY_BACKUP_TARGET)".into());
    };
    if gateway.backups.running.swap(true, Ordering::AcqRel) {
        return Err("a backup is being made already".into());
    }
    let made = catch_unwind(AssertUnwindSafe(|| make(gateway, &snapshot, plan, when)));
    gateway.backups.running.store(false, Ordering::Release);
    gateway.turns.changed("backups");
    let made = made.unwrap_or_else(|_| Err("it failed for a fault of this program".into()));
    match &made {
        Ok(true) => log::info!("{}", told(&gateway.backups.record.lock())),
        Ok(false) => log::debug!("nothing changed since the last backup"),
        Err(error) => log::warn!("the backup failed: {error}"),
    }
    made
}

fn make(
    gateway: &Gateway,
    snapshot: &Snapshot,
    plan: Result<Plan, String>,
    when: When,
) -> Result<bool, String> {
    let now_ms = clock::now().wall_ms;
    let record = gateway.backups.record.lock().clone();
    let making =
        Making { paths: &snapshot.paths, client: &gateway.client, store: &gateway.store, when, now_ms };
    let (mut record, made) = making.make(plan, record);
    let redact = |text: &str| snapshot.redactor.redact(text).into_owned();
    if let Some(failed) = &mut record.failed {
        failed.error = redact(&failed.error);
    }
    *gateway.backups.record.lock() = record;
    // After the write that the backup itself brought about.
    *gateway.backups.seen.lock() = made.is_ok().then(|| backup::looks(&gateway.data, &gateway.store));
    made.map_err(|error| redact(&error))
}

/// A sentence about the newest backup.
pub fn told(record: &Record) -> String {
    let last = record.last().map(|last| format!("{} ({})", last.name, size(last.bytes))).unwrap_or_default();
    format!("backed up to {}: {last}", record.target.as_deref().unwrap_or_default())
}

/// A length for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes.div_ceil(1_024)),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// `GET /api/backups`: whether they are made, where, and how the last ones went.
pub fn list(visit: Visit<'_>) -> Admission {
    let gateway = visit.gateway;
    let snapshot = gateway.snapshot();
    let settings = &snapshot.settings.backup;
    let target = settings.target.as_ref().map(|text| {
        Target::new(text, &snapshot.paths.root, &snapshot.paths.data).map(|target| target.shown())
    });
    let key = backup::key(snapshot.backup_key.as_ref(), &snapshot.paths.data);
    let shown = target.as_ref().and_then(|target| target.as_ref().ok());
    let mut record = gateway.backups.record.lock().clone();
    if let Some(shown) = shown {
        record = record.of_target(shown);
    }
    let problem = target.as_ref().and_then(|target| target.as_ref().err().or(key.as_ref().err()));
    let body = json!({
        "on": target.is_some(),
        "target": shown,
        "key": key.as_ref().ok().map(|(_, from)| from.name()),
        "problem": problem,
        "everyHours": settings.every_ms / 3_600_000,
        "keep": settings.keep,
        "sessions": settings.sessions,
        "running": gateway.backups.running.load(Ordering::Acquire),
        "last": record.last(),
        "failed": record.failed,
        "backups": record.kept.iter().rev().collect::<Vec<_>>(),
    });
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

/// `POST /api/backup`: makes one now.
pub fn create(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    change_by(visit, move |members| {
        only(&members, &[])?;
        Ok(Next::Work(Box::new(move |responder: Responder| {
            let answer = match run(&gateway, When::Asked) {
                Ok(_) => Answer::json(200, made(&gateway.backups.record.lock()).to_string().into_bytes()),
                Err(error) => Answer::error(&ApiError::new(503, "backup_error", error)),
            };
            // A client that has left finds it in the list.
            drop(responder.whole(&answer));
        })))
    })
}

/// What there is to tell of a backup that was just made.
pub fn made(record: &Record) -> Value {
    json!({"ok": true, "target": record.target, "backup": record.last(), "kept": record.kept.len()})
}
