//! Which proxy a call goes through, by the usual environment variables: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and
//! `NO_PROXY`, in capitals or not. Pure: the variables are handed in.
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ureq::http::Uri;

use crate::base::base64;
use crate::base::text::{Secret, percent_decode};
use crate::catalog::address::is_local;

/// An HTTP proxy, named by the variable that gave it: messages name no host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    pub variable: String,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<Secret>,
    /// What is wrong with the variable. The routes that it covers fail with this; none is taken without a proxy.
    pub defect: Option<String>,
}

/// The proxies of this process and what is reached without them.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    https: Option<Arc<Proxy>>,
    http: Option<Arc<Proxy>>,
    except: Vec<Exception>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Exception {
    host: Pattern,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Everything,
    /// The name itself and all below it.
    Name(String),
    /// The first `bits` bits of the address.
    Network(IpAddr, u32),
}

impl Proxies {
    /// Reads the variables. A lower-case name wins over its twin in capitals, as it does for curl.
    pub fn from_env(environment: &BTreeMap<String, String>) -> Proxies {
        let find = |name: &str| {
            [name.to_ascii_lowercase(), name.to_owned()]
                .into_iter()
                .find_map(|name| environment.get_key_value(&name))
                .filter(|(_, value)| !value.trim().is_empty())
        };
        let proxy = |name: &str| {
            find(name)
                .or_else(|| find("ALL_PROXY"))
                .map(|(name, value)| Arc::new(Proxy::parse(name, value.trim())))
        };
        let except = find("NO_PROXY").map_or("", |(_, value)| value);
        Proxies {
            https: proxy("HTTPS_PROXY"),
            http: proxy("HTTP_PROXY"),
            except: except
                .split([',', ' '])
                .filter(|entry| !entry.is_empty())
                .map(Exception::parse)
                .collect(),
        }
    }

    /// The proxy for a call to `uri`, `None` for a direct one. This machine and private networks are always direct.
    pub fn choose(&self, uri: &Uri) -> Option<&Arc<Proxy>> {
        let (proxy, usual_port) = match uri.scheme_str() {
            Some("https") => (self.https.as_ref()?, 443),
            _ => (self.http.as_ref()?, 80),
        };
        let port = uri.port_u16().unwrap_or(usual_port);
        let host = uri
            .host()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .trim_end_matches('.')
            .to_ascii_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let direct =
            is_local(&host) || self.except.iter().any(|exception| exception.covers(&host, address, port));
        (!direct).then_some(proxy)
    }
}

impl Proxy {
    fn parse(variable: &str, value: &str) -> Proxy {
        let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        let (host, port) = split_port(place);
        let defect = match (scheme, host, &port) {
            (scheme, ..) if !scheme.eq_ignore_ascii_case("http") => {
                Some("only proxies that are reached by plain http:// are supported".to_owned())
            }
            (_, "", _) => Some("it names no host".to_owned()),
            (.., Some(Err(()))) => Some("its port is not a number up to 65535".to_owned()),
            _ => None,
        };
        Proxy {
            variable: variable.to_owned(),
            host: host.to_owned(),
            port: port.and_then(Result::ok).unwrap_or(80),
            authorization: user.map(|user| {
                let user = percent_decode(user).unwrap_or(user.into());
                let mut value = b"Basic ".to_vec();
                base64::encode(user.as_bytes(), &mut value);
                Secret::new(String::from_utf8(value).expect("Base64 is ASCII"))
            }),
            defect,
        }
    }
}

impl Exception {
    fn parse(entry: &str) -> Exception {
        let entry = entry.to_ascii_lowercase();
        if entry == "*" {
            return Exception { host: Pattern::Everything, port: None };
        }
        if let Some((network, bits)) = entry.split_once('/') {
            if let (Ok(network), Ok(bits)) = (network.trim_matches(['[', ']']).parse(), bits.parse()) {
                return Exception { host: Pattern::Network(network, bits), port: None };
            }
        }
        let (host, port) = match entry.parse::<IpAddr>() {
            Ok(_) => (entry.as_str(), None),
            Err(_) => split_port(&entry),
        };
        let host = match host.parse::<IpAddr>() {
            Ok(address) => Pattern::Network(address, u32::MAX),
            Err(_) => Pattern::Name(host.trim_start_matches('*').trim_matches('.').to_owned()),
        };
        Exception { host, port: port.and_then(Result::ok) }
    }

