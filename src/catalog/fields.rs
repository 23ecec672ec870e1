//! Reading one JSON object field by field: every wrong type or value becomes an [`Issue`] with the field's path, every
//! field that nobody asked for a warning with a suggestion. Pure.
use std::cell::RefCell;

use serde_json::{Map, Value};

use super::{Issue, IssueLevel};
use crate::base::text::{closest, truncate};

/// What was found wrong in one file.
#[derive(Debug)]
pub struct Findings {
    file: String,
    /// Filled in once the file has told its id.
    pub provider: Option<String>,
    pub issues: Vec<Issue>,
}

impl Findings {
    /// Nothing found yet in `file`.
    pub fn new(file: &str) -> Findings {
        Findings { file: file.into(), provider: None, issues: Vec::new() }
    }

    /// Adds an issue.
    pub fn add(&mut self, level: IssueLevel, message: String) {
        self.issues.push(Issue { file: self.file.clone(), provider: self.provider.clone(), level, message });
    }

    /// Whether anything found refuses the file.
    pub fn has_errors(&self) -> bool {
        self.issues.iter().any(|issue| issue.level == IssueLevel::Error)
    }
}

/// One object of the file. A `null` counts as absent.
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Where the object stands, such as `models[0].`; empty at the top.
    path: String,
    findings: &'a RefCell<Findings>,
    asked: RefCell<Vec<&'static str>>,
}

