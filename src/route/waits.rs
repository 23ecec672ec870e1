//! How long an upstream asks us to stay away: in headers of many spellings, in fields of the body, in prose.
//!
//! Whatever it says is bounded: never less than [`WAIT_MIN_MS`], so that a date in the past is no busy loop, and never
//! more than a week.
use std::time::UNIX_EPOCH;

use crate::base::calendar::days_from_civil;
use crate::base::clock::Now;
use crate::base::text::parse_duration_ms;
use crate::quota::bench::BENCH_MAX_MS;
use crate::wire::exchange::Headers;
use crate::wire::upstream_error::UpstreamError;

/// A named wait is at least this long.
pub const WAIT_MIN_MS: u64 = 1_000;

/// Larger numbers are instants, in seconds since 1970; an instant this early is in 2001.
const EPOCH_S_MIN: f64 = 1e9;
/// Larger numbers are instants in milliseconds.
const EPOCH_MS_MIN: f64 = 1e11;

/// Where a wait was named. What names a wait for this very answer counts for more than what describes a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Header,
    /// Response headers that the body repeats.
    RepeatedHeader,
    Body,
    Prose,
}

/// A wait that an answer names, within the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub ms: u64,
    pub source: Source,
}

/// What an answer names first of: `retry-after-ms`, `Retry-After`, reset headers of a limit that is used up, the same
/// in headers that the body repeats, a delay in the body, a delay in its prose.
pub fn named(headers: &Headers, error: &UpstreamError, now: Now) -> Option<Wait> {
    let wait = |source| move |ms: u64| Wait { ms: ms.clamp(WAIT_MIN_MS, BENCH_MAX_MS), source };
    let now = by_sender(headers, now);
    let family = Family::meant(error);
    retry_after(headers, now)
        .or_else(|| reset(headers, family, now))
        .map(wait(Source::Header))
        .or_else(|| {
            let repeated = retry_after(&error.headers, now).or_else(|| reset(&error.headers, family, now));
            repeated.map(wait(Source::RepeatedHeader))
        })
        .or_else(|| error.delay_ms.map(wait(Source::Body)))
        .or_else(|| prose(&error.words, now).map(wait(Source::Prose)))
}

/// How long a good answer says that nothing is left of a limit; `None` when something is.
pub fn exhausted(headers: &Headers, now: Now) -> Option<u64> {
    used_up(headers, by_sender(headers, now)).map(|ms| ms.clamp(WAIT_MIN_MS, BENCH_MAX_MS))
}

/// The sender's own clock, if it tells the time: the instants that it names are by that one, and ours may be unset.
fn by_sender(headers: &Headers, now: Now) -> Now {
    Now { wall_ms: headers.get("date").and_then(http_date_ms).unwrap_or(now.wall_ms), ..now }
}

/// `retry-after-ms` (milliseconds) or `Retry-After` (seconds, also fractions; a duration; a date).
fn retry_after(headers: &Headers, now: Now) -> Option<u64> {
    let ms = headers.get("retry-after-ms").and_then(|text| text.trim().parse::<f64>().ok());
    if let Some(ms) = ms.filter(|ms| *ms >= 0.0) {
        return Some(ms.ceil() as u64);
    }
    let text = headers.get("retry-after")?.trim();
    if let Some(ms) = parse_duration_ms(text) {
        return Some(ms);
    }
    Some(http_date_ms(text)?.saturating_sub(now.wall_ms))
}

fn http_date_ms(text: &str) -> Option<u64> {
    let instant = httpdate::parse_http_date(text.trim()).ok()?;
    Some(instant.duration_since(UNIX_EPOCH).ok()?.as_millis() as u64)
}

/// Which of several limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Requests,
    Tokens,
    Any,
}

impl Family {
    fn of_header(name: &str) -> Family {
        match name {
            _ if name.contains("token") => Family::Tokens,
            _ if name.contains("request") => Family::Requests,
            _ => Family::Any,
        }
    }

    fn meant(error: &UpstreamError) -> Family {
        let says = |word: &str| error.words.contains(word) || error.kind.as_deref() == Some(word);
        match (says("tokens"), says("requests")) {
            (true, false) => Family::Tokens,
            (false, true) => Family::Requests,
            _ => Family::Any,
        }
    }
}

/// The reset of a limit that is used up; else of the family that the error means; else of the only limit there is.
fn reset(headers: &Headers, family: Family, now: Now) -> Option<u64> {
    if let Some(ms) = used_up(headers, now) {
        return Some(ms);
    }
    let open = || limits(headers, now).filter(|limit| limit.remaining.is_none() || family != Family::Any);
    let meant = open().filter(|limit| limit.family == family).filter_map(|limit| limit.reset_ms).max();
    let mut others = open().filter(|limit| limit.family == Family::Any || family == Family::Any);
    meant.or_else(|| others.next().filter(|_| others.next().is_none())?.reset_ms)
}

