//! Who calls: the keys that a request presents, by header or by the page's cookie, and what it may do. Pure but for the
//! digest.
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use ring::digest::{SHA256, digest};

use super::head::Head;
use super::host::{self, MachineNames};
use super::server::Monitor;
use super::signin::SignIns;
use super::throttle::Throttle;
use crate::catalog::client_key::{ClientKey, Principal};
use crate::catalog::settings::{Settings, is_loopback};
use crate::wire::error::ApiError;

/// What the door knows, and remembers from one request to the next.
#[derive(Default)]
pub struct Doorkeeper {
    pub names: MachineNames,
    pub sign_ins: SignIns,
    pub wrong_keys: Throttle,
    /// Set once the server runs.
    pub monitor: OnceLock<Monitor>,
    /// The hash of the word by which commands of the terminal are known, which find it in the data folder.
    pub command: OnceLock<[u8; 32]>,
}

impl Doorkeeper {
    /// Whether a command of the terminal asks, which is as good as the owner: whoever can read the data folder is.
    pub fn is_command(&self, presented: Presented<'_>) -> Option<Caller> {
        let (Presented::Key(key), Some(word)) = (presented, self.command.get()) else { return None };
        let hash = sha256(key);
        same(word, &hash).then(|| Caller::Admin { principal: Principal::of(&hash) })
    }
}

/// Who presents a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Caller {
    /// Nobody in particular: no client keys are configured.
    Open,
    /// An app, by its key.
    App(Arc<ClientKey>),
    /// The owner, by the admin key.
    Admin { principal: Principal },
}

impl Caller {
    /// The name under which its requests are logged.
    pub fn name(&self) -> Option<Arc<str>> {
        match self {
            Caller::Open => None,
            Caller::App(key) => Some(Arc::clone(&key.name)),
            Caller::Admin { .. } => Some("admin".into()),
        }
    }

    /// Who owns what its requests leave behind; `None` when no key was presented.
    pub fn principal(&self) -> Option<Principal> {
        match self {
            Caller::Open => None,
            Caller::App(key) => Some(key.principal()),
            Caller::Admin { principal } => Some(*principal),
        }
    }

    /// The key of an app.
    pub fn client(&self) -> Option<&Arc<ClientKey>> {
        match self {
            Caller::App(key) => Some(key),
            Caller::Open | Caller::Admin { .. } => None,
        }
    }
}

/// Why a caller is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Keys are configured, and none was presented.
    Missing,
    Wrong,
    /// Two that differ.
    Two,
}

impl Denial {
    /// The 401 that says so.
    pub fn error(self) -> ApiError {
        let message = match self {
            Denial::Missing => "missing API key: send `Authorization: Bearer <key>`",
            Denial::Wrong => "invalid API key",
            Denial::Two => "two different API keys were presented; send one",
        };
        ApiError::new(401, "invalid_api_key", message).header("www-authenticate", "Bearer")
    }
}

/// What a request presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presented<'h> {
    Nothing,
    Key(&'h str),
    /// The hash of the key with which the page was signed in to.
    Cookie([u8; 32]),
}

/// Headers that carry a key beside `Authorization`.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "api-key"];

/// The one key that the headers hold.
///
/// # Errors
/// When they hold two that differ.
pub fn presented(head: &Head) -> Result<Presented<'_>, Denial> {
    let mut found = Presented::Nothing;
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
            Presented::Key(other) if other != key => return Err(Denial::Two),
            _ => found = Presented::Key(key),
        }
    }
    Ok(found)
}

/// Finds out who calls.
///
/// # Errors
/// When client keys are configured and none of them, nor the admin key, was presented.
pub fn caller(presented: Presented<'_>, settings: &Settings) -> Result<Caller, Denial> {
    let open = settings.keys.is_empty();
    if open && settings.admin_key.is_none() {
        return Ok(Caller::Open);
    }
    let hash = match presented {
        Presented::Nothing if open => return Ok(Caller::Open),
        Presented::Nothing => return Err(Denial::Missing),
        Presented::Key(key) => sha256(key),
        Presented::Cookie(hash) => hash,
    };
    match whose(&hash, settings) {
        Some(caller) => Ok(caller),
        None if open => Ok(Caller::Open),
        None if matches!(presented, Presented::Cookie(_)) => Err(Denial::Missing),
        None => Err(Denial::Wrong),
    }
}

/// Whose key has this hash. Every key is compared, in constant time, so that the time taken says nothing about which one
/// came close.
pub fn whose(hash: &[u8; 32], settings: &Settings) -> Option<Caller> {
    let is_admin = settings.admin_key.is_some_and(|admin| same(&admin.sha256, hash));
    let mut app = None;
    for key in &settings.keys {
        if same(&key.sha256, hash) {
            app = Some(key);
        }
    }
    match (is_admin, app) {
        (true, _) => Some(Caller::Admin { principal: Principal::of(hash) }),
        (_, Some(key)) => Some(Caller::App(Arc::clone(key))),
        _ => None,
    }
}

