//! What browsers tell and ask: where a page stands, preflights, and the headers that let a page on another origin read
//! our answers. Pure.
use super::answer::{Answer, Fields};
use super::head::Head;
use crate::catalog::settings::Settings;

/// Request headers that a page may send, beside those that begin with one of [`HEADER_STARTS`].
const HEADERS: [&str; 7] =
    ["authorization", "content-type", "x-api-key", "api-key", "accept", "cache-control", "x-request-id"];
const HEADER_STARTS: [&str; 4] = ["x-stainless-", "x-freeway-", "openai-", "anthropic-"];
/// Answer headers that a page may read.
const EXPOSED: &str = "x-request-id, x-freeway-route, x-freeway-provider, x-freeway-model, x-freeway-attempts, \
                       x-freeway-ms, x-freeway-trail, x-freeway-usage, x-freeway-context, x-freeway-session, \
                       x-freeway-cache, x-freeway-cache-score, x-freeway-limit-scope, retry-after";
/// Methods that any of our routes takes; which of them this one takes stands in `Allow`.
const METHODS: &str = "GET, POST, PUT, PATCH, DELETE, OPTIONS";
/// What keeps a browser from making more of an answer under `/api` than data for our own page.
pub const PROTECTION: [(&str, &str); 3] = [
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
];
/// How long a browser may remember a preflight, in seconds.
const MAX_AGE_S: &str = "86400";
/// Most requested headers that are looked at.
const REQUESTED_MAX: usize = 64;

/// Where the page stands that a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No page at all, or one whose browser says that it is our own.
    None,
    /// Our own page, by its address.
    Same,
    /// One that the owner allows.
    Listed,
    Unknown,
}

/// Where a request comes from, as far as browsers tell. What they send cannot be made up by a page.
pub fn origin(head: &Head, settings: &Settings) -> Origin {
    let Some(origin) = head.header("origin") else {
        // Images, forms and links of a page carry no origin, but newer browsers say how far it is away.
        return match head.header("sec-fetch-site") {
            None | Some("none" | "same-origin") => Origin::None,
            Some(_) => Origin::Unknown,
        };
    };
    if settings.cors_origins.iter().any(|allowed| allowed == origin) {
        Origin::Listed
    } else if is_same(origin, head.header("host").unwrap_or_default()) {
        Origin::Same
    } else {
        Origin::Unknown
    }
}

/// Whether an origin is the address by which the page itself was called. A proxy may have taken TLS off, so the scheme
/// says only which port is left out.
fn is_same(origin: &str, host: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |authority: &str| authority.strip_suffix(port).unwrap_or(authority).to_ascii_lowercase();
    !authority.is_empty() && bare(authority) == bare(host)
}

/// Whether a `Content-Type` is that of JSON.
pub fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json"
        || kind == "text/json"
        || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// The headers of every answer to a page whose origin the owner allows; none for others.
pub fn origin_headers(head: &Head, origin: Origin) -> Fields {
    match head.header("origin") {
        Some(name) if origin == Origin::Listed => vec![
            ("access-control-allow-origin", name.to_owned().into()),
            ("access-control-expose-headers", EXPOSED.into()),
        ],
        _ => Vec::new(),
    }
}

