//! The thread of one connection: it polices, reads and admits requests one after the other, and has each of them answered.
//!
//! It looks at a request by peeking before anything is taken off the socket, so that tiny_http, which parses heads and
//! delimits bodies, is only ever given what cannot harm it. What has come whole is read here at once, and so is what
//! tiny_http would refuse or read otherwise. What calls upstreams runs here as well, on a worker's place.
//!
//! This file must not know routes or what is being answered.
use std::io::{self, IoSlice, Write};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::{Answer, Fields, Framing, Responder, internal_error, write_answer};
use super::body::{Coding, Fault, Intake, gunzip};
use super::budget::Share;
use super::exchange::{Exchange, Kept, Terms};
use super::head::{HEAD_BYTES_MAX, Head, Length, Refusal, Scan, check_head, scan_head};
use super::line::{LINGER_BODY_BYTES_MAX, LINGER_BYTES_MAX, Line};
use super::server::House;
use super::sock;
use super::workers::Entry;
use crate::base::clock;
use crate::upstream::cut::Cut;

/// Decides about requests. Called on the connection's thread with a checked head, before the body.
pub type Door = Box<dyn Fn(Head, SocketAddr) -> Admission + Send + Sync>;

/// What the door says about a head.
pub enum Admission {
    /// The answer, which does not depend on the body. If the body has not come yet, the connection ends with it.
    Answer(Answer),
    /// The same after a pause, which only this connection feels.
    Late(Answer, Duration),
    /// Read the body under these terms, then go on.
    Body(Terms, Box<dyn FnOnce(Vec<u8>) -> Next>),
}

/// What is to be done with a request that is whole.
pub enum Next {
    Answer(Answer),
    /// It calls upstreams, on a worker's place. When none is free and the queue is full, the client gets a 503.
    Work(Box<dyn Work>),
    /// It needs no place, so that upstream calls cannot starve it: live views and the like.
    Here(Box<dyn FnOnce(Responder)>),
}

/// What calls upstreams for a request.
pub trait Work {
    /// What ends its calls, and its wait for a place before them. `own` is cut when the client leaves.
    fn ended_by(&self, own: &Arc<Cut>) -> Arc<Cut> {
        Arc::clone(own)
    }

    /// Answers. Without a place if it was ended before it had one: then it must call nobody, but a request that nobody
    /// waits for is to be noted all the same.
    fn run(self: Box<Self>, responder: Responder);
}

impl<F: FnOnce(Responder)> Work for F {
    fn run(self: Box<Self>, responder: Responder) {
        self(responder);
    }
}

/// The requests of one connection as tiny_http reads them; it ends at the first that tiny_http refuses.
pub type Requests = Box<dyn Iterator<Item = tiny_http::Request> + Send>;

/// Bytes of the first look at a request. Nearly all heads fit.
const LOOK_BYTES: usize = 4096;
/// Empty lines before a request that are overlooked, as RFC 9112 (2.2) asks for.
const BLANK_LINES_MAX: usize = 4;
/// tiny_http reads bodies up to this by itself while it parses the head, without any deadline.
const TINY_PREREAD_BYTES: u64 = 1024;
/// A client that asks again this soon after its answer is one on this machine, and likely to go on like that.
const HASTE: Duration = Duration::from_micros(200);
/// For so long its next request is waited for awake, unless upstreams are called for it: to wake up on a core that has
/// fallen asleep would take longer than an answer from memory does.
const AWAKE: Duration = Duration::from_micros(100);
/// A client that says nothing for so long is likely to say nothing for longer: what its thread can do without is released.
const NAP: Duration = Duration::from_secs(1);
/// Looks at a growing head before there are pauses between them.
const HASTY_LOOKS: u32 = 8;
/// Longest such pause. It bounds what a client that sends single bytes can cost.
const PAUSE_MS_MAX: u64 = 50;

/// Serves one connection until it ends.
pub fn serve(house: &House, line: Arc<Line>, requests: Requests) {
    let mut reader =
        Reader { house, unfinished: None, ticket: None, requests, line, taken_bytes: 0, hasty: false };
    while let Some((head, shape)) = reader.next_request() {
        if let After::Close = reader.serve(head, shape) {
            break;
        }
    }
    // Before tiny_http lets go of a request that was not read to its end: it would read on, at the client's pace.
    reader.line.close();
}

