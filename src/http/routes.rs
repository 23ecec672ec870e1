//! The route table: which path means what, who may use it, and what every answer carries.
//!
//! Everything here happens on the reader thread, before the body, so that a wrong key or path costs nothing.
use std::net::SocketAddr;
use std::sync::Arc;

use super::answer::{Answer, Fields};
use super::conn::{Admission, Door};
use super::exchange::Terms;
use super::head::Head;
use super::path::{self, PathFault};
use super::rights::{self, Caller};
use super::{browser, providers, v1, views};
use crate::base::text::{fresh_id, truncate};
use crate::relay::gateway::Gateway;
use crate::wire::error::ApiError;

/// A request whose caller and path are known.
pub struct Visit<'h> {
    pub gateway: &'h Arc<Gateway>,
    pub head: &'h Head,
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

    /// Terms under which the body is read.
    pub fn terms(self, max_bytes: usize) -> Terms {
        Terms { max_bytes, headers: self.common, envelope: ApiError::body }
    }
}

/// Who may use a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Right {
    Anybody,
    /// Whoever presents a client key, where there are any.
    Client,
    Owner,
}

type Handler = fn(Visit<'_>) -> Admission;

/// One route. A path that ends in `/*` takes everything below it.
struct Route {
    path: &'static str,
    right: Right,
    get: Option<Handler>,
    post: Option<Handler>,
    delete: Option<Handler>,
}

const fn get(path: &'static str, right: Right, handler: Handler) -> Route {
    Route { path, right, get: Some(handler), post: None, delete: None }
}

const fn post(path: &'static str, right: Right, handler: Handler) -> Route {
    Route { path, right, get: None, post: Some(handler), delete: None }
}

/// Every route, in the order in which they are tried.
const ROUTES: &[Route] = &[
    get("/", Right::Anybody, views::page),
    get("/healthz", Right::Anybody, views::health),
    get("/readyz", Right::Anybody, views::ready),
    post("/v1/chat/completions", Right::Client, v1::chat),
    post("/v1/embeddings", Right::Client, v1::embeddings),
    get("/v1/models", Right::Client, v1::models),
    get("/v1/models/*", Right::Client, v1::model),
    get("/api/providers", Right::Owner, providers::list),
    get("/api/stats", Right::Owner, views::stats),
    get("/api/logs", Right::Owner, views::logs),
    Route {
        path: "/api/benches",
        right: Right::Owner,
        get: Some(providers::benches),
        post: None,
        delete: Some(views::lift_benches),
    },
    Route {
        path: "/api/benches/*",
        right: Right::Owner,
        get: None,
        post: None,
        delete: Some(views::lift_benches),
    },
    post("/api/reload", Right::Owner, views::reload),
    post("/api/refresh", Right::Owner, views::refresh),
    post("/_refresh", Right::Owner, views::refresh),
];

/// The door of the server: every request goes through here.
pub fn door(gateway: Arc<Gateway>) -> Door {
    Box::new(move |head, peer| admit(&gateway, &head, peer))
}

fn admit(gateway: &Arc<Gateway>, head: &Head, peer: SocketAddr) -> Admission {
    let snapshot = gateway.snapshot();
    let path = path::tidy(head.path());
    let request_id = request_id(head);
    let mut common = common_headers(&path, &request_id);
    common.extend(browser::origin_headers(head, &snapshot.settings));
    let found = find(&path);
    if head.method() == "OPTIONS" {
        let allow =
            found.map_or_else(|| "GET, HEAD, POST, DELETE, OPTIONS".to_owned(), |(route, _)| route.allow());
        return Admission::Answer(browser::preflight(head, &snapshot.settings, &allow));
    }
    let mut visit = Visit { gateway, head, caller: Caller::Open, rest: "", request_id, common };
    match permit(&mut visit, found.map(|(route, _)| route), &path, peer, &snapshot.settings) {
        Ok(()) => {}
        Err(error) => return visit.answer(Answer::error(&error)),
    }
    let Some((route, rest)) = found else { return visit.answer(Answer::error(&not_found(&path))) };
    visit.rest = rest;
    match route.handler(head.method()) {
        Some(handler) => handler(visit),
        None => visit.answer(Answer::error(&route.method_not_allowed(head.method()))),
    }
}

/// Finds out who calls, and whether that is enough for the route.
fn permit(
    visit: &mut Visit<'_>,
    route: Option<&Route>,
    path: &str,
    peer: SocketAddr,
    settings: &crate::catalog::settings::Settings,
) -> Result<(), ApiError> {
    // Paths that do not exist are not told apart from those that do before the key is known.
    let right = match route {
        Some(route) => route.right,
        None if path.starts_with("/api/") => Right::Owner,
        // A page fetches the client library before it has a key.
        None if path.starts_with("/sdk/") => Right::Anybody,
        None => Right::Client,
    };
    if right == Right::Anybody {
        return Ok(());
    }
    visit.caller = rights::caller(visit.head, settings)?;
    match right {
        Right::Owner => rights::owner(&visit.caller, visit.head, peer, settings),
        _ => Ok(()),
    }
}

impl Route {
    /// `HEAD` is answered as `GET`; the body is left out further down.
    fn handler(&self, method: &str) -> Option<Handler> {
        match method {
            "GET" | "HEAD" => self.get,
            "POST" => self.post,
            "DELETE" => self.delete,
            _ => None,
        }
    }

    fn allow(&self) -> String {
        let mut methods = Vec::new();
        if self.get.is_some() {
            methods.extend(["GET", "HEAD"]);
        }
        if self.post.is_some() {
            methods.push("POST");
        }
        if self.delete.is_some() {
            methods.push("DELETE");
        }
        methods.push("OPTIONS");
        methods.join(", ")
    }

    fn method_not_allowed(&self, method: &str) -> ApiError {
        let allow = self.allow();
        let message = format!("{} does not take {}; it takes {allow}", self.path, truncate(method, 20));
        ApiError::new(405, "method_not_allowed", message).header("allow", allow)
    }
}

fn find(path: &str) -> Option<(&'static Route, &str)> {
    ROUTES.iter().find_map(|route| match route.path.strip_suffix("/*") {
        None => (route.path == path).then_some((route, "")),
        Some(stem) => {
            let rest = path.strip_prefix(stem)?.strip_prefix('/')?;
            (!rest.is_empty()).then_some((route, rest))
        }
    })
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
    fn http_05_a_forgotten_v1_gets_a_hint() {
        assert!(not_found("/chat/completions").message.contains("did you mean /v1/chat/completions?"));
        assert!(!not_found("/v1/nope").message.contains("did you mean"));
    }
}
