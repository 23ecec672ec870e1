//! What the next request of a kind would meet: whom it would ask in which order, and why not the others. It is the very
//! decision of a request, looked at without making it: nothing is reserved and no round is turned.
use std::sync::Arc;

use serde_json::{Value, json};

use super::failover::Failover;
use super::fit::Fit;
use super::live::Live;
use super::manner::Manner;
use super::plan::{Ask, Blocked, Order, View};
use super::speed::Answer;
use super::terminal::{is_unmatched, reason};
use super::verdict::Policy;
use crate::base::clock::Now;
use crate::catalog::names::{Kind, Names, Resolution};
use crate::catalog::provider::Caps;
use crate::catalog::settings::{Settings, Strategy};
use crate::catalog::{Catalog, ModelIx};
use crate::context::budget::Shrink;

/// A request as far as routing has to know it.
#[derive(Clone, Debug)]
pub struct Question {
    pub model: String,
    pub kind: Kind,
    /// Beyond the kind itself.
    pub caps: Caps,
    /// The prompt.
    pub tokens: u64,
    /// The client's own limit on the answer.
    pub max_output: Option<u64>,
    pub strategy: Option<Strategy>,
    pub answer: Answer,
}

/// The prompt of a question that names no size: a short exchange.
pub const TOKENS_USUAL: u64 = 500;

impl Question {
    /// What is asked for by a model string alone.
    pub fn of(model: &str) -> Question {
        Question {
            model: model.into(),
            kind: Kind::Chat,
            caps: Caps::default(),
            tokens: TOKENS_USUAL,
            max_output: None,
            strategy: None,
            answer: Answer::Whole,
        }
    }

    /// As a conversation whose older turns may go, when conversations are made to fit.
    fn ask(&self, settings: &Settings) -> Ask {
        let context = &settings.context;
        let shrinks = self.kind == Kind::Chat && context.enabled;
        let shrink = shrinks.then_some(Shrink {
            lean_tokens: self.tokens,
            core_tokens: 0,
            reserve_output: context.reserve_output,
            prefer_fit: context.prefer_fit,
        });
        let max_output = if self.kind == Kind::Embed { Some(0) } else { self.max_output };
        let (kind, caps, tokens, answer) = (self.kind, self.caps, self.tokens, self.answer);
        let (prompt_tokens, window_tokens) = (tokens, tokens);
        Ask { kind, caps, prompt_tokens, window_tokens, shrink, max_output, choices: 1, answer }
    }
}

/// Somebody who would be asked.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub at: ModelIx,
    /// Place in the provider's key pool.
    pub key: usize,
    /// The used fraction of its limits.
    pub fill: f64,
    /// Milliseconds that its answers take of late; `None` while it is untried.
    pub expected_ms: Option<f64>,
    /// Whether the conversation has to be made shorter for it.
    pub lossy: bool,
}

/// What a request would meet.
#[derive(Debug)]
pub struct Outlook {
    pub resolution: Resolution,
    /// The one that decides.
    pub strategy: Strategy,
    pub ask: Ask,
    /// In the order in which they would be asked.
    pub candidates: Vec<Candidate>,
    pub blocked: Vec<Blocked>,
}

/// A question whose model string is understood; what is left needs live state.
pub struct Understood {
    resolution: Resolution,
    ask: Ask,
    order: Arc<Order>,
    usual: Strategy,
    asked: Option<Strategy>,
    policy: Policy,
}

impl Question {
    /// Finds out what is asked for.
    pub fn understood(&self, catalog: &Catalog, names: &Names, settings: &Settings) -> Understood {
        let resolution = names.resolve(catalog, settings, &self.model, self.kind);
        let ask = self.ask(settings);
        let order = Arc::new(Order::new(catalog, &resolution, ask.needed()));
        let (usual, asked) = (settings.strategy, self.strategy);
        Understood { resolution, ask, order, usual, asked, policy: Policy::new(settings) }
    }
}

