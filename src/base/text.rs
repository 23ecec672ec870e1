//! Text: secrets, cutting at character borders, durations and numbers for people, header-safe
//! values, ids.
use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::rng::Rng;

/// A credential. Its `Debug` form says nothing; only [`Secret::expose`] gives the text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps a credential.
    pub fn new(text: impl Into<Box<str>>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the one place that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A form for people that identifies the credential without giving it away.
    pub fn masked(&self) -> String {
        mask(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Masks a credential: nothing of up to 6 characters, two at each end of up to 12, four of longer ones.
pub fn mask(secret: &str) -> String {
    let chars: Vec<char> = secret.chars().collect();
    let shown = match chars.len() {
        0..=6 => return "…".into(),
        7..=12 => 2,
        _ => 4,
    };
    let head: String = chars[..shown].iter().collect();
    let tail: String = chars[chars.len() - shown..].iter().collect();
    format!("{head}…{tail}")
}

/// The longest prefix of at most `max_bytes` bytes that ends at a character border.
pub fn truncate(text: &str, max_bytes: usize) -> &str {
    if text.len() <= max_bytes {
        return text;
    }
    let mut end = max_bytes;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Reads a duration as providers write it: `350ms`, `8.66s`, `7m12s`, `1h12m30.5s`, `17.250000001s`, `1 hour 5 minutes`;
/// a bare number means seconds. `None` when it is something else.
pub fn parse_duration_ms(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return seconds_to_ms(seconds);
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|&n| n > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit_s = match rest[..letters].to_ascii_lowercase().as_str() {
            "ms" | "msec" | "millisecond" | "milliseconds" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3_600.0,
            "d" | "day" | "days" => 86_400.0,
            _ => return None,
        };
        total += number * unit_s;
        rest = rest[letters..].trim_start();
    }
    if text.is_empty() { None } else { seconds_to_ms(total) }
}

/// Milliseconds, rounded up; `None` for what is no length of time. Saturates at about 292,000 years.
fn seconds_to_ms(seconds: f64) -> Option<u64> {
    if !seconds.is_finite() || seconds < 0.0 {
        return None;
    }
    // A hair is taken off first, so that 8.66 s is 8660 ms although 8.66 * 1000 is a little more.
    Some((seconds * 1000.0 * (1.0 - 1e-12)).ceil() as u64)
}

/// A duration for people: `340 ms`, `8.7 s`, `12 min`, `3.5 h`, `2.1 d`.
pub fn human_duration(ms: u64) -> String {
    let s = ms as f64 / 1000.0;
    match ms {
        0..=999 => format!("{ms} ms"),
        1_000..=9_999 => format!("{s:.1} s"),
        10_000..=119_999 => format!("{s:.0} s"),
        120_000..=7_199_999 => format!("{:.0} min", s / 60.0),
        7_200_000..=172_799_999 => format!("{:.1} h", s / 3_600.0),
        _ => format!("{:.1} d", s / 86_400.0),
    }
}

/// A count for people: `950`, `6.0K`, `1.2M`, `1.0B`.
pub fn human_count(n: f64) -> String {
    match n.abs() {
        a if a >= 1e9 => format!("{:.1}B", n / 1e9),
        a if a >= 1e6 => format!("{:.1}M", n / 1e6),
        a if a >= 1e3 => format!("{:.1}K", n / 1e3),
        _ if n.fract() == 0.0 => format!("{n:.0}"),
        _ => format!("{n:.1}"),
    }
}

/// Longest response header value that we make.
const HEADER_VALUE_MAX: usize = 256;

/// `text` as a header value: bytes outside printable ASCII, and `%`, percent-encoded; at most 256 bytes.
pub fn header_value(text: &str) -> Cow<'_, str> {
    let plain = |b: u8| (0x20..0x7f).contains(&b) && b != b'%';
    if text.len() <= HEADER_VALUE_MAX && text.bytes().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(HEADER_VALUE_MAX);
    for c in text.chars() {
        let mut utf8 = [0; 4];
        let utf8 = c.encode_utf8(&mut utf8);
        let encoded = if utf8.bytes().all(plain) { 1 } else { utf8.len() * 3 };
        if out.len() + encoded > HEADER_VALUE_MAX {
            break;
        }
        if encoded == 1 {
            out.push(c);
        } else {
            utf8.bytes().for_each(|b| push_escape(&mut out, b));
        }
    }
    Cow::Owned(out)
}

/// Percent-encodes everything but unreserved characters (RFC 3986, 2.3), for a query value.
pub fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            push_escape(&mut out, b);
        }
    }
    out
}

