//! What the codes and the wording of an upstream's error mean, and the numbers that stand in them.
//!
//! The status has been judged before anybody asks here. Codes count for more than sentences, and bare digits mean
//! nothing: `took 4031ms` says neither 403 nor 401.
use crate::catalog::provider::ErrorWord;
use crate::wire::upstream_error::UpstreamError;

/// Codes, types, status names and reasons, in lower case.
const CODES: [(ErrorWord, &[&str]); 8] = [
    (
        ErrorWord::Auth,
        &[
            "api_key_invalid",
            "api_key_expired",
            "invalid_api_key",
            "incorrect_api_key",
            "invalid_authentication",
            "authentication_error",
            "unauthenticated",
            "unauthorized",
            "invalid_token",
        ],
    ),
    (
        ErrorWord::Credit,
        &[
            "insufficient_quota",
            "insufficient_balance",
            "insufficient_credits",
            "insufficient_funds",
            "insufficient_user_quota",
            "payment_required",
            "billing_hard_limit_reached",
            "billing_not_active",
            "credits_exhausted",
        ],
    ),
    (
        ErrorWord::ContextLength,
        &[
            "context_length_exceeded",
            "context_window_exceeded",
            "exceed_context_size_error",
            "prompt_too_long",
            "max_tokens_exceeded",
        ],
    ),
    (
        ErrorWord::Policy,
        &[
            "content_filter",
            "content_policy_violation",
            "content_policy",
            "content_blocked",
            "moderation_blocked",
            "prohibited_content",
            "responsibleaipolicyviolation",
            "data_inspection_failed",
            "safety",
        ],
    ),
    (
        ErrorWord::ModelMissing,
        &[
            "model_not_found",
            "model_not_exist",
            "model_does_not_exist",
            "model_decommissioned",
            "model_deprecated",
            "unknown_model",
            "invalid_model",
            "not_found",
            "not_found_error",
        ],
    ),
    (
        ErrorWord::RateLimit,
        &[
            "rate_limit_exceeded",
            "rate_limit_error",
            "rate_limit_reached",
            "rate_limit",
            "rate_limited",
            "ratelimitexceeded",
            "ratelimitreached",
            "too_many_requests",
            "resource_exhausted",
            "throttled",
            "throttling",
            "throttlingexception",
        ],
    ),
    (
        ErrorWord::Forbidden,
        &[
            "permission_denied",
            "permission_error",
            "access_denied",
            "forbidden",
            "model_not_allowed",
            "model_terms_required",
            "unsupported_country_region_territory",
        ],
    ),
    (
        ErrorWord::Unavailable,
        &[
            "overloaded_error",
            "overloaded",
            "engine_overloaded",
            "server_error",
            "internal_error",
            "internal_server_error",
            "internal",
            "service_unavailable",
            "unavailable",
            "deadline_exceeded",
            "bad_gateway",
        ],
    ),
];

/// Phrases, in lower case, asked in this order: what comes first is the more particular.
const PHRASES: [(ErrorWord, &[&str]); 8] = [
    (
        ErrorWord::Auth,
        &[
            "api key not valid",
            "api key expired",
            "invalid api key",
            "invalid api-key",
            "incorrect api key",
            "api key is invalid",
            "api key not found",
            "invalid authentication",
        ],
    ),
    (
        ErrorWord::Credit,
        &[
            "insufficient credit",
            "insufficient balance",
            "insufficient quota",
            "insufficient funds",
            "out of credit",
            "run out of credit",
            "not enough credit",
            "credit balance is too low",
            "payment required",
        ],
    ),
    // Cloudflare, which says so under more than one status.
    (ErrorWord::DailyQuota, &["daily free allocation", "daily allocation"]),
    (
        ErrorWord::ContextLength,
        &[
            "context length",
            "context window",
            "context size",
            "context_length",
            "maximum context",
            "prompt is too long",
            "prompt too long",
            "prompt exceeds max length",
            "input is too long",
            "too many tokens",
            "token count exceeds",
            "exceeds the maximum number of tokens",
            "reduce the length of",
            "maximum prompt length",
        ],
    ),
    (
        ErrorWord::Policy,
        &[
            "content policy",
            "content filter",
            "content management policy",
            "usage policies",
            "usage policy",
            "safety system",
            "input was flagged",
            "flagged by moderation",
            "flagged for moderation",
            "violates our policy",
        ],
    ),
    (
        ErrorWord::ModelMissing,
        &[
            "no such model",
            "unknown model",
            "model not found",
            "model_not_found",
            "invalid model",
            "is not a valid model",
            "not a valid model id",
            "no endpoints found",
            "model has been decommissioned",
            "model has been retired",
            "model has been deprecated",
            "end of life",
        ],
    ),
    (
        ErrorWord::Forbidden,
        &[
            "not allowed to access",
            "does not have access to",
            "do not have access to",
            "don't have access to",
            "no access to model",
            "location is not supported",
            "country, region, or territory not supported",
        ],
    ),
    (
        ErrorWord::Unavailable,
        &["degraded function", "currently overloaded", "temporarily unavailable", "service is unavailable"],
    ),
];

