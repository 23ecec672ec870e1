//! One upstream stream on its way to the client: decoded, shaped, held back until it is an answer, then passed on as it
//! comes.
//!
//! The gate: frames are held until the first that is part of an answer, and until every choice asked for has shown
//! itself. Until then any failure can move on to somebody else without the client noticing; after it none can.
use std::time::{Duration, Instant};

use super::books::Books;
use super::turn::Turn;
use crate::base::clock;
use crate::context::tokens;
use crate::upstream::client::{ANSWER_BYTES_MAX, Reply};
use crate::upstream::watch::Watch;
use crate::wire::chunk::{ChunkShaper, End, ShapeOptions, Step};
use crate::wire::exchange::{Fault, FaultKind, Phase};
use crate::wire::sse::{Decoder, Sniffed, SseItem, sniff};
use crate::wire::usage::Usage;

/// How long a stream may go on after its last finish, for the usage chunk and `[DONE]` that some never send.
const GRACE: Duration = Duration::from_millis(1_500);
/// How long the end of the connection's current answer is waited for, so that the connection can be used again.
const DRAIN: Duration = Duration::from_millis(100);
/// More than this after the end is no end.
const DRAIN_BYTES: usize = 64;
/// Bytes read at a time.
const PIECE_BYTES: usize = 4 * 1024;
/// A reservation is topped up whenever so many further tokens came.
const TOP_UP_TOKENS: u64 = 256;
/// Frames held for choices that have not shown themselves. An upstream that gives one whole choice after the other
/// reaches it with a long first one, and is believed then.
const HELD_BYTES_MAX: usize = 256 * 1024;
/// Bytes looked at before a body counts as no event stream.
const SNIFF_BYTES_MAX: usize = 4 * 1024;

/// How an upstream's answer to a stream request ended.
pub enum Streamed {
    /// The answer is whole; these are its last frames, which the client has not got yet.
    Whole(Vec<u8>),
    ClientLeft,
    Fault(Fault),
    /// The upstream said under 200 that it failed.
    Failed(Vec<u8>),
    /// It finished without an answer.
    Empty,
    /// It finished with fewer choices than were asked for.
    FewerChoices,
    /// The body is no event stream: JSON, or something else entirely.
    Other(Vec<u8>),
}

/// What the relaying of one stream needs, and what it leaves behind.
pub struct Relay<'t> {
    turn: &'t Turn,
    watch: &'t Watch,
    idle: Duration,
    /// When the turn has to have committed.
    budget_ends: Instant,
    shaper: ChunkShaper,
    decoder: Decoder,
    /// Shaped frames that have not left.
    held: Vec<u8>,
    topped_up_tokens: u64,
    /// Whether the gate is open.
    open: bool,
    finished: bool,
    done: bool,
}

