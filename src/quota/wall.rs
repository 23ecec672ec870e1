//! Whether the wall clock may be believed. A Pi has no clock chip: after a boot the clock stands in the past until the
//! network corrects it, and then it steps. Calendar counters ask here first, so that a step neither frees nor freezes
//! them.
use super::zone::EARLIEST_WALL_MS;
use crate::base::clock::Now;

/// The wall clock may drift this far from the monotonic one between two readings without looking stepped.
const DRIFT_MAX_MS: u64 = 5 * 60_000;

/// A step counts as the truth once it has lasted this long.
const PROBATION_MS: u64 = 10 * 60_000;

/// A reading of both clocks, after judgement.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    pub mono_ms: u64,
    /// `None` while the wall clock is unset or has just stepped: then calendar counters are neither reset nor begun.
    pub wall_ms: Option<u64>,
    /// When the clock last turned out to have been wrong: the first believed reading after a step. What was dated
    /// before that may carry a date in the future.
    pub stepped: Now,
}

/// A clock that was steady for this long was right: when it then leaps ahead, the box has slept.
const PROVEN_MS: u64 = 3_600_000;

/// What is known about the wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wall {
    /// The last reading that was believed.
    anchor: Option<Now>,
    /// The first reading after a step that is not believed yet.
    suspect: Option<Now>,
    /// Monotonic time of the first reading of this steady phase.
    steady_since_ms: u64,
    stepped: Now,
    /// When state was last saved, according to itself: a first reading before that is a step back.
    saved_wall_ms: u64,
    /// A reading before this is of an unset clock; never less than [`EARLIEST_WALL_MS`].
    earliest_ms: u64,
}

impl Wall {
    /// Tells when restored state was saved.
    pub fn saved_at(&mut self, wall_ms: u64) {
        self.saved_wall_ms = self.saved_wall_ms.max(wall_ms);
    }

    /// Tells a date that has passed for certain, such as that of the build.
    pub fn not_before(&mut self, wall_ms: u64) {
        self.earliest_ms = wall_ms;
    }

    /// Judges a reading, and remembers it.
    pub fn read(&mut self, now: Now) -> Time {
        let wall_ms = self.believe(now).then_some(now.wall_ms);
        Time { mono_ms: now.mono_ms, wall_ms, stepped: self.stepped }
    }

    fn believe(&mut self, now: Now) -> bool {
        if now.wall_ms < self.earliest_ms.max(EARLIEST_WALL_MS) {
            return false;
        }
        let steady = match self.anchor {
            Some(anchor) => agree(anchor, now),
            None => now.wall_ms.saturating_add(DRIFT_MAX_MS) >= self.saved_wall_ms,
        };
        let since = self.suspect.filter(|since| agree(*since, now));
        let proven = since.is_some_and(|since| now.mono_ms.saturating_sub(since.mono_ms) >= PROBATION_MS);
        if !steady && !proven {
            self.suspect = since.or(Some(now));
            return false;
        }
        if !steady && !self.slept(now) {
            self.stepped = now;
        }
        if !steady || self.anchor.is_none() {
            self.steady_since_ms = now.mono_ms;
        }
        self.anchor = Some(now);
        self.suspect = None;
        true
    }

    /// Whether the leap to `now` is the sleep of a box, during which the monotonic clock stands still, rather than the
    /// correction of a clock that was wrong.
    fn slept(&self, now: Now) -> bool {
        self.anchor.is_some_and(|anchor| {
            now.wall_ms > anchor.wall_ms && anchor.mono_ms.saturating_sub(self.steady_since_ms) >= PROVEN_MS
        })
    }
}

