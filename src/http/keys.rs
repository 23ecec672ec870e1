//! Provider keys in the page: pasted, removed, imported and exported. They are sealed in `catalog::vault`; the only
//! answer that holds one in plain is the export.
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Answer;
use super::change::{Members, bad, change_up_to, flag, only, spoken_change};
use super::conn::{Admission, Next};
use super::overrides::{decoded, known_provider};
use super::query::Query;
use super::routes::Visit;
use super::sock;
use crate::base::clock;
use crate::base::text::Secret;
use crate::catalog::fields::shown;
use crate::catalog::key_export;
use crate::catalog::key_import::{self, Choice, Format, Preview};
use crate::catalog::key_names::KeyNames;
use crate::catalog::load::Snapshot;
use crate::catalog::pool::PASTED;
use crate::catalog::provider::{Auth, Key, Provider};
use crate::catalog::vault::{NewKey, Sealer, Which};
use crate::discover::{self, Which as Lists};
use crate::relay::gateway::Gateway;
use crate::route::health::KeyHealth;
use crate::wire::error::ApiError;

/// Largest body of an import: the text, with room for its escapes.
const IMPORT_BYTES_MAX: usize = 2 * key_import::TEXT_MAX;

/// `POST /api/providers/{id}/key {key}`.
pub fn paste(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    let id = decoded(visit.rest);
    spoken_change(visit, move |members| {
        only(&members, &["key", "label"])?;
        let id = id?;
        takes_keys(&gateway.snapshot(), &id)?;
        let secret = text(&members, "key")?.ok_or_else(|| bad("key", "is missing; it is the key itself"))?;
        let label = text(&members, "label")?.map(str::to_owned);
        let new = NewKey { provider: id.clone(), secret: Secret::new(secret), label };
        let masked = new.secret.masked();
        let added = change_vault(&gateway, |sealer| sealer.add(&[new], clock::now().wall_ms))?;
        let snapshot = take_up(&gateway);
        let provider = provider(&snapshot, &id);
        let known = added.first().is_some_and(|added| added.known);
        Ok(Next::Answer(answer(&json!({
            "ok": true,
            "id": id,
            "keyId": added.first().map(|added| &added.id),
            "masked": masked,
            "known": known,
            "configured": provider.is_some_and(Provider::configured),
            "configError": provider.and_then(Provider::config_error),
        }))))
    })
}

/// `DELETE /api/providers/{id}/key`: `{keyId}`, `{masked}`, or `{}` for all pasted keys of the provider.
pub fn forget(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    let id = decoded(visit.rest);
    spoken_change(visit, move |members| {
        only(&members, &["keyId", "masked"])?;
        let id = id?;
        let which = match (text(&members, "keyId")?, text(&members, "masked")?) {
            (Some(_), Some(_)) => return Err(bad("masked", "must be left out where keyId names the key")),
            // Views give the id with the provider in front.
            (Some(key), None) => Which::Id(key.rsplit(':').next().unwrap_or(key)),
            (None, Some(mask)) => Which::Mask(mask),
            (None, None) => Which::All,
        };
        let removed = change_vault(&gateway, |sealer| sealer.remove(&id, which))?;
        if removed == 0 {
            // Only then: keys of a provider whose file is gone can still be removed.
            known_provider(&gateway.snapshot(), &id)?;
        }
        let snapshot = take_up(&gateway);
        let provider = provider(&snapshot, &id);
        Ok(Next::Answer(answer(&json!({
            "ok": removed > 0,
            "id": id,
            "removed": removed,
            "configured": provider.is_some_and(Provider::configured),
            "configError": provider.and_then(Provider::config_error),
        }))))
    })
}

/// `GET /api/keys`: all provider keys, masked, and how the pasted ones are kept.
pub fn list(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let sealed_by = visit.gateway.with_sealer(|sealer| sealer.sealed_by());
    let body = listing(&snapshot, sealed_by);
    visit.answer(answer(&body))
}

/// All provider keys as the API and the terminal have them.
pub fn listing(snapshot: &Snapshot, sealed_by: &str) -> Value {
    let wanting = snapshot.catalog.providers.iter().filter(|provider| provider.auth != Auth::None);
    let keys: Vec<Value> =
        wanting.flat_map(|provider| provider.keys.iter().map(|key| row(snapshot, provider, key))).collect();
    let pasted = &snapshot.pasted;
    json!({
        "keys": keys,
        "vault": {
            "ok": pasted.problem.is_none() && pasted.unreadable.is_empty(),
            "readonly": pasted.problem.is_some(),
            "sealedBy": sealed_by,
            "unreadable": pasted.unreadable.len(),
            "problem": pasted.problem,
        },
    })
}

