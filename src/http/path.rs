//! Request paths: slips of the tongue tidied, the rest split into what the route table knows. Pure.
use std::borrow::Cow;

use crate::base::text::percent_decode;

/// Why a path cannot be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFault {
    /// A `%` that no two hexadecimal digits follow, or bytes that are no UTF-8.
    BadEscape,
}

/// A tidied path without its query.
///
/// Doubled and trailing slashes go, and so does a doubled `/v1` (a base URL that was pasted with it). Segments are not
/// resolved: `..` is an ordinary, unknown segment. Escapes stay as they are; [`decoded`] undoes them for ids.
pub fn tidy(path: &str) -> Cow<'_, str> {
    let clean = path.starts_with('/')
        && !path.contains("//")
        && (path.len() == 1 || !path.ends_with('/'))
        && !path.starts_with("/v1/v1");
    if clean {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        if segment == "v1" && out == "/v1" {
            continue;
        }
        out.push('/');
        out.push_str(segment);
    }
    if out.is_empty() { Cow::Borrowed("/") } else { Cow::Owned(out) }
}

/// The text that an escaped path stands for.
pub fn decoded(path: &str) -> Result<Cow<'_, str>, PathFault> {
    percent_decode(path).ok_or(PathFault::BadEscape)
}

/// The value of a query parameter, decoded; `+` is a plus. `None` when absent or badly escaped.
pub fn query_value<'q>(query: &'q str, name: &str) -> Option<Cow<'q, str>> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(known, _)| *known == name)
        .and_then(|(_, value)| percent_decode(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_05_slips_in_base_urls_are_tolerated() {
        let check = |given: &str, expected: &str| assert_eq!(tidy(given), expected, "{given}");
        check("/v1/chat/completions", "/v1/chat/completions");
        check("/v1/chat/completions/", "/v1/chat/completions");
        check("//v1/chat/completions", "/v1/chat/completions");
        check("/v1/v1/chat/completions", "/v1/chat/completions");
        check("/v1//v1/models/", "/v1/models");
        check("/v1/models/v1", "/v1/models/v1");
        check("/v1/v12", "/v1/v12");
        check("/", "/");
        check("//", "/");
        check("", "/");
    }

    #[test]
    fn http_09_ids_are_decoded_and_bad_escapes_refused() {
        assert_eq!(decoded("acme%2Fbig-2%3Afree").as_deref(), Ok("acme/big-2:free"));
        assert_eq!(decoded("%E6%A8%A1").as_deref(), Ok("模"));
        assert_eq!(decoded("%ZZ"), Err(PathFault::BadEscape));
        assert_eq!(decoded("%E0%A4%A"), Err(PathFault::BadEscape));
    }

    #[test]
    fn query_values() {
        assert_eq!(query_value("a=1&available=1", "available").as_deref(), Some("1"));
        assert_eq!(query_value("available", "available"), None);
    }
}