/// Whether both clocks went on by about the same between two readings.
fn agree(earlier: Now, later: Now) -> bool {
    let expected_ms = earlier.wall_ms.saturating_add(later.mono_ms.saturating_sub(earlier.mono_ms));
    expected_ms.abs_diff(later.wall_ms) <= DRIFT_MAX_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const T: u64 = EARLIEST_WALL_MS + 300 * 24 * HOUR;

    fn wall_ms(wall: &mut Wall, now: Now) -> Option<u64> {
        wall.read(now).wall_ms
    }

    #[test]
    fn a_steady_clock_is_believed_and_may_drift() {
        let mut wall = Wall::default();
        for hour in 0..1_000 {
            let now = Now::at(HOUR + hour * HOUR, T + hour * (HOUR + 1_000));
            assert_eq!(wall_ms(&mut wall, now), Some(now.wall_ms));
        }
    }

    #[test]
    fn an_unset_clock_is_never_believed() {
        let mut wall = Wall::default();
        for hour in 0..100 {
            assert_eq!(wall_ms(&mut wall, Now::at(HOUR + hour * HOUR, hour * HOUR)), None);
        }
        assert_eq!(
            wall_ms(&mut wall, Now::at(200 * HOUR, T)),
            Some(T),
            "the first plausible reading is taken at once"
        );
    }

    #[test]
    fn a_clock_before_the_build_is_unset() {
        let mut wall = Wall::default();
        wall.not_before(T);
        assert_eq!(wall_ms(&mut wall, Now::at(HOUR, T - 1)), None);
        assert_eq!(wall_ms(&mut wall, Now::at(2 * HOUR, T - 1)), None, "however steady it is");
        assert_eq!(wall_ms(&mut wall, Now::at(2 * HOUR, T)), Some(T));
        wall.not_before(0);
        assert_eq!(wall_ms(&mut wall, Now::at(3 * HOUR, EARLIEST_WALL_MS - 1)), None);
    }

    #[test]
    fn a_step_is_believed_after_ten_minutes_in_either_direction() {
        for stepped in [T + 40 * HOUR, T - 40 * HOUR] {
            let mut wall = Wall::default();
            assert_eq!(wall_ms(&mut wall, Now::at(HOUR, T)), Some(T));
            let step = Now::at(HOUR + 1_000, stepped);
            assert_eq!(wall_ms(&mut wall, step), None);
            assert_eq!(wall_ms(&mut wall, step.plus_ms(PROBATION_MS - 1)), None);
            assert_eq!(wall_ms(&mut wall, step.plus_ms(PROBATION_MS)), Some(stepped + PROBATION_MS));
            assert_eq!(wall_ms(&mut wall, step.plus_ms(PROBATION_MS + 1)), Some(stepped + PROBATION_MS + 1));
        }
    }

    #[test]
    fn a_step_there_and_back_leaves_no_trace() {
        let mut wall = Wall::default();
        let start = Now::at(HOUR, T);
        assert!(wall_ms(&mut wall, start).is_some());
        assert_eq!(wall_ms(&mut wall, Now::at(HOUR + 60_000, T + 90 * HOUR)), None);
        assert_eq!(wall_ms(&mut wall, start.plus_ms(120_000)), Some(T + 120_000));
        // A second excursion begins its own probation.
        assert_eq!(wall_ms(&mut wall, Now::at(HOUR + PROBATION_MS, T + 90 * HOUR)), None);
    }

    #[test]
    fn a_leap_corrects_a_young_clock_and_wakes_an_old_one() {
        let check = |steady_ms: u64, leap_ms: i64, corrected: bool| {
            let mut wall = Wall::default();
            let start = Now::at(HOUR, T);
            wall.read(start);
            let last = start.plus_ms(steady_ms);
            wall.read(last);
            let leap = Now::at(last.mono_ms + 1, (last.wall_ms as i64 + leap_ms) as u64);
            wall.read(leap);
            let believed = wall.read(leap.plus_ms(PROBATION_MS));
            assert_eq!(believed.stepped.mono_ms > 0, corrected, "{steady_ms} {leap_ms}");
        };
        check(60_000, 9 * HOUR as i64, true);
        check(2 * HOUR, 9 * HOUR as i64, false);
        check(2 * HOUR, -9 * (HOUR as i64), true);
    }

    #[test]
    fn a_start_before_the_saved_state_is_a_step_back() {
        let mut wall = Wall::default();
        wall.saved_at(T);
        let behind = Now::at(HOUR, T - 2 * HOUR);
        assert_eq!(wall_ms(&mut wall, behind), None);
        assert!(wall_ms(&mut wall, behind.plus_ms(PROBATION_MS)).is_some());
        let mut ahead = Wall::default();
        ahead.saved_at(T);
        assert!(wall_ms(&mut ahead, Now::at(HOUR, T + 500 * HOUR)).is_some(), "a box may be off for weeks");
    }
}
