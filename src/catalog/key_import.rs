//! Reads provider keys out of a text that somebody has: a `.env` file, JSON with or without comments, CSV. What it finds
//! is shown first and chosen from; nothing is stored here. Pure.
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::check::is_visible;
use super::key_names::{KeyNames, stem};
use super::vault::{KEY_MAX, NewKey};
use super::{env, json as file_json, key_export};
use crate::base::text::{Secret, truncate};

/// Longest text that is read, in bytes.
pub const TEXT_MAX: usize = 1 << 20;
/// Most entries of one text.
const ENTRIES_MAX: usize = 500;
/// Deepest nesting of JSON that is followed.
const DEPTH_MAX: usize = 6;
/// Longest label or address that is kept of an entry, in bytes.
const SHOWN_MAX: usize = 100;

/// The form of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Env,
    Json,
    Csv,
}

impl Format {
    /// Every form with its name in the API and on the command line.
    pub const NAMES: [(&'static str, Format); 3] =
        [("env", Format::Env), ("json", Format::Json), ("csv", Format::Csv)];

    /// The form of this name.
    pub fn by_name(name: &str) -> Option<Format> {
        Format::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Format::NAMES.iter().find(|(_, known)| *known == self).map_or("env", |(name, _)| name)
    }

    /// The form that a text seems to have.
    pub fn of(text: &str) -> Format {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let first =
            text.lines().find(|line| !line.trim().is_empty() && !line.starts_with('#')).unwrap_or_default();
        match text.chars().next() {
            Some('{' | '[') => Format::Json,
            Some('/') => Format::Json,
            _ if first.contains(',') && !first.split(',').next().unwrap_or_default().contains('=') => {
                Format::Csv
            }
            _ => Format::Env,
        }
    }
}

/// What was found in a text.
#[derive(Debug)]
pub struct Preview {
    pub format: Format,
    pub entries: Vec<Entry>,
    /// What could not be read, without any value.
    pub faults: Vec<String>,
}

/// One key of the text, or what may be one.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The variable, or whatever the text calls it.
    pub name: Option<String>,
    pub provider: Option<String>,
    pub secret: Secret,
    pub label: Option<String>,
    pub base_url: Option<String>,
    pub state: State,
    pub note: Option<String>,
}

/// Whether an entry is worth adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    New,
    /// The gateway has it already.
    Known,
    /// It stands in the text before.
    Duplicate,
    /// Nobody knows whose key it is.
    Unknown,
    /// It cannot be a key.
    Invalid,
}

impl State {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            State::New => "new",
            State::Known => "known",
            State::Duplicate => "duplicate",
            State::Unknown => "unknown",
            State::Invalid => "invalid",
        }
    }
}

/// Something that a text gives as a key, before it is judged.
#[derive(Clone, Debug, Default)]
struct Raw {
    name: Option<String>,
    /// As the text says it.
    provider: Option<String>,
    value: String,
    label: Option<String>,
    base_url: Option<String>,
}

/// Finds the keys of a text. `known` tells of a provider's key whether the gateway has it.
pub fn read(
    text: &str,
    format: Option<Format>,
    names: &KeyNames,
    known: &dyn Fn(&str, &str) -> bool,
) -> Preview {
    let format = format.unwrap_or_else(|| Format::of(text));
    let mut faults = Vec::new();
    let mut raws = match format {
        Format::Env => of_env(text, &mut faults),
        Format::Json => of_json(text, &mut faults),
        Format::Csv => of_csv(text, &mut faults),
    };
    if raws.len() > ENTRIES_MAX {
        faults.push(format!("there are more than {ENTRIES_MAX} entries; the rest is left out"));
        raws.truncate(ENTRIES_MAX);
    }
    let mut entries: Vec<Entry> = Vec::with_capacity(raws.len());
    for raw in raws {
        let mut entry = judge(raw, names);
        if let (State::New, Some(provider)) = (entry.state, &entry.provider) {
            let same = |other: &&Entry| other.provider == entry.provider && other.secret == entry.secret;
            if let Some(first) = entries.iter().find(same) {
                entry.note =
                    Some(format!("stands before as {}", first.name.as_deref().unwrap_or("the same key")));
                entry.state = State::Duplicate;
            } else if known(provider, entry.secret.expose()) {
                entry.state = State::Known;
            }
        }
        entries.push(entry);
    }
    Preview { format, entries, faults }
}

