//! What every answer of an inference route says about itself in its `x-freeway-*` headers.
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::base::text::header_value;
use crate::context::refit::Rung;
use crate::store::RowCache;

/// Hops shown in `x-freeway-trail`.
const TRAIL_MAX: usize = 10;

/// How a request was understood and who served it, as far as known when the headers leave.
#[derive(Clone, Debug, Default)]
pub struct RouteInfo {
    /// How the model string was understood, such as `alias:fast`.
    pub resolution: Arc<str>,
    pub provider: Option<Arc<str>>,
    /// The upstream's id of the model.
    pub model: Option<Arc<str>>,
    /// Upstream calls made, this one included.
    pub attempts: u32,
    /// Since the request was admitted.
    pub elapsed_ms: u64,
    /// Failed hops, each `provider/model:cause`.
    pub trail: Vec<String>,
    /// The stored conversation that the request belongs to.
    pub session: Option<Arc<str>>,
    /// Whether the token counts of a whole answer were guessed.
    pub usage_estimated: bool,
    /// Where the answer came from, when nobody was called for it.
    pub cache: Option<RowCache>,
    /// How alike the question is whose answer this is, when it was asked in other words.
    pub score: Option<f32>,
    /// How the conversation was made to fit.
    pub context: Option<ContextNote>,
}

/// What became of a conversation on its way to the model, in tokens of our count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextNote {
    pub rung: Rung,
    pub before: u64,
    pub after: u64,
    /// Messages of the client.
    pub kept: usize,
    pub dropped: usize,
    pub summaries: usize,
}

impl fmt::Display for ContextNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ContextNote { rung, before, after, kept, dropped, summaries } = self;
        write!(f, "refit={} tokens={before}->{after} kept={kept}", rung.name())?;
        if *dropped > 0 {
            write!(f, " dropped={dropped}")?;
        }
        if *summaries > 0 {
            write!(f, " summaries={summaries}")?;
        }
        Ok(())
    }
}

impl RouteInfo {
    /// The headers, values safe for the wire.
    pub fn headers(&self) -> Vec<(&'static str, Cow<'static, str>)> {
        let mut headers = Vec::with_capacity(8);
        headers.push(("x-freeway-attempts", Cow::Owned(self.attempts.to_string())));
        headers.push(("x-freeway-ms", Cow::Owned(self.elapsed_ms.to_string())));
        let mut put = |name, value: &str| headers.push((name, Cow::Owned(header_value(value).into_owned())));
        put("x-freeway-route", &self.resolution);
        if let Some(provider) = &self.provider {
            put("x-freeway-provider", provider);
        }
        if let Some(model) = &self.model {
            put("x-freeway-model", model);
        }
        if !self.trail.is_empty() {
            let last = self.trail.len().saturating_sub(TRAIL_MAX);
            put("x-freeway-trail", &self.trail[last..].join(", "));
        }
        if let Some(session) = &self.session {
            put("x-freeway-session", session);
        }
        if let Some(cache) = self.cache {
            headers.push(("x-freeway-cache", Cow::Borrowed(cache.name())));
        }
        if let Some(score) = self.score {
            headers.push(("x-freeway-cache-score", Cow::Owned(format!("{score:.4}"))));
        }
        if let Some(context) = &self.context {
            // Nothing in it has to be made safe.
            headers.push(("x-freeway-context", Cow::Owned(context.to_string())));
        }
        if self.usage_estimated {
            headers.push(("x-freeway-usage", Cow::Borrowed("estimated")));
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_safe_and_bounded() {
        let info = RouteInfo {
            resolution: "fuzzy:模\r\nx: y".into(),
            provider: Some("alpha".into()),
            trail: (0..12).map(|hop| format!("p/m{hop}:rate_limit")).collect(),
            ..RouteInfo::default()
        };
        let headers = info.headers();
        let get = |name| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value);
        assert_eq!(get("x-freeway-route"), Some("fuzzy:%E6%A8%A1%0D%0Ax: y"));
        assert!(get("x-freeway-trail").is_some_and(|trail| !trail.contains("m1:") && trail.contains("m11:")));
        assert_eq!(get("x-freeway-usage"), None);
        assert!(headers.iter().all(|(_, value)| value.len() <= 256));
    }
}
