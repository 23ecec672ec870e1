//! Reads what an upstream says when it fails, whatever the shape: OpenAI's envelope, Google's one-element arrays,
//! Cloudflare's `errors`, RFC 7807, FastAPI's `detail`, JSON inside strings, HTML, plain text.
//!
//! It extracts and does not judge: what the words mean is decided in `route::words`. Nothing here may fail, and
//! nothing it returns may grow beyond the bounds below, since the bytes come from strangers.
use serde_json::Value;

use super::exchange::Headers;
use crate::base::text::{parse_duration_ms, truncate};

/// Of a longer body only this much is looked at.
const BODY_MAX_BYTES: usize = 64 * 1024;
/// Longest message for a person.
const MESSAGE_MAX_BYTES: usize = 500;
/// Longest excerpt of a page of markup: all that it can tell is what kind of page it is.
const EXCERPT_MAX_BYTES: usize = 160;
/// All texts of one body together, kept for the judgement of their wording.
const WORDS_MAX_BYTES: usize = 4 * 1024;
/// Machine-readable words, named fields and repeated headers of one body.
const MARKS_MAX: usize = 16;
/// Nesting that is followed, JSON inside strings included.
const DEPTH_MAX: u8 = 8;
/// Values that are looked at.
const VALUES_MAX: u32 = 500;

/// What one error body says.
#[derive(Clone, Debug, Default)]
pub struct UpstreamError {
    /// For a person: one line without markup, account ids masked. Empty when the body says nothing.
    pub message: String,
    /// `error.code` or its like, when it is a word.
    pub code: Option<String>,
    /// `error.type`.
    pub kind: Option<String>,
    /// The HTTP status that the body names, 400 to 599.
    pub status: Option<u16>,
    /// Top-level request fields that it names as such (`param`, `loc`, `field`).
    pub params: Vec<String>,
    /// Every machine-readable word of it in lower case: codes, types, status names, reasons, quota ids.
    pub marks: Vec<String>,
    /// Every text of it in lower case, one a line.
    pub words: String,
    /// A delay that it gives as a field (`retryDelay`, `retry_after`, ...).
    pub delay_ms: Option<u64>,
    /// Response headers that it repeats, as OpenRouter does.
    pub headers: Headers,
    /// The body is a page of markup: whatever answered is not an API.
    pub markup: bool,
}

/// Reads a body. Empty and unreadable ones give an error that says nothing.
pub fn read(body: &[u8]) -> UpstreamError {
    let body = &body[..body.len().min(BODY_MAX_BYTES)];
    let text = String::from_utf8_lossy(body);
    let text = payload(text.trim_start_matches('\u{feff}').trim());
    let mut reader = Reader::default();
    match serde_json::from_str::<Value>(text) {
        Ok(value) => reader.value(&value, 0),
        Err(_) if text.starts_with('<') => {
            reader.error.markup = true;
            let page = page_text(text);
            reader.text(truncate(&page, EXCERPT_MAX_BYTES), 0, 0);
        }
        Err(_) => reader.text(text, 0, 0),
    }
    reader.error.message = mask_ids(&one_line(&reader.error.message, MESSAGE_MAX_BYTES));
    reader.error
}

/// An error may come as an event although no stream was opened: its data is what counts.
fn payload(text: &str) -> &str {
    if !text.starts_with("data:") && !text.starts_with("event:") {
        return text;
    }
    text.lines().find_map(|line| line.strip_prefix("data:")).map_or(text, str::trim)
}

#[derive(Default)]
struct Reader {
    error: UpstreamError,
    seen: u32,
    /// Of the message that was taken. The deepest text is the most telling, and at one depth what stands under
    /// `message` or `detail` says more than what stands under `error` or `title`.
    message_rank: u8,
}

