//! What an attempt does to everybody's future: quota settled, figures kept, benches put and lifted. This is the bench
//! column of the blame table; what the request itself does next stands in [`super::failover`].
use super::live::Live;
use super::outcome::{Class, Failure};
use super::plan::key_scopes;
use super::speed::Answer;
use super::told::{self, Place};
use crate::base::clock::Now;
use crate::catalog::provider::{Key, Model, Provider, Slot};
use crate::catalog::settings::{BenchSteps, Settings};
use crate::quota::bench::{LOCAL_STEPS, Term};
use crate::quota::ledger::credits;
use crate::quota::{Cause, Reservation, Scope, Spent};

/// Answers that are none before a model is benched for them.
const FREE_STRIKES: u32 = 2;
/// A key that is rate-limited at so many models is benched as a whole, ...
const LIMITED_KEY_MODELS: usize = 3;
/// ... and so is one that is forbidden to use so many.
const FORBIDDEN_KEY_MODELS: usize = 2;

/// What the owner set.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Attempts at different models.
    pub max_attempts: u32,
    /// From admission to the commit.
    pub budget_ms: u64,
    /// By the place of the cause in [`Cause::ALL`].
    steps: [BenchSteps; Cause::ALL.len()],
}

impl Policy {
    /// The policy of these settings.
    pub fn new(settings: &Settings) -> Policy {
        let mut steps = Cause::ALL.map(Cause::steps);
        for (place, cause) in Cause::ALL.into_iter().enumerate() {
            if cause == Cause::RateLimit {
                steps[place].first_ms = settings.cooldown_ms;
            }
            if let Some(own) = settings.failover.bench.get(cause.name()) {
                steps[place] = *own;
            }
            steps[place].cap_ms = steps[place].cap_ms.max(steps[place].first_ms);
        }
        Policy { max_attempts: settings.max_attempts, budget_ms: settings.failover.budget_ms, steps }
    }

    /// First step and cap of a kind of bench.
    pub fn steps(&self, cause: Cause) -> BenchSteps {
        let place = Cause::ALL.iter().position(|known| *known == cause);
        place.and_then(|place| self.steps.get(place)).copied().unwrap_or(cause.steps())
    }
}

/// Who was called, and when.
pub(super) struct Call<'a> {
    pub provider: &'a Provider,
    pub model: &'a Model,
    pub key: &'a Key,
    pub answer: Answer,
    /// Its provider answers for other models, so that a failure is probably the model's own.
    pub alone: bool,
    pub began: Now,
    pub now: Now,
}

