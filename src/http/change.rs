//! The bodies of changes under `/api`: small JSON objects, read with clear errors, and answered.
use serde_json::{Map, Value};

use super::answer::Answer;
use super::conn::{Admission, Next};
use super::routes::Visit;
use crate::catalog::fields::shown;
use crate::wire::error::ApiError;

/// Largest body of a change.
pub const CHANGE_BYTES_MAX: usize = 64 * 1024;
/// Largest body of one that holds no more than a key or a switch.
pub const SMALL_BYTES_MAX: usize = 16 * 1024;

/// Members of a change's body.
pub type Members = Map<String, Value>;

/// Reads the body of a change, and answers with what `apply` makes of its members. An empty body is an empty object.
pub fn change(
    visit: Visit<'_>,
    apply: impl FnOnce(Members) -> Result<Answer, ApiError> + 'static,
) -> Admission {
    change_up_to(visit, CHANGE_BYTES_MAX, apply)
}

/// [`change`] with a body of up to `max_bytes`.
pub fn change_up_to(
    visit: Visit<'_>,
    max_bytes: usize,
    apply: impl FnOnce(Members) -> Result<Answer, ApiError> + 'static,
) -> Admission {
    read(visit, max_bytes, members, |members| apply(members).map(Next::Answer))
}

/// [`change`] for one that may take a worker's place.
pub fn change_by(
    visit: Visit<'_>,
    apply: impl FnOnce(Members) -> Result<Next, ApiError> + 'static,
) -> Admission {
    read(visit, CHANGE_BYTES_MAX, members, apply)
}

/// A small change whose body must be there: what an empty object means is too much to do for nothing.
pub fn spoken_change(
    visit: Visit<'_>,
    apply: impl FnOnce(Members) -> Result<Next, ApiError> + 'static,
) -> Admission {
    read(visit, SMALL_BYTES_MAX, spoken_members, apply)
}

fn read(
    visit: Visit<'_>,
    max_bytes: usize,
    members: impl FnOnce(&[u8]) -> Result<Members, ApiError> + 'static,
    apply: impl FnOnce(Members) -> Result<Next, ApiError> + 'static,
) -> Admission {
    let then = |bytes: Vec<u8>| {
        members(&bytes).and_then(apply).unwrap_or_else(|error| Next::Answer(Answer::error(&error)))
    };
    Admission::Body(visit.terms(max_bytes), Box::new(then))
}

fn members(bytes: &[u8]) -> Result<Members, ApiError> {
    if bytes.trim_ascii().is_empty() { Ok(Members::new()) } else { spoken_members(bytes) }
}

fn spoken_members(bytes: &[u8]) -> Result<Members, ApiError> {
    if bytes.trim_ascii().is_empty() {
        let message = "the body is empty; send a JSON object, if only `{}`";
        return Err(ApiError::new(400, "invalid_body", message));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(other) => {
            let message = format!("the body must be a JSON object (it is {})", shown(&other));
            Err(ApiError::new(400, "invalid_body", message))
        }
        Err(error) => Err(ApiError::new(400, "invalid_json", format!("the body is no JSON: {error}"))),
    }
}

/// A member that must be true or false; `None` when it is absent or null.
///
/// # Errors
/// 400 that names the member when it is anything else.
pub fn flag(members: &Members, name: &str) -> Result<Option<bool>, ApiError> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(bad(name, &format!("must be true or false (it is {})", shown(other)))),
    }
}

/// Refuses members that the change does not have, so that a slip is told and not passed over.
///
/// # Errors
/// 400 that names the first of them.
pub fn only(members: &Members, known: &[&str]) -> Result<(), ApiError> {
    match members.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(bad(name, &format!("is not known here; known are {}", known.join(", ")))),
    }
}

/// A 400 about one member of the body.
pub fn bad(name: &str, what: &str) -> ApiError {
    ApiError::bad_field("invalid_body", name, format!("{name}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_objects_and_slips_are_told() {
        let check = |body: &str, expected: Result<usize, &str>| {
            let read = members(body.as_bytes());
            let read = read.as_ref().map(Map::len).map_err(|error| error.code.as_str());
            assert_eq!(read, expected, "{body}");
        };
        check("", Ok(0));
        check(" {\"a\": 1} ", Ok(1));
        assert!(spoken_members(b" ").is_err_and(|error| error.code == "invalid_body"));
        check("[1]", Err("invalid_body"));
        check("nul", Err("invalid_json"));
        check(&"[".repeat(100_000), Err("invalid_json"));
        let body = members(br#"{"enabled": "yes", "x": 1}"#).expect("an object");
        assert_eq!(flag(&body, "enabled").map_err(|error| error.param), Err(Some("enabled".into())));
        assert_eq!(flag(&body, "absent").map_err(|error| error.param), Ok(None));
        assert!(only(&body, &["enabled"]).is_err_and(|error| error.message.contains("x: is not known")));
    }
}
