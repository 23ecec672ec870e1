//! The Gregorian calendar in UTC: dates of instants, and back. Pure arithmetic; no clock, no time zones.

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Year, month (1 to 12) and day of a day number, where 0 is 1970-01-01.
///
/// Years are counted from March, so that the leap day comes last and month lengths repeat in a fixed pattern.
pub fn civil(day: i64) -> (i64, i64, i64) {
    let since_march_0 = day + 719_468;
    let era = since_march_0.div_euclid(146_097);
    let of_era = since_march_0.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, of_year - (153 * march_month + 2) / 5 + 1)
}

/// The day number of a date; the inverse of [`civil`].
pub fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let march_year = year - i64::from(month <= 2);
    let era = march_year.div_euclid(400);
    let year_of_era = march_year.rem_euclid(400);
    let march_month = (month + 9) % 12;
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

/// The day of an instant (milliseconds since 1970) as `2026-11-30`.
pub fn date(wall_ms: u64) -> String {
    let (year, month, day) = civil((wall_ms / DAY_MS) as i64);
    format!("{year:04}-{month:02}-{day:02}")
}

/// An instant (milliseconds since 1970) as `20261130T071500Z`, fit for a file name.
pub fn stamp(wall_ms: u64) -> String {
    let (year, month, day) = civil((wall_ms / DAY_MS) as i64);
    let of_day = wall_ms % DAY_MS;
    let (hour, minute, second) = (of_day / HOUR_MS, of_day / MINUTE_MS % 60, of_day / SECOND_MS % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// An instant (milliseconds since 1970) as `2026-11-30T07:15:00Z`, as JSON has it.
pub fn instant(wall_ms: u64) -> String {
    let of_day = wall_ms % DAY_MS;
    let (hour, minute, second) = (of_day / HOUR_MS, of_day / MINUTE_MS % 60, of_day / SECOND_MS % 60);
    format!("{}T{hour:02}:{minute:02}:{second:02}Z", date(wall_ms))
}

/// The instant of a [`stamp`]; `None` for any other text.
pub fn of_stamp(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let number = |text: &str, from: usize, to: usize| text.get(from..to)?.parse::<u32>().ok();
    let day =
        days_from_civil(number(date, 0, 4)?.into(), number(date, 4, 6)?.into(), number(date, 6, 8)?.into());
    let second = number(time, 0, 2)? * 3_600 + number(time, 2, 4)? * 60 + number(time, 4, 6)?;
    let wall_ms = u64::try_from(day).ok()? * DAY_MS + u64::from(second) * SECOND_MS;
    // What is no date comes back as another one.
    (stamp(wall_ms) == text).then_some(wall_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_have_their_dates() {
        let check = |wall_ms: u64, expected_date: &str, expected_stamp: &str| {
            assert_eq!((date(wall_ms).as_str(), stamp(wall_ms).as_str()), (expected_date, expected_stamp));
            assert_eq!(of_stamp(expected_stamp), Some(wall_ms / 1_000 * 1_000));
        };
        check(0, "1970-01-01", "19700101T000000Z");
        check(951_782_400_000, "2000-02-29", "20000229T000000Z");
        check(1_709_164_799_999, "2024-02-28", "20240228T235959Z");
        check(1_767_225_599_999, "2025-12-31", "20251231T235959Z");
        check(1_767_225_600_000, "2026-01-01", "20260101T000000Z");
        check(1_796_022_909_999, "2026-11-30", "20261130T071509Z");
        assert_eq!(instant(1_796_022_909_999), "2026-11-30T07:15:09Z");
    }

    #[test]
    fn what_is_no_stamp_has_no_instant() {
        for text in [
            "",
            "Z",
            "TZ",
            "20261340T000000Z",
            "20261130T071509",
            "2026-11-30",
            "20261130T996099Z",
            "00000000T000000Z",
        ] {
            assert_eq!(of_stamp(text), None, "{text}");
        }
    }

    #[test]
    fn dates_and_day_numbers_are_inverse() {
        for day in -800_000..800_000 {
            let (year, month, of_month) = civil(day);
            assert_eq!(days_from_civil(year, month, of_month), day);
        }
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_787), (2026, 11, 30));
    }
}