fn row(snapshot: &Snapshot, provider: &Provider, key: &Key) -> Value {
    let id = key.id.rsplit(':').next().unwrap_or_default();
    let pasted = snapshot.pasted.of(&provider.id).find(|pasted| pasted.id == id);
    json!({
        "provider": provider.id,
        "keyId": id,
        "masked": key.masked,
        "source": key.source,
        "removable": key.source == PASTED,
        "addedAt": pasted.map(|pasted| pasted.added_ms),
        "label": pasted.and_then(|pasted| pasted.label.as_deref()),
    })
}

/// `POST /api/keys/import {text, format?, preview?, select?, providers?}`: shows what a text holds, then adds what is
/// chosen.
pub fn import(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    change_up_to(visit, IMPORT_BYTES_MAX, move |members| {
        only(&members, &["text", "format", "preview", "select", "providers"])?;
        let text = members.get("text").and_then(Value::as_str);
        let text = text.ok_or_else(|| bad("text", "is missing; it is the text to read"))?;
        if text.len() > key_import::TEXT_MAX {
            return Err(bad("text", "is larger than 1 MiB"));
        }
        let format = match members.get("format").filter(|value| !value.is_null()) {
            None => None,
            Some(value) => Some(
                value
                    .as_str()
                    .and_then(Format::by_name)
                    .ok_or_else(|| bad("format", "is none of env, json and csv"))?,
            ),
        };
        let preview = read(&gateway.snapshot(), text, format);
        let select = select(&members)?;
        if flag(&members, "preview")?.unwrap_or(select.is_none()) {
            return Ok(answer(&preview.to_json()));
        }
        let choice = Choice { select, providers: named_providers(&members)? };
        let body = add(&gateway, &preview, &choice)?;
        Ok(answer(&body))
    })
}

/// What a text holds, seen from this gateway.
pub fn read(snapshot: &Snapshot, text: &str, format: Option<Format>) -> Preview {
    let known = |id: &str, secret: &str| {
        provider(snapshot, id)
            .is_some_and(|provider| provider.keys.iter().any(|key| key.secret.expose() == secret))
    };
    key_import::read(text, format, &KeyNames::of(&snapshot.catalog), &known)
}

fn add(gateway: &Arc<Gateway>, preview: &Preview, choice: &Choice) -> Result<Value, ApiError> {
    let snapshot = gateway.snapshot();
    let chosen = preview.choose(choice, &|id| takes_keys(&snapshot, id).is_ok());
    let keys: Vec<NewKey> = chosen.keys.iter().map(|(_, key)| key.clone()).collect();
    let added = change_vault(gateway, |sealer| sealer.add(&keys, clock::now().wall_ms))?;
    take_up(gateway);
    let rows: Vec<Value> = chosen
        .keys
        .iter()
        .zip(&added)
        .map(|((at, key), added)| {
            json!({"index": at, "provider": key.provider, "keyId": added.id, "masked": key.secret.masked()})
        })
        .collect();
    let skipped: Vec<Value> =
        chosen.skipped.iter().map(|(at, reason)| json!({"index": at, "reason": reason})).collect();
    Ok(json!({
        "ok": true,
        "format": preview.format.name(),
        "preview": false,
        "added": rows,
        "skipped": skipped,
        "counts": preview.counts(),
    }))
}

/// Most entries that one request may select.
const SELECT_MAX: usize = 1_000;

fn select(members: &Members) -> Result<Option<Vec<usize>>, ApiError> {
    let Some(value) = members.get("select").filter(|value| !value.is_null()) else { return Ok(None) };
    let places = value.as_array().filter(|places| places.len() <= SELECT_MAX);
    let places =
        places.and_then(|places| places.iter().map(|place| Some(place.as_u64()? as usize)).collect());
    places.map(Some).ok_or_else(|| {
        bad("select", &format!("must be a list of places in the preview (it is {})", shown(value)))
    })
}