impl Understood {
    /// Looks ahead.
    pub fn outlook(self, catalog: &Catalog, live: &Live, now: Now) -> Outlook {
        let Understood { resolution, ask, order, usual, asked, policy } = self;
        let manner = Manner::of(&resolution, usual, asked);
        let failover = Failover::foreseen(order, ask, policy, &manner, live, now);
        let (candidates, blocked) = failover.foresee(catalog, live, now);
        Outlook { strategy: failover.strategy(), resolution, ask, candidates, blocked }
    }
}

impl View<'_> {
    /// Everybody of an order who can be asked now, in this order of places, as [`View::first`] goes through them.
    pub(super) fn all(&self, order: &Order, places: impl Iterator<Item = usize>) -> Vec<Candidate> {
        let candidate = |place: usize| {
            let ready = order.ready.get(place)?;
            let key = self.key_for(ready.at).ok()?;
            let (answer, provider) = (self.ask.answer, self.catalog.provider(ready.at));
            let speed = self.live.speeds.of_provider(provider.slot, answer, self.now);
            let ms = speed.of_model(ready.slot, answer, self.now);
            Some(Candidate {
                at: ready.at,
                key,
                fill: self.fill(ready.at),
                expected_ms: (ms > 0.0).then_some(ms),
                lossy: self.fit(ready.at) == Fit::Lossy,
            })
        };
        let mut all: Vec<Candidate> = places.filter_map(candidate).collect();
        if self.whole_first() {
            all.sort_by_key(|candidate| candidate.lossy);
        }
        all
    }
}

impl Outlook {
    /// Whether the model string means nothing here.
    pub fn is_unmatched(&self) -> bool {
        is_unmatched(&self.resolution)
    }

    /// As the API and the terminal have it.
    pub fn to_json(&self, model: &str, catalog: &Catalog) -> Value {
        let candidates: Vec<Value> = self
            .candidates
            .iter()
            .enumerate()
            .map(|(at, one)| self.candidate_json(at + 1, one, catalog))
            .collect();
        let blocked: Vec<Value> = self.blocked.iter().map(|one| self.blocked_json(one, catalog)).collect();
        json!({
            "model": model,
            "route": self.resolution.route,
            "strategy": if self.resolution.keep_order { "as listed" } else { self.strategy.name() },
            "needs": self.ask.needed().names().collect::<Vec<_>>(),
            "tokens": self.ask.prompt_tokens,
            "candidates": candidates,
            "blocked": blocked,
        })
    }

    /// What the ranking goes by: lower comes first. The score of an order that stands is the place itself.
    fn score(&self, place: usize, candidate: &Candidate) -> f64 {
        match self.strategy {
            Strategy::Priority | Strategy::RoundRobin => place as f64,
            Strategy::LeastUsed => candidate.fill,
            Strategy::Fastest => candidate.expected_ms.unwrap_or(0.0),
        }
    }

    fn candidate_json(&self, place: usize, candidate: &Candidate, catalog: &Catalog) -> Value {
        let (provider, model) = (catalog.provider(candidate.at), catalog.model(candidate.at));
        let thousandth = |number: f64| (number * 1_000.0).round() / 1_000.0;
        json!({
            "place": place,
            "provider": &*provider.id,
            "model": &*model.id,
            "ref": &*model.reference,
            "key": candidate.key + 1,
            "keys": provider.keys.len(),
            "score": thousandth(self.score(place, candidate)),
            "priority": [provider.priority, model.priority],
            "used": thousandth(candidate.fill),
            "expectedMs": candidate.expected_ms.map(f64::round),
            "context": model.context,
            "fits": if candidate.lossy { "shortened" } else { "whole" },
            "lastResort": provider.last_resort,
        })
    }

