//! The two clocks. Decisions never read a clock: they are handed a [`Now`].
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One reading of both clocks.
///
/// Rolling windows, benches and deadlines use `mono_ms`, which never steps. Calendar windows and stored rows use
/// `wall_ms`, which may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since an arbitrary origin in this process (it starts at one hour, so that "an hour ago" exists).
    pub mono_ms: u64,
    /// Milliseconds since 1970-01-01 UTC.
    pub wall_ms: u64,
}

impl Now {
    /// A reading made by hand, for tests and simulations.
    pub const fn at(mono_ms: u64, wall_ms: u64) -> Now {
        Now { mono_ms, wall_ms }
    }

    /// This reading, `ms` milliseconds later on both clocks.
    pub const fn plus_ms(self, ms: u64) -> Now {
        Now { mono_ms: self.mono_ms.saturating_add(ms), wall_ms: self.wall_ms.saturating_add(ms) }
    }
}

/// When this program was built, in seconds since 1970-01-01 UTC. A wall clock that shows less is wrong.
pub fn built_s() -> u64 {
    env!("FREEWAY_BUILT_S").parse().unwrap_or(0)
}

/// Whether the wall clock shows a time before the build, and so is wrong.
pub fn is_behind() -> bool {
    now().wall_ms / 1000 < built_s()
}

/// Monotonic time starts here rather than at zero, so that subtracting a window from it cannot saturate.
const ORIGIN_MS: u64 = 3_600_000;

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Reads both clocks.
pub fn now() -> Now {
    let mono_ms = ORIGIN_MS + start().elapsed().as_millis() as u64;
    let wall_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64;
    Now { mono_ms, wall_ms }
}

/// The monotonic clock as the standard library has it, for waits and deadlines at the edges.
pub fn instant() -> Instant {
    Instant::now()
}

/// Milliseconds since this process first asked for the time.
pub fn uptime_ms() -> u64 {
    start().elapsed().as_millis() as u64
}