/// The longest reset among limits of which nothing remains.
fn used_up(headers: &Headers, now: Now) -> Option<u64> {
    limits(headers, now).filter(|limit| limit.remaining == Some(0.0)).filter_map(|limit| limit.reset_ms).max()
}

/// What an answer says to be left of one limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Left {
    /// The header that says so, or the name of an item in it.
    pub name: Box<str>,
    /// Of tokens, not of requests.
    pub tokens: bool,
    pub amount: f64,
    pub reset_ms: u64,
}

/// Longest name of a limit.
const NAME_MAX: usize = 64;

/// What a good answer says to be left, with the time of the next reset. Nothing left at all is a matter of
/// [`exhausted`].
pub fn left(headers: &Headers, now: Now) -> Vec<Left> {
    let sane = |limit: LimitHeader| {
        let amount = limit.remaining.filter(|left| left.is_finite() && *left > 0.0)?;
        let reset_ms = limit.reset_ms?.min(BENCH_MAX_MS);
        let tokens = limit.family == Family::Tokens;
        (limit.name.len() <= NAME_MAX).then(|| Left { name: limit.name.into(), tokens, amount, reset_ms })
    };
    limits(headers, by_sender(headers, now)).filter_map(sane).collect()
}

struct LimitHeader {
    name: String,
    family: Family,
    remaining: Option<f64>,
    reset_ms: Option<u64>,
}

/// Every limit that headers describe: `x-ratelimit-{remaining,reset}[-requests|-tokens][-minute|-day|...]`, vendors'
/// own prefixes, and the IETF `RateLimit` field in both of its spellings.
fn limits(headers: &Headers, now: Now) -> impl Iterator<Item = LimitHeader> {
    headers.iter().filter(|(name, _)| name.contains("ratelimit") || name.contains("rate-limit")).flat_map(
        move |(name, value)| {
            let mut found = Vec::new();
            if name == "ratelimit" && value.contains(';') {
                found.extend(value.split(',').filter_map(ietf));
            } else if name == "ratelimit" {
                found.extend(ietf(&value.replace(',', ";")));
            } else if name.contains("reset") {
                let rest = name.replacen("reset", "remaining", 1);
                let remaining = headers.get(&rest).and_then(|text| text.trim().parse().ok());
                found.push(LimitHeader {
                    name: name.to_owned(),
                    family: Family::of_header(name),
                    remaining,
                    reset_ms: reset_ms(value, now),
                });
            }
            found
        },
    )
}

/// One item of the `RateLimit` field: `"default";r=0;t=50`, or of older drafts `limit=100, remaining=0, reset=50`.
fn ietf(item: &str) -> Option<LimitHeader> {
    let number = |names: [&str; 2]| {
        item.split(';').find_map(|part| {
            let (name, value) = part.split_once('=')?;
            names.contains(&name.trim()).then(|| value.trim().parse::<f64>().ok())?
        })
    };
    let seconds = number(["t", "reset"])?;
    Some(LimitHeader {
        name: item.split(';').next().unwrap_or_default().trim().to_owned(),
        family: Family::Any,
        remaining: number(["r", "remaining"]),
        reset_ms: (seconds >= 0.0).then_some((seconds * 1_000.0).ceil() as u64),
    })
}

/// A reset: a duration, seconds from now, an instant in seconds or milliseconds since 1970, or a date.
fn reset_ms(text: &str, now: Now) -> Option<u64> {
    let text = text.trim();
    let until = |instant_ms: f64| (instant_ms - now.wall_ms as f64).max(0.0).ceil() as u64;
    match text.parse::<f64>() {
        Ok(number) if number >= EPOCH_MS_MIN => Some(until(number)),
        Ok(number) if number >= EPOCH_S_MIN => Some(until(number * 1_000.0)),
        _ => parse_duration_ms(text)
            .or_else(|| date_ms(text).map(|instant_ms| instant_ms.saturating_sub(now.wall_ms))),
    }
}

/// A date as in HTTP headers or as in RFC 3339.
fn date_ms(text: &str) -> Option<u64> {
    http_date_ms(text).or_else(|| rfc3339_ms(text))
}

