//! A conversation on its way to one model: made to fit it where it does not, with a summary where that helps, and
//! summarised ahead of the turn that will need it.
use std::sync::Arc;
use std::time::Duration;

use super::notes::{self, Asker};
use super::route_info::ContextNote;
use super::turn::{Haste, Operation, Turn};
use crate::base::clock;
use crate::catalog::ModelIx;
use crate::catalog::load::Snapshot;
use crate::catalog::names::Kind;
use crate::catalog::provider::Model;
use crate::context::budget::Budget;
use crate::context::conversation::Conversation;
use crate::context::refit::{self, Compaction, Fitted, Room, Rung, Step};
use crate::route::failover::Attempt;
use crate::upstream::cut::Cut;
use crate::wire::body::Body;
use crate::wire::chat::ChatFacts;

/// The longest that a turn waits for a summary.
const SUMMARY_MAX: Duration = Duration::from_secs(30);
/// The longest that a summary may take that nobody waits for.
const AHEAD_MAX: Duration = Duration::from_secs(120);

/// What is sent instead of what came.
#[derive(Default)]
pub struct Fitting {
    /// The value of `messages`, where it differs.
    pub messages: Option<Vec<u8>>,
    /// Tokens that the window leaves for the answer, as far as known.
    pub answer_room: Option<u64>,
}

/// A turn, as far as it matters to its conversation.
pub struct Fitter<'a> {
    pub asker: Asker<'a>,
    pub turn: &'a Turn,
    pub body: &'a Body,
    /// The whole prompt in tokens of our count.
    pub prompt_tokens: u64,
    pub cut: &'a Arc<Cut>,
}

