//! Unified names: one name for the same weights at several providers, found by what the providers call them. Pure.
use std::collections::{BTreeMap, BTreeSet};

use super::provider::Model;
use super::{Catalog, ModelIx};

/// The same weights at two or more providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unified {
    /// What clients ask for, such as `gpt-oss-120b`.
    pub name: String,
    /// For people: the label of the best-ranked member.
    pub label: String,
    pub members: Vec<ModelIx>,
}

/// What the owner knows better than the names of models tell.
#[derive(Clone, Debug, Default)]
pub struct Regroup {
    /// References that belong to the group of a name.
    pub merges: BTreeMap<String, String>,
    /// References that belong to no group.
    pub splits: BTreeSet<String>,
}

/// Groups the models of a catalog; `order` gives the order of the members. Sorted by name.
pub fn groups(catalog: &Catalog, regroup: &Regroup, order: impl Iterator<Item = ModelIx>) -> Vec<Unified> {
    let mut by_key: BTreeMap<String, Vec<ModelIx>> = BTreeMap::new();
    for at in order {
        let model = catalog.model(at);
        if !regroup.splits.contains(&*model.reference) {
            let name = regroup.merges.get(&*model.reference).map_or_else(|| weights(model), String::as_str);
            by_key.entry(key(name)).or_default().push(at);
        }
    }
    let made: BTreeSet<String> = regroup.merges.values().map(|name| key(name)).collect();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut groups = Vec::new();
    for (key, members) in by_key {
        let slug = slug(&key);
        let providers: BTreeSet<u16> = members.iter().map(|at| at.provider).collect();
        // A group that the owner made may be as small as it likes.
        if providers.len() < 2 && !made.contains(&key) || slug.is_empty() {
            continue;
        }
        // `Command R` and `Command R+` are different weights with one slug.
        let name = (1..)
            .map(|n| if n == 1 { slug.clone() } else { format!("{slug}-{n}") })
            .find(|name| !taken.contains(name));
        let name = name.expect("one of endlessly many names is free");
        taken.insert(name.clone());
        let best = members
            .iter()
            .map(|at| catalog.model(*at))
            .min_by_key(|model| (model.rank.unwrap_or(u32::MAX), model.label.len()));
        let label = best.map(|model| weights(model).trim().to_owned()).unwrap_or_default();
        groups.push(Unified { name, label, members });
    }
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    groups
}

/// One name for the weights of a model, the same at every provider that has them.
pub fn weights_name(model: &Model) -> String {
    key(weights(model))
}

/// What a model calls its weights: its label, or the last part of an id that has none.
fn weights(model: &Model) -> &str {
    if model.label != *model.id {
        return &model.label;
    }
    let id = model.id.split(':').next().unwrap_or(&model.id);
    id.rsplit('/').next().unwrap_or(id)
}

/// The grouping key: no note in parentheses and no `free` at the end, lower case, single spaces for separators.
fn key(label: &str) -> String {
    let mut rest = label.trim();
    loop {
        let shorter = without_note(without_free(rest));
        if shorter == rest {
            break;
        }
        rest = shorter;
    }
    let lower = rest.to_lowercase();
    let words = lower.split([' ', '-', '_', '\t']).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

fn without_note(text: &str) -> &str {
    let Some(inner) = text.strip_suffix(')') else { return text };
    match inner.rfind(['(', ')']) {
        Some(open) if open > 0 && inner.as_bytes()[open] == b'(' => inner[..open].trim_end(),
        _ => text,
    }
}

fn without_free(text: &str) -> &str {
    let Some(at) = text.len().checked_sub(4).filter(|at| text.is_char_boundary(*at)) else { return text };
    let (before, word) = text.split_at(at);
    let parted = before.ends_with([' ', '-', '_', ':']);
    if parted && word.eq_ignore_ascii_case("free") {
        before.trim_end_matches([' ', '-', '_', ':'])
    } else {
        text
    }
}

/// A key, or what a client typed, as a name: lower case, letters, digits, dots and single dashes.
pub fn slug(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.to_lowercase().chars() {
        match c {
            'a'..='z' | '0'..='9' | '.' => out.push(c),
            ' ' | '-' | '_' if !out.is_empty() && !out.ends_with('-') => out.push('-'),
            _ => {}
        }
    }
    out.truncate(out.trim_end_matches('-').len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_the_same_weights_have_one_key() {
        let check = |label: &str, expected: &str| assert_eq!(key(label), expected, "{label}");
        check("GPT-OSS 120B (free)", "gpt oss 120b");
        check("gpt_oss--120b Free", "gpt oss 120b");
        check("Kimi K2.6 (OR free) (free)", "kimi k2.6");
        check("gpt-oss-120b:free", "gpt oss 120b");
        check("Command R+", "command r+");
        check("(free)", "(free)");
        check("模型 free", "模型");
        check("Carefree", "carefree");
    }

    #[test]
    fn slugs_are_plain() {
        let check = |text: &str, expected: &str| assert_eq!(slug(text), expected, "{text}");
        check("Llama 3.3 70B", "llama-3.3-70b");
        check("--a__b--", "a-b");
        check("command r+", "command-r");
        check("模型", "");
    }
}
