//! Variables and places: the `.env` file, and which folders and files the gateway uses. Reads one file.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::spec::is_variable_name;
use super::{Issue, IssueLevel, table};

/// Variables by name. Sorted, so that everything made from them has a fixed order.
pub type Variables = BTreeMap<String, String>;

/// A `.env` file larger than this is something else.
const ENV_FILE_MAX_BYTES: u64 = 1 << 20;

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    pub root: PathBuf,
    /// Folder of provider files; the built-in ones are used where it does not exist.
    pub providers: PathBuf,
    /// Whether the folder was named by a variable, so that its absence is a fault.
    pub providers_named: bool,
    pub data: PathBuf,
    pub config: PathBuf,
    /// Files that replace those of the page; only where a variable names the folder, since any may be called `www`.
    pub www: Option<PathBuf>,
    pub env_file: PathBuf,
}

/// Finds all places from the process's own variables and the `.env` file of the root. The variables of that file may
/// name the places too; `current` is the working folder.
pub fn places(process: &Variables, current: &Path) -> Paths {
    let named = |variables: &Variables, name: &str| {
        variables.get(name).filter(|path| !path.trim().is_empty()).cloned()
    };
    let root = named(process, "FREEWAY_ROOT").map_or_else(|| current.to_owned(), |root| current.join(root));
    let env_file = root.join(".env");
    let variables = variables(process, &env_file);
    let root = named(&variables, "FREEWAY_ROOT").map_or(root, |root| current.join(root));
    let place =
        |name: &str, default: &str| root.join(named(&variables, name).unwrap_or_else(|| default.to_owned()));
    Paths {
        providers: place("FREEWAY_PROVIDERS", "providers"),
        providers_named: named(&variables, "FREEWAY_PROVIDERS").is_some(),
        data: place("FREEWAY_DATA", "data"),
        config: place("FREEWAY_CONFIG", "freeway.config.json"),
        www: named(&variables, "FREEWAY_WWW").map(|folder| root.join(folder)),
        root,
        env_file,
    }
}

/// The variables of a `.env` file, and what is odd about its lines; nothing where there is no such file.
///
/// # Errors
/// One that is there and cannot be read, as a whole or in what it says of a setting: nobody knows whom it would have kept
/// out.
pub fn read_file(env_file: &Path) -> Result<(Variables, Vec<Issue>), Issue> {
    let issue = |level, message: String| Issue { file: ".env".into(), provider: None, level, message };
    let text = read_bounded(env_file, ENV_FILE_MAX_BYTES)
        .map_err(|error| issue(IssueLevel::Error, format!("cannot be read: {error}")))?;
    let (variables, faults) = parse(&text.unwrap_or_default());
    // A provider key that is lost costs its provider; a setting that is lost may be the lock of the door.
    let is_setting = |name: &str| {
        let is_place = table::PATH_VARIABLES.iter().any(|(place, ..)| *place == name);
        is_place || table::TABLE.iter().any(|row| row.variables.contains(&name))
    };
    match faults.iter().find(|fault| fault.lost.as_deref().is_some_and(is_setting)) {
        Some(fault) => Err(issue(IssueLevel::Error, fault.text())),
        None => {
            let odd = faults.iter().map(|fault| issue(IssueLevel::Warning, fault.text()));
            Ok((variables, odd.collect()))
        }
    }
}

/// The process's variables over those of the `.env` file, as far as these can be read.
pub fn variables(process: &Variables, env_file: &Path) -> Variables {
    let text = read_bounded(env_file, ENV_FILE_MAX_BYTES).ok().flatten();
    over(process, parse(&text.unwrap_or_default()).0)
}

