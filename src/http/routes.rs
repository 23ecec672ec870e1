//! The route table: which path means what, who may use it, and what every answer carries.
//!
//! Everything here happens before the body is read, so that a wrong key or path costs nothing.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::answer::{Answer, Fields};
use super::conn::{Admission, Door};
use super::exchange::Terms;
use super::head::Head;
use super::host::MachineNames;
use super::path::{self, PathFault};
use super::permit::{self, Entry, Refused, Right};
use super::rights::{Caller, Doorkeeper};
use super::{
    alerts, analytics, backups, benches, browser, cache, clients, events, keys, metrics, models, outlook,
    overrides, page, probes, providers, session, sessions, settings, v1, views,
};
use crate::base::text::{fresh_id, truncate};
use crate::relay::gateway::Gateway;
use crate::wire::error::ApiError;

/// A request whose caller and path are known.
pub struct Visit<'h> {
    pub gateway: &'h Arc<Gateway>,
    pub keeper: &'h Arc<Doorkeeper>,
    pub head: &'h Head,
    /// Who is at the other end of the connection, be it a proxy.
    pub peer: SocketAddr,
    pub caller: Caller,
    /// What follows the route's path, such as a model id; still percent-encoded.
    pub rest: &'h str,
    pub request_id: String,
    /// Headers of every answer to this request.
    pub common: Fields,
}

impl Visit<'_> {
    /// An answer to this request, with the headers that all of them carry.
    pub fn answer(self, mut answer: Answer) -> Admission {
        answer.headers.extend(self.common);
        Admission::Answer(answer)
    }

    /// The same after a pause, for those who try keys.
    pub fn answer_late(self, mut answer: Answer, pause: Duration) -> Admission {
        answer.headers.extend(self.common);
        Admission::Late(answer, pause)
    }

    /// Terms under which the body is read.
    pub fn terms(self, max_bytes: usize) -> Terms {
        Terms { max_bytes, headers: self.common, envelope: ApiError::body }
    }
}