/// Which entries of a preview are to be added.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Places in the preview; `None` for all that are new.
    pub select: Option<Vec<usize>>,
    /// Providers for entries whose own nobody knows, or that were guessed wrong.
    pub providers: BTreeMap<usize, String>,
}

/// What a choice comes to.
#[derive(Debug, Default)]
pub struct Chosen {
    pub keys: Vec<(usize, NewKey)>,
    /// Entries that were chosen and cannot be added, each with the reason.
    pub skipped: Vec<(usize, String)>,
}

impl Preview {
    /// Finds out what to add. `takes_keys` tells of a provider's id whether it is there and wants keys.
    pub fn choose(&self, choice: &Choice, takes_keys: &dyn Fn(&str) -> bool) -> Chosen {
        let new = || (0..self.entries.len()).filter(|at| self.entries[*at].state == State::New).collect();
        let mut chosen = Chosen::default();
        for at in choice.select.clone().unwrap_or_else(new) {
            match self.pick(at, choice.providers.get(&at), takes_keys) {
                Ok(key) => chosen.keys.push((at, key)),
                Err(reason) => chosen.skipped.push((at, reason)),
            }
        }
        chosen
    }

    fn pick(
        &self,
        at: usize,
        named: Option<&String>,
        takes_keys: &dyn Fn(&str) -> bool,
    ) -> Result<NewKey, String> {
        let entry = self.entries.get(at).ok_or("there is no such entry")?;
        match entry.state {
            State::Invalid => return Err(entry.note.clone().unwrap_or_else(|| "it is no key".into())),
            State::Known if named.is_none() => return Err("the gateway has it already".into()),
            State::Duplicate if named.is_none() => return Err("it stands in the text before".into()),
            _ => {}
        }
        let provider = named.or(entry.provider.as_ref()).ok_or("name the provider that it belongs to")?;
        if !takes_keys(provider) {
            return Err(format!("there is no provider `{}` that takes keys", truncate(provider, SHOWN_MAX)));
        }
        Ok(NewKey { provider: provider.clone(), secret: entry.secret.clone(), label: entry.label.clone() })
    }

    /// As the API and the terminal have it; keys are masked.
    pub fn to_json(&self) -> Value {
        let entries: Vec<Value> =
            self.entries.iter().enumerate().map(|(at, entry)| entry.to_json(at)).collect();
        json!({
            "ok": true,
            "format": self.format.name(),
            "preview": true,
            "entries": entries,
            "faults": self.faults,
            "counts": self.counts(),
        })
    }

    /// How many entries there are of each state.
    pub fn counts(&self) -> Value {
        let count = |state: State| self.entries.iter().filter(|entry| entry.state == state).count();
        let states = [State::New, State::Known, State::Duplicate, State::Unknown, State::Invalid];
        states
            .map(|state| (state.name().to_owned(), count(state).into()))
            .into_iter()
            .collect::<Map<_, _>>()
            .into()
    }
}

impl Entry {
    fn to_json(&self, at: usize) -> Value {
        json!({
            "index": at,
            "name": self.name,
            "provider": self.provider,
            "masked": self.secret.masked(),
            "label": self.label,
            "baseUrl": self.base_url,
            "state": self.state.name(),
            "note": self.note,
        })
    }
}

/// What stands in examples where a key belongs.
const PLACEHOLDERS: [&str; 9] =
    ["your-", "your_", "-here", "_here", "xxxx", "changeme", "placeholder", "example", "<"];

