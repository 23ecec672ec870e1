//! Stored conversations, as the owner sees them: the list, one of them, and deleting.
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::answer::Answer;
use super::conn::Admission;
use super::path;
use super::routes::Visit;
use crate::base::clock;
use crate::base::text::{hex, truncate};
use crate::catalog::client_key::Principal;
use crate::catalog::load::Snapshot;
use crate::context::conversation::Conversation;
use crate::context::ratios::Ratio;
use crate::context::summaries::Saved;
use crate::context::summary::{self, Key};
use crate::context::thread::Thread;
use crate::context::tokens;
use crate::relay::gateway::Gateway;
use crate::relay::sessions::{Found, SessionKey, Summary};
use crate::store::sessions::images;
use crate::wire::error::ApiError;
use crate::wire::json::{self, Cursor, Flaw};
use crate::wire::tally::Tally;

/// Most conversations in the list.
const LISTED_MAX: usize = 100;

/// `GET /api/sessions`: those that were used last.
pub fn list(visit: Visit<'_>) -> Admission {
    let (gateway, snapshot) = (visit.gateway, visit.gateway.snapshot());
    let newest = gateway.sessions.newest(LISTED_MAX);
    let sessions: Vec<Value> =
        newest.iter().map(|(key, summary)| entry(gateway, &snapshot, key, summary)).collect();
    let (count, bytes) = gateway.sessions.totals();
    let answer = json!({
        "sessions": sessions,
        "ratios": ratios(gateway),
        "config": config(&snapshot),
        "totals": {"sessions": count, "bytes": bytes},
    });
    visit.answer(Answer::json(200, answer.to_string().into_bytes()))
}

/// What the owner has set about conversations.
fn config(snapshot: &Snapshot) -> Value {
    let settings = &snapshot.settings;
    let (sessions, context) = (settings.sessions, &settings.context);
    json!({
        "enabled": context.enabled,
        "preferFit": context.prefer_fit,
        "maxTurns": context.max_turns,
        "reserveOutputTokens": context.reserve_output,
        "compactModel": context.compact_model,
        "autoCompactAt": context.auto_compact_at,
        "maxMessages": settings.max_messages,
        "stickyMs": settings.sticky_ms,
        "handoff": settings.handoff,
        "sessions": {"days": sessions.days, "max": sessions.max, "mib": sessions.bytes >> 20},
    })
}

/// How many tokens each model counts for one of ours.
fn ratios(gateway: &Gateway) -> Vec<Value> {
    let ratio = |(model, ratio): (String, Ratio)| json!({"model": model, "factor": ratio.factor, "samples": ratio.samples, "updatedAt": ratio.updated_ms});
    gateway.ratios().into_iter().map(ratio).collect()
}

fn entry(gateway: &Gateway, snapshot: &Snapshot, key: &SessionKey, summary: &Summary) -> Value {
    let names = snapshot.settings.keys.iter();
    let name = names.filter(|known| Some(known.principal()) == key.owner).map(|known| &*known.name).next();
    json!({
        "id": key.id,
        "owner": owner_text(key.owner),
        "ownerName": name,
        "createdAt": summary.created_ms,
        "updatedAt": summary.updated_ms,
        "messages": summary.messages,
        "tokens": summary.tokens,
        "bytes": summary.bytes,
        "summaries": gateway.notes.count(&key.tag()),
        "model": sticks_to(gateway, snapshot, key),
    })
}

/// The model that a conversation sticks to now.
fn sticks_to(gateway: &Gateway, snapshot: &Snapshot, key: &SessionKey) -> Option<String> {
    let now = clock::now();
    let slot = gateway.live.lock().sticky.model(key.sticks(), snapshot.settings.sticky_ms, now)?;
    snapshot.catalog.model_of(slot).map(|model| model.reference.to_string())
}

fn owner_text(owner: Option<Principal>) -> Option<String> {
    owner.map(|owner| owner.to_string())
}

/// `GET /api/sessions/{id}`.
pub fn show(visit: Visit<'_>) -> Admission {
    let answer = shown(&visit).unwrap_or_else(|error| Answer::error(&error));
    visit.answer(answer)
}

