//! Tool calls and their results, put back together: every call is followed by one result for each of its ids, and every
//! result follows its call. What is missing is made up and says so, what belongs to nothing is left out, and further
//! results of one call become one with the first. Upstreams refuse a conversation for ever in which a single pair is
//! torn.
use std::collections::{HashMap, VecDeque};

use super::conversation::{Conversation, Message, Role};
use super::noise::with_content;
use crate::wire::json::{self, Flaw};

/// What a result says that never came.
pub(super) const NO_RESULT: &str = "[no result: this call was not finished]";

/// The value of `messages` with its pairs mended; `None` when nothing was torn.
pub fn mended(raw: &[u8]) -> Result<Option<Vec<u8>>, Flaw> {
    let talk = Conversation::read(raw)?;
    let mut out = Mended { out: vec![b'['], changed: false };
    let mut rest = talk.messages.as_slice();
    while let Some((message, behind)) = rest.split_first() {
        rest = behind;
        if message.role == Role::Tool {
            // Its call is not in front of it.
            out.changed = true;
            continue;
        }
        out.put(message.raw);
        if !message.calls.is_empty() {
            let spoken =
                behind.iter().position(|later| later.role == Role::Assistant).unwrap_or(behind.len());
            let (window, after) = behind.split_at(spoken);
            out.results(message, window);
            rest = after;
        }
    }
    out.out.push(b']');
    Ok(out.changed.then_some(out.out))
}

/// The list in the making.
struct Mended {
    out: Vec<u8>,
    changed: bool,
}

impl Mended {
    fn put(&mut self, message: &[u8]) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
        self.out.extend_from_slice(message);
    }

    /// Puts the results of `caller`, then what else stands in `window`, which ends before the next assistant speaks.
    fn results(&mut self, caller: &Message<'_>, window: &[Message<'_>]) {
        let at_once = window.iter().take_while(|later| later.role == Role::Tool).count();
        let mut results: HashMap<Option<&str>, VecDeque<&Message<'_>>> = HashMap::new();
        for later in window.iter().filter(|later| later.role == Role::Tool) {
            results.entry(later.answers.as_deref()).or_default().push_back(later);
        }
        for (at, call) in caller.calls.iter().enumerate() {
            let answers = results.get_mut(&call.as_deref());
            match answers.and_then(|answers| Some((answers.pop_front()?, answers))) {
                Some((result, further)) => {
                    let last = !further.is_empty() && !caller.calls[at + 1..].contains(call);
                    match last.then(|| together(result, further)).flatten() {
                        Some(all) => self.put(&all),
                        None => self.put(result.raw),
                    }
                }
                None => {
                    self.changed = true;
                    self.put(&no_result(call.as_deref()));
                }
            }
        }
        let others = window.iter().skip(at_once);
        // A result that stood behind something else was moved, one that is left over is left out.
        self.changed |= others.clone().any(|later| later.role == Role::Tool)
            || results.values().any(|left| !left.is_empty());
        others.filter(|later| later.role != Role::Tool).for_each(|later| self.put(later.raw));
    }
}

/// A result that says what `further` ones of the same call say, too; `None` when they say nothing new.
fn together(result: &Message<'_>, further: &VecDeque<&Message<'_>>) -> Option<Vec<u8>> {
    let says = |one: &&Message<'_>| !json::is_blank(one.content());
    let mut speaking = std::iter::once(result).chain(further.iter().copied()).filter(says);
    let first = speaking.next()?;
    let mut contents = vec![first.content()?];
    for content in speaking.filter_map(Message::content) {
        // Most that come twice say the same again.
        if !contents.contains(&content) {
            contents.push(content);
        }
    }
    if contents.len() == 1 {
        return (!says(&result)).then(|| first.raw.to_vec());
    }
    let texts: Option<Vec<_>> = contents.iter().map(|content| json::text(content)).collect();
    if let Some(texts) = texts {
        return Some(with_content(first, &json::quoted(&texts.join("\n"))));
    }
    let parts = contents.iter().filter_map(|content| match content {
        [b'[', parts @ .., b']'] => Some(parts.to_vec()),
        [b'"', ..] => Some([b"{\"type\":\"text\",\"text\":", *content, b"}"].concat()),
        _ => None,
    });
    let parts: Vec<Vec<u8>> = parts.collect();
    Some(with_content(first, &[b"[", &*parts.join(&b','), b"]"].concat()))
}

