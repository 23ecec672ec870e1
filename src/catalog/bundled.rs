//! The provider files that are built into the program, packed: they are read at a start and when a file changes.
use crate::base::packed::{Packed, packed};

/// One built-in file.
pub struct Bundled {
    /// Its name, under which a file of the owner's folder replaces it.
    pub file: String,
    pub text: String,
}

/// Of each file its name, a line feed, its text and a zero byte.
static FILES: Packed = packed!("providers/all");

/// All built-in files, by id.
pub fn files() -> Vec<Bundled> {
    let all = FILES.text();
    let files = all.split_terminator('\0').filter_map(|file| file.split_once('\n'));
    files.map(|(file, text)| Bundled { file: file.into(), text: text.into() }).collect()
}

/// The machine-readable contract of the format.
pub static SCHEMA: Packed = packed!("providers/_schema.json");

#[cfg(test)]
pub mod tests {
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::{Map, Value, json};

    use super::*;
    use crate::catalog::config;
    use crate::catalog::fields::{Fields, Findings};
    use crate::catalog::pool::Fingerprints;
    use crate::catalog::provider::{Billing, LimitsScope, Provider};
    use crate::catalog::settings::Settings;
    use crate::catalog::slots::Slots;
    use crate::catalog::spec::{self, Context};

    fn schema() -> Value {
        serde_json::from_str(&SCHEMA.text()).expect("the schema is plain JSON")
    }

    /// Just enough of JSON Schema for our own; an unknown word fails, so that the schema cannot outgrow its test.
    fn faults(root: &Value, schema: &Value, value: &Value, at: &str, out: &mut Vec<String>) {
        let mut fault = |holds: bool, what: String| {
            if !holds {
                out.push(format!("{at}: {what}"));
            }
        };
        let map = schema.as_object().expect("a schema is an object");
        let number = value.as_f64();
        let text = value.as_str();
        let mut inner: Vec<(String, &Value, &Value)> = Vec::new();
        for (word, rule) in map {
            match word.as_str() {
                "$schema" | "$id" | "$defs" | "title" | "description" | "default" | "patternProperties" => {}
                "$ref" => {
                    let target = rule.as_str().and_then(|path| root.pointer(path.trim_start_matches('#')));
                    inner.push((at.to_owned(), target.expect("the reference leads somewhere"), value));
                }
                "type" => {
                    let names = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                    fault(
                        names.iter().any(|name| is_type(name.as_str().expect("a type is a text"), value)),
                        format!("is no {rule}"),
                    );
                }
                "enum" => {
                    fault(rule.as_array().expect("a list").contains(value), format!("is none of {rule}"))
                }
                "const" => fault(rule == value, format!("is not {rule}")),
                "minimum" => fault(
                    number.is_none_or(|n| n >= rule.as_f64().expect("a number")),
                    format!("is below {rule}"),
                ),
                "maximum" => fault(
                    number.is_none_or(|n| n <= rule.as_f64().expect("a number")),
                    format!("is above {rule}"),
                ),
                "exclusiveMinimum" => fault(
                    number.is_none_or(|n| n > rule.as_f64().expect("a number")),
                    format!("is not above {rule}"),
                ),
                "minLength" => fault(
                    text.is_none_or(|t| t.len() as u64 >= rule.as_u64().expect("a number")),
                    "is too short".into(),
                ),
                "maxLength" => fault(
                    text.is_none_or(|t| t.len() as u64 <= rule.as_u64().expect("a number")),
                    "is too long".into(),
                ),
                "pattern" => fault(
                    text.is_none_or(|t| fits(rule.as_str().expect("a text"), t)),
                    format!("does not fit {rule}"),
                ),
                "uniqueItems" => {
                    let items = value.as_array().into_iter().flatten().map(Value::to_string);
                    let count = value.as_array().map_or(0, Vec::len);
                    fault(items.collect::<BTreeSet<_>>().len() == count, "holds something twice".into());
                }
                "required" => {
                    for name in rule.as_array().expect("a list").iter().filter_map(Value::as_str) {
                        fault(value.get(name).is_some(), format!("lacks {name}"));
                    }
                }
                "items" => {
                    let items = value.as_array().into_iter().flatten().enumerate();
                    inner.extend(items.map(|(i, item)| (format!("{at}[{i}]"), rule, item)));
                }
                "anyOf" => {
                    let any = rule.as_array().expect("a list").iter().any(|option| {
                        let mut found = Vec::new();
                        faults(root, option, value, at, &mut found);
                        found.is_empty()
                    });
                    fault(any, "fits none of the forms".into());
                }
                "properties" | "additionalProperties" => {}
                other => panic!("the test does not know `{other}`"),
            }
        }
        for (name, member) in
            value.as_object().into_iter().flatten().filter(|(name, _)| !name.starts_with("//"))
        {
            let at = format!("{at}.{name}");
            match (
                schema.pointer("/properties").and_then(|known| known.get(name)),
                map.get("additionalProperties"),
            ) {
                (Some(rule), _) => inner.push((at, rule, member)),
                (None, Some(Value::Bool(false))) => out.push(format!("{at}: is not in the schema")),
                (None, Some(rule)) if rule.is_object() => inner.push((at, rule, member)),
                _ => {}
            }
        }
        for (at, rule, value) in inner {
            faults(root, rule, value, &at, out);
        }
    }

