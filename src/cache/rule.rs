//! Which requests may be answered from memory, and which answers are worth keeping. Pure.
use crate::catalog::settings::CacheMode;
use crate::wire::body::Body;
use crate::wire::json::{self, Cursor, Flaw};

/// What a request's headers want of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wish {
    /// Cacheable whatever the temperature.
    pub insists: bool,
    /// A kept answer is not wanted, a fresh one is.
    pub anew: bool,
    /// Nothing is to be looked up or kept.
    pub private: bool,
}

impl Wish {
    /// Words of `x-freeway-cache`.
    pub const WORDS: &'static str = "on, off or refresh";

    /// What `x-freeway-cache: <word>` asks for; `None` for a word that is none of [`Wish::WORDS`].
    pub fn of_word(word: &str) -> Option<Wish> {
        let word = word.trim();
        let is = |known: &str| word.eq_ignore_ascii_case(known);
        Some(match () {
            () if is("on") => Wish { insists: true, ..Wish::default() },
            () if is("refresh") => Wish { insists: true, anew: true, ..Wish::default() },
            () if is("off") => Wish { private: true, ..Wish::default() },
            () => return None,
        })
    }

    /// This wish with what a `Cache-Control` of the request adds. Browsers send `no-cache` on every reload, so it asks
    /// for a fresh answer and makes nothing cacheable. Directives that we do not know ask for nothing.
    pub fn with_directives(mut self, value: &str) -> Wish {
        for directive in value.split(',').map(str::trim) {
            self.private |= directive.eq_ignore_ascii_case("no-store");
            self.anew |= directive.eq_ignore_ascii_case("no-cache");
        }
        self
    }
}

/// At and below this temperature a model can be expected to say the same twice.
const SAFE_TEMPERATURE_MAX: f64 = 0.2;

/// Whether the answer to a request may be looked up and kept.
///
/// In `safe` mode a temperature of at most 0.2 or a seed makes it so. Embeddings state neither and so are left alone,
/// though they would be the same again: indexing a folder asks for each text once, and would push every other answer
/// out. A client that repeats itself says `x-freeway-cache: on`.
pub fn is_cacheable(mode: CacheMode, wish: Wish, body: &Body) -> bool {
    if mode == CacheMode::Off || wish.private {
        return false;
    }
    if wish.insists || mode == CacheMode::Aggressive {
        return true;
    }
    let number = |name: &str| body.raw(name).and_then(json::number);
    number("seed").is_some() || number("temperature").is_some_and(|degree| degree <= SAFE_TEMPERATURE_MAX)
}

/// Whether a whole chat answer is worth keeping: every choice ended because the model was done, and said something.
pub fn is_keepable(answer: &[u8]) -> bool {
    judge(answer).unwrap_or(false)
}

fn judge(answer: &[u8]) -> Result<bool, Flaw> {
    let mut cursor = Cursor::new(answer);
    if !cursor.open(b'{')? {
        return Ok(false);
    }
    let (mut choices, mut good) = (0, true);
    while let Some(name) = cursor.member()? {
        match name {
            b"choices" if cursor.open(b'[')? => {
                while cursor.item()? {
                    choices += 1;
                    good &= is_good_choice(cursor.skip()?);
                }
            }
            b"error" => good &= json::is_blank(Some(cursor.skip()?)),
            _ => drop(cursor.skip()?),
        }
    }
    Ok(choices > 0 && good)
}

fn is_good_choice(choice: &[u8]) -> bool {
    let finish = json::member(choice, "finish_reason").and_then(json::text);
    let message = json::member(choice, "message").unwrap_or_default();
    let says = |name| json::member(message, name).is_some_and(|raw| !json::is_blank(Some(raw)));
    matches!(finish.as_deref(), Some("stop" | "tool_calls" | "function_call"))
        && ["content", "tool_calls", "refusal", "function_call", "audio"].into_iter().any(says)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(fields: &str) -> Body {
        Body::parse(format!("{{\"messages\":[]{fields}}}").into_bytes()).expect(fields)
    }

    #[test]
    fn safe_is_a_low_temperature_or_a_seed() {
        let check = |fields: &str, expected: bool| {
            assert_eq!(is_cacheable(CacheMode::Safe, Wish::default(), &body(fields)), expected, "{fields}");
        };
        check("", false);
        check(r#","temperature":0"#, true);
        check(r#","temperature":0.2,"stream":true"#, true);
        check(r#","temperature":2e-1"#, true);
        check(r#","temperature":0.21"#, false);
        check(r#","temperature":null"#, false);
        check(r#","temperature":"0""#, false);
        check(r#","temperature":1,"seed":7"#, true);
        check(r#","seed":null"#, false);
    }

    #[test]
    fn a_wish_is_heard_but_never_where_the_cache_is_off() {
        let check = |mode, word: &str, directives: &str, fields: &str, expected: bool| {
            let wish = Wish::of_word(word).unwrap_or_default().with_directives(directives);
            assert_eq!(is_cacheable(mode, wish, &body(fields)), expected, "{mode:?} {word} {directives}");
        };
        check(CacheMode::Safe, "on", "", r#","temperature":1"#, true);
        check(CacheMode::Safe, "Refresh", "", "", true);
        check(CacheMode::Off, "on", "", r#","temperature":0"#, false);
        check(CacheMode::Aggressive, "", "", "", true);
        check(CacheMode::Aggressive, "off", "", "", false);
        check(CacheMode::Safe, "on", "max-age=0, No-Store", "", false);
        check(CacheMode::Safe, "", "no-cache", "", false);
        check(CacheMode::Safe, "", "no-cache", r#","seed":1"#, true);
    }

    #[test]
    fn words_say_what_is_wanted() {
        assert_eq!(Wish::of_word("yes"), None);
        assert_eq!(Wish::of_word(""), None);
        let refresh = Wish { insists: true, anew: true, private: false };
        assert_eq!(Wish::of_word(" refresh "), Some(refresh));
        assert_eq!(Wish::of_word("on").map(|wish| wish.with_directives("no-cache")), Some(refresh));
        assert_eq!(Wish::default().with_directives("max-age=0"), Wish::default());
    }

    #[test]
    fn w10_only_an_answer_that_is_done_is_kept() {
        let check = |choices: &str, expected: bool| {
            let answer = format!(r#"{{"id":"x","choices":[{choices}],"usage":null}}"#);
            assert_eq!(is_keepable(answer.as_bytes()), expected, "{choices}");
        };
        let said = |finish: &str| format!(r#"{{"message":{{"content":"hi"}},"finish_reason":"{finish}"}}"#);
        check(&said("stop"), true);
        check(&said("length"), false);
        check(&said("content_filter"), false);
        check(&format!("{},{}", said("stop"), said("length")), false);
        check(r#"{"message":{"content":""},"finish_reason":"stop"}"#, false);
        check(r#"{"message":{"content":null,"tool_calls":[{"id":"c"}]},"finish_reason":"tool_calls"}"#, true);
        check(r#"{"message":{"content":null,"tool_calls":[]},"finish_reason":"tool_calls"}"#, false);
        check(r#"{"message":{"reasoning":"hm"},"finish_reason":"stop"}"#, false);
        check(r#"{"message":{"refusal":"no"},"finish_reason":"stop"}"#, true);
        check("", false);
        assert!(!is_keepable(b"{}"));
        assert!(!is_keepable(
            br#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"error":{"message":"e"}}"#
        ));
        assert!(!is_keepable(b"<html>"));
    }
}
