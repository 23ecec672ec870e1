//! Which models take a request as it is, which only after part of the conversation is gone, and which cannot take what
//! has to stay of it.
use super::plan::View;
use crate::catalog::ModelIx;
use crate::context::budget::{Budget, Window};
use crate::context::ratios::RATIO_MAX;
use crate::quota::Want;

/// How a model takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// As it is, or without noise.
    Whole,
    /// Only when part of it is left out.
    Lossy,
    /// Not even what has to stay.
    TooSmall { window: u64, room: u64 },
}

/// A model that found this request too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooLong {
    pub at: ModelIx,
    /// Its window, as far as known.
    pub window: Option<u64>,
    /// It named no number, and on paper the request is far below its window: perhaps not the tokens are too many but the
    /// bytes, or its window is smaller than its file has it. That says little of anybody else.
    pub doubtful: bool,
    /// What it may be sent now, in tokens of our count.
    pub limit: u64,
}

impl View<'_> {
    /// Whether models that take the request whole come before the others, whatever the strategy says. After one that
    /// turned out to be too small, larger ones come first.
    pub fn whole_first(&self) -> bool {
        self.ask.shrink.is_some_and(|shrink| shrink.prefer_fit || !self.too_long.is_empty())
    }

    /// How a model takes this request.
    pub fn fit(&self, at: ModelIx) -> Fit {
        let Some(budget) = self.budget(at) else { return Fit::Whole };
        let prompt = self.ask.window_tokens;
        let window = self.known_window(at).unwrap_or(budget.hard);
        // What this request was refused for is a guess; what is known of the window says more.
        let too_small =
            Fit::TooSmall { window, room: if self.too_long.is_empty() { budget.hard } else { window } };
        match self.ask.shrink {
            _ if prompt <= budget.target => Fit::Whole,
            None => too_small,
            Some(shrink) if shrink.core_tokens > budget.hard => too_small,
            Some(shrink) if shrink.lean_tokens <= budget.target => Fit::Whole,
            Some(_) => Fit::Lossy,
        }
    }

    /// What a model may be sent; `None` while there is no need to look closely.
    pub fn budget(&self, at: ModelIx) -> Option<Budget> {
        let model = self.catalog.model(at);
        let learned = self.live.lessons.window(model.slot, self.now);
        if learned.is_none()
            && self.too_long.is_empty()
            && model.context.is_none_or(|window| self.far_below(window))
        {
            return None;
        }
        let known = self.known_window(at);
        let budget = match (self.ask.shrink, model.context) {
            (_, None) => Budget::UNBOUNDED,
            (None, Some(context)) => Budget { target: context, hard: context },
            (Some(shrink), Some(context)) => {
                let window =
                    Window { context, max_output: model.max_output, ratio: self.live.ratios.of(model.slot) };
                window.budget(self.ask.max_output, shrink.reserve_output)
            }
        };
        let limits = self
            .too_long
            .iter()
            .filter(|one| one.at == at || (!one.doubtful && no_larger(known, one.window)));
        let limit = limits.map(|one| one.limit).chain(learned).min();
        Some(limit.map_or(budget, |limit| budget.at_most(limit)))
    }

    /// What it means for this request that a model refused `sent` tokens of it as too long.
    pub fn refused_as_too_long(&self, at: ModelIx, sent: u64) -> TooLong {
        let learned = self.live.lessons.window(self.catalog.model(at).slot, self.now);
        let window = self.known_window(at);
        let doubtful = learned.is_none() && window.is_some_and(|window| self.sure_to_fit(window));
        let limit = learned.filter(|learned| *learned < sent).unwrap_or(sent / 10 * 7);
        TooLong { at, window, doubtful, limit }
    }

    /// Whether a model takes this request on paper, while another one whose window is no smaller refused it as too long.
    pub fn in_doubt(&self, at: ModelIx) -> bool {
        let no_larger = |window| no_larger(self.known_window(at), window);
        self.too_long.iter().any(|one| one.doubtful && one.at != at && no_larger(one.window))
    }

    /// A model's window by its file or by what was learned, whichever is smaller.
    pub fn known_window(&self, at: ModelIx) -> Option<u64> {
        let model = self.catalog.model(at);
        model.context.into_iter().chain(self.live.lessons.window(model.slot, self.now)).min()
    }

    /// Whether a request is so small that there is no need to look closely at a window.
    fn far_below(&self, window: u64) -> bool {
        if self.ask.shrink.is_some() { self.sure_to_fit(window) } else { self.ask.window_tokens <= window }
    }

    /// Whether a request is so small that a window takes it however its tokens are counted.
    pub fn sure_to_fit(&self, window: u64) -> bool {
        let prompt = (self.ask.window_tokens as f64 * RATIO_MAX) as u64;
        let reserve = self.ask.shrink.map_or(0, |shrink| shrink.reserve_output);
        let answer = self.ask.max_output.unwrap_or(reserve);
        prompt.saturating_add(answer.min(window / 2)) <= window
    }

    /// Tokens of our count that a model would be sent, at most.
    pub fn sent_tokens(&self, at: ModelIx) -> u64 {
        let prompt = self.ask.prompt_tokens;
        match (self.budget(at), self.ask.shrink) {
            (Some(budget), Some(shrink)) => prompt.min(budget.target.max(shrink.core_tokens)),
            _ => prompt,
        }
    }

    /// What a call of this model needs of its limits, in the model's own tokens.
    pub fn want(&self, at: ModelIx) -> Want {
        let (provider, model) = (self.catalog.provider(at), self.catalog.model(at));
        let prompt = (self.sent_tokens(at) as f64 * self.live.ratios.of(model.slot)).round() as u64;
        Want::of_call(&self.live.ledger, provider, model, prompt, self.ask.max_output, self.ask.choices)
    }
}

fn no_larger(known: Option<u64>, window: Option<u64>) -> bool {
    known.zip(window).is_some_and(|(known, window)| known <= window)
}
