//! Whether a request is let in: the name it was sent to, the page it comes from, the key it presents, the form of its
//! body, and what its route asks for, in this order. All of it before the body.
use std::net::SocketAddr;
use std::time::Duration;

use super::answer::Answer;
use super::browser::{self, Origin};
use super::head::{Head, Length};
use super::rights::{self, Caller, Denial, Doorkeeper, Presented};
use super::{host, throttle};
use crate::base::clock;
use crate::catalog::settings::Settings;
use crate::wire::error::ApiError;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    Anybody,
    /// Whoever presents a client key, where there are any.
    Client,
    Owner,
}

/// A request at the door.
pub struct Entry<'a> {
    pub head: &'a Head,
    pub peer: SocketAddr,
    pub settings: &'a Settings,
    pub keeper: &'a Doorkeeper,
    pub right: Right,
    /// The path is for the owner and our own page alone.
    pub of_owner: bool,
    /// The path is one of those that apps use.
    pub inference: bool,
    pub origin: Origin,
}

/// Why a request is not let in.
pub struct Refused {
    pub error: Box<ApiError>,
    /// Before it is told so.
    pub pause: Option<Duration>,
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Refused {
        Refused { error: Box::new(error), pause: None }
    }
}

/// Lets a request in, or says why not.
///
/// # Errors
/// 421, 403, 401, 415 or 429, with what to do about it.
pub fn judge(entry: &Entry<'_>) -> Result<Caller, Refused> {
    let misdirected = entry.misdirected();
    if entry.right == Right::Anybody {
        misdirected.map_or(Ok(()), Err)?;
        entry.check_page(Presented::Nothing, &Caller::Open)?;
        entry.check_type(Presented::Nothing)?;
        return Ok(Caller::Open);
    }
    let presented = presented(entry.head, entry.keeper, entry.origin);
    let found = presented.and_then(|presented| {
        let command = (entry.right == Right::Owner).then(|| entry.keeper.is_command(presented)).flatten();
        command.map_or_else(|| rights::caller(presented, entry.settings), Ok)
    });
    if found == Err(Denial::Wrong) {
        slow_down(entry)?;
    }
    let presented = presented.unwrap_or(Presented::Nothing);
    let has_key = matches!(presented, Presented::Key(_));
    // No page can present a key of ours, so whoever does was not led here.
    let valid = has_key && matches!(found, Ok(Caller::App(_) | Caller::Admin { .. }));
    if let Some(error) = misdirected.filter(|_| !(entry.inference && valid)) {
        return Err(error.into());
    }
    entry.check_page(presented, found.as_ref().unwrap_or(&Caller::Open))?;
    let caller = found.map_err(Denial::error)?;
    entry.check_type(presented)?;
    if entry.right == Right::Owner {
        let right = rights::owner(&caller, entry.head, entry.peer, entry.settings);
        // Where no client keys are configured any key will do for an app, but here it was one for the owner.
        if right.is_err() && has_key && caller == Caller::Open {
            slow_down(entry)?;
        }
        right?;
    }
    Ok(caller)
}

/// The answer to `OPTIONS`, which needs no key. It grants nothing: the request that follows is judged by itself.
pub fn preflight(entry: &Entry<'_>, allow: &str) -> Answer {
    let origin = if entry.of_owner { Origin::Unknown } else { entry.origin };
    match entry.misdirected().filter(|_| origin != Origin::Listed) {
        Some(error) => Answer::error(&error),
        None => browser::preflight(entry.head, origin, allow),
    }
}

/// What a request presents. A key in a header counts before the cookie, and the cookie only when it comes from our own
/// page: browsers also send it with requests of other pages of this machine.
///
/// # Errors
/// When the headers hold two keys that differ.
pub fn presented<'h>(head: &'h Head, keeper: &Doorkeeper, origin: Origin) -> Result<Presented<'h>, Denial> {
    match rights::presented(head)? {
        Presented::Nothing if matches!(origin, Origin::None | Origin::Same) => {
            let signed_in = keeper.sign_ins.of(head, clock::uptime_ms());
            Ok(signed_in.map_or(Presented::Nothing, |sign_in| Presented::Cookie(sign_in.key)))
        }
        presented => Ok(presented),
    }
}

impl Entry<'_> {
    fn misdirected(&self) -> Option<ApiError> {
        let host = self.head.header("host");
        (!self.keeper.names.know(host, self.settings)).then(|| host::misdirected(host.unwrap_or_default()))
    }

    /// Refuses what another page makes a browser send.
    fn check_page(&self, presented: Presented<'_>, caller: &Caller) -> Result<(), ApiError> {
        let has_key = matches!(presented, Presented::Key(_));
        let fine = match self.origin {
            Origin::None | Origin::Same => true,
            Origin::Listed if self.of_owner => has_key && matches!(caller, Caller::Admin { .. }),
            Origin::Listed => true,
            Origin::Unknown if self.of_owner => false,
            Origin::Unknown => !self.inference || has_key,
        };
        if fine {
            return Ok(());
        }
        Err(if self.of_owner {
            ApiError::new(
                403,
                "admin_required",
                "this route answers to the gateway's own page and to programs, not to pages of other origins",
            )
        } else {
            ApiError::new(
                403,
                "",
                "a page of another origin has to present an API key here; or add its origin to `corsOrigins` (FREEWAY_CORS_ORIGINS)",
            )
        })
    }

    /// Refuses bodies that a browser sends for any page without asking first. With a key in a header it has asked.
    fn check_type(&self, presented: Presented<'_>) -> Result<(), ApiError> {
        if matches!(self.head.method(), "GET" | "HEAD") || self.head.length == Length::Known(0) {
            return Ok(());
        }
        let kind = self.head.header("content-type");
        let fine = match presented {
            _ if self.of_owner => kind.is_some_and(browser::is_json),
            Presented::Key(_) => true,
            // Some small clients name no type at all.
            Presented::Nothing | Presented::Cookie(_) => kind.is_none_or(browser::is_json),
        };
        if fine {
            return Ok(());
        }
        let message = "the body must be JSON: send `Content-Type: application/json`";
        Err(ApiError::new(415, "", message).header("accept", "application/json"))
    }
}

/// Notes a wrong key.
///
/// # Errors
/// 429 for an address that has presented too many.
fn slow_down(entry: &Entry<'_>) -> Result<(), Refused> {
    let address = rights::address(entry.head, entry.peer, entry.settings);
    match entry.keeper.wrong_keys.wrong(address, clock::uptime_ms()) {
        None => Ok(()),
        Some(wait_ms) => Err(Refused { error: Box::new(too_many(wait_ms)), pause: Some(throttle::PAUSE) }),
    }
}

/// The answer to an address that has presented too many wrong keys.
pub fn too_many(wait_ms: u64) -> ApiError {
    let message = "invalid API key, and too many wrong ones from this address; check the key of the app that sends them";
    ApiError::new(429, "caller_rate_limited", message)
        .retry_after(wait_ms)
        .with("scope", "ip")
        .with("retryAfterMs", wait_ms)
        .header("x-freeway-limit-scope", "ip")
}