/// Fields are dropped in order: tiny_http's descriptors before our own, so that the line keeps its seat until no
/// descriptor of this connection is left.
struct Reader<'h> {
    house: &'h House,
    /// A request of tiny_http whose body failed.
    unfinished: Option<tiny_http::Request>,
    /// tiny_http's writer for the current request. All answers go out on the line; holding this, and dropping it when
    /// the answer is complete, keeps tiny_http from answering and in step.
    ticket: Option<Box<dyn Write + Send>>,
    requests: Requests,
    line: Arc<Line>,
    /// All bytes of the requests so far.
    taken_bytes: u64,
    /// The last request came so soon after the answer before it, and called nobody, that the next is waited for awake.
    hasty: bool,
}

/// What follows a request on its connection.
enum After {
    Next,
    Close,
}

/// What must be known of a request when its head has gone to the door.
struct Shape {
    framing: Framing,
    length: Length,
    head_bytes: usize,
    /// Bytes that had come when the head was complete.
    seen_bytes: usize,
    expects_continue: bool,
    plain: bool,
    coding: Coding,
}

impl Shape {
    fn of(head: &Head, seen_bytes: usize) -> Shape {
        Shape {
            framing: Framing::of(head),
            length: head.length,
            head_bytes: head.wire_bytes,
            seen_bytes,
            expects_continue: head.expects_continue,
            plain: head.plain,
            coding: Coding::of(head.header("content-encoding")),
        }
    }

    /// The size of the request on the wire if it has come whole.
    fn whole_bytes(&self) -> Option<usize> {
        let Length::Known(length) = self.length else {
            return None;
        };
        let bytes = self.head_bytes.checked_add(usize::try_from(length).ok()?)?;
        (bytes <= self.seen_bytes).then_some(bytes)
    }

    /// Whether tiny_http can take this request: it reads it as we do, waits for nothing without our deadline, and
    /// finds no other request behind it that it would swallow into its buffer.
    fn suits_tiny_http(&self, length: u64) -> bool {
        let total = (self.head_bytes as u64).saturating_add(length);
        let seen = self.seen_bytes as u64;
        self.plain && seen <= total && (length > TINY_PREREAD_BYTES || seen == total)
    }
}

