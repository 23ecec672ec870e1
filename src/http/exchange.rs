//! One request that is being answered: what its answer has to look like, and what follows it on its connection.
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::answer::{Answer, Fields, Framing};
use super::budget::Share;
use super::line::Line;
use super::workers::Place;
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

/// The answering side of a request. When it is dropped the request is over: the line is idle or closing, and the memory
/// of the body is free.
#[derive(Debug)]
pub struct Exchange(Option<Open>);

#[derive(Debug)]
struct Open {
    line: Arc<Line>,
    cut: Arc<Cut>,
    framing: Framing,
    /// An answer could not be written, or was left unfinished.
    failed: bool,
    share: Share,
    /// While upstreams may be called for it.
    place: Option<Place>,
    kept: Kept,
}

/// Whether the connection can serve another request, which is so once an exchange has ended well.
pub type Kept = Rc<Cell<bool>>;

const HELD: &str = "an exchange is only empty after `take`, when it is dropped";

impl Exchange {
    /// An exchange on `line`. `share` is the memory of the request's body.
    pub fn new(line: &Arc<Line>, kept: &Kept, framing: Framing, share: Share) -> Exchange {
        let cut = Cut::new();
        line.hold_cut(&cut);
        let (line, kept) = (Arc::clone(line), Rc::clone(kept));
        Exchange(Some(Open { line, cut, framing, failed: false, share, place: None, kept }))
    }

    /// Moves this exchange out of a value that has a `Drop` of its own.
    pub fn take(&mut self) -> Exchange {
        Exchange(self.0.take())
    }

    /// Holds the worker's place on which this request is served.
    pub fn hold(&mut self, place: Place) {
        self.0.as_mut().expect(HELD).place = Some(place);
    }

    /// The answer is whole but for the last of it, which is about to leave. The place is free before the client can know,
    /// so that its next request finds it free; and a client that leaves at once ends no call any more, whose connection
    /// others can use.
    pub fn complete(&mut self) {
        let open = self.0.as_mut().expect(HELD);
        open.place = None;
        open.line.let_go_of_cut();
    }

    /// The connection to answer on.
    pub fn line(&self) -> &Arc<Line> {
        &self.open().line
    }

    pub fn cut(&self) -> &Arc<Cut> {
        &self.open().cut
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
        let Some(Open { line, framing, failed, share, place, kept, .. }) = self.0.take() else {
            return;
        };
        drop((share, place));
        kept.set(framing.keep && !failed && !line.is_stopping());
        if failed {
            line.close();
        } else if !kept.get() {
            // Not `close`: the client may still be reading.
            line.finish_writing();
        }
        line.rest();
    }
}
