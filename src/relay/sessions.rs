//! All stored conversations. Memory is the truth and the disk follows: what was used lately lies here whole, what was
//! written and not used for a while is read back when somebody goes on with it. Each belongs to whoever presented the
//! key that began it, so nobody can find out whether somebody else has one of the same name.
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::gateway::Gateway;
use crate::base::clock::{self, Now};
use crate::catalog::client_key::Principal;
use crate::catalog::settings::SessionSettings;
use crate::context::thread::{Bound, Change, Kind, Thread, shortened};
use crate::quota::zone::EARLIEST_WALL_MS;
use crate::route::sticky::StickyKey;
use crate::store::Extent;
use crate::store::sessions::{SessionChange, SessionRow, SessionSource, Stored};
use crate::wire::chat::SessionMode;

/// Conversations in memory, all together. Beyond it those go that the disk has and that were not used for the longest
/// time.
const RESIDENT_BYTES_MAX: usize = 8 << 20;
/// What waits for a disk that cannot be written. Beyond it the conversations that were not used for the longest time
/// are lost.
const UNWRITTEN_BYTES_MAX: usize = 32 << 20;
/// So much new text goes to the disk without waiting for the minute to end.
const BATCH_BYTES: usize = 256 << 10;
/// Longest conversation. The oldest turns of a longer one go.
const MESSAGES_MAX: usize = 10_000;

const DAY_MS: u64 = 24 * 3_600_000;

/// Whose conversation, and which.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey {
    pub owner: Option<Principal>,
    pub id: Arc<str>,
}

impl SessionKey {
    /// Under which it sticks to a model.
    pub fn sticks(&self) -> StickyKey {
        sticks(self.owner, &self.id)
    }
}

/// Under which a conversation sticks to a model, stored here or only known by a name.
pub fn sticks(owner: Option<Principal>, id: &str) -> StickyKey {
    let mut hasher = DefaultHasher::new();
    (owner, id).hash(&mut hasher);
    StickyKey(hasher.finish())
}

/// What a turn begins with.
#[derive(Clone, Debug, Default)]
pub struct Base {
    /// `None` when there was no such conversation.
    number: Option<u64>,
    version: u64,
    pub thread: Arc<Thread>,
}

impl Base {
    /// `None` when there was no such conversation.
    pub fn number(&self) -> Option<u64> {
        self.number
    }
}

/// Where a conversation is.
pub enum Found {
    /// In memory, or nowhere.
    Here(Base),
    /// On the disk only, under this number.
    OnDisk(u64),
}

/// What is known of a conversation without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Milliseconds since 1970.
    pub created_ms: u64,
    pub updated_ms: u64,
    pub messages: usize,
    /// By our own count.
    pub tokens: u64,
    /// Length of its text.
    pub bytes: usize,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_key: HashMap<SessionKey, Session>,
    /// The last number that was given to a conversation.
    last_number: u64,
    /// Counts uses, so that the least recent one is known.
    uses: u64,
    resident_bytes: usize,
    unsaved_bytes: usize,
    /// When the oldest change came that the disk does not have.
    unsaved_since: Option<Instant>,
    /// Numbers of conversations that were deleted, but not yet on the disk.
    gone: Vec<u64>,
    /// What the writer is writing, to be taken up again if it fails.
    taken: Taken,
    settings: SessionSettings,
}

#[derive(Debug, Default)]
struct Taken {
    /// From which message on.
    changed: Vec<(SessionKey, usize)>,
    gone: Vec<u64>,
}

#[derive(Debug)]
struct Session {
    number: u64,
    /// Counts changes.
    version: u64,
    summary: Summary,
    /// `None` while it is on the disk only.
    thread: Option<Arc<Thread>>,
    /// Where each of the parts ends in which it lies on the disk; empty while it is there only.
    parts: Vec<usize>,
    /// Turns under way, for whose sake it stays in memory.
    turns: u32,
    /// When it was used last, by count.
    used: u64,
    /// The first message that the disk does not have.
    unsaved: Option<usize>,
    /// Whether the writer is at it.
    saving: bool,
}

impl Session {
    fn new(number: u64, used: u64, now: Now) -> Session {
        Session {
            number,
            version: 0,
            summary: Summary { created_ms: now.wall_ms, ..Summary::default() },
            thread: Some(Arc::default()),
            parts: Vec::new(),
            turns: 0,
            used,
            unsaved: None,
            saving: false,
        }
    }