impl Reader {
    fn value(&mut self, value: &Value, depth: u8) {
        self.seen += 1;
        if depth > DEPTH_MAX || self.seen > VALUES_MAX {
            return;
        }
        match value {
            Value::String(text) => self.text(text, depth, 2 * depth + 1),
            Value::Array(items) => items.iter().for_each(|item| self.value(item, depth + 1)),
            Value::Object(members) => {
                members.iter().for_each(|(name, member)| self.member(name, member, depth + 1))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn member(&mut self, name: &str, value: &Value, depth: u8) {
        match (name, value) {
            (_, Value::Null | Value::Bool(_)) => {}
            ("code" | "status" | "error_code" | "errorCode" | "statusCode" | "status_code", _) => {
                self.code(name, value);
            }
            ("type" | "reason" | "quotaId" | "quotaMetric" | "name", Value::String(word)) => {
                self.mark(word);
                if name == "type" && self.error.kind.is_none() && is_code(word) {
                    self.error.kind = Some(word.clone());
                }
            }
            ("param" | "field", Value::String(path)) => self.param(path),
            ("loc", Value::Array(path)) => {
                let field = path.iter().filter_map(Value::as_str).find(|part| *part != "body");
                field.into_iter().for_each(|field| self.param(field));
            }
            ("headers", Value::Object(headers)) => {
                for (name, value) in headers.iter().take(MARKS_MAX) {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    self.error.headers.push(&name.to_ascii_lowercase(), &value);
                }
            }
            ("object", Value::String(word)) => self.mark(word),
            ("error" | "title", Value::String(text)) => self.text(text, depth, 2 * depth),
            // What the model or the client wrote is not what the upstream says.
            (
                "failed_generation" | "input" | "ctx" | "instance" | "@type" | "id" | "request_id"
                | "requestId",
                _,
            ) => {}
            _ => match delay_unit_ms(name) {
                Some(unit_ms) => self.delay(value, unit_ms),
                None => self.value(value, depth),
            },
        }
    }

    /// A code is a status, a provider's own number, or a word.
    fn code(&mut self, name: &str, value: &Value) {
        let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
        match (number, value) {
            (Some(status @ 400..=599), _) => {
                self.error.status.get_or_insert(status as u16);
            }
            (Some(own), _) => self.mark(&own.to_string()),
            (None, Value::String(word)) => {
                self.mark(word);
                let better = self.error.code.is_none() || !name.starts_with("status");
                if better && is_code(word) {
                    self.error.code = Some(word.clone());
                }
            }
            _ => {}
        }
    }

    fn mark(&mut self, word: &str) {
        if self.error.marks.len() < MARKS_MAX && !word.is_empty() {
            self.error.marks.push(truncate(word, 120).to_ascii_lowercase());
        }
    }

    fn param(&mut self, path: &str) {
        let top = path.split(['.', '[']).next().unwrap_or(path);
        let known = self.error.params.iter().any(|param| param == top);
        if !known && is_name(top) && self.error.params.len() < MARKS_MAX {
            self.error.params.push(top.to_owned());
        }
    }

    fn delay(&mut self, value: &Value, unit_ms: f64) {
        let ms = match value {
            Value::Number(number) => {
                number.as_f64().filter(|n| *n >= 0.0).map(|n| (n * unit_ms).ceil() as u64)
            }
            Value::String(text) => match text.trim().parse::<f64>() {
                Ok(number) => (number >= 0.0).then_some((number * unit_ms).ceil() as u64),
                Err(_) => parse_duration_ms(text),
            },
            _ => None,
        };
        self.error.delay_ms = self.error.delay_ms.max(ms);
    }

    /// A text, which may be or hold JSON of its own.
    fn text(&mut self, text: &str, depth: u8, rank: u8) {
        let text = text.trim();
        if text.is_empty() || depth > DEPTH_MAX {
            return;
        }
        if let (Some(begin), Some(end)) = (text.find(['{', '[']), text.rfind(['}', ']'])) {
            if begin < end {
                if let Some(inner) = serde_json::from_str(&text[begin..=end]).ok().filter(holds_members) {
                    self.value(&inner, depth + 1);
                    self.plain(text[..begin].trim_end_matches([' ', ':', '-']), rank);
                    return;
                }
            }
        }
        self.plain(text, rank);
    }

    fn plain(&mut self, text: &str, rank: u8) {
        if text.is_empty() {
            return;
        }
        let room = WORDS_MAX_BYTES.saturating_sub(self.error.words.len());
        if room > 0 {
            self.error.words.push_str(&truncate(text, room).to_lowercase());
            self.error.words.push('\n');
        }
        if self.error.message.is_empty() || rank > self.message_rank {
            self.error.message = truncate(text, 2 * MESSAGE_MAX_BYTES).to_owned();
            self.message_rank = rank;
        }
    }
}

/// Milliseconds of one unit, for fields that name a delay.
fn delay_unit_ms(name: &str) -> Option<f64> {
    let name: String =
        name.chars().filter(char::is_ascii_alphabetic).collect::<String>().to_ascii_lowercase();
    match name.as_str() {
        "retrydelay" | "retryafter" | "retryafterseconds" | "retryafters" | "retryin" => Some(1_000.0),
        "retryafterms" => Some(1.0),
        _ => None,
    }
}

/// Whether JSON inside a text is an error of its own, and not an index such as `messages[0]`.
fn holds_members(value: &Value) -> bool {
    value.is_object() || value.as_array().is_some_and(|items| items.iter().any(Value::is_object))
}

/// Whether a word is one for machines, such as `rate_limit_exceeded`, and not a URL or a sentence.
fn is_code(word: &str) -> bool {
    (1..=64).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

/// Whether it may be the name of a request field.
fn is_name(word: &str) -> bool {
    (1..=40).contains(&word.len())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !word.as_bytes()[0].is_ascii_digit()
}

/// The title of a page, or else its text, without markup, scripts and styles.
fn page_text(page: &str) -> String {
    let lower = page.to_ascii_lowercase();
    if let Some(begin) = lower.find("<title").and_then(|at| lower[at..].find('>').map(|gt| at + gt + 1)) {
        if let Some(length) = lower[begin..].find('<') {
            let title = page[begin..begin + length].trim();
            if !title.is_empty() {
                return title.to_owned();
            }
        }
    }
    let mut out = String::new();
    let mut at = 0;
    while at < page.len() && out.len() < 2 * EXCERPT_MAX_BYTES {
        let Some(open) = page[at..].find('<').map(|n| at + n) else {
            out.push_str(&page[at..]);
            break;
        };
        out.push_str(&page[at..open]);
        out.push(' ');
        let hidden = ["script", "style"].into_iter().find(|tag| lower[open + 1..].starts_with(tag));
        let from = match hidden {
            Some(tag) => lower[open..].find(&format!("</{tag}")).map_or(page.len(), |n| open + n),
            None => open,
        };
        at = lower[from..].find('>').map_or(page.len(), |n| from + n + 1);
    }
    out
}

/// Runs of white space and control characters become one space each.
fn one_line(text: &str, max_bytes: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max_bytes));
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
        if out.len() > max_bytes {
            let end = truncate(&out, max_bytes - '…'.len_utf8()).len();
            out.truncate(end);
            out.push('…');
            break;
        }
    }
    out
}

/// Masks ids of accounts, organisations and projects: they say nothing to a client and belong to the owner.
pub fn mask_ids(text: &str) -> String {
    const AFTER: [&str; 4] = ["accounts/", "organizations/", "projects/", "orgs/"];
    const BEGINS: [&str; 6] = ["org-", "org_", "proj_", "acct_", "user_", "team_"];
    let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word = &rest[..rest.find(|c| !is_id(c)).unwrap_or(rest.len())];
        if word.is_empty() {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let has_digit = word.bytes().any(|b| b.is_ascii_digit());
        let prefixed = word.len() >= 10 && has_digit && BEGINS.iter().any(|prefix| word.starts_with(prefix));
        let in_path = has_digit && AFTER.iter().any(|prefix| out.ends_with(prefix));
        out.push_str(if prefixed || in_path { "…" } else { word });
        rest = &rest[word.len()..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Message, code, status, params and delay of a body.
    fn check(
        body: &str,
        message: &str,
        code: Option<&str>,
        status: Option<u16>,
        params: &[&str],
        delay: Option<u64>,
    ) {
        let error = read(body.as_bytes());
        assert_eq!(error.message, message, "{body}");
        assert_eq!(error.code.as_deref(), code, "{body}");
        assert_eq!(error.status, status, "{body}");
        assert_eq!(error.params, params, "{body}");
        assert_eq!(error.delay_ms, delay, "{body}");
    }

    #[test]
    fn every_known_shape_is_read() {
        check(
            r#"{"error":{"message":"temperature must be 1","type":"invalid_request_error","param":"temperature","code":null}}"#,
            "temperature must be 1",
            None,
            None,
            &["temperature"],
            None,
        );
        check(
            r#"{"error":"you have reached your weekly usage limit"}"#,
            "you have reached your weekly usage limit",
            None,
            None,
            &[],
            None,
        );
        check(r#"{"detail":"Check your subscription"}"#, "Check your subscription", None, None, &[], None);
        check(
            r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"Slow down."}"#,
            "Slow down.",
            None,
            Some(429),
            &[],
            None,
        );
        check(
            r#"{"message":"bad key","code":"invalid_api_key"}"#,
            "bad key",
            Some("invalid_api_key"),
            None,
            &[],
            None,
        );
        check("upstream connect error\r\n reset", "upstream connect error reset", None, None, &[], None);
        // An index is no JSON of its own.
        check(r#"{"error":{"message":"messages[0] is odd"}}"#, "messages[0] is odd", None, None, &[], None);
        check("", "", None, None, &[], None);
        check("\u{feff}{\"error\":{\"message\":\"x\"}}", "x", None, None, &[], None);
        check(
            "event: error\ndata: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n",
            "busy",
            None,
            Some(503),
            &[],
            None,
        );
        check(r#"{"title":"odd","status":400,"type":"about:blank"}"#, "odd", None, Some(400), &[], None);
        check(
            r#"{"error":"Bad Request","message":"why","statusCode":400}"#,
            "why",
            None,
            Some(400),
            &[],
            None,
        );
        check(r#"{"error":null,"message":"m"}"#, "m", None, None, &[], None);
    }

    #[test]
    fn what_a_validator_echoes_is_not_what_it_says() {
        let body = r#"{"detail": [{"type": "extra_forbidden", "loc": ["body", "user"], "msg": "Extra inputs are not permitted", "input": "a secret of the client", "ctx": {"limit": "x"}}]}"#;
        let error = read(body.as_bytes());
        assert_eq!(error.message, "Extra inputs are not permitted");
        assert_eq!(error.params, ["user"]);
    }

    #[test]
    fn err_04_google_arrays_are_unwrapped() {
        check(
            r#"[{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"logit_bias\": Cannot find field.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.BadRequest","fieldViolations":[{"description":"Unknown name \"logit_bias\""}]}]}}]"#,
            "Unknown name \"logit_bias\"",
            Some("INVALID_ARGUMENT"),
            Some(400),
            &[],
            None,
        );
        let quota = read(
            br#"[{"error":{"code":429,"message":"You exceeded your current quota.","status":"RESOURCE_EXHAUSTED","details":[
              {"@type":"x/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier","quotaValue":"50"}]},
              {"@type":"x/google.rpc.RetryInfo","retryDelay":"17.250000001s"}]}}]"#,
        );
        assert_eq!((quota.status, quota.delay_ms), (Some(429), Some(17_251)));
        assert!(quota.marks.iter().any(|mark| mark.contains("perday")));
    }