type Handler = fn(Visit<'_>) -> Admission;

/// One route. A `*` that ends the path takes everything below it, one within the path takes one segment; what it took
/// is the visit's `rest`.
struct Route {
    path: &'static str,
    right: Right,
    /// By [`METHODS`].
    handlers: [Option<Handler>; METHODS.len()],
}

/// Methods that routes may have. `HEAD` is answered as `GET`, `OPTIONS` everywhere.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

const fn anybody(path: &'static str) -> Route {
    Route { path, right: Right::Anybody, handlers: [None; METHODS.len()] }
}

const fn client(path: &'static str) -> Route {
    Route { right: Right::Client, ..anybody(path) }
}

const fn owner(path: &'static str) -> Route {
    Route { right: Right::Owner, ..anybody(path) }
}

/// Every route, in the order in which they are tried.
const ROUTES: &[Route] = &[
    client("/v1/chat/completions").post(v1::chat),
    client("/v1/embeddings").post(v1::embeddings),
    anybody("/").get(page::index),
    anybody("/page/*").get(page::part),
    anybody("/healthz").get(views::health),
    anybody("/readyz").get(views::ready),
    owner("/metrics").get(metrics::metrics),
    client("/v1/models").get(v1::models),
    client("/v1/models/*").get(v1::model),
    anybody("/api/session").get(session::view).post(session::sign_in).delete(session::sign_out),
    owner("/api/providers").get(providers::list),
    owner("/api/providers/*/enabled").post(overrides::enable),
    owner("/api/providers/*/probe").post(probes::probe),
    owner("/api/keyhealth").post(probes::check_keys),
    owner("/api/overrides")
        .get(overrides::show)
        .put(overrides::replace)
        .patch(overrides::patch)
        .delete(overrides::clear),
    owner("/api/overrides/*")
        .get(overrides::show_entry)
        .put(overrides::replace_entry)
        .patch(overrides::patch_entry)
        .delete(overrides::remove_entry),
    owner("/api/models").get(models::list),
    owner("/api/route").get(outlook::show),
    owner("/api/catalog").get(models::names),
    owner("/api/providers/*/key").post(keys::paste).delete(keys::forget),
    owner("/api/keys").get(keys::list),
    owner("/api/keys/import").post(keys::import),
    owner("/api/keys/export").get(keys::export),
    owner("/api/clients").get(clients::list).post(clients::create),
    owner("/api/clients/*").delete(clients::revoke),
    owner("/api/stats").get(views::stats),
    owner("/api/settings").get(settings::list),
    owner("/api/alerts").get(alerts::list),
    owner("/api/logs").get(views::logs),
    owner("/api/events").get(events::watch),
    owner("/api/usage").get(analytics::usage),
    owner("/api/analytics").get(analytics::analytics),
    owner("/api/requests").get(analytics::requests),
    owner("/api/sessions").get(sessions::list),
    owner("/api/sessions/*").get(sessions::show).delete(sessions::remove),
    owner("/api/benches").get(benches::list).delete(benches::lift),
    owner("/api/benches/*").delete(benches::lift),
    owner("/api/backups").get(backups::list),
    owner("/api/backup").post(backups::create),
    owner("/api/cache").get(cache::view).delete(cache::clear),
    owner("/api/reload").post(views::reload),
    owner("/api/refresh").post(views::refresh),
    owner("/_refresh").post(views::refresh),
];

/// What the door knows at the start.
pub fn doorkeeper() -> Arc<Doorkeeper> {
    Arc::new(Doorkeeper { names: MachineNames::of_this_machine(), ..Doorkeeper::default() })
}

/// The door of the server: every request goes through here.
pub fn door(gateway: Arc<Gateway>, keeper: Arc<Doorkeeper>) -> Door {
    Box::new(move |head, peer| admit(&gateway, &keeper, &head, peer))
}

fn admit(gateway: &Arc<Gateway>, keeper: &Arc<Doorkeeper>, head: &Head, peer: SocketAddr) -> Admission {
    let snapshot = gateway.snapshot();
    let path = path::tidy(head.path());
    let found = find(&path);
    let entry = Entry {
        head,
        peer,
        settings: &snapshot.settings,
        keeper,
        right: right(found.map(|(route, _)| route), &path),
        of_owner: is_of_owner(found.map(|(route, _)| route), &path),
        inference: path.starts_with("/v1/"),
        origin: browser::origin(head, &snapshot.settings),
    };
    let request_id = request_id(head);
    let mut common = common_headers(&path, &request_id);
    if !entry.of_owner {
        common.extend(browser::origin_headers(head, entry.origin));
    }
    if head.method() == "OPTIONS" {
        let allow = found.map_or_else(
            || "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS".to_owned(),
            |(route, _)| route.allow(),
        );
        return Admission::Answer(permit::preflight(&entry, &allow));
    }
    let mut visit = Visit { gateway, keeper, head, peer, caller: Caller::Open, rest: "", request_id, common };
    match permit::judge(&entry) {
        Ok(caller) => visit.caller = caller,
        Err(Refused { error, pause: None }) => return visit.answer(Answer::error(&error)),
        Err(Refused { error, pause: Some(pause) }) => return visit.answer_late(Answer::error(&error), pause),
    }
    let Some((route, rest)) = found else { return visit.answer(Answer::error(&not_found(&path))) };
    visit.rest = rest;
    match route.handler(head.method()) {
        Some(handler) => handler(visit),
        None => visit.answer(Answer::error(&route.method_not_allowed(head.method()))),
    }
}

/// Who may use a path. Those that do not exist are not told apart from those that do before the key is known.
fn right(route: Option<&Route>, path: &str) -> Right {
    match route {
        Some(route) => route.right,
        None if path.starts_with("/api/") => Right::Owner,
        // A page fetches the client library before it has a key.
        None if path.starts_with("/sdk/") => Right::Anybody,
        None => Right::Client,
    }
}

/// Whether a path is for the owner and our own page alone, also where it needs no right, such as to sign in.
fn is_of_owner(route: Option<&Route>, path: &str) -> bool {
    path.starts_with("/api/") || right(route, path) == Right::Owner
}

impl Route {
    const fn get(self, handler: Handler) -> Route {
        self.on(0, handler)
    }

    const fn post(self, handler: Handler) -> Route {
        self.on(1, handler)
    }

    const fn put(self, handler: Handler) -> Route {
        self.on(2, handler)
    }

    const fn patch(self, handler: Handler) -> Route {
        self.on(3, handler)
    }

    const fn delete(self, handler: Handler) -> Route {
        self.on(4, handler)
    }

    const fn on(mut self, method: usize, handler: Handler) -> Route {
        self.handlers[method] = Some(handler);
        self
    }

    fn handler(&self, method: &str) -> Option<Handler> {
        let method = if method == "HEAD" { "GET" } else { method };
        let place = METHODS.iter().position(|known| *known == method)?;
        self.handlers[place]
    }

    fn allow(&self) -> String {
        let mut methods = Vec::new();
        for (method, handler) in METHODS.iter().zip(&self.handlers) {
            match (*method, handler) {
                (_, None) => {}
                ("GET", _) => methods.extend(["GET", "HEAD"]),
                (method, _) => methods.push(method),
            }
        }
        methods.push("OPTIONS");
        methods.join(", ")
    }

    fn method_not_allowed(&self, method: &str) -> ApiError {
        let allow = self.allow();
        let message = format!("{} does not take {}; it takes {allow}", self.path, truncate(method, 20));
        ApiError::new(405, "method_not_allowed", message).header("allow", allow)
    }

    /// What the star of this route's path stands for in `path`; `None` when that is another route's.
    fn take<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some((before, after)) = self.path.split_once('*') else {
            return (self.path == path).then_some("");
        };
        let rest = path.strip_prefix(before)?.strip_suffix(after)?;
        let fits = !rest.is_empty() && (after.is_empty() || !rest.contains('/'));
        fits.then_some(rest)
    }
}