// Dozens of places ask, none of them in a hurry: inlined, the asking takes more room than all else that reads files.
impl<'a> Fields<'a> {
    /// The fields of `map`, which stands at `path`.
    pub fn new(map: &'a Map<String, Value>, path: String, findings: &'a RefCell<Findings>) -> Fields<'a> {
        Fields { map, path, findings, asked: RefCell::default() }
    }

    /// Reports an error of one field.
    pub fn error(&self, name: &str, message: impl AsRef<str>) {
        self.report(IssueLevel::Error, name, message.as_ref());
    }

    /// Reports a warning about one field.
    pub fn warn(&self, name: &str, message: impl AsRef<str>) {
        self.report(IssueLevel::Warning, name, message.as_ref());
    }

    #[inline(never)]
    fn report(&self, level: IssueLevel, name: &str, message: &str) {
        self.findings.borrow_mut().add(level, format!("{}{name}: {message}", self.path));
    }

    /// Tells whose file this is, for the issues from now on.
    pub fn set_provider(&self, id: &str) {
        self.findings.borrow_mut().provider = Some(id.to_owned());
    }

    /// The names of all members, for objects whose names are free.
    pub fn names(&self) -> impl Iterator<Item = &'a String> {
        self.map.keys()
    }

    /// The raw value, `null` included.
    #[inline(never)]
    pub fn raw(&self, name: &'static str) -> Option<&'a Value> {
        self.asked.borrow_mut().push(name);
        self.map.get(name)
    }

    /// The value, where `null` counts as absent.
    pub fn value(&self, name: &'static str) -> Option<&'a Value> {
        self.raw(name).filter(|value| !value.is_null())
    }

    /// A non-empty text.
    #[inline(never)]
    pub fn text(&self, name: &'static str) -> Option<&'a str> {
        let value = self.value(name)?;
        let text = value.as_str().filter(|text| !text.trim().is_empty());
        if text.is_none() {
            self.error(name, format!("must be a text that is not empty (it is {})", shown(value)));
        }
        text
    }

    /// A text that may be empty, such as a prefix.
    #[inline(never)]
    pub fn any_text(&self, name: &'static str) -> Option<&'a str> {
        let value = self.value(name)?;
        let text = value.as_str();
        if text.is_none() {
            self.error(name, format!("must be a text (it is {})", shown(value)));
        }
        text
    }

    /// [`Fields::text`], owned.
    pub fn owned(&self, name: &'static str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// A boolean.
    #[inline(never)]
    pub fn flag(&self, name: &'static str) -> Option<bool> {
        let value = self.value(name)?;
        let flag = value.as_bool();
        if flag.is_none() {
            self.error(name, format!("must be true or false (it is {})", shown(value)));
        }
        flag
    }

    /// Any finite number.
    #[inline(never)]
    pub fn number(&self, name: &'static str) -> Option<f64> {
        let value = self.value(name)?;
        let number = value.as_f64().filter(|n| n.is_finite());
        if number.is_none() {
            self.error(name, format!("must be a number (it is {})", shown(value)));
        }
        number
    }

    /// A number of at least zero.
    #[inline(never)]
    pub fn not_negative(&self, name: &'static str) -> Option<f64> {
        let value = self.value(name)?;
        let number = value.as_f64().filter(|n| n.is_finite() && *n >= 0.0);
        if number.is_none() {
            self.error(name, format!("must be a number of at least 0 (it is {})", shown(value)));
        }
        number
    }

    /// A number above zero; what is unknown is written `null`.
    #[inline(never)]
    pub fn positive(&self, name: &'static str) -> Option<f64> {
        let value = self.value(name)?;
        let number = value.as_f64().filter(|n| n.is_finite() && *n > 0.0);
        if number.is_none() {
            self.error(
                name,
                format!("must be a number above 0, or null when it is unknown (it is {})", shown(value)),
            );
        }
        number
    }

    /// A whole number of at least 1 and at most `max`.
    #[inline(never)]
    pub fn count(&self, name: &'static str, max: u64) -> Option<u64> {
        let value = self.value(name)?;
        let count = whole(value).filter(|n| (1..=max).contains(n));
        if count.is_none() {
            self.error(name, format!("must be a whole number from 1 to {max} (it is {})", shown(value)));
        }
        count
    }

    /// One of a set of words.
    pub fn word<T: Copy>(&self, name: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        self.asked.borrow_mut().push(name);
        self.word_at(name, words)
    }

    /// [`Fields::word`] under a free name.
    pub fn word_at<T: Copy>(&self, name: &str, words: &[(&'static str, T)]) -> Option<T> {
        let value = self.map.get(name).filter(|value| !value.is_null())?;
        let found = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        if found.is_none() {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let hint = value.as_str().and_then(|given| closest(given, all.iter().copied()));
            let hint = hint.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default();
            self.error(name, format!("must be one of {} (it is {}){hint}", all.join(", "), shown(value)));
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// A list of non-empty texts.
    #[inline(never)]
    pub fn texts(&self, name: &'static str) -> Vec<String> {
        let Some(value) = self.value(name) else { return Vec::new() };
        self.texts_of(name, value)
    }

    /// [`Fields::texts`] of a value that stands under a free name.
    #[inline(never)]
    pub fn texts_of(&self, name: &str, value: &Value) -> Vec<String> {
        let Some(items) = value.as_array() else {
            self.error(name, format!("must be a list of texts (it is {})", shown(value)));
            return Vec::new();
        };
        let mut texts = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            match item.as_str().filter(|text| !text.trim().is_empty()) {
                Some(text) => texts.push(text.to_owned()),
                None => self.error(
                    &format!("{name}[{i}]"),
                    format!("must be a text that is not empty (it is {})", shown(item)),
                ),
            }
        }
        texts
    }

    /// The members of an object, in the order of their names.
    #[inline(never)]
    pub fn members(&self, name: &'static str) -> Option<&'a Map<String, Value>> {
        let value = self.value(name)?;
        let map = value.as_object();
        if map.is_none() {
            self.error(name, format!("must be an object (it is {})", shown(value)));
        }
        map
    }

    /// A nested object.
    #[inline(never)]
    pub fn object(&self, name: &'static str) -> Option<Fields<'a>> {
        let map = self.members(name)?;
        Some(Fields::new(map, format!("{}{name}.", self.path), self.findings))
    }

    /// A list of objects; what is no object is reported and left out.
    #[inline(never)]
    pub fn objects(&self, name: &'static str) -> Vec<Fields<'a>> {
        let Some(value) = self.value(name) else { return Vec::new() };
        let Some(items) = value.as_array() else {
            self.error(name, format!("must be a list of objects (it is {})", shown(value)));
            return Vec::new();
        };
        let mut objects = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            match item.as_object() {
                Some(map) => {
                    objects.push(Fields::new(map, format!("{}{name}[{i}].", self.path), self.findings));
                }
                None => {
                    self.error(&format!("{name}[{i}]"), format!("must be an object (it is {})", shown(item)))
                }
            }
        }
        objects
    }

    /// Warns of every field that was not asked for; to be called last.
    #[inline(never)]
    pub fn finish(&self) {
        let asked = self.asked.borrow();
        for name in self.map.keys().filter(|name| !name.starts_with("//") && *name != "$schema") {
            if !asked.contains(&name.as_str()) {
                let hint = closest(name, asked.iter().copied());
                let hint = hint.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
                self.warn(name, format!("unknown field, not used{hint}"));
            }
        }
    }

    /// The names that were asked for, so that a test can hold the schema against the reader.
    #[cfg(test)]
    pub fn asked(&self) -> Vec<&'static str> {
        self.asked.borrow().clone()
    }
}

/// A whole number, also when it is written `60000.0` or `6e4`.
pub fn whole(value: &Value) -> Option<u64> {
    let exact =
        |n: f64| (n.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&n)).then_some(n as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(exact))
}

/// A value for a message: short, and never the inside of a long one.
#[inline(never)]
pub fn shown(value: &Value) -> String {
    const SHOWN_MAX: usize = 60;
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        other => truncate(&other.to_string(), SHOWN_MAX).into(),
    }
}
