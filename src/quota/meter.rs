//! The counters of one scope, and whether a call fits under one limit.
use super::ledger::Want;
use super::wall::Time;
use super::window::{AMOUNT_MAX, Calendar, Rolling};
use super::zone::Period;
use crate::catalog::provider::{Limit, Metric, ResetZone, WindowKind};

/// Counters of one scope: every metric in both kinds of window. Older ones go when limits change again and again.
pub const COUNTERS_MAX: usize = 2 * Metric::ALL.len();

/// Credits are counted in millionths, so that sums stay exact.
const CREDIT: f64 = 1_000_000.0;

/// Whether a call fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Room {
    Free,
    /// Not now. `retry_in_ms` is how long until enough has run out; `None` when that depends on a call in flight.
    Full {
        metric: Metric,
        used: f64,
        limit: f64,
        retry_in_ms: Option<u64>,
    },
    /// Not ever: the limit is smaller than this one call.
    Never {
        metric: Metric,
        limit: f64,
    },
}

/// The counters of one scope, one per limit that it was ever held against.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    pub in_flight: u32,
    pub held: Held,
    pub counters: Vec<Counter>,
    /// The ledger's version at the last change.
    pub version: u64,
}

/// What calls in flight may still use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    pub output_tokens: u64,
    pub credit_parts: u64,
}

/// What was counted of one metric in one window.
#[derive(Clone, Debug)]
pub struct Counter {
    pub metric: Metric,
    /// The ledger's version when it was made. Calls from before it were never counted in it.
    pub born: u64,
    pub window: Window,
}

/// The two kinds of window.
#[derive(Clone, Debug)]
pub enum Window {
    Rolling(Rolling),
    Calendar(Calendar),
}

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Requests,
    Tokens,
    Credits,
    InFlight,
}

/// A [`Want`] in whole numbers.
#[derive(Clone, Copy, Debug)]
pub struct Amounts {
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub credit_parts: u64,
    pub prompt_credit_parts: u64,
}

/// A limit, ready to be compared.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub metric: Metric,
    pub unit: Unit,
    pub span: Span,
    pub max: u64,
}

/// Which period a limit counts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    Rolling { span_ms: u64 },
    Calendar(Period),
}

/// The longest rolling window.
pub const SPAN_MAX_MS: u64 = 366 * 24 * 3_600_000;

/// What a metric counts, and over which period.
pub const fn measure(metric: Metric) -> (Unit, Period) {
    match metric {
        Metric::Rps => (Unit::Requests, Period::Second),
        Metric::Rpm => (Unit::Requests, Period::Minute),
        Metric::Rph => (Unit::Requests, Period::Hour),
        Metric::Rpd => (Unit::Requests, Period::Day),
        Metric::Rpmo => (Unit::Requests, Period::Month),
        Metric::Tpm => (Unit::Tokens, Period::Minute),
        Metric::Tph => (Unit::Tokens, Period::Hour),
        Metric::Tpd => (Unit::Tokens, Period::Day),
        Metric::Tpmo => (Unit::Tokens, Period::Month),
        Metric::CreditsPerDay => (Unit::Credits, Period::Day),
        Metric::Concurrency => (Unit::InFlight, Period::Second),
    }
}

impl Rule {
    /// The rule of one limit.
    pub fn of(metric: Metric, limit: Limit) -> Rule {
        let (unit, period) = measure(metric);
        let whole = if unit == Unit::Credits { limit.amount * CREDIT } else { limit.amount };
        let span = match limit.window {
            WindowKind::Calendar => Span::Calendar(period),
            // Half a request a second is one request in two seconds.
            WindowKind::Rolling if unit == Unit::Requests && limit.amount > 0.0 && limit.amount < 1.0 => {
                let span_ms = (period.longest_ms() as f64 / limit.amount).ceil() as u64;
                return Rule {
                    metric,
                    unit,
                    span: Span::Rolling { span_ms: span_ms.min(SPAN_MAX_MS) },
                    max: 1,
                };
            }
            WindowKind::Rolling => Span::Rolling { span_ms: period.longest_ms() },
        };
        // The cast takes NaN and negative numbers to zero, and cuts above the largest.
        Rule { metric, unit, span, max: whole as u64 }
    }