fn find(path: &str) -> Option<(&'static Route, &str)> {
    ROUTES.iter().find_map(|route| Some((route, route.take(path)?)))
}

/// Longest path that is repeated to the client.
const SHOWN_PATH_MAX: usize = 200;

fn not_found(path: &str) -> ApiError {
    let shown = match path::decoded(path) {
        Ok(decoded) => truncate(&decoded, SHOWN_PATH_MAX).to_owned(),
        Err(PathFault::BadEscape) => truncate(path, SHOWN_PATH_MAX).to_owned(),
    };
    let with_v1 = format!("/v1{path}");
    let hint = match find(&with_v1) {
        Some((route, _)) if route.path.starts_with("/v1/") => {
            format!(
                "; did you mean {}? The base URL of an OpenAI client ends in /v1",
                truncate(&with_v1, SHOWN_PATH_MAX)
            )
        }
        _ => String::new(),
    };
    ApiError::new(404, "not_found", format!("there is nothing at {shown}{hint}"))
}

/// Longest request id that is taken over from a client.
const REQUEST_ID_MAX: usize = 128;

/// The client's own id if it is sane, else a fresh one.
fn request_id(head: &Head) -> String {
    let sane =
        |id: &&str| !id.is_empty() && id.len() <= REQUEST_ID_MAX && id.bytes().all(|b| b.is_ascii_graphic());
    head.header("x-request-id").filter(sane).map_or_else(|| fresh_id("req_"), str::to_owned)
}

/// Headers of every answer below `path`: no shared cache may keep what one key was told.
fn common_headers(path: &str, request_id: &str) -> Fields {
    let mut common: Fields = vec![("x-request-id", request_id.to_owned().into())];
    if path.starts_with("/v1/") || path.starts_with("/api/") {
        common.push(("cache-control", "no-store, no-transform".into()));
        common.push(("vary", "authorization, origin".into()));
    }
    if path.starts_with("/api/") {
        common.extend(browser::PROTECTION.map(|(name, value)| (name, value.into())));
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_their_routes() {
        let check = |path: &str, expected: Option<(&str, &str)>| {
            assert_eq!(find(path).map(|(route, rest)| (route.path, rest)), expected, "{path}");
        };
        check("/v1/chat/completions", Some(("/v1/chat/completions", "")));
        check("/v1/models", Some(("/v1/models", "")));
        check("/v1/models/acme/big-2:free", Some(("/v1/models/*", "acme/big-2:free")));
        check("/v1/models/", None);
        check("/v1/modelsx", None);
        check("/v1/nope", None);
    }

    #[test]
    fn a_star_within_a_path_is_one_segment() {
        let route = owner("/api/providers/*/enabled");
        let check = |path: &str, expected: Option<&str>| assert_eq!(route.take(path), expected, "{path}");
        check("/api/providers/groq/enabled", Some("groq"));
        check("/api/providers/a%2Fb/enabled", Some("a%2Fb"));
        check("/api/providers//enabled", None);
        check("/api/providers/enabled", None);
        check("/api/providers/a/b/enabled", None);
        check("/api/providers/groq", None);
    }

    #[test]
    fn http_05_a_forgotten_v1_gets_a_hint() {
        assert!(not_found("/chat/completions").message.contains("did you mean /v1/chat/completions?"));
        assert!(!not_found("/v1/nope").message.contains("did you mean"));
    }
}
