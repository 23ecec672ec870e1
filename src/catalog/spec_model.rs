//! The `models` and `limits` of a provider file. Pure.
use std::collections::BTreeSet;

use serde_json::Value;

use super::fields::{Fields, shown};
use super::provider::*;
use super::slots::Slots;
use crate::base::text::closest;

/// Most models in one file; positions in the catalog have 16 bits.
pub const MODELS_MAX: usize = 4_000;
/// Longest model id.
pub const ID_MAX: usize = 256;
/// Largest number of tokens that a model can hold or give.
pub const TOKENS_MAX: u64 = 1_000_000_000;
const PRIORITY: f64 = 50.0;

/// Reads `models`; `standing` is what the provider's billing says of them.
pub fn read_all(fields: &Fields<'_>, provider: &str, standing: Standing, slots: &mut Slots) -> Vec<Model> {
    let objects = fields.objects("models");
    if objects.len() > MODELS_MAX {
        fields.error("models", format!("has more than {MODELS_MAX} entries"));
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut models = Vec::with_capacity(objects.len());
    for object in objects {
        let Some(model) = read_model(&object, provider, standing, slots) else { continue };
        if seen.insert(model.id.clone()) {
            models.push(model);
        } else {
            object.error("id", format!("`{}` stands twice in this file; keep one of them", model.id));
        }
    }
    models
}

/// Whether a text can be a model's id: anything that a person can see, slashes, colons and other scripts included.
pub fn is_model_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= ID_MAX && id.trim() == id && !id.chars().any(char::is_control)
}

fn read_model(object: &Fields<'_>, provider: &str, standing: Standing, slots: &mut Slots) -> Option<Model> {
    let Some(id) = object.text("id") else {
        if object.value("id").is_none() {
            object.error(
                "id",
                "is missing; it is the model's name at this provider, as the provider writes it",
            );
        }
        return None;
    };
    if !is_model_id(id) {
        object
            .error("id", format!("must be at most {ID_MAX} visible characters, without spaces around them"));
        return None;
    }
    let enabled = object.flag("enabled").unwrap_or(true);
    let model = Model {
        slot: slots.intern(&format!("model/{provider}/{id}")),
        id: id.into(),
        reference: format!("{provider}/{id}").into(),
        label: object.owned("label").unwrap_or_else(|| id.to_owned()),
        aliases: object.texts("alias"),
        context: object.count("context", TOKENS_MAX),
        max_output: object.count("maxOutput", TOKENS_MAX),
        caps: read_caps(object),
        priority: object.number("priority").unwrap_or(PRIORITY),
        enabled: enabled && standing != Standing::Paid,
        limits: read_limits(object),
        drop_params: object.texts("dropParams"),
        credits: read_credits(object),
        tier: object.owned("tier"),
        rank: object.count("rank", 100_000).and_then(|rank| u32::try_from(rank).ok()),
        paid_equivalent: read_paid_equivalent(object),
        source: ModelSource::Declared,
        dimensions: object.count("dimensions", 1_000_000).and_then(|n| u32::try_from(n).ok()),
        standing,
    };
    object.finish();
    Some(model)
}

/// Unknown words are warnings, so that a file of a later version still loads.
pub fn read_caps(object: &Fields<'_>) -> Caps {
    let mut caps = Caps::default();
    for name in object.texts("caps") {
        match Caps::by_name(&name) {
            Some(cap) => caps = caps.with(cap),
            None => {
                let known: Vec<&str> = Caps::NAMES.iter().map(|(name, _)| *name).collect();
                let hint = closest(&name, known.iter().copied());
                let hint = hint.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                object
                    .warn("caps", format!("`{name}` is not known and not used ({}){hint}", known.join(", ")));
            }
        }
    }
    if caps == Caps::default() { Caps::CHAT } else { caps }
}

fn read_credits(object: &Fields<'_>) -> Option<Credits> {
    let credits = object.object("credits")?;
    let read = Credits {
        per_m_tok_in: credits.not_negative("perMTokIn"),
        per_m_tok_out: credits.not_negative("perMTokOut"),
    };
    credits.finish();
    (read.per_m_tok_in.is_some() || read.per_m_tok_out.is_some()).then_some(read)
}

fn read_paid_equivalent(object: &Fields<'_>) -> Option<PaidEquivalent> {
    let price = object.object("paidEquivalent")?;
    let (in_per_m, out_per_m) = (price.not_negative("inPerM"), price.not_negative("outPerM"));
    price.finish();
    Some(PaidEquivalent { in_per_m: in_per_m?, out_per_m: out_per_m? })
}

/// Reads `limits`. A limit is a number, `null` for unknown, or `{"max": 1000, "window": "rolling"|"calendar"}`.
pub fn read_limits(fields: &Fields<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(object) = fields.object("limits") else { return limits };
    for metric in Metric::ALL {
        let Some(value) = object.value(metric.name()) else { continue };
        let (amount, window) = match value {
            Value::Object(_) => match object.object(metric.name()) {
                Some(limit) => {
                    let read = (limit.positive("max"), limit.word("window", &WINDOWS));
                    limit.finish();
                    read
                }
                None => continue,
            },
            _ => (object.positive(metric.name()), None),
        };
        let Some(amount) = amount else {
            if value.is_object() {
                object.error(metric.name(), format!("has no max (it is {})", shown(value)));
            }
            continue;
        };
        if metric == Metric::Concurrency && amount < 1.0 {
            object.error(metric.name(), "must be at least 1");
        }
        limits.max.insert(metric, Limit { amount, window: window.unwrap_or(default_window(metric)) });
    }
    limits.credits_per_request = object.positive("creditsPerRequest");
    object.finish();
    limits
}

const WINDOWS: [(&str, WindowKind); 2] =
    [("rolling", WindowKind::Rolling), ("calendar", WindowKind::Calendar)];

/// Seconds, minutes and hours slide; days and months are of the calendar.
fn default_window(metric: Metric) -> WindowKind {
    match metric {
        Metric::Rpd | Metric::Rpmo | Metric::Tpd | Metric::Tpmo | Metric::CreditsPerDay => {
            WindowKind::Calendar
        }
        _ => WindowKind::Rolling,
    }
}