    fn is_type(name: &str, value: &Value) -> bool {
        match name {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "number" => value.is_number(),
            "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
            other => panic!("the test does not know the type `{other}`"),
        }
    }

    /// The three patterns of the schema, by hand.
    fn fits(pattern: &str, text: &str) -> bool {
        match pattern {
            "^[a-z0-9][a-z0-9-]*$" => spec::is_provider_id(text),
            "^[A-Za-z_][A-Za-z0-9_]*$" => spec::is_variable_name(text),
            "^[0-9]{4}-[0-9]{2}-[0-9]{2}$" => {
                text.len() == 10
                    && text
                        .bytes()
                        .enumerate()
                        .all(|(i, b)| if [4, 7].contains(&i) { b == b'-' } else { b.is_ascii_digit() })
            }
            other => panic!("the test does not know the pattern `{other}`"),
        }
    }

    fn check(file: &Value) -> Vec<String> {
        let (schema, mut found) = (schema(), Vec::new());
        faults(&schema, &schema, file, "", &mut found);
        found
    }

    /// Reads a file with every variable set that it may name.
    fn load(file: &Bundled) -> (Provider, String) {
        let value: Value = serde_json::from_str(&file.text).expect("bundled files are plain JSON");
        let names = value["auth"]["envKeys"].as_array().cloned().unwrap_or_default();
        let mut variables: BTreeMap<String, String> = names
            .iter()
            .filter_map(Value::as_str)
            .map(|name| (name.to_owned(), format!("test-key-{name}")))
            .collect();
        for name in ["CLOUDFLARE_ACCOUNT_ID", "OLLAMA_HOST", "LM_STUDIO_HOST"] {
            variables.insert(name.into(), "http://127.0.0.1:1".into());
        }
        let (settings, fingerprints, mut slots) =
            (Settings::default(), Fingerprints::new(&[0; 32]), Slots::default());
        let mut context = Context {
            variables: &variables,
            settings: &settings,
            fingerprints: &fingerprints,
            pasted: &crate::catalog::vault::Vault::default(),
            slots: &mut slots,
        };
        let (provider, issues) = spec::read(&file.file, &file.text, &mut context);
        let issues: String = issues.iter().map(|issue| format!("{}\n", issue.message)).collect();
        (provider.unwrap_or_else(|| panic!("{}: {issues}", file.file)), issues)
    }

    /// All of them, each with its keys.
    pub fn catalog() -> crate::catalog::Catalog {
        crate::catalog::Catalog { providers: files().iter().map(|file| load(file).0).collect() }
    }

    #[test]
    fn every_bundled_file_passes_the_schema_and_loads_without_a_word() {
        for file in &files() {
            let value = serde_json::from_str(&file.text).expect("plain JSON");
            assert_eq!(check(&value), Vec::<String>::new(), "{}", file.file);
            let (provider, issues) = load(file);
            assert_eq!(issues, "", "{}", file.file);
            assert_eq!(format!("{}.json", provider.id), file.file);
            assert!(
                provider.verified_on.is_some() && provider.notes.is_some() && provider.docs.is_some(),
                "{}",
                file.file
            );
        }
    }