/// What this provider's own words, as its file lists them (`errorWords`), say of an error.
pub fn own_meaning(error: &UpstreamError, own: &[(String, ErrorWord)]) -> Option<ErrorWord> {
    let said = |word: &str| error.words.contains(word) || error.marks.iter().any(|mark| mark == word);
    own.iter().find(|(word, _)| said(word)).map(|(_, meaning)| *meaning)
}

/// What the codes of an error say.
pub fn code_meaning(error: &UpstreamError) -> Option<ErrorWord> {
    let said = |codes: &[&str]| error.marks.iter().any(|mark| codes.contains(&mark.as_str()));
    CODES.iter().find(|(_, codes)| said(codes)).map(|(meaning, _)| *meaning)
}

/// What the sentences of an error say.
pub fn phrase_meaning(error: &UpstreamError) -> Option<ErrorWord> {
    let words = error.words.as_str();
    let said = |phrases: &[&str]| phrases.iter().any(|phrase| words.contains(phrase));
    if let Some((meaning, _)) = PHRASES.iter().find(|(_, phrases)| said(phrases)) {
        return Some(*meaning);
    }
    let no_model = words.contains("model")
        && ["does not exist", "doesn't exist", "not exist"].iter().any(|phrase| words.contains(phrase));
    no_model.then_some(ErrorWord::ModelMissing)
}

/// Whether the number of answers (`n`) is what is wrong.
pub fn says_choices(error: &UpstreamError) -> bool {
    let named = || error.params.iter().any(|param| param == "n");
    let told = [
        "'n'",
        "`n`",
        "\"n\"",
        "n > 1",
        "n>1",
        "n=1",
        "n must be",
        "multiple choices",
        "multiple completions",
    ];
    named() || told.iter().any(|phrase| error.words.contains(phrase))
}

/// Whether the model only has to be loaded first.
pub fn says_loading(error: &UpstreamError) -> bool {
    ["is loading", "currently loading", "loading model", "warming up", "cold start", "starting up"]
        .iter()
        .any(|phrase| error.words.contains(phrase))
}

/// Whether no such address exists there: the base URL or the account id in it is wrong, whatever the model.
pub fn says_no_route(error: &UpstreamError) -> bool {
    // Cloudflare: 7000 is "no route for that URI", 7003 "could not route to".
    error.marks.iter().any(|mark| mark == "7000" || mark == "7003")
}

/// Whether a rate limit holds for the whole account and not for one model.
pub fn says_account(error: &UpstreamError) -> bool {
    [
        "free-models-per-",
        "per account",
        "account limit",
        "account-wide",
        "account has reached",
        "across all models",
    ]
    .iter()
    .any(|phrase| error.words.contains(phrase))
        || usage_period(error).is_some()
}

/// The span of a used-up quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    Day,
    /// A week, a month, a plan: longer than we can tell.
    Longer,
}

/// The used-up quota that an error names, and whether a quota id named it rather than a sentence.
pub fn quota_span(error: &UpstreamError) -> Option<(Span, bool)> {
    if error.marks.iter().any(|mark| mark.contains("perday")) {
        return Some((Span::Day, true));
    }
    if let Some(span) = usage_period(error) {
        return Some((span, false));
    }
    let words = error.words.as_str();
    let quota = ["quota", "limit", "allocation", "exhaust", "used up", "exceeded", "free-models"];
    if !quota.iter().any(|word| words.contains(word)) {
        return None;
    }
    let day = ["per day", "per-day", "daily", "(tpd)", "(rpd)", "requests/day", "tokens/day", "for today"];
    if day.iter().any(|word| words.contains(word)) {
        return Some((Span::Day, false));
    }
    let longer = ["per week", "weekly", "per month", "monthly"];
    longer.iter().any(|word| words.contains(word)).then_some((Span::Longer, false))
}

