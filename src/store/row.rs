//! One row per request: what analytics and the log need to know, kept narrow because every byte is written to a
//! memory card. Never a word of a prompt or an answer.
use std::sync::Arc;

use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use serde::Serialize;

use crate::base::text::hex;

/// Longest texts that come from outside, in bytes. What is longer is cut.
const REQUESTED_BYTES_MAX: usize = 96;
const ERROR_BYTES_MAX: usize = 64;
const TRAIL_BYTES_MAX: usize = 512;

/// Rows in one millisecond that keep their time exactly.
pub const ROWS_PER_MS: i64 = 64;

/// A finished request.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Wall clock when it ended, in milliseconds since 1970.
    pub ended_ms: u64,
    /// The `x-request-id` that the client saw.
    pub id: Option<Arc<str>>,
    pub kind: RowKind,
    pub outcome: RowOutcome,
    /// The status that the client got; 499 when it left before.
    pub status: u16,
    pub stream: bool,
    /// The model string that was asked for, unless it is what served.
    pub requested: Option<String>,
    /// How it was resolved (`x-freeway-route`).
    pub route: Arc<str>,
    /// `provider/model` that served, or was tried last.
    pub model: Option<Arc<str>>,
    /// Id of the provider key.
    pub key: Option<Arc<str>>,
    /// Name of the client's key.
    pub client: Option<Arc<str>>,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// The tokens are our own estimate.
    pub estimated: bool,
    /// What the answer would have cost where it is paid for, in billionths of a dollar.
    pub saved_nano_usd: u64,
    /// From the request's last byte to the answer's last byte.
    pub latency_ms: u64,
    /// To the first token of a stream.
    pub first_ms: Option<u64>,
    /// Upstream calls made.
    pub attempts: u32,
    /// Where the answer came from, when no upstream was called for it.
    pub cache: Option<RowCache>,
    /// How far the conversation was reshaped to fit the model, when it was.
    pub refit: Option<RowRefit>,
    /// `error.code` of a failed request.
    pub error: Option<String>,
    /// The failed hops (`x-freeway-trail`); empty when the first attempt served.
    pub trail: String,
}

/// Which surface a request came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKind {
    Chat,
    Embeddings,
    Completions,
    Responses,
    Messages,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOutcome {
    Success,
    Error,
    /// The client left.
    Canceled,
}

/// Which cache an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowCache {
    Exact,
    Semantic,
}

/// The rung at which a conversation fitted its model. One that fitted as it came has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowRefit {
    DropToolNoise,
    Window,
    Compact,
    HardTruncate,
}

impl RowKind {
    /// All kinds.
    pub const ALL: [RowKind; 5] =
        [RowKind::Chat, RowKind::Embeddings, RowKind::Completions, RowKind::Responses, RowKind::Messages];

    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            RowKind::Chat => "chat",
            RowKind::Embeddings => "embeddings",
            RowKind::Completions => "completions",
            RowKind::Responses => "responses",
            RowKind::Messages => "messages",
        }
    }

    /// Its number in the database.
    pub fn code(self) -> i64 {
        self as i64
    }

    /// The kind of a number.
    pub fn by_code(code: i64) -> Option<RowKind> {
        RowKind::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

impl RowOutcome {
    /// All outcomes.
    pub const ALL: [RowOutcome; 3] = [RowOutcome::Success, RowOutcome::Error, RowOutcome::Canceled];

    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            RowOutcome::Success => "success",
            RowOutcome::Error => "error",
            RowOutcome::Canceled => "canceled",
        }
    }

    /// Its number in the database.
    pub fn code(self) -> i64 {
        self as i64
    }

    /// The outcome of a number.
    pub fn by_code(code: i64) -> Option<RowOutcome> {
        RowOutcome::ALL.into_iter().find(|outcome| outcome.code() == code)
    }
}

impl RowCache {
    /// Both caches.
    pub const ALL: [RowCache; 2] = [RowCache::Exact, RowCache::Semantic];

    /// Its word in the API and in `x-freeway-cache`.
    pub const fn name(self) -> &'static str {
        match self {
            RowCache::Exact => "exact",
            RowCache::Semantic => "semantic",
        }
    }

    /// Its number in the database; 0 is none.
    pub fn code(cache: Option<RowCache>) -> i64 {
        cache.map_or(0, |cache| cache as i64 + 1)
    }

    /// The cache of a number.
    pub fn by_code(code: i64) -> Option<RowCache> {
        RowCache::ALL.into_iter().find(|cache| RowCache::code(Some(*cache)) == code)
    }
}

impl RowRefit {
    const ALL: [RowRefit; 4] =
        [RowRefit::DropToolNoise, RowRefit::Window, RowRefit::Compact, RowRefit::HardTruncate];

