//! Where a turn puts its answer, and what has left already.
use std::io;

use super::flow::Flow;
use super::route_info::RouteInfo;
use crate::wire::error::ApiError;

/// A client's side of one turn, as one surface speaks it. Every method but [`Sink::whole`] and [`Sink::refuse`] is for
/// streams.
pub trait Sink {
    /// Sends a whole JSON answer.
    fn whole(&mut self, route: &RouteInfo, body: Vec<u8>) -> io::Result<()>;
    /// Sends the status and the headers of a stream.
    fn begin(&mut self, route: &RouteInfo) -> io::Result<()>;
    /// Sends complete events or comments, at once.
    fn frames(&mut self, frames: &[u8]) -> io::Result<()>;
    /// Sends what comes of `flow` for as long as it flows by itself. A surface that cannot gives it back at once.
    fn let_flow(&mut self, flow: Box<Flow>) -> (Box<Flow>, io::Result<()>) {
        (flow, Ok(()))
    }
    /// Sends the last events of a stream that is complete, and ends it.
    fn end(&mut self, frames: &[u8]) -> io::Result<()>;
    /// Sends an error: as an answer of its own, or as the last event once a stream has begun.
    fn refuse(&mut self, route: &RouteInfo, error: &ApiError) -> io::Result<()>;
}

/// The sink of a turn together with what the client has seen of it.
pub struct Outlet {
    sink: Box<dyn Sink>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Nothing has left.
    Held,
    /// Headers and comments have left; failover goes on behind them.
    Begun,
    /// Part of an answer has left: no other model may continue it.
    Committed,
    /// The client is gone; whatever is written is dropped.
    Gone,
    Closed,
}

impl Outlet {
    /// An outlet that nothing has left.
    pub fn new(sink: Box<dyn Sink>) -> Outlet {
        Outlet { sink, state: State::Held }
    }

    /// Whether writing failed, which means that the client left or reads too slowly.
    pub fn gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Sends headers if need be and a comment, so that a waiting client and what lies between know that we live.
    pub fn keep_alive(&mut self, route: impl FnOnce() -> RouteInfo) {
        self.begin(route);
        if self.state != State::Gone {
            let sent = self.sink.frames(b": keep-alive\n\n");
            self.note(sent);
        }
    }

    /// Sends events of an answer: from now on nobody else may give one. `route` is asked only while no headers have left.
    pub fn commit(&mut self, route: impl FnOnce() -> RouteInfo, frames: &[u8]) {
        self.begin(route);
        if self.state == State::Begun {
            self.state = State::Committed;
        }
        if self.state == State::Committed {
            let sent = self.sink.frames(frames);
            self.note(sent);
        }
    }

    /// Whether events of an answer are leaving.
    pub fn is_flowing(&self) -> bool {
        self.state == State::Committed
    }

    /// Sends what comes of `flow`, events of an answer that has been committed, for as long as it flows by itself.
    pub fn let_flow(&mut self, flow: Box<Flow>) -> Box<Flow> {
        let (flow, sent) = self.sink.let_flow(flow);
        self.note(sent);
        flow
    }

    /// Sends the last events of a complete answer, and ends it.
    pub fn finish(&mut self, route: impl FnOnce() -> RouteInfo, frames: &[u8]) {
        self.begin(route);
        if self.state != State::Gone {
            let sent = self.sink.end(frames);
            self.note(sent);
        }
        self.close();
    }

    /// Sends a whole answer.
    pub fn whole(&mut self, route: &RouteInfo, body: Vec<u8>) {
        let sent = self.sink.whole(route, body);
        self.note(sent);
        self.close();
    }

    /// Sends an error in the form that is still possible.
    pub fn refuse(&mut self, route: &RouteInfo, error: &ApiError) {
        if self.state != State::Gone {
            let sent = self.sink.refuse(route, error);
            self.note(sent);
        }
        self.close();
    }

    fn begin(&mut self, route: impl FnOnce() -> RouteInfo) {
        if self.state == State::Held {
            let sent = self.sink.begin(&route());
            self.state = State::Begun;
            self.note(sent);
        }
    }

    fn note(&mut self, sent: io::Result<()>) {
        if sent.is_err() {
            self.state = State::Gone;
        }
    }

    fn close(&mut self) {
        if self.state != State::Gone {
            self.state = State::Closed;
        }
    }
}
