//! One request between the reader thread that watches its client and the thread that answers it.
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::answer::{Answer, Fields, Framing};
use super::budget::Share;
use super::line::Line;
use crate::upstream::cut::Cut;
use crate::wire::error::ApiError;

/// What the door settled when it admitted a request, for every answer to it, whoever makes that answer.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Largest body, as sent and after decompression.
    pub max_bytes: usize,
    /// Headers of every answer, such as the request id and those for browsers.
    pub headers: Fields,
    /// The error envelope of the route.
    pub envelope: fn(&ApiError) -> Vec<u8>,
}

impl Default for Terms {
    /// No body, no headers, OpenAI's envelope.
    fn default() -> Terms {
        Terms { max_bytes: 0, headers: Vec::new(), envelope: ApiError::body }
    }
}

impl Terms {
    /// `error` in the envelope of the route.
    pub fn error_body(&self, error: &ApiError) -> Vec<u8> {
        (self.envelope)(error)
    }

    /// `error` as an answer of the route, yet without the headers of every answer.
    pub fn error_answer(&self, error: &ApiError) -> Answer {
        Answer::error_as(error, self.error_body(error))
    }
}

/// What the reader waits for while somebody else answers.
#[derive(Debug)]
pub struct Flight {
    cut: Arc<Cut>,
    outcome: Mutex<Option<Outcome>>,
    landed: Condvar,
}

/// How an exchange ended for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It can serve the next request.
    Keep,
    /// It has been told that nothing more comes.
    Close,
}

impl Flight {
    /// One that has not ended.
    pub fn new() -> Arc<Flight> {
        Arc::new(Flight { cut: Cut::new(), outcome: Mutex::new(None), landed: Condvar::new() })
    }

    pub fn cut(&self) -> &Arc<Cut> {
        &self.cut
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<Outcome> {
        *self.outcome.lock()
    }

    /// Waits for the end; `None` when there is none after `patience`.
    pub fn wait(&self, patience: Duration) -> Option<Outcome> {
        let mut outcome = self.outcome.lock();
        if outcome.is_none() {
            self.landed.wait_for(&mut outcome, patience);
        }
        *outcome
    }

    fn land(&self, outcome: Outcome) {
        *self.outcome.lock() = Some(outcome);
        // Costs no system call while nobody waits, which is nearly always.
        self.landed.notify_one();
    }
}

/// The answering side. When it is dropped the request is over: the line is idle or closing, the memory of the body is
/// free, and the reader knows.
#[derive(Debug)]
pub struct Exchange(Option<Open>);

#[derive(Debug)]
struct Open {
    line: Arc<Line>,
    flight: Arc<Flight>,
    framing: Framing,
    /// An answer could not be written, or was left unfinished.
    failed: bool,
    share: Share,
}

const HELD: &str = "an exchange is only empty after `take`, when it is dropped";

impl Exchange {
    /// An exchange on `line`. `share` is the memory of the request's body.
    pub fn new(line: &Arc<Line>, flight: &Arc<Flight>, framing: Framing, share: Share) -> Exchange {
        line.hold_cut(flight.cut());
        let (line, flight) = (Arc::clone(line), Arc::clone(flight));
        Exchange(Some(Open { line, flight, framing, failed: false, share }))
    }

    /// Moves this exchange out of a value that has a `Drop` of its own.
    pub fn take(&mut self) -> Exchange {
        Exchange(self.0.take())
    }

    /// The connection to answer on.
    pub fn line(&self) -> &Line {
        &self.open().line
    }

    pub fn cut(&self) -> &Arc<Cut> {
        self.open().flight.cut()
    }

    /// The form of the answer. A connection that stops is not kept.
    pub fn framing(&self) -> Framing {
        let open = self.open();
        Framing { keep: open.framing.keep && !open.line.is_stopping(), ..open.framing }
    }

    /// Changes the form of the answer, before any of it is sent.
    pub fn set_framing(&mut self, framing: Framing) {
        self.0.as_mut().expect(HELD).framing = framing;
    }

    /// Whether the answer can no longer become whole.
    pub fn has_failed(&self) -> bool {
        self.open().failed
    }

    /// Passes `result` on. A client that could not be written to is as good as gone.
    pub fn judge(&mut self, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() {
            self.cut().cut();
            self.fail();
        }
        result
    }

    /// The connection ends with this exchange, in the midst of its answer.
    pub fn fail(&mut self) {
        self.0.as_mut().expect(HELD).failed = true;
    }

    fn open(&self) -> &Open {
        self.0.as_ref().expect(HELD)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Some(Open { line, flight, framing, failed, share }) = self.0.take() else {
            return;
        };
        drop(share);
        let outcome =
            if framing.keep && !failed && !line.is_stopping() { Outcome::Keep } else { Outcome::Close };
        if failed {
            line.close();
        } else if outcome == Outcome::Close {
            // Not `close`: the client may still be reading, and answers this with its own end of stream, which wakes
            // the reader.
            line.finish_writing();
        }
        line.rest();
        // The reader may close everything as soon as it knows, so our reference goes first.
        drop(line);
        flight.land(outcome);
    }
}
