//! What leaves the process is looked through for credentials: the ones we hold, in every spelling that they take on the
//! way through URLs, JSON and markup, and what merely looks like one. Pure.
use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use memchr::memmem;

use super::text::{Secret, mask};

/// Removes every live credential, and what looks like one, from text that leaves the process.
#[derive(Debug, Default)]
pub struct Redactor {
    /// Longest first.
    secrets: Vec<Secret>,
}

/// A credential shorter than this is not searched for in texts: it would blank out ordinary words.
const SHORTEST_SECRET: usize = 8;
/// So much of a credential's beginning at the end of a text, where it was cut off, is masked as well.
const SHORTEST_START: usize = 12;
/// How often a text may have been escaped; a JSON text within JSON has been twice.
const ESCAPES_MAX: usize = 3;

impl Redactor {
    /// A redactor that knows `secrets`.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Redactor {
        let mut known: Vec<Secret> =
            secrets.into_iter().filter(|secret| secret.expose().len() >= SHORTEST_SECRET).collect();
        known.sort_by(|a, b| (b.expose().len(), a.expose()).cmp(&(a.expose().len(), b.expose())));
        known.dedup();
        Redactor { secrets: known }
    }

    /// `text` without credentials. Known ones are masked wherever they stand; unknown ones by their shape: a known
    /// prefix, a token after `Bearer` or `key=`, a long run of hexadecimal digits or of mixed letters and digits.
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let known = self.redact_known(text);
        match replace(&known, &shapes(&known)) {
            Some(shaped) => Cow::Owned(shaped),
            None => known,
        }
    }

    /// [`Redactor::redact`] for a client: without the addresses and ports of hosts, too, which are nobody's affair but
    /// the owner's.
    pub fn redact_for_client<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let text = self.redact(text);
        match replace(&text, &hosts(&text)) {
            Some(hidden) => Cow::Owned(hidden),
            None => text,
        }
    }

    fn redact_known<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut found: Vec<(Range<usize>, String)> = Vec::new();
        let mut layer = Layer::of(text);
        for _ in 0..=ESCAPES_MAX {
            for secret in &self.secrets {
                layer.find(secret, &mut found);
            }
            match layer.unescaped() {
                Some(next) => layer = next,
                None => break,
            }
        }
        replace(text, &found).map_or(Cow::Borrowed(text), Cow::Owned)
    }
}

/// Puts replacements into their places; where two overlap, the one that begins first covers both. `None` when there is
/// nothing to replace.
fn replace(text: &str, found: &[(Range<usize>, String)]) -> Option<String> {
    let mut found: Vec<&(Range<usize>, String)> = found.iter().collect();
    // A whole credential says more than the beginning of a longer one.
    found.sort_by_key(|(place, new)| (place.start, std::cmp::Reverse(place.end), new == "…"));
    let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
    for (place, new) in found.iter().copied() {
        if place.start >= copied {
            out.push_str(&text[copied..place.start]);
            out.push_str(new);
        }
        copied = copied.max(place.end);
    }
    (copied > 0).then(|| out + &text[copied..])
}

/// A text with some levels of escapes undone, and where each byte of it stood.
struct Layer<'t> {
    bytes: Cow<'t, [u8]>,
    /// The place of each byte in the text itself, and the text's length; empty for the text itself.
    places: Vec<usize>,
}

