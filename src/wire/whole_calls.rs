//! The tool calls of a whole message, in an answer or in a client's history: put right where they lack what every
//! reader expects, byte for byte elsewhere.
use super::json::{self, Cursor, Flaw};
use super::patch::{Patch, Track};

/// Decides about the id of a call, given as raw JSON and absent when missing or empty: `Some` is the id to send.
pub type IdRule<'r> = dyn FnMut(Option<&[u8]>) -> Option<Vec<u8>> + 'r;

/// Notes in `patch` what has to change in a list of tool calls that begins at `base`: ids by `id_rule`, a missing type,
/// arguments that are no text (an object becomes its text, nothing becomes `{}`). Members named in `dropped` go.
pub fn tidy(
    raw: &[u8],
    base: usize,
    id_rule: &mut IdRule<'_>,
    dropped: &[String],
    patch: &mut Patch,
) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(raw);
    cursor.open(b'[')?;
    while cursor.item()? {
        if !cursor.open(b'{')? {
            cursor.skip()?;
            continue;
        }
        tidy_call(&mut cursor, base, id_rule, dropped, patch)?;
    }
    Ok(())
}

/// The same for a call in the older spelling, a `function_call` that begins at `base`.
pub fn tidy_older(raw: &[u8], base: usize, patch: &mut Patch) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(raw);
    if cursor.open(b'{')? { tidy_function(&mut cursor, base, patch) } else { Ok(()) }
}

fn tidy_call(
    cursor: &mut Cursor<'_>,
    base: usize,
    id_rule: &mut IdRule<'_>,
    dropped: &[String],
    patch: &mut Patch,
) -> Result<(), Flaw> {
    let mut track = Track::new(base + cursor.at());
    let (mut has_id, mut has_kind, mut has_function) = (false, false, false);
    while let Some(name) = cursor.member()? {
        let name_at = base + cursor.name_at();
        track.begin(name_at, patch);
        if name == b"function" && cursor.open(b'{')? {
            has_function = true;
            tidy_function(cursor, base, patch)?;
            track.keep(base + cursor.at());
            continue;
        }
        let value = cursor.skip()?;
        let span = base + cursor.at() - value.len()..base + cursor.at();
        match name {
            b"id" => {
                has_id = true;
                let given = Some(value).filter(|id| id.starts_with(b"\"") && id.len() > 2);
                if let Some(id) = id_rule(given) {
                    patch.replace(span.clone(), &id);
                }
            }
            b"type" => {
                has_kind = true;
                if !value.starts_with(b"\"") || value == b"\"\"" {
                    patch.replace(span.clone(), b"\"function\"");
                }
            }
            _ if dropped.iter().any(|dropped| dropped.as_bytes() == name) => {
                track.remove(name_at, span.end, patch);
                continue;
            }
            _ => {}
        }
        track.keep(span.end);
    }
    track.close(base + cursor.at() - 1, patch);
    if !has_id {
        if let Some(id) = id_rule(None) {
            track.add("id", &id, patch);
        }
    }
    if !has_kind && has_function {
        track.add("type", b"\"function\"", patch);
    }
    Ok(())
}

fn tidy_function(cursor: &mut Cursor<'_>, base: usize, patch: &mut Patch) -> Result<(), Flaw> {
    let mut track = Track::new(base + cursor.at());
    let mut has_arguments = false;
    while let Some(name) = cursor.member()? {
        track.begin(base + cursor.name_at(), patch);
        let value = cursor.skip()?;
        let end = base + cursor.at();
        if name == b"arguments" {
            has_arguments = true;
            if let Some(text) = arguments_text(value) {
                patch.replace(end - value.len()..end, &text);
            }
        }
        track.keep(end);
    }
    track.close(base + cursor.at() - 1, patch);
    if !has_arguments {
        track.add("arguments", b"\"{}\"", patch);
    }
    Ok(())
}

/// The arguments as a JSON string, when they have to change.
fn arguments_text(value: &[u8]) -> Option<Vec<u8>> {
    match json::text(value) {
        Some(text) if text.trim().is_empty() => Some(b"\"{}\"".to_vec()),
        Some(_) => None,
        None if value == b"null" => Some(b"\"{}\"".to_vec()),
        None => Some(json::quoted(&String::from_utf8_lossy(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &str, dropped: &[&str], expected: &str) {
        let dropped: Vec<String> = dropped.iter().map(|name| (*name).to_owned()).collect();
        let (mut patch, mut made) = (Patch::default(), 0);
        let mut id_rule = |given: Option<&[u8]>| {
            made += usize::from(given.is_none());
            given.is_none().then(|| format!("\"made{made}\"").into_bytes())
        };
        let text = format!("xx{list}");
        tidy(list.as_bytes(), 2, &mut id_rule, &dropped, &mut patch).expect("valid JSON");
        let mut out = Vec::new();
        patch.apply(text.as_bytes(), &mut out);
        assert_eq!(String::from_utf8(out).expect("UTF-8"), format!("xx{expected}"));
    }

    #[test]
    fn tool_03_04_and_missing_members() {
        let good = r#"[ {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"id\":9007199254740993}"},"x":1.0} ]"#;
        check(good, &[], good);
        check(good, &["x"], &good.replace(",\"x\":1.0", ""));
        let call = |members: &str, arguments: &str| {
            format!(r#"[{{{members}"function":{{"name":"f","arguments":{arguments}}}}}]"#)
        };
        let full = |arguments: &str| call(r#""id":"c","type":"function","#, arguments);
        check(
            &full(r#"{"path":"a.txt","n":98765432109876543210}"#),
            &[],
            &full(r#""{\"path\":\"a.txt\",\"n\":98765432109876543210}""#),
        );
        for blank in ["\"\"", "\" \\n\"", "null"] {
            check(&full(blank), &[], &full("\"{}\""));
        }
        check(
            r#"[{"function":{"name":"f"}},{"id":"","type":null,"function":{"name":"g","arguments":"{}"}}]"#,
            &[],
            r#"[{"function":{"name":"f","arguments":"{}"},"id":"made1","type":"function"},{"id":"made2","type":"function","function":{"name":"g","arguments":"{}"}}]"#,
        );
        check(
            r#"[{"id":"c","type":"custom","custom":{"name":"f","input":"x"}},7]"#,
            &[],
            r#"[{"id":"c","type":"custom","custom":{"name":"f","input":"x"}},7]"#,
        );
    }
}