fn judge(raw: Raw, names: &KeyNames) -> Entry {
    let by_name =
        [&raw.provider, &raw.name, &raw.label].into_iter().find_map(|name| names.provider(name.as_deref()?));
    let by_shape = || names.provider_by_shape(&raw.value);
    let (provider, note) = match by_name {
        Some(provider) => (Some(provider), None),
        // A setting is no key, however it looks.
        None if raw.name.as_deref().is_some_and(|name| names.is_other(name)) => {
            (None, Some("a setting and no provider key; put it into .env".to_owned()))
        }
        None => match by_shape() {
            Some(provider) => (Some(provider), Some("guessed from how the key begins".to_owned())),
            None => (None, Some(unknown(&raw))),
        },
    };
    let lower = raw.value.to_ascii_lowercase();
    let placeholder = PLACEHOLDERS.iter().any(|word| lower.contains(word));
    let (state, note) = match provider {
        _ if !is_visible(&raw.value) => {
            (State::Invalid, Some("holds a space or a character that no header can carry".to_owned()))
        }
        _ if raw.value.len() > KEY_MAX => (State::Invalid, Some("is too long for a key".to_owned())),
        Some(_) if placeholder => (State::Invalid, Some("looks like a placeholder".to_owned())),
        Some(_) => (State::New, note),
        None => (State::Unknown, note),
    };
    Entry {
        name: raw.name,
        provider,
        secret: Secret::new(raw.value),
        label: raw.label.map(|label| truncate(&label, SHOWN_MAX).to_owned()),
        base_url: raw.base_url.map(|url| truncate(&url, SHOWN_MAX).to_owned()),
        state,
        note,
    }
}

/// What to do with a key that nobody knows the provider of.
fn unknown(raw: &Raw) -> String {
    let known = "no provider is known by this name; name one, or make a provider file";
    let Some(url) = raw.base_url.as_deref() else { return known.to_owned() };
    let name = raw.provider.as_deref().or(raw.name.as_deref()).unwrap_or("my-provider");
    let id = stem(name).to_ascii_lowercase().replace(['_', ' ', '.'], "-");
    format!(
        "no provider is known by this name; make it first: freeway provider new {id} --url {}",
        truncate(url, SHOWN_MAX)
    )
}

/// A value that may be a pool: several keys, separated by commas.
fn pool(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|key| !key.is_empty())
}

/// The end of a variable that holds the address that its neighbours go to.
pub(super) const ADDRESS_END: &str = "_BASE_URL";

const MODELS_END: &str = "_MODELS";

fn of_env(text: &str, faults: &mut Vec<String>) -> Vec<Raw> {
    let (pairs, found) = env::pairs(text);
    faults.extend(found.iter().map(env::Fault::text));
    let addresses: BTreeMap<&str, &str> = pairs
        .iter()
        .filter_map(|(name, value)| Some((name.strip_suffix(ADDRESS_END)?, value.as_str())))
        .collect();
    let mut raws = Vec::new();
    for (name, value) in &pairs {
        // Lists of models stand beside addresses, and hold commas as pools do.
        if name.ends_with(ADDRESS_END) || name.ends_with(MODELS_END) {
            continue;
        }
        let stem =
            addresses.keys().find(|stem| name.strip_prefix(**stem).is_some_and(|rest| rest.starts_with('_')));
        let base_url = stem.and_then(|stem| addresses.get(stem)).map(|url| (*url).to_owned());
        for key in pool(value) {
            let (name, value) = (Some(name.clone()), key.to_owned());
            raws.push(Raw { name, value, base_url: base_url.clone(), ..Raw::default() });
        }
    }
    raws
}

fn of_json(text: &str, faults: &mut Vec<String>) -> Vec<Raw> {
    let mut raws = Vec::new();
    match file_json::parse(text) {
        Ok(value) => gather(&value, None, 0, &mut raws),
        Err(error) => faults.push(error),
    }
    if raws.is_empty() && faults.is_empty() {
        faults.push("there is no key in this JSON".into());
    }
    raws
}

