//! One upstream call: sent, and its answer passed on or read whole. Says what happened; what it means is judged by
//! `route`.
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::books::Books;
use super::gate::Gate;
use super::story::served;
use super::stream::{Relay, Streamed};
use super::turn::{Last, Operation, Turn};
use crate::base::clock;
use crate::base::text::fresh_id;
use crate::catalog::provider::{Key, Model, Provider};
use crate::context::tokens;
use crate::route::outcome::NoAnswer;
use crate::upstream::client::{ANSWER_BYTES_MAX, Accept, Call, Client, ERROR_BYTES_MAX, Method, Reply};
use crate::upstream::cut::Cut;
use crate::upstream::watch::Watch;
use crate::wire::answer::Why;
use crate::wire::chunk::{End, ShapeOptions};
use crate::wire::embeddings;
use crate::wire::exchange::{Fault, Headers, Phase};
use crate::wire::fold::{fold, unfold};
use crate::wire::head::Fallback;
use crate::wire::sse::{Sniffed, sniff};
use crate::wire::usage::Usage;
use crate::wire::{chunk, completion, sse};

/// With whom a call is made.
pub struct Target<'a> {
    pub provider: &'a Provider,
    pub model: &'a Model,
    pub key: &'a Key,
    /// To the first byte of the answer, or the first data event of a stream.
    pub first_byte: Duration,
    /// When the turn has to have committed, whatever happens.
    pub budget_ends: std::time::Instant,
}

/// What became of a call.
pub struct Attempted {
    pub ending: Ending,
    pub headers: Headers,
    /// What it used, as far as known.
    pub usage: Option<Usage>,
}

pub enum Ending {
    /// The client has its answer, and the books are closed.
    Served,
    ClientLeft,
    Fault(Fault),
    Status {
        status: u16,
        body: Vec<u8>,
    },
    ErrorInAnswer(Vec<u8>),
    NoAnswer(NoAnswer),
}

/// Makes the call with `body`. An answer that is served closes the books before its last byte leaves.
pub fn make(
    turn: &Rc<Turn>,
    client: &Client,
    target: &Target<'_>,
    body: &[&[u8]],
    cut: &Arc<Cut>,
    books: &mut Books<'_>,
) -> Attempted {
    let watch = Watch::new((clock::instant() + target.first_byte).min(target.budget_ends));
    let stream = turn.streams();
    if stream {
        turn.keep_alive_by(&watch);
    }
    let call = Call {
        provider: target.provider,
        key: target.key,
        method: Method::Post,
        path: match turn.operation() {
            Operation::Chat(_) => &target.provider.paths.chat,
            Operation::Embeddings(_) => &target.provider.paths.embeddings,
        },
        body,
        accept: if stream { Accept::EventStream } else { Accept::Json },
        cut,
        watch: &watch,
    };
    let mut reply = match client.send(&call) {
        Ok(reply) => reply,
        Err(fault) => {
            return Attempted { ending: Ending::Fault(fault), headers: Headers::default(), usage: None };
        }
    };
    let headers = std::mem::take(&mut reply.headers);
    let (ending, usage) = if !(200..300).contains(&reply.status) {
        (read_error(&mut reply, target, &watch), None)
    } else if stream {
        pass_stream(turn, target, &mut reply, &headers, &watch, books)
    } else {
        read_whole(turn, target, &mut reply, &headers, &watch, books)
    };
    Attempted { ending, headers, usage }
}

/// Reads an error's body under the deadline that the call has anyway: a stalled one must not hold the turn.
fn read_error(reply: &mut Reply, target: &Target<'_>, watch: &Watch) -> Ending {
    watch.set_phase(Phase::Stream);
    watch.set_deadline((clock::instant() + ERROR_BODY_WAIT).min(target.budget_ends));
    let body = reply.body.read_some(ERROR_BYTES_MAX);
    Ending::Status { status: reply.status, body }
}

/// How long the rest of an error is waited for. Its status says the most important thing already.
const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);

fn pass_stream(
    turn: &Rc<Turn>,
    target: &Target<'_>,
    reply: &mut Reply,
    headers: &Headers,
    watch: &Rc<Watch>,
    books: &mut Books<'_>,
) -> (Ending, Option<Usage>) {
    let idle = Duration::from_millis(target.provider.timeouts.idle_ms);
    let relay = Relay { turn, watch, idle, budget_ends: target.budget_ends };
    let gate = Gate::new(shape(turn, target.model, turn.include_usage()), turn.prompt_tokens());
    let (gate, streamed) = relay.run(gate, reply, books);
    if gate.malformed() > 0 {
        log::warn!("{} events of {} could not be read", gate.malformed(), target.model.reference);
        turn.spoil();
    }
    if turn.keeps_answer() {
        turn.note_usage(gate.usage_object());
    }
    let usage = gate.usage();
    let ending = match streamed {
        Streamed::Whole(frames) => {
            if books.served(served(headers, target, turn.prompt_tokens()), usage, Last::Frames(&frames)) {
                turn.finish(&frames);
                relay.drain(reply);
                Ending::Served
            } else {
                Ending::ClientLeft
            }
        }
        Streamed::ClientLeft => Ending::ClientLeft,
        Streamed::Fault(fault) => Ending::Fault(fault),
        Streamed::Failed(body) => Ending::ErrorInAnswer(body),
        Streamed::Empty => Ending::NoAnswer(NoAnswer::Empty),
        Streamed::FewerChoices => Ending::NoAnswer(NoAnswer::FewerChoices),
        Streamed::Other(body) => return stream_of_whole(turn, target, &body, headers, books),
    };
    (ending, Some(usage))
}

