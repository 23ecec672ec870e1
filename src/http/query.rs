//! The query of a URL, read strictly: a parameter that is misspelled or makes no sense is refused by name. Pure.
use std::ops::RangeInclusive;

use crate::base::text::{closest, percent_decode, truncate};
use crate::wire::error::ApiError;

/// Longest value that is repeated to the client.
const SHOWN_MAX: usize = 60;

/// The parameters of a request, decoded. `+` is a space, as browsers write it.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    /// 400 that names a parameter which is not `known`, or is badly escaped.
    pub fn read(query: &str, known: &[&str]) -> Result<Query, ApiError> {
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                let hint = match closest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("it takes {}", known.join(", ")),
                };
                let shown = truncate(name, SHOWN_MAX);
                return Err(bad(shown, &format!("{shown} is no parameter of this view; {hint}")));
            }
            let value = value.replace('+', " ");
            let Some(value) = percent_decode(&value) else {
                return Err(bad(name, &format!("{name} is badly escaped: % is written as %25")));
            };
            pairs.push((name.to_owned(), value.into_owned()));
        }
        Ok(Query(pairs))
    }

    /// The value of a parameter, which may be empty; the first when it is given twice.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A whole number; `None` when the parameter is absent or empty.
    ///
    /// # Errors
    /// 400 when it is anything else.
    pub fn whole(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.given(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        let must = || format!("a whole number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| bad_value(name, text, &must()))
    }

    /// How many are wanted of a list that gives `most` at once, and no more to who asks for more; `None` when the parameter
    /// is absent or empty.
    ///
    /// # Errors
    /// 400 when it is no count.
    pub fn limit(&self, name: &str, most: usize) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.given(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number: &u64| *number > 0);
        let number = number.ok_or_else(|| bad_value(name, text, "a whole number from 1 on"))?;
        Ok(Some(usize::try_from(number).unwrap_or(most).min(most)))
    }

    /// One of some words, as what it stands for; `None` when the parameter is absent or empty.
    ///
    /// # Errors
    /// 400 when it is another word.
    pub fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, ApiError> {
        let Some(text) = self.given(name) else { return Ok(None) };
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        found.map(Some).ok_or_else(|| bad_value(name, text, &format!("one of {}", known.join(", "))))
    }

    fn given(&self, name: &str) -> Option<&str> {
        self.text(name).filter(|text| !text.is_empty())
    }
}

fn bad_value(name: &str, text: &str, must: &str) -> ApiError {
    bad(name, &format!("{name} must be {must} (it is \"{}\")", truncate(text, SHOWN_MAX)))
}

fn bad(name: &str, message: &str) -> ApiError {
    ApiError::bad_field("invalid_body", name, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["limit", "client", "range"];

    #[test]
    fn values_are_decoded() {
        let query =
            Query::read("client=my+laptop%2B%2F&limit=7&range=&&client=x", &KNOWN).expect("it is good");
        assert_eq!((query.text("client"), query.text("range")), (Some("my laptop+/"), Some("")));
        assert_eq!(query.whole("limit", 1..=9).expect("in range"), Some(7));
        assert_eq!(query.word("range", &[("7d", 7)]).expect("empty is absent"), None);
        assert_eq!(Query::read("client", &KNOWN).expect("it is good").text("client"), Some(""));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |query: &str, param: &str, hint: &str| {
            let read = Query::read(query, &KNOWN).and_then(|query| {
                query.whole("limit", 1..=9)?;
                query.word("range", &[("24h", 1), ("7d", 7)])
            });
            let error = read.expect_err(query);
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{query}");
            assert!(error.message.contains(hint), "{query}: {}", error.message);
        };
        check("limit=0", "limit", "from 1 to 9");
        check("limit=10", "limit", "from 1 to 9");
        check("limit=many", "limit", "\"many\"");
        check("range=8d", "range", "one of 24h, 7d");
        check("rang=7d", "rang", "did you mean range?");
        check("xyz=7d", "xyz", "limit, client, range");
        check("client=%zz", "client", "escaped");
    }
}
