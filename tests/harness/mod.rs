//! What end-to-end tests are made of: a [`Gateway`] over [`Provider`] files that point at mock upstreams, a raw client,
//! and answers that can be asked. A test should read like its own description.
#![allow(dead_code, unused_imports, reason = "a helper may wait for the test that needs it")]

mod answer;
mod clock;
mod gateway;
mod gzip;
mod namespace;
mod provider;
mod request;
mod shelf;
mod sse;
mod terminal;
mod wal;
mod wire;

use std::thread;
use std::time::{Duration, Instant};

pub use answer::{Answer, Event, EventKind};
pub use clock::Clock;
pub use gateway::{Builder, Exit, Gateway};
pub use gzip::{gzip, gzip_bomb};
pub use mock_upstream::{
    Act, Call, ClosedPort, End, FOREVER, Framing, Gzip, MockOptions, MockUpstream, Newline, SilentPort, Step,
    ToolCall, ToolStyle, Usage, delta, event, finish,
};
pub use namespace::{in_private_network, sh};
pub use provider::{Provider, provider};
pub use request::{Request, hello, hello_with, weather_tool};
pub use serde_json::{Value, json};
pub use shelf::Shelf;
pub use sse::{DONE, fin, paused, relayed, t, with_usage};
pub use terminal::{Ran, Terminal};
pub use wal::committed_bytes;
pub use wire::{Head, Live, PATIENCE, Wire, lossy};

/// A well-behaved upstream with this name.
pub fn mock(name: &str) -> MockUpstream {
    mock_with(MockOptions { name: name.into(), ..MockOptions::default() })
}

pub fn mock_with(options: MockOptions) -> MockUpstream {
    MockUpstream::start(options).expect("a free port")
}

/// An upstream that answers so.
pub fn mock_that(name: &str, steps: impl IntoIterator<Item = Step>) -> MockUpstream {
    let mock = mock(name);
    mock.script(steps);
    mock
}

/// The chat calls that an upstream got.
pub fn chats(mock: &MockUpstream) -> Vec<Call> {
    mock.calls_to("/chat/completions")
}

/// A gateway over one provider whose upstream answers so; the model is `m`.
pub fn gateway_over(steps: impl IntoIterator<Item = Step>) -> (MockUpstream, Gateway) {
    let alpha = mock_that("alpha", steps);
    let gateway = Gateway::over([provider(&alpha)]);
    (alpha, gateway)
}

/// A gateway over two providers, `alpha` before `beta`, both with the model `m`; alpha's upstream answers so, beta's is
/// well-behaved.
pub fn two_with_first(steps: impl IntoIterator<Item = Step>) -> (MockUpstream, MockUpstream, Gateway) {
    let (alpha, beta) = (mock_that("alpha", steps), mock("beta"));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    (alpha, beta, gateway)
}

/// Waits until the upstream has seen the client of its latest chat leave, and fails if that took longer than 2 s from
/// `left_at` on.
#[track_caller]
pub fn expect_cut(mock: &MockUpstream, left_at: Instant) {
    let left = || chats(mock).last().and_then(|call| call.left_after.map(|after| call.at + after));
    eventually("the upstream call is cut", || left().is_some());
    let took = left().expect("waited for above").saturating_duration_since(left_at);
    assert!(took < Duration::from_secs(2), "the cut took {took:?}");
}

/// Waits until something holds; fails after [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the same thing on many threads at once, and gives all results in order.
pub fn at_once<T: Send>(times: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = std::sync::Barrier::new(times);
    thread::scope(|scope| {
        let started: Vec<_> = (0..times)
            .map(|index| {
                let (barrier, run) = (&barrier, &run);
                scope.spawn(move || {
                    barrier.wait();
                    run(index)
                })
            })
            .collect();
        started.into_iter().map(|thread| thread.join().expect("no thread of the test fails")).collect()
    })
}
