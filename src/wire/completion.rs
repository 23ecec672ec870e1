//! Whole JSON answers.
use super::json::{self, Cursor, Flaw};

/// Whether a JSON value that carries no answer says that the upstream failed: an error object or text, a list of them
/// (Google), a failed envelope (Cloudflare), `detail` (FastAPI).
pub fn says_error(raw: &[u8]) -> bool {
    let mut cursor = Cursor::new(raw);
    match cursor.peek() {
        Some(b'{') => object_says_error(&mut cursor).unwrap_or(false),
        Some(b'[') => {
            let mut first = || -> Result<Option<&[u8]>, Flaw> {
                cursor.open(b'[')?;
                if cursor.item()? { cursor.skip().map(Some) } else { Ok(None) }
            };
            matches!(first(), Ok(Some(item)) if item.starts_with(b"{") && says_error(item))
        }
        _ => false,
    }
}

fn object_says_error(cursor: &mut Cursor<'_>) -> Result<bool, Flaw> {
    cursor.open(b'{')?;
    let mut says = false;
    while let Some(name) = cursor.member()? {
        let raw = cursor.skip()?;
        says |= match name {
            b"error" | b"errors" | b"detail" => !json::is_blank(Some(raw)) && raw != b"false",
            b"message" | b"msg" | b"error_message" => raw.starts_with(b"\"") && raw.len() > 2,
            b"object" | b"type" => raw == b"\"error\"",
            b"success" => raw == b"false",
            _ => false,
        };
    }
    Ok(says)
}

/// The text of a list of content parts, thoughts apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PartsText {
    pub text: String,
    pub thinking: String,
}

/// Joins the parts of a content list: text as text, `thinking` parts (Mistral) as thoughts.
pub fn text_of_parts(raw: &[u8]) -> PartsText {
    let mut parts = PartsText::default();
    // Broken text was refused before; what could be read of it until then is kept.
    let _ = collect_parts(raw, &mut parts);
    parts
}

fn collect_parts(raw: &[u8], parts: &mut PartsText) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'[')? {
        return Ok(());
    }
    while cursor.item()? {
        let part = cursor.skip()?;
        if let Some(text) = json::text(part) {
            parts.text.push_str(&text);
        } else if let Some(thinking) = json::member(part, "thinking") {
            match json::text(thinking) {
                Some(text) => parts.thinking.push_str(&text),
                None => parts.thinking.push_str(&text_of_parts(thinking).text),
            }
        } else if let Some(text) = json::member(part, "text").and_then(json::text) {
            parts.text.push_str(&text);
        }
    }
    Ok(())
}