const KEY_MEMBERS: [&str; 7] = ["key", "apiKey", "api_key", "token", "access_token", "secret", "value"];
const PROVIDER_MEMBERS: [&str; 3] = ["provider", "platform", "service"];
const LABEL_MEMBERS: [&str; 3] = ["label", "name", "note"];
const ADDRESS_MEMBERS: [&str; 3] = ["baseUrl", "base_url", "baseURL"];

/// Collects keys: objects that hold one, and names that map to one or to a list of them.
fn gather(value: &Value, name: Option<&str>, depth: usize, raws: &mut Vec<Raw>) {
    if depth > DEPTH_MAX || raws.len() > ENTRIES_MAX {
        return;
    }
    match value {
        Value::String(text) => {
            for key in pool(text) {
                raws.push(Raw { name: name.map(str::to_owned), value: key.to_owned(), ..Raw::default() });
            }
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, name, depth + 1, raws)),
        Value::Object(map) => match text_member(map, &KEY_MEMBERS) {
            Some(key) => raws.push(Raw {
                name: name.map(str::to_owned),
                provider: text_member(map, &PROVIDER_MEMBERS).map(str::to_owned),
                value: key.trim().to_owned(),
                label: text_member(map, &LABEL_MEMBERS).map(str::to_owned),
                base_url: text_member(map, &ADDRESS_MEMBERS).map(str::to_owned),
            }),
            None => {
                // What only wraps the keys says nothing about whose they are, and what stands beside it are no keys.
                let wrapped = |(member, inner): &(&String, &Value)| {
                    depth == 0 && is_wrapper(member) && !inner.is_string()
                };
                if map.iter().any(|pair| wrapped(&pair)) {
                    map.iter().filter(wrapped).for_each(|(_, inner)| gather(inner, None, depth + 1, raws));
                } else {
                    map.iter().for_each(|(member, inner)| gather(inner, Some(member), depth + 1, raws));
                }
            }
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_wrapper(member: &str) -> bool {
    ["keys", "credentials", "providers", "credential_pool", "env", "accounts"].contains(&member)
}

fn text_member<'m>(map: &'m Map<String, Value>, names: &[&str]) -> Option<&'m str> {
    names.iter().find_map(|name| map.get(*name)?.as_str()).filter(|text| !text.trim().is_empty())
}

fn of_csv(text: &str, faults: &mut Vec<String>) -> Vec<Raw> {
    let rows = csv_rows(text.trim_start_matches('\u{feff}'));
    let mut rows = rows.iter().filter(|row| row.iter().any(|cell| !cell.trim().is_empty())).peekable();
    let place = |row: &Vec<String>, names: &[&str]| {
        row.iter().position(|cell| names.iter().any(|name| cell.trim().eq_ignore_ascii_case(name)))
    };
    let titles =
        rows.peek().and_then(|row| Some((place(row, &PROVIDER_MEMBERS)?, place(row, &KEY_MEMBERS)?, *row)));
    // Without titles it is `provider,key,label`.
    let (provider_at, key_at, label_at, url_at) = match titles {
        Some((provider_at, key_at, row)) => {
            rows.next();
            (provider_at, key_at, place(row, &LABEL_MEMBERS), place(row, &ADDRESS_MEMBERS))
        }
        None => (0, 1, Some(2), Some(3)),
    };
    let mut raws = Vec::new();
    for (i, row) in rows.enumerate() {
        let cell = |at: usize| row.get(at).map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty());
        let Some(value) = cell(key_at) else {
            faults.push(format!("row {}: has no key", i + 1));
            continue;
        };
        // Our own export marks labels that a spreadsheet would take for formulas.
        let label = label_at.and_then(cell).map(|label| key_export::as_it_was(&label).to_owned());
        raws.push(Raw {
            name: None,
            provider: cell(provider_at),
            value,
            label,
            base_url: url_at.and_then(cell),
        });
    }
    raws
}