impl Call<'_> {
    /// How long the call took.
    pub fn took_ms(&self) -> u64 {
        self.now.mono_ms.saturating_sub(self.began.mono_ms)
    }

    /// Turns a reservation into what was really used.
    pub fn settle(&self, live: &mut Live, reservation: Reservation, spent: Spent) {
        let nothing = spent.prompt_tokens == 0 && spent.output_tokens == 0;
        let cost = || credits(self.provider, self.model, spent.prompt_tokens, spent.output_tokens);
        let credits = if nothing { 0.0 } else { cost() };
        live.ledger.settle(reservation, Spent { credits, ..spent }, self.now);
    }

    /// What a failure teaches about sizes and numbers. The request was of so many `tokens`, output included, and wanted so
    /// many `choices`.
    pub fn learn(&self, live: &mut Live, failure: &Failure, tokens: u64, choices: u32) {
        let (model, now) = (self.model.slot, self.now);
        match (failure.class, failure.stated) {
            (Class::FewerChoices, _) => live.lessons.learn_choices(model, choices, now),
            (Class::TooLong, Some(stated)) => live.lessons.learn_window(model, stated, tokens, now),
            (Class::LimitTooSmall, Some(stated)) => {
                live.lessons.learn_limit(self.key.account, model, stated, tokens, now);
            }
            _ => {}
        }
    }

    /// Takes back what nobody at the upstream has seen.
    pub fn take_back(&self, live: &mut Live, reservation: Reservation, place: Place) {
        live.told.undo(told::of(self.key, self.model.slot), place);
        live.ledger.release(reservation);
    }

    /// What a good answer does: strikes of exactly these scopes fade, the network is there, and a limit of which
    /// nothing is left is respected at once.
    pub fn reward(&self, live: &mut Live, exhausted_ms: Option<u64>) {
        let (provider, model) = (self.provider.slot, self.model.slot);
        live.benches.succeeded(
            &[Scope::Provider(provider), Scope::Model(model)],
            self.began.mono_ms,
            self.now,
        );
        live.benches.succeeded(&key_scopes(self.key, model), self.began.mono_ms, self.now);
        live.lately.ended(provider, model, true, self.now);
        live.scoreboard.served(self.scored());
        if !self.provider.local {
            live.network.reached();
        }
        if let Some(ms) = exhausted_ms {
            self.bench(live, self.model_quota(), Cause::RateLimit, Term::Named { ms });
        }
    }

    /// What a failure does.
    pub fn punish(&self, live: &mut Live, failure: &Failure, policy: &Policy) {
        if !self.provider.local && (failure.status.is_some() || failure.reached) {
            live.network.reached();
        }
        let (provider, model) = (self.provider.slot, self.model.slot);
        match failure.class {
            Class::ProviderDown
            | Class::Unreachable
            | Class::ModelDown
            | Class::NoAnswer
            | Class::EmptyAnswer => {
                live.speeds.failed(provider, model, self.answer, self.took_ms(), self.now);
            }
            _ => live.speeds.undecided(provider),
        }
        match failure.class {
            // Not its own fault.
            Class::BadRequest
            | Class::Policy
            | Class::TooLong
            | Class::FewerChoices
            | Class::LimitTooSmall
            | Class::Clock
            | Class::NoNetwork => {}
            _ => live.scoreboard.failed(self.scored(), &failure.message),
        }
        self.bench_for(live, failure, policy);
    }

    /// The bench column of the blame table.
    fn bench_for(&self, live: &mut Live, failure: &Failure, policy: &Policy) {
        let growing = |cause| Term::Growing(policy.steps(cause));
        let named_or = |cause| failure.wait_ms.map_or(growing(cause), |ms| Term::Named { ms });
        let model = self.model.slot;
        match failure.class {
            Class::BadKey => {
                self.bench(live, Scope::Key(self.key.slot), Cause::Auth, growing(Cause::Auth));
            }
            Class::NoCredit => {
                self.bench(live, self.account(), Cause::Credit, named_or(Cause::Credit));
            }
            Class::Forbidden => {
                let scope = Scope::KeyModel(self.key.slot, model);
                self.bench(live, scope, Cause::Forbidden, growing(Cause::Forbidden));
                if self.benched_models(live, Cause::Forbidden).len() >= FORBIDDEN_KEY_MODELS {
                    let whole = Scope::Key(self.key.slot);
                    self.bench(live, whole, Cause::Forbidden, growing(Cause::Forbidden));
                }
            }
            Class::RateLimited | Class::QuotaSpent => {
                let cause = if failure.class == Class::QuotaSpent { Cause::Quota } else { Cause::RateLimit };
                let scope = if failure.account_wide { self.account() } else { self.model_quota() };
                self.bench(live, scope, cause, named_or(cause));
                let remaining = self.benched_models(live, cause);
                if remaining.len() >= LIMITED_KEY_MODELS {
                    let ms = remaining.into_iter().min().unwrap_or(1);
                    self.bench(live, Scope::Key(self.key.slot), cause, Term::Named { ms });
                }
            }
            Class::ModelMissing => {
                self.bench(live, Scope::Model(model), Cause::ModelMissing, growing(Cause::ModelMissing));
            }
            Class::ProviderDown | Class::Unreachable | Class::ModelDown => {
                self.unavailable(live, failure, policy)
            }
            Class::NoAnswer | Class::EmptyAnswer => {
                let steps = self.steps(policy.steps(Cause::NoAnswer));
                let term = Term::Patient { steps, free_strikes: FREE_STRIKES };
                self.bench(live, Scope::Model(model), Cause::NoAnswer, term);
            }
            Class::NoNetwork => {
                for id in live.network.lost() {
                    live.benches.lift(id);
                }
            }
            Class::LimitTooSmall
            | Class::TooLong
            | Class::FewerChoices
            | Class::Clock
            | Class::Exhausted
            | Class::BadRequest
            | Class::Policy => {}
        }
    }

    /// Benches a provider that is down, or only its model; nobody when it is our own network.
    fn unavailable(&self, live: &mut Live, failure: &Failure, policy: &Policy) {
        let (provider, model) = (self.provider.slot, self.model.slot);
        let mut steps = self.steps(policy.steps(Cause::Unavailable));
        if let Some(ms) = failure.wait_ms {
            steps = BenchSteps { first_ms: ms, cap_ms: steps.cap_ms.max(ms) };
        }
        let only_model =
            failure.class == Class::ModelDown || (failure.class == Class::ProviderDown && self.alone);
        let scope = if only_model { Scope::Model(model) } else { Scope::Provider(provider) };
        let bench = self.bench(live, scope, Cause::Unavailable, Term::Growing(steps));
        if failure.class == Class::Unreachable && !self.provider.local {
            for id in live.network.unreached(self.provider, bench, self.now) {
                live.benches.lift(id);
            }
        }
        live.lately.ended(provider, model, false, self.now);
    }

    fn bench(&self, live: &mut Live, scope: Scope, cause: Cause, term: Term) -> u64 {
        live.benches.put(scope, cause, term, self.began.mono_ms, self.now).id
    }

    fn steps(&self, steps: BenchSteps) -> BenchSteps {
        if self.provider.local { LOCAL_STEPS } else { steps }
    }

    /// Whose score the attempt counts for.
    pub fn scored(&self) -> [Slot; 2] {
        [self.provider.slot, self.key.slot]
    }

    /// Whether other keys share the account.
    fn shares_account(&self) -> bool {
        let account = self.key.account;
        self.provider.keys.iter().any(|key| key.slot != self.key.slot && key.account == account)
    }

    /// Whom a limit of the whole account binds.
    pub fn account(&self) -> Scope {
        if self.shares_account() { Scope::Account(self.key.account) } else { Scope::Key(self.key.slot) }
    }

    /// Whom a limit of one model binds.
    pub fn model_quota(&self) -> Scope {
        if self.shares_account() {
            Scope::AccountModel(self.key.account, self.model.slot)
        } else {
            Scope::KeyModel(self.key.slot, self.model.slot)
        }
    }

    /// For how long each model of this key is still benched for a cause.
    fn benched_models(&self, live: &Live, cause: Cause) -> Vec<u64> {
        let of_key = |scope| matches!(scope, Scope::KeyModel(key, _) if key == self.key.slot);
        let all = live.benches.list(self.now).into_iter();
        all.filter(|bench| bench.cause == cause && of_key(bench.scope))
            .map(|bench| bench.remaining_ms(self.now))
            .collect()
    }
}
