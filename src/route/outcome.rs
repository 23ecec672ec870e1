//! From the raw facts of a finished attempt to its class: the first half of the blame table.
//!
//! Judged by the status first, then by the provider's own code, by wording last. What follows from a class (who is
//! benched, who is tried next) is the other half, in [`super::verdict`] and [`super::failover`].
use std::borrow::Cow;

use super::waits::{self, Left, Source};
use super::words::{self, Span, Stated};
use crate::base::clock::Now;
use crate::base::text::truncate;
use crate::catalog::provider::{ErrorWord, Provider};
use crate::quota::zone::Period;
use crate::wire::exchange::{Fault, FaultKind, Headers, Phase};
use crate::wire::upstream_error::{self, UpstreamError};

/// What became of one attempt, and whom it was made with.
#[derive(Debug)]
pub struct Signal<'a> {
    pub provider: &'a Provider,
    /// The prompt as we estimate it.
    pub prompt_tokens: u64,
    pub circumstances: Circumstances,
    pub end: End<'a>,
}

/// What is wrong with this machine, so that nobody else is to blame for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// The wall clock stands before the build date, so that it cannot be right.
    pub clock_behind: bool,
    /// Its routing table has no way to anywhere.
    pub cut_off: bool,
}

/// How an attempt ended.
#[derive(Debug)]
pub enum End<'a> {
    /// With a whole and good answer.
    Served { headers: &'a Headers },
    /// Below HTTP, or in the middle of the answer.
    Fault(&'a Fault),
    /// With a status that is no success.
    Status { status: u16, headers: &'a Headers, body: &'a [u8] },
    /// With an error object under a 2xx, or as the first event of a stream.
    ErrorInAnswer { headers: &'a Headers, body: &'a [u8] },
    /// With a 2xx whose body is no answer.
    NoAnswer(NoAnswer),
    /// The client went away, or the gateway stops.
    ClientLeft {
        /// Whether any byte of the request may have reached the upstream.
        reached: bool,
    },
}

/// What a 2xx held instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    Html,
    /// Not JSON, or JSON that breaks off although the body is whole.
    NotJson,
    /// JSON of another shape, or without choices.
    WrongShape,
    /// Nothing was generated, and nothing (`length`, `content_filter`, a refusal, a tool call) says why.
    Empty,
    /// Good answers, but fewer than were asked for.
    FewerChoices,
}

impl NoAnswer {
    const fn cause(self) -> &'static str {
        match self {
            NoAnswer::Html => "html",
            NoAnswer::NotJson => "not-json",
            NoAnswer::WrongShape => "wrong-shape",
            NoAnswer::Empty => "empty",
            NoAnswer::FewerChoices => "fewer-choices",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            NoAnswer::Html => "answered with a web page: its address is probably not that of an API",
            NoAnswer::NotJson => "answered with something that is not JSON",
            NoAnswer::WrongShape => "answered with JSON that holds no answer",
            NoAnswer::Empty => "answered with nothing",
            NoAnswer::FewerChoices => "answered with fewer choices than were asked for",
        }
    }
}

/// An attempt, judged.
#[derive(Debug)]
pub enum Outcome {
    Served {
        /// The answer says that nothing is left of a limit, and for how long.
        exhausted_ms: Option<u64>,
        /// What it says to be left of others.
        left: Vec<Left>,
    },
    ClientLeft {
        /// Whether any byte of the request may have reached the upstream.
        reached: bool,
    },
    Failed(Box<Failure>),
}

impl Outcome {
    /// Whether any byte may have reached the upstream of a client that left; `None` when it is still there.
    pub fn client_left(&self) -> Option<bool> {
        match self {
            Outcome::ClientLeft { reached } => Some(*reached),
            _ => None,
        }
    }
}

/// Whose fault it was: one variant per row of the blame table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    BadKey,
    NoCredit,
    /// This key may not use this model.
    Forbidden,
    RateLimited,
    /// A quota of a day or longer is used up.
    QuotaSpent,
    /// A rate limit is smaller than this one request.
    LimitTooSmall,
    ModelMissing,
    /// More context than the model has.
    TooLong,
    /// More answers at once than the model gives.
    FewerChoices,
    ProviderDown,
    /// Not even reached: a name that does not resolve, a connection that does not come about.
    Unreachable,
    /// The model is overloaded or being loaded.
    ModelDown,
    /// This machine has no network.
    NoNetwork,
    /// Our clock is wrong, so that certificates look as if they were not valid yet.
    Clock,
    /// We have no descriptor left, which is no news of anybody else.
    Exhausted,
    NoAnswer,
    EmptyAnswer,
    BadRequest,
    Policy,
}