    /// Its window for people, such as `last 60s` or `today (UTC)`.
    pub fn window_name(&self, zone: ResetZone) -> String {
        let period = match self.span {
            _ if self.unit == Unit::InFlight => return "at once".into(),
            Span::Rolling { span_ms } if span_ms < 120_000 => {
                return format!("last {}s", span_ms.div_ceil(1000));
            }
            Span::Rolling { span_ms } => return format!("last {}h", span_ms.div_ceil(3_600_000)),
            Span::Calendar(Period::Second) => "this second",
            Span::Calendar(Period::Minute) => "this minute",
            Span::Calendar(Period::Hour) => "this hour",
            Span::Calendar(Period::Day) => "today",
            Span::Calendar(Period::Month) => "this month",
        };
        match zone {
            ResetZone::Fixed(0) => format!("{period} (UTC)"),
            ResetZone::Fixed(minutes) => {
                let sign = if minutes < 0 { '-' } else { '+' };
                format!("{period} (UTC{sign}{:02}:{:02})", minutes.abs() / 60, minutes.abs() % 60)
            }
            ResetZone::UsPacific => format!("{period} (US Pacific)"),
        }
    }

    /// The length of a window that slides; `None` for calls in flight and for calendar windows.
    pub fn rolling_ms(&self) -> Option<u64> {
        match self.span {
            Span::Rolling { span_ms } if self.unit != Unit::InFlight => Some(span_ms),
            _ => None,
        }
    }

    /// Wall clock at which the window begins anew, in milliseconds; `None` for one that slides.
    pub fn resets_at_ms(&self, zone: ResetZone, wall_ms: u64) -> Option<u64> {
        match self.span {
            Span::Calendar(period) if self.unit != Unit::InFlight => {
                Some(wall_ms + period.rest_ms(zone, wall_ms))
            }
            _ => None,
        }
    }

    /// An amount in the unit that limits are written in.
    pub fn shown(&self, amount: u64) -> f64 {
        shown(self.unit, amount)
    }

    /// Whether a counter counts what this rule limits.
    pub fn is(&self, counter: &Counter) -> bool {
        counter.metric == self.metric
            && match (&counter.window, self.span) {
                (Window::Rolling(window), Span::Rolling { span_ms }) => window.span_ms() == span_ms,
                (Window::Calendar(_), Span::Calendar(_)) => true,
                _ => false,
            }
    }
}

/// An amount in the unit that limits are written in.
pub fn shown(unit: Unit, amount: u64) -> f64 {
    if unit == Unit::Credits { amount as f64 / CREDIT } else { amount as f64 }
}

/// Credits in whole millionths, rounded up.
pub fn credit_parts(credits: f64) -> u64 {
    // The cast takes NaN and negative numbers to zero: nothing is ever refunded that way.
    ((credits * CREDIT).ceil() as u64).min(AMOUNT_MAX)
}

impl Amounts {
    /// The amounts of a call.
    pub fn of(want: &Want) -> Amounts {
        let credit_parts_all = credit_parts(want.credits);
        Amounts {
            prompt_tokens: want.prompt_tokens.min(AMOUNT_MAX),
            output_tokens: want.output_tokens.min(AMOUNT_MAX),
            credit_parts: credit_parts_all,
            prompt_credit_parts: credit_parts(want.prompt_credits).min(credit_parts_all),
        }
    }

    /// All that is wanted of a unit, and the part of it that is certain.
    pub fn of_unit(&self, unit: Unit, output_is_charged: bool) -> (u64, u64) {
        match unit {
            Unit::Requests | Unit::InFlight => (1, 1),
            Unit::Tokens if output_is_charged => {
                (self.prompt_tokens + self.output_tokens, self.prompt_tokens + self.output_tokens)
            }
            Unit::Tokens => (self.prompt_tokens + self.output_tokens, self.prompt_tokens),
            Unit::Credits if output_is_charged => (self.credit_parts, self.credit_parts),
            Unit::Credits => (self.credit_parts, self.prompt_credit_parts),
        }
    }
}

