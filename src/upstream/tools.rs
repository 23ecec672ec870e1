//! The ids that tie tool results to tool calls, as one upstream takes them.
use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use sha2::{Digest, Sha256};

use crate::catalog::provider::ToolIds;

/// Gives every call of one request the id that is sent, and every result the id of its call.
#[derive(Debug)]
pub struct CallIds {
    rule: ToolIds,
    /// From the client's id to the one that is sent, as far as they differ.
    sent: HashMap<String, String>,
    taken: HashSet<String>,
    /// Ids made for calls that had none, until a result without an id claims them.
    unclaimed: VecDeque<String>,
    made: usize,
}

/// Length of the ids that Mistral takes.
const SHORT_ID: usize = 9;

impl CallIds {
    /// Ids under the rule of one upstream.
    pub fn new(rule: ToolIds) -> CallIds {
        CallIds { rule, sent: HashMap::new(), taken: HashSet::new(), unclaimed: VecDeque::new(), made: 0 }
    }

    /// The id to send for a call; absent when the client gave none.
    pub fn call<'a>(&mut self, id: Option<&'a str>) -> Cow<'a, str> {
        match id.filter(|id| !id.is_empty()) {
            Some(id) => self.sent(id),
            None => {
                self.made += 1;
                let id = self.sent(&format!("call_auto_{}", self.made)).into_owned();
                self.unclaimed.push_back(id.clone());
                Cow::Owned(id)
            }
        }
    }

    /// The id to send with a result. One without an id answers the first call without one that has no result yet.
    pub fn result<'a>(&mut self, id: Option<&'a str>) -> Cow<'a, str> {
        match id.filter(|id| !id.is_empty()) {
            Some(id) => self.sent(id),
            None => Cow::Owned(self.unclaimed.pop_front().unwrap_or_default()),
        }
    }

    fn sent<'a>(&mut self, id: &'a str) -> Cow<'a, str> {
        if self.rule == ToolIds::Any || is_short(id) {
            self.taken.insert(id.to_owned());
            return Cow::Borrowed(id);
        }
        if let Some(short) = self.sent.get(id) {
            return Cow::Owned(short.clone());
        }
        // The same id gives the same short one in every request, so that an upstream's prompt cache still fits.
        let free = (0u32..).map(|round| short_id(id, round)).find(|short| !self.taken.contains(short));
        let short = free.expect("there are more short ids than ids in any request");
        self.taken.insert(short.clone());
        self.sent.insert(id.to_owned(), short.clone());
        Cow::Owned(short)
    }
}

fn is_short(id: &str) -> bool {
    id.len() == SHORT_ID && id.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Nine letters and digits that stand for an id; truncating it instead would make ids collide that differ at the end.
fn short_id(id: &str, round: u32) -> String {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let digest = Sha256::new().chain_update(round.to_le_bytes()).chain_update(id).finalize();
    digest.iter().take(SHORT_ID).map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_09_ids_become_short_without_colliding() {
        let mut ids = CallIds::new(ToolIds::Alnum9);
        let a = ids.call(Some("call_000000001a")).into_owned();
        let b = ids.call(Some("call_000000001b")).into_owned();
        assert!(is_short(&a) && is_short(&b) && a != b, "{a} {b}");
        assert_eq!(
            (ids.result(Some("call_000000001a")), ids.result(Some("call_000000001b"))),
            (a.into(), b.into())
        );
        assert_eq!(ids.call(Some("aB3dE6gH9")), "aB3dE6gH9");
        let mut again = CallIds::new(ToolIds::Alnum9);
        assert_eq!(again.call(Some("call_000000001a")), ids.result(Some("call_000000001a")));
        // A short id that is taken already is passed over.
        let mut ids = CallIds::new(ToolIds::Alnum9);
        let taken = short_id("call_x", 0);
        ids.call(Some(&taken));
        assert_eq!(ids.call(Some("call_x")), short_id("call_x", 1));
    }

    #[test]
    fn calls_without_ids_are_paired_in_order() {
        let mut ids = CallIds::new(ToolIds::Any);
        assert_eq!(
            (ids.call(None), ids.call(Some("")), ids.call(Some("x"))),
            ("call_auto_1".into(), "call_auto_2".into(), "x".into())
        );
        assert_eq!(
            (ids.result(Some("x")), ids.result(None), ids.result(Some(""))),
            ("x".into(), "call_auto_1".into(), "call_auto_2".into())
        );
        let mut ids = CallIds::new(ToolIds::Alnum9);
        let made = ids.call(None).into_owned();
        assert!(is_short(&made));
        assert_eq!(ids.result(None), made);
    }
}
