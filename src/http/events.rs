//! `GET /api/events`: the log as it happens, as server-sent events, without a worker's place. A page that hangs up, or reads
//! too slowly, costs nobody else anything.
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use serde_json::json;

use super::answer::{Answer, Responder, Stream};
use super::conn::{Admission, Next};
use super::exchange::Terms;
use super::head::Head;
use super::permit::{self, Entry, Right};
use super::rights::Doorkeeper;
use super::routes::Visit;
use super::{browser, path};
use crate::base::clock;
use crate::relay::feed::{News, READERS_MAX};
use crate::relay::gateway::Gateway;
use crate::relay::record::{Since, TurnRecord, Watch};
use crate::wire::error::ApiError;

/// Time between comments that show that the stream is alive.
const PING_EVERY: Duration = Duration::from_secs(15);
/// Time between looks whether the reader has gone, which a silent stream does not notice.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Turns from before that a reader gets when it says nothing else.
const BACKLOG: usize = 100;
/// One that comes when all places are taken is told to come back after this.
const RETRY_MS: u64 = 5_000;

/// `GET /api/events`.
pub fn watch(visit: Visit<'_>) -> Admission {
    if visit.head.method() == "HEAD" {
        return visit.answer(Answer::of_type(200, EVENTS, b"".as_slice()));
    }
    let last = path::query_value(visit.head.query(), "lastEventId").map(|id| id.into_owned());
    let last = visit.head.header("last-event-id").map(str::to_owned).or(last);
    let backlog = path::query_value(visit.head.query(), "backlog").and_then(|count| count.parse().ok());
    let gateway = Arc::clone(visit.gateway);
    let guest = Guest {
        gateway: Arc::clone(&gateway),
        keeper: Arc::clone(visit.keeper),
        head: visit.head.clone(),
        peer: visit.peer,
    };
    let since = since(last.as_deref(), gateway.turns.run(), backlog);
    let terms = Terms { max_bytes: 0, ..visit.terms(0) };
    let run = move |responder: Responder| match gateway.turns.watch(since) {
        // A reader that is gone is no matter.
        Some(watch) => drop(tell(responder, &guest, &watch)),
        None => drop(responder.error(&full())),
    };
    Admission::Body(terms, Box::new(|_| Next::Here(Box::new(run))))
}

const EVENTS: &str = "text/event-stream; charset=utf-8";

fn full() -> ApiError {
    let message = format!("{READERS_MAX} live logs are open already; close one, or come back in a moment");
    ApiError::new(503, "too_many_streams", message).retry_after(RETRY_MS)
}

/// What a reader wants from before. An id of another run says nothing about this one, all of which is new to it.
fn since(last: Option<&str>, run: u64, backlog: Option<usize>) -> Since {
    let Some(last) = last else { return Since::Newest(backlog.unwrap_or(BACKLOG)) };
    let own = last.trim().split_once('-').filter(|(of, _)| of.parse() == Ok(run));
    Since::Seq(own.and_then(|(_, seq)| seq.parse().ok()).unwrap_or(0))
}

/// Who reads, by the request that began it.
struct Guest {
    gateway: Arc<Gateway>,
    keeper: Arc<Doorkeeper>,
    head: Head,
    peer: SocketAddr,
}

impl Guest {
    /// Whether the same request would be let in now: a stream may outlive its key, or the sign-in behind its cookie.
    fn is_welcome(&self) -> bool {
        let snapshot = self.gateway.snapshot();
        let entry = Entry {
            head: &self.head,
            peer: self.peer,
            settings: &snapshot.settings,
            keeper: &self.keeper,
            right: Right::Owner,
            of_owner: true,
            inference: false,
            origin: browser::origin(&self.head, &snapshot.settings),
        };
        permit::judge(&entry).is_ok()
    }
}

/// Streams until the reader leaves or has no right to it any more, or the gateway stops.
fn tell(responder: Responder, guest: &Guest, watch: &Watch<'_>) -> io::Result<()> {
    let gateway = &*guest.gateway;
    let mut stream =
        responder.stream(200, vec![("content-type", EVENTS.into()), ("x-accel-buffering", "no".into())]);
    // A reader that outlives this process learns by the run that the numbers begin anew.
    let (at, run) = (clock::now().wall_ms, gateway.turns.run());
    let hello = json!({"at": at, "run": run, "backlog": watch.backlog.len()});
    let mut frames = format!("event: hello\ndata: {hello}\n\n");
    for turn in &watch.backlog {
        frames += &turn_frame(gateway, turn);
    }
    stream.frame(frames.as_bytes())?;
    let mut ping_at = clock::instant() + PING_EVERY;
    loop {
        let news = watch.watcher.news.recv_deadline(ping_at.min(clock::instant() + LOOK_EVERY));
        if !matches!(news, Err(RecvTimeoutError::Disconnected)) && !guest.is_welcome() {
            return stream.end(b"");
        }
        match news {
            Ok(News::Turn(turn)) => stream.frame(turn_frame(gateway, &turn).as_bytes())?,
            Ok(News::Changed(what)) => {
                stream.frame(format!("event: change\ndata: {}\n\n", json!({"what": what})).as_bytes())?;
            }
            Err(RecvTimeoutError::Disconnected) => return stream.end(b""),
            Ok(News::Look) | Err(RecvTimeoutError::Timeout) if stream.is_abandoned() => return Ok(()),
            Ok(News::Look) | Err(RecvTimeoutError::Timeout) => {}
        }
        if watch.watcher.news.is_empty() {
            tell_missed(&mut stream, watch)?;
        }
        ping(&mut stream, &mut ping_at)?;
    }
}

fn turn_frame(gateway: &Gateway, turn: &TurnRecord) -> String {
    let view = turn.view(&gateway.snapshot().redactor);
    let data = serde_json::to_string(&view).expect("a record is plain data");
    format!("id: {}-{}\nevent: log\ndata: {data}\n\n", gateway.turns.run(), turn.seq.unwrap_or(0))
}

fn tell_missed(stream: &mut Stream, watch: &Watch<'_>) -> io::Result<()> {
    match watch.watcher.take_missed() {
        0 => Ok(()),
        missed => stream.frame(format!("event: lagged\ndata: {}\n\n", json!({"missed": missed})).as_bytes()),
    }
}

fn ping(stream: &mut Stream, ping_at: &mut Instant) -> io::Result<()> {
    let now = clock::instant();
    if now < *ping_at {
        return Ok(());
    }
    *ping_at = now + PING_EVERY;
    stream.frame(b": ping\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let check = |last: Option<&str>, backlog: Option<usize>, expected: Since| {
            assert_eq!(since(last, 7, backlog), expected, "{last:?} {backlog:?}");
        };
        check(None, None, Since::Newest(BACKLOG));
        check(None, Some(0), Since::Newest(0));
        check(Some("7-12"), Some(0), Since::Seq(12));
        check(Some("6-12"), None, Since::Seq(0));
        check(Some("nonsense"), None, Since::Seq(0));
    }
}