/// A stream was asked for and a whole answer came: the client gets a stream all the same.
fn stream_of_whole(
    turn: &Turn,
    target: &Target<'_>,
    body: &[u8],
    headers: &Headers,
    books: &mut Books<'_>,
) -> (Ending, Option<Usage>) {
    let checked = match completion::check(body, fallback(turn, target.model)) {
        Ok(checked) => checked,
        Err(no) => return (refused(no.why), no.usage),
    };
    if checked.choices < turn.choices() as usize {
        return (Ending::NoAnswer(NoAnswer::FewerChoices), checked.usage);
    }
    let usage = tokens::usage(checked.usage, turn.prompt_tokens(), &checked.output);
    let mut frames = Vec::new();
    if unfold(&checked.body, shape(turn, target.model, turn.include_usage()), usage, &mut frames)
        != End::Complete
    {
        return (Ending::NoAnswer(NoAnswer::WrongShape), Some(usage));
    }
    if !books.served(served(headers, target, turn.prompt_tokens()), usage, Last::Frames(&frames)) {
        return (Ending::ClientLeft, Some(usage));
    }
    turn.finish(&frames);
    (Ending::Served, Some(usage))
}

/// Reads a whole answer, judges it, and sends it.
fn read_whole(
    turn: &Turn,
    target: &Target<'_>,
    reply: &mut Reply,
    headers: &Headers,
    watch: &Watch,
    books: &mut Books<'_>,
) -> (Ending, Option<Usage>) {
    watch.set_phase(Phase::Stream);
    let total = Duration::from_millis(target.provider.timeouts.total_ms);
    watch.set_deadline((clock::instant() + total).min(target.budget_ends));
    let body = match reply.body.read_all(ANSWER_BYTES_MAX) {
        Ok(body) => body,
        Err(fault) => return (Ending::Fault(fault), None),
    };
    let whole = match turn.operation() {
        Operation::Chat(_) if sniff(&body) == Sniffed::Events => whole_of_stream(turn, target, &body),
        Operation::Chat(_) => match completion::check(&body, fallback(turn, target.model)) {
            Ok(checked) if checked.choices < turn.choices() as usize => {
                Err((Ending::NoAnswer(NoAnswer::FewerChoices), checked.usage))
            }
            Ok(checked) => {
                let usage = tokens::usage(checked.usage, turn.prompt_tokens(), &checked.output);
                Ok((checked.body, usage))
            }
            Err(no) => Err((refused(no.why), no.usage)),
        },
        Operation::Embeddings(facts) => match embeddings::check(&body, facts, &target.model.id) {
            Ok(checked) => {
                Ok((checked.body, checked.usage.unwrap_or_else(|| Usage::estimate(turn.prompt_tokens(), 0))))
            }
            Err(no) => Err((refused(no.why), no.usage)),
        },
    };
    match whole {
        Ok((body, usage)) => {
            if !books.served(served(headers, target, turn.prompt_tokens()), usage, Last::Whole(&body)) {
                return (Ending::ClientLeft, Some(usage));
            }
            turn.send_whole(body, usage.estimated);
            (Ending::Served, Some(usage))
        }
        Err(no_answer) => no_answer,
    }
}

/// A whole answer was asked for and a stream came: the client gets a whole answer all the same.
fn whole_of_stream(
    turn: &Turn,
    target: &Target<'_>,
    body: &[u8],
) -> Result<(Vec<u8>, Usage), (Ending, Option<Usage>)> {
    let (mut decoder, mut shaper) =
        (sse::Decoder::new(), chunk::ChunkShaper::new(shape(turn, target.model, true)));
    let mut frames = Vec::new();
    decoder.push(body);
    decoder.finish();
    while let Some(item) = decoder.next() {
        let step = match item {
            sse::SseItem::Data(data) => shaper.data(data, &mut frames),
            sse::SseItem::Error(data) => shaper.error(data),
            sse::SseItem::Comment => continue,
            sse::SseItem::TooLong => return Err((Ending::NoAnswer(NoAnswer::NotJson), shaper.usage())),
        };
        if let chunk::Step::Failed(error) = step {
            return Err((Ending::ErrorInAnswer(error), shaper.usage()));
        }
    }
    let usage = tokens::usage(shaper.usage(), turn.prompt_tokens(), shaper.output());
    match shaper.end(usage, &mut frames) {
        End::Complete => Ok((fold(&frames), usage)),
        End::FewerChoices => Err((Ending::NoAnswer(NoAnswer::FewerChoices), Some(usage))),
        End::Empty => Err((Ending::NoAnswer(NoAnswer::Empty), Some(usage))),
        End::Truncated => Err((Ending::NoAnswer(NoAnswer::NotJson), Some(usage))),
    }
}

fn refused(why: Why) -> Ending {
    Ending::NoAnswer(match why {
        Why::Error(body) => return Ending::ErrorInAnswer(body),
        Why::Html => NoAnswer::Html,
        Why::NotJson | Why::Truncated => NoAnswer::NotJson,
        Why::NoChoices | Why::TooLong => NoAnswer::WrongShape,
        Why::Empty => NoAnswer::Empty,
    })
}

fn fallback(turn: &Turn, model: &Model) -> Fallback {
    Fallback {
        id: fresh_id("chatcmpl-"),
        created_s: turn.arrived.wall_ms / 1000,
        model: model.id.to_string(),
    }
}

fn shape(turn: &Turn, model: &Model, include_usage: bool) -> ShapeOptions {
    let Fallback { id, created_s, model } = fallback(turn, model);
    ShapeOptions { include_usage, fallback_id: id, created_s, model, n: turn.choices() }
}