impl Fitter<'_> {
    /// Makes the conversation fit the model of `attempt`, and says in the headers how. Fails with the tokens that
    /// what has to stay of it needs when that is more than the model takes.
    pub fn fit(&self, attempt: &mut Attempt, model: &Model) -> Result<Fitting, u64> {
        let mut fitting = Fitting::default();
        if let Operation::Chat(facts) = self.turn.operation() {
            let mut note = None;
            if self.asker.snapshot.settings.context.enabled {
                let fitted = match attempt.budget {
                    Some(budget) => self.refitted(budget, attempt)?,
                    None => None,
                };
                note = Some(self.note_of(facts, fitted.as_ref()));
                if fitted.as_ref().is_some_and(|fitted| fitted.rung >= Rung::Compact) {
                    // Such an answer is not one to the question as it was asked.
                    self.turn.spoil();
                }
                if let Some(fitted) = fitted.filter(|fitted| fitted.rung != Rung::Passthrough) {
                    attempt.prompt_tokens = fitted.tokens;
                    fitting.messages = Some(fitted.messages);
                }
            }
            self.turn.note(|info| info.context = note);
        }
        let prompt_tokens = (attempt.prompt_tokens as f64 * attempt.ratio).round() as u64;
        self.turn.set_prompt_tokens(prompt_tokens);
        fitting.answer_room = model.context.map(|context| context.saturating_sub(prompt_tokens).max(1));
        Ok(fitting)
    }

    fn note_of(&self, facts: &ChatFacts, fitted: Option<&Fitted>) -> ContextNote {
        let before = self.prompt_tokens;
        match fitted {
            Some(fitted) => ContextNote {
                rung: fitted.rung,
                before,
                after: fitted.tokens,
                kept: fitted.kept,
                dropped: fitted.dropped,
                summaries: fitted.summaries,
            },
            None => ContextNote {
                rung: Rung::Passthrough,
                before,
                after: before,
                kept: facts.messages,
                dropped: 0,
                summaries: 0,
            },
        }
    }

    /// The conversation within `budget`; its tokens are those of the whole request.
    fn refitted(&self, budget: Budget, attempt: &mut Attempt) -> Result<Option<Fitted>, u64> {
        // What was checked when it came can be read again.
        let Some(talk) = self.body.raw("messages").and_then(|raw| Conversation::read(raw).ok()) else {
            return Ok(None);
        };
        let (room, beside) = self.room(&talk, budget);
        let known = &self.asker.gateway.notes;
        let step = match refit::refit(&talk, &room, Compaction::On, |keys| known.longest(keys)) {
            Step::NeedsSummary(need) => {
                let left_ms = attempt.deadline_ms.saturating_sub(clock::now().mono_ms);
                // Half of what is left is for the call that the summary is made for.
                let wait = SUMMARY_MAX.min(Duration::from_millis(left_ms / 2));
                let written = notes::written(&self.asker, &need, Haste::Usual, wait, self.cut);
                // How long that took says nothing about the model that is called now.
                attempt.began = clock::now();
                refit::finish(&talk, &room, &need, written.as_deref())
            }
            step => step,
        };
        match step {
            Step::Fitted(fitted) => Ok(Some(Fitted { tokens: fitted.tokens + beside, ..fitted })),
            Step::TooLarge { needed } => Err(needed + beside),
            Step::NeedsSummary(_) => Ok(None),
        }
    }

    /// What the budget leaves for messages, and what the fields beside them take.
    fn room(&self, talk: &Conversation<'_>, budget: Budget) -> (Room, u64) {
        let beside = self.prompt_tokens.saturating_sub(talk.weight().div_ceil(1_000));
        let max_turns = self.asker.snapshot.settings.context.max_turns;
        let (target, hard) = (budget.target.saturating_sub(beside), budget.hard.saturating_sub(beside));
        (Room { target, hard, max_turns, writer: self.writer_window() }, beside)
    }

    /// The widest window among the models that may write summaries, in tokens of our count.
    fn writer_window(&self) -> u64 {
        let Snapshot { names, catalog, settings, .. } = self.asker.snapshot;
        let writers = names.resolve(catalog, settings, &settings.context.compact_model, Kind::Chat).models;
        let able = |at: &ModelIx| {
            let provider = catalog.provider(*at);
            provider.enabled && provider.configured() && catalog.model(*at).enabled
        };
        let live = self.asker.gateway.live.lock();
        let window = |at: ModelIx| {
            let model = catalog.model(at);
            let ours = |context| (context as f64 / live.ratios.of(model.slot).max(1.0)) as u64;
            model.context.map_or(u64::MAX, ours)
        };
        // With none of them there is no summary, whatever its request may hold.
        writers.into_iter().filter(able).map(window).max().unwrap_or(u64::MAX)
    }

    /// After an answer that its client has got: has the summary made that the next turn will need, if this conversation nearly fills the window
    /// of the model that served it. Nobody waits for that.
    pub fn look_ahead(&self, model: &Model, budget: impl FnOnce() -> Option<Budget>) {
        let settings = &self.asker.snapshot.settings.context;
        let (Operation::Chat(facts), Some(context)) = (self.turn.operation(), model.context) else { return };
        // Cheap, and true of nearly every turn: far from full, however tokens are counted.
        let surely_below = (self.prompt_tokens as f64) * 6.0 < settings.auto_compact_at * context as f64;
        // Whoever has spoken once may speak again; a single question seldom does.
        if !settings.enabled || surely_below || !facts.has_assistant {
            return;
        }
        let Some(budget) = budget() else { return };
        let Some(talk) = self.body.raw("messages").and_then(|raw| Conversation::read(raw).ok()) else {
            return;
        };
        let (room, beside) = self.room(&talk, budget);
        let full = (budget.target as f64 * settings.auto_compact_at) as u64;
        let known = &self.asker.gateway.notes;
        let full = full.saturating_sub(beside);
        if let Some(need) = refit::ahead(&talk, &room, full, |keys| known.longest(keys)) {
            notes::write_ahead(&self.asker, need, AHEAD_MAX);
        }
    }
}
