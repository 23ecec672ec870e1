//! Who calls: the keys that a request presents, and what it may do. Pure but for the digest.
use std::net::SocketAddr;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use super::head::Head;
use crate::catalog::clients::Principal;
use crate::catalog::settings::{Settings, is_loopback};
use crate::wire::error::ApiError;

/// Who presents a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Nobody in particular: no client keys are configured.
    Open,
    /// An app, by its key.
    App { name: Arc<str>, principal: Principal },
    /// The owner, by the admin key.
    Admin { principal: Principal },
}

impl Caller {
    /// The name under which its requests are logged.
    pub fn name(&self) -> Option<Arc<str>> {
        match self {
            Caller::Open => None,
            Caller::App { name, .. } => Some(Arc::clone(name)),
            Caller::Admin { .. } => Some("admin".into()),
        }
    }

    /// Who owns what its requests leave behind; `None` when no key was presented.
    pub fn principal(&self) -> Option<Principal> {
        match self {
            Caller::Open => None,
            Caller::App { principal, .. } | Caller::Admin { principal } => Some(*principal),
        }
    }
}

/// Headers that carry a key beside `Authorization`.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "api-key"];

/// Finds out who calls.
///
/// # Errors
/// 401 when keys are configured and the request presents none of them, or when it presents two that differ.
pub fn caller(head: &Head, settings: &Settings) -> Result<Caller, ApiError> {
    if settings.keys.is_empty() && settings.admin_key.is_none() {
        return Ok(Caller::Open);
    }
    let presented = presented_key(head)?;
    let open = settings.keys.is_empty();
    let Some(presented) = presented else {
        return if open {
            Ok(Caller::Open)
        } else {
            Err(unauthorized("missing API key: send `Authorization: Bearer <key>`"))
        };
    };
    let given = sha256(presented);
    let admin = settings.admin_key.as_ref().map(|key| sha256(key.expose()));
    // Every key is compared, in constant time, so that the time taken says nothing about which one came close.
    let is_admin = admin.is_some_and(|admin| same(&admin, &given));
    let mut app = None;
    for key in &settings.keys {
        if same(&key.sha256, &given) {
            app = Some(key);
        }
    }
    match (is_admin, app) {
        (true, _) => Ok(Caller::Admin { principal: Principal::of(&given) }),
        (_, Some(key)) => Ok(Caller::App { name: Arc::clone(&key.name), principal: Principal::of(&given) }),
        _ if open => Ok(Caller::Open),
        _ => Err(unauthorized("invalid API key")),
    }
}

