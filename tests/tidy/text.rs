//! Reads Rust source just well enough for the tidy checks: blanks what is not code and finds where functions end.
//! It is no parser, and must stay small; what it cannot tell apart the checks do not ask for.
use std::ops::Range;

/// The source with comments, strings and characters turned to spaces. Line breaks stay, so line numbers hold.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = skip_from(bytes, at);
        match end {
            Some(end) => {
                out.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
                at = end;
            }
            None => {
                // Anything beyond ASCII outside of strings and comments is no token that a check looks for.
                out.push(if bytes[at].is_ascii() { bytes[at] } else { b' ' });
                at += 1;
            }
        }
    }
    String::from_utf8(out).expect("only ASCII was kept")
}

/// Where the comment, string or character that begins at `at` ends; `None` when code stands there.
fn skip_from(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return Some(at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(at + block_comment(rest));
    }
    let after_a_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    if !after_a_word {
        let prefix = rest.iter().take_while(|byte| matches!(byte, b'b' | b'c' | b'r')).count();
        let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
        if prefix > 0 && rest[..prefix].contains(&b'r') && rest.get(prefix + hashes) == Some(&b'"') {
            return Some(at + prefix + hashes + 1 + raw_string(&rest[prefix + hashes + 1..], hashes));
        }
    }
    match rest[0] {
        b'"' => Some(at + 1 + quoted(&rest[1..], b'"')),
        b'\'' if is_character(rest) => Some(at + 1 + quoted(&rest[1..], b'\'')),
        _ => None,
    }
}

/// Length of a block comment; they nest in Rust.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length up to and including the closing quote with its hashes.
fn raw_string(rest: &[u8], hashes: usize) -> usize {
    (0..rest.len())
        .find(|&at| {
            rest[at] == b'"' && rest[at + 1..].iter().take_while(|&&byte| byte == b'#').count() >= hashes
        })
        .map_or(rest.len(), |at| at + 1 + hashes)
}

/// Length up to and including the closing quote; a backslash hides the byte after it.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 0;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Whether a single quote begins a character and not a lifetime.
fn is_character(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(byte) if byte.is_ascii() => rest.get(2) == Some(&b'\''),
        Some(_) => true,
        None => false,
    }
}

/// Where the items stand that are compiled for tests only, their attribute included.
pub fn test_items(code: &str) -> Vec<Range<usize>> {
    let (mut items, mut from) = (Vec::new(), 0);
    while let Some(found) = code[from..].find("#[cfg(test)]") {
        let start = from + found;
        from = item_end(code, start + "#[cfg(test)]".len());
        items.push(start..from);
    }
    items
}

/// Blanks the items that are compiled for tests only, so that the checks see what ships.
pub fn without_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    for byte in test_items(code).into_iter().flatten() {
        if out[byte] != b'\n' {
            out[byte] = b' ';
        }
    }
    String::from_utf8(out).expect("ASCII stays ASCII")
}

/// The end of the item that begins at `from`: its closing brace, or the semicolon when it has no body.
fn item_end(code: &str, from: usize) -> usize {
    match body(code, from) {
        Some((_, close)) => close + 1,
        None => code[from..].find(';').map_or(code.len(), |at| from + at + 1),
    }
}

/// Opening and closing brace of the first body after `from`; `None` when a semicolon comes first.
fn body(code: &str, from: usize) -> Option<(usize, usize)> {
    let (mut round, mut braces, mut open) = (0, 0, None);
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => round += 1,
            b')' | b']' => round -= 1,
            b';' if round == 0 && braces == 0 => return None,
            b'{' => {
                open.get_or_insert(at);
                braces += 1;
            }
            b'}' => {
                braces -= 1;
                if braces == 0 {
                    return open.map(|open| (open, at));
                }
            }
            _ => {}
        }
    }
    None
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Counted from one.
    pub line: usize,
    /// From the line of `fn` to that of the closing brace.
    pub lines: usize,
}

/// Every function of a file whose comments and strings are already blanked.
pub fn functions(code: &str) -> Vec<Function> {
    words(code)
        .filter(|(_, word)| *word == "fn")
        .filter_map(|(at, _)| {
            let name: String = code[at + 2..].trim_start().chars().take_while(|c| is_word(*c)).collect();
            let (_, close) = body(code, at)?;
            let line = line_of(code, at);
            (!name.is_empty()).then(|| Function { name, line, lines: line_of(code, close) - line + 1 })
        })
        .collect()
}

/// Every word with where it begins.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    code.split(|c: char| !is_word(c)).filter_map(move |word| {
        let start = at;
        at += word.len() + 1;
        (!word.is_empty()).then_some((start, word))
    })
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The line of a byte, counted from one.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count()
}

/// The top-level modules that a file names after `crate::`, each with the place: plain paths and `use crate::{..}`.
pub fn crate_modules(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if at > 0 && (is_word(char::from(code.as_bytes()[at - 1])) || code.as_bytes()[at - 1] == b'$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_heads(group).into_iter().map(|head| (at, head))),
            None => found.push((at, rest.chars().take_while(|c| is_word(*c)).collect())),
        }
    }
    found
}

/// The first word of each member of a use group whose opening brace is already eaten.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut fresh, mut word) = (1, Vec::new(), true, String::new());
    for c in group.chars() {
        if is_word(c) && fresh {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            heads.push(std::mem::take(&mut word));
            fresh = false;
        }
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => fresh = true,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_code_is_blanked() {
        let check = |source: &str, expected: &str| assert_eq!(code_only(source), expected, "of {source:?}");
        check("a // unwrap()\nb", "a            \nb");
        check("a /* x /* y */ z */ b", "a                   b");
        check(r#"f("a\"b", 'x', '\'')"#, "f(      ,    ,     )");
        check("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
        check("r#\"a\"b\"# + br\"x\\\" + var", "         +        + var");
        check("'é' x", "     x");
    }

    #[test]
    fn items_for_tests_are_blanked() {
        let left = |source: &str| without_tests(source).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            left("fn a() {}\n#[cfg(test)]\nmod tests { fn b() { {} } }\nfn c() {}"),
            "fn a() {} fn c() {}"
        );
        assert_eq!(left("#[cfg(test)]\nmod tests;\nfn c() {}"), "fn c() {}");
        assert_eq!(left("#[cfg(test)]\nuse a::{b, c};\nfn c() {}"), "; fn c() {}");
    }

    #[test]
    fn functions_are_measured_to_their_closing_brace() {
        let found =
            functions("fn a() -> [u8; 2] {\n  x\n}\ntrait T { fn b(); }\ntype F = fn(u8);\nfn c() {}");
        let as_text: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(as_text, [("a", 1, 3), ("c", 6, 1)]);
    }

    #[test]
    fn imports_are_found_in_paths_and_groups() {
        let of = |code: &str| crate_modules(code).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(of("use crate::base::text;"), ["base"]);
        assert_eq!(of("use crate::{base::{text, rng}, wire};"), ["base", "wire"]);
        assert_eq!(of("let x = crate::quota::Ledger::new(); my_crate::x();"), ["quota"]);
    }
}
