//! Calendar periods in a provider's own zone: which one an instant falls into, and when the next one begins. Pure
//! arithmetic on milliseconds since 1970; no clock, no time zone database.
use crate::base::calendar::{civil, days_from_civil};
use crate::catalog::provider::ResetZone;

/// A wall clock before this is one that has not been set: 2026-01-01, older than any release.
pub const EARLIEST_WALL_MS: u64 = 1_767_225_600_000;

const SECOND_MS: i64 = 1_000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// The span that a limit counts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    Second,
    Minute,
    Hour,
    Day,
    Month,
}

impl Period {
    /// The longest that one can be, in milliseconds; a rolling window of this length never counts too little.
    pub const fn longest_ms(self) -> u64 {
        let ms = match self {
            Period::Second => SECOND_MS,
            Period::Minute => MINUTE_MS,
            Period::Hour => HOUR_MS,
            Period::Day => DAY_MS,
            Period::Month => 31 * DAY_MS,
        };
        ms as u64
    }

    /// The number of the period that holds `wall_ms`. Later periods have larger numbers.
    pub fn index(self, zone: ResetZone, wall_ms: u64) -> i64 {
        let local_ms = wall_ms as i64 + offset_ms(zone, wall_ms);
        match self {
            Period::Month => {
                let (year, month, _) = civil(local_ms.div_euclid(DAY_MS));
                year * 12 + month - 1
            }
            _ => local_ms.div_euclid(self.longest_ms() as i64),
        }
    }

    /// Milliseconds from `wall_ms` to the beginning of the next period; at least one.
    pub fn rest_ms(self, zone: ResetZone, wall_ms: u64) -> u64 {
        let next = self.index(zone, wall_ms) + 1;
        let local_ms = match self {
            Period::Month => days_from_civil(next.div_euclid(12), next.rem_euclid(12) + 1, 1) * DAY_MS,
            _ => next * self.longest_ms() as i64,
        };
        // The offset that holds at the border may differ from today's: go there with today's, then look again.
        let near_ms = (local_ms - offset_ms(zone, wall_ms)).max(0) as u64;
        let border_ms = local_ms - offset_ms(zone, near_ms);
        (border_ms - wall_ms as i64).max(1) as u64
    }
}

/// Local time minus UTC.
fn offset_ms(zone: ResetZone, wall_ms: u64) -> i64 {
    match zone {
        ResetZone::Fixed(minutes) => i64::from(minutes) * MINUTE_MS,
        ResetZone::UsPacific if pacific_summer(wall_ms as i64) => -7 * HOUR_MS,
        ResetZone::UsPacific => -8 * HOUR_MS,
    }
}

/// Whether daylight saving time holds on the Pacific coast: from the second Sunday of March, 2:00 standard time
/// (10:00 UTC), to the first Sunday of November, 2:00 daylight time (9:00 UTC). United States law since 2007.
fn pacific_summer(utc_ms: i64) -> bool {
    let (year, month, _) = civil(utc_ms.div_euclid(DAY_MS));
    match month {
        4..=10 => true,
        3 => utc_ms >= first_sunday(year, 3) + 7 * DAY_MS + 10 * HOUR_MS,
        11 => utc_ms < first_sunday(year, 11) + 9 * HOUR_MS,
        _ => false,
    }
}

