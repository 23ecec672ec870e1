//! The models: as rows of their providers, as a list that can be searched, and the names that stand for several.
use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::answer::Answer;
use super::conn::Admission;
use super::look::{self, Bar, Look};
use super::query::Query;
use super::routes::Visit;
use crate::base::clock;
use crate::catalog::ModelIx;
use crate::catalog::load::Snapshot;
use crate::catalog::names::Kind;
use crate::catalog::provider::{Caps, Metric, Model, ModelSource, Provider};
use crate::catalog::settings::Strategy;
use crate::quota::Scope;
use crate::wire::error::ApiError;

/// One model, for the owner.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelView<'a> {
    id: &'a str,
    #[serde(rename = "ref")]
    reference: &'a str,
    provider: &'a str,
    label: &'a str,
    alias: &'a [String],
    caps: Vec<&'static str>,
    context: Option<u64>,
    max_output: Option<u64>,
    enabled: bool,
    /// Why it is switched off.
    off_reason: Option<&'static str>,
    source: &'static str,
    #[serde(serialize_with = "look::plain")]
    priority: f64,
    tier: Option<&'a str>,
    rank: Option<u32>,
    cooldown_ms_remaining: u64,
    first_token_ms: Option<u64>,
    whole_ms: Option<u64>,
    bars: Vec<Bar>,
    #[serde(rename = "override")]
    overridden: Value,
}

pub fn model_view<'a>(look: &Look<'_>, provider: &'a Provider, model: &'a Model) -> ModelView<'a> {
    let (first_token_ms, whole_ms) = look.speed(provider.slot, Some(model.slot));
    ModelView {
        id: &model.id,
        reference: &model.reference,
        provider: &provider.id,
        label: &model.label,
        alias: &model.aliases,
        caps: model.caps.names().collect(),
        context: model.context,
        max_output: model.max_output,
        enabled: model.enabled,
        off_reason: model.off_reason(),
        source: model.source.name(),
        priority: model.priority,
        tier: model.tier.as_deref(),
        rank: model.rank,
        cooldown_ms_remaining: look.cooldown_ms(Scope::Model(model.slot)),
        first_token_ms,
        whole_ms,
        bars: look.model_bars(provider, model),
        overridden: look.snapshot.overrides.entry("models", &model.reference),
    }
}

/// A row of the list of models.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    #[serde(flatten)]
    model: ModelView<'a>,
    unified: Option<&'a str>,
    provider_enabled: bool,
    configured: bool,
    available: bool,
    unavailable_reason: Option<&'static str>,
}

/// Rows of one page when the query names no number, and at most.
const ROWS_DEFAULT: usize = 100;
const ROWS_MAX: usize = 500;