    fn base(&mut self) -> Option<Base> {
        let thread = Arc::clone(self.thread.as_ref()?);
        self.turns += 1;
        Some(Base { number: Some(self.number), version: self.version, thread })
    }

    fn on_disk(&self) -> bool {
        self.unsaved.is_none() && !self.saving
    }

    fn memory(&self) -> usize {
        self.thread.as_ref().map_or(0, |thread| thread.memory())
    }
}

impl Sessions {
    /// Those that the disk has.
    pub fn restored(rows: Vec<SessionRow>, settings: SessionSettings, now: Now) -> Sessions {
        // So that no number is given twice even if the disk could not be read.
        let mut state = State { settings, last_number: now.wall_ms / 1_000, ..State::default() };
        for (used, row) in (1..).zip(rows) {
            let key = SessionKey { owner: row.owner, id: row.id };
            let summary = Summary {
                created_ms: row.created_ms,
                updated_ms: row.updated_ms,
                messages: row.messages,
                tokens: row.tokens,
                bytes: row.bytes,
            };
            let now = Now::at(0, row.created_ms);
            let session = Session { summary, thread: None, ..Session::new(row.number, used, now) };
            state.last_number = state.last_number.max(row.number);
            state.uses = used;
            if let Some(older) = state.by_key.insert(key, session) {
                state.gone.push(older.number);
            }
        }
        Sessions(Mutex::new(state))
    }

    /// The bounds from now on.
    pub fn set(&self, settings: SessionSettings) {
        self.0.lock().settings = settings;
    }

    /// Where a conversation is; counts as a use. A turn that begins with it ends with [`Sessions::end`].
    pub fn begin(&self, key: &SessionKey) -> Found {
        let mut state = self.0.lock();
        state.uses += 1;
        let used = state.uses;
        let Some(session) = state.by_key.get_mut(key) else { return Found::Here(Base::default()) };
        session.used = used;
        match session.base() {
            Some(base) => Found::Here(base),
            None => Found::OnDisk(session.number),
        }
    }

    /// Takes up a conversation that was read back from the disk; `None` when it is there no more. Gives what a turn
    /// begins with, which is something else when it was deleted or read by somebody else meanwhile.
    pub fn loaded(&self, key: &SessionKey, number: u64, stored: Option<Stored>) -> Base {
        let mut state = self.0.lock();
        let state = &mut *state;
        let Some(session) = state.by_key.get_mut(key) else { return Base::default() };
        match (&session.thread, stored) {
            (None, Some(stored)) if session.number == number => {
                session.parts = stored.parts;
                session.thread = Some(Arc::new(stored.thread));
                state.resident_bytes += session.memory();
            }
            (None, None) if session.number == number => {
                state.by_key.remove(key);
                return Base::default();
            }
            _ => {}
        }
        session.base().unwrap_or_default()
    }

    /// Where a conversation is, for those who only look; `None` when there is none.
    pub fn peek(&self, key: &SessionKey) -> Option<Found> {
        let state = self.0.lock();
        let session = state.by_key.get(key)?;
        Some(match &session.thread {
            Some(thread) => Found::Here(Base { thread: Arc::clone(thread), ..Base::default() }),
            None => Found::OnDisk(session.number),
        })
    }

    /// A turn has ended, however it did.
    pub fn end(&self, key: &SessionKey, number: Option<u64>) {
        if number.is_none() {
            return;
        }
        let mut state = self.0.lock();
        let session = state.by_key.get_mut(key).filter(|session| Some(session.number) == number);
        if let Some(session) = session {
            session.turns = session.turns.saturating_sub(1);
        }
        state.make_room();
    }