impl Class {
    /// Who is to blame, for logs.
    pub const fn blame(self) -> &'static str {
        match self {
            Class::BadKey | Class::NoCredit => "key",
            Class::Forbidden | Class::RateLimited | Class::QuotaSpent => "key and model",
            Class::ModelMissing | Class::ModelDown | Class::NoAnswer | Class::EmptyAnswer => "model",
            Class::LimitTooSmall | Class::TooLong | Class::FewerChoices => "request and model",
            Class::ProviderDown | Class::Unreachable => "provider",
            Class::NoNetwork => "network",
            Class::Clock => "clock",
            Class::Exhausted => "gateway",
            Class::BadRequest | Class::Policy => "request",
        }
    }

    /// Whether it passes by itself when the limit's time is up.
    pub const fn is_limit(self) -> bool {
        matches!(self, Class::RateLimited | Class::QuotaSpent)
    }

    /// Whether another model may take what this one could not hold.
    pub const fn is_size(self) -> bool {
        matches!(self, Class::LimitTooSmall | Class::TooLong)
    }
}

/// A failed attempt.
#[derive(Clone, Debug)]
pub struct Failure {
    pub class: Class,
    /// One word for the trail: the status, or what broke.
    pub cause: Cow<'static, str>,
    /// The status that came, or the one that the body carries.
    pub status: Option<u16>,
    /// For people; may still hold credentials, so redact it.
    pub message: String,
    pub timed_out: bool,
    /// How long the upstream wants to be left alone, within the bounds of [`waits`].
    pub wait_ms: Option<u64>,
    /// It speaks of the whole account.
    pub account_wide: bool,
    /// A limit or window that it states.
    pub stated: Option<Stated>,
    /// Fields that may be left out so that the request is taken.
    pub refused_fields: Vec<String>,
    /// It complains about how many answers are wanted.
    pub about_choices: bool,
    /// Whether any byte of the request may have reached the upstream.
    pub reached: bool,
    /// The upstream's own `code`, `type` and `param`.
    pub code: Option<String>,
    pub kind: Option<String>,
    pub param: Option<String>,
    /// The beginning of the body, where it may be returned to the client; redact it.
    pub raw: String,
}

/// The cause of an error that came under a 200 and carries no status.
const ERROR_UNDER_200: &str = "error";
/// Of an upstream's body so much is kept for the client.
const RAW_MAX_BYTES: usize = 4 * 1024;

impl Failure {
    /// The upstream said no, rather than trying and failing: nothing was generated, so that no tokens count.
    pub fn refused(&self) -> bool {
        self.cause == ERROR_UNDER_200 || self.status.is_some_and(|status| status >= 300)
    }