impl Window {
    /// An empty window.
    pub fn of(span: Span, zone: ResetZone) -> Window {
        match span {
            Span::Rolling { span_ms } => Window::Rolling(Rolling::new(span_ms)),
            Span::Calendar(period) => Window::Calendar(Calendar::new(period, zone)),
        }
    }

    /// What counts now.
    pub fn used(&self, time: Time) -> u64 {
        match self {
            Window::Rolling(window) => window.used(time.mono_ms),
            Window::Calendar(window) => window.used(time),
        }
    }

    /// Counts an amount.
    pub fn add(&mut self, amount: u64, time: Time) {
        match self {
            Window::Rolling(window) => window.add(amount, time.mono_ms),
            Window::Calendar(window) => window.add(amount, time),
        }
    }

    /// Takes back what was counted at `at`.
    pub fn take_back(&mut self, amount: u64, at: Time) {
        match self {
            Window::Rolling(window) => window.take_back(amount, at.mono_ms),
            Window::Calendar(window) => window.take_back(amount, at),
        }
    }

    /// How long until `amount` has run out of what is used.
    pub fn wait_ms(&self, amount: u64, time: Time) -> Option<u64> {
        match self {
            Window::Rolling(window) => window.wait_ms(amount, time.mono_ms),
            Window::Calendar(window) => (amount <= window.used(time)).then(|| window.wait_ms(time)),
        }
    }
}

