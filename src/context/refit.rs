//! The ladder: how a conversation is made to fit a smaller window. Each rung costs more of it than the one before, and
//! none is climbed without need:
//!
//! | rung | what is done |
//! |---|---|
//! | `passthrough` | nothing: it fits |
//! | `drop-tool-noise` | results of tool calls that were read long ago, and old images, make way for marks, oldest first |
//! | `window` | whole turns go: what stays is the system messages, the first user turn, the last turns |
//! | `compact` | notes take the place of the turns that go |
//! | `hard-truncate` | the results of the running tool calls are cut |
//!
//! What always stays, byte for byte: every system message, the newest message of the user, the calls that are running.
//! A call and its results stay or go together.
//!
//! The messages are those of a conversation whose pairs are whole, see `context::pairs`.
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::conversation::{Conversation, Message, Role};
use super::noise;
use super::summary::{self, Key, Keys, Need};
use crate::wire::json;

/// What messages may weigh in tokens of our count, and how many turns may stay when some go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What they should weigh at most.
    pub target: u64,
    /// What they must not exceed, when what has to stay is more than the target.
    pub hard: u64,
    pub max_turns: usize,
    /// The window of the model that writes summaries.
    pub writer: u64,
}

/// How far the ladder was climbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    Passthrough,
    DropToolNoise,
    Window,
    Compact,
    HardTruncate,
}

impl Rung {
    /// Its name in `x-freeway-context`.
    pub fn name(self) -> &'static str {
        match self {
            Rung::Passthrough => "passthrough",
            Rung::DropToolNoise => "drop-tool-noise",
            Rung::Window => "window",
            Rung::Compact => "compact",
            Rung::HardTruncate => "hard-truncate",
        }
    }
}

/// A conversation that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// The value of `messages`.
    pub messages: Vec<u8>,
    pub rung: Rung,
    /// Tokens in our count.
    pub tokens: u64,
    /// Messages of the client that are still there, and that are not.
    pub kept: usize,
    pub dropped: usize,
    pub summaries: usize,
}

/// Where the ladder stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Fitted(Fitted),
    /// A summary would help; [`Ladder::finish`] takes it, or goes on without.
    NeedsSummary(Need),
    /// Even what has to stay needs so many tokens.
    TooLarge {
        needed: u64,
    },
}

/// The longest known summary of a beginning of the conversation: how many of the keys it covers, and its text.
pub type Known = Option<(usize, Arc<str>)>;

/// Whether summaries may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    On,
    Off,
}

/// Makes a conversation fit. `known` finds a summary that was made before.
pub fn refit(
    talk: &Conversation<'_>,
    room: &Room,
    compaction: Compaction,
    known: impl FnOnce(&[Key]) -> Known,
) -> Step {
    let mut ladder = match Ladder::new(talk, room) {
        Ok(ladder) => ladder,
        Err(needed) => return Step::TooLarge { needed: needed.div_ceil(TOKEN) },
    };
    if let Some(rung) = ladder.without_loss() {
        return Step::Fitted(ladder.assembled(rung, None, None));
    }
    if compaction == Compaction::On && ladder.summary_room().is_some() {
        let keys = ladder.keys();
        let known = known(&keys);
        let known = known.as_ref().map(|(covers, text)| (*covers, &**text));
        if let Some((kept, text)) = known.and_then(|(covers, text)| ladder.around(covers, text)) {
            return Step::Fitted(ladder.assembled(Rung::Compact, Some(kept), Some(text)));
        }
        if let Some(need) = ladder.need(&keys, known) {
            return Step::NeedsSummary(need);
        }
    }
    Step::Fitted(ladder.windowed())
}

/// Goes on after [`Step::NeedsSummary`], with what was written, or without.
pub fn finish(talk: &Conversation<'_>, room: &Room, need: &Need, written: Option<&str>) -> Step {
    let mut ladder = match Ladder::new(talk, room) {
        Ok(ladder) => ladder,
        Err(needed) => return Step::TooLarge { needed: needed.div_ceil(TOKEN) },
    };
    ladder.without_loss();
    let text = written.and_then(|text| need.accepted(text));
    Step::Fitted(match text.and_then(|text| ladder.around(need.covers, text)) {
        Some((kept, text)) => ladder.assembled(Rung::Compact, Some(kept), Some(text)),
        None => ladder.windowed(),
    })
}

