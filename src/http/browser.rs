//! What browsers ask for: preflights, and the headers that let a page on another origin read our answers.
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
                       x-freeway-cache, x-freeway-cache-score, x-freeway-explored, x-freeway-limit-scope, retry-after";
/// Methods that any of our routes takes; which of them this one takes stands in `Allow`.
const METHODS: &str = "GET, POST, PUT, PATCH, DELETE, OPTIONS";
/// How long a browser may remember a preflight, in seconds.
const MAX_AGE_S: &str = "86400";
/// Most requested headers that are looked at.
const REQUESTED_MAX: usize = 64;

/// The headers of every answer to a page whose origin the owner allows; none for others.
pub fn origin_headers(head: &Head, settings: &Settings) -> Fields {
    let Some(origin) = head.header("origin") else { return Vec::new() };
    if !settings.cors_origins.iter().any(|allowed| allowed == origin) {
        return Vec::new();
    }
    vec![
        ("access-control-allow-origin", origin.to_owned().into()),
        ("access-control-expose-headers", EXPOSED.into()),
    ]
}

/// The answer to `OPTIONS`, which needs no key. `allow` are the methods of the path.
pub fn preflight(head: &Head, settings: &Settings, allow: &str) -> Answer {
    let mut answer = Answer::empty(204).header("allow", allow.to_owned());
    let origin = origin_headers(head, settings);
    if origin.is_empty() {
        return answer.header("vary", "origin");
    }
    answer.headers.extend(origin);
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
        let answer = preflight(&head("app://notes.local"), &settings, "POST, OPTIONS");
        let get = |name| answer.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value);
        assert_eq!(answer.status, 204);
        assert_eq!(get("access-control-allow-origin"), Some("app://notes.local"));
        assert_eq!(get("access-control-allow-headers"), Some("authorization, x-stainless-os"));
        assert_eq!(get("access-control-allow-methods"), Some("GET, POST, PUT, PATCH, DELETE, OPTIONS"));
        let stranger = preflight(&head("https://evil.example"), &settings, "POST, OPTIONS");
        assert!(stranger.headers.iter().all(|(name, _)| !name.starts_with("access-control")));
    }
}