    /// Stores a turn that was served: what the request changes, and the answer, in one step. Turns of one conversation
    /// that run at the same time begin with the same messages, and are stored one behind the other in the order in which
    /// they end. A turn whose conversation was deleted meanwhile leaves nothing. True when the disk should have it soon.
    pub fn keep(&self, key: &SessionKey, turn: Turn<'_>, now: Now) -> bool {
        let mut state = self.0.lock();
        let state = &mut *state;
        let number = state.by_key.get(key).map(|session| session.number);
        if turn.base.number.is_some() && turn.base.number != number {
            return false;
        }
        if number.is_none() {
            state.add(key, now);
        }
        let Some(session) = state.by_key.get_mut(key) else { return false };
        let before = session.memory();
        let moved_on = session.version != turn.base.version;
        let Some(thread) = session.thread.as_mut() else { return false };
        let Some(mut from) = apply(thread, turn.base, turn.change, moved_on) else {
            log::warn!("a tool result came after its conversation had gone on, and was not stored");
            return false;
        };
        let thread = Arc::make_mut(thread);
        thread.push(turn.answer, now.wall_ms);
        let bound = Bound { messages: MESSAGES_MAX, bytes: turn.bytes_max };
        if let Some((shorter, same)) = shortened(thread, bound) {
            *thread = shorter;
            from = from.min(same);
        }
        session.version += 1;
        session.unsaved = Some(session.unsaved.map_or(from, |known| known.min(from)));
        session.summary.updated_ms = now.wall_ms;
        session.summarize();
        state.resident_bytes = (state.resident_bytes + session.memory()).saturating_sub(before);
        state.unsaved_bytes += turn.change.fresh.bytes() + turn.answer.len();
        state.unsaved_since.get_or_insert_with(clock::instant);
        state.make_room();
        state.unsaved_bytes >= BATCH_BYTES
    }

    /// The conversations that were used last, newest first.
    pub fn newest(&self, count: usize) -> Vec<(SessionKey, Summary)> {
        let state = self.0.lock();
        let mut all: Vec<_> = state.by_key.iter().collect();
        all.sort_by_key(|(_, session)| Reverse((session.summary.updated_ms, session.number)));
        all.truncate(count);
        all.into_iter().map(|(key, session)| (key.clone(), session.summary)).collect()
    }

    /// The conversations of this name, the one that was used last first.
    pub fn named(&self, id: &str) -> Vec<(SessionKey, Summary)> {
        let mut named = self.newest(usize::MAX);
        named.retain(|(key, _)| &*key.id == id);
        named
    }

    /// How many there are, and how long they are together.
    pub fn totals(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.by_key.len(), state.by_key.values().map(|session| session.summary.bytes).sum())
    }

    /// Deletes a conversation; false when there is none.
    pub fn remove(&self, key: &SessionKey) -> bool {
        self.0.lock().remove(key)
    }
}

/// A turn that was served.
pub struct Turn<'a> {
    pub base: Base,
    pub change: &'a Change,
    /// The assistant's message.
    pub answer: &'a [u8],
    /// Longest text of a conversation.
    pub bytes_max: usize,
}

impl Session {
    fn summarize(&mut self) {
        if let Some(thread) = &self.thread {
            let summary = &mut self.summary;
            (summary.messages, summary.tokens, summary.bytes) =
                (thread.len(), thread.tokens(), thread.bytes());
        }
    }
}

/// Makes the change in `thread`, which may have `moved_on` since the turn began with `base`; the first message that is
/// another one now. `None` when the change makes no sense any more.
fn apply(thread: &mut Arc<Thread>, base: Base, change: &Change, moved_on: bool) -> Option<usize> {
    let fresh = &change.fresh;
    let results = fresh.marks().first().is_some_and(|mark| mark.kind == Kind::Result);
    let (from, keep) = match (moved_on, change.mode) {
        (false, _) => (change.keep, change.keep),
        (true, SessionMode::Append) if results => return None,
        (true, SessionMode::Append) => (thread.len(), thread.len()),
        (true, SessionMode::Replace) => {
            let same = base.thread.common_prefix(thread).min(change.keep);
            let whole = Arc::make_mut(thread);
            whole.truncate(same);
            whole.extend(&base.thread, same..change.keep);
            (same, change.keep)
        }
    };
    // Given back first: what nobody else holds is changed in place.
    drop(base);
    let thread = Arc::make_mut(thread);
    thread.truncate(keep);
    thread.extend(fresh, 0..fresh.len());
    Some(from)
}

impl State {
    fn add(&mut self, key: &SessionKey, now: Now) {
        while self.by_key.len() >= self.settings.max {
            let Some(oldest) = self.oldest() else { break };
            self.remove(&oldest);
        }
        self.last_number += 1;
        self.by_key.insert(key.clone(), Session::new(self.last_number, self.uses, now));
    }