    /// Its word in the API and in `x-freeway-context`.
    pub const fn name(self) -> &'static str {
        match self {
            RowRefit::DropToolNoise => "drop-tool-noise",
            RowRefit::Window => "window",
            RowRefit::Compact => "compact",
            RowRefit::HardTruncate => "hard-truncate",
        }
    }

    /// Its number in the database; 0 is none.
    pub fn code(refit: Option<RowRefit>) -> i64 {
        refit.map_or(0, |refit| refit as i64 + 1)
    }

    /// The rung of a number.
    pub fn by_code(code: i64) -> Option<RowRefit> {
        RowRefit::ALL.into_iter().find(|refit| RowRefit::code(Some(*refit)) == code)
    }
}

/// The form in which the id of a request is stored: one of ours is twelve bytes in disguise.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestId<'i> {
    Ours([u8; OUR_ID_BYTES]),
    Theirs(&'i str),
}

/// Random bytes of an id of ours, and what stands before them.
const OUR_ID_BYTES: usize = 12;
const OUR_ID_PREFIX: &str = "req_";

impl RequestId<'_> {
    /// The stored form of an id.
    pub fn packed(id: &str) -> RequestId<'_> {
        let bytes = || {
            let digits = id.strip_prefix(OUR_ID_PREFIX).filter(|digits| digits.len() == 2 * OUR_ID_BYTES)?;
            let mut bytes = [0; OUR_ID_BYTES];
            for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
                *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
            }
            // What could be read in another spelling is somebody else's.
            (hex(&bytes) == digits).then_some(bytes)
        };
        bytes().map_or(RequestId::Theirs(id), RequestId::Ours)
    }

    /// The id of a stored form.
    pub fn unpacked(stored: ValueRef<'_>) -> Option<Arc<str>> {
        match stored {
            ValueRef::Blob(bytes) => Some(format!("{OUR_ID_PREFIX}{}", hex(bytes)).into()),
            ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into()),
            _ => None,
        }
    }
}

impl ToSql for RequestId<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            RequestId::Ours(bytes) => ValueRef::Blob(bytes),
            RequestId::Theirs(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

impl Row {
    /// The row with every text cut to its bound.
    pub fn bounded(mut self) -> Row {
        let cut = |text: &mut String, bytes_max: usize| {
            text.truncate(crate::base::text::truncate(text, bytes_max).len())
        };
        if let Some(requested) = &mut self.requested {
            cut(requested, REQUESTED_BYTES_MAX);
        }
        if let Some(error) = &mut self.error {
            cut(error, ERROR_BYTES_MAX);
        }
        cut(&mut self.trail, TRAIL_BYTES_MAX);
        self
    }
}

/// A row with something in every field, for tests.
#[cfg(test)]
pub fn sample(number: u64) -> Row {
    Row {
        ended_ms: 1_796_000_000_000 + number * 1_000,
        id: Some(if number % 2 == 0 { "req_0123456789abcdef01234567".into() } else { "their-own".into() }),
        kind: RowKind::Embeddings,
        outcome: RowOutcome::Error,
        status: 502,
        stream: number % 2 == 0,
        requested: Some("fast".into()),
        route: "alias:fast".into(),
        model: Some("acme/big-2:free".into()),
        key: Some("acme:0a1b2c3d".into()),
        client: Some("laptop".into()),
        prompt_tokens: 1_200,
        output_tokens: 340 + number,
        estimated: number % 3 == 0,
        saved_nano_usd: 512_000,
        latency_ms: 2_345,
        first_ms: Some(321),
        attempts: 2,
        cache: RowCache::by_code(number as i64 % 3),
        refit: RowRefit::by_code(number as i64 % 5),
        error: Some("all_attempts_failed".into()),
        trail: "acme/big-2:free:429".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_outside_are_cut_at_a_character() {
        let long = Row {
            requested: Some("é".repeat(500)),
            error: Some("x".repeat(500)),
            trail: "é".repeat(5_000),
            ..sample(1)
        };
        let row = long.bounded();
        assert_eq!(row.requested.as_deref().map(str::len), Some(REQUESTED_BYTES_MAX));
        assert_eq!(row.error.as_deref().map(str::len), Some(ERROR_BYTES_MAX));
        assert_eq!(row.trail.len(), TRAIL_BYTES_MAX);
        assert_eq!(sample(1).bounded(), sample(1));
    }

    #[test]
    fn codes_and_kinds_are_inverse() {
        assert!(RowKind::ALL.into_iter().all(|kind| RowKind::by_code(kind.code()) == Some(kind)));
        assert!(
            RowOutcome::ALL.into_iter().all(|outcome| RowOutcome::by_code(outcome.code()) == Some(outcome))
        );
        assert_eq!(RowKind::by_code(99), None);
        assert!((0..=2).all(|code| RowCache::code(RowCache::by_code(code)) == code));
        assert!((0..=4).all(|code| RowRefit::code(RowRefit::by_code(code)) == code));
    }
}
