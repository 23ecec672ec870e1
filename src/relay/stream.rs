//! One upstream stream on its way to the client: read, passed through its gate, sent as it comes.
//!
//! What comes before the gate is open, and the end, is the turn's business; in between the stream flows by itself.
use std::time::{Duration, Instant};

use super::books::Books;
use super::flow::Flow;
use super::gate::{Broken, Gate};
use super::turn::{Heard, Turn};
use crate::base::clock;
use crate::upstream::client::{ANSWER_BYTES_MAX, Reply};
use crate::upstream::watch::Watch;
use crate::wire::chunk::End;
use crate::wire::exchange::{Fault, FaultKind, Phase};
use crate::wire::sse::{Sniffed, sniff};

/// How long a stream may go on after its last finish, for the usage chunk and `[DONE]` that some never send.
const GRACE: Duration = Duration::from_millis(1_500);
/// How long the end of the connection's current answer is waited for, so that the connection can be used again.
const DRAIN: Duration = Duration::from_millis(100);
/// More than this after the end is no end.
const DRAIN_BYTES: usize = 64;
/// Bytes read at a time.
const PIECE_BYTES: usize = 4 * 1024;
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

/// What the relaying of one stream needs.
pub struct Relay<'t> {
    pub turn: &'t Turn,
    pub watch: &'t Watch,
    /// Longest wait between data events.
    pub idle: Duration,
    /// When the turn has to have committed.
    pub budget_ends: Instant,
}

impl Relay<'_> {
    /// Passes the stream on, all but its last frames. Gives the gate back as well: it knows what was used.
    pub fn run(&self, mut gate: Gate, reply: &mut Reply, books: &mut Books<'_>) -> (Gate, Streamed) {
        let mut piece = vec![0; PIECE_BYTES];
        match self.first(reply, &mut piece) {
            Ok(first) => self.take(&mut gate, &first),
            Err(streamed) => return (gate, streamed),
        }
        loop {
            if let Some(streamed) = self.pass(&mut gate, books) {
                return (gate, streamed);
            }
            if gate.runs() && self.turn.can_flow() {
                // Hundreds of streams may flow at once, and need no room of their own for it.
                piece = Vec::new();
                gate = self.let_flow(gate, reply);
                piece.resize(PIECE_BYTES, 0);
                if let Some(streamed) = self.pass(&mut gate, books) {
                    return (gate, streamed);
                }
            }
            let streamed = match reply.body.read(&mut piece) {
                Ok(0) => {
                    gate.close();
                    self.pass(&mut gate, books).unwrap_or_else(|| self.end(&mut gate))
                }
                Ok(count) => {
                    self.take(&mut gate, &piece[..count]);
                    continue;
                }
                // Nothing more came within the grace, or the upstream slammed the door after its last word.
                Err(fault) if gate.finished && fault.kind != FaultKind::Cut => self.end(&mut gate),
                Err(fault) => self.fault(fault),
            };
            return (gate, streamed);
        }
    }

    /// Reads until it is sure that events come; gives what came.
    fn first(&self, reply: &mut Reply, piece: &mut [u8]) -> Result<Vec<u8>, Streamed> {
        let mut first = Vec::new();
        loop {
            let count = reply.body.read(piece).map_err(|fault| self.fault(fault))?;
            first.extend_from_slice(&piece[..count]);
            match sniff(&first) {
                Sniffed::Events => return Ok(first),
                Sniffed::Undecided if count > 0 && first.len() < SNIFF_BYTES_MAX => {}
                _ if first.trim_ascii().is_empty() => return Err(Streamed::Other(first)),
                _ => return Err(self.other(reply, first)),
            }
        }
    }

    /// Takes more of the body into the gate.
    fn take(&self, gate: &mut Gate, bytes: &[u8]) {
        let was_finished = gate.finished;
        if gate.push(bytes) && !was_finished {
            self.watch.set_phase(Phase::Stream);
            self.renew_deadline(gate);
        }
    }

    /// An event came: the next has its time from now on.
    fn renew_deadline(&self, gate: &mut Gate) {
        // The grace runs from the finish on, whatever still comes.
        let by = clock::instant() + if gate.finished { GRACE } else { self.idle };
        self.watch.set_deadline(if gate.opens() { by } else { by.min(self.budget_ends) });
    }

    /// Sends what may leave; then says how the stream ended, if it did.
    fn pass(&self, gate: &mut Gate, books: &mut Books<'_>) -> Option<Streamed> {
        // What came before a failure counts as sent, however the network cut it up: the end of an answer must not depend
        // on whether it shared a packet with its beginning.
        let frames = gate.frames();
        if !frames.is_empty() {
            if !self.turn.committed() {
                books.committed();
            }
            self.turn.commit(frames);
            gate.sent();
            self.turn.set_pulse(self.watch);
            if let Some(tokens) = gate.wants_top_up() {
                gate.topped_up(tokens);
                books.top_up(tokens);
            }
        }
        match gate.broken.take() {
            Some(Broken::Failed(body)) => return Some(Streamed::Failed(body)),
            Some(Broken::TooLong) => {
                let message = "one event of its stream is too long";
                return Some(Streamed::Fault(stream_fault(FaultKind::TooLarge, message)));
            }
            None => {}
        }
        if self.turn.client_left() {
            return Some(Streamed::ClientLeft);
        }
        gate.done.then(|| self.end(gate))
    }

    /// Lets the stream flow by itself for as long as it can.
    fn let_flow(&self, gate: Gate, reply: &mut Reply) -> Gate {
        let Some(inflow) = reply.body.lend() else { return gate };
        let (deadline, pulse_at) = (self.watch.deadline(), self.watch.pulse_at());
        let flow = Flow {
            gate,
            inflow,
            idle: self.idle,
            deadline,
            pulse_at: pulse_at.unwrap_or(deadline),
            keep_alive: self.turn.keep_alive_every(),
            heard: Heard::default(),
        };
        let Flow { mut gate, inflow, deadline, pulse_at, .. } = *self.turn.let_flow(Box::new(flow));
        reply.body.take_back(inflow);
        self.watch.set_pulse(Some(pulse_at));
        match gate.finished {
            true => self.renew_deadline(&mut gate),
            false => self.watch.set_deadline(deadline),
        }
        gate
    }

    fn end(&self, gate: &mut Gate) -> Streamed {
        match gate.end() {
            (End::Complete, last) => Streamed::Whole(last),
            (End::Empty, _) => Streamed::Empty,
            (End::FewerChoices, _) => Streamed::FewerChoices,
            (End::Truncated, _) => {
                self.fault(stream_fault(FaultKind::Closed, "its stream stopped before it was finished"))
            }
        }
    }

    /// A fault below the answer, unless it is the client's leaving that broke the call.
    fn fault(&self, fault: Fault) -> Streamed {
        if self.turn.client_left() { Streamed::ClientLeft } else { Streamed::Fault(fault) }
    }

    /// Reads a body that is no event stream whole.
    fn other(&self, reply: &mut Reply, mut body: Vec<u8>) -> Streamed {
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

fn stream_fault(kind: FaultKind, message: &str) -> Fault {
    Fault { phase: Phase::Stream, kind, message: message.into(), request_sent: true }
}