/// `GET /api/models?q=&provider=&cap=&source=&enabled=&limit=&offset=`: a page of the models that fit, in natural order.
pub fn list(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let Asked { limit, offset, sieve } = match asked(visit.head.query()) {
        Ok(asked) => asked,
        Err(error) => return visit.answer(Answer::error(&error)),
    };
    let unified = unified_names(&snapshot);
    let catalog = &snapshot.catalog;
    let found: Vec<ModelIx> = snapshot
        .names
        .order()
        .filter(|at| sieve.passes(catalog.provider(*at), catalog.model(*at), unified.get(at).copied()))
        .collect();
    let now = clock::now();
    let row = |at: &ModelIx| {
        let (provider, model) = (catalog.provider(*at), catalog.model(*at));
        let live = visit.gateway.live.lock();
        let look = Look { live: &live, snapshot: &snapshot, now };
        let reason = if !provider.enabled || !model.enabled {
            Some("disabled")
        } else {
            (!provider.configured()).then_some("no_key")
        };
        Row {
            model: model_view(&look, provider, model),
            unified: unified.get(at).copied(),
            provider_enabled: provider.enabled,
            configured: provider.configured(),
            available: reason.is_none(),
            unavailable_reason: reason,
        }
    };
    let rows: Vec<Row<'_>> = found.iter().skip(offset).take(limit).map(row).collect();
    let body = json!({
        "total": catalog.all().count(),
        "matched": found.len(),
        "offset": offset,
        "limit": limit,
        "models": rows,
    });
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

fn unified_names(snapshot: &Snapshot) -> HashMap<ModelIx, &str> {
    let groups = snapshot.names.unified().iter();
    groups.flat_map(|group| group.members.iter().map(|at| (*at, group.name.as_str()))).collect()
}

/// What the query asks for.
struct Asked {
    limit: usize,
    offset: usize,
    sieve: Sieve,
}

fn asked(query: &str) -> Result<Asked, ApiError> {
    let query = Query::read(query, &["q", "provider", "cap", "source", "enabled", "limit", "offset"])?;
    let offset = query.whole("offset", 0..=i64::from(u32::MAX))?;
    Ok(Asked {
        limit: query.limit("limit", ROWS_MAX)?.unwrap_or(ROWS_DEFAULT),
        offset: offset.map_or(0, |offset| offset as usize),
        sieve: Sieve::of(&query)?,
    })
}

/// What the query asks of a model; what it does not name fits.
struct Sieve {
    /// Lower-case words, all of which must be found.
    words: Vec<String>,
    provider: Option<String>,
    cap: Option<Caps>,
    source: Option<ModelSource>,
    enabled: Option<bool>,
}

impl Sieve {
    fn of(query: &Query) -> Result<Sieve, ApiError> {
        let value = |name| query.text(name).map(|value| value.trim().to_lowercase()).unwrap_or_default();
        let sources = [ModelSource::Declared, ModelSource::Discovered].map(|source| (source.name(), source));
        Ok(Sieve {
            words: value("q").split_whitespace().map(str::to_owned).collect(),
            provider: Some(value("provider")).filter(|id| !id.is_empty()),
            cap: query.word("cap", &Caps::NAMES)?,
            source: query.word("source", &sources)?,
            enabled: query.word("enabled", &[("true", true), ("false", false), ("1", true), ("0", false)])?,
        })
    }

    fn passes(&self, provider: &Provider, model: &Model, unified: Option<&str>) -> bool {
        let holds = |word: &String| {
            let has = |text: &str| text.to_lowercase().contains(word.as_str());
            has(&model.reference)
                || has(&model.label)
                || model.aliases.iter().any(|alias| has(alias))
                || unified.is_some_and(has)
        };
        self.provider.as_deref().is_none_or(|id| *provider.id == *id)
            && self.cap.is_none_or(|cap| model.caps.has(cap))
            && self.source.is_none_or(|source| model.source == source)
            && self.enabled.is_none_or(|enabled| (provider.enabled && model.enabled) == enabled)
            && self.words.iter().all(holds)
    }
}

/// Models shown behind one name.
const MEMBERS_MAX: usize = 100;

/// `GET /api/catalog`: the names that stand for several models, and the words that overrides are made of.
pub fn names(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let (catalog, settings, over) = (&snapshot.catalog, &snapshot.settings, &snapshot.overrides);
    let references = |models: &[ModelIx]| -> Vec<&str> {
        models.iter().take(MEMBERS_MAX).map(|at| &*catalog.model(*at).reference).collect()
    };
    let active = settings.active_profile.as_deref();
    let unified = snapshot.names.unified().iter().map(|group| {
        json!({"name": group.name, "label": group.label, "members": references(&group.members), "merged": over.has("merges", &group.name)})
    });
    let profiles = settings.profiles.iter().map(|(name, profile)| {
        json!({
            "name": name,
            "models": profile.models,
            "strategy": profile.strategy.map(Strategy::name),
            "active": active.is_some_and(|active| active.eq_ignore_ascii_case(name)),
            "source": if over.has("profiles", name) { "override" } else { "file" },
        })
    });
    let body = json!({
        "unified": unified.collect::<Vec<_>>(),
        "profiles": profiles.collect::<Vec<_>>(),
        "aliases": aliases(&snapshot, references),
        "splits": over.regroup.splits,
        "activeProfile": active,
        "strategies": Strategy::NAMES.map(|(name, _)| name),
        "caps": Caps::NAMES.map(|(name, _)| name),
        "metrics": Metric::ALL.map(Metric::name),
    });
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

/// Aliases of the settings with their targets, then those that provider files give.
fn aliases<'s>(snapshot: &'s Snapshot, references: impl Fn(&[ModelIx]) -> Vec<&'s str>) -> Vec<Value> {
    let (catalog, settings) = (&snapshot.catalog, &snapshot.settings);
    let resolved = |name: &str| {
        let chat = snapshot.names.resolve(catalog, settings, name, Kind::Chat).models;
        let embed = || snapshot.names.resolve(catalog, settings, name, Kind::Embed).models;
        if chat.iter().any(|at| catalog.model(*at).caps.has(Caps::CHAT)) { chat } else { embed() }
    };
    let configured = settings.aliases.iter().map(|(name, target)| {
        let source = if snapshot.overrides.has("aliases", name) { "override" } else { "file" };
        json!({"name": name, "target": target, "resolvesTo": references(&resolved(name)), "source": source})
    });
    let mut of_files: Vec<&str> = catalog
        .providers
        .iter()
        .flat_map(|provider| &provider.models)
        .flat_map(|model| &model.aliases)
        .map(|alias| alias.trim())
        .filter(|alias| !settings.aliases.keys().any(|known| known.eq_ignore_ascii_case(alias)))
        .collect();
    of_files.sort_unstable();
    of_files.dedup();
    let declared = of_files.into_iter().map(|name| {
        json!({"name": name, "target": null, "resolvesTo": references(&resolved(name)), "source": "provider"})
    });
    configured.chain(declared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixture::catalog;

    #[test]
    fn models_are_found_by_words_and_by_what_they_are() {
        let catalog = catalog(&[
            json!({"id": "acme", "models": [{"id": "big/one:free", "label": "Grand One", "alias": ["fast"], "caps": ["chat", "tools"]}]}),
            json!({"id": "bolt", "enabled": false, "models": [{"id": "vec", "caps": ["embed"]}]}),
        ]);
        let check = |query: &str, expected: &[&str]| {
            let sieve = asked(query).expect(query).sieve;
            let found = catalog.all().filter(|at| {
                sieve.passes(
                    catalog.provider(*at),
                    catalog.model(*at),
                    Some("shared-name").filter(|_| at.provider == 0),
                )
            });
            let found: Vec<&str> = found.map(|at| &*catalog.model(at).id).collect();
            assert_eq!(found, expected, "{query}");
        };
        check("", &["big/one:free", "vec"]);
        check("q=GRAND%20acme", &["big/one:free"]);
        check("q=grand+bolt", &[]);
        check("q=shared", &["big/one:free"]);
        check("q=fast&provider=bolt", &[]);
        check("cap=embed", &["vec"]);
        check("enabled=0", &["vec"]);
        check("enabled=false&q=v%65c", &["vec"]);
        check("enabled=1&source=declared&q=", &["big/one:free"]);
        check("source=discovered", &[]);
        check("provider=nobody", &[]);
        for (odd, param) in [
            ("cap=fly", "cap"),
            ("enabled=maybe", "enabled"),
            ("source=heaven", "source"),
            ("limit=0", "limit"),
            ("offset=-1", "offset"),
            ("offset=x", "offset"),
            ("quest=x", "quest"),
        ] {
            let error = asked(odd).err().expect(odd);
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{odd}");
        }
    }
}