/// "You have reached your weekly usage limit": what a plan allows in all, whatever the model.
fn usage_period(error: &UpstreamError) -> Option<Span> {
    let words = error.words.as_str();
    let says = |phrase: &str| words.contains(phrase);
    if says("weekly usage") || says("monthly usage") || says("usage limit for your plan") {
        return Some(Span::Longer);
    }
    says("daily usage").then_some(Span::Day)
}

/// Whether a limit on tokens per minute (hour, day) is meant, rather than one on the size of a context.
pub fn says_token_rate(error: &UpstreamError) -> bool {
    ["tokens per minute", "tokens per hour", "tokens per day", "(tpm)", "(tph)", "(tpd)"]
        .iter()
        .any(|phrase| error.words.contains(phrase))
}

/// A limit that an error states, and how much it says was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stated {
    pub limit: u64,
    pub asked: Option<u64>,
}

impl Stated {
    /// Whether a request like this one can never be served.
    pub fn too_small(self) -> bool {
        self.asked.is_some_and(|asked| asked > self.limit)
    }
}

/// The rate limit in "Limit 6000, Used 4021, Requested 9000".
pub fn stated_limit(error: &UpstreamError) -> Option<Stated> {
    let limit = number_after(&error.words, &["limit"])?;
    Some(Stated { limit, asked: number_after(&error.words, &["requested"]) })
}

/// Windows below this are misread numbers.
const WINDOW_MIN_TOKENS: u64 = 256;

/// The context window in "maximum context length is 8192 tokens. However, you requested 9000 tokens", and in
/// "210000 tokens > 200000 maximum".
pub fn stated_window(error: &UpstreamError) -> Option<Stated> {
    const CUES: [&str; 6] = [
        "context length is",
        "context length of",
        "context window of",
        "context window is",
        "context size",
        "maximum prompt length is",
    ];
    let mut numbers: Vec<u64> = numbers(&error.words).filter(|n| *n >= WINDOW_MIN_TOKENS).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let asked = number_after(&error.words, &["requested", "resulted in"]).or(numbers.last().copied())?;
    let named = number_after(&error.words, &CUES);
    let below = || numbers.iter().rev().copied().find(|n| *n < asked);
    let limit = named.or_else(below).filter(|n| *n >= WINDOW_MIN_TOKENS)?;
    Some(Stated { limit, asked: Some(asked).filter(|asked| *asked > limit) })
}

/// Every whole number that stands by itself; `12,000` is one of them.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && !".,_".contains(c)).filter_map(whole_number)
}

fn whole_number(token: &str) -> Option<u64> {
    let token = token.trim_matches(['.', ',', '_']);
    if !token.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    token.chars().filter(|c| !matches!(c, ',' | '_')).collect::<String>().parse().ok()
}

/// The number right behind one of the cues; only punctuation and `of`, `is`, `to`, `only` may stand between.
fn number_after(text: &str, cues: &[&str]) -> Option<u64> {
    cues.iter().flat_map(|cue| text.match_indices(cue)).find_map(|(at, cue)| {
        let rest = text[at + cue.len()..].split_whitespace();
        rest.map(|token| token.trim_matches([':', '=', '(', ')', '`', '\'', '"', '>', '.', ',']))
            .find(|token| !["", "of", "is", "to", "only"].contains(token))
            .and_then(whole_number)
    })
}

/// Request fields that are never left out: without them it would be another request.
const KEPT_FIELDS: [&str; 15] = [
    "model",
    "messages",
    "input",
    "prompt",
    "stream",
    "tools",
    "functions",
    "response_format",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "dimensions",
    "image",
    "images",
];

/// What an upstream says when it does not know or want a field at all.
const REFUSALS: [&str; 16] = [
    "unsupported",
    "not supported",
    "not support",
    "unknown",
    "unrecognized",
    "unrecognised",
    "unexpected",
    "not permitted",
    "not allowed",
    "not implemented",
    "cannot find field",
    "extra inputs",
    "extra fields",
    "additional properties",
    "only supports single",
    "no longer accepted",
];