/// The answer to `OPTIONS`, which needs no key. `allow` are the methods of the path.
pub fn preflight(head: &Head, origin: Origin, allow: &str) -> Answer {
    let mut answer = Answer::empty(204).header("allow", allow.to_owned());
    let headers = origin_headers(head, origin);
    if headers.is_empty() {
        return answer.header("vary", "origin");
    }
    answer.headers.extend(headers);
    // Chromium asks this before a page of the internet may call a machine at home.
    if head.header("access-control-request-private-network") == Some("true") {
        answer = answer.header("access-control-allow-private-network", "true");
    }
    let requested = head.header("access-control-request-headers").unwrap_or_default();
    let granted: Vec<String> = requested
        .split(',')
        .take(REQUESTED_MAX)
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| {
            HEADERS.contains(&name.as_str()) || HEADER_STARTS.iter().any(|start| name.starts_with(start))
        })
        .collect();
    let granted = if granted.is_empty() { HEADERS.join(", ") } else { granted.join(", ") };
    answer
        .header("access-control-allow-methods", METHODS)
        .header("access-control-allow-headers", granted)
        .header("access-control-max-age", MAX_AGE_S)
        .header("vary", "origin, access-control-request-headers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::check_head;

    #[test]
    fn http_04_preflights_echo_what_sdks_send() {
        let settings = Settings { cors_origins: vec!["app://notes.local".into()], ..Settings::default() };
        let head = |origin: &str| {
            check_head(
                format!(
                    "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: g\r\norigin: {origin}\r\n\
                     access-control-request-headers: authorization,X-Stainless-OS,x-evil\r\n\r\n"
                )
                .as_bytes(),
            )
            .expect("well formed")
        };
        let preflight = |origin: &str| {
            let head = head(origin);
            super::preflight(&head, super::origin(&head, &settings), "POST, OPTIONS")
        };
        let answer = preflight("app://notes.local");
        let get = |name| answer.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value);
        assert_eq!(answer.status, 204);
        assert_eq!(get("access-control-allow-origin"), Some("app://notes.local"));
        assert_eq!(get("access-control-allow-headers"), Some("authorization, x-stainless-os"));
        assert_eq!(get("access-control-allow-methods"), Some("GET, POST, PUT, PATCH, DELETE, OPTIONS"));
        let stranger = preflight("https://evil.example");
        assert!(stranger.headers.iter().all(|(name, _)| !name.starts_with("access-control")));
    }

    #[test]
    fn a1_pages_are_told_apart() {
        let settings = Settings { cors_origins: vec!["https://chat.example".into()], ..Settings::default() };
        let check = |host: &str, fields: &str, expected: Origin| {
            let text = format!("POST /api/reload HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n");
            let head = check_head(text.as_bytes()).expect("well formed");
            assert_eq!(origin(&head, &settings), expected, "{host} {fields}");
        };
        check("127.0.0.1:8787", "", Origin::None);
        check("127.0.0.1:8787", "sec-fetch-site: none\r\n", Origin::None);
        check("127.0.0.1:8787", "sec-fetch-site: same-origin\r\n", Origin::None);
        check("127.0.0.1:8787", "sec-fetch-site: same-site\r\n", Origin::Unknown);
        check("127.0.0.1:8787", "sec-fetch-site: cross-site\r\n", Origin::Unknown);
        check("127.0.0.1:8787", "origin: http://127.0.0.1:8787\r\n", Origin::Same);
        check("PI.local", "origin: http://pi.local\r\n", Origin::Same);
        check("pi.local:80", "origin: http://pi.local\r\n", Origin::Same);
        check("pi.local", "origin: https://pi.local\r\n", Origin::Same);
        check("[::1]:8787", "origin: http://[::1]:8787\r\n", Origin::Same);
        check("127.0.0.1:8787", "origin: http://127.0.0.1:3000\r\n", Origin::Unknown);
        check("127.0.0.1:8787", "origin: http://localhost:8787\r\n", Origin::Unknown);
        check("127.0.0.1:8787", "origin: null\r\n", Origin::Unknown);
        check("127.0.0.1:8787", "origin: https://chat.example\r\n", Origin::Listed);
        check("127.0.0.1:8787", "origin: https://chat.example.evil.example\r\n", Origin::Unknown);
    }

    #[test]
    fn json_goes_by_many_names() {
        assert!(is_json("application/json") && is_json("Application/JSON; charset=utf-8"));
        assert!(is_json("application/vnd.api+json") && is_json("text/json"));
        assert!(!is_json("text/plain") && !is_json("application/x-www-form-urlencoded") && !is_json(""));
    }
}
