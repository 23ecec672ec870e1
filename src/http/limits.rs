//! Limits of callers at the door, and the look through what they send.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::head::Refusal;
use super::rights::Caller;
use crate::base::clock;
use crate::catalog::client_key::ClientLimits;
use crate::catalog::settings::{GuardSettings, ScanMode};
use crate::guard::limiter::{Refused, Scope};
use crate::guard::scan::{self, Finding};
use crate::relay::findings::{self, Found};
use crate::relay::gateway::Gateway;
use crate::wire::error::ApiError;

/// Whose limits a request counts against; none where nothing is limited.
pub fn callers(caller: &Caller, address: IpAddr, settings: &GuardSettings) -> Vec<(Scope, ClientLimits)> {
    let mut callers = Vec::new();
    if let Caller::App(key) = caller {
        callers.push((Scope::Key(key.principal()), key.rules.limits.or(settings.per_key)));
    }
    // On this machine everybody has the same address, behind a proxy that is not trusted too.
    let per_address = match address.to_canonical().is_loopback() {
        true => settings.per_address,
        false => settings.per_address.or(settings.per_stranger),
    };
    callers.push((Scope::of_address(address), per_address));
    callers.retain(|(_, limits)| limits.is_limited());
    callers
}

/// What a caller is told who has reached a limit.
pub fn refusal(refused: &Refused) -> ApiError {
    let Refused { scope, limit, max, retry_in_ms } = *refused;
    let whose = match scope {
        Scope::Key(_) => "this client key",
        Scope::Address(_) => "this address",
    };
    let what = match limit {
        "rpm" => format!("{max} requests a minute"),
        "tpm" => format!("{max} tokens a minute"),
        "rpd" => format!("{max} requests a day"),
        _ => format!("{max} requests at once"),
    };
    ApiError::new(429, "caller_rate_limited", format!("{whose} may have {what}; try again later"))
        .retry_after(retry_in_ms)
        .with("scope", scope.name())
        .with("limit", limit)
        .with("retryAfterMs", retry_in_ms)
        .header("x-freeway-limit-scope", scope.name())
}

/// Bodies above this are looked through one at a time. What they say is written out for it, which takes as much memory
/// again, and a good part of a second of a small processor.
const ALONE_BYTES: usize = 256 * 1024;
/// How long one of them waits for the others.
const ALONE_WAIT_MAX: Duration = Duration::from_secs(10);
static ALONE: Mutex<()> = Mutex::new(());

fn crowded() -> ApiError {
    Refusal::overloaded("too many large requests are being looked through just now").to_error()
}

/// Looks through a request, and keeps what is found for the alerts.
///
/// # Errors
/// 400 for something grave, where that is refused; 503 when there is too much to look through.
pub fn look_through(
    gateway: &Gateway,
    settings: &GuardSettings,
    body: &[u8],
    request_id: &str,
    client: Option<&Arc<str>>,
) -> Result<(), ApiError> {
    if settings.scan.mode == ScanMode::Off {
        return Ok(());
    }
    let _alone = match body.len() > ALONE_BYTES {
        true => Some(ALONE.try_lock_for(ALONE_WAIT_MAX).ok_or_else(crowded)?),
        false => None,
    };
    let findings = scan::scan(body, &settings.scan);
    if findings.is_empty() {
        return Ok(());
    }
    let refused = settings.scan.mode == ScanMode::Block && findings.iter().any(Finding::is_grave);
    let error = refused.then(|| blocked(&findings));
    gateway.found.push(Found {
        at_ms: clock::now().wall_ms,
        request_id: request_id.to_owned(),
        client: client.cloned(),
        refused,
        findings,
    });
    error.map_or(Ok(()), Err)
}

fn blocked(findings: &[Finding]) -> ApiError {
    let grave: Vec<&str> =
        findings.iter().filter(|finding| finding.is_grave()).map(|finding| finding.rule.name).collect();
    let message = format!(
        "the request holds what must not leave this network ({}); take it out and send it again",
        grave.join(", ")
    );
    let list: Vec<_> = findings.iter().map(findings::view).collect();
    ApiError::new(400, "content_blocked", message).with("findings", list)
}