/// `2026-12-01T00:00:30Z`, with a fraction or an offset if need be; milliseconds since 1970.
fn rfc3339_ms(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let separators = [(4, "-"), (7, "-"), (13, ":"), (16, ":")];
    let well_formed = separators.into_iter().all(|(at, sign)| text.get(at..at + 1) == Some(sign));
    if !well_formed
        || !(1970..=9999).contains(&year)
        || !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
    {
        return None;
    }
    let zone = text.get(19..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let east_minutes = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign @ ("+" | "-"), offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let east = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
            if sign == "-" { -east } else { east }
        }
        _ => return None,
    };
    let days = days_from_civil(year, month, day);
    let seconds = ((days * 24 + hour) * 60 + minute - east_minutes) * 60 + second;
    u64::try_from(seconds).ok().map(|seconds| seconds * 1_000)
}

/// "Please try again in 7m12s", "retry after 30 seconds", "resets in 3 hours", "available again at 2026-12-01T00:00:00Z".
fn prose(words: &str, now: Now) -> Option<u64> {
    const CUES: [&str; 8] =
        ["try again", "retry", "wait", "resets", "reset", "available", "come back", "next request"];
    CUES.iter().flat_map(|cue| words.match_indices(cue)).find_map(|(at, cue)| {
        let rest = words[at + cue.len()..].trim_start_matches(" again");
        let line = rest.split('\n').next().unwrap_or(rest);
        let mut tokens = line.split_whitespace().map(|token| token.trim_matches([':', '`', '"', '(', ')']));
        let mut tail = tokens.by_ref().skip_while(|token| {
            ["in", "after", "at", "for", "is", "about", "another", "until", ""].contains(token)
        });
        let first = tail.next()?;
        if let Some(instant_ms) = rfc3339_ms(&first.trim_end_matches(['.', ',']).to_ascii_uppercase()) {
            return Some(instant_ms.saturating_sub(now.wall_ms));
        }
        spelled_duration(std::iter::once(first).chain(tail))
    })
}