/// A result that stands in the place of one that never came.
pub(super) fn no_result(id: Option<&str>) -> Vec<u8> {
    let mut out = b"{\"role\":\"tool\",".to_vec();
    if let Some(id) = id {
        out.extend_from_slice(b"\"tool_call_id\":");
        json::quote(id, &mut out);
        out.push(b',');
    }
    out.extend_from_slice(b"\"content\":");
    json::quote(NO_RESULT, &mut out);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conversation in short: `u`ser, `s`ystem, `a`ssistant, `c` + ids a call of each, `r` + id a result, `!` a
    /// result that was made up.
    fn written(short: &str) -> String {
        let one = |word: &str| {
            let (kind, ids) = word.split_at(1);
            match kind {
                "c" => {
                    let call = |id: char| {
                        let id = if id == '-' { String::new() } else { format!("\"id\":\"{id}\",") };
                        format!("{{{id}\"function\":{{\"name\":\"f\"}}}}")
                    };
                    let calls: Vec<String> = ids.chars().map(call).collect();
                    format!("{{\"role\":\"assistant\",\"tool_calls\":[{}]}}", calls.join(","))
                }
                "r" if ids == "-" => "{\"role\":\"tool\",\"content\":\"x\"}".into(),
                "r" => format!("{{\"role\":\"tool\",\"tool_call_id\":\"{ids}\",\"content\":\"x\"}}"),
                "!" => String::from_utf8(no_result(Some(ids).filter(|id| *id != "-"))).expect("UTF-8"),
                "u" => "{\"role\":\"user\",\"content\":\"x\"}".into(),
                "s" => "{\"role\":\"system\",\"content\":\"x\"}".into(),
                "a" => "{\"role\":\"assistant\",\"content\":\"x\"}".into(),
                _ => panic!("{word}"),
            }
        };
        format!("[{}]", short.split(' ').map(one).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn ctx_02_torn_pairs_are_mended() {
        let check = |short: &str, expected: &str| {
            let found = mended(written(short).as_bytes()).expect("valid JSON");
            let found = found.map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
            let expected = (expected != "same").then(|| written(expected));
            assert_eq!(found, expected, "{short}");
            if let Some(found) = found {
                assert_eq!(mended(found.as_bytes()), Ok(None), "{short}: mended once is mended for good");
            }
        };
        check("u a u", "same");
        check("s u cA rA a u", "same");
        check("u cAB rA rB u", "same");
        check("u cAB rB rA u", "same");
        check("u cAB rB rA u rX", "u cAB rA rB u");
        check("u cA u", "u cA !A u");
        check("u cA", "u cA !A");
        check("u cAB rB u", "u cAB !A rB u");
        check("u rX a u", "u a u");
        check("u cA rA rA u", "u cA rA u");
        check("u cA u rA a", "u cA rA u a");
        check("u cA a rA u", "u cA !A a u");
        check("u cA rA cA rA u", "same");
        check("u c-- r- r- u", "same");
        check("u c-- r- u", "u c-- r- !- u");
    }

    #[test]
    fn further_results_of_one_call_are_not_lost() {
        let check = |contents: &[&str], expected: &str| {
            let result =
                |content: &&str| format!(r#"{{"role":"tool","content":{content},"tool_call_id":"A"}}"#);
            let calls = r#"{"role":"assistant","tool_calls":[{"id":"A","function":{"name":"f"}}]}"#;
            let list = |results: Vec<String>| format!("[{calls},{}]", results.join(","));
            let torn = list(contents.iter().map(result).collect());
            let found = mended(torn.as_bytes()).expect("valid JSON").expect("it was torn");
            assert_eq!(String::from_utf8(found), Ok(list(vec![result(&expected)])), "{contents:?}");
        };
        check(&[r#""x""#, r#""x""#], r#""x""#);
        check(&[r#""x""#, r#""y\"""#, r#""x""#], r#""x\ny\"""#);
        let part = r#"{"type":"text","text":"z"}"#;
        check(
            &[r#""x""#, &format!("[{part},{part}]"), "[]"],
            &format!(r#"[{{"type":"text","text":"x"}},{part},{part}]"#),
        );
    }
}
