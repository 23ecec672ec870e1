//! Clocks that a test sets: a small library is preloaded into the program under test.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::gateway::Builder;

/// The library, built once for all tests.
fn library() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let build = || {
        let folder = TempDir::new().expect("a folder");
        let library = folder.path().join("clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/clock.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl")
            .output();
        let built = built.expect("this test needs a C compiler, as the build does");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        (folder, library)
    };
    &BUILT.get_or_init(build).1
}

/// The clocks of one gateway.
pub struct Clock(TempDir);

impl Clock {
    /// A wall clock that shows the true time and so many seconds.
    pub fn shifted_by(seconds: i64) -> Clock {
        let clock = Clock(TempDir::new().expect("a folder"));
        clock.set(seconds);
        clock
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("shift")
    }

    /// Moves the wall clock to the true time and so many seconds.
    pub fn set(&self, seconds: i64) {
        self.shift(seconds, 0);
    }

    /// Lets so much time have passed since the start, by both clocks. Who waits already notices within five seconds.
    pub fn pass(&self, seconds: i64) {
        self.shift(seconds, seconds);
    }

    fn shift(&self, wall: i64, monotonic: i64) {
        // Whole or not at all.
        let fresh = self.0.path().join("fresh");
        std::fs::write(&fresh, format!("{wall} {monotonic}")).expect("written");
        std::fs::rename(fresh, self.file()).expect("renamed");
    }

    pub fn of(&self, gateway: Builder) -> Builder {
        gateway
            .env("LD_PRELOAD", &library().display().to_string())
            .env("FREEWAY_TEST_CLOCK", &self.file().display().to_string())
    }
}