/// Rows of RFC 4180: cells may be quoted, and hold commas, quotes (doubled) and line ends then.
fn csv_rows(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell) = (Vec::new(), Vec::new(), String::new());
    let mut quoted = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if cell.trim().is_empty() => {
                cell.clear();
                quoted = true;
            }
            ',' if !quoted => row.push(std::mem::take(&mut cell)),
            '\r' if !quoted => {}
            '\n' if !quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            _ => cell.push(c),
        }
    }
    row.push(cell);
    rows.push(row);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::key_names::tests::names;

    fn found(text: &str) -> Vec<(String, String, &'static str)> {
        let known = |_: &str, key: &str| key == "gsk_known0123456789";
        let preview = read(text, None, &names(), &known);
        let entry = |entry: &Entry| {
            let provider = entry.provider.clone().unwrap_or_default();
            (provider, entry.secret.expose().to_owned(), entry.state.name())
        };
        preview.entries.iter().map(entry).collect()
    }

    fn check(text: &str, expected: &[(&str, &str, &str)]) {
        let got = found(text);
        let got: Vec<_> = got.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), *c)).collect();
        assert_eq!(got, expected, "{text}");
    }

    #[test]
    fn fl_40_env_files_as_people_have_them() {
        check(
            "\u{feff}# mine\r\nexport GROQ_API_KEY=\"gsk_a0123456789\" # note\r\nGROQ_API_KEY_2='gsk_b0123456789'\r\n\
             GEMINI_KEY=AIzaone0123456789, AIzatwo0123456789\r\nGROQ_TOKEN=gsk_a0123456789\r\nGROQ_API_KEY=gsk_known0123456789\r\n",
            &[
                ("groq", "gsk_a0123456789", "new"),
                ("groq", "gsk_b0123456789", "new"),
                ("google-ai", "AIzaone0123456789", "new"),
                ("google-ai", "AIzatwo0123456789", "new"),
                ("groq", "gsk_a0123456789", "duplicate"),
                ("groq", "gsk_known0123456789", "known"),
            ],
        );
    }

    #[test]
    fn fl_40_what_is_no_key_of_a_known_provider_is_shown() {
        let text = "PORT=8787\nMY_THING=gsk_shape0123456789\nACME_KEY=some-key-1\nGROQ_API_KEY=your-key-here\n\
                    CLOUDFLARE_ACCOUNT_ID=0123456789abcdef\nGROQ_KEY=two words\nNOISE\n";
        check(
            text,
            &[
                ("", "8787", "unknown"),
                ("groq", "gsk_shape0123456789", "new"),
                ("", "some-key-1", "unknown"),
                ("groq", "your-key-here", "invalid"),
                ("", "0123456789abcdef", "unknown"),
                ("groq", "two words", "invalid"),
            ],
        );
        let preview = read(text, None, &names(), &|_, _| false);
        assert_eq!(preview.faults.len(), 1);
        assert!(preview.entries[4].note.as_deref().is_some_and(|note| note.contains(".env")));
    }

    #[test]
    fn fl_40_addresses_stay_with_their_keys() {
        let preview = read(
            "CUSTOM_1_BASE_URL=https://c.example/v1\nCUSTOM_1_KEY=k-1\nCUSTOM_1_MODELS=a,b-TOOLS\nGROQ_KEY=gsk_1",
            None,
            &names(),
            &|_, _| false,
        );
        let entries: Vec<_> =
            preview.entries.iter().map(|entry| (entry.name.as_deref(), entry.base_url.as_deref())).collect();
        assert_eq!(entries, [(Some("CUSTOM_1_KEY"), Some("https://c.example/v1")), (Some("GROQ_KEY"), None)]);
    }

    #[test]
    fn json_in_many_shapes() {
        let a = ("groq", "gsk_a0123456789", "new");
        check(
            r#"{"version": 1, "keys": [{"provider": "groq", "key": "gsk_a0123456789", "label": "x"}]}"#,
            &[a],
        );
        check(r#"{"keys": [{"platform": "groq", "key": "gsk_a0123456789"}]} // from elsewhere"#, &[a]);
        check(r#"{"GROQ_API_KEY": "gsk_a0123456789", "n": 1,}"#, &[a]);
        check(
            r#"{"groq": ["gsk_a0123456789", {"api_key": "gsk_b0123456789"}]}"#,
            &[a, ("groq", "gsk_b0123456789", "new")],
        );
        check(r#"{"credential_pool": {"groq": [{"access_token": "gsk_a0123456789"}]}}"#, &[a]);
        check(r#"["gsk_a0123456789", "who-knows"]"#, &[a, ("", "who-knows", "unknown")]);
        assert_eq!(read("{", None, &names(), &|_, _| false).faults.len(), 1);
        assert_eq!(read("{}", None, &names(), &|_, _| false).faults.len(), 1);
        assert!(found(&format!("{}{}", "[".repeat(100), "]".repeat(100))).is_empty());
    }

    #[test]
    fn csv_with_and_without_titles() {
        let a = ("groq", "gsk_a0123456789", "new");
        check("platform,key,label,base_url\r\ngroq,gsk_a0123456789,\"mine, and \"\"yours\"\"\"\r\n", &[a]);
        check("groq,gsk_a0123456789\n", &[a]);
        check("key;provider\n", &[("", "key;provider", "unknown")][..0]);
        let text = "provider,key,label\ngroq,gsk_a0123456789,'=1+1\ngroq,,none\n";
        let preview = read(text, None, &names(), &|_, _| false);
        assert_eq!((preview.format, preview.entries[0].label.as_deref()), (Format::Csv, Some("=1+1")));
        assert_eq!(preview.faults, ["row 2: has no key"]);
    }

    #[test]
    fn what_is_chosen_is_added_and_the_rest_is_told() {
        let text = "GROQ_KEY=gsk_a1\nGROQ_KEY_2=gsk_a1\nACME_KEY=k1\nHF_TOKEN=hf_known\nGROQ_KEY_3=sp ace";
        let preview = read(text, None, &names(), &|_, key| key == "hf_known");
        let takes_keys = |provider: &str| provider == "groq" || provider == "acme";
        let choose = |select: Option<&[usize]>, providers: &[(usize, &str)]| {
            let providers = providers.iter().map(|(at, provider)| (*at, (*provider).to_owned())).collect();
            let chosen =
                preview.choose(&Choice { select: select.map(<[_]>::to_vec), providers }, &takes_keys);
            let keys = chosen.keys.into_iter().map(|(at, key)| (at, key.provider)).collect::<Vec<_>>();
            (keys, chosen.skipped.into_iter().map(|(at, _)| at).collect::<Vec<_>>())
        };
        assert_eq!(choose(None, &[]), (vec![(0, "groq".into())], vec![]));
        assert_eq!(choose(Some(&[0, 1, 2, 3, 4, 9]), &[]), (vec![(0, "groq".into())], vec![1, 2, 3, 4, 9]));
        assert_eq!(choose(Some(&[2]), &[(2, "acme")]), (vec![(2, "acme".into())], vec![]));
        assert_eq!(choose(Some(&[2]), &[(2, "nobody")]), (vec![], vec![2]));
        let shown = preview.to_json().to_string();
        assert!(!shown.contains("hf_known") && preview.counts()["known"] == 1, "{shown}");
    }

    #[test]
    fn entries_are_bounded() {
        let text: String = (0..2 * ENTRIES_MAX).map(|n| format!("GROQ_KEY_{n}=gsk_{n}\n")).collect();
        let preview = read(&text, None, &names(), &|_, _| false);
        assert_eq!((preview.entries.len(), preview.faults.len()), (ENTRIES_MAX, 1));
    }
}
