//! One attempt in the books: what is held for it while it runs, and what becomes of that when it has served.
//!
//! A served attempt is settled and its turn is kept *before* the last bytes of the answer leave: whoever asks next, the
//! same client included, finds them counted.
use std::sync::Arc;

use super::gateway::Gateway;
use crate::base::clock;
use crate::catalog::Catalog;
use crate::quota::Spent;
use crate::route::failover::{Attempt, Failover, Report};
use crate::route::outcome::{End, Signal, classify};
use crate::upstream::cut::Cut;
use crate::wire::exchange::Headers;
use crate::wire::usage::Usage;

/// An attempt in progress and those who have to be told of it.
pub struct Booking<'a> {
    pub gateway: &'a Gateway,
    pub catalog: &'a Catalog,
    pub failover: &'a mut Failover,
    /// Until it has served.
    pub attempt: Option<Attempt>,
    pub cut: &'a Arc<Cut>,
    /// Keeps the turn, whose answer is whole.
    pub keep: &'a dyn Fn(&Failover, Usage),
    /// Those of the upstream's answer.
    pub headers: Headers,
}

impl Booking<'_> {
    /// The first delta of a stream has left.
    pub fn first_delta(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            self.failover.committed(self.catalog, &mut self.gateway.live.lock(), attempt, clock::now());
        }
    }

    /// A stream has so many output tokens by now.
    pub fn top_up(&mut self, output_tokens: u64) {
        if let Some(attempt) = &mut self.attempt {
            self.gateway.live.lock().ledger.top_up(&mut attempt.reservation, output_tokens);
        }
    }

    /// The whole answer is here and about to leave. False when nobody is there to take it, and then nothing is booked.
    #[must_use = "an answer without a client is not sent"]
    pub fn served(&mut self, usage: Usage) -> bool {
        if self.cut.is_cut() {
            return false;
        }
        let Some(attempt) = self.attempt.take() else { return true };
        let now = clock::now();
        let signal = Signal {
            provider: self.catalog.provider(attempt.at),
            prompt_tokens: usage.prompt,
            clock_behind: false,
            end: End::Served { headers: &self.headers },
        };
        let report = Report {
            attempt,
            outcome: classify(&signal, now),
            spent: Spent { prompt_tokens: usage.prompt, output_tokens: usage.completion, credits: 0.0 },
            has_field: &|_| false,
        };
        self.failover.report(self.catalog, &mut self.gateway.live.lock(), report, now);
        (self.keep)(self.failover, usage);
        true
    }
}
