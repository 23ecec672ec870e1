//! `GET /api/route?model=auto`: whom the next request for a model would ask, in which order, and why not the others.
use super::answer::Answer;
use super::conn::Admission;
use super::query::Query;
use super::routes::Visit;
use super::views::respond;
use crate::base::clock;
use crate::catalog::names::Kind;
use crate::catalog::provider::Caps;
use crate::catalog::settings::Strategy;
use crate::route::outlook::Question;
use crate::route::speed;
use crate::route::terminal;
use crate::wire::error::ApiError;

/// Largest prompt that can be asked about, in tokens.
const TOKENS_MAX: i64 = 1_000_000_000;

/// `GET /api/route`.
pub fn show(visit: Visit<'_>) -> Admission {
    let question = match read(visit.head.query()) {
        Ok(question) => question,
        Err(error) => return visit.answer(Answer::error(&error)),
    };
    let snapshot = visit.gateway.snapshot();
    let understood = question.understood(&snapshot.catalog, &snapshot.names, &snapshot.settings);
    let outlook = understood.outlook(&snapshot.catalog, &visit.gateway.live.lock(), clock::now());
    if outlook.is_unmatched() {
        let asked = snapshot.redactor.redact(&question.model);
        return visit.answer(Answer::error(&terminal::unmatched(&outlook.resolution, &asked)));
    }
    respond(visit, 200, &outlook.to_json(&question.model, &snapshot.catalog))
}

/// The question that a query puts.
pub fn read(query: &str) -> Result<Question, ApiError> {
    let known = ["model", "needs", "tokens", "maxTokens", "strategy", "stream"];
    let query = Query::read(query, &known)?;
    let mut question = Question::of(query.text("model").unwrap_or("auto"));
    let needs = query.text("needs").unwrap_or_default();
    for need in needs.split(',').map(str::trim).filter(|need| !need.is_empty()) {
        let cap = Caps::by_name(need).ok_or_else(|| {
            let all: Vec<&str> = Caps::NAMES.iter().map(|(name, _)| *name).collect();
            ApiError::bad_field("invalid_body", "needs", format!("needs must be of {}", all.join(", ")))
        })?;
        if cap == Caps::EMBED {
            question.kind = Kind::Embed;
        } else {
            question.caps = question.caps.with(cap);
        }
    }
    let tokens = |name| query.whole(name, 0..=TOKENS_MAX).map(|tokens| tokens.map(i64::unsigned_abs));
    question.tokens = tokens("tokens")?.unwrap_or(question.tokens);
    question.max_output = tokens("maxTokens")?;
    question.strategy = query.word("strategy", &Strategy::NAMES)?;
    if query.word("stream", &[("1", true), ("true", true), ("0", false), ("false", false)])? == Some(true) {
        question.answer = speed::Answer::Stream;
    }
    Ok(question)
}