    fn new(class: Class, cause: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Failure {
        Failure {
            class,
            cause: cause.into(),
            status: None,
            message: message.into(),
            timed_out: false,
            wait_ms: None,
            account_wide: false,
            stated: None,
            refused_fields: Vec::new(),
            about_choices: false,
            reached: true,
            code: None,
            kind: None,
            param: None,
            raw: String::new(),
        }
    }
}

/// Judges an attempt.
pub fn classify(signal: &Signal<'_>, now: Now) -> Outcome {
    let failure = match signal.end {
        End::Served { headers } => {
            let (exhausted_ms, left) = (waits::exhausted(headers, now), waits::left(headers, now));
            return Outcome::Served { exhausted_ms, left };
        }
        End::ClientLeft { reached } => return Outcome::ClientLeft { reached },
        End::Fault(Fault { kind: FaultKind::Cut, request_sent, .. }) => {
            return Outcome::ClientLeft { reached: *request_sent };
        }
        End::Fault(fault) => of_fault(fault, signal.circumstances),
        End::NoAnswer(kind) => {
            let class = match kind {
                NoAnswer::Empty => Class::EmptyAnswer,
                NoAnswer::FewerChoices => Class::FewerChoices,
                _ => Class::NoAnswer,
            };
            Failure { status: Some(200), ..Failure::new(class, kind.cause(), kind.message()) }
        }
        End::Status { status, headers, body } => {
            let error = upstream_error::read(body);
            // Google's arrays may carry the true status under a plain 400.
            let status = if status == 400 { error.status.unwrap_or(400) } else { status };
            of_status(signal, status, headers, error, body, now)
        }
        End::ErrorInAnswer { headers, body } => {
            let error = upstream_error::read(body);
            match carried_status(&error, signal.provider) {
                Some(status) => of_status(signal, status, headers, error, body, now),
                None => Failure {
                    status: Some(200),
                    ..Failure::new(Class::NoAnswer, ERROR_UNDER_200, said(&error, "answered with an error"))
                },
            }
        }
    };
    Outcome::Failed(Box::new(failure))
}

/// The message of an error, or what to say when it has none.
fn said(error: &UpstreamError, otherwise: &str) -> String {
    if error.message.is_empty() { otherwise.to_owned() } else { error.message.clone() }
}

fn of_fault(fault: &Fault, circumstances: Circumstances) -> Failure {
    let Circumstances { clock_behind, cut_off } = circumstances;
    let cause = match fault.kind {
        FaultKind::Dns => "dns",
        FaultKind::BlockedAddress => "blocked-address",
        FaultKind::Refused => "refused",
        FaultKind::Unreachable => "unreachable",
        FaultKind::Tls => "tls",
        FaultKind::CertNotYetValid => "certificate",
        FaultKind::Proxy => "proxy",
        FaultKind::Timeout => "timeout",
        FaultKind::Closed | FaultKind::Cut => "closed",
        FaultKind::Protocol => "protocol",
        FaultKind::TooLarge => "too-large",
        FaultKind::Exhausted => "no-descriptor",
    };
    let class = match fault.kind {
        FaultKind::CertNotYetValid if clock_behind => Class::Clock,
        FaultKind::Exhausted => Class::Exhausted,
        FaultKind::Dns | FaultKind::Unreachable if cut_off => Class::NoNetwork,
        FaultKind::Dns | FaultKind::Refused | FaultKind::Unreachable | FaultKind::Proxy => Class::Unreachable,
        FaultKind::Timeout if fault.phase <= Phase::Connect => Class::Unreachable,
        _ => Class::ProviderDown,
    };
    Failure {
        timed_out: fault.kind == FaultKind::Timeout,
        reached: fault.request_sent,
        ..Failure::new(class, cause, fault.message.clone())
    }
}

/// The status that an error under a 2xx stands for; `None` when it carries no code.
fn carried_status(error: &UpstreamError, provider: &Provider) -> Option<u16> {
    if words::says_no_route(error) {
        return Some(404);
    }
    let by_word =
        words::own_meaning(error, &provider.quirks.error_words).or_else(|| words::code_meaning(error));
    let of_word = |word| match word {
        ErrorWord::Auth => 401,
        ErrorWord::Credit => 402,
        ErrorWord::Forbidden => 403,
        ErrorWord::RateLimit | ErrorWord::DailyQuota => 429,
        ErrorWord::ModelMissing => 404,
        ErrorWord::ContextLength => 413,
        ErrorWord::Unavailable => 503,
        ErrorWord::Policy | ErrorWord::Request => 400,
    };
    let by_quota = || words::quota_span(error).map(|_| 429);
    error.status.or(by_word.map(of_word)).or_else(by_quota)
}

fn of_status(
    signal: &Signal<'_>,
    status: u16,
    headers: &Headers,
    error: UpstreamError,
    body: &[u8],
    now: Now,
) -> Failure {
    let wait = waits::named(headers, &error, now);
    let mut failure = Failure::new(Class::BadRequest, status.to_string(), "");
    failure.status = Some(status);
    failure.message = said(&error, &format!("answered with status {status}"));
    failure.timed_out = matches!(status, 408 | 504 | 524);
    failure.wait_ms = wait.map(|wait| wait.ms);
    failure.class = judge(status, &error, &signal.provider.quirks.error_words);
    match failure.class {
        Class::RateLimited | Class::QuotaSpent => {
            failure.account_wide = words::says_account(&error);
            rate_limit(&mut failure, signal, &error, wait, now);
        }
        Class::NoCredit if failure.wait_ms.is_none() => {
            let day = words::quota_span(&error).is_some_and(|(span, _)| span == Span::Day);
            failure.wait_ms = day.then(|| until_reset_ms(signal.provider, now));
        }
        Class::TooLong => failure.stated = words::stated_window(&error),
        Class::BadRequest => {
            failure.refused_fields = words::refused_fields(&error);
            failure.about_choices = words::says_choices(&error);
        }
        _ => {}
    }
    if matches!(failure.class, Class::BadRequest | Class::Policy | Class::ModelMissing) {
        let raw = String::from_utf8_lossy(&body[..body.len().min(RAW_MAX_BYTES)]);
        failure.raw = truncate(&raw, RAW_MAX_BYTES).to_owned();
    }
    failure.param = error.params.into_iter().next();
    failure.code = error.code;
    failure.kind = error.kind;
    failure
}

/// The class of a status and an error body.
fn judge(status: u16, error: &UpstreamError, own: &[(String, ErrorWord)]) -> Class {
    if let Some(word) = words::own_meaning(error, own) {
        return class_of(word, error);
    }
    let code = words::code_meaning(error);
    let by_phrase = || words::phrase_meaning(error);
    match status {
        401 => Class::BadKey,
        402 => Class::NoCredit,
        403 => match code.filter(|word| *word != ErrorWord::Auth).or_else(by_phrase) {
            Some(ErrorWord::Policy) => Class::Policy,
            Some(ErrorWord::RateLimit) if code.is_some() => Class::RateLimited,
            Some(ErrorWord::Credit) => Class::NoCredit,
            _ => Class::Forbidden,
        },
        400 | 404 | 410 if words::says_no_route(error) => Class::ProviderDown,
        404 | 410 => Class::ModelMissing,
        413 if words::says_token_rate(error) || code == Some(ErrorWord::RateLimit) => Class::RateLimited,
        413 => Class::TooLong,
        429 if code == Some(ErrorWord::Credit) => Class::NoCredit,
        429 => Class::RateLimited,
        529 => Class::ModelDown,
        _ if status >= 500 && code == Some(ErrorWord::ContextLength) => Class::TooLong,
        _ if status >= 500 => class_of(ErrorWord::Unavailable, error),
        // A redirect is not followed; the others say that the address, the moment or our way of asking is wrong, or that
        // something behind the upstream gave up: nothing that the client could mend.
        300..=399 | 405 | 407..=409 | 411 | 421 | 423..=426 | 428 | 431 | 499 => Class::ProviderDown,
        451 => code.or_else(by_phrase).map_or(Class::Forbidden, |word| class_of(word, error)),
        400..=499 => code.or_else(by_phrase).map_or(Class::BadRequest, |word| class_of(word, error)),
        _ => Class::ProviderDown,
    }
}

fn class_of(word: ErrorWord, error: &UpstreamError) -> Class {
    match word {
        ErrorWord::Auth => Class::BadKey,
        ErrorWord::Credit => Class::NoCredit,
        ErrorWord::Forbidden => Class::Forbidden,
        ErrorWord::RateLimit => Class::RateLimited,
        ErrorWord::DailyQuota => Class::QuotaSpent,
        ErrorWord::ModelMissing => Class::ModelMissing,
        ErrorWord::ContextLength => Class::TooLong,
        // NVIDIA calls a single model a function.
        ErrorWord::Unavailable if words::says_loading(error) || error.words.contains("degraded function") => {
            Class::ModelDown
        }
        ErrorWord::Unavailable => Class::ProviderDown,
        ErrorWord::Policy => Class::Policy,
        ErrorWord::Request => Class::BadRequest,
    }
}

/// Tells a burst from a spent quota and from a limit that this request can never meet, and settles the wait.
fn rate_limit(
    failure: &mut Failure,
    signal: &Signal<'_>,
    error: &UpstreamError,
    wait: Option<waits::Wait>,
    now: Now,
) {
    if words::says_token_rate(error) {
        failure.stated = words::stated_limit(error);
        let below = |stated: Stated| match stated.asked {
            Some(_) => stated.too_small(),
            None => failure.status == Some(413) && signal.prompt_tokens > stated.limit,
        };
        if failure.stated.is_some_and(below) {
            failure.class = Class::LimitTooSmall;
            failure.wait_ms = None;
            return;
        }
    }
    let own_word = failure.class == Class::QuotaSpent;
    let Some((span, by_id)) = words::quota_span(error).or(own_word.then_some((Span::Day, true))) else {
        return;
    };
    failure.class = Class::QuotaSpent;
    // Google sends a delay of seconds together with the id of a daily quota: what the id says is true.
    let believed =
        wait.filter(|wait| !by_id || matches!(wait.source, Source::Header | Source::RepeatedHeader));
    failure.wait_ms = Some(match (believed, span) {
        (Some(wait), _) => wait.ms,
        (None, Span::Day) => until_reset_ms(signal.provider, now),
        (None, Span::Longer) => DAY_MS,
    });
}

const DAY_MS: u64 = 24 * 3_600_000;
/// Clocks differ: a quota is asked for again so long after its reset.
const RESET_MARGIN_MS: u64 = 30_000;
/// A quota that is still spent so shortly after our midnight belongs to a day that has not ended over there.
const RESET_SLACK_MS: u64 = 10 * 60_000;

/// Until the provider's next midnight.
fn until_reset_ms(provider: &Provider, now: Now) -> u64 {
    let rest_ms = Period::Day.rest_ms(provider.reset_zone, now.wall_ms);
    if rest_ms > DAY_MS - RESET_SLACK_MS { RESET_SLACK_MS } else { rest_ms + RESET_MARGIN_MS }
}
