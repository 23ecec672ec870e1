//! Turns that are answered without a call of their own: from memory, or with what an identical request at the same time
//! gets.
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::admitted::Admitted;
use super::answers::Hit;
use super::flight::{Landing, Member, Shared};
use super::gateway::Gateway;
use super::hydrate::Session;
use super::intake::Prepared;
use super::outlet::Outlet;
use super::record::{self, Facts};
use super::story::{CLIENT_CLOSED, CLIENT_CLOSED_CODE, With};
use super::turn::{Last, Request, Turn};
use crate::base::clock;
use crate::base::text::fresh_id;
use crate::cache::exact;
use crate::cache::replay::{self, Fresh};
use crate::catalog::ModelIx;
use crate::catalog::load::Snapshot;
use crate::store::RowCache;
use crate::upstream::cut::Cut;
use crate::wire::error::ApiError;
use crate::wire::json::{Cursor, Flaw};
use crate::wire::patch::{Patch, Track};
use crate::wire::usage::{Usage, UsageTap};

/// An answer as it is kept: always with its usage, since the next who gets it may ask for it. `object` is what an
/// upstream said of it.
pub fn with_usage(body: &[u8], object: Option<Vec<u8>>, usage: Usage) -> Cow<'_, [u8]> {
    let object = || {
        object.unwrap_or_else(|| {
            let mut object = Vec::new();
            UsageTap::default().write(usage, &mut object);
            object
        })
    };
    // An answer that was judged has no flaw.
    add_usage(body, object).ok().flatten().map_or(Cow::Borrowed(body), Cow::Owned)
}

/// `None` when it has its usage already.
fn add_usage(body: &[u8], object: impl FnOnce() -> Vec<u8>) -> Result<Option<Vec<u8>>, Flaw> {
    let (mut cursor, mut patch) = (Cursor::new(body), Patch::default());
    if !cursor.open(b'{')? {
        return Ok(None);
    }
    let mut top = Track::new(cursor.at());
    while let Some(name) = cursor.member()? {
        let name_at = cursor.name_at();
        top.begin(name_at, &mut patch);
        match (name, cursor.skip()?) {
            (b"usage", b"null") => top.remove(name_at, cursor.at(), &mut patch),
            (b"usage", _) => return Ok(None),
            _ => top.keep(cursor.at()),
        }
    }
    top.close(cursor.at() - 1, &mut patch);
    let object = object();
    top.add("usage", &object, &mut patch);
    let mut out = Vec::with_capacity(body.len() + object.len() + 16);
    patch.apply(body, &mut out);
    Ok(Some(out))
}

/// Serves a kept answer. Nobody is called and nothing is metered.
pub fn serve(gateway: &Gateway, prepared: Prepared, hit: &Hit, outlet: Outlet) {
    gateway.answers.exact.lock().hit(&hit.place, clock::now().wall_ms);
    let replay = Replay::new(gateway, prepared, outlet);
    replay.turn.note(|info| info.score = hit.score);
    replay.answer(&hit.facts, hit.at, &hit.body, hit.tier);
}

/// How often a waiting member looks whether its client is still there.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Waits for what an identical request gets, and gives the same. Without a worker's place. `cut` ends the wait when the
/// client leaves.
pub fn follow(gateway: &Gateway, prepared: Prepared, member: Member, outlet: Outlet, cut: &Cut) {
    // The leader ends within its own budget. Only a stream that has begun may take longer, and that is worth no more
    // than this.
    let patience_ms = prepared.snapshot.settings.failover.budget_ms.saturating_mul(2);
    let replay = Replay::new(gateway, prepared, outlet);
    let turn = &replay.turn;
    let ends = clock::instant() + Duration::from_millis(patience_ms);
    let mut pulse = turn.first_keep_alive();
    loop {
        let until_pulse =
            if turn.streams() { pulse.saturating_duration_since(clock::instant()) } else { LOOK_EVERY };
        match member.wait(LOOK_EVERY.min(until_pulse)) {
            Some(Landing::Answer(Shared { facts, at, body, tier, score })) => {
                gateway.answers.exact.lock().joined(&facts);
                turn.note(|info| info.score = score);
                return replay.answer(&facts, at, &body, tier);
            }
            Some(Landing::Error(error)) => return replay.refuse(&error),
            None if cut.is_cut() => {
                return replay.record(CLIENT_CLOSED, Some(CLIENT_CLOSED_CODE), None, None);
            }
            None if ends <= clock::instant() => {
                let message = "an identical request that this one waited for took too long; try again";
                return replay.refuse(&ApiError::new(504, "all_attempts_failed", message));
            }
            None if turn.streams() && pulse <= clock::instant() => {
                // The headers leave with it.
                turn.note(|info| info.cache = Some(RowCache::Exact));
                pulse = turn.keep_alive();
            }
            None => {}
        }
    }
}

