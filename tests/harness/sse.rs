//! Event streams in the notation of their cases: `t("x")`, `fin()`, `DONE`.
use std::time::{Duration, Instant};

use mock_upstream::{Act, Step, delta, event, finish};
use serde_json::json;

use super::answer::{Answer, EventKind};
use super::gateway::Gateway;
use super::{chats, gateway_over};

pub const DONE: &str = "data: [DONE]\n\n";

/// The event of a content delta.
pub fn t(text: &str) -> String {
    event(&delta(text))
}

/// The event that finishes choice 0.
pub fn fin() -> String {
    event(&finish("stop"))
}

/// What a client gets of a stream made of exactly these writes, with a short pause after each.
#[track_caller]
pub fn relayed<T: AsRef<[u8]>>(writes: impl IntoIterator<Item = T>) -> Answer {
    let acts = writes.into_iter().flat_map(|bytes| [Act::write(bytes), Act::Pause(20)]);
    let (alpha, gateway) = gateway_over([Step::writes(acts)]);
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!(chats(&alpha).len(), 1, "one upstream call only");
    answer
}

/// A stream that asks for usage.
#[track_caller]
pub fn with_usage(gateway: &Gateway) -> Answer {
    gateway.stream_with("m", json!({"stream_options": {"include_usage": true}})).well_formed_stream()
}

/// These writes with a pause of `ms` between them, and then nothing, with the socket open.
pub fn paused<T: AsRef<[u8]>>(writes: impl IntoIterator<Item = T>, ms: u64) -> Step {
    let acts = writes.into_iter().flat_map(|bytes| [Act::write(bytes), Act::Pause(ms)]);
    Step::writes(acts.chain([Act::Hold]))
}

impl Answer {
    /// The texts of the stream and when each came.
    pub fn texts(&self) -> Vec<(String, Instant)> {
        let texts = self.events().into_iter().map(|event| (event.text(), event.at));
        texts.filter(|(text, _)| !text.is_empty()).collect()
    }

    /// Fails unless these texts came in this order, each at least `apart` after the one before.
    #[track_caller]
    pub fn came_apart(&self, expected: &[&str], apart: Duration) {
        let texts = self.texts();
        let said: Vec<&str> = texts.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(said, expected, "{self}");
        for pair in texts.windows(2) {
            let gap = pair[1].1 - pair[0].1;
            assert!(gap >= apart, "{:?} came only {gap:?} after {:?}", pair[1].0, pair[0].0);
        }
    }

    /// How many comments came.
    pub fn comments(&self) -> usize {
        self.events().iter().filter(|event| matches!(event.kind, EventKind::Comment(_))).count()
    }
}