fn shown(visit: &Visit<'_>) -> Result<Answer, ApiError> {
    let (gateway, snapshot) = (visit.gateway, visit.gateway.snapshot());
    let (id, named) = named(visit)?;
    let all = gateway.sessions.named(&id);
    let Some((key, summary)) = named.first() else {
        let message = format!("there is no session {:?}; GET /api/sessions lists them", truncate(&id, 64));
        return Err(ApiError::new(404, "not_found", message));
    };
    let thread = match gateway.sessions.peek(key) {
        Some(Found::Here(base)) => base.thread,
        Some(Found::OnDisk(number)) => {
            let stored = gateway.store.session(number).map_err(|error| {
                ApiError::new(503, "overloaded", format!("the session cannot be read now: {error}"))
            })?;
            Arc::new(stored.unwrap_or_default().thread)
        }
        None => Arc::default(),
    };
    let with_images = path::query_value(visit.head.query(), "images").is_none_or(|value| value != "0");
    let owners: Vec<_> = all.iter().map(|(key, _)| owner_text(key.owner)).collect();
    let summaries = gateway.notes.of(&key.tag());
    let spans = if summaries.is_empty() { HashMap::new() } else { spans(&thread) };
    let summary_of = |(key, saved): &(Key, Saved)| {
        let mut tally = Tally::default();
        tally.text(&saved.text);
        // Of what was replaced meanwhile, nobody knows where it stood.
        let (from, to) = spans.get(key).copied().unzip();
        json!({
            "id": key.name(),
            "fromSeq": from,
            "toSeq": to,
            "content": saved.text,
            "tokens": tokens::estimate(&tally),
            "model": saved.model,
            "createdAt": saved.created_ms,
        })
    };
    let summaries: Vec<Value> = summaries.iter().map(summary_of).collect();
    let session = entry(gateway, &snapshot, key, summary);
    let head = json!({"session": session, "owners": owners, "summaries": summaries}).to_string();
    // The messages are put in as they are stored, digit by digit.
    let mut body = head.into_bytes();
    body.pop();
    body.extend_from_slice(b",\"messages\":[");
    for at in 0..thread.len() {
        if at > 0 {
            body.push(b',');
        }
        // A message that is stored has been read before.
        let _ = write_message(&thread, at, with_images, &mut body);
    }
    body.extend_from_slice(b"]}");
    Ok(Answer::json(200, body))
}

/// Where the messages stand that a summary may have been made of.
fn spans(thread: &Thread) -> HashMap<Key, (usize, usize)> {
    let list = [b"[", thread.text(0..thread.len()), b"]"].concat();
    Conversation::read(&list).map(|talk| summary::spans(&talk)).unwrap_or_default()
}

/// `DELETE /api/sessions/{id}`.
pub fn remove(visit: Visit<'_>) -> Admission {
    let answer = match named(&visit) {
        Ok((id, named)) => {
            for (key, _) in named {
                visit.gateway.remove_session(&key);
                visit.gateway.live.lock().sticky.forget(key.sticks());
            }
            // What is deleted is to be gone from the disk, too.
            visit.gateway.store.save_soon();
            Answer::json(200, json!({"ok": true, "id": id}).to_string().into_bytes())
        }
        Err(error) => Answer::error(&error),
    };
    visit.answer(answer)
}

/// The id in the path, and the sessions of that name and, if one is given, of that owner; the one that was used last
/// comes first.
fn named(visit: &Visit<'_>) -> Result<(String, Vec<(SessionKey, Summary)>), ApiError> {
    let Ok(id) = path::decoded(visit.rest) else {
        let message = "the session id in the path holds a broken %-escape";
        return Err(ApiError::bad_field("", "id", message));
    };
    let mut named = visit.gateway.sessions.named(&id);
    if let Some(owner) = path::query_value(visit.head.query(), "owner") {
        let owner = match &*owner {
            "none" => None,
            text => Some(Principal::parse(text).ok_or_else(|| {
                ApiError::bad_field("invalid_body", "owner", "owner: must be 16 hexadecimal digits or none")
            })?),
        };
        named.retain(|(key, _)| key.owner == owner);
    }
    Ok((id.into_owned(), named))
}

/// One message: its content as it came, and whatever else it holds under `extra`.
fn write_message(thread: &Thread, at: usize, with_images: bool, out: &mut Vec<u8>) -> Result<(), Flaw> {
    let mark = thread.marks()[at];
    let whole;
    let raw = match with_images {
        true => thread.message(at),
        false => {
            whole = without_images(thread.message(at));
            &whole
        }
    };
    let (mut role, mut content, mut extra) = (b"null".as_slice(), b"null".as_slice(), Vec::new());
    let mut cursor = Cursor::new(raw);
    cursor.open(b'{')?;
    while let Some(name) = cursor.member()? {
        let value = cursor.skip()?;
        if json::is_named(name, "role") {
            role = value;
        } else if json::is_named(name, "content") {
            content = value;
        } else {
            extra.push([b"\"", name, b"\":", value].concat());
        }
    }
    out.extend_from_slice(format!("{{\"seq\":{at},\"role\":").as_bytes());
    out.extend_from_slice(role);
    out.extend_from_slice(b",\"content\":");
    out.extend_from_slice(content);
    out.extend_from_slice(b",\"extra\":");
    match extra.is_empty() {
        true => out.extend_from_slice(b"null"),
        false => out.extend_from_slice(&[b"{", extra.join(b",".as_slice()).as_slice(), b"}"].concat()),
    }
    out.extend_from_slice(
        format!(",\"tokens\":{},\"createdAt\":{}}}", mark.tokens, mark.created_ms).as_bytes(),
    );
    Ok(())
}

/// The message with a hash in the place of each long data URL.
fn without_images(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut copied = 0;
    for image in images(message) {
        out.extend_from_slice(&message[copied..image.start]);
        copied = image.end;
        out.extend_from_slice(format!("sha256:{}", hex(&Sha256::digest(&message[image]))).as_bytes());
    }
    out.extend_from_slice(&message[copied..]);
    out
}
