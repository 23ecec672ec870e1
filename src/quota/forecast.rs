//! When a quota runs dry: from how fast it was used lately, not since its window began, so that a burst at night is seen
//! and the first request after midnight does not shout. Pure.
use std::collections::{HashMap, VecDeque};

use super::SlotHash;
use crate::base::clock::Now;
use crate::catalog::provider::{Metric, Slot};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Time between samples that are kept, and how far back they reach.
const SAMPLE_EVERY_MS: u64 = 5 * MINUTE_MS;
const REACH_MS: u64 = HOUR_MS;
const SAMPLES_MAX: usize = (REACH_MS / SAMPLE_EVERY_MS) as usize + 1;
/// A shorter look back would take a burst of seconds for a habit.
const ELAPSED_MIN_MS: u64 = 10 * MINUTE_MS;
/// Limits that are watched.
const SERIES_MAX: usize = 4_096;

/// What was used of each limit lately. Only windows of the calendar are watched: those that slide tell their own rate.
#[derive(Clone, Debug, Default)]
pub struct Burns(HashMap<(Slot, Metric), VecDeque<Sample>, SlotHash>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    mono_ms: u64,
    used: f64,
}

impl Burns {
    /// Notes what is used of a limit of a provider or model by now. To be called every minute or so.
    pub fn note(&mut self, whose: Slot, metric: Metric, used: f64, now: Now) {
        if self.0.len() >= SERIES_MAX && !self.0.contains_key(&(whose, metric)) {
            return;
        }
        let samples = self.0.entry((whose, metric)).or_default();
        if samples.back().is_some_and(|last| used < last.used) {
            // The window began anew.
            samples.clear();
        }
        if samples.back().is_none_or(|last| now.mono_ms >= last.mono_ms + SAMPLE_EVERY_MS) {
            if samples.len() == SAMPLES_MAX {
                samples.pop_front();
            }
            samples.push_back(Sample { mono_ms: now.mono_ms, used });
        }
    }

    /// How much of a limit is used up in an hour, at the pace of the last hour; zero before anything is known.
    pub fn per_hour(&self, whose: Slot, metric: Metric, used: f64, now: Now) -> f64 {
        let Some(samples) = self.0.get(&(whose, metric)) else { return 0.0 };
        let recent = |sample: &&Sample| now.mono_ms.saturating_sub(sample.mono_ms) <= REACH_MS;
        let Some(oldest) = samples.iter().find(recent).or(samples.back()) else { return 0.0 };
        let elapsed_ms = now.mono_ms.saturating_sub(oldest.mono_ms).max(ELAPSED_MIN_MS);
        // Less than before: the window began anew, and all of it was used since.
        let burnt = if used < oldest.used { used } else { used - oldest.used };
        burnt * HOUR_MS as f64 / elapsed_ms as f64
    }
}

/// How urgent something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    Warn,
    Critical,
    Exhausted,
}

impl Level {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Critical => "critical",
            Level::Exhausted => "exhausted",
        }
    }
}

/// One limit, as it stands.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    pub used: f64,
    pub limit: f64,
    /// Used up in an hour.
    pub burn_per_hour: f64,
    /// Until the window begins anew; `None` for one that slides, which never runs dry for long.
    pub resets_in_ms: Option<u64>,
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    pub level: Level,
    /// Until nothing is left, when that comes before the window begins anew.
    pub exhausts_in_ms: Option<u64>,
    /// It would run dry, but its window begins anew before.
    pub resets_first: bool,
}

/// Per cent used that are worth a warning, or more than that.
const WARN_PCT: f64 = 60.0;
const CRITICAL_PCT: f64 = 85.0;
/// Times until it runs dry that are.
const WARN_MS: u64 = 6 * HOUR_MS;
const CRITICAL_MS: u64 = HOUR_MS;