impl Meter {
    /// What calls in flight hold of a unit.
    pub fn held_of(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Requests => 0,
            Unit::Tokens => self.held.output_tokens,
            Unit::Credits => self.held.credit_parts,
            Unit::InFlight => u64::from(self.in_flight),
        }
    }

    /// The window that counts for a rule, if there is one yet.
    pub fn counter(&self, rule: &Rule) -> Option<&Window> {
        self.counters.iter().find(|counter| rule.is(counter)).map(|counter| &counter.window)
    }

    /// Makes the counter of a rule if it is missing, and moves a calendar one to the provider's present zone.
    pub fn prepare(&mut self, rule: &Rule, zone: ResetZone, version: u64) {
        if rule.unit == Unit::InFlight {
            return;
        }
        match self.counters.iter_mut().find(|counter| rule.is(counter)) {
            Some(Counter { window: Window::Calendar(window), .. }) => window.zone = zone,
            Some(_) => {}
            None => {
                if self.counters.len() >= COUNTERS_MAX {
                    self.counters.remove(0);
                }
                let window = Window::of(rule.span, zone);
                self.counters.push(Counter { metric: rule.metric, born: version, window });
            }
        }
    }

    /// Counts an amount in every window of its unit.
    pub fn add(&mut self, unit: Unit, amount: u64, time: Time) {
        for counter in self.counters.iter_mut().filter(|counter| measure(counter.metric).0 == unit) {
            counter.window.add(amount, time);
        }
    }

    /// Takes back what a call added that was reserved at `at`, when the ledger stood at `version`.
    pub fn take_back(&mut self, unit: Unit, amount: u64, at: Time, version: u64) {
        let counted = |counter: &&mut Counter| measure(counter.metric).0 == unit && counter.born <= version;
        for counter in self.counters.iter_mut().filter(counted) {
            counter.window.take_back(amount, at);
        }
    }

    /// Whether nothing of it counts any more.
    pub fn idle(&self, time: Time) -> bool {
        self.in_flight == 0 && self.counters.iter().all(|counter| counter.window.used(time) == 0)
    }

    /// Whether `amounts` fit under one rule.
    pub fn room(&self, rule: &Rule, amounts: &Amounts, output_is_charged: bool, time: Time) -> Room {
        let (all, certain) = amounts.of_unit(rule.unit, output_is_charged);
        let limit = rule.shown(rule.max);
        if certain > rule.max {
            return Room::Never { metric: rule.metric, limit };
        }
        let held = self.held_of(rule.unit);
        let window = self.counter(rule);
        let alone = self.in_flight == 0;
        let needed = if alone { all.min(certain) } else { all };
        // Most windows are far from full, and their sum is known without a look at the single slots.
        if let Some(Window::Rolling(rolling)) = window {
            if rolling.used_at_most() + held + needed <= rule.max {
                return Room::Free;
            }
        }
        let counted = window.map_or(0, |window| window.used(time));
        let used = counted + held;
        if used + needed <= rule.max {
            return Room::Free;
        }
        // What is larger than the limit as a whole fits once nothing else is in flight and the certain part does.
        let aim = if all <= rule.max { needed } else { certain };
        let excess = (used + aim).saturating_sub(rule.max);
        let retry_in_ms =
            if excess == 0 { None } else { window.and_then(|window| window.wait_ms(excess, time)) };
        Room::Full { metric: rule.metric, used: rule.shown(used), limit, retry_in_ms }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;
    use crate::quota::Scope;

    #[test]
    fn a_scope_is_small() {
        let idle = size_of::<(Scope, Meter)>() + 4 * size_of::<Counter>();
        assert!(idle <= 512, "an idle scope with four limits takes {idle} bytes");
        let slot = size_of::<(i64, u64)>();
        // A queue doubles as it grows: 61 slots lie in room for 64, and for 128 at the worst.
        assert!(idle + 2 * 64 * slot <= 2_560, "a busy scope with two rolling windows");
    }

    #[test]
    fn windows_are_named_and_say_when_they_begin_anew() {
        let check = |metric, window, zone, name: &str, resets_at_ms| {
            let rule = Rule::of(metric, Limit { amount: 10.0, window });
            let found = (rule.window_name(zone), rule.resets_at_ms(zone, 1_800_000_000_000));
            assert_eq!(found, (name.to_owned(), resets_at_ms), "{metric:?} {window:?}");
        };
        let (utc, rolling, calendar) = (ResetZone::Fixed(0), WindowKind::Rolling, WindowKind::Calendar);
        check(Metric::Rps, rolling, utc, "last 1s", None);
        check(Metric::Rpm, rolling, utc, "last 60s", None);
        check(Metric::Rph, rolling, utc, "last 1h", None);
        check(Metric::Tpd, rolling, utc, "last 24h", None);
        check(Metric::Concurrency, rolling, utc, "at once", None);
        // It is 8:00 UTC on 2027-01-15.
        check(Metric::Rpd, calendar, utc, "today (UTC)", Some(1_800_057_600_000));
        check(Metric::Rpd, calendar, ResetZone::Fixed(-90), "today (UTC-01:30)", Some(1_800_063_000_000));
        check(
            Metric::CreditsPerDay,
            calendar,
            ResetZone::UsPacific,
            "today (US Pacific)",
            Some(1_800_086_400_000),
        );
        check(Metric::Tpmo, calendar, utc, "this month (UTC)", Some(1_801_440_000_000));
    }

    #[test]
    fn limits_become_whole_numbers() {
        let rule = |metric, amount, window| Rule::of(metric, Limit { amount, window });
        let check = |metric, amount: f64, max: u64| {
            assert_eq!(rule(metric, amount, WindowKind::Calendar).max, max, "{metric:?} {amount}");
        };
        check(Metric::Rpd, 2.9, 2);
        check(Metric::Rpd, -1.0, 0);
        check(Metric::Rpd, f64::NAN, 0);
        check(Metric::Tpd, f64::INFINITY, u64::MAX);
        check(Metric::CreditsPerDay, 0.25, 250_000);
        let slow = rule(Metric::Rps, 0.07, WindowKind::Rolling);
        assert_eq!((slow.max, slow.span), (1, Span::Rolling { span_ms: 14_286 }));
        let never = rule(Metric::Rps, 1e-300, WindowKind::Rolling);
        assert_eq!(never.span, Span::Rolling { span_ms: SPAN_MAX_MS });
    }
}
