//! What the owner changes beside the files: switches, orders, limits, profiles, names. See `catalog::overrides`.
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::change::{Members, bad, change, change_up_to, flag, only};
use super::conn::Admission;
use super::path;
use super::routes::Visit;
use super::views;
use crate::base::text::{closest, truncate};
use crate::catalog::load::Snapshot;
use crate::catalog::overrides::{ACTIVE_PROFILE, BYTES_MAX, FILE, SECTIONS};
use crate::wire::error::ApiError;

/// `POST /api/providers/{id}/enabled`: switches a provider on or off.
pub fn enable(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    let id = decoded(visit.rest);
    change(visit, move |members| {
        only(&members, &["enabled"])?;
        let enabled =
            flag(&members, "enabled")?.ok_or_else(|| bad("enabled", "is missing; it is true or false"))?;
        let id = id?;
        gateway.override_by(|snapshot| {
            known_provider(snapshot, &id)?;
            let mut document = snapshot.overrides.document().clone();
            merge(&mut document, json!({"providers": {&id: {"enabled": enabled}}}));
            Ok(document)
        })?;
        let body = json!({"ok": true, "id": id, "enabled": enabled});
        Ok(Answer::json(200, body.to_string().into_bytes()))
    })
}

/// `GET /api/overrides`.
pub fn show(visit: Visit<'_>) -> Admission {
    let answer = told(&visit.gateway.snapshot());
    visit.answer(answer)
}

/// `PUT /api/overrides`: this, and nothing else, is overridden.
pub fn replace(visit: Visit<'_>) -> Admission {
    apply(visit, |_, document| Ok(document))
}

/// `PATCH /api/overrides`: a merge patch (RFC 7396).
pub fn patch(visit: Visit<'_>) -> Admission {
    apply(visit, |snapshot, patch| {
        let mut document = snapshot.overrides.document().clone();
        merge(&mut document, Value::Object(patch));
        Ok(document)
    })
}

/// `DELETE /api/overrides`: the files alone count again.
pub fn clear(visit: Visit<'_>) -> Admission {
    apply(visit, |_, _| Ok(Map::new()))
}

/// `GET /api/overrides/{section}/{name}`.
pub fn show_entry(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let found = Place::of(visit.rest)
        .and_then(|place| place.look(snapshot.overrides.document()).cloned().ok_or_else(|| place.absent()));
    visit.answer(match found {
        Ok(entry) => Answer::json(200, json!({"override": entry}).to_string().into_bytes()),
        Err(error) => Answer::error(&error),
    })
}

/// `PUT /api/overrides/{section}/{name}`.
pub fn replace_entry(visit: Visit<'_>) -> Admission {
    let place = Place::of(visit.rest);
    apply(visit, |snapshot, members| {
        let place = place?;
        place.check(snapshot)?;
        let mut document = snapshot.overrides.document().clone();
        place.put(&mut document, members)?;
        Ok(document)
    })
}

/// `PATCH /api/overrides/{section}/{name}`: a merge patch of one entry.
pub fn patch_entry(visit: Visit<'_>) -> Admission {
    let place = Place::of(visit.rest);
    apply(visit, |snapshot, members| {
        let place = place?;
        place.check(snapshot)?;
        if !["providers", "models", "profiles"].contains(&place.section.as_str()) {
            return place.replace(snapshot, members);
        }
        let mut document = snapshot.overrides.document().clone();
        merge(&mut document, json!({&place.section: {&place.name: members}}));
        place.drop_if_empty(&mut document);
        Ok(document)
    })
}

/// `DELETE /api/overrides/{section}/{name}`.
pub fn remove_entry(visit: Visit<'_>) -> Admission {
    let place = Place::of(visit.rest);
    apply(visit, |snapshot, _| {
        let place = place?;
        let mut document = snapshot.overrides.document().clone();
        if place.take(&mut document) { Ok(document) } else { Err(place.absent()) }
    })
}