    fn blocked_json(&self, blocked: &Blocked, catalog: &Catalog) -> Value {
        let (provider, model) = (catalog.provider(blocked.at), catalog.model(blocked.at));
        json!({
            "provider": &*provider.id,
            "model": &*model.id,
            "ref": &*model.reference,
            "reason": reason(blocked, &self.ask, catalog),
            "retryAfterMs": blocked.retry_in_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::failover::Next;
    use super::*;
    use crate::catalog::fixture;
    use crate::quota::{Cause, Scope, Term};

    const NOW: Now = Now::at(10 * 3_600_000, 1_796_104_800_000);

    fn catalog() -> Catalog {
        let model = |id: &str, context: u64| json!({"id": id, "context": context, "caps": ["chat", "tools"]});
        fixture::catalog(&[
            json!({"id": "near", "priority": 1, "models": [model("small", 2_000), model("large", 100_000)]}),
            json!({"id": "far", "priority": 2, "models": [model("other", 50_000)]}),
            json!({"id": "off", "priority": 3, "enabled": false, "models": [model("gone", 50_000)]}),
        ])
    }

    fn ahead(question: &Question, catalog: &Catalog, live: &Live) -> (Vec<String>, Vec<String>) {
        let understood = question.understood(catalog, &Names::new(catalog), &Settings::default());
        let found = understood.outlook(catalog, live, NOW).to_json("x", catalog);
        let refs = |list: &str| {
            let all = found[list].as_array().expect("a list").iter();
            all.map(|one| one["ref"].as_str().expect("a reference").to_owned()).collect()
        };
        (refs("candidates"), refs("blocked"))
    }

    #[test]
    fn those_who_take_it_whole_come_first_and_the_rest_has_a_reason() {
        let (catalog, mut live) = (catalog(), Live::new());
        let small = Question::of("auto");
        let (candidates, blocked) = ahead(&small, &catalog, &live);
        assert_eq!(candidates, ["near/large", "near/small", "far/other"]);
        assert_eq!(blocked, ["off/gone"]);
        let long = Question { tokens: 60_000, ..small.clone() };
        assert_eq!(ahead(&long, &catalog, &live).0, ["near/large", "near/small", "far/other"]);
        let provider = catalog.providers[0].slot;
        let term = Term::Named { ms: 60_000 };
        live.benches.put(Scope::Provider(provider), Cause::Unavailable, term, NOW.mono_ms, NOW);
        let (candidates, blocked) = ahead(&small, &catalog, &live);
        assert_eq!((candidates, blocked.len()), (vec!["far/other".to_owned()], 3));
        let picture = Question { caps: Caps::VISION, ..small };
        let (candidates, blocked) = ahead(&picture, &catalog, &live);
        assert_eq!((candidates.len(), blocked.len()), (0, 4));
    }

    #[test]
    fn what_is_foretold_is_what_a_request_does() {
        let (catalog, mut live) = (catalog(), Live::new());
        let (names, settings) = (Names::new(&catalog), Settings::default());
        for strategy in Strategy::NAMES.map(|(_, strategy)| strategy) {
            for _ in 0..4 {
                let question = Question { strategy: Some(strategy), ..Question::of("auto") };
                let look = || question.understood(&catalog, &names, &settings).outlook(&catalog, &live, NOW);
                let (told, again) = (look(), look());
                let first = told.candidates.first().map(|one| (one.at, one.key));
                assert_eq!(
                    first,
                    again.candidates.first().map(|one| (one.at, one.key)),
                    "a look changes nothing"
                );
                let order = Arc::new(Order::new(&catalog, &told.resolution, told.ask.needed()));
                let manner = Manner::of(&told.resolution, strategy, Some(strategy));
                let policy = Policy::new(&settings);
                let mut failover = Failover::new(order, told.ask, policy, &manner, &mut live, NOW);
                let Next::Try(attempt) = failover.next(&catalog, &mut live, NOW) else {
                    panic!("somebody can")
                };
                assert_eq!(Some((attempt.at, attempt.key)), first, "{}", strategy.name());
                live.ledger.release(attempt.reservation);
            }
        }
    }
}