/// The process's variables over others: a real variable wins, an empty one too.
pub fn over(process: &Variables, mut variables: Variables) -> Variables {
    // One setting may have two names; the real one wins under either.
    for names in table::TABLE.iter().map(|row| row.variables).filter(|names| names.len() > 1) {
        if names.iter().any(|name| process.get(*name).is_some_and(|value| !value.is_empty())) {
            names.iter().for_each(|name| drop(variables.remove(*name)));
        }
    }
    variables.extend(process.iter().map(|(name, value)| (name.clone(), value.clone())));
    variables
}

/// A file's text; `None` when there is no such file.
pub fn read_bounded(path: &Path, max_bytes: u64) -> Result<Option<String>, String> {
    use std::io::Read;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        // A link is there, whatever has become of the disk that it leads to.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && path.is_symlink() => {
            return Err("is a link that leads nowhere".into());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > max_bytes {
        return Err(format!("is larger than {max_bytes} bytes"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| "is not UTF-8".into())
}

/// A line of a `.env` file that means nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    line: usize,
    /// The variable that it would have set.
    lost: Option<String>,
}

impl Fault {
    /// For people, without the value, which may be a key.
    pub fn text(&self) -> String {
        let line = self.line;
        match &self.lost {
            Some(name) => format!("line {line}: {name} has a quote that does not end"),
            None => format!("line {line}: is not NAME=value and was skipped"),
        }
    }
}

/// Reads the text of a `.env` file: `NAME=value`, an optional `export`, quotes, comments on a line of their own or after
/// a space. The second half tells which lines mean nothing.
pub fn parse(text: &str) -> (Variables, Vec<Fault>) {
    let (pairs, faults) = pairs(text);
    (pairs.into_iter().collect(), faults)
}

/// [`parse`] in the order of the text, with names that stand in it twice.
pub fn pairs(text: &str) -> (Vec<(String, String)>, Vec<Fault>) {
    let mut variables = Vec::new();
    let mut faults = Vec::new();
    for (i, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let body = line.strip_prefix("export ").map_or(line, str::trim_start);
        match body.split_once('=').map(|(name, value)| (name.trim_end(), value.trim_start())) {
            Some((name, value)) if is_variable_name(name) => match unquote(value) {
                Some(value) => variables.push((name.into(), value)),
                None => faults.push(Fault { line: i + 1, lost: Some(name.into()) }),
            },
            _ => faults.push(Fault { line: i + 1, lost: None }),
        }
    }
    (variables, faults)
}

/// The value without its quotes and without a comment behind it; `None` when a quote does not end.
fn unquote(value: &str) -> Option<String> {
    let quote = value.chars().next().filter(|c| ['"', '\''].contains(c));
    let Some(quote) = quote else {
        // A `#` counts as a comment only behind a space: keys may hold one.
        let comment =
            value.char_indices().find(|(i, c)| *c == '#' && (*i == 0 || value[..*i].ends_with([' ', '\t'])));
        return Some(value[..comment.map_or(value.len(), |(i, _)| i)].trim_end().to_owned());
    };
    let mut out = String::new();
    let mut chars = value[1..].chars();
    while let Some(c) = chars.next() {
        match c {
            _ if c == quote => return Some(out),
            '\\' if quote == '"' => match chars.next()? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                escaped @ ('"' | '\\' | '$') => out.push(escaped),
                other => out.extend(['\\', other]),
            },
            _ => out.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn env_files_as_people_write_them() {
        let text = "\u{feff}# keys\r\nA=1\r\n export B = two \n C=\"abc\" # note\nD='a # b'\nE=a#b # c\nF=\nG=\"x\\\"y\\n\"\nH=#none\nI=a=b\n";
        let (found, faults) = parse(text);
        let expected = of(&[
            ("A", "1"),
            ("B", "two"),
            ("C", "abc"),
            ("D", "a # b"),
            ("E", "a#b"),
            ("F", ""),
            ("G", "x\"y\n"),
            ("H", ""),
            ("I", "a=b"),
        ]);
        assert_eq!((found, faults), (expected, Vec::new()));
    }

    #[test]
    fn lines_that_mean_nothing_are_told_without_their_values() {
        let (found, faults) = parse("sk-secret\n1A=secret\nQ=\"secret\nGOOD=1");
        let faults: Vec<String> = faults.iter().map(Fault::text).collect();
        assert_eq!(found, of(&[("GOOD", "1")]));
        assert_eq!(faults.len(), 3);
        assert!(faults[0].starts_with("line 1:") && faults[2].starts_with("line 3: Q"), "{faults:?}");
        assert!(faults.iter().all(|fault| !fault.contains("secret")));
    }

    #[test]
    fn d_places_may_be_named_in_the_env_file() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::write(
            root.path().join(".env"),
            "FREEWAY_DATA=store\nFREEWAY_PROVIDERS=/srv/p\nFREEWAY_CONFIG=a.json\n",
        )
        .expect("written");
        let process =
            of(&[("FREEWAY_ROOT", root.path().to_str().expect("text")), ("FREEWAY_CONFIG", "b.json")]);
        let paths = places(&process, Path::new("/nowhere"));
        assert_eq!(paths.data, root.path().join("store"));
        assert_eq!((paths.providers.as_path(), paths.providers_named), (Path::new("/srv/p"), true));
        assert_eq!(paths.config, root.path().join("b.json"));
    }

    #[test]
    fn without_variables_everything_is_below_the_working_folder() {
        let root = tempfile::tempdir().expect("a folder");
        let paths = places(&Variables::new(), root.path());
        assert_eq!(paths.data, root.path().join("data"));
        assert_eq!((paths.providers, paths.providers_named), (root.path().join("providers"), false));
    }

    #[test]
    fn a_real_variable_wins_under_either_of_its_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(".env");
        std::fs::write(&file, "PORT=1\nFREEWAY_PORT=2\nHOST=h").expect("written");
        let found = variables(&of(&[("FREEWAY_PORT", "3")]), &file);
        assert_eq!(found, of(&[("FREEWAY_PORT", "3"), ("HOST", "h")]));
        let found = variables(&of(&[("PORT", "")]), &file);
        assert_eq!(found, of(&[("FREEWAY_PORT", "2"), ("HOST", "h"), ("PORT", "")]));
    }

    #[test]
    fn a_real_variable_wins() {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join(".env");
        std::fs::write(&file, "A=file\nB=file\nC=file").expect("written");
        let found = variables(&of(&[("A", "real"), ("C", "")]), &file);
        assert_eq!(found, of(&[("A", "real"), ("B", "file"), ("C", "")]));
    }

    #[test]
    fn a_file_that_is_there_and_cannot_be_read_is_no_empty_one() {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join(".env");
        assert_eq!(read_file(&file), Ok((Variables::new(), Vec::new())));
        std::fs::write(&file, b"# f\xfcr die Familie\nFREEWAY_KEYS=fw-test-key\n").expect("written");
        assert!(read_file(&file).is_err_and(|issue| issue.message == "cannot be read: is not UTF-8"));
        std::fs::write(&file, "ACME_KEY=\"cut\nB=1\n").expect("written");
        assert!(read_file(&file).is_ok_and(|(found, odd)| found.len() == 1 && odd.len() == 1));
        std::fs::write(&file, "FREEWAY_KEYS=\"cut\nB=1\n").expect("written");
        assert!(read_file(&file).is_err_and(|issue| issue.message.starts_with("line 1: FREEWAY_KEYS")));
        std::fs::remove_file(&file).expect("gone");
        std::os::unix::fs::symlink(root.path().join("unmounted"), &file).expect("made");
        assert!(read_file(&file).is_err_and(|issue| issue.message.contains("leads nowhere")));
        std::fs::remove_file(&file).expect("gone");
        std::fs::create_dir(&file).expect("made");
        assert!(read_file(&file).is_err_and(|issue| issue.level == IssueLevel::Error));
    }
}
