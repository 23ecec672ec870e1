//! `.env.example`, made from the bundled provider files and the table of settings, so that it cannot go stale. Pure.
use serde_json::Value;

use super::address::variable_names;
use super::bundled;
use super::table::{PATH_VARIABLES, TABLE};

/// The text of `.env.example`.
pub fn env_example() -> String {
    let mut out = String::from(
        "# The variables that `.env` may set: fill in whatever you have, nothing here is required. It is read again within\n\
         # seconds, but a variable of the real environment wins. Made by `freeway config example`.\n\n\
         # ---- Provider keys: several in one variable are separated by commas; NAME_2, NAME_3, ... are read too ----\n",
    );
    let mut files: Vec<Value> =
        bundled::files().iter().filter_map(|file| serde_json::from_str(&file.text).ok()).collect();
    let priority = |file: &Value| file["priority"].as_f64().unwrap_or(50.0);
    files.sort_by(|a, b| {
        priority(a).total_cmp(&priority(b)).then_with(|| a["id"].as_str().cmp(&b["id"].as_str()))
    });
    for file in &files {
        add_provider(&mut out, file);
    }
    out += "\n# ---- The gateway ----\n";
    for row in TABLE.iter().filter(|row| row.used) {
        if let Some(name) = row.variables.iter().find(|name| name.starts_with("FREEWAY_")) {
            let default = serde_json::from_str::<Value>(row.default).unwrap_or_default();
            let shown = match &default {
                Value::String(text) => text.clone(),
                Value::Null | Value::Array(_) => String::new(),
                other => other.to_string(),
            };
            out += &format!("# {}\n#{name}={shown}\n", row.text);
        }
    }
    out += "\n# ---- Places ----\n";
    for (name, default, text) in PATH_VARIABLES {
        out += &format!("# {text}\n#{name}={default}\n");
    }
    out
}

fn add_provider(out: &mut String, file: &Value) {
    let text = |name: &str| file[name].as_str().unwrap_or_default();
    let mut names: Vec<String> = variable_names(text("baseUrl"));
    let keys = file["auth"]["envKeys"].as_array().into_iter().flatten().filter_map(Value::as_str);
    // `NAME_2` is read without being named.
    names.extend(keys.filter(|name| !name.ends_with("_2")).map(str::to_owned));
    if names.is_empty() {
        return;
    }
    let place = [text("signup"), text("console"), text("docs")].into_iter().find(|link| !link.is_empty());
    *out += &format!("\n# {}: {}\n", text("label"), place.unwrap_or_default());
    if file["enabled"] == false {
        *out += "# Switched off in its file; read the notes there first.\n";
    }
    for name in names {
        *out += &format!("#{name}=\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::env;

    #[test]
    fn the_file_in_the_repository_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/.env.example");
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == env_example(), "run `cargo run -- config example > .env.example`");
    }

    #[test]
    fn copied_as_it_is_it_sets_nothing_and_uncommented_it_is_a_good_env_file() {
        let (variables, faults) = env::parse(&env_example());
        assert!(variables.is_empty() && faults.is_empty(), "{variables:?} {faults:?}");
        let uncommented: String = env_example()
            .lines()
            .filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')))
            .map(|line| format!("{line}\n"))
            .collect();
        let (variables, faults) = env::parse(&uncommented);
        assert!(faults.is_empty(), "{faults:?}");
        for name in [
            "MISTRAL_API_KEY",
            "CLOUDFLARE_ACCOUNT_ID",
            "OLLAMA_HOST",
            "FREEWAY_KEYS",
            "FREEWAY_DATA",
            "FREEWAY_PORT",
        ] {
            assert!(variables.contains_key(name), "{name}");
        }
    }
}