    fn covers(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        let matches = match (&self.host, address) {
            (Pattern::Everything, _) => true,
            (Pattern::Name(name), None) => {
                host.strip_suffix(name.as_str()).is_some_and(|left| left.is_empty() || left.ends_with('.'))
            }
            (Pattern::Network(network, bits), Some(address)) => in_network(address, *network, *bits),
            _ => false,
        };
        matches && self.port.is_none_or(|only| only == port)
    }
}

fn in_network(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let same = |a: u128, b: u128, width: u32| {
        // A shift by the whole width is none that the processor knows; zero bits cover everything.
        bits == 0 || (a ^ b) >> (width - bits.min(width)) == 0
    };
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => same(u128::from(Ipv4Addr::to_bits(a)), u128::from(n.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(n)) => same(a.to_bits(), n.to_bits(), 128),
        _ => false,
    }
}

/// Splits `host:port`, `[v6]:port` or `host`; a port that is no number is an error.
fn split_port(place: &str) -> (&str, Option<Result<u16, ()>>) {
    if let Some((host, rest)) = place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, rest.strip_prefix(':').map(|port| port.parse().map_err(|_| ())));
    }
    match place.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().map_err(|_| ()))),
        None => (place, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        Proxies::from_env(&variables.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect())
    }

    #[test]
    fn net_02_exceptions_and_near_hosts_are_direct() {
        let proxies = proxies(&[
            ("HTTPS_PROXY", "http://127.0.0.1:9"),
            ("HTTP_PROXY", "http://127.0.0.1:9"),
            ("NO_PROXY", "example.com, .corp.test,203.0.113.0/24 2001:db8::/32,up.test:8443,198.51.100.7"),
        ]);
        let check = |host: &str, port: u16, direct: bool| {
            let uri = format!("https://{host}:{port}/v1").parse().unwrap();
            assert_eq!(proxies.choose(&uri).is_none(), direct, "{uri}");
        };
        for near in [
            "localhost",
            "127.0.0.1",
            "[::1]",
            "192.168.1.9",
            "10.0.0.3",
            "nas.local",
            "ollama",
            "nas.lan",
            "[::ffff:127.0.0.1]",
        ] {
            check(near, 11_434, true);
        }
        check("example.com", 443, true);
        check("API.example.com.", 443, true);
        check("notexample.com", 443, false);
        check("x.corp.test", 443, true);
        check("203.0.113.77", 443, true);
        check("203.0.114.1", 443, false);
        check("198.51.100.7", 443, true);
        check("198.51.100.8", 443, false);
        check("[2001:db8::5]", 443, true);
        check("[2001:db9::5]", 443, false);
        check("up.test", 8_443, true);
        check("up.test", 443, false);
        check("api.provider.test", 443, false);
    }

    #[test]
    fn variables_are_read_like_curl_reads_them() {
        let named = |variables: &[(&str, &str)], scheme: &str| {
            let uri = format!("{scheme}://p.test").parse().unwrap();
            proxies(variables).choose(&uri).map(|proxy| (proxy.variable.clone(), proxy.host.clone()))
        };
        assert_eq!(named(&[], "https"), None);
        assert_eq!(named(&[("HTTPS_PROXY", " ")], "https"), None);
        let both = [("HTTPS_PROXY", "http://upper:1"), ("https_proxy", "lower:1")];
        assert_eq!(named(&both, "https"), Some(("https_proxy".into(), "lower".into())));
        assert_eq!(named(&both, "http"), None);
        assert_eq!(named(&[("ALL_PROXY", "http://all:1")], "http"), Some(("ALL_PROXY".into(), "all".into())));
        assert_eq!(named(&[("HTTP_PROXY", "a:1"), ("NO_PROXY", "*")], "http"), None);
    }

    #[test]
    fn proxy_urls() {
        let check = |value: &str, host: &str, port: u16, authorization: Option<&str>, sound: bool| {
            let proxy = Proxy::parse("HTTPS_PROXY", value);
            assert_eq!((proxy.host.as_str(), proxy.port), (host, port), "{value}");
            assert_eq!(proxy.authorization.as_ref().map(Secret::expose), authorization, "{value}");
            assert_eq!(proxy.defect.is_none(), sound, "{value}");
        };
        check("http://proxy.test:3128/", "proxy.test", 3128, None, true);
        check("proxy.test", "proxy.test", 80, None, true);
        check("http://[::1]:3128", "::1", 3128, None, true);
        check("http://me:p%40ss@proxy.test:1", "proxy.test", 1, Some("Basic bWU6cEBzcw=="), true);
        check("socks5://proxy.test:1080", "proxy.test", 1080, None, false);
        check("http://proxy.test:99999", "proxy.test", 80, None, false);
        check("http://:8080", "", 8080, None, false);
    }
}
