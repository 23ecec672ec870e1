//! Base addresses of providers: variables put in their places, one form for all spellings, whether the host is near,
//! and which addresses are never called. Pure.
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A base address that can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Without a slash at the end, so that a path with one at its start joins it.
    pub url: String,
    /// Whether the host is this machine or on a private network.
    pub local: bool,
}

/// Ends that show that somebody pasted the address of an endpoint.
const ENDPOINTS: [&str; 3] = ["/chat/completions", "/completions", "/embeddings"];

/// Puts variables into `${NAME}` places; the second half names those that are unset or empty.
pub fn interpolate(
    template: &str,
    variables: &BTreeMap<String, String>,
) -> Result<(String, Vec<String>), String> {
    let mut missing: Vec<String> = Vec::new();
    let text = substitute(template, |name| {
        let value = variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        if value.is_none() && !missing.iter().any(|known| known == name) {
            missing.push(name.into());
        }
        value.unwrap_or_default()
    })?;
    Ok((text, missing))
}

/// The variables that a template names, in order.
pub fn variable_names(template: &str) -> Vec<String> {
    let mut names = Vec::new();
    // A fault ends the names; it is told where the template is used.
    let _ = substitute(template, |name| {
        names.push(name.to_owned());
        ""
    });
    names
}

/// Whether a template can become a base address, whatever its variables hold.
pub fn check_template(template: &str) -> Result<(), String> {
    let text = substitute(template, |_| "x")?;
    base_url(&with_scheme(template, text)).map(drop)
}

/// An address that a variable begins may lack its scheme: Ollama's own is commonly `host:port`.
pub fn with_scheme(template: &str, text: String) -> String {
    if template.starts_with("${") && !text.contains("://") { format!("http://{text}") } else { text }
}

fn substitute<'v>(template: &str, mut value: impl FnMut(&str) -> &'v str) -> Result<String, String> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, tail) = after.split_once('}').ok_or("`${` without `}`")?;
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if name.is_empty() || !plain || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("`${{{name}}}` is no variable name (letters, digits and _)"));
        }
        out.push_str(before);
        out.push_str(value(name));
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

/// `ftp`, `wss` and the like.
const SCHEME_BYTES_MAX: usize = 5;

/// Reads a base address. The error says what is wrong with it, and holds nothing that could be a secret.
pub fn base_url(text: &str) -> Result<Address, String> {
    let text = text.trim().trim_end_matches('/');
    if text.bytes().any(|b| b <= b' ' || b == 0x7f || !b.is_ascii()) {
        return Err("holds a space or a character that an address cannot hold".into());
    }
    let (scheme, rest) = text.split_once("://").ok_or("must begin with https:// or http://")?;
    if !scheme.eq_ignore_ascii_case("https") && !scheme.eq_ignore_ascii_case("http") {
        // A variable may stand in an address, and a key in a variable: only what can be none is said again.
        let is_word = scheme.len() <= SCHEME_BYTES_MAX && scheme.bytes().all(|b| b.is_ascii_alphabetic());
        let found = if is_word { format!(" (it begins with {scheme}://)") } else { String::new() };
        return Err(format!("must begin with https:// or http://{found}"));
    }
    if rest.contains(['?', '#']) {
        return Err("must not hold `?` or `#`; keys go under `auth`".into());
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err("must not hold a user or a password; keys go under `auth`".into());
    }
    let host = host_of(authority)?;
    if let Some(end) = ENDPOINTS.iter().find(|end| path.ends_with(**end)) {
        return Err(format!("ends in {end}; give only the part before it"));
    }
    if never_called(host) {
        return Err("names a link-local or cloud metadata address, which is never called".into());
    }
    Ok(Address { url: format!("{}://{authority}{path}", scheme.to_ascii_lowercase()), local: is_local(host) })
}

/// The host of `host`, `host:port`, `[v6]` or `[v6]:port`.
fn host_of(authority: &str) -> Result<&str, String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, after) = v6.split_once(']').ok_or("has a `[` without `]`")?;
            host.parse::<Ipv6Addr>().map_err(|_| "has no IPv6 address in its brackets")?;
            (host, after.strip_prefix(':').or((!after.is_empty()).then_some("?")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("has no host".into());
    }
    if port.is_some_and(|port| port.parse::<u16>().is_err() || port.starts_with('+')) {
        return Err("has a port that is no number from 1 to 65535".into());
    }
    Ok(host)
}

/// Hosts that no provider can have, as far as the name tells; what it resolves to is judged when it is called.
fn never_called(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => is_never_called(address),
        Err(_) => host.trim_end_matches('.').eq_ignore_ascii_case("metadata.google.internal"),
    }
}