    fn remove(&mut self, key: &SessionKey) -> bool {
        let Some(session) = self.by_key.remove(key) else { return false };
        self.resident_bytes = self.resident_bytes.saturating_sub(session.memory());
        self.gone.push(session.number);
        self.unsaved_since.get_or_insert_with(clock::instant);
        true
    }

    /// The conversation that was changed least recently.
    fn oldest(&self) -> Option<SessionKey> {
        let oldest =
            self.by_key.iter().min_by_key(|(_, session)| (session.summary.updated_ms, session.number));
        oldest.map(|(key, _)| key.clone())
    }

    /// Keeps memory within its bounds.
    fn make_room(&mut self) {
        while self.resident_bytes > RESIDENT_BYTES_MAX {
            let idle = |session: &&mut Session| session.thread.is_some() && session.turns == 0;
            let on_disk = self.by_key.values_mut().filter(|session| idle(session) && session.on_disk());
            let Some(session) = on_disk.min_by_key(|session| session.used) else { break };
            self.resident_bytes = self.resident_bytes.saturating_sub(session.memory());
            session.thread = None;
            session.parts = Vec::new();
        }
        while self.resident_bytes > UNWRITTEN_BYTES_MAX {
            let idle =
                self.by_key.iter().filter(|(_, session)| session.turns == 0 && session.thread.is_some());
            let Some(key) = idle.min_by_key(|(_, session)| session.used).map(|(key, _)| key.clone()) else {
                break;
            };
            log::warn!("a conversation is lost: too much waits for a disk that cannot be written");
            self.remove(&key);
        }
    }

    /// Lets conversations go that are too old, too many or too long.
    fn retain(&mut self, now: Now) {
        let mut bytes: usize = self.by_key.values().map(|session| session.summary.bytes).sum();
        let days_ms = self.settings.days.saturating_mul(DAY_MS);
        // A clock that was never set says nothing about anybody's age.
        let oldest_ms = if now.wall_ms < EARLIEST_WALL_MS { 0 } else { now.wall_ms.saturating_sub(days_ms) };
        let mut all: Vec<(u64, u64, SessionKey)> = self
            .by_key
            .iter()
            .map(|(key, session)| (session.summary.updated_ms, session.number, key.clone()))
            .collect();
        all.sort_by_key(|(updated_ms, number, _)| (*updated_ms, *number));
        let mut count = all.len();
        for (updated_ms, _, key) in all {
            if updated_ms >= oldest_ms && count <= self.settings.max && bytes <= self.settings.bytes {
                break;
            }
            bytes -= self.by_key.get(&key).map_or(0, |session| session.summary.bytes);
            count -= 1;
            self.remove(&key);
        }
    }
}

/// What the writer of the store asks.
impl Sessions {
    /// Since when something waits for the disk, and whether it is much.
    pub fn waiting(&self) -> (Option<Instant>, bool) {
        let state = self.0.lock();
        (state.unsaved_since, state.unsaved_bytes >= BATCH_BYTES)
    }

    /// Lets go what is kept long enough.
    pub fn forget(&self, now: Now) {
        self.0.lock().retain(now);
    }

    /// What the disk does not have. [`Sessions::written`] follows.
    pub fn take(&self, extent: Extent, now: Now) -> Vec<SessionChange> {
        // A writer that failed in between says nothing.
        self.written(false);
        let mut state = self.0.lock();
        let state = &mut *state;
        state.retain(now);
        if extent == Extent::Everything {
            // The file is new: what only the old one had is lost.
            state.by_key.retain(|_, session| session.thread.is_some());
            state.by_key.values_mut().for_each(|session| {
                session.parts.clear();
                session.unsaved = Some(0);
            });
        }
        let mut changes: Vec<SessionChange> =
            state.gone.iter().map(|number| SessionChange::Removed(*number)).collect();
        state.taken.gone = std::mem::take(&mut state.gone);
        for (key, session) in &mut state.by_key {
            let (Some(unsaved), Some(thread)) = (session.unsaved.take(), &session.thread) else { continue };
            // A part is written whole.
            let from = session.parts.iter().rev().copied().find(|end| *end <= unsaved).unwrap_or(0);
            session.parts.retain(|end| *end <= from);
            session.parts.push(thread.len());
            session.saving = true;
            state.taken.changed.push((key.clone(), from));
            let summary = session.summary;
            let row = SessionRow {
                number: session.number,
                owner: key.owner,
                id: Arc::clone(&key.id),
                created_ms: summary.created_ms,
                updated_ms: summary.updated_ms,
                messages: summary.messages,
                tokens: summary.tokens,
                bytes: summary.bytes,
            };
            changes.push(SessionChange::Changed { row, from, thread: Arc::clone(thread) });
        }
        (state.unsaved_bytes, state.unsaved_since) = (0, None);
        changes
    }