/// The summary that the next turn will want, if this conversation is at `full` tokens or more, what can be had without
/// loss and what is summarised already taken off.
pub fn ahead(
    talk: &Conversation<'_>,
    room: &Room,
    full: u64,
    known: impl FnOnce(&[Key]) -> Known,
) -> Option<Need> {
    let mut ladder = Ladder::new(talk, room).ok()?;
    ladder.summary_room()?;
    ladder.clear_noise(0);
    let keys = ladder.keys();
    let known = known(&keys);
    let known = known.as_ref().map(|(covers, text)| (*covers, &**text));
    let weight = match known.and_then(|(covers, text)| ladder.around(covers, text)) {
        Some((kept, text)) => ladder.weight_of(kept) + summary::weight(text),
        None => ladder.total(),
    };
    if weight < full.saturating_mul(TOKEN) { None } else { ladder.need(&keys, known) }
}

/// Weights are thousandths of a token.
const TOKEN: u64 = 1_000;
/// The part of the room beside what has to stay that is kept for a summary, and its bounds.
const SUMMARY_PART: u64 = 4;
const SUMMARY_WEIGHT_MIN: u64 = 128 * TOKEN;
const SUMMARY_WEIGHT_MAX: u64 = 1_024 * TOKEN;
/// A message of its own around the summary, and a distance.
const AROUND_SUMMARY: u64 = 5 * TOKEN;

/// A fresh summary leaves a third of the turns' room free, so that it serves the next turns, too.
const fn with_slack(amount: u64) -> u64 {
    amount * 2 / 3
}

/// One conversation on its way up. Weights are thousandths of a token.
struct Ladder<'t, 'a> {
    talk: &'t Conversation<'a>,
    target: u64,
    max_turns: usize,
    writer: u64,
    /// Everything but the system messages: what stands or falls together.
    groups: Vec<Range<usize>>,
    /// The group with the newest message of the user.
    newest: usize,
    /// The last group: the calls that are running, unless it is the newest message.
    last: usize,
    /// What messages weigh by now, and what they say where that was changed.
    weights: Vec<u64>,
    changed: Vec<Option<Vec<u8>>>,
    /// Whether texts were cut.
    truncated: bool,
}

/// Which groups stay besides the newest message of the user and the last group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// All from this one on.
    from: usize,
    /// The first message of the user, where it stands before those.
    anchor: Option<usize>,
}

impl<'t, 'a> Ladder<'t, 'a> {
    /// At the foot. Fails with the weight that is needed when what has to stay is too much for `room`; cuts the results
    /// of the running calls when it is too much only with them.
    fn new(talk: &'t Conversation<'a>, room: &Room) -> Result<Ladder<'t, 'a>, u64> {
        let mut groups = talk.groups();
        let role = |group: &Range<usize>| talk.messages[group.start].role;
        groups.retain(|group| role(group) != Role::System);
        let last = groups.len().saturating_sub(1);
        let newest = groups.iter().rposition(|group| role(group) == Role::User).unwrap_or(last);
        let mut ladder = Ladder {
            talk,
            target: room.target.saturating_mul(TOKEN),
            max_turns: room.max_turns,
            writer: room.writer.saturating_mul(TOKEN),
            newest,
            last,
            groups,
            weights: talk.messages.iter().map(|message| message.weight).collect(),
            changed: vec![None; talk.messages.len()],
            truncated: false,
        };
        let (core, hard) = (ladder.core(), room.hard.saturating_mul(TOKEN));
        if core > ladder.target && core <= hard {
            ladder.target = core;
        } else if core > ladder.target {
            ladder.cut_results(hard)?;
        }
        Ok(ladder)
    }

    fn group(&self, at: usize) -> u64 {
        self.groups.get(at).map_or(0, |group| self.weights[group.clone()].iter().sum())
    }

    fn role(&self, group: usize) -> Role {
        self.groups.get(group).map_or(Role::User, |group| self.talk.messages[group.start].role)
    }