/// The hash under which a key is known.
pub fn sha256(key: &str) -> [u8; 32] {
    digest(&SHA256, key.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
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
    if at_the_machine(head, peer, settings) {
        return Ok(());
    }
    refused(
        "this route is open on this machine only; set FREEWAY_ADMIN_KEY and send it as the API key to use it from elsewhere",
    )
}

/// Whether a request comes from this machine itself and was meant for it, with no proxy between that could speak for
/// somebody else.
pub fn at_the_machine(head: &Head, peer: SocketAddr, settings: &Settings) -> bool {
    let host = head.header("host").is_none_or(host::is_loopback);
    is_loopback(&settings.host)
        && peer.ip().to_canonical().is_loopback()
        && host
        && !head.fields().any(|(name, _)| is_forwarding(name))
}

fn is_forwarding(name: &str) -> bool {
    name.eq_ignore_ascii_case("forwarded")
        || name.get(..12).is_some_and(|start| start.eq_ignore_ascii_case("x-forwarded-"))
}

/// The address of the client: the peer's, unless the peer is a proxy that is trusted to tell.
pub fn address(head: &Head, peer: SocketAddr, settings: &Settings) -> IpAddr {
    let trusted = |address: IpAddr| {
        settings.trusted_proxies.iter().any(|known| known.to_canonical() == address.to_canonical())
    };
    let mut client = peer.ip();
    if settings.trusted_proxies.is_empty() {
        return client;
    }
    // Each proxy adds the address that it saw at the end; whatever stands before that of a stranger is hearsay.
    let mut told = forwarded_for(head);
    while trusted(client) {
        match told.pop() {
            Some(Some(address)) => client = address,
            Some(None) | None => break,
        }
    }
    client.to_canonical()
}

/// The addresses that proxies noted, nearest last; `None` for what is no address. All of them, however many a client has
/// made up before the first proxy: the nearest one alone is known to be true. The size of a head bounds them. `X-Forwarded-For` counts where both
/// headers are there, because that is what most proxies write.
fn forwarded_for(head: &Head) -> Vec<Option<IpAddr>> {
    let of = |wanted: &'static str| {
        head.fields()
            .filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
            .flat_map(|(_, value)| value.split(','))
    };
    let plain: Vec<_> = of("x-forwarded-for").map(|hop| host::bare(hop.trim()).parse().ok()).collect();
    if !plain.is_empty() {
        return plain;
    }
    let node = |hop: &str| {
        let mut pairs = hop.split(';').filter_map(|pair| pair.trim().split_once('='));
        let (_, node) = pairs.find(|(name, _)| name.eq_ignore_ascii_case("for"))?;
        host::bare(node.trim_matches('"')).parse().ok()
    };
    of("forwarded").map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::client_key::{ClientRules, ClientSource};
    use crate::catalog::settings::AdminKey;
    use crate::http::head::check_head;

    fn settings(keys: &[&str], admin: Option<&str>) -> Settings {
        let key = |key: &&str| {
            Arc::new(ClientKey {
                name: format!("app-{key}").into(),
                sha256: sha256(key),
                source: ClientSource::Config,
                created_ms: None,
                rules: ClientRules::default(),
            })
        };
        Settings {
            keys: keys.iter().map(key).collect(),
            admin_key: admin.map(AdminKey::new),
            ..Settings::default()
        }
    }

    fn head(fields: &str) -> Head {
        check_head(format!("GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1:8787\r\n{fields}\r\n").as_bytes())
            .expect("the head is well formed")
    }

    fn found(fields: &str, settings: &Settings) -> Result<Caller, Denial> {
        caller(presented(&head(fields))?, settings)
    }

    fn admin() -> Caller {
        Caller::Admin { principal: Principal::of(&sha256("A")) }
    }

    #[test]
    fn http_10_keys_in_every_documented_form() {
        let settings = settings(&["K"], None);
        let check = |fields: &str, expected: Result<&str, Denial>| {
            let found = found(fields, &settings);
            let found = found.map(|caller| caller.name().expect("an app has a name").to_string());
            assert_eq!(found, expected.map(str::to_owned), "{fields}");
        };
        check("x-api-key: K\r\n", Ok("app-K"));
        check("api-key: K\r\n", Ok("app-K"));
        check("authorization: bearer K\r\n", Ok("app-K"));
        check("Authorization: Bearer  K\r\n", Ok("app-K"));
        check("Authorization: Bearer K\r\nx-api-key: K\r\n", Ok("app-K"));
        check("Authorization: Bearer K\r\nAuthorization: Bearer other\r\n", Err(Denial::Two));
        check("Authorization: K\r\n", Err(Denial::Missing));
        check("Authorization: Bearer \r\n", Err(Denial::Missing));
        check("Authorization: Bearer k\r\n", Err(Denial::Wrong));
        check("", Err(Denial::Missing));
        assert_eq!(Denial::Two.error().status, 401);
    }

    #[test]
    fn without_client_keys_any_key_or_none_is_fine() {
        assert_eq!(found("authorization: Bearer whatever\r\n", &settings(&[], None)), Ok(Caller::Open));
        assert_eq!(found("", &settings(&[], Some("A"))), Ok(Caller::Open));
        assert_eq!(found("x-api-key: B\r\n", &settings(&[], Some("A"))), Ok(Caller::Open));
        assert_eq!(found("x-api-key: A\r\n", &settings(&[], Some("A"))), Ok(admin()));
    }

    #[test]
    fn a_cookie_is_worth_what_its_key_is_worth_today() {
        let cookie = Presented::Cookie(sha256("A"));
        assert_eq!(caller(cookie, &settings(&["K"], Some("A"))), Ok(admin()));
        assert_eq!(caller(cookie, &settings(&["K"], Some("B"))), Err(Denial::Missing));
        assert_eq!(caller(cookie, &settings(&[], Some("B"))), Ok(Caller::Open));
    }

    #[test]
    fn a2_the_owners_routes_need_this_machine_or_the_admin_key() {
        let near: SocketAddr = "127.0.0.1:5000".parse().expect("an address");
        let far: SocketAddr = "192.168.1.9:5000".parse().expect("an address");
        let open = settings(&[], None);
        let may = |fields: &str, peer, settings: &Settings| {
            owner(&Caller::Open, &head(fields), peer, settings).is_ok()
        };
        assert!(may("", near, &open));
        assert!(!may("", far, &open));
        assert!(!may("x-forwarded-for: 10.0.0.1\r\n", near, &open));
        assert!(!may("forwarded: for=127.0.0.1\r\n", near, &open));
        assert!(!may("X-Forwarded-Host: localhost\r\n", near, &open));
        assert!(!may("", near, &settings(&[], Some("A"))));
        assert!(owner(&admin(), &head(""), far, &settings(&[], Some("A"))).is_ok());
        let wide = Settings { host: "0.0.0.0".into(), ..settings(&["K"], None) };
        assert!(!may("", near, &wide));
        let rebound =
            check_head(b"GET /api/logs HTTP/1.1\r\nhost: evil.example\r\n\r\n").expect("well formed");
        assert!(owner(&Caller::Open, &rebound, near, &open).is_err());
    }

    #[test]
    fn a2_only_trusted_proxies_are_believed_about_addresses() {
        let proxies = |list: &[&str]| Settings {
            trusted_proxies: list.iter().map(|text| text.parse().expect("an address")).collect(),
            ..Settings::default()
        };
        let check = |trusted: &[&str], fields: &str, expected: &str| {
            let peer = "10.0.0.1:5000".parse().expect("an address");
            let found = address(&head(fields), peer, &proxies(trusted));
            assert_eq!(found.to_string(), expected, "{trusted:?} {fields}");
        };
        check(&[], "x-forwarded-for: 192.0.2.7\r\n", "10.0.0.1");
        check(&["10.0.0.2"], "x-forwarded-for: 192.0.2.7\r\n", "10.0.0.1");
        check(&["10.0.0.1"], "", "10.0.0.1");
        check(&["10.0.0.1"], "x-forwarded-for: 6.6.6.6, 192.0.2.7\r\n", "192.0.2.7");
        check(&["10.0.0.1"], "x-forwarded-for: 6.6.6.6\r\nx-forwarded-for: 192.0.2.7:99\r\n", "192.0.2.7");
        check(&["10.0.0.1", "10.0.0.2"], "x-forwarded-for: 192.0.2.7, 10.0.0.2\r\n", "192.0.2.7");
        check(&["10.0.0.1"], "x-forwarded-for: nonsense\r\n", "10.0.0.1");
        check(&["10.0.0.1"], "x-forwarded-for: 192.0.2.7, nonsense\r\n", "10.0.0.1");
        let made_up = "x-forwarded-for: 6.6.6.6, 6.6.6.6, 6.6.6.6, 6.6.6.6\r\n".repeat(20);
        check(&["10.0.0.1"], &format!("{made_up}x-forwarded-for: 192.0.2.7\r\n"), "192.0.2.7");
        check(&["10.0.0.1"], "forwarded: for=\"[2001:db8::1]:80\";proto=https\r\n", "2001:db8::1");
        check(&["10.0.0.1"], "forwarded: proto=https\r\n", "10.0.0.1");
    }
}