fn apply(
    visit: Visit<'_>,
    make: impl FnOnce(&Snapshot, Members) -> Result<Map<String, Value>, ApiError> + 'static,
) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    change_up_to(visit, BYTES_MAX, move |members| {
        gateway.override_by(|snapshot| make(snapshot, members)).map(|snapshot| told(&snapshot))
    })
}

/// The overrides as they are now, with what is wrong with them.
fn told(snapshot: &Snapshot) -> Answer {
    let issues: Vec<_> = snapshot.issues.iter().filter(|issue| issue.file == FILE).cloned().collect();
    let body =
        json!({"ok": true, "overrides": snapshot.overrides.document(), "issues": views::issues(&issues)});
    Answer::json(200, body.to_string().into_bytes())
}

/// One entry of the document.
struct Place {
    section: String,
    /// Empty for the one member that is no section.
    name: String,
}

impl Place {
    /// Reads `{section}/{name}`, percent-encoded; the name may hold slashes.
    fn of(rest: &str) -> Result<Place, ApiError> {
        let (section, name) = rest.split_once('/').unwrap_or((rest, ""));
        let (section, name) = (decoded(section)?, decoded(name)?);
        let known =
            if name.is_empty() { section == ACTIVE_PROFILE } else { SECTIONS.contains(&section.as_str()) };
        if !known {
            let message = format!(
                "there is nothing to override at {}; known are {}/{{name}} and {ACTIVE_PROFILE}",
                truncate(rest, 200),
                SECTIONS.join("/{name}, ")
            );
            return Err(ApiError::new(404, "not_found", message));
        }
        Ok(Place { section, name })
    }

    fn absent(&self) -> ApiError {
        let what = truncate(&self.name, 200);
        ApiError::new(404, "not_found", format!("nothing is overridden at {}/{what}", self.section))
    }

    /// What is to be overridden must be there.
    fn check(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        match self.section.as_str() {
            "providers" => known_provider(snapshot, &self.name),
            "models" | "splits" => known_model(snapshot, &self.name),
            _ => Ok(()),
        }
    }

    fn look<'d>(&self, document: &'d Map<String, Value>) -> Option<&'d Value> {
        let section = document.get(&self.section)?;
        match section {
            Value::Array(list) => list.iter().find(|item| *item == &*self.name),
            Value::Object(entries) => entries.get(&self.name),
            other => Some(other),
        }
    }

    fn replace(&self, snapshot: &Snapshot, members: Members) -> Result<Map<String, Value>, ApiError> {
        let mut document = snapshot.overrides.document().clone();
        self.put(&mut document, members)?;
        Ok(document)
    }

    /// Sets the entry to what the body says.
    fn put(&self, document: &mut Map<String, Value>, mut members: Members) -> Result<(), ApiError> {
        let one = |members: &mut Members, name: &str| {
            only(members, &[name])?;
            members.remove(name).ok_or_else(|| bad(name, "is missing"))
        };
        let value = match self.section.as_str() {
            ACTIVE_PROFILE => {
                let name = one(&mut members, "name")?;
                document.insert(ACTIVE_PROFILE.into(), name);
                return Ok(());
            }
            "splits" => {
                only(&members, &[])?;
                let list = document.entry("splits").or_insert_with(|| json!([]));
                if let Some(list) = list.as_array_mut().filter(|list| !list.contains(&json!(self.name))) {
                    list.push(self.name.as_str().into());
                }
                return Ok(());
            }
            "aliases" => one(&mut members, "target")?,
            "merges" => one(&mut members, "members")?,
            _ => Value::Object(members),
        };
        let section = document.entry(self.section.as_str()).or_insert_with(|| json!({}));
        section[&self.name] = value;
        self.drop_if_empty(document);
        Ok(())
    }

    /// An entry that says nothing is none.
    fn drop_if_empty(&self, document: &mut Map<String, Value>) {
        if self.look(document).and_then(Value::as_object).is_some_and(Map::is_empty) {
            self.take(document);
        }
    }

    /// Takes the entry away; false when there is none.
    fn take(&self, document: &mut Map<String, Value>) -> bool {
        if self.name.is_empty() {
            return document.remove(&self.section).is_some();
        }
        match document.get_mut(&self.section) {
            Some(Value::Object(entries)) => entries.remove(&self.name).is_some(),
            Some(Value::Array(list)) => {
                let before = list.len();
                list.retain(|item| item != &*self.name);
                list.len() < before
            }
            _ => false,
        }
    }
}