    fn total(&self) -> u64 {
        self.weights.iter().sum()
    }

    /// What always stays.
    fn core(&self) -> u64 {
        let groups: u64 = (0..self.groups.len()).map(|at| self.group(at)).sum();
        let running = if self.last == self.newest { 0 } else { self.group(self.last) };
        self.total() - groups + self.group(self.newest) + running
    }

    /// What stays by choice.
    fn weight_of(&self, kept: Kept) -> u64 {
        let tail = (kept.from..self.groups.len()).filter(|at| *at != self.newest && *at != self.last);
        self.core() + tail.chain(kept.anchor).map(|at| self.group(at)).sum::<u64>()
    }

    /// Cuts the longest results of the running calls until what has to stay weighs no more than the target, or as
    /// little as is possible.
    fn cut_results(&mut self, hard: u64) -> Result<(), u64> {
        let core = self.core();
        if self.last == self.newest {
            return Err(core);
        }
        let results: Vec<(usize, u64)> = self.groups[self.last]
            .clone()
            .map(|at| (at, noise::content_weight(&self.talk.messages[at])))
            .collect();
        let fixed = core - results.iter().map(|(_, weight)| weight).sum::<u64>();
        let least = fixed + results.iter().map(|(_, weight)| noise::CUT_WEIGHT_MIN.min(*weight)).sum::<u64>();
        if least > hard {
            return Err(least);
        }
        self.target = self.target.max(least);
        let level = level(results.iter().map(|(_, weight)| *weight).collect(), self.target - fixed);
        for (at, _) in results.into_iter().filter(|(_, weight)| *weight > level) {
            self.change(at, noise::shortened(&self.talk.messages[at], level));
        }
        self.truncated = true;
        Ok(())
    }

    fn change(&mut self, at: usize, message: Vec<u8>) {
        // What we wrote ourselves can be read.
        if let Ok(read) = Message::read(&message) {
            self.weights[at] = read.weight;
            self.changed[at] = Some(message);
        }
    }

    /// The rung that is enough without a turn lost, if one is.
    fn without_loss(&mut self) -> Option<Rung> {
        let before = self.total();
        self.clear_noise(self.target);
        let rung = if before <= self.target { Rung::Passthrough } else { Rung::DropToolNoise };
        (self.total() <= self.target).then_some(if self.truncated { Rung::HardTruncate } else { rung })
    }

    /// Clears noise, the oldest first, until everything weighs no more than `target`.
    fn clear_noise(&mut self, target: u64) {
        let start = |group: usize| self.groups.get(group).map_or(0, |group| group.start);
        let (newest, running) = (start(self.newest), start(self.last));
        let mut total = self.total();
        for at in (0..running).filter(|at| *at != newest) {
            if total <= target {
                return;
            }
            if let Some(message) = noise::cleared(&self.talk.messages[at]) {
                total -= self.weights[at];
                self.change(at, message);
                total += self.weights[at];
            }
        }
    }

    /// The last turns that `room` has room for beside the core, and the first message of the user if there is room for
    /// it, too, which comes before older turns.
    fn select(&self, room: u64, turns: usize) -> Kept {
        let (mut from, mut left) = (self.last, room);
        let fits = |at: usize, left: &mut u64| match left.checked_sub(self.group(at)) {
            Some(rest) => {
                *left = rest;
                true
            }
            None => false,
        };
        // What happened since the newest message counts as one turn with it.
        while from > self.newest + 1 && fits(from - 1, &mut left) {
            from -= 1;
        }
        let first_user = (0..self.newest).find(|at| self.role(*at) == Role::User);
        let anchor = first_user.filter(|at| fits(*at, &mut left));
        if from > self.newest + 1 {
            return Kept { from, anchor };
        }
        from = self.newest;
        let mut count = 1;
        while from > 0 && (anchor == Some(from - 1) || (count < turns && fits(from - 1, &mut left))) {
            from -= 1;
            count += 1;
        }
        let anchor = anchor.filter(|at| *at < from);
        if anchor.is_none() {
            from = self.next_user(from);
        }
        Kept { from, anchor }
    }

