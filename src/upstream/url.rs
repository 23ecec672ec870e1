//! The one rule by which a base URL, a path and a key in the query become the URL that is called.
use crate::base::text::percent_encode;

/// Joins `path` below `base`.
///
/// Slashes at the seam count once. A version segment that stands on both sides of the seam (`.../v1` and
/// `/v1/models`) counts once. Queries of both are kept, and `auth` (name and value) is added behind them.
pub fn join(base: &str, path: &str, auth: Option<(&str, &str)>) -> String {
    let base = base.split('#').next().unwrap_or_default();
    let (base, base_query) = base.split_once('?').unwrap_or((base, ""));
    let (path, path_query) = path.split_once('?').unwrap_or((path, ""));
    let base = base.trim_end_matches('/');
    let path = path.trim_start_matches('/');
    let path = match path.split_once('/') {
        Some((version, rest)) if is_version(version) && last_segment(base) == Some(version) => rest,
        _ => path,
    };
    let mut url = String::with_capacity(base.len() + path.len() + 64);
    url.push_str(base);
    if !path.is_empty() {
        url.push('/');
        url.push_str(path);
    }
    let mut mark = '?';
    for query in [base_query, path_query] {
        if !query.is_empty() {
            url.push(mark);
            url.push_str(query);
            mark = '&';
        }
    }
    if let Some((name, value)) = auth {
        url.push(mark);
        url.push_str(&percent_encode(name));
        url.push('=');
        url.push_str(&percent_encode(value));
    }
    url
}

/// `v1`, `v1beta`: a `v` and a digit. `av1` is none.
fn is_version(segment: &str) -> bool {
    segment.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The last segment of the path of a URL; the host is no segment.
fn last_segment(url: &str) -> Option<&str> {
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    after_scheme.split_once('/').and_then(|(_, path)| path.rsplit('/').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_06_one_join_rule() {
        let check = |base: &str, path: &str, expected: &str| {
            assert_eq!(join(base, path, None), expected, "{base} + {path}");
        };
        check("https://p/api/v1", "/chat/completions", "https://p/api/v1/chat/completions");
        check("https://p/api/v1/", "/chat/completions", "https://p/api/v1/chat/completions");
        check("https://p/api/v1//", "chat/completions", "https://p/api/v1/chat/completions");
        check("https://p", "/chat/completions", "https://p/chat/completions");
        check("https://p", "/v1/chat/completions", "https://p/v1/chat/completions");
        check("https://p/v1", "/v1/chat/completions", "https://p/v1/chat/completions");
        check("https://p/av1", "/v1/chat/completions", "https://p/av1/v1/chat/completions");
        check("https://p/v1beta/openai/", "/chat/completions", "https://p/v1beta/openai/chat/completions");
        check("https://p/v1beta", "/v1/models", "https://p/v1beta/v1/models");
        check("https://v1", "/v1/models", "https://v1/v1/models");
        check("https://p/v1", "", "https://p/v1");
        check("https://p/models", "/models/list", "https://p/models/models/list");
    }

    #[test]
    fn queries_are_kept_and_the_key_comes_last() {
        let check = |base: &str, path: &str, expected: &str| {
            assert_eq!(join(base, path, Some(("key", "a+b/c&d"))), expected, "{base} + {path}");
        };
        check("https://p/v1", "/models", "https://p/v1/models?key=a%2Bb%2Fc%26d");
        check("https://p/o?api-version=1", "/chat", "https://p/o/chat?api-version=1&key=a%2Bb%2Fc%26d");
        check("https://p/o/?a=1#x", "/chat?b=2", "https://p/o/chat?a=1&b=2&key=a%2Bb%2Fc%26d");
    }
}