/// A part of the path as the text that it stands for.
pub fn decoded(part: &str) -> Result<String, ApiError> {
    let broken = |_| ApiError::new(400, "", "the path holds a broken %-escape");
    path::decoded(part).map(|text| text.into_owned()).map_err(broken)
}

/// A 404 with a suggestion unless there is a provider of this id.
pub fn known_provider(snapshot: &Snapshot, id: &str) -> Result<(), ApiError> {
    let ids = || snapshot.catalog.providers.iter().map(|provider| &*provider.id);
    if ids().any(|known| known == id) { Ok(()) } else { Err(unknown("provider", id, ids())) }
}

fn known_model(snapshot: &Snapshot, reference: &str) -> Result<(), ApiError> {
    let catalog = &snapshot.catalog;
    let all =
        || catalog.providers.iter().flat_map(|provider| &provider.models).map(|model| &*model.reference);
    if all().any(|known| known == reference) { Ok(()) } else { Err(unknown("model", reference, all())) }
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> ApiError {
    let hint = closest(name, known).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    ApiError::new(404, "not_found", format!("there is no {what} `{}`{hint}", truncate(name, 200)))
}

/// Puts `patch` into `target` as RFC 7396 has it: objects member by member, `null` removes, the rest replaces.
fn merge(target: &mut Map<String, Value>, patch: Value) {
    let Value::Object(patch) = patch else { return };
    for (name, value) in patch {
        match value {
            Value::Null => drop(target.remove(&name)),
            Value::Object(_) => {
                let place = target.entry(name).or_insert_with(|| json!({}));
                if !place.is_object() {
                    *place = json!({});
                }
                if let Some(inner) = place.as_object_mut() {
                    merge(inner, value);
                }
            }
            value => drop(target.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn a_merge_patch_sets_and_removes() {
        let mut target = object(json!({"a": {"b": 1, "c": 2}, "d": [1], "e": 5}));
        merge(
            &mut target,
            json!({"a": {"b": null, "x": {"y": null, "z": 1}}, "d": [2], "e": {"f": 1}, "g": null}),
        );
        assert_eq!(Value::Object(target), json!({"a": {"c": 2, "x": {"z": 1}}, "d": [2], "e": {"f": 1}}));
    }

    #[test]
    fn places_are_found_put_and_taken() {
        let check = |rest: &str, known: bool| assert_eq!(Place::of(rest).is_ok(), known, "{rest}");
        check("models/groq/llama%20x", true);
        check("activeProfile", true);
        check("models", false);
        check("activeProfile/x", false);
        check("nonsense/x", false);
        check("models/%zz", false);
        let mut document = Map::new();
        let mut put = |rest: &str, body: Value| {
            Place::of(rest).and_then(|place| place.put(&mut document, object(body)))
        };
        put("aliases/quick", json!({"target": "a/m"})).expect("an alias");
        put("splits/a/m", json!({})).expect("a split");
        put("splits/a/m", json!({})).expect("the same again");
        put("models/a/m", json!({})).expect("nothing");
        put("activeProfile", json!({"name": null})).expect("none active");
        assert!(
            put("aliases/quick", json!({"to": "x"})).is_err_and(|error| error.param.as_deref() == Some("to"))
        );
        assert!(put("merges/x", json!({})).is_err_and(|error| error.param.as_deref() == Some("members")));
        assert_eq!(
            Value::Object(document.clone()),
            json!({"aliases": {"quick": "a/m"}, "splits": ["a/m"], "models": {}, "activeProfile": null})
        );
        let mut take = |rest: &str| Place::of(rest).is_ok_and(|place| place.take(&mut document));
        assert_eq!(
            [take("splits/a/m"), take("splits/a/m"), take("aliases/quick"), take("activeProfile")],
            [true, false, true, true]
        );
    }
}