    /// Whether what was taken is on the disk now.
    pub fn written(&self, well: bool) {
        let mut state = self.0.lock();
        let state = &mut *state;
        let taken = std::mem::take(&mut state.taken);
        for (key, from) in taken.changed {
            let Some(session) = state.by_key.get_mut(&key) else { continue };
            session.saving = false;
            if !well {
                session.unsaved = Some(session.unsaved.map_or(from, |known| known.min(from)));
                session.parts.retain(|end| *end <= from);
            }
        }
        if !well && !taken.gone.is_empty() {
            state.gone.extend(taken.gone);
        }
        if !state.gone.is_empty() || state.by_key.values().any(|session| session.unsaved.is_some()) {
            state.unsaved_since.get_or_insert_with(clock::instant);
        }
        state.make_room();
    }
}

/// The conversations of a gateway, for the writer of its own store.
pub struct SessionsOf(pub Weak<Gateway>);

impl SessionSource for SessionsOf {
    fn waiting(&self) -> (Option<Instant>, bool) {
        self.0.upgrade().map_or((None, false), |gateway| gateway.sessions.waiting())
    }

    fn forget(&self, now: Now) {
        if let Some(gateway) = self.0.upgrade() {
            gateway.sessions.forget(now);
        }
    }

    fn take(&self, extent: Extent, now: Now) -> Vec<SessionChange> {
        self.0.upgrade().map(|gateway| gateway.sessions.take(extent, now)).unwrap_or_default()
    }