fn push_escape(out: &mut String, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(HEX[usize::from(byte >> 4)]));
    out.push(char::from(HEX[usize::from(byte & 15)]));
}

/// Decodes `%XX`; `None` for a bad escape, or when the result is not UTF-8.
pub fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%' {
            let hex = |b: u8| char::from(b).to_digit(16);
            let (high, low) = (hex(*bytes.get(i + 1)?)?, hex(*bytes.get(i + 2)?)?);
            out.push((high * 16 + low) as u8);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    push_hex(&mut out, bytes);
    out
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for b in bytes {
        out.push(char::from(HEX[usize::from(b >> 4)]));
        out.push(char::from(HEX[usize::from(b & 15)]));
    }
}

/// A fresh id such as `req_3f9c…`, of 96 bits: a random start that each process draws once, and a count. Unique across
/// restarts, and cheap; not a secret.
pub fn fresh_id(prefix: &str) -> String {
    static START: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let start = *START.get_or_init(|| Rng::from_os().next_u64());
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Scrambled, so that neighbours do not look alike; the count itself keeps them apart.
    let scrambled = Rng::seeded(start.wrapping_add(count)).next_u64();
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&scrambled.to_be_bytes());
    bytes[8..].copy_from_slice(&(count as u32).to_be_bytes());
    let mut id = String::with_capacity(prefix.len() + 2 * bytes.len());
    id.push_str(prefix);
    push_hex(&mut id, &bytes);
    id
}

/// How many single-character edits part `a` from `b`, for "did you mean" hints.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The candidate that `given` was most likely meant to be, if any is near.
pub fn closest<'c>(given: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let given = given.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(&given, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_providers_write_them() {
        let check =
            |text: &str, expected: Option<u64>| assert_eq!(parse_duration_ms(text), expected, "{text}");
        check("8.66s", Some(8_660));
        check("7m12s", Some(432_000));
        check("2m59.56s", Some(179_560));
        check("1h12m30.5s", Some(4_350_500));
        check("350ms", Some(350));
        check("17.250000001s", Some(17_251));
        check("86400s", Some(86_400_000));
        check("1.5", Some(1_500));
        check("0", Some(0));
        check("1 hour 5 minutes", Some(3_900_000));
        for nothing in ["", "soon", "s", "5 parsecs", "-3", "NaN", "inf", "1.2.3s"] {
            check(nothing, None);
        }
    }

    #[test]
    fn a_secret_says_nothing_by_itself() {
        assert!(!format!("{:?}", Secret::new("test-key")).contains("test"));
        assert_eq!(["short", "seven77", "thirteen-long"].map(mask), ["…", "se…77", "thir…long"]);
    }

    #[test]
    fn cuts_stand_at_character_borders() {
        assert_eq!(truncate("aé", 2), "a");
        assert_eq!(truncate("aé", 3), "aé");
        assert_eq!(truncate("😀", 3), "");
    }

    #[test]
    fn header_values_are_printable_and_bounded() {
        assert_eq!(header_value("auto"), "auto");
        assert_eq!(header_value("模\r\nx: 1%"), "%E6%A8%A1%0D%0Ax: 1%25");
        assert_eq!(header_value(&"模".repeat(200)).len(), 252);
    }

    #[test]
    fn percent_decoding_refuses_bad_escapes() {
        assert_eq!(percent_decode("acme%2Fbig-2%3Afree").as_deref(), Some("acme/big-2:free"));
        assert_eq!(percent_decode("%ZZ"), None);
        assert_eq!(percent_decode("%E0%A4%A"), None);
        assert_eq!(percent_decode("%ff"), None);
    }

    #[test]
    fn fresh_ids_differ() {
        let ids: std::collections::BTreeSet<String> = (0..1_000).map(|_| fresh_id("req_")).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(ids.iter().all(|id| id.len() == 28 && id.starts_with("req_")));
    }

    #[test]
    fn hints_are_near() {
        assert_eq!(closest("maxAtempts", ["maxAttempts", "timeoutMs"]), Some("maxAttempts"));
        assert_eq!(closest("zzz", ["maxAttempts"]), None);
    }
}