/// Foretells one limit.
pub fn forecast(standing: &Standing) -> Forecast {
    let pct = standing.used / standing.limit * 100.0;
    let left = standing.limit - standing.used;
    let burns = standing.burn_per_hour > 0.0 && left > 0.0;
    let dry_in_ms = burns.then(|| (left / standing.burn_per_hour * HOUR_MS as f64) as u64);
    let resets_first = standing.resets_in_ms.zip(dry_in_ms).is_some_and(|(resets, dry)| resets <= dry);
    let exhausts_in_ms = dry_in_ms.filter(|_| standing.resets_in_ms.is_some() && !resets_first);
    let within = |ms: u64| exhausts_in_ms.is_some_and(|dry| dry < ms);
    let level = if pct >= 100.0 {
        Level::Exhausted
    } else if pct >= CRITICAL_PCT || within(CRITICAL_MS) {
        Level::Critical
    } else if pct >= WARN_PCT || within(WARN_MS) {
        Level::Warn
    } else {
        Level::Ok
    };
    Forecast { level, exhausts_in_ms, resets_first }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Slot = Slot(1);

    fn at(minutes: u64) -> Now {
        Now::at(HOUR_MS * 100 + minutes * MINUTE_MS, 0)
    }

    #[test]
    fn c11_the_pace_is_that_of_the_last_hour() {
        let mut burns = Burns::default();
        assert_eq!(burns.per_hour(P, Metric::Rpd, 500.0, at(0)), 0.0, "nothing is known");
        for minute in 0..=180 {
            // A hundred an hour, and nothing in the last half hour.
            burns.note(P, Metric::Rpd, f64::min(minute as f64, 150.0) / 60.0 * 100.0, at(minute));
        }
        let per_hour = burns.per_hour(P, Metric::Rpd, 250.0, at(180));
        assert!((49.0..51.0).contains(&per_hour), "{per_hour}");
        assert_eq!(burns.0[&(P, Metric::Rpd)].len(), SAMPLES_MAX);
    }

    #[test]
    fn c11_a_burst_is_seen_and_the_first_request_after_midnight_does_not_shout() {
        let mut burns = Burns::default();
        burns.note(P, Metric::Rpd, 900.0, at(0));
        let burst = burns.per_hour(P, Metric::Rpd, 950.0, at(1));
        assert_eq!(burst, 300.0, "fifty within a minute count as fifty in ten");
        assert_eq!(burns.per_hour(P, Metric::Rpd, 1.0, at(20)), 3.0, "midnight has passed");
        burns.note(P, Metric::Rpd, 1.0, at(21));
        assert_eq!(burns.per_hour(P, Metric::Rpd, 1.0, at(25)), 0.0);
    }

    #[test]
    fn levels_follow_what_is_used_and_how_soon_it_ends() {
        let check = |used: f64,
                     burn_per_hour: f64,
                     resets_in_h: Option<u64>,
                     expected: (Level, Option<u64>, bool)| {
            let resets_in_ms = resets_in_h.map(|hours| hours * HOUR_MS);
            let found = forecast(&Standing { used, limit: 100.0, burn_per_hour, resets_in_ms });
            let hours = found.exhausts_in_ms.map(|ms| ms / HOUR_MS);
            assert_eq!(
                (found.level, hours, found.resets_first),
                expected,
                "{used} {burn_per_hour} {resets_in_h:?}"
            );
        };
        check(10.0, 0.0, Some(5), (Level::Ok, None, false));
        check(10.0, 10.0, Some(12), (Level::Ok, Some(9), false));
        check(10.0, 20.0, Some(12), (Level::Warn, Some(4), false));
        check(10.0, 100.0, Some(12), (Level::Critical, Some(0), false));
        check(10.0, 20.0, Some(2), (Level::Ok, None, true));
        check(70.0, 0.0, None, (Level::Warn, None, false));
        check(70.0, 900.0, None, (Level::Warn, None, false));
        check(90.0, 0.0, Some(1), (Level::Critical, None, false));
        check(100.0, 50.0, Some(1), (Level::Exhausted, None, false));
        check(130.0, 50.0, None, (Level::Exhausted, None, false));
    }
}
