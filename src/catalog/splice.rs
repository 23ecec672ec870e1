//! Changes a file that people wrote, JSON with comments, and touches nothing but what is to change: comments, layout,
//! spelling and order of everything else stay byte for byte. Pure.
use std::ops::Range;

use serde_json::Value;

use super::json::{self, string_end, without_comments};

/// Such a file, in the making.
#[derive(Clone, Debug)]
pub struct Document {
    text: String,
}

/// A value in the text.
#[derive(Clone, Debug)]
struct Node {
    span: Range<usize>,
    /// Members with their names, or items.
    inner: Vec<(Option<String>, Node)>,
    /// Where the comma behind the last one stands, if there is one.
    last_comma: Option<usize>,
}

impl Document {
    /// Takes a file whose outermost value is an object.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Document, String> {
        match json::parse(text)? {
            Value::Object(_) => Ok(Document { text: text.to_owned() }),
            _ => Err("must be an object".into()),
        }
    }

    /// The file as it is now.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Sets a member, or a member of a member: its value is replaced, or it is added at the end.
    ///
    /// # Errors
    /// A place that is no object.
    pub fn set(&mut self, path: &[&str], value: &Value) -> Result<(), String> {
        let Some((name, above)) = path.split_last() else { return Ok(()) };
        let mut object = self.root()?;
        for (depth, step) in above.iter().enumerate() {
            let Some(inner) = object.member(step).cloned() else {
                let nested = path[depth + 1..].iter().rev().fold(value.clone(), |inner, name| {
                    Value::Object([((*name).to_owned(), inner)].into_iter().collect())
                });
                return self.add(&object, &format!("{}: {}", quoted(step), inline(&nested)));
            };
            object = inner;
        }
        if !self.text[object.span.clone()].starts_with('{') {
            return Err(format!("{} is no object", above.join(".")));
        }
        match object.member(name) {
            Some(old) => {
                self.text.replace_range(old.span.clone(), &inline(value));
                Ok(())
            }
            None => self.add(&object, &format!("{}: {}", quoted(name), inline(value))),
        }
    }

    /// Adds an item to the end of a list that is a member; the member is made where there is none.
    ///
    /// # Errors
    /// A member that is no list.
    pub fn push(&mut self, list: &str, item: &Value) -> Result<(), String> {
        let root = self.root()?;
        match root.member(list) {
            None => self.add(&root, &format!("{}: [{}]", quoted(list), inline(item))),
            Some(node) if self.text[node.span.clone()].starts_with('[') => {
                let node = node.clone();
                self.add(&node, &inline(item))
            }
            Some(_) => Err(format!("{list} is no list")),
        }
    }

    /// Takes an item out of a list that is a member; false when there is none of that kind. A comment on the item's own
    /// line goes with it.
    ///
    /// # Errors
    /// A file that makes no sense any more.
    pub fn remove(&mut self, list: &str, is_it: impl Fn(&Value) -> bool) -> Result<bool, String> {
        let root = self.root()?;
        let Some(node) = root.member(list).cloned() else { return Ok(false) };
        let found = node.inner.iter().position(|(_, item)| {
            json::parse(&self.text[item.span.clone()]).is_ok_and(|value| is_it(&value))
        });
        let Some(at) = found else { return Ok(false) };
        let (_, item) = &node.inner[at];
        let blank = without_comments(&self.text)?;
        let comma = behind(&blank, item.span.end).filter(|at| blank.as_bytes()[*at] == b',');
        let end = comma.map_or(item.span.end, |comma| comma + 1);
        let line_start = self.text[..item.span.start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = self.text[end..].find('\n').map(|newline| end + newline + 1);
        let alone = blank[line_start..item.span.start].trim().is_empty();
        let cut = match line_end.filter(|to| alone && blank[end..*to].trim().is_empty()) {
            Some(to) => line_start..to,
            None => {
                item.span.start..end + blank[end..].len() - blank[end..].trim_start_matches([' ', '\t']).len()
            }
        };
        self.text.replace_range(cut, "");
        // A last item without a comma leaves one before it that strict readers refuse.
        if comma.is_none() && at > 0 {
            let before = node.inner[at - 1].1.span.end;
            if let Some(comma) = behind(&blank, before).filter(|at| blank.as_bytes()[*at] == b',') {
                let spaces = blank[comma + 1..].bytes().take_while(|b| [b' ', b'\t'].contains(b)).count();
                // Spaces behind it belong to it only where the item stood on its line.
                let to = if alone { comma + 1 } else { comma + 1 + spaces };
                self.text.replace_range(comma..to.min(self.text.len()), "");
            }
        }
        Ok(true)
    }

    fn root(&self) -> Result<Node, String> {
        let blank = without_comments(&self.text)?;
        let start = behind(&blank, 0).ok_or("is empty")?;
        // A byte order mark stands before it.
        let start =
            if blank[start..].starts_with('\u{feff}') { behind(&blank, start + 3) } else { Some(start) };
        start.and_then(|start| node(&blank, start, 0)).ok_or_else(|| "is nested too deeply".into())
    }

    /// Puts `text` behind the last member or item, in the manner of the others.
    fn add(&mut self, container: &Node, text: &str) -> Result<(), String> {
        let blank = without_comments(&self.text)?;
        let Some((_, last)) = container.inner.last() else {
            return self.fill(container, text);
        };
        let before =
            container.inner.iter().rev().nth(1).map_or(container.span.start + 1, |(_, node)| node.span.end);
        let line = &self.text[..last.span.start];
        let line = &line[line.rfind('\n').map_or(0, |newline| newline + 1)..];
        let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
        // Those that stand each on a line of its own get one more line.
        let in_lines = self.text[before..last.span.start].contains('\n');
        let end = container.last_comma.map_or(last.span.end, |comma| comma + 1);
        let line_end = self.text[end..].find('\n').map_or(self.text.len(), |newline| end + newline);
        let rest_is_comment = blank[end..line_end].trim().is_empty();
        let (place, added) = match (in_lines, rest_is_comment) {
            (true, true) => (self.text[..line_end].trim_end_matches('\r').len(), format!("\n{indent}{text}")),
            (true, false) => (end, format!("\n{indent}{text}")),
            (false, _) => (end, format!(" {text}")),
        };
        let own_comma = if container.last_comma.is_some() { "," } else { "" };
        self.text.insert_str(place, &format!("{added}{own_comma}"));
        if container.last_comma.is_none() {
            self.text.insert(last.span.end, ',');
        }
        Ok(())
    }

    /// The first member or item of an empty object or list.
    fn fill(&mut self, container: &Node, text: &str) -> Result<(), String> {
        let is_list = self.text[container.span.clone()].starts_with('[');
        let line = &self.text[..container.span.start];
        let line = &line[line.rfind('\n').map_or(0, |newline| newline + 1)..];
        let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
        let inner = self.text[container.span.start + 1..container.span.end - 1].to_owned();
        let close = container.span.end - 1;
        if !inner.trim().is_empty() {
            // What stands there is a comment.
            self.text.insert_str(close, &format!("{text}\n{indent}"));
        } else if is_list && text.starts_with('{') {
            let filled = format!("\n{indent}  {text}\n{indent}");
            self.text.replace_range(container.span.start + 1..close, &filled);
        } else {
            self.text.replace_range(container.span.start + 1..close, &format!(" {text} "));
        }
        Ok(())
    }
}

