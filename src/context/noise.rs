//! What can be taken out of single messages: stale tool results, old images, the ends of long texts. Whatever is taken
//! out leaves a mark, and is taken out between characters.
use super::conversation::{Message, Role, is_text};
use super::tokens;
use crate::wire::json::{self, Cursor};

/// Stands where a tool result was.
const CLEARED: &str = "[tool result cleared to save room]";
/// Stands where an image was.
const NO_IMAGE: &[u8] = b"{\"type\":\"text\",\"text\":\"[image left out to save room]\"}";
/// Stands where the rest of a text was.
const CUT: &str = "\n[the rest was cut off to save room]";
/// A text is never cut below this weight, in thousandths of a token: about 160 characters of English.
pub const CUT_WEIGHT_MIN: u64 = 40_000;

/// A message without what is noise once the conversation has gone on: the content of a tool result, images elsewhere.
/// `None` when that would not make it lighter.
pub fn cleared(message: &Message<'_>) -> Option<Vec<u8>> {
    match message.role {
        Role::Tool | Role::Function => {
            let spared = content_weight(message) > tokens::weight_of_text(CLEARED);
            spared.then(|| with_content(message, &json::quoted(CLEARED)))
        }
        Role::User if message.images > 0 => Some(with_content(message, &without_images(message.content()?)?)),
        _ => None,
    }
}

/// What the content of a message weighs.
pub fn content_weight(message: &Message<'_>) -> u64 {
    match message.role {
        // The text alone is not counted where a message holds calls, too.
        Role::Tool | Role::Function => message.weight.saturating_sub(PER_MESSAGE),
        _ => 0,
    }
}

/// An empty message.
const PER_MESSAGE: u64 = 4_000;

/// A tool result whose content weighs no more than `weight`, or than [`CUT_WEIGHT_MIN`].
pub fn shortened(message: &Message<'_>, weight: u64) -> Vec<u8> {
    with_content(message, &json::quoted(&cut(&message.text(), weight.max(CUT_WEIGHT_MIN), CUT)))
}

/// The message with another value of `content`, everything else byte for byte.
pub fn with_content(message: &Message<'_>, content: &[u8]) -> Vec<u8> {
    let Some(span) = message.content.clone() else { return message.raw.to_vec() };
    [&message.raw[..span.start], content, &message.raw[span.end..]].concat()
}

fn without_images(content: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![b'['];
    let mut cursor = Cursor::new(content);
    if !cursor.open(b'[').ok()? {
        return None;
    }
    while cursor.item().ok()? {
        let part = cursor.skip().ok()?;
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(if is_text(part) { part } else { NO_IMAGE });
    }
    out.push(b']');
    Some(out)
}

/// The front of `text` with `mark` behind it, both together of at most this weight where that is more than the mark's
/// own; the text itself when it is light enough.
pub fn cut(text: &str, weight: u64, mark: &str) -> String {
    if tokens::weight_of_text(text) <= weight {
        return text.to_owned();
    }
    let mut left = weight.saturating_sub(tokens::weight_of_text(mark));
    let mut end = text.len();
    for (at, character) in text.char_indices() {
        let own = tokens::weight_of_character(character);
        if own > left {
            end = at;
            break;
        }
        left -= own;
    }
    while end > 0 && joined(text, end) {
        end = text[..end].char_indices().next_back().map_or(0, |(at, _)| at);
    }
    format!("{}{mark}", &text[..end])
}

/// Whether what stands before and behind `at` is one sign to a reader.
fn joined(text: &str, at: usize) -> bool {
    let behind = text[at..].chars().next();
    let before = text[..at].chars().next_back();
    let clings = |character: char| {
        matches!(character,
            '\u{300}'..='\u{36f}' | '\u{200d}' | '\u{20d0}'..='\u{20ff}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{1f3fb}'..='\u{1f3ff}')
    };
    behind.is_some_and(clings) || before == Some('\u{200d}') || (before == Some('\r') && behind == Some('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctx_06_texts_are_cut_between_signs_and_marked() {
        let check = |text: &str, weight: u64, kept: &str| {
            let found = cut(text, weight, "…");
            let expected = if kept == text { text.to_owned() } else { format!("{kept}…") };
            assert_eq!(found, expected, "{text:?} at {weight}");
            assert!(kept == text || tokens::weight_of_text(&found) <= weight.max(1_000), "{found:?}");
        };
        check("abcdefgh", 2_000, "abcdefgh");
        check("abcdefghi", 2_000, "abcd");
        check("aa😀😀", 3_000, "aa");
        check("aaaa😀b", 3_249, "aaaa");
        check("ae\u{301}xyz\u{6f22}", 2_250, "ae\u{301}x");
        check("aae\u{301}xyzw", 1_750, "aa");
        check("abc\r\nabcd", 2_000, "abc");
        check("👩\u{200d}👩 and more of it", 5_000, "");
        check("x", 0, "");
        let long = format!("{}{}{}", "a".repeat(2_047), '\u{1f600}', "b".repeat(500));
        let found = cut(&long, 513_000, CUT);
        assert!(found.ends_with(CUT) && !found.contains('\u{fffd}') && found.starts_with("aaaa"));
    }

    #[test]
    fn what_is_noise_goes_and_the_rest_stays_byte_for_byte() {
        let check = |raw: &str, expected: Option<&str>| {
            let message = Message::read(raw.as_bytes()).expect("valid");
            let found = cleared(&message).map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
            assert_eq!(found.as_deref(), expected, "{raw}");
            if let Some(found) = &found {
                assert!(Message::read(found.as_bytes()).expect("valid").weight < message.weight);
            }
        };
        let long = "x".repeat(200);
        check(
            &format!(r#"{{ "role":"tool", "content" : "{long}" ,"tool_call_id":"\u0061"}}"#),
            Some(
                r#"{ "role":"tool", "content" : "[tool result cleared to save room]" ,"tool_call_id":"\u0061"}"#,
            ),
        );
        check(r#"{"role":"tool","content":"short","tool_call_id":"a"}"#, None);
        check(r#"{"role":"tool","tool_call_id":"a"}"#, None);
        check(&format!(r#"{{"role":"user","content":"{long}"}}"#), None);
        check(
            r#"{"role":"user","content":[{"type":"text","text":"s\u00e9e"}, {"type":"image_url","image_url":{"url":"data:AAAA"}}]}"#,
            Some(
                r#"{"role":"user","content":[{"type":"text","text":"s\u00e9e"},{"type":"text","text":"[image left out to save room]"}]}"#,
            ),
        );
    }
}