impl<'t> Layer<'t> {
    fn of(text: &'t str) -> Layer<'t> {
        Layer { bytes: Cow::Borrowed(text.as_bytes()), places: Vec::new() }
    }

    fn place(&self, at: usize) -> usize {
        self.places.get(at).copied().unwrap_or(at)
    }

    /// Finds `secret`, and its beginning where the text breaks off in it.
    fn find(&self, secret: &Secret, found: &mut Vec<(Range<usize>, String)>) {
        let wanted = secret.expose().as_bytes();
        for at in memmem::find_iter(&self.bytes, wanted) {
            found.push((self.place(at)..self.place(at + wanted.len()), secret.masked()));
        }
        // Cutting may have left marks behind it.
        let marks = |b: &u8| b"\"'}]).\xe2\x80\xa6 ".contains(b);
        let end = self.bytes.len() - self.bytes.iter().rev().take_while(|b| marks(b)).count();
        for end in [self.bytes.len(), end] {
            let longest = (SHORTEST_START..wanted.len()).rev();
            if let Some(length) = longest.into_iter().find(|n| self.bytes[..end].ends_with(&wanted[..*n])) {
                found.push((self.place(end - length)..self.place(end), "…".into()));
            }
        }
    }

    /// The text with one more level of escapes undone; `None` when there is none.
    fn unescaped(&self) -> Option<Layer<'static>> {
        memchr::memchr3(b'%', b'\\', b'&', &self.bytes)?;
        let (mut bytes, mut places) = (Vec::with_capacity(self.bytes.len()), Vec::new());
        let mut at = 0;
        let mut changed = false;
        while let Some(byte) = self.bytes.get(at) {
            let (value, length) = escape(&self.bytes[at..]).unwrap_or((*byte, 1));
            changed |= length > 1;
            bytes.push(value);
            places.push(self.place(at));
            at += length;
        }
        places.push(self.place(at));
        changed.then_some(Layer { bytes: Cow::Owned(bytes), places })
    }
}

/// The byte that an escape at the beginning of `text` stands for, and how long the escape is. Only bytes that a header
/// can carry are of interest.
fn escape(text: &[u8]) -> Option<(u8, usize)> {
    let number = |digits: &[u8], radix: u32| {
        let digits = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| !digits.is_empty() && !digits.starts_with('+'))?;
        u8::try_from(u32::from_str_radix(digits, radix).ok()?).ok()
    };
    match text {
        [b'%', high, low, ..] => Some((number(&[*high, *low], 16)?, 3)),
        [b'\\', b'u', digits @ ..] => Some((number(digits.get(..4)?, 16)?, 6)),
        [b'\\', b'x', digits @ ..] => Some((number(digits.get(..2)?, 16)?, 4)),
        [b'\\', plain @ (b'/' | b'"' | b'\\' | b'\''), ..] => Some((*plain, 2)),
        [b'&', b'#', rest @ ..] => {
            let end = rest.iter().take(6).position(|b| *b == b';')?;
            let value = match &rest[..end] {
                [b'x' | b'X', digits @ ..] => number(digits, 16)?,
                digits => number(digits, 10)?,
            };
            Some((value, end + 3))
        }
        [b'&', ..] => {
            const NAMED: [(&[u8], u8); 5] =
                [(b"&amp;", b'&'), (b"&lt;", b'<'), (b"&gt;", b'>'), (b"&quot;", b'"'), (b"&apos;", b'\'')];
            NAMED.iter().find(|(name, _)| text.starts_with(name)).map(|(name, value)| (*value, name.len()))
        }
        _ => None,
    }
}

/// How the keys of well-known services begin, ours among them, and signed tokens.
const SHAPE_PREFIXES: [&str; 18] = [
    "sk-",
    "sk_",
    "gsk_",
    "AIza",
    "hf_",
    "nvapi-",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "xox",
    "csk-",
    "r8_",
    "fw-",
    "pplx-",
    "xai-",
    "AKIA",
    "eyJ",
];
/// Names of what holds a credential in queries and forms.
const KEY_NAMES: [&str; 11] = [
    "key",
    "api_key",
    "apikey",
    "api-key",
    "x-api-key",
    "token",
    "access_token",
    "auth",
    "secret",
    "password",
    "signature",
];