    /// The first group from here on that may follow the system messages: upstreams want the user to begin.
    fn next_user(&self, from: usize) -> usize {
        (from..self.newest).find(|at| self.role(*at) == Role::User).unwrap_or(self.newest.max(from))
    }

    fn windowed(&mut self) -> Fitted {
        let kept = self.select(self.target.saturating_sub(self.core()), self.max_turns);
        let rung = if self.truncated { Rung::HardTruncate } else { Rung::Window };
        self.assembled(rung, Some(kept), None)
    }

    /// How much a summary may weigh; `None` when there is no room for one.
    fn summary_room(&self) -> Option<u64> {
        let room = self.target.saturating_sub(self.core());
        let enough = !self.truncated && room >= 2 * SUMMARY_WEIGHT_MIN;
        enough.then_some((room / SUMMARY_PART).clamp(SUMMARY_WEIGHT_MIN, SUMMARY_WEIGHT_MAX))
    }

    /// How many groups may be summarised: all but the newest message of the user and the last group.
    fn summarisable(&self) -> usize {
        if self.last == self.newest { self.newest } else { self.last - 1 }
    }

    /// The groups that may be summarised, in order. Wherever the newest message stands, the first of them are the same
    /// from turn to turn, so that summaries are found again.
    fn sequence(&self) -> impl Iterator<Item = usize> {
        let newest = self.newest;
        (0..self.summarisable()).map(move |place| if place < newest { place } else { place + 1 })
    }

    /// The keys of all summaries that could be there.
    fn keys(&self) -> Vec<Key> {
        let mut keys = Keys::new();
        let key = |group: usize| {
            self.groups[group].clone().for_each(|at| keys.add(&self.talk.messages[at]));
            keys.key()
        };
        self.sequence().map(key).collect()
    }