impl Reader<'_> {
    /// Waits for the next request. `None` when the connection is over.
    fn next_request(&mut self) -> Option<(Head, Shape)> {
        let mut look = [0; LOOK_BYTES];
        let seen = self.first_bytes(&mut look)?;
        self.ticket = None;
        match self.read_head(&mut look, seen) {
            // Only now is the line busy: while heads are coming in, slow ones are the first to make room for others.
            Ok((head, seen)) => self.line.begin().then(|| {
                let shape = Shape::of(&head, seen);
                (head, shape)
            }),
            Err(Fault::Gone) => None,
            Err(Fault::Refused(refusal)) => {
                self.house.gauges.count_refused();
                self.part(Framing::LAST, &refusal.into(), &Vec::new(), LINGER_BYTES_MAX);
                None
            }
        }
    }

    /// Waits for bytes, and looks at them.
    fn first_bytes(&mut self, look: &mut [u8]) -> Option<usize> {
        let rested = clock::instant();
        if self.hasty {
            self.stay_awake(rested);
        }
        let seen = self.sleep_until_bytes(look);
        // The first request of a connection follows no answer.
        self.hasty = self.taken_bytes > 0 && rested.elapsed() < HASTE;
        seen
    }

    /// Waits a moment without sleep.
    fn stay_awake(&self, since: Instant) {
        while !self.line.has_input() && since.elapsed() < AWAKE {
            // Whoever else has work on this core goes first.
            std::thread::yield_now();
        }
    }

    fn sleep_until_bytes(&self, look: &mut [u8]) -> Option<usize> {
        let idle = Duration::from_millis(self.house.settings.idle_ms);
        let mut patience = NAP.min(idle);
        loop {
            self.line.set_read_timeout(patience);
            match self.line.peek(look) {
                Ok(0) => return None,
                Ok(seen) => return Some(seen),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    patience = self.idle_left(idle)?;
                    sock::release_idle_stack();
                }
                Err(_) => return None,
            }
        }
    }

    /// What is left of the time that this connection may stay without a request.
    fn idle_left(&self, idle: Duration) -> Option<Duration> {
        let since_ms = self.line.idle_since_ms()?;
        let left =
            idle.checked_sub(Duration::from_millis((clock::uptime_ms() + 1).saturating_sub(since_ms)))?;
        (left.as_millis() > 0).then_some(left)
    }

    /// Reads the head by peeking, of which `look` holds the first `seen` bytes. Gives the bytes seen in all, too.
    fn read_head(&mut self, look: &mut [u8], mut seen: usize) -> Result<(Head, usize), Fault> {
        let blank = blank_bytes(look.get(..seen).unwrap_or_default());
        if blank > 0 {
            self.skip(blank)?;
            look.copy_within(blank..seen, 0);
            seen -= blank;
        }
        let bytes = look.get(..seen).unwrap_or_default();
        match scan_head(bytes, 0) {
            Scan::Complete(end) => Ok((check_head(bytes.get(..end).unwrap_or_default())?, seen)),
            Scan::Refused(refusal) => Err(refusal.into()),
            Scan::Partial => self.read_slow_head(seen),
        }
    }

    /// Reads a head that comes in pieces. Each look waits for more bytes than the last one saw, and no memory is held
    /// while it waits.
    fn read_slow_head(&self, mut seen: usize) -> Result<(Head, usize), Fault> {
        let deadline = Instant::now() + Duration::from_millis(self.house.settings.head_ms);
        for round in 0.. {
            if !self.line.wait_for(seen + 1, deadline).map_err(|_| Fault::Gone)? {
                // Of a request that has not begun nobody waits for an answer.
                let late = Refusal::new(408, "", "the request head did not arrive in time");
                return Err(if seen == 0 { Fault::Gone } else { late.into() });
            }
            std::thread::sleep(pause_before(round));
            let mut look = vec![0; (seen * 2).clamp(LOOK_BYTES, HEAD_BYTES_MAX + 1)];
            let now = self.line.peek(&mut look).map_err(|_| Fault::Gone)?;
            let bytes = look.get(..now).unwrap_or_default();
            match scan_head(bytes, seen) {
                Scan::Complete(end) => return Ok((check_head(bytes.get(..end).unwrap_or_default())?, now)),
                Scan::Refused(refusal) => return Err(refusal.into()),
                Scan::Partial if now <= seen && self.line.has_hung_up() => return Err(Fault::Gone),
                // Without progress (urgent data ends every look) the pauses grow all the same.
                Scan::Partial => seen = now,
            }
        }
        Err(Fault::Gone)
    }

    /// Serves one request, of which only the head has been seen.
    fn serve(&mut self, head: Head, shape: Shape) -> After {
        let peer = self.line.peer();
        let admission = self.guarded(|| (self.house.door)(head, peer));
        match admission {
            Some(Admission::Body(terms, then)) => self.admit(&shape, terms, then),
            Some(Admission::Answer(answer)) => self.answer_early(&shape, &answer, &Vec::new()),
            Some(Admission::Late(answer, pause)) => {
                std::thread::sleep(pause);
                self.answer_early(&shape, &answer, &Vec::new())
            }
            None => self.answer_early(&shape, &Answer::error(&internal_error()), &Vec::new()),
        }
    }

    fn admit(&mut self, shape: &Shape, terms: Terms, then: Box<dyn FnOnce(Vec<u8>) -> Next>) -> After {
        if let Err(refusal) = check_admissible(shape, terms.max_bytes) {
            return self.answer_early(shape, &terms.error_answer(&refusal.to_error()), &terms.headers);
        }
        let mut framing = shape.framing;
        let mut share = Share::new(&self.house.budget);
        let body = match self.take_body(shape, &mut framing, terms.max_bytes, &mut share) {
            Ok(body) => body,
            Err(Fault::Gone) => return After::Close,
            Err(Fault::Refused(refusal)) => {
                drop(share);
                self.part(
                    framing,
                    &terms.error_answer(&refusal.to_error()),
                    &terms.headers,
                    LINGER_BODY_BYTES_MAX,
                );
                return After::Close;
            }
        };
        match self.guarded(|| then(body)) {
            Some(Next::Answer(answer)) => self.answer(framing, &answer, &terms.headers),
            Some(Next::Work(work)) => {
                self.hasty = false;
                self.carry(framing, terms, share, |responder| self.work(responder, work))
            }
            Some(Next::Here(run)) => self.carry(framing, terms, share, run),
            None => self.answer(framing, &terms.error_answer(&internal_error()), &terms.headers),
        }
    }

    /// Has `run` answer a request. Nothing is read from the client meanwhile; that it leaves is noticed elsewhere.
    fn carry(&self, framing: Framing, terms: Terms, share: Share, run: impl FnOnce(Responder)) -> After {
        let kept = Kept::default();
        let exchange = Exchange::new(&self.line, &kept, framing, share);
        self.guarded(|| run(Responder::new(exchange, terms)));
        if kept.get() {
            return After::Next;
        }
        self.line.linger(LINGER_BYTES_MAX);
        After::Close
    }

    /// Runs `work` on a place of its own.
    fn work(&self, mut responder: Responder, work: Box<dyn Work>) {
        match self.house.workers.enter(&work.ended_by(responder.cut())) {
            Entry::Full => {
                let full = Refusal::overloaded("all workers are busy and the queue is full");
                // Whether the client could be told or not, the exchange is over.
                let _ = responder.error(&full.to_error());
            }
            Entry::Place(place) => {
                responder.hold(place);
                work.run(responder);
            }
            Entry::Ended => work.run(responder),
        }
    }

    /// Takes the request off the socket and reads its body, through tiny_http where it can.
    fn take_body(
        &mut self,
        shape: &Shape,
        framing: &mut Framing,
        max_bytes: usize,
        share: &mut Share,
    ) -> Result<Vec<u8>, Fault> {
        let line = Arc::clone(&self.line);
        let deadline = Instant::now() + Duration::from_millis(self.house.settings.body_ms);
        let arrived = shape.whole_bytes().is_some();
        let mut intake = Intake { line: &line, deadline, max_bytes, arrived, share };
        let body = match shape.length {
            // One that has come whole is not parsed a second time.
            Length::Known(length) if !arrived && shape.suits_tiny_http(length) => {
                self.take_by_tiny_http(shape, framing, &mut intake, length as usize)?
            }
            length => self.take_ourselves(shape, &mut intake, length)?,
        };
        match shape.coding {
            Coding::Gzip => Ok(gunzip(body, max_bytes, intake.share)?),
            Coding::Identity | Coding::Unknown => Ok(body),
        }
    }

    fn take_by_tiny_http(
        &mut self,
        shape: &Shape,
        framing: &mut Framing,
        intake: &mut Intake<'_>,
        length: usize,
    ) -> Result<Vec<u8>, Fault> {
        // It refuses nothing that has passed our checks; if it did, it would have answered already.
        let mut request = self.requests.next().ok_or(Fault::Gone)?;
        let body = match intake.read_length(request.as_reader(), length) {
            Ok(body) => body,
            Err(fault) => {
                self.unfinished = Some(request);
                return Err(fault);
            }
        };
        self.ticket = Some(request.into_writer());
        self.taken_bytes += (shape.head_bytes + length) as u64;
        // tiny_http reads ahead. If anything but this request has ever come, it may hold the beginning of the next
        // one, which we could not look at before it acts on it: so this one is the last.
        framing.keep &= self.line.received_bytes() == Some(self.taken_bytes);
        Ok(body)
    }

    /// Reads what has come whole, and what tiny_http would refuse, could be harmed by, or would read too much of.
    fn take_ourselves(
        &mut self,
        shape: &Shape,
        intake: &mut Intake<'_>,
        length: Length,
    ) -> Result<Vec<u8>, Fault> {
        self.skip(shape.head_bytes)?;
        if shape.expects_continue && shape.seen_bytes == shape.head_bytes {
            self.line.write(&mut [IoSlice::new(CONTINUE)]).map_err(|_| Fault::Gone)?;
        }
        let (body, taken_bytes) = match length {
            Length::Known(length) => (intake.read_length(&mut &*self.line, length as usize)?, length),
            Length::Chunked => intake.read_chunked()?,
        };
        self.taken_bytes += taken_bytes;
        Ok(body)
    }

    /// Answers a request whose body is not wanted.
    fn answer_early(&mut self, shape: &Shape, answer: &Answer, common: &Fields) -> After {
        match shape.whole_bytes() {
            Some(bytes) if self.skip(bytes).is_ok() => self.answer(shape.framing, answer, common),
            Some(_) => After::Close,
            None => {
                self.part(shape.framing, answer, common, LINGER_BODY_BYTES_MAX);
                After::Close
            }
        }
    }

    /// Answers a request that has been read.
    fn answer(&self, framing: Framing, answer: &Answer, common: &Fields) -> After {
        let framing = Framing { keep: framing.keep && !self.line.is_stopping(), ..framing };
        if !framing.keep {
            self.part(framing, answer, common, LINGER_BYTES_MAX);
            return After::Close;
        }
        if write_answer(&self.line, framing, answer, common).is_err() {
            return After::Close;
        }
        self.line.rest();
        After::Next
    }

    /// Answers for the last time on this connection, and lets the client send so much more.
    fn part(&self, framing: Framing, answer: &Answer, common: &Fields, linger_bytes_max: usize) {
        let framing = Framing { keep: false, ..framing };
        if write_answer(&self.line, framing, answer, common).is_ok() {
            self.line.linger(linger_bytes_max);
        }
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Fault> {
        self.taken_bytes += bytes as u64;
        self.line.skip(bytes).map_err(|_| Fault::Gone)
    }

    /// Runs code that is not ours to trust; `None` when it panicked, which the panic hook has reported.
    fn guarded<T>(&self, run: impl FnOnce() -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(run));
        if result.is_err() {
            self.house.gauges.count_panic();
        }
        result.ok()
    }
}