/// A duration over several words, as far as they are numbers with units: `1 hour and 5 minutes`, `7m12s.`
fn spelled_duration<'t>(tokens: impl Iterator<Item = &'t str>) -> Option<u64> {
    let mut text = String::new();
    let mut known = None;
    for token in tokens.take(8).map(|token| token.trim_end_matches(['.', ',', ';', '!'])) {
        if token == "and" {
            continue;
        }
        text.push_str(token);
        // A bare number names no unit; it waits for the next word.
        if text.parse::<f64>().is_err() {
            match parse_duration_ms(&text) {
                Some(ms) => known = Some(ms),
                None if token.parse::<f64>().is_err() => break,
                None => {}
            }
        }
        text.push(' ');
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::upstream_error::read;

    /// 2026-12-01 00:00:00 UTC.
    const WALL_MS: u64 = 1_796_083_200_000;
    const NOW: Now = Now::at(3_600_000, WALL_MS);
    const WEEK_MS: u64 = 7 * 86_400_000;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().copied().collect()
    }

    fn check(pairs: &[(&str, &str)], body: &str, expected: Option<u64>) {
        let wait = named(&headers(pairs), &read(body.as_bytes()), NOW);
        assert_eq!(wait.map(|wait| wait.ms), expected, "{pairs:?} {body}");
    }

    #[test]
    fn quo_02_retry_after_in_every_spelling() {
        let header = |value, expected| check(&[("retry-after", value)], "", expected);
        header("30", Some(30_000));
        header("1.5", Some(1_500));
        header("0", Some(WAIT_MIN_MS));
        header("999999999", Some(WEEK_MS));
        header("Tue, 01 Dec 2026 00:00:30 GMT", Some(30_000));
        header("Mon, 30 Nov 2026 00:00:00 GMT", Some(WAIT_MIN_MS));
        header("7m12s", Some(432_000));
        header("-5", None);
        header("soon", None);
        check(&[], "", None);
        check(&[("retry-after-ms", "750")], "", Some(WAIT_MIN_MS));
        check(&[("retry-after-ms", "2750"), ("retry-after", "9")], "", Some(2_750));
        check(
            &[("date", "Tue, 01 Dec 2026 12:00:00 GMT"), ("retry-after", "Tue, 01 Dec 2026 12:00:30 GMT")],
            "",
            Some(30_000),
        );
    }

    #[test]
    fn reset_headers_in_every_form() {
        let reset = |value, expected| check(&[("x-ratelimit-reset", value)], "", expected);
        reset("1.33s", Some(1_330));
        reset("1h12m30.5s", Some(4_350_500));
        reset("50", Some(50_000));
        reset("1796083260", Some(60_000));
        reset("1796083260000", Some(60_000));
        reset("2026-12-01T00:01:00Z", Some(60_000));
        reset("2026-12-01T01:00:30.25+01:00", Some(30_000));
        reset("1796083100", Some(WAIT_MIN_MS));
        reset("whenever", None);
        check(&[("ratelimit", "\"default\";r=0;t=50")], "", Some(50_000));
        check(&[("ratelimit", "limit=100, remaining=0, reset=50")], "", Some(50_000));
        check(&[("anthropic-ratelimit-requests-reset", "2026-12-01T00:00:07Z")], "", Some(7_000));
    }

    #[test]
    fn instants_are_by_the_clock_of_the_sender() {
        let unset = Now { wall_ms: 3_600_000, ..NOW };
        let date = ("date", "Tue, 01 Dec 2026 12:00:00 GMT");
        for (name, value) in [
            ("retry-after", "Tue, 01 Dec 2026 12:00:30 GMT"),
            ("x-ratelimit-reset", "1796126430"),
            ("x-ratelimit-reset", "1796126430000"),
            ("x-ratelimit-reset", "2026-12-01T12:00:30Z"),
        ] {
            let given = headers(&[date, (name, value), ("x-ratelimit-remaining", "0")]);
            assert_eq!(named(&given, &read(b""), unset).map(|wait| wait.ms), Some(30_000), "{value}");
        }
        let given = headers(&[date, ("x-ratelimit-reset", "1796126430"), ("x-ratelimit-remaining", "0")]);
        assert_eq!(exhausted(&given, unset), Some(30_000));
        let given = headers(&[date, ("x-ratelimit-reset", "1796126430"), ("x-ratelimit-remaining", "4")]);
        assert_eq!(left(&given, unset)[0].reset_ms, 30_000);
        check(&[date], r#"{"error":{"message":"try again at 2026-12-01T12:00:30Z."}}"#, Some(30_000));
    }

    #[test]
    fn quo_15_the_limit_that_is_used_up_counts() {
        let both = |requests, tokens| {
            headers(&[
                ("x-ratelimit-remaining-requests", requests),
                ("x-ratelimit-reset-requests", "1h12m30.5s"),
                ("x-ratelimit-remaining-tokens", tokens),
                ("x-ratelimit-reset-tokens", "7.2s"),
            ])
        };
        assert_eq!(exhausted(&both("0", "8800"), NOW), Some(4_350_500));
        assert_eq!(exhausted(&both("700", "0"), NOW), Some(7_200));
        assert_eq!(exhausted(&both("700", "8800"), NOW), None);
        let tokens = read(br#"{"error":{"message":"too many tokens per minute","type":"tokens"}}"#);
        assert_eq!(named(&both("700", "100"), &tokens, NOW).map(|wait| wait.ms), Some(7_200));
        assert_eq!(named(&both("700", "100"), &read(b""), NOW), None);
    }

    #[test]
    fn bodies_name_waits() {
        check(&[], r#"{"error":{"details":[{"retryDelay":"17.250000001s"}]}}"#, Some(17_251));
        check(&[], r#"{"retry_after":2.5}"#, Some(2_500));
        check(&[], r#"{"error":{"metadata":{"retry_after_ms":4100}}}"#, Some(4_100));
        check(&[], r#"{"error":{"details":[{"retryDelay":"86400s"}]}}"#, Some(86_400_000));
        check(&[("retry-after", "3")], r#"{"retry_after":20}"#, Some(3_000));
        check(
            &[],
            r#"{"error":{"message":"m","metadata":{"headers":{"X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1796169600000"}}}}"#,
            Some(86_400_000),
        );
    }

    #[test]
    fn prose_names_waits() {
        let says = |text: &str, expected| {
            check(&[], &serde_json::json!({"error": {"message": text}}).to_string(), expected);
        };
        says("Rate limit reached. Please try again in 7m12s.", Some(432_000));
        says("Please try again in 8.66s. Visit us", Some(8_660));
        says("try again in 1m2.5s", Some(62_500));
        says("try again in 1350ms", Some(1_350));
        says("Please retry after 30 seconds.", Some(30_000));
        says("Please wait 5 minutes and 3 seconds before the next call", Some(303_000));
        says("Quota resets in 1 hour 5 minutes", Some(3_900_000));
        says("You can try again at 2026-12-01T00:10:00Z.", Some(600_000));
        says("Please retry in 17.25s and read the 3 pages", Some(17_250));
        says("retry after 30", None);
        says("Please try again later", None);
        says("took 4031ms", None);
        says("wait", None);
    }

    #[test]
    fn dates_count_days_rightly() {
        assert_eq!(rfc3339_ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(rfc3339_ms("2024-02-29T12:00:00Z"), Some(1_709_208_000_000));
        assert_eq!(rfc3339_ms("2026-12-01T00:00:00Z"), Some(WALL_MS));
        for nothing in
            ["2026-13-01T00:00:00Z", "2026-12-01", "2026-12-01T00:00:00", "x", "2026-12-01T00:00:00+1"]
        {
            assert_eq!(rfc3339_ms(nothing), None, "{nothing}");
        }
    }
}