fn named_providers(members: &Members) -> Result<BTreeMap<usize, String>, ApiError> {
    let Some(value) = members.get("providers").filter(|value| !value.is_null()) else {
        return Ok(BTreeMap::new());
    };
    let pair = |(at, id): (&String, &Value)| Some((at.parse().ok()?, id.as_str()?.to_owned()));
    let pairs = value.as_object().and_then(|map| map.iter().map(pair).collect::<Option<_>>());
    pairs.ok_or_else(|| bad("providers", "must be an object from a place in the preview to a provider's id"))
}

/// `GET /api/keys/export?format=json|env|csv[&healthy=true]`: the keys in plain text.
pub fn export(visit: Visit<'_>) -> Admission {
    let (format, healthy_only) = match export_query(visit.head.query()) {
        Ok(asked) => asked,
        Err(error) => return visit.answer(Answer::error(&error)),
    };
    let (snapshot, now) = (visit.gateway.snapshot(), clock::now());
    let text = {
        let live = visit.gateway.live.lock();
        let wanted = |provider: &Provider, key: &Key| {
            let bench = live.bench_of_key(provider, key, now);
            let health = live.health_of_key(provider, key, bench.as_ref(), now);
            !healthy_only || !matches!(health, KeyHealth::Invalid | KeyHealth::Forbidden)
        };
        key_export::write(format, &snapshot.catalog, &snapshot.pasted, &wanted, now.wall_ms)
    };
    log::warn!("the provider keys were exported in plain text");
    let (kind, file) = match format {
        Format::Json => ("application/json; charset=utf-8", "freeway-keys.json"),
        Format::Env => ("text/plain; charset=utf-8", "freeway-keys.env"),
        Format::Csv => ("text/csv; charset=utf-8", "freeway-keys.csv"),
    };
    visit.answer(
        Answer::of_type(200, kind, text.into_bytes())
            .header("content-disposition", format!("attachment; filename=\"{file}\"")),
    )
}

/// The format, and whether only keys that are not known to be refused are wanted.
fn export_query(query: &str) -> Result<(Format, bool), ApiError> {
    let query = Query::read(query, &["format", "healthy"])?;
    let formats = [("json", Format::Json), ("env", Format::Env), ("csv", Format::Csv)];
    let flags = [("true", true), ("1", true), ("false", false), ("0", false)];
    Ok((
        query.word("format", &formats)?.unwrap_or(Format::Json),
        query.word("healthy", &flags)?.unwrap_or(false),
    ))
}

/// Changes the file of pasted keys when it is our turn: commands of the terminal change it, too.
fn change_vault<T>(
    gateway: &Gateway,
    act: impl FnOnce(&Sealer<'_>) -> Result<T, String>,
) -> Result<T, ApiError> {
    let _turn = sock::lock_folder(&gateway.data);
    gateway.with_sealer(act).map_err(vault_error)
}

/// Lets changed keys count at once; a provider that just got its first one may have no models yet.
fn take_up(gateway: &Arc<Gateway>) -> Arc<Snapshot> {
    if let Err(issues) = gateway.reload() {
        log::error!("the provider keys have changed, but the files cannot be read again: {issues:?}");
    }
    discover::start(gateway, Lists::Due);
    gateway.snapshot()
}

fn provider<'s>(snapshot: &'s Snapshot, id: &str) -> Option<&'s Provider> {
    snapshot.catalog.providers.iter().find(|provider| *provider.id == *id)
}

/// Whether there is such a provider, and whether it wants keys.
///
/// # Errors
/// 404 and 400.
pub fn takes_keys(snapshot: &Snapshot, id: &str) -> Result<(), ApiError> {
    known_provider(snapshot, id)?;
    // One that also serves those who have no key names a variable for those who have one.
    match provider(snapshot, id)
        .filter(|provider| provider.auth == Auth::None && provider.env_keys.is_empty())
    {
        Some(_) => Err(vault_error(format!("{id} wants no key"))),
        None => Ok(()),
    }
}

fn vault_error(what: String) -> ApiError {
    ApiError::new(400, "vault_error", what)
}

/// A member that must be a text.
fn text<'m>(members: &'m Members, name: &str) -> Result<Option<&'m str>, ApiError> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.trim())),
        // What stands there may be a key; it is not repeated.
        Some(_) => Err(bad(name, "must be a text")),
    }
}

fn answer(body: &Value) -> Answer {
    Answer::json(200, body.to_string().into_bytes())
}
