//! `/api/session`: how the page signs in. A key is presented once in exchange for a cookie; see [`super::signin`].
use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Answer;
use super::browser;
use super::change::{self, Members};
use super::conn::Admission;
use super::permit;
use super::rights::{self, Caller, Presented};
use super::routes::Visit;
use super::signin::LASTS_S;
use crate::base::clock;
use crate::catalog::settings::Settings;
use crate::wire::error::ApiError;

/// How the owner's routes open for a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// They are open on this machine.
    Nothing,
    /// On this machine, with any client key.
    ClientKey,
    AdminKey,
    /// Only from this machine, until there is an admin key.
    SetAdminKey,
}

impl How {
    fn of(at_the_machine: bool, settings: &Settings) -> How {
        match (settings.admin_key.is_some(), at_the_machine) {
            (true, _) => How::AdminKey,
            (false, true) if settings.keys.is_empty() => How::Nothing,
            (false, true) => How::ClientKey,
            (false, false) => How::SetAdminKey,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            How::Nothing => "none",
            How::ClientKey => "client_key",
            How::AdminKey => "admin_key",
            How::SetAdminKey => "set_admin_key",
        }
    }

    const fn message(self) -> Option<&'static str> {
        match self {
            How::Nothing => None,
            How::ClientKey => Some("sign in with one of your client keys"),
            How::AdminKey => Some("sign in with the admin key, the value of FREEWAY_ADMIN_KEY"),
            How::SetAdminKey => Some(
                "without an admin key this page opens on the machine itself only; set FREEWAY_ADMIN_KEY to open it from elsewhere",
            ),
        }
    }
}

/// `GET /api/session`: whether this browser is let in, and what it takes.
pub fn view(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let settings = &snapshot.settings;
    let origin = browser::origin(visit.head, settings);
    let presented = permit::presented(visit.head, visit.keeper, origin).unwrap_or(Presented::Nothing);
    let caller = rights::caller(presented, settings);
    let let_in = caller.is_ok_and(|caller| rights::owner(&caller, visit.head, visit.peer, settings).is_ok());
    let how = How::of(rights::at_the_machine(visit.head, visit.peer, settings), settings);
    let by = match presented {
        _ if !let_in => None,
        Presented::Cookie(_) => Some("cookie"),
        _ if how == How::Nothing => Some("machine"),
        _ => Some("key"),
    };
    let left_s = match presented {
        Presented::Cookie(_) => {
            let now_ms = clock::uptime_ms();
            visit.keeper.sign_ins.of(visit.head, now_ms).map(|sign_in| sign_in.left_s(now_ms))
        }
        _ => None,
    };
    let body = state(let_in, how, by, left_s);
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

fn state(let_in: bool, how: How, by: Option<&str>, left_s: Option<u64>) -> Value {
    json!({
        "signedIn": let_in,
        "needed": !let_in,
        "how": how.name(),
        "by": by,
        "message": if let_in { None } else { how.message() },
        "expiresInSec": left_s,
    })
}

/// `POST /api/session`: a key in exchange for a cookie.
pub fn sign_in(visit: Visit<'_>) -> Admission {
    let (gateway, keeper) = (Arc::clone(visit.gateway), Arc::clone(visit.keeper));
    let snapshot = gateway.snapshot();
    let settings = &snapshot.settings;
    let how = How::of(rights::at_the_machine(visit.head, visit.peer, settings), settings);
    let address = rights::address(visit.head, visit.peer, settings);
    change::change(visit, move |members| {
        let key = key(&members)?;
        let hash = rights::sha256(key);
        let fits = match (how, rights::whose(&hash, &gateway.snapshot().settings)) {
            (How::SetAdminKey, _) => {
                return Err(ApiError::new(403, "admin_required", how.message().unwrap_or_default()));
            }
            (_, Some(Caller::Admin { .. })) | (How::ClientKey, Some(Caller::App(_))) => true,
            // Open as it is; the key that was typed stands for nothing.
            (How::Nothing, _) => return Ok(answer(&state(true, how, Some("machine"), None))),
            _ => false,
        };
        let now_ms = clock::uptime_ms();
        if !fits {
            return Err(match keeper.wrong_keys.wrong(address, now_ms) {
                Some(wait_ms) => permit::too_many(wait_ms),
                None => ApiError::new(401, "invalid_api_key", wrong(how)).param("key"),
            });
        }
        let cookie = keeper.sign_ins.add(hash, now_ms);
        let left_s = Some(LASTS_S);
        Ok(answer(&state(true, how, Some("cookie"), left_s)).header("set-cookie", cookie))
    })
}

fn answer(body: &Value) -> Answer {
    Answer::json(200, body.to_string().into_bytes())
}

fn key(members: &Members) -> Result<&str, ApiError> {
    change::only(members, &["key"])?;
    let key = members.get("key").and_then(Value::as_str).map(str::trim).filter(|key| !key.is_empty());
    key.ok_or_else(|| change::bad("key", "must be a text that is not empty"))
}

fn wrong(how: How) -> &'static str {
    match how {
        How::ClientKey => "this is none of the client keys",
        _ => "this is not the admin key; it is the value of FREEWAY_ADMIN_KEY",
    }
}

/// `DELETE /api/session`: signs out.
pub fn sign_out(visit: Visit<'_>) -> Admission {
    let cookie = visit.keeper.sign_ins.remove(visit.head);
    visit.answer(answer(&json!({"ok": true})).header("set-cookie", cookie))
}
