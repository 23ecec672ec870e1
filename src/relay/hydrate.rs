//! The conversation of one request: put before its messages when it comes, and told what was said when it was served.
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::gateway::Gateway;
use super::sessions::{Base, Found, SessionKey, Turn};
use super::turn::{Operation, Request};
use crate::base::clock;
use crate::catalog::settings::Settings;
use crate::context::thread::{self, Bound, Change, Thread};
use crate::route::sticky::StickyKey;
use crate::wire::body::{Body, Edits};
use crate::wire::chat::{ChatFacts, SessionField};
use crate::wire::error::ApiError;

/// The stored conversation that a request belongs to. Dropping it ends the turn.
pub struct Session {
    gateway: Arc<Gateway>,
    key: SessionKey,
    number: Option<u64>,
    /// Taken when the turn is stored.
    base: Cell<Option<Base>>,
    change: Change,
    bytes_max: usize,
    /// What its messages hold of the memory for bodies.
    lent_bytes: usize,
}

impl Session {
    /// Its id, for `x-freeway-session`.
    pub fn id(&self) -> &Arc<str> {
        &self.key.id
    }

    /// Under which it sticks to a model.
    pub fn sticks(&self) -> StickyKey {
        self.key.sticks()
    }

    /// Stores the turn, once, given the whole answer that the client gets, a cached one as well as a new one. An answer
    /// without a word or a call leaves nothing, because no request could go on from it.
    pub fn keep(&self, answer: &[u8]) {
        let (Some(base), Some(answer)) = (self.base.take(), thread::spoken(answer)) else { return };
        let turn = Turn { base, change: &self.change, answer: &answer, bytes_max: self.bytes_max };
        if self.gateway.sessions.keep(&self.key, turn, clock::now()) {
            self.gateway.store.much_waits();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.gateway.lent_bytes.fetch_sub(self.lent_bytes, Ordering::AcqRel);
        self.gateway.sessions.end(&self.key, self.number);
    }
}

/// Puts the stored conversation before the messages of `request`, if it names one; then its id is given, whatever comes
/// of it. At most `guard.maxMessages` messages and `server.bodyBytes` are sent, the newest; all are kept.
///
/// # Errors
/// 400 for a tool result that answers no call; 503 when the conversation cannot be read now, or when too much memory is
/// in use already.
pub fn hydrate(
    gateway: &Arc<Gateway>,
    request: &mut Request,
    settings: &Settings,
) -> Option<(Arc<str>, Result<Session, ApiError>)> {
    let Operation::Chat(facts) = &mut request.operation else { return None };
    let SessionField { id, mode } = facts.session.take()?;
    let key = SessionKey { owner: request.principal, id: id.into() };
    let id = Arc::clone(&key.id);
    let base = match begin(gateway, &key) {
        Ok(base) => base,
        Err(error) => return Some((id, Err(error))),
    };
    let messages = request.body.raw("messages").unwrap_or_default();
    let incoming = Thread::read(messages, request.arrived.wall_ms).unwrap_or_default();
    let change = thread::change(&base.thread, incoming, mode);
    let bytes_max = settings.server.body_bytes;
    let bound = Bound { messages: settings.max_messages, bytes: bytes_max };
    let list = thread::list(&base.thread, &thread::sent(&base.thread, &change, bound), &change.fresh);
    let mut session = Session {
        gateway: Arc::clone(gateway),
        number: base.number(),
        key,
        base: Cell::new(Some(base)),
        change,
        bytes_max,
        lent_bytes: 0,
    };
    // A request that begins a conversation is sent as it came, unless it has to be checked again.
    if session.number.is_some() || facts.has_tool_turns {
        session.lent_bytes = list.len();
        if !lend(&gateway.lent_bytes, list.len(), settings.server.bodies_in_flight_bytes) {
            return Some((id, Err(overloaded("too many long conversations are in memory; retry shortly"))));
        }
        match rebuilt(&request.body, &list) {
            Ok((body, read)) => {
                request.body = body;
                **facts = read;
            }
            Err(error) => return Some((id, Err(error))),
        }
    }
    Some((id, Ok(session)))
}

/// What the turn begins with, from memory or from the disk. A disk is asked only for what was not used for a while, and
/// never waits for the writer.
fn begin(gateway: &Gateway, key: &SessionKey) -> Result<Base, ApiError> {
    let number = match gateway.sessions.begin(key) {
        Found::Here(base) => return Ok(base),
        Found::OnDisk(number) => number,
    };
    match gateway.store.session(number) {
        Ok(stored) => Ok(gateway.sessions.loaded(key, number, stored)),
        Err(error) => {
            log::warn!("a stored conversation cannot be read: {error}");
            Err(overloaded("the stored conversation cannot be read now; retry, or use another session id"))
        }
    }
}

/// The body with other messages, and what is to be known of it.
fn rebuilt(body: &Body, list: &[u8]) -> Result<(Body, ChatFacts), ApiError> {
    let mut edits = Edits::default();
    edits.set("messages", list);
    edits.remove("session");
    let body = Body::parse(body.spliced(&edits))?;
    // The messages were checked one by one; together they can only be wrong in this.
    let facts = ChatFacts::read(&body, usize::MAX).map_err(|_| {
        let message = "`messages` holds a tool result that answers no call of this session";
        ApiError::bad_field("invalid_body", "messages", message)
    })?;
    Ok((body, facts))
}

/// Takes from the memory that all conversations in flight may hold; false when there is not enough. One alone may hold
/// more. What was taken is given back in any case when the session is dropped.
fn lend(lent: &AtomicUsize, bytes: usize, max_bytes: usize) -> bool {
    let before = lent.fetch_add(bytes, Ordering::AcqRel);
    before == 0 || before.saturating_add(bytes) <= max_bytes
}

fn overloaded(message: &str) -> ApiError {
    ApiError::new(503, "overloaded", message).header("retry-after", "1")
}
