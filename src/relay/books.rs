//! The books of one attempt: its reservation, and what failover and the log are told of it.
//!
//! They are closed before the last byte of an answer leaves, so that whoever asks right after it finds the counters
//! settled and the turn recorded.
use super::gateway::Gateway;
use super::turn::Last;
use crate::base::clock;
use crate::catalog::Catalog;
use crate::quota::Spent;
use crate::route::failover::{Attempt, Failover, Report};
use crate::route::outcome::Outcome;
use crate::upstream::cut::Cut;
use crate::wire::usage::Usage;

pub struct Books<'a> {
    pub gateway: &'a Gateway,
    pub catalog: &'a Catalog,
    pub failover: &'a mut Failover,
    /// Tells whether the client has left.
    pub cut: &'a Cut,
    /// Taken when the books are closed.
    pub attempt: Option<Attempt>,
    /// Whether the request has a top-level field of that name.
    pub has_field: &'a dyn Fn(&str) -> bool,
    /// Records a turn that is about to be served.
    pub on_served: &'a dyn Fn(&Failover, Usage, &Last<'_>),
}

impl Books<'_> {
    /// The first part of the answer is there.
    pub fn committed(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            self.failover.committed(self.catalog, &mut self.gateway.live.lock(), attempt, clock::now());
        }
    }

    /// A stream has grown to so many tokens of output.
    pub fn top_up(&mut self, tokens: u64) {
        if let Some(attempt) = &mut self.attempt {
            self.gateway.live.lock().ledger.top_up(&mut attempt.reservation, tokens);
        }
    }

    /// The answer is whole, and about to leave. False when nobody is there to take it, and then nothing is booked.
    #[must_use = "an answer without a client is not sent"]
    pub fn served(&mut self, outcome: Outcome, usage: Usage, last: Last<'_>) -> bool {
        if self.cut.is_cut() {
            return false;
        }
        self.close(
            outcome,
            Spent { prompt_tokens: usage.prompt, output_tokens: usage.completion, ..Spent::default() },
            (!usage.estimated).then_some(usage.prompt),
        );
        (self.on_served)(self.failover, usage, &last);
        true
    }

    /// The attempt has ended. Does nothing when the books are closed already.
    /// `counted_prompt` is what the upstream itself counted.
    pub fn close(&mut self, outcome: Outcome, spent: Spent, counted_prompt: Option<u64>) {
        if let Some(attempt) = self.attempt.take() {
            let report = Report { attempt, outcome, spent, has_field: self.has_field, counted_prompt };
            self.failover.report(self.catalog, &mut self.gateway.live.lock(), report, clock::now());
        }
    }
}

impl Drop for Books<'_> {
    /// Books that were not closed are those of a call on which our own code has failed: it stays counted, and holds nothing
    /// any more.
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            let mut live = self.gateway.live.lock();
            live.ledger.settle(attempt.reservation, Spent::default(), clock::now());
        }
    }
}