impl<'t> Relay<'t> {
    /// `idle` is the longest wait between data events; the first part of the answer must come before `budget_ends`.
    pub fn new(
        turn: &'t Turn,
        watch: &'t Watch,
        idle: Duration,
        budget_ends: Instant,
        options: ShapeOptions,
    ) -> Relay<'t> {
        Relay {
            turn,
            watch,
            idle,
            budget_ends,
            shaper: ChunkShaper::new(options),
            decoder: Decoder::new(),
            held: Vec::new(),
            topped_up_tokens: 0,
            open: false,
            finished: false,
            done: false,
        }
    }

    /// Passes the stream on, all but its last frames.
    pub fn run(&mut self, reply: &mut Reply, books: &mut Books<'_>) -> Streamed {
        let mut piece = vec![0; PIECE_BYTES];
        let mut first = Vec::new();
        let mut is_events = false;
        loop {
            let count = match reply.body.read(&mut piece) {
                Ok(count) => count,
                // Nothing more came within the grace, or the upstream slammed the door after its last word.
                Err(fault) if self.finished && fault.kind != FaultKind::Cut => return self.end(),
                Err(fault) => return self.fault(fault),
            };
            if !is_events {
                first.extend_from_slice(&piece[..count]);
                match sniff(&first) {
                    Sniffed::Events => is_events = true,
                    Sniffed::Undecided if count > 0 && first.len() < SNIFF_BYTES_MAX => continue,
                    _ if first.trim_ascii().is_empty() => return Streamed::Other(first),
                    _ => return self.other(reply, first),
                }
                self.decoder.push(&first);
                first = Vec::new();
            } else {
                self.decoder.push(&piece[..count]);
            }
            if count == 0 {
                self.decoder.finish();
            }
            let failed = self.take_items();
            // What came before a failure counts as sent, however the network cut it up: the end of an answer must not
            // depend on whether it shared a packet with its beginning.
            self.pass(books);
            if let Some(failed) = failed {
                return failed;
            }
            if self.turn.client_left() {
                return Streamed::ClientLeft;
            }
            if self.done || count == 0 {
                return self.end();
            }
        }
    }

    /// What the upstream said about usage, else our estimate.
    pub fn usage(&self) -> Usage {
        tokens::usage(self.shaper.usage(), self.turn.prompt_tokens(), self.shaper.output())
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
        tokens::estimated_usage(self.turn.prompt_tokens(), self.shaper.output())
    }

    /// Shapes every event that has come; an event that ends the attempt is returned.
    fn take_items(&mut self) -> Option<Streamed> {
        let (was_finished, mut alive) = (self.finished, false);
        let mut failed = None;
        while let Some(item) = self.decoder.next() {
            let step = match item {
                SseItem::Comment => continue,
                SseItem::Data(data) => self.shaper.data(data, &mut self.held),
                SseItem::Error(data) => self.shaper.error(data),
                SseItem::TooLong => {
                    let message = "one event of its stream is too long".to_owned();
                    let kind = FaultKind::TooLarge;
                    failed = Some(Streamed::Fault(Fault {
                        phase: Phase::Stream,
                        kind,
                        message,
                        request_sent: true,
                    }));
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
                    failed = Some(Streamed::Failed(body));
                    break;
                }
            }
        }
        if alive && !was_finished {
            self.watch.set_phase(Phase::Stream);
            // The grace runs from the finish on, whatever still comes.
            let by = clock::instant() + if self.finished { GRACE } else { self.idle };
            self.watch.set_deadline(if self.opens() { by } else { by.min(self.budget_ends) });
        }
        failed
    }

    /// Whether the gate is open from now on.
    fn opens(&mut self) -> bool {
        let sure = || self.shaper.has_all_choices() || self.held.len() > HELD_BYTES_MAX;
        self.open |= self.shaper.is_answer() && sure();
        self.open
    }

    /// Sends what may leave.
    fn pass(&mut self, books: &mut Books<'_>) {
        if self.held.is_empty() || !self.opens() {
            return;
        }
        if !self.turn.committed() {
            books.committed();
        }
        self.turn.commit(&self.held);
        self.held.clear();
        self.turn.set_pulse(self.watch);
        let tokens = self.estimate().completion;
        if tokens >= self.topped_up_tokens + TOP_UP_TOKENS {
            self.topped_up_tokens = tokens;
            books.top_up(tokens);
        }
    }

    fn end(&mut self) -> Streamed {
        match self.shaper.end(self.estimate(), &mut self.held) {
            End::Complete => Streamed::Whole(std::mem::take(&mut self.held)),
            End::Empty => Streamed::Empty,
            End::FewerChoices => Streamed::FewerChoices,
            End::Truncated => self.fault(Fault {
                phase: Phase::Stream,
                kind: FaultKind::Closed,
                message: "its stream stopped before it was finished".into(),
                request_sent: true,
            }),
        }
    }

    /// A fault below the answer, unless it is the client's leaving that broke the call.
    fn fault(&mut self, fault: Fault) -> Streamed {
        if self.turn.client_left() { Streamed::ClientLeft } else { Streamed::Fault(fault) }
    }

    /// Reads a body that is no event stream whole.
    fn other(&mut self, reply: &mut Reply, mut body: Vec<u8>) -> Streamed {
        match reply.body.read_all(ANSWER_BYTES_MAX) {
            Ok(rest) => {
                body.extend_from_slice(&rest);
                Streamed::Other(body)
            }
            Err(fault) => self.fault(fault),
        }
    }

    /// Reads the end of the answer, so that the connection can carry the next one.
    pub fn drain(&self, reply: &mut Reply) {
        self.watch.set_pulse(None);
        self.watch.set_deadline(clock::instant() + DRAIN);
        // Whatever comes or fails now is of no interest: the connection is closed unless this is its clean end.
        let _ = reply.body.read(&mut [0; DRAIN_BYTES]);
    }
}
