//! The note that tells a model that it goes on with a conversation which another one has led. It is sent and never
//! stored.
use crate::wire::json::{self, Cursor, Flaw};

/// What is said about `model`, which wrote the answers so far.
pub fn note(model: &str) -> String {
    format!(
        "You take over this conversation from another model ({model}), which wrote the assistant messages so far. Go on \
         with it seamlessly, in the same language and style, and without a word about the change."
    )
}

/// The list of messages with `note` at the end of the first system message, or as a system message of its own in front,
/// since many models know only one, and only there.
///
/// # Errors
/// What is no list of messages.
pub fn noted(messages: &[u8], note: &str) -> Result<Vec<u8>, Flaw> {
    let mut cursor = Cursor::new(messages);
    cursor.open(b'[')?;
    let front = cursor.at();
    let mut content = None;
    if cursor.item()? && cursor.open(b'{')? {
        let mut is_system = false;
        while let Some(name) = cursor.member()? {
            let value = cursor.skip()?;
            if json::is_named(name, "role") {
                is_system = matches!(json::text(value).as_deref(), Some("system" | "developer"));
            } else if json::is_named(name, "content") {
                content = Some((value, cursor.at() - 1));
            }
        }
        content = content.filter(|_| is_system);
    }
    let quoted = json::quoted(note);
    let inner = &quoted[1..quoted.len() - 1];
    let (at, added) = match content {
        Some(([b'"', ..], end)) => (end, [b"\\n\\n", inner].concat()),
        Some(([b'[', ..], end)) => {
            (end, [b",{\"type\":\"text\",\"text\":", quoted.as_slice(), b"}"].concat())
        }
        _ => (front, [b"{\"role\":\"system\",\"content\":", quoted.as_slice(), b"},"].concat()),
    };
    Ok([&messages[..at], &added, &messages[at..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_stands_where_every_model_reads_it() {
        let check = |messages: &str, expected: &str| {
            let found = noted(messages.as_bytes(), "no\"te").expect("a list");
            assert_eq!(String::from_utf8(found).expect("UTF-8"), expected);
            assert!(json::is_json(expected.as_bytes()));
        };
        check(
            r#"[{"role":"user","content":"a"}]"#,
            r#"[{"role":"system","content":"no\"te"},{"role":"user","content":"a"}]"#,
        );
        check(
            r#"[ {"content":"be brief","role":"system"} ,{"role":"user","content":"a"}]"#,
            r#"[ {"content":"be brief\n\nno\"te","role":"system"} ,{"role":"user","content":"a"}]"#,
        );
        check(
            r#"[{"role":"developer","content":[{"type":"text","text":"be brief"}]}]"#,
            r#"[{"role":"developer","content":[{"type":"text","text":"be brief"},{"type":"text","text":"no\"te"}]}]"#,
        );
        check(
            r#"[{"role":"user","content":"a"},{"role":"system","content":"b"}]"#,
            r#"[{"role":"system","content":"no\"te"},{"role":"user","content":"a"},{"role":"system","content":"b"}]"#,
        );
        assert!(note("alpha/m").len() < 300 && note("alpha/m").contains("alpha/m"));
    }
}