impl Node {
    fn member(&self, name: &str) -> Option<&Node> {
        self.inner.iter().find(|(known, _)| known.as_deref() == Some(name)).map(|(_, node)| node)
    }
}

/// Where the next byte stands that is no space, from `at` on.
fn behind(blank: &str, at: usize) -> Option<usize> {
    blank.as_bytes()[at..].iter().position(|b| !b.is_ascii_whitespace()).map(|found| at + found)
}

/// Deepest nesting; the reader of such files takes no more.
const DEPTH_MAX: usize = 128;

/// The value that begins at `start` of a text without comments, which is known to be good.
fn node(blank: &str, start: usize, depth: usize) -> Option<Node> {
    let bytes = blank.as_bytes();
    let mut found = Node { span: start..start, inner: Vec::new(), last_comma: None };
    match bytes.get(start)? {
        b'"' => found.span.end = string_end(bytes, start),
        open @ (b'{' | b'[') => {
            let close = if *open == b'{' { b'}' } else { b']' };
            let mut at = behind(blank, start + 1)?;
            while bytes[at] != close && depth < DEPTH_MAX {
                let mut name = None;
                if *open == b'{' {
                    let end = string_end(bytes, at);
                    name = serde_json::from_str(&blank[at..end]).ok();
                    let colon = behind(blank, end)?;
                    at = behind(blank, colon + 1)?;
                }
                let inner = node(blank, at, depth + 1)?;
                at = behind(blank, inner.span.end)?;
                found.inner.push((name, inner));
                found.last_comma = (bytes[at] == b',').then_some(at);
                if bytes[at] == b',' {
                    at = behind(blank, at + 1)?;
                }
            }
            found.span.end = at + 1;
        }
        _ => {
            let word = bytes[start..].iter().take_while(|b| !b.is_ascii_whitespace() && !b",]}".contains(b));
            found.span.end = start + word.count();
        }
    }
    (found.span.end > start && depth < DEPTH_MAX).then_some(found)
}

fn quoted(name: &str) -> String {
    Value::from(name).to_string()
}