/// What it says when the value is wrong: that is for the client to mend.
const COMPLAINTS: [&str; 13] = [
    "must be",
    "should be",
    "should have",
    "out of range",
    "greater than",
    "less than",
    "at least",
    "at most",
    "between",
    "expected",
    "invalid value",
    "invalid type",
    "field required",
];

/// The request fields that an error refuses and that may be left out, most certain first. None when it complains
/// about a value.
pub fn refused_fields(error: &UpstreamError) -> Vec<String> {
    let words = error.words.as_str();
    let refuses = REFUSALS.iter().any(|phrase| words.contains(phrase));
    let complains = COMPLAINTS.iter().any(|phrase| words.contains(phrase));
    let mut fields = error.params.clone();
    if refuses {
        fields.extend(fields_in(words));
    } else if complains {
        return Vec::new();
    }
    let parallel = words.contains("parallel tool") || words.contains("single tool-call");
    if (parallel || words.contains("single tool call")) && refuses {
        fields.push("parallel_tool_calls".into());
    }
    let mut seen = Vec::new();
    fields.retain(|field| {
        let fresh = !KEPT_FIELDS.contains(&field.as_str()) && !seen.contains(field);
        seen.push(field.clone());
        fresh
    });
    fields.truncate(FIELDS_MAX);
    fields
}

/// Fields that one error may name.
const FIELDS_MAX: usize = 8;