    #[test]
    fn err_05_cloudflare_is_read_and_account_ids_are_masked() {
        let error = read(
            br#"{"result":null,"success":false,"errors":[{"code":7003,"message":"no route for /client/v4/accounts/0123456789abcdef/ai/v1/chat/completions"}],"messages":[]}"#,
        );
        assert_eq!(error.message, "no route for /client/v4/accounts/…/ai/v1/chat/completions");
        assert_eq!(error.marks, ["7003"]);
        assert_eq!(mask_ids("in organization `org_01hq2abcd9` on tokens"), "in organization `…` on tokens");
    }

    #[test]
    fn err_06_pages_become_a_short_excerpt() {
        check("<html><body>busy</body></html>", "busy", None, None, &[], None);
        check(
            "<!DOCTYPE html><html><head><style>p{x:1}</style><title>502 Bad\nGateway</title></head><p>long</p>",
            "502 Bad Gateway",
            None,
            None,
            &[],
            None,
        );
        check("<script>var a = 1 > 2;</script><p>hello\n  you</p>", "hello you", None, None, &[], None);
        let huge = format!("<p>{}</p>", "a ".repeat(5_000_000));
        assert!(read(huge.as_bytes()).message.len() <= EXCERPT_MAX_BYTES);
    }

    #[test]
    fn req_04_json_inside_strings_is_read() {
        check(
            r#"{"object":"error","message":"{\"detail\":[{\"type\":\"extra_forbidden\",\"loc\":[\"body\",\"logit_bias\"],\"msg\":\"Extra inputs are not permitted\"}]}","type":"invalid_request_error"}"#,
            "Extra inputs are not permitted",
            None,
            None,
            &["logit_bias"],
            None,
        );
        check(
            r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"{\"error\":{\"message\":\"tokens per minute\",\"code\":\"rate_limit_exceeded\"}}","provider_name":"Acme"}}}"#,
            "tokens per minute",
            Some("rate_limit_exceeded"),
            Some(429),
            &[],
            None,
        );
    }

    #[test]
    fn quo_06_repeated_headers_are_kept() {
        let error = read(
            br#"{"error":{"message":"Rate limit exceeded: free-models-per-day","code":429,"metadata":{"headers":{"X-RateLimit-Remaining":"0","X-RateLimit-Reset":1796169600000}}}}"#,
        );
        assert_eq!(error.headers.get("x-ratelimit-reset"), Some("1796169600000"));
        assert_eq!(error.headers.get("x-ratelimit-remaining"), Some("0"));
    }

    #[test]
    fn hostile_bodies_stay_within_bounds() {
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(read(deep.as_bytes()).message, "");
        let nested =
            (0..12).fold(String::from("core"), |inner, _| serde_json::json!({ "error": inner }).to_string());
        assert!(read(nested.as_bytes()).words.len() <= WORDS_MAX_BYTES + 1);
        let many = serde_json::json!({"errors": vec![serde_json::json!({"code": "a_b", "message": "m".repeat(300)}); 900]});
        let error = read(many.to_string().as_bytes());
        assert!(error.marks.len() <= MARKS_MAX && error.words.len() <= WORDS_MAX_BYTES + MARKS_MAX);
        assert_eq!(read(&[0xff, 0xfe, b'x']).message, "\u{fffd}\u{fffd}x");
        assert_eq!(read("😀".repeat(400).as_bytes()).message.len(), 499);
    }
}
