//! Words that every layer uses: time, randomness, text, bounded containers. No I/O but the two clocks and the
//! operating system's random source, each read in one place.
pub mod base64;
pub mod bounded;
pub mod calendar;
pub mod clock;
pub mod histogram;
pub mod packed;
pub mod redact;
pub mod rng;
pub mod text;
pub mod varint;