/// A turn that is answered without a call of its own.
struct Replay<'g> {
    gateway: &'g Gateway,
    snapshot: Arc<Snapshot>,
    turn: Turn,
    id: String,
    client: Option<Arc<str>>,
    requested: Arc<str>,
    route: Arc<str>,
    session: Option<Session>,
    /// Given back when all is done.
    _admitted: Option<Admitted>,
}

impl Replay<'_> {
    fn new(gateway: &Gateway, prepared: Prepared, outlet: Outlet) -> Replay<'_> {
        let Prepared { request, snapshot, requested, route, session_id, session, .. } = prepared;
        let Request { id, client, body, operation, arrived, admitted, .. } = request;
        let turn = Turn::new(operation, arrived, outlet, Arc::clone(&route), &snapshot.settings.stream);
        turn.keep_preview(&body, &snapshot.settings.log);
        turn.note(|info| info.session = session_id);
        Replay { gateway, snapshot, turn, id, client, requested, route, session, _admitted: admitted }
    }

    /// Gives an answer that `at` gave before, in the form that is asked for now.
    fn answer(&self, facts: &exact::Facts, at: ModelIx, body: &[u8], tier: RowCache) {
        let turn = &self.turn;
        turn.note(|info| {
            info.provider = Some(Arc::clone(&facts.who.provider));
            info.model = Some(Arc::clone(&facts.who.model));
            info.cache = Some(tier);
        });
        if let Some(session) = &self.session {
            session.keep(body);
        }
        let fresh = Fresh { id: fresh_id("chatcmpl-"), created_s: clock::now().wall_ms / 1000 };
        if !turn.streams() {
            let body = replay::whole(body, &fresh);
            turn.hear(&Last::Whole(&body));
            self.record(200, None, Some((facts, at)), Some(tier));
            turn.send_whole(body, facts.estimated);
        } else if let Some(last) =
            replay::stream(body, &fresh, turn.include_usage(), &mut |frames| turn.commit(frames))
        {
            turn.hear(&Last::Frames(&last));
            self.record(200, None, Some((facts, at)), Some(tier));
            turn.finish(&last);
        } else {
            self.refuse(&ApiError::new(
                500,
                "",
                "a kept answer could not be read; DELETE /api/cache forgets all",
            ));
        }
    }

    fn refuse(&self, error: &ApiError) {
        self.record(error.status, Some(&error.code), None, None);
        self.turn.refuse(error);
    }

    fn record(
        &self,
        status: u16,
        error: Option<&str>,
        answer: Option<(&exact::Facts, ModelIx)>,
        cache: Option<RowCache>,
    ) {
        let usage = answer.map(|(facts, _)| {
            let usage = Usage::estimate(facts.prompt_tokens, facts.output_tokens);
            Usage { estimated: facts.estimated, ..usage }
        });
        let facts = Facts {
            id: &self.id,
            client: self.client.as_ref(),
            requested: &self.requested,
            resolution: &self.route,
            status,
            error,
            failover: None,
            with: answer.map(|(_, at)| With { at, key: None }),
            usage: usage.unwrap_or_default(),
            cache,
            refit: None,
        };
        record::keep(self.gateway, &self.snapshot, &self.turn, &facts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_answer_always_has_its_usage() {
        let check = |body: &str, object: Option<&str>, expected: &str| {
            let object = object.map(|object| object.as_bytes().to_vec());
            let found = with_usage(body.as_bytes(), object, Usage::estimate(2, 1));
            assert_eq!(std::str::from_utf8(&found), Ok(expected), "{body}");
        };
        let own = r#"{"usage":{"total_tokens":9},"a":{"usage":null}}"#;
        check(own, Some("{}"), own);
        check(r#"{"a":1}"#, Some(r#"{"x":7}"#), r#"{"a":1,"usage":{"x":7}}"#);
        let counted = r#"{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}"#;
        check(r#"{"usage":null,"a":1 }"#, None, &format!(r#"{{"a":1,"usage":{counted} }}"#));
        check("[]", None, "[]");
    }
}
