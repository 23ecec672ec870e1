//! `GET /api/settings`: every setting with its value and where that came from. Credentials are not shown.
use serde_json::{Number, Value, json};

use super::answer::Answer;
use super::conn::Admission;
use super::routes::Visit;
use crate::catalog::config::Origin;
use crate::catalog::load::Snapshot;
use crate::catalog::overrides::ACTIVE_PROFILE;
use crate::catalog::settings::{Profile, Strategy};
use crate::catalog::table::{Row, Shape, TABLE};
use crate::relay::gateway::Gateway;

/// `GET /api/settings`.
pub fn list(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let rows = TABLE.iter().filter(|row| row.used);
    let settings: Vec<Value> = rows.map(|row| setting(visit.gateway, &snapshot, row)).collect();
    let paths = &snapshot.paths;
    let body = json!({
        "settings": settings,
        "paths": {
            "root": paths.root.display().to_string(),
            "providers": paths.providers.display().to_string(),
            "data": paths.data.display().to_string(),
            "config": paths.config.display().to_string(),
            "envFile": paths.env_file.display().to_string(),
        },
        "restart": TABLE.iter().filter(|row| needs_restart(row)).map(|row| row.name).collect::<Vec<_>>(),
    });
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

/// What is read once: where it listens, and how the server is built.
fn needs_restart(row: &Row) -> bool {
    let once = ["server.bodyBytes", "server.stopMs"];
    row.name == "host" || row.name == "port" || row.name.starts_with("server.") && !once.contains(&row.name)
}

fn setting(gateway: &Gateway, snapshot: &Snapshot, row: &Row) -> Value {
    let default: Value = serde_json::from_str(row.default).unwrap_or_default();
    let set = snapshot.origins.get(row.name);
    let overridden = overridden(snapshot, row.name);
    let (source, variable) = match set.map(|set| set.origin) {
        _ if overridden.is_some() => ("override", None),
        None => ("default", None),
        Some(Origin::File) => ("file", None),
        Some(Origin::Variable(name)) if gateway.has_variable(name) => ("environment", Some(name)),
        Some(Origin::Variable(name)) => (".env", Some(name)),
    };
    let hidden = matches!(row.shape, Shape::Secret);
    let value = overridden.or_else(|| set.map(|set| set.value.clone()));
    let form = Form::of(&row.shape);
    json!({
        "name": row.name,
        "value": if hidden { None } else { Some(value.unwrap_or_else(|| default.clone())) },
        "default": default,
        "source": source,
        "variable": variable,
        "variables": row.variables,
        "type": form.kind,
        "words": form.words,
        "min": form.min,
        "max": form.max,
        "text": row.text,
        "hidden": hidden,
        "set": source != "default",
    })
}

/// The value of a setting that the overrides change.
fn overridden(snapshot: &Snapshot, name: &str) -> Option<Value> {
    let settings = &snapshot.settings;
    snapshot.overrides.document().get(name)?;
    match name {
        "aliases" => Some(json!(settings.aliases)),
        "profiles" => {
            let profile = |(name, profile): (&String, &Profile)| {
                (
                    name.clone(),
                    json!({"models": profile.models, "strategy": profile.strategy.map(Strategy::name)}),
                )
            };
            Some(Value::Object(settings.profiles.iter().map(profile).collect()))
        }
        ACTIVE_PROFILE => Some(json!(settings.active_profile)),
        _ => None,
    }
}

/// What may stand in a setting.
struct Form {
    kind: &'static str,
    words: Option<&'static [&'static str]>,
    min: Option<Number>,
    max: Option<Number>,
}

impl Form {
    fn of(shape: &Shape) -> Form {
        let form = |kind| Form { kind, words: None, min: None, max: None };
        match shape {
            Shape::Flag => form("flag"),
            Shape::Whole(min, max) => {
                Form { min: Some((*min).into()), max: Some((*max).into()), ..form("whole") }
            }
            Shape::Number(min, max) => {
                Form { min: Number::from_f64(*min), max: Number::from_f64(*max), ..form("number") }
            }
            Shape::Text => form("text"),
            Shape::Word(words) => Form { words: Some(words), ..form("word") },
            Shape::Texts | Shape::Addresses | Shape::Origins | Shape::Hosts => form("list"),
            Shape::Secret | Shape::Keys => form("secret"),
            Shape::TextMap | Shape::Profiles | Shape::Bench | Shape::NumberMap => form("object"),
        }
    }
}