/// Link-local addresses and those at which clouds hand out credentials, also when wrapped into IPv6.
pub fn is_never_called(address: IpAddr) -> bool {
    /// Alibaba, and Oracle's.
    const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
    /// Amazon and Google.
    const METADATA_V6: [Ipv6Addr; 2] = [
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    ];
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local() || METADATA_V4.contains(&v4),
        IpAddr::V6(v6) => {
            let wrapped = match v6.segments() {
                // NAT64 and 6to4.
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
                    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
                }
                _ => None,
            };
            v6.is_unicast_link_local()
                || METADATA_V6.contains(&v6)
                || wrapped.is_some_and(|v4| is_never_called(IpAddr::V4(v4)))
        }
    }
}

/// Whether a host is this machine or on a private network, as far as its name tells.
pub fn is_local(host: &str) -> bool {
    let private = |v4: Ipv4Addr| {
        let [a, b, ..] = v4.octets();
        // 100.64.0.0/10 is what carriers and overlay networks such as Tailscale use.
        v4.is_loopback() || v4.is_private() || v4.is_unspecified() || (a == 100 && (64..128).contains(&b))
    };
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => private(v4),
        Ok(IpAddr::V6(v6)) => match v6.to_ipv4_mapped() {
            Some(v4) => private(v4),
            None => v6.is_loopback() || v6.is_unspecified() || v6.is_unique_local(),
        },
        Err(_) => {
            let host = host.trim_end_matches('.').to_ascii_lowercase();
            let suffix = host.rsplit_once('.').map(|(_, suffix)| suffix);
            suffix.is_none_or(|s| ["localhost", "local", "lan", "home", "internal"].contains(&s))
                || host.ends_with(".home.arpa")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_06_base_addresses_have_one_form() {
        let check = |text: &str, expected: &str| {
            assert_eq!(base_url(text).map(|address| address.url), Ok(expected.into()), "{text}");
        };
        check("https://p/api/v1", "https://p/api/v1");
        check("https://p/api/v1/", "https://p/api/v1");
        check("https://p", "https://p");
        check("https://p//", "https://p");
        check("https://p/v1beta/openai/", "https://p/v1beta/openai");
        check("https://p/av1", "https://p/av1");
        check(" HTTP://127.0.0.1:9/v1 ", "http://127.0.0.1:9/v1");
        check("http://[::1]:8080/v1", "http://[::1]:8080/v1");
    }

    #[test]
    fn bad_addresses_say_what_is_wrong() {
        let check = |text: &str, expected: &str| {
            let error = base_url(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("api.acme.example/v1", "must begin with https://");
        check("ftp://p/v1", "it begins with ftp://");
        check("https://", "must begin with");
        check("https:///v1", "has no host");
        check("https://p:99999/v1", "port");
        check("https://p:/v1", "port");
        check("https://u:p@h/v1", "must not hold a user");
        check("https://p/v1?key=1", "must not hold `?`");
        check("https://p/v 1", "holds a space");
        check("https://p/v1/chat/completions/", "ends in /chat/completions");
        check("http://169.254.169.254/v1", "link-local");
        check("http://[fe80::1]/v1", "link-local");
        check("http://[::ffff:169.254.1.1]/v1", "link-local");
        check("http://metadata.google.internal/v1", "metadata");
        check("http://[nope]/v1", "IPv6");
    }

    #[test]
    fn what_could_be_a_key_is_not_said_again() {
        for text in ["httsk-0123456789ps://p/v1", "verylongword://p/v1", "gsk_1://p"] {
            let error = base_url(text).expect_err(text);
            assert_eq!(error, "must begin with https:// or http://", "{text}");
        }
    }

    #[test]
    fn near_hosts_are_known() {
        let check = |host: &str, expected: bool| assert_eq!(is_local(host), expected, "{host}");
        for near in [
            "localhost",
            "127.8.8.8",
            "::1",
            "10.1.2.3",
            "192.168.0.9",
            "fd00::1",
            "pi.local",
            "ollama",
            "100.100.1.1",
            "nas.home.arpa",
        ] {
            check(near, true);
        }
        for far in ["api.example.com", "8.8.8.8", "100.128.0.1", "2001:db8::1", "local.example"] {
            check(far, false);
        }
    }

    #[test]
    fn variables_take_their_places() {
        let variables: BTreeMap<String, String> =
            [("ID", "abc"), ("EMPTY", " ")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let check = |text: &str, expected: Result<(&str, &[&str]), ()>| {
            let found = interpolate(text, &variables);
            let found = found.as_ref().map(|(text, missing)| {
                (text.as_str(), missing.iter().map(String::as_str).collect::<Vec<_>>())
            });
            match (found, expected) {
                (Ok((text, missing)), Ok((want, want_missing))) => {
                    assert_eq!((text, missing.as_slice()), (want, want_missing))
                }
                (Err(_), Err(())) => {}
                other => panic!("{text}: {other:?}"),
            }
        };
        check("https://x/${ID}/v1", Ok(("https://x/abc/v1", &[])));
        check("${NO}/${NO}/${EMPTY}", Ok(("//", &["NO", "EMPTY"])));
        check("${ID", Err(()));
        check("${1A}", Err(()));
        check("$ID {}", Ok(("$ID {}", &[])));
    }
}