/// Words that look like credentials.
fn shapes(text: &str) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let is_token = |b: u8| is_word(b) || b"./+=~%:".contains(&b);
    let bytes = text.as_bytes();
    let mut after_bearer = false;
    let mut at = 0;
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        at = run_end(bytes, start, is_word);
        let word = &text[start..at];
        let is_name = KEY_NAMES.iter().any(|name| word.eq_ignore_ascii_case(name));
        let token_at = match bytes.get(at) {
            _ if after_bearer => start,
            Some(b'=') if is_name => at + 1,
            _ => bytes.len(),
        };
        let token = token_at..run_end(bytes, token_at, is_token);
        let is_credential = token.len() >= SHORTEST_SECRET;
        let place = if is_credential { token } else { start..at };
        after_bearer = word.eq_ignore_ascii_case("bearer");
        if is_credential || looks_secret(word) {
            at = place.end;
            found.push((place.clone(), mask(&text[place])));
        }
    }
    found
}

fn run_end(bytes: &[u8], start: usize, belongs: impl Fn(u8) -> bool) -> usize {
    let length = bytes.get(start..).unwrap_or_default().iter().take_while(|b| belongs(**b)).count();
    start + length
}

fn looks_secret(word: &str) -> bool {
    if word.len() >= 12 && SHAPE_PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
        return word.bytes().any(|b| b.is_ascii_digit() || b.is_ascii_uppercase()) || word.len() >= 20;
    }
    if word.len() < 32 {
        return false;
    }
    // Model names are long as well, but they are made of short parts.
    let longest_part = word.split(['-', '_']).map(str::len).max().unwrap_or(0);
    longest_part >= 24
        && word.bytes().any(|b| b.is_ascii_digit())
        && word.bytes().any(|b| b.is_ascii_alphabetic())
}

/// Ends of names that only mean something inside a network.
const INTERNAL_ENDS: [&str; 8] = ["local", "lan", "home", "internal", "intranet", "corp", "svc", "localhost"];

/// Addresses, and hosts with a port or of an inner network.
fn hosts(text: &str) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let is_host = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        if bytes[at] == b'[' {
            at += 1;
            let end = run_end(bytes, at, |b| b.is_ascii_hexdigit() || b == b':' || b == b'.');
            if bytes.get(end) == Some(&b']') && text[at..end].parse::<Ipv6Addr>().is_ok() {
                at = port_end(bytes, end + 1).unwrap_or(end + 1);
                found.push((start..at, "…".into()));
            }
            continue;
        }
        if !is_host(bytes[at]) {
            // A word that goes on behind an underscore or the like is no host.
            at += 1;
            continue;
        }
        at = run_end(bytes, start, is_host);
        let host = text[start..at].trim_end_matches('.');
        let port = port_end(bytes, start + host.len());
        let after_scheme = text[..start].ends_with("://");
        if is_inner(host, after_scheme, port.is_some()) {
            at = port.unwrap_or(start + host.len());
            found.push((start..at, "…".into()));
        }
    }
    found
}

/// Where a port ends that begins here with its colon.
fn port_end(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = (bytes.get(at) == Some(&b':')).then(|| run_end(bytes, at + 1, |b| b.is_ascii_digit()))?;
    let length = digits - at - 1;
    let goes_on = bytes.get(digits).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'-');
    ((2..=5).contains(&length) && !goes_on).then_some(digits)
}

