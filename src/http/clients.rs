//! `/api/clients`: the keys that apps present, listed, made and revoked. A fresh key stands in one answer and nowhere
//! else.
use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Answer;
use super::change::{bad, change, only};
use super::conn::Admission;
use super::path;
use super::routes::Visit;
use super::sock;
use crate::base::clock;
use crate::base::text::truncate;
use crate::catalog::client_key::{ClientRules, RULE_MEMBERS};
use crate::catalog::clients;
use crate::relay::gateway::Gateway;
use crate::wire::error::ApiError;

/// Longest id or name that is repeated in a message.
const SHOWN_MAX: usize = 80;

/// `GET /api/clients`.
pub fn list(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let all: Vec<Value> = snapshot.settings.keys.iter().map(|key| key.to_json()).collect();
    visit.answer(answer(200, &json!({"clients": all, "open": all.is_empty()})))
}

/// `POST /api/clients`: makes a key.
pub fn create(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    change(visit, move |members| {
        only(&members, &[&["name"], &RULE_MEMBERS[..]].concat())?;
        let name = members.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| bad("name", "must be a text that is not empty"))?;
        let rules = ClientRules::read("", &members).map_err(|error| about_member(&error))?;
        let now_ms = clock::now().wall_ms;
        let turn = sock::lock_folder(&gateway.data);
        let (key, made) =
            clients::add(&gateway.data, name, rules, now_ms).map_err(|error| not_changed(&error))?;
        drop(turn);
        reload(&gateway);
        Ok(answer(201, &json!({"ok": true, "client": made.to_json(), "key": key})))
    })
}

/// `DELETE /api/clients/{id or name}`: from now on the key opens nothing.
pub fn revoke(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    let done = match path::decoded(visit.rest) {
        Ok(which) => revoke_one(&gateway, &which),
        Err(_) => Err(absent(visit.rest)),
    };
    visit.answer(done.unwrap_or_else(|error| Answer::error(&error)))
}

fn revoke_one(gateway: &Gateway, which: &str) -> Result<Answer, ApiError> {
    let may_go = clients::may_revoke(&gateway.snapshot().settings, which);
    may_go.map_err(|error| ApiError::new(400, "invalid_body", error))?;
    let turn = sock::lock_folder(&gateway.data);
    let revoked = clients::revoke(&gateway.data, which).map_err(|error| not_changed(&error))?;
    drop(turn);
    let revoked = revoked.ok_or_else(|| absent(which))?;
    reload(gateway);
    let (id, name) = (revoked.principal().to_string(), &revoked.name);
    Ok(answer(200, &json!({"ok": true, "id": id, "name": name})))
}

/// Lets the change count at once. What a reload finds wrong becomes an issue of the new snapshot.
fn reload(gateway: &Gateway) {
    if let Err(issues) = gateway.reload() {
        log::error!("the client keys have changed, but the files cannot be read again: {issues:?}");
    }
}

fn absent(which: &str) -> ApiError {
    let shown = truncate(which, SHOWN_MAX);
    ApiError::new(
        404,
        "not_found",
        format!("there is no client key `{shown}`; GET /api/clients lists all of them"),
    )
}

/// A change that was refused, by its own words or by the disk.
fn not_changed(error: &str) -> ApiError {
    if error.starts_with("name: ") { about_member(error) } else { ApiError::new(500, "", error) }
}

/// A message that begins with the member at fault.
fn about_member(error: &str) -> ApiError {
    let member = error.split([':', '[', '.']).next().unwrap_or_default();
    ApiError::bad_field("invalid_body", member, error)
}

fn answer(status: u16, body: &Value) -> Answer {
    Answer::json(status, body.to_string().into_bytes())
}