    /// What stays beside a summary of the first `covers` groups, if that fits.
    fn around<'s>(&self, covers: usize, text: &'s str) -> Option<(Kept, &'s str)> {
        let from = if covers <= self.newest { covers } else { covers + 1 };
        let turns = self.newest.saturating_sub(from) + 1;
        let kept = Kept { from, anchor: None };
        let weight = self.weight_of(kept) + summary::weight(text) + AROUND_SUMMARY;
        if covers > self.summarisable() || turns > self.max_turns || weight > self.target {
            return None;
        }
        let first_user = (0..from.min(self.newest)).find(|at| self.role(*at) == Role::User);
        let anchor = first_user.filter(|at| weight + self.group(*at) <= self.target);
        let begins_well = anchor.is_some() || self.next_user(from) == from;
        begins_well.then_some((Kept { from, anchor }, text))
    }

    /// The summary to be made: of what would go, or of what has come since `known`.
    fn need(&self, keys: &[Key], known: Option<(usize, &str)>) -> Option<Need> {
        let reserve = self.summary_room()?;
        let room = self.target.saturating_sub(self.core() + reserve + AROUND_SUMMARY);
        let turns = with_slack(self.max_turns as u64).max(1) as usize;
        let mut kept = self.select(with_slack(room), turns);
        if kept.from < self.newest {
            kept.from = self.next_user(kept.from);
        }
        let covers = if kept.from <= self.newest { kept.from } else { kept.from - 1 };
        let covered = || self.sequence().take(covers);
        let gone = covered().filter(|at| kept.anchor != Some(*at));
        let source: u64 =
            gone.flat_map(|at| self.groups[at].clone()).map(|at| self.talk.messages[at].weight).sum();
        if source < 2 * SUMMARY_WEIGHT_MIN {
            return None;
        }
        // The notes come from the same window.
        let most = self.writer.saturating_sub(summary::prompt_weight() + reserve);
        if most < 2 * SUMMARY_WEIGHT_MIN {
            return None;
        }
        // Notes that fill the window leave no room for what is new.
        let known = known.filter(|(known, text)| *known < covers && summary::weight(text) <= most / 2);
        let fresh = covered().skip(known.map_or(0, |(known, _)| known));
        let messages: Vec<_> = fresh.flat_map(|at| &self.talk.messages[self.groups[at].clone()]).collect();
        Some(Need {
            key: *keys.get(covers.checked_sub(1)?)?,
            transcript: summary::transcript(known.map(|(_, text)| text), messages.into_iter(), most),
            max_tokens: reserve / TOKEN,
            source_weight: source,
            covers,
        })
    }

    /// The conversation with what stays of it; everything, if nothing was chosen.
    fn assembled(&mut self, rung: Rung, kept: Option<Kept>, text: Option<&str>) -> Fitted {
        let mut stays = vec![true; self.talk.messages.len()];
        if let Some(Kept { from, anchor }) = kept {
            let gone = |at: &usize| *at < from && *at != self.newest && anchor != Some(*at);
            for at in (0..self.last).filter(gone) {
                stays[self.groups[at].clone()].fill(false);
            }
        }
        let own = text.map_or(0, |text| summary::weight(text) + AROUND_SUMMARY);
        let weigh = |ladder: &Self| {
            own + ladder
                .weights
                .iter()
                .zip(&stays)
                .map(|(weight, stays)| if *stays { *weight } else { 0 })
                .sum::<u64>()
        };
        if kept.is_some() {
            let left = self.target.saturating_sub(weigh(self));
            self.restore(&stays, left);
        }
        let kept = stays.iter().filter(|stays| **stays).count();
        Fitted {
            messages: self.written(&stays, text),
            rung,
            tokens: weigh(self).div_ceil(TOKEN),
            kept,
            dropped: stays.len() - kept,
            summaries: usize::from(text.is_some()),
        }
    }

    /// Gives back what was cleared, the newest first, as far as there is room after all.
    fn restore(&mut self, stays: &[bool], mut left: u64) {
        let running = self.groups.get(self.last).map_or(0, |group| group.start);
        for at in (0..running).rev().filter(|at| stays[*at]) {
            let more = self.talk.messages[at].weight - self.weights[at].min(self.talk.messages[at].weight);
            if self.changed[at].is_some() && more <= left {
                left -= more;
                self.weights[at] += more;
                self.changed[at] = None;
            }
        }
    }

    fn written(&self, stays: &[bool], text: Option<&str>) -> Vec<u8> {
        let messages = self.talk.messages.iter().zip(&self.changed).zip(stays);
        let mut written: Vec<Cow<'_, [u8]>> = messages
            .filter(|(_, stays)| **stays)
            .map(|((message, changed), _)| Cow::Borrowed(changed.as_deref().unwrap_or(message.raw)))
            .collect();
        if let Some(text) = text {
            let first = self.talk.messages.first();
            match first.filter(|first| first.role == Role::System).and_then(|first| with_section(first, text))
            {
                Some(extended) => written[0] = Cow::Owned(extended),
                None => written.insert(0, Cow::Owned(own_message(text))),
            }
        }
        let mut out = Vec::with_capacity(2 + written.iter().map(|message| message.len() + 1).sum::<usize>());
        out.push(b'[');
        for (at, message) in written.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(message);
        }
        out.push(b']');
        out
    }
}

/// The largest share that all may have of `room` when none takes more than it needs.
fn level(mut wants: Vec<u64>, mut room: u64) -> u64 {
    wants.sort_unstable();
    let mut others = wants.len() as u64;
    for want in wants {
        if want > room / others {
            return room / others;
        }
        room -= want;
        others -= 1;
    }
    u64::MAX
}

/// A system message with a summary behind what it says.
fn with_section(message: &Message<'_>, text: &str) -> Option<Vec<u8>> {
    let section = json::quoted(&format!("\n\n{}", summary::section(text)));
    let content = message.content()?;
    let (front, close) = content.split_at(content.len().checked_sub(1)?);
    let extended = match close {
        // Inside the quotes that are there already.
        b"\"" => [front, &section[1..]].concat(),
        b"]" => [front, b",{\"type\":\"text\",\"text\":", &section, b"}]"].concat(),
        _ => return None,
    };
    Some(noise::with_content(message, &extended))
}

fn own_message(text: &str) -> Vec<u8> {
    [b"{\"role\":\"system\",\"content\":", &*json::quoted(&summary::section(text)), b"}"].concat()
}