fn is_inner(host: &str, after_scheme: bool, has_port: bool) -> bool {
    if host.parse::<Ipv4Addr>().is_ok() {
        return true;
    }
    let end = host.rsplit('.').next().unwrap_or(host);
    let dotted = end.len() < host.len();
    let named = end.len() >= 2 && end.bytes().all(|b| b.is_ascii_alphabetic());
    let inner_end = INTERNAL_ENDS.iter().any(|known| end.eq_ignore_ascii_case(known));
    if after_scheme {
        return has_port || !dotted || inner_end;
    }
    (has_port && named && (dotted || inner_end)) || (dotted && inner_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ab/cd+ef==0123456789";

    fn redactor() -> Redactor {
        Redactor::new(["test-key-0123456789", KEY, "short", "test-key-0123456789-longer"].map(Secret::new))
    }

    #[test]
    fn a3_secrets_leave_no_text() {
        let redactor = redactor();
        let check = |text: &str, expected: &str| assert_eq!(redactor.redact(text), expected, "{text}");
        check("bad key test-key-0123456789.", "bad key test…6789.");
        check("bad key test-key-0123456789-longer.", "bad key test…nger.");
        check("a short word", "a short word");
        check("Incorrect key sk-test-QWERTY0987654321", "Incorrect key sk-t…4321");
        check("Authorization: Bearer abcdefgh12", "Authorization: Bearer ab…12");
        check("Bearer abc.def/ghi+jkl==, no", "Bearer abc.…kl==, no");
        check("GET /v1?key=plain-words-here&x=1", "GET /v1?key=plai…here&x=1");
        check("max_tokens=4096 and key=value", "max_tokens=4096 and key=value");
        check("hash 9f00aa11bb22cc33dd44ee55ff66007711882299", "hash 9f00…2299");
        check("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.x", "token eyJh…NiJ9.eyJz…wIn0.x");
        let model = "model meta-llama-3-3-70b-instruct-fp8-fast-long is loading";
        check(model, model);
    }

    #[test]
    fn a3_no_spelling_of_a_secret_passes() {
        let redactor = redactor();
        for spelled in [
            KEY,
            "ab%2Fcd%2Bef%3D%3D0123456789",
            "ab%2fcd+ef%3d=0123456789",
            "ab%252Fcd%252Bef%253D%253D0123456789",
            "ab\\/cd+ef==0123456789",
            "ab\\\\/cd+ef==0123456789",
            "ab\\u002Fcd\\u002bef\\u003d\\u003d0123456789",
            "ab&#x2F;cd&#43;ef&#61;&#61;0123456789",
            "%61b/cd+ef==012345678%39",
        ] {
            let text = format!("{{\"error\": \"the key {spelled} is bad\"}}");
            let redacted = redactor.redact(&text);
            assert_eq!(redacted, "{\"error\": \"the key ab/c…6789 is bad\"}", "{spelled}");
        }
        // A secret that holds what looks like an escape is found as it is.
        let odd = Redactor::new([Secret::new("pct%41%42-0123456789")]);
        assert!(!odd.redact("key pct%41%42-0123456789 is bad").contains("0123"));
    }

    #[test]
    fn a3_a_secret_that_was_cut_off_is_masked() {
        let redactor = redactor();
        assert_eq!(redactor.redact("the key ab/cd+ef==0123"), "the key …");
        assert_eq!(redactor.redact("the key ab/cd+ef==0123…"), "the key ……");
        assert_eq!(redactor.redact("{\"key\": \"ab\\/cd+ef==0123\"}"), "{\"key\": \"…\"}");
        assert_eq!(redactor.redact("the key ab/cd"), "the key ab/cd");
    }

    #[test]
    fn sec_03_clients_are_told_of_no_inner_host() {
        let redactor = Redactor::default();
        let check =
            |text: &str, expected: &str| assert_eq!(redactor.redact_for_client(text), expected, "{text}");
        check("dial tcp 10.0.0.5:8080: refused", "dial tcp …: refused");
        check("no route to 192.168.1.7", "no route to …");
        check("connect to api.backend.example:8443 failed", "connect to … failed");
        check("see http://worker-7/v1 and http://db.svc.cluster.local/x", "see http://…/v1 and http://…/x");
        check("upstream [fd00::7]:443 died", "upstream … died");
        check("localhost:11434 is down", "… is down");
        for fine in [
            "see https://console.acme.example/billing",
            "the model llama3.1:70b at 12:30:45 costs 0.50",
            "qwen2.5:72 has 128000 tokens. Next: 20",
            "acme/big-2:free, ratio 16:9, version 1.2.3",
            "messages[2].role: must be a text",
        ] {
            check(fine, fine);
        }
        assert_eq!(redactor.redact("10.0.0.5:8080"), "10.0.0.5:8080", "the owner may know");
    }
}