/// A value on one line, as people write it.
pub fn inline(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(map) if map.is_empty() => "{}".to_owned(),
        Value::Object(map) => {
            // What names a thing stands first, what it can do last.
            let place = |name: &str| ["id", "context"].iter().position(|known| *known == name).unwrap_or(2);
            let mut members: Vec<_> = map.iter().collect();
            members.sort_by_key(|(name, _)| place(name));
            let members = members.iter().map(|(name, value)| format!("{}: {}", quoted(name), inline(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Number(number) => match number.as_f64() {
            // A count that was a float on its way.
            Some(n) if n.fract() == 0.0 && n.abs() < 9e15 => format!("{n:.0}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn changed(text: &str, change: impl Fn(&mut Document)) -> String {
        let mut document = Document::new(text).expect("a good file");
        change(&mut document);
        let text = document.text().to_owned();
        json::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        text
    }

    #[test]
    fn a_value_is_replaced_and_nothing_else() {
        let set = |text: &str, path: &[&str], value: Value, expected: &str| {
            assert_eq!(changed(text, |document| document.set(path, &value).expect("set")), expected);
        };
        set("{ \"a\" : 1 , // one\n \"b\":2 }", &["a"], json!(9), "{ \"a\" : 9 , // one\n \"b\":2 }");
        set("{\"l\": {\"rpm\": null /* ? */}}", &["l", "rpm"], json!(60.0), "{\"l\": {\"rpm\": 60 /* ? */}}");
        set(
            "{\"a\": \"x\\\"}\", \"b\": [1, {\"a\": 2}]}",
            &["a"],
            json!("y"),
            "{\"a\": \"y\", \"b\": [1, {\"a\": 2}]}",
        );
        set("\u{feff}{\"a\": 1}", &["a"], json!(2), "\u{feff}{\"a\": 2}");
    }

    #[test]
    fn a_member_is_added_in_the_manner_of_the_others() {
        let set = |text: &str, path: &[&str], expected: &str| {
            assert_eq!(changed(text, |document| document.set(path, &json!(5)).expect("set")), expected);
        };
        set("{\"a\": 1}", &["b"], "{\"a\": 1, \"b\": 5}");
        set("{\n  \"a\": 1\n}\n", &["b"], "{\n  \"a\": 1,\n  \"b\": 5\n}\n");
        set("{\n\t\"a\": 1, // one\n}", &["b"], "{\n\t\"a\": 1, // one\n\t\"b\": 5,\n}");
        set("{\n  \"a\": 1 // one, and only\n}", &["b"], "{\n  \"a\": 1, // one, and only\n  \"b\": 5\n}");
        set("{\r\n  \"a\": 1\r\n}", &["b"], "{\r\n  \"a\": 1,\n  \"b\": 5\r\n}");
        set("{}", &["b"], "{ \"b\": 5 }");
        set("{\"l\": {}}", &["l", "b"], "{\"l\": { \"b\": 5 }}");
        set("{\"a\": 1}", &["l", "b"], "{\"a\": 1, \"l\": { \"b\": 5 }}");
        set("{ // nothing\n}", &["b"], "{ // nothing\n\"b\": 5\n}");
        let mut document = Document::new("{\"l\": 3}").expect("a good file");
        assert!(document.set(&["l", "b"], &json!(1)).is_err());
    }

    #[test]
    fn items_come_and_go() {
        let push = |text: &str, expected: &str| {
            let item = json!({"caps": ["chat"], "id": "n"});
            assert_eq!(changed(text, |document| document.push("m", &item).expect("pushed")), expected);
        };
        let n = "{ \"id\": \"n\", \"caps\": [\"chat\"] }";
        push("{\"m\": []}", &format!("{{\"m\": [\n  {n}\n]}}"));
        push("{\"x\": 1}", &format!("{{\"x\": 1, \"m\": [{n}]}}"));
        push("{\"m\": [1, 2]}", &format!("{{\"m\": [1, 2, {n}]}}"));
        push(
            "{\n  \"m\": [\n    1, // a\n    2 // b\n  ]\n}",
            &format!("{{\n  \"m\": [\n    1, // a\n    2, // b\n    {n}\n  ]\n}}"),
        );
        let remove = |text: &str, gone: i64, expected: &str| {
            let is_it = |value: &Value| value.as_i64() == Some(gone);
            assert_eq!(
                changed(text, |document| assert!(document.remove("m", is_it).expect("removed"))),
                expected
            );
        };
        remove("{\"m\": [1, 2, 3]}", 1, "{\"m\": [2, 3]}");
        remove("{\"m\": [1, 2, 3]}", 2, "{\"m\": [1, 3]}");
        remove("{\"m\": [1, 2, 3]}", 3, "{\"m\": [1, 2]}");
        remove("{\"m\": [1]}", 1, "{\"m\": []}");
        let lines = "{\"m\": [\n  1, // one\n  2, // two\n  3 // three\n]}";
        remove(lines, 1, "{\"m\": [\n  2, // two\n  3 // three\n]}");
        remove(lines, 3, "{\"m\": [\n  1, // one\n  2 // two\n]}");
        remove("{\"m\": [\n  1,\n  2,\n]}", 2, "{\"m\": [\n  1,\n]}");
        let mut document = Document::new("{\"m\": [1]}").expect("a good file");
        assert_eq!(document.remove("m", |_| false), Ok(false));
        assert_eq!(document.remove("none", |_| true), Ok(false));
        assert!(Document::new("{\"m\": 1}").expect("good").push("m", &json!(1)).is_err());
        assert!(Document::new("[1]").is_err() && Document::new("{").is_err());
    }
}
