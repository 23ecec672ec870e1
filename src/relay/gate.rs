//! The gate of one upstream stream: bytes in, shaped frames out, held back until they are an answer.
//!
//! Frames are held until the first that is part of an answer, and until every choice asked for has shown itself. Until
//! then any failure can move on to somebody else without the client noticing; after it none can. Pure.
use crate::context::tokens;
use crate::wire::chunk::{ChunkShaper, End, ShapeOptions, Step};
use crate::wire::sse::{Decoder, SseItem};
use crate::wire::usage::Usage;

/// A reservation is topped up whenever so many further tokens came.
const TOP_UP_TOKENS: u64 = 256;
/// Frames held for choices that have not shown themselves. An upstream that gives one whole choice after the other
/// reaches it with a long first one, and is believed then.
const HELD_BYTES_MAX: usize = 256 * 1024;

/// The gate of one stream.
pub struct Gate {
    decoder: Decoder,
    shaper: ChunkShaper,
    prompt_tokens: u64,
    topped_up_tokens: u64,
    /// Shaped frames that have not left.
    held: Vec<u8>,
    open: bool,
    /// Every choice asked for has finished.
    pub finished: bool,
    /// `[DONE]` came, or what stands for it.
    pub done: bool,
    /// The event that ended the attempt.
    pub broken: Option<Broken>,
}

/// An event that ends an attempt.
pub enum Broken {
    /// The upstream says under 200 that it failed, in these words.
    Failed(Vec<u8>),
    /// It is longer than any may be.
    TooLong,
}

impl Gate {
    /// The gate of a stream of which nothing has come: the answer to a prompt of so many tokens.
    pub fn new(options: ShapeOptions, prompt_tokens: u64) -> Gate {
        Gate {
            decoder: Decoder::new(),
            shaper: ChunkShaper::new(options),
            prompt_tokens,
            topped_up_tokens: 0,
            held: Vec::new(),
            open: false,
            finished: false,
            done: false,
            broken: None,
        }
    }

    /// Takes more of the body, and shapes every event that is whole. Whether there was any; comments do not show that the
    /// upstream is at work.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        self.decoder.push(bytes);
        self.shape()
    }

    /// The body ends here: takes what it ends with.
    pub fn close(&mut self) -> bool {
        self.decoder.finish();
        self.shape()
    }

    fn shape(&mut self) -> bool {
        let mut alive = false;
        while let Some(item) = self.decoder.next() {
            let step = match item {
                SseItem::Comment => continue,
                SseItem::Data(data) => self.shaper.data(data, &mut self.held),
                SseItem::Error(data) => self.shaper.error(data),
                SseItem::TooLong => {
                    self.broken = Some(Broken::TooLong);
                    break;
                }
            };
            alive = true;
            match step {
                Step::Nothing | Step::Delta => {}
                Step::Finished => self.finished = true,
                Step::Done => {
                    self.done = true;
                    break;
                }
                // The answer was whole before, as it is when the door is slammed.
                Step::Failed(_) if self.finished => {
                    self.done = true;
                    break;
                }
                Step::Failed(body) => {
                    self.broken = Some(Broken::Failed(body));
                    break;
                }
            }
        }
        alive
    }

    /// Whether the gate is open from now on.
    pub fn opens(&mut self) -> bool {
        let sure = || self.shaper.has_all_choices() || self.held.len() > HELD_BYTES_MAX;
        self.open |= self.shaper.is_answer() && sure();
        self.open
    }

    /// Whether the stream is in the midst of an answer, where each chunk is passed on like the one before.
    pub fn runs(&self) -> bool {
        self.open && !self.finished && !self.done && self.broken.is_none()
    }

    /// The frames that may leave; none before the gate opens.
    pub fn frames(&mut self) -> &[u8] {
        if self.opens() { &self.held } else { b"" }
    }

    /// They have left.
    pub fn sent(&mut self) {
        self.held.clear();
    }

    /// The tokens of output so far, when they are so many that the reservation has to grow.
    pub fn wants_top_up(&self) -> Option<u64> {
        Some(self.estimate().completion).filter(|tokens| *tokens >= self.topped_up_tokens + TOP_UP_TOKENS)
    }

    /// The reservation has grown to `tokens`.
    pub fn topped_up(&mut self, tokens: u64) {
        self.topped_up_tokens = tokens;
    }

    /// Ends the stream: whether it was an answer, and its last frames.
    pub fn end(&mut self) -> (End, Vec<u8>) {
        let end = self.shaper.end(self.estimate(), &mut self.held);
        (end, std::mem::take(&mut self.held))
    }

    /// What the upstream said about usage, else our estimate.
    pub fn usage(&self) -> Usage {
        tokens::usage(self.shaper.usage(), self.prompt_tokens, self.shaper.output())
    }

    /// The same as the `usage` object of an answer, with all details that the upstream gave.
    pub fn usage_object(&self) -> Vec<u8> {
        self.shaper.usage_object(self.usage())
    }

    /// How many events could not be read, and were left out.
    pub fn malformed(&self) -> u32 {
        self.shaper.malformed()
    }

    fn estimate(&self) -> Usage {
        tokens::estimated_usage(self.prompt_tokens, self.shaper.output())
    }
}