    #[test]
    fn every_file_of_the_folder_is_built_in() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/providers");
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .expect("the folder is there")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('_'))
            .collect();
        names.sort();
        let built_in = files();
        assert!(built_in.is_sorted_by_key(|file| file.file.trim_end_matches(".json")));
        let mut found: Vec<&str> = built_in.iter().map(|file| &*file.file).collect();
        found.sort();
        assert_eq!(names, found);
        for file in &built_in {
            let path = format!("{folder}/{}", file.file);
            assert_eq!(file.text, std::fs::read_to_string(path).expect("it can be read"), "{}", file.file);
        }
    }

    #[test]
    fn the_schema_refuses_what_the_reader_refuses() {
        let file = |changes: Value| {
            let mut file =
                json!({"id": "acme", "baseUrl": "https://x.example/v1", "auth": {"envKeys": ["K"]}});
            file.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
            file
        };
        assert_eq!(check(&file(json!({}))), Vec::<String>::new());
        for bad in [
            json!({"id": "Acme"}),
            json!({"limits": {"rpm": 0}}),
            json!({"limits": {"rpm": "3"}}),
            json!({"models": [{"label": "x"}]}),
            json!({"models": [{"id": "x", "caps": ["fly"]}]}),
            json!({"auth": {"type": "basic"}}),
            json!({"auth": {"envKeys": ["not a name"]}}),
            json!({"toolIds": "short"}),
            json!({"unknown": 1}),
            json!({"timeouts": {"idleMs": 0}}),
            json!({"terms": {"verdict": "fine"}}),
        ] {
            assert!(!check(&file(bad.clone())).is_empty(), "{bad}");
        }
    }

    #[test]
    fn schema_and_reader_know_the_same_fields() {
        let schema = schema();
        let names = |pointer: &str| -> BTreeSet<String> {
            let properties = schema.pointer(pointer).and_then(Value::as_object).expect(pointer);
            properties.keys().filter(|name| *name != "$schema").cloned().collect()
        };
        let (settings, fingerprints, mut slots) =
            (Settings::default(), Fingerprints::new(&[0; 32]), Slots::default());
        let mut context = Context {
            variables: &BTreeMap::new(),
            settings: &settings,
            fingerprints: &fingerprints,
            pasted: &crate::catalog::vault::Vault::default(),
            slots: &mut slots,
        };
        let file: Map<String, Value> = match json!({"id": "acme", "baseUrl": "https://x.example/v1", "auth": {"type": "none"}})
        {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        let findings = RefCell::new(Findings::new("x"));
        let fields = Fields::new(&file, String::new(), &findings);
        spec::read_fields(&fields, &mut context);
        let asked: BTreeSet<String> = fields.asked().into_iter().map(str::to_owned).collect();
        assert_eq!(asked, names("/properties"));
        // Objects inside: every property of the schema is known, so none of them draws a warning.
        for (member, pointer) in [
            ("auth", "/properties/auth/properties"),
            ("terms", "/properties/terms/properties"),
            ("paths", "/properties/paths/properties"),
            ("timeouts", "/properties/timeouts/properties"),
            ("limits", "/$defs/limits/properties"),
            ("models", "/$defs/model/properties"),
        ] {
            let object: Map<String, Value> =
                names(pointer).into_iter().map(|name| (name, Value::Null)).collect();
            let mut file = file.clone();
            let object = Value::Object(object);
            file.insert(member.into(), if member == "models" { json!([object]) } else { object });
            let (_, issues) = spec::read("x", &Value::Object(file).to_string(), &mut context);
            assert!(
                issues.iter().all(|issue| !issue.message.contains("unknown field")),
                "{member}: {issues:?}"
            );
        }
    }

    #[test]
    fn facts_that_must_not_get_lost() {
        let all: BTreeMap<String, Provider> = files()
            .iter()
            .map(|file| load(file).0)
            .map(|provider| (provider.id.to_string(), provider))
            .collect();
        for id in [
            "mistral",
            "groq",
            "cerebras",
            "cloudflare",
            "google-ai",
            "openrouter",
            "github-models",
            "together",
            "huggingface",
            "nvidia-nim",
            "scaleway",
            "ollama",
            "deepseek",
            "lm-studio",
            "opencode-zen",
        ] {
            assert!(all.contains_key(id), "{id}");
        }
        assert_eq!(all["mistral"].models.len(), 33);
        assert_eq!(all["cloudflare"].limits_scope, LimitsScope::Account);
        assert!(all["cloudflare"].models_endpoint.is_none());
        for (id, provider) in &all {
            // What needs no key belongs to nobody in particular: it is switched off, or on this very network.
            let open = provider.keys.iter().all(|key| key.secret.expose().is_empty())
                || ["llm7", "ovh", "pollinations"].contains(&id.as_str());
            assert!(!open || provider.last_resort || !provider.enabled, "{id}");
            assert_eq!(provider.billing == Billing::Paid, id == "deepseek", "{id}");
            assert!(
                provider.terms.as_ref().is_none_or(|terms| terms.verdict != "avoid" || !provider.enabled),
                "{id}"
            );
        }
    }

    #[test]
    fn the_bundled_aliases_cover_what_the_readme_names() {
        let aliases: BTreeSet<String> =
            files().iter().flat_map(|file| load(file).0.models).flat_map(|model| model.aliases).collect();
        for alias in ["fast", "cheap", "big", "code", "smart", "reason", "vision", "embed"] {
            assert!(aliases.contains(alias), "{alias}");
        }
        assert!(config::read("x", "{}", &BTreeMap::new()).is_ok());
    }
}