    fn written(&self, well: bool) {
        if let Some(gateway) = self.0.upgrade() {
            gateway.sessions.written(well);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::thread::change;

    const NOW: Now = Now::at(3_600_000, 1_796_104_800_000);
    const BYTES_MAX: usize = 8 << 20;

    fn key(id: &str) -> SessionKey {
        SessionKey { owner: None, id: id.into() }
    }

    fn user(text: &str) -> Thread {
        let list = format!(r#"[{{"role":"user","content":"{text}"}}]"#);
        Thread::read(list.as_bytes(), NOW.wall_ms).expect("a list")
    }

    fn begin(sessions: &Sessions, id: &str) -> Base {
        match sessions.begin(&key(id)) {
            Found::Here(base) => base,
            Found::OnDisk(number) => panic!("{number} is on the disk only"),
        }
    }

    fn keep(
        sessions: &Sessions,
        id: &str,
        base: Base,
        incoming: Thread,
        mode: Option<SessionMode>,
        now: Now,
    ) {
        let change = change(&base.thread, incoming, mode);
        let number = base.number();
        let turn = Turn {
            base,
            change: &change,
            answer: br#"{"role":"assistant","content":"!"}"#,
            bytes_max: BYTES_MAX,
        };
        sessions.keep(&key(id), turn, now);
        sessions.end(&key(id), number);
    }

    /// One whole turn.
    fn turn(sessions: &Sessions, id: &str, text: &str, now: Now) {
        keep(sessions, id, begin(sessions, id), user(text), None, now);
    }

    fn texts(thread: &Thread) -> Vec<String> {
        let content = |at: usize| {
            crate::wire::json::member(thread.message(at), "content").map(|raw| raw[1..raw.len() - 1].to_vec())
        };
        (0..thread.len()).filter_map(content).map(|text| String::from_utf8(text).expect("UTF-8")).collect()
    }

    fn stored(sessions: &Sessions, id: &str) -> Vec<String> {
        match sessions.peek(&key(id)) {
            Some(Found::Here(base)) => texts(&base.thread),
            _ => Vec::new(),
        }
    }

    /// From which message on each conversation is written, and how long it is.
    fn taken(sessions: &Sessions, extent: Extent) -> Vec<(String, usize, usize)> {
        let mut taken: Vec<_> = sessions
            .take(extent, NOW)
            .into_iter()
            .map(|change| match change {
                SessionChange::Changed { row, from, thread } => (row.id.to_string(), from, thread.len()),
                SessionChange::Removed(_) => ("gone".into(), 0, 0),
            })
            .collect();
        taken.sort();
        taken
    }

    #[test]
    fn the_disk_gets_what_it_does_not_have() {
        let sessions = Sessions::default();
        sessions.set(SessionSettings::default());
        turn(&sessions, "a", "1", NOW);
        turn(&sessions, "b", "1", NOW);
        assert!(sessions.waiting().0.is_some());
        assert_eq!(taken(&sessions, Extent::Changes), [("a".into(), 0, 2), ("b".into(), 0, 2)]);
        // While it is being written a turn comes, and then the write fails.
        turn(&sessions, "a", "2", NOW);
        sessions.written(false);
        assert!(sessions.waiting().0.is_some());
        assert_eq!(taken(&sessions, Extent::Changes), [("a".into(), 0, 4), ("b".into(), 0, 2)]);
        sessions.written(true);
        assert_eq!((sessions.waiting().0, taken(&sessions, Extent::Changes)), (None, vec![]));
        sessions.written(true);
        turn(&sessions, "a", "3", NOW);
        assert_eq!(taken(&sessions, Extent::Changes), [("a".into(), 4, 6)]);
        sessions.written(true);
        // A history that differs in the second part rewrites it and what follows.
        let history = r#"[{"role":"user","content":"1"},{"role":"assistant","content":"!"},{"role":"user","content":"2"},{"role":"assistant","content":"!"},{"role":"user","content":"3"},{"role":"assistant","content":"?"},{"role":"user","content":"4"}]"#;
        let history = Thread::read(history.as_bytes(), 0).expect("a list");
        keep(&sessions, "a", begin(&sessions, "a"), history, None, NOW);
        assert_eq!(taken(&sessions, Extent::Changes), [("a".into(), 4, 8)]);
        sessions.written(true);
        assert!(sessions.remove(&key("b")) && !sessions.remove(&key("b")));
        assert_eq!(taken(&sessions, Extent::Changes), [("gone".into(), 0, 0)]);
        sessions.written(false);
        assert_eq!(taken(&sessions, Extent::Everything), [("a".into(), 0, 8), ("gone".into(), 0, 0)]);
    }

    #[test]
    fn turns_at_once_are_stored_one_behind_the_other() {
        let sessions = Sessions::default();
        sessions.set(SessionSettings::default());
        let (first, second) = (begin(&sessions, "s"), begin(&sessions, "s"));
        keep(&sessions, "s", second, user("2"), None, NOW);
        keep(&sessions, "s", first, user("1"), None, NOW);
        assert_eq!(stored(&sessions, "s"), ["2", "!", "1", "!"]);
        let (first, second) = (begin(&sessions, "s"), begin(&sessions, "s"));
        keep(&sessions, "s", first, user("3"), None, NOW);
        keep(&sessions, "s", second, user("x"), Some(SessionMode::Replace), NOW);
        assert_eq!(stored(&sessions, "s"), ["x", "!"], "a replacement that ends last replaces all");
        let base = begin(&sessions, "s");
        turn(&sessions, "s", "y", NOW);
        let late =
            Thread::read(br#"[{"role":"tool","tool_call_id":"a","content":"late"}]"#, 0).expect("a list");
        keep(&sessions, "s", base, late, None, NOW);
        assert_eq!(stored(&sessions, "s"), ["x", "!", "y", "!"], "a result has no place behind another turn");
    }

    #[test]
    fn a_turn_of_a_deleted_conversation_leaves_nothing() {
        let sessions = Sessions::default();
        sessions.set(SessionSettings::default());
        turn(&sessions, "s", "1", NOW);
        let base = begin(&sessions, "s");
        sessions.remove(&key("s"));
        keep(&sessions, "s", base.clone(), user("2"), None, NOW);
        assert_eq!(stored(&sessions, "s"), [""; 0]);
        turn(&sessions, "s", "new", NOW);
        keep(&sessions, "s", base, user("2"), None, NOW);
        assert_eq!(stored(&sessions, "s"), ["new", "!"]);
    }

    #[test]
    fn memory_is_bounded_and_the_disk_has_the_rest() {
        let sessions = Sessions::default();
        sessions.set(SessionSettings::default());
        let long = "x".repeat(1 << 20);
        for id in 0..12 {
            turn(&sessions, &id.to_string(), &long, NOW);
        }
        assert!(sessions.0.lock().resident_bytes > RESIDENT_BYTES_MAX, "nothing is written yet");
        assert!(sessions.waiting().1, "and it is much");
        let changes = sessions.take(Extent::Changes, NOW);
        sessions.written(true);
        assert!(sessions.0.lock().resident_bytes <= RESIDENT_BYTES_MAX);
        let Found::OnDisk(number) = sessions.begin(&key("0")) else {
            panic!("the oldest is on the disk only")
        };
        let thread = changes.iter().find_map(|change| match change {
            SessionChange::Changed { row, thread, .. } if row.number == number => Some(Thread::clone(thread)),
            _ => None,
        });
        let (thread, parts) = (thread.expect("it was written"), vec![2]);
        let base = sessions.loaded(&key("0"), number, Some(Stored { thread, parts }));
        assert_eq!((base.thread.len(), base.number()), (2, Some(number)));
        // While its turn is under way it stays, however long others are.
        for id in 1..12 {
            if let Found::OnDisk(number) = sessions.begin(&key(&id.to_string())) {
                sessions.loaded(
                    &key(&id.to_string()),
                    number,
                    Some(Stored { thread: user(&long), parts: vec![1] }),
                );
            }
            sessions.end(&key(&id.to_string()), Some(number + id));
        }
        keep(&sessions, "0", base, user("more"), None, NOW);
        assert_eq!(stored(&sessions, "0").len(), 4);
        // A disk that cannot be written does not fill the memory.
        let sessions = Sessions::default();
        sessions.set(SessionSettings::default());
        for id in 0..50 {
            turn(&sessions, &id.to_string(), &long, NOW);
        }
        let state = sessions.0.lock();
        assert!(state.resident_bytes <= UNWRITTEN_BYTES_MAX && state.by_key.contains_key(&key("49")));
    }

    #[test]
    fn what_is_old_or_too_much_goes() {
        let sessions = Sessions::default();
        sessions.set(SessionSettings { days: 1, max: 3, bytes: 100_000 });
        let at = |minutes: u64| Now::at(NOW.mono_ms, NOW.wall_ms + minutes * 60_000);
        let ids = |sessions: &Sessions| -> Vec<String> {
            sessions.newest(9).iter().map(|(key, _)| key.id.to_string()).collect()
        };
        for (minute, id) in (0..).zip(["a", "b", "c", "a", "d"]) {
            turn(&sessions, id, "x", at(minute));
        }
        assert_eq!(ids(&sessions), ["d", "a", "c"]);
        sessions.forget(at(24 * 60 + 3));
        assert_eq!(ids(&sessions), ["d", "a"]);
        sessions.forget(Now::at(0, 5));
        assert_eq!(ids(&sessions), ["d", "a"], "a clock that is not set says nothing");
        turn(&sessions, "e", &"x".repeat(99_000), at(6));
        sessions.forget(at(6));
        assert_eq!(ids(&sessions), ["e", "d", "a"]);
        turn(&sessions, "d", &"x".repeat(5_000), at(7));
        sessions.forget(at(7));
        assert_eq!(ids(&sessions), ["d"]);
    }

    #[test]
    fn what_the_disk_has_is_known_after_a_restart() {
        let row = |number: u64, id: &str| SessionRow {
            number,
            owner: None,
            id: id.into(),
            created_ms: 1,
            updated_ms: number,
            messages: 2,
            tokens: 9,
            bytes: 80,
        };
        let sessions =
            Sessions::restored(vec![row(1, "a"), row(2, "b"), row(3, "a")], SessionSettings::default(), NOW);
        assert_eq!(sessions.newest(9).iter().map(|(key, _)| &*key.id).collect::<Vec<_>>(), ["a", "b"]);
        assert!(matches!(sessions.begin(&key("a")), Found::OnDisk(3)));
        assert!(matches!(sessions.begin(&key("c")), Found::Here(base) if base.number().is_none()));
        assert_eq!(sessions.totals(), (2, 160));
        // It was lost with its file.
        assert_eq!(sessions.loaded(&key("b"), 2, None).number(), None);
        assert_eq!(sessions.totals(), (1, 80));
        turn(&sessions, "new", "x", NOW);
        assert!(sessions.0.lock().last_number > 1_000_000, "no number is given twice");
    }
}