/// Names of fields in a sentence: what stands in quotes, what looks like a name (`logit_bias`), and what follows
/// "parameter", "argument", "field" or "supplied".
fn fields_in(words: &str) -> Vec<String> {
    const CUES: [&str; 8] =
        ["parameter", "parameters", "argument", "arguments", "field", "fields", "supplied", "property"];
    let mut found = Vec::new();
    let mut cued = false;
    for token in words.split_whitespace() {
        let quoted = token.contains(['\'', '"', '`']);
        let bare = token.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = bare.split(['.', '[']).next().unwrap_or(bare);
        let is_name = (1..=40).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && name.starts_with(|c: char| c.is_ascii_alphabetic());
        if is_name && !CUES.contains(&name) && (quoted || cued || name.contains('_')) {
            found.push(name.to_owned());
        }
        // A list goes on behind a comma.
        cued = CUES.contains(&bare) || bare.ends_with("parameter(s") || (cued && token.ends_with([',', ':']));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::upstream_error::read;

    fn said(message: &str) -> UpstreamError {
        read(serde_json::json!({"error": {"message": message}}).to_string().as_bytes())
    }

    fn coded(code: &str) -> UpstreamError {
        read(serde_json::json!({"error": {"message": "m", "code": code}}).to_string().as_bytes())
    }

    #[test]
    fn codes_have_meanings() {
        let check = |code, expected| assert_eq!(code_meaning(&coded(code)), expected, "{code}");
        check("invalid_api_key", Some(ErrorWord::Auth));
        check("insufficient_quota", Some(ErrorWord::Credit));
        check("context_length_exceeded", Some(ErrorWord::ContextLength));
        check("model_decommissioned", Some(ErrorWord::ModelMissing));
        check("RESOURCE_EXHAUSTED", Some(ErrorWord::RateLimit));
        check("content_filter", Some(ErrorWord::Policy));
        check("overloaded_error", Some(ErrorWord::Unavailable));
        check("invalid_request_error", None);
    }

    #[test]
    fn phrases_have_meanings_and_digits_have_none() {
        let check = |text, expected| assert_eq!(phrase_meaning(&said(text)), expected, "{text}");
        check("API key not valid. Please pass a valid API key.", Some(ErrorWord::Auth));
        check("The model `m` does not exist", Some(ErrorWord::ModelMissing));
        check("This model's maximum context length is 8192 tokens", Some(ErrorWord::ContextLength));
        check("Your project is not allowed to access model X", Some(ErrorWord::Forbidden));
        check("Function id 'x': DEGRADED function cannot be invoked", Some(ErrorWord::Unavailable));
        check("Your credit balance is too low", Some(ErrorWord::Credit));
        check("took 4031ms", None);
        check("Limit 6000, Used 4021", None);
        check("queue 1404", None);
        check("temperature must be 1 for this model", None);
    }

    #[test]
    fn quotas_are_told_from_bursts() {
        let check = |text, expected| assert_eq!(quota_span(&said(text)), expected, "{text}");
        check("Rate limit exceeded: free-models-per-day", Some((Span::Day, false)));
        check("you have reached your weekly usage limit (ref: 0000)", Some((Span::Longer, false)));
        check("you have used up your daily free allocation of 10,000 neurons", Some((Span::Day, false)));
        check(
            "Rate limit reached on tokens per day (TPD): Limit 100000, Used 99999",
            Some((Span::Day, false)),
        );
        check("Rate limit reached on tokens per minute (TPM)", None);
        check("have a nice day", None);
        assert!(says_account(&said("Rate limit exceeded: free-models-per-min")));
        assert!(!says_account(&said("Rate limit reached for model `m` in organization `org_1` on TPM")));
    }

    #[test]
    fn stated_numbers_are_read() {
        let check = |text, limit: u64, asked| {
            assert_eq!(stated_limit(&said(text)), Some(Stated { limit, asked }), "{text}");
        };
        check("on tokens per minute (TPM): Limit 9000, Used 8100, Requested 2200.", 9_000, Some(2_200));
        check("Limit: 6,000, requested 9000", 6_000, Some(9_000));
        check("rate limit of 30 requests per minute", 30, None);
        assert_eq!(stated_limit(&said("no limit here")), None);
        let window = |text, limit: u64, asked| {
            assert_eq!(stated_window(&said(text)), Some(Stated { limit, asked }), "{text}");
        };
        window(
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8900 in the messages, 100 in the completion).",
            8_192,
            Some(9_000),
        );
        window("prompt is too long: 210000 tokens > 200000 maximum", 200_000, Some(210_000));
        window(
            "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
            32_768,
            Some(40_000),
        );
        window(
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            1_048_576,
            Some(1_200_000),
        );
        window("the request exceeds the available context size (4096 tokens)", 4_096, None);
        assert_eq!(stated_window(&said("prompt is too long")), None);
    }

    #[test]
    fn refused_fields_are_found_where_they_stand() {
        let check = |body: &str, expected: &[&str]| {
            assert_eq!(refused_fields(&read(body.as_bytes())), expected, "{body}");
        };
        check(r#"{"error":{"message":"unsupported parameters: store","param":"store"}}"#, &["store"]);
        check(r#"{"error":{"message":"Unsupported parameters: store, metadata"}}"#, &["store", "metadata"]);
        check(r#"{"error":{"message":"Unknown name \"logit_bias\": Cannot find field."}}"#, &["logit_bias"]);
        check(
            r#"{"message":"{\"detail\":[{\"type\":\"extra_forbidden\",\"loc\":[\"body\",\"logit_bias\"],\"msg\":\"Extra inputs are not permitted\"}]}"}"#,
            &["logit_bias"],
        );
        check(r#"{"error":{"message":"Unrecognized request argument supplied: top_k"}}"#, &["top_k"]);
        check(r#"{"error":{"message":"property 'seed' is unsupported"}}"#, &["seed"]);
        check(r#"{"error":{"message":"'stream_options' is not supported"}}"#, &["stream_options"]);
        check(r#"{"error":{"message":"bad","param":"store"}}"#, &["store"]);
        check(
            r#"{"error":{"message":"this model only supports single tool-calls at once"}}"#,
            &["parallel_tool_calls"],
        );
        // What is never left out, and what the client has to mend.
        check(r#"{"error":{"message":"unsupported parameter","param":"tools"}}"#, &[]);
        check(r#"{"error":{"message":"'messages' and 'response_format' are not supported"}}"#, &[]);
        check(r#"{"error":{"message":"unsupported parameter: max_tokens","param":"max_tokens"}}"#, &[]);
        check(r#"{"error":{"message":"temperature must be 1 for this model","param":"temperature"}}"#, &[]);
        check(r#"{"detail":[{"loc":["body","top_p"],"msg":"Input should be a valid number"}]}"#, &[]);
        check(r#"{"error":{"message":"image is too big"}}"#, &[]);
    }
}