/// Midnight UTC of the first Sunday of a month.
fn first_sunday(year: i64, month: i64) -> i64 {
    let first = days_from_civil(year, month, 1);
    // Day 0 was a Thursday, so day 3 was a Sunday.
    (first + (3 - first).rem_euclid(7)) * DAY_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTC: ResetZone = ResetZone::Fixed(0);

    /// Milliseconds of a UTC date and time.
    fn at(year: i64, month: i64, day: i64, hour: i64, minute: i64) -> u64 {
        (days_from_civil(year, month, day) * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS) as u64
    }

    #[test]
    fn days_end_at_local_midnight() {
        let check = |zone, wall_ms: u64, hours: i64| {
            assert_eq!(Period::Day.rest_ms(zone, wall_ms) as i64, hours * HOUR_MS, "{zone:?} {wall_ms}");
        };
        check(UTC, at(2026, 11, 30, 7, 0), 17);
        check(UTC, at(2026, 11, 30, 0, 0), 24);
        check(ResetZone::Fixed(8 * 60), at(2026, 11, 30, 15, 0), 1);
        check(ResetZone::Fixed(8 * 60), at(2026, 11, 30, 16, 0), 24);
        check(ResetZone::Fixed(-5 * 60), at(2026, 11, 30, 4, 0), 1);
        check(ResetZone::UsPacific, at(2026, 12, 1, 7, 0), 1);
        check(ResetZone::UsPacific, at(2026, 7, 1, 6, 0), 1);
    }

    #[test]
    fn pacific_days_of_a_clock_change_last_23_and_25_hours() {
        // 2026: summer time begins on March 8 and ends on November 1.
        let check = |midnight_ms: u64, hours: i64| {
            assert_eq!(Period::Day.rest_ms(ResetZone::UsPacific, midnight_ms) as i64, hours * HOUR_MS);
            let before = Period::Day.index(ResetZone::UsPacific, midnight_ms - 1);
            assert_eq!(Period::Day.index(ResetZone::UsPacific, midnight_ms), before + 1);
        };
        check(at(2026, 3, 8, 8, 0), 23);
        check(at(2026, 11, 1, 7, 0), 25);
        check(at(2026, 3, 9, 7, 0), 24);
        assert!(!pacific_summer(at(2026, 3, 8, 9, 59) as i64));
        assert!(pacific_summer(at(2026, 3, 8, 10, 0) as i64));
        assert!(pacific_summer(at(2026, 11, 1, 8, 59) as i64));
        assert!(!pacific_summer(at(2026, 11, 1, 9, 0) as i64));
    }

    #[test]
    fn months_end_with_their_last_day() {
        let check = |zone, wall_ms, days: i64, hours: i64| {
            assert_eq!(Period::Month.rest_ms(zone, wall_ms) as i64, days * DAY_MS + hours * HOUR_MS);
        };
        check(UTC, at(2024, 2, 1, 0, 0), 29, 0);
        check(UTC, at(2026, 2, 28, 23, 0), 0, 1);
        check(UTC, at(2026, 12, 31, 12, 0), 0, 12);
        check(ResetZone::UsPacific, at(2026, 12, 31, 12, 0), 0, 20);
        // The month that holds the end of summer time is an hour longer.
        check(ResetZone::UsPacific, at(2026, 11, 1, 7, 0), 30, 1);
    }

    #[test]
    fn every_period_ends_where_the_next_begins() {
        let zones = [UTC, ResetZone::Fixed(330), ResetZone::Fixed(-12 * 60), ResetZone::UsPacific];
        let periods = [Period::Second, Period::Minute, Period::Hour, Period::Day, Period::Month];
        let mut wall_ms = at(2026, 1, 1, 0, 0);
        while wall_ms < at(2027, 2, 1, 0, 0) {
            for zone in zones {
                for period in periods {
                    let rest = period.rest_ms(zone, wall_ms);
                    let here = period.index(zone, wall_ms);
                    assert_eq!(period.index(zone, wall_ms + rest - 1), here, "{zone:?} {period:?} {wall_ms}");
                    // Hours repeat when summer time ends; days and months do not.
                    if matches!(period, Period::Day | Period::Month) || zone != ResetZone::UsPacific {
                        assert_eq!(
                            period.index(zone, wall_ms + rest),
                            here + 1,
                            "{zone:?} {period:?} {wall_ms}"
                        );
                    }
                }
            }
            wall_ms += 3_456_789;
        }
    }
}