fn sha256(key: &str) -> [u8; 32] {
    digest(&SHA256, key.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

/// The one key that the request presents.
fn presented_key(head: &Head) -> Result<Option<&str>, ApiError> {
    let mut found: Option<&str> = None;
    for (name, value) in head.fields() {
        let key = if name.eq_ignore_ascii_case("authorization") {
            let Some((scheme, token)) = value.trim().split_once(' ') else { continue };
            if !scheme.eq_ignore_ascii_case("bearer") {
                continue;
            }
            token.trim()
        } else if KEY_HEADERS.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            value.trim()
        } else {
            continue;
        };
        match found {
            _ if key.is_empty() => {}
            Some(other) if other != key => {
                return Err(unauthorized("two different API keys were presented; send one"));
            }
            _ => found = Some(key),
        }
    }
    Ok(found)
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(401, "invalid_api_key", message).header("www-authenticate", "Bearer")
}

/// Whether the owner's routes are open to this request.
///
/// # Errors
/// 403 that says what to set.
pub fn owner(caller: &Caller, head: &Head, peer: SocketAddr, settings: &Settings) -> Result<(), ApiError> {
    if matches!(caller, Caller::Admin { .. }) {
        return Ok(());
    }
    let refused = |message: &str| Err(ApiError::new(403, "admin_required", message));
    if settings.admin_key.is_some() {
        return refused("this route needs the admin key: send the value of FREEWAY_ADMIN_KEY as the API key");
    }
    let forwarded = head.fields().any(|(name, _)| {
        name.eq_ignore_ascii_case("forwarded")
            || name.get(..12).is_some_and(|start| start.eq_ignore_ascii_case("x-forwarded-"))
    });
    let host = head.header("host").is_none_or(|host| is_loopback(host_name(host)));
    if is_loopback(&settings.host) && peer.ip().to_canonical().is_loopback() && host && !forwarded {
        return Ok(());
    }
    refused(
        "this route is open on this machine only; set FREEWAY_ADMIN_KEY and send it as the API key to use it from elsewhere",
    )
}

/// A `Host` value without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, _)) => v6,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::settings::ClientKey;
    use crate::http::head::check_head;

    fn settings(keys: &[&str], admin: Option<&str>) -> Settings {
        let keys =
            keys.iter().map(|key| ClientKey { name: format!("app-{key}").into(), sha256: sha256(key) });
        Settings {
            keys: keys.collect(),
            admin_key: admin.map(crate::base::text::Secret::new),
            ..Settings::default()
        }
    }

    fn head(fields: &str) -> Head {
        check_head(format!("GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1:8787\r\n{fields}\r\n").as_bytes())
            .expect("the head is well formed")
    }

    #[test]
    fn http_10_keys_in_every_documented_form() {
        let settings = settings(&["K"], None);
        let check = |fields: &str, expected: Result<&str, u16>| {
            let found = caller(&head(fields), &settings);
            let found = found.as_ref().map(|caller| caller.name().expect("an app has a name").to_string());
            assert_eq!(found.as_deref().map_err(|error| error.status), expected, "{fields}");
        };
        check("x-api-key: K\r\n", Ok("app-K"));
        check("api-key: K\r\n", Ok("app-K"));
        check("authorization: bearer K\r\n", Ok("app-K"));
        check("Authorization: Bearer  K\r\n", Ok("app-K"));
        check("Authorization: Bearer K\r\nx-api-key: K\r\n", Ok("app-K"));
        check("Authorization: Bearer K\r\nAuthorization: Bearer other\r\n", Err(401));
        check("Authorization: K\r\n", Err(401));
        check("Authorization: Bearer \r\n", Err(401));
        check("Authorization: Bearer k\r\n", Err(401));
        check("", Err(401));
    }

    #[test]
    fn without_client_keys_any_key_or_none_is_fine() {
        assert_eq!(
            caller(&head("authorization: Bearer whatever\r\n"), &settings(&[], None)).ok(),
            Some(Caller::Open)
        );
        assert_eq!(caller(&head(""), &settings(&[], Some("A"))).ok(), Some(Caller::Open));
        assert_eq!(
            caller(&head("x-api-key: A\r\n"), &settings(&[], Some("A"))).ok(),
            Some(Caller::Admin { principal: Principal::of(&sha256("A")) })
        );
    }

    #[test]
    fn the_owners_routes_need_this_machine_or_the_admin_key() {
        let near: SocketAddr = "127.0.0.1:5000".parse().expect("an address");
        let far: SocketAddr = "192.168.1.9:5000".parse().expect("an address");
        let open = settings(&[], None);
        let may = |fields: &str, peer, settings: &Settings| {
            owner(&Caller::Open, &head(fields), peer, settings).is_ok()
        };
        assert!(may("", near, &open));
        assert!(!may("", far, &open));
        assert!(!may("x-forwarded-for: 10.0.0.1\r\n", near, &open));
        assert!(!may("", near, &settings(&[], Some("A"))));
        assert!(
            owner(
                &Caller::Admin { principal: Principal::of(&sha256("A")) },
                &head(""),
                far,
                &settings(&[], Some("A"))
            )
            .is_ok()
        );
        let rebound =
            check_head(b"GET /api/logs HTTP/1.1\r\nhost: evil.example\r\n\r\n").expect("well formed");
        assert!(owner(&Caller::Open, &rebound, near, &open).is_err());
    }
}