/// The interim answer to `Expect: 100-continue`.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What can be told about a body before any of it is read.
fn check_admissible(shape: &Shape, max_bytes: usize) -> Result<(), Refusal> {
    if matches!(shape.length, Length::Known(length) if length > max_bytes as u64) {
        return Err(Refusal::too_large());
    }
    if shape.coding == Coding::Unknown {
        return Err(Refusal::new(415, "", "bodies may be sent plain or with `Content-Encoding: gzip`"));
    }
    Ok(())
}

/// How many bytes of empty lines stand before the request.
fn blank_bytes(bytes: &[u8]) -> usize {
    bytes.chunks_exact(2).take(BLANK_LINES_MAX).take_while(|pair| *pair == b"\r\n").count() * 2
}

/// How long a head that comes in very many pieces waits before the next look.
fn pause_before(round: u32) -> Duration {
    round
        .checked_sub(HASTY_LOOKS)
        .map_or(Duration::ZERO, |late| Duration::from_millis((1 << late.min(16)).min(PAUSE_MS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_in_many_pieces_is_looked_at_a_bounded_number_of_times() {
        assert_eq!(pause_before(HASTY_LOOKS - 1), Duration::ZERO);
        let spent: Duration = (0..320).map(pause_before).sum();
        assert!(spent > Duration::from_secs(15), "{spent:?}");
        assert!(pause_before(u32::MAX) <= Duration::from_millis(PAUSE_MS_MAX));
    }

    #[test]
    fn tiny_http_gets_what_it_can_neither_wait_for_nor_read_beyond() {
        let suits = |field: &str, length: u64, seen_of_body: usize| {
            let text = format!("POST / HTTP/1.1\r\nHost: g\r\n{field}Content-Length: {length}\r\n\r\n");
            let head = check_head(text.as_bytes()).unwrap();
            Shape::of(&head, text.len() + seen_of_body).suits_tiny_http(length)
        };
        assert!(suits("", 0, 0));
        assert!(suits("", 500, 500));
        assert!(!suits("", 500, 499), "it would wait for the rest by itself");
        assert!(!suits("", 500, 501), "it would read into the next request");
        assert!(suits("", 1025, 0));
        assert!(suits("", 50_000, 3_000));
        assert!(!suits("", 2_000, 2_001));
        assert!(!suits("X.Odd: 1\r\n", 500, 500));
        assert!(!suits("Expect: 100-continue\r\n", 500, 500));
    }

    #[test]
    fn empty_lines_are_counted_in_pairs() {
        let count = |bytes: &[u8]| blank_bytes(bytes);
        assert_eq!(
            [count(b""), count(b"\r"), count(b"GET"), count(b"\r\nG"), count(b"\r\n\r\n")],
            [0, 0, 0, 2, 4]
        );
        assert_eq!(count(&b"\r\n".repeat(9)), BLANK_LINES_MAX * 2);
    }
}
