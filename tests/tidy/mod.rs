//! House rules that a machine can hold: layers, sizes, bans, and the map at the top of `src/lib.rs`.
//! Each check lists all offenders with file and line, so that one run shows the whole work.
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function, its signature included.
const FUNCTION_LINES_MAX: usize = 70;

/// The layers from the bottom up; a module imports from its own layer and those below. The map in `src/lib.rs` says
/// which module is in which.
const LAYERS: [&str; 6] = ["words", "things", "judgement", "hands", "story", "doors"];

/// A piece of text that shipped code may hold only in its homes.
struct Ban {
    text: &'static str,
    instead: &'static str,
    /// Files, or folders when they end in a slash, below `src/`.
    homes: &'static [&'static str],
}

const BANS: &[Ban] = &[
    // Socket deadlines are measured where the sockets are; everything else is handed `base::clock::Now`.
    Ban {
        text: "Instant::now",
        instead: "take `now: Now`, or call base::clock",
        homes: &["base/clock.rs", "http/", "upstream/"],
    },
    // The answers' `date` header needs the standard library's own type.
    Ban {
        text: "SystemTime::now",
        instead: "take `now: Now`, or call base::clock",
        homes: &["base/clock.rs", "http/answer.rs"],
    },
    // The accept loop backs off when the machine has no descriptor left; a reader lets a dripped head collect.
    Ban {
        text: "thread::sleep",
        instead: "wait on a channel or a socket with a deadline",
        homes: &["http/conn.rs", "http/server.rs"],
    },
    Ban { text: ".unwrap()", instead: "`?`, or `expect` with the reason why it holds", homes: &[] },
    Ban { text: "println!", instead: "the log", homes: &["cli/", "main.rs"] },
    Ban { text: "print!", instead: "the log", homes: &["cli/", "main.rs"] },
    Ban { text: "dbg!", instead: "nothing", homes: &[] },
    Ban { text: "todo!", instead: "the code", homes: &[] },
    Ban { text: "unimplemented!", instead: "the code", homes: &[] },
    Ban { text: "allow(dead_code)", instead: "delete it", homes: &[] },
];

/// The only file that may hold `unsafe`.
const UNSAFE_HOME: &str = "http/sock.rs";

/// Marks of unfinished work, put together here so that this file does not hold them.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One Rust file of the repository.
struct Source {
    /// Below the folder that was asked for, with forward slashes.
    name: String,
    text: String,
    /// Without comments, strings and tests.
    code: String,
    /// Whether the file as a whole is compiled for tests only.
    is_test: bool,
}

impl Source {
    fn stem(&self) -> &str {
        self.name.strip_suffix(".rs").unwrap_or(&self.name)
    }
}

/// All Rust files below a folder of the repository, by name.
fn sources(folder: &str) -> Vec<Source> {
    let root = top().join(folder);
    let mut open = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            let path = entry.expect("a folder can be listed").path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(read(&root, path));
            }
        }
    }
    assert!(!found.is_empty(), "no Rust file below {folder}");
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let tests: BTreeSet<String> = found.iter().flat_map(test_modules).collect();
    for source in &mut found {
        let mut above = Path::new(source.stem()).ancestors();
        source.is_test = above.any(|path| tests.contains(&*path.to_string_lossy()));
    }
    found
}

/// The modules that a file declares with `#[cfg(test)]`, as paths without `.rs`.
fn test_modules(source: &Source) -> Vec<String> {
    let code = text::code_only(&source.text);
    let folder = match source.stem().rsplit_once('/') {
        Some((folder, "mod")) => format!("{folder}/"),
        None if matches!(source.stem(), "lib" | "main") => String::new(),
        _ => format!("{}/", source.stem()),
    };
    text::test_items(&code)
        .into_iter()
        .filter_map(|item| {
            code[item].strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| format!("{folder}{name}"))
        })
        .collect()
}

fn read(root: &Path, path: PathBuf) -> Source {
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let name = path.strip_prefix(root).expect("found below the root").to_string_lossy().into_owned();
    let code = text::without_tests(&text::code_only(&text));
    Source { name, text, code, is_test: false }
}

/// What ships: the gateway's files without those that are tests as a whole.
fn shipped() -> impl Iterator<Item = Source> {
    sources("src").into_iter().filter(|source| !source.is_test)
}

/// Fails with all offenders at once.
fn none(rule: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{rule}:\n  {}\n", offenders.join("\n  "));
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    let files = ["src", "mock/src", "tests"].into_iter().flat_map(|folder| {
        sources(folder).into_iter().map(move |source| (format!("{folder}/{}", source.name), source.text))
    });
    none(
        "a file opens with a `//!` sentence",
        files.filter(|(_, text)| !text.starts_with("//! ")).map(|(name, _)| name).collect(),
    );
}

#[test]
fn files_and_functions_stay_short() {
    let mut offenders = Vec::new();
    for source in ["src", "mock/src"].into_iter().flat_map(sources).filter(|source| !source.is_test) {
        let lines = shipped_lines(&source);
        if lines > FILE_LINES_MAX {
            offenders.push(format!("{}: {lines} lines", source.name));
        }
        for function in text::functions(&source.code).iter().filter(|f| f.lines > FUNCTION_LINES_MAX) {
            offenders.push(format!(
                "{}:{}: fn {} has {} lines",
                source.name, function.line, function.name, function.lines
            ));
        }
    }
    none(&format!("files to {FILE_LINES_MAX} lines, functions to {FUNCTION_LINES_MAX}"), offenders);
}

/// Lines of a file less those of its tests. Comments count: they are read, too.
fn shipped_lines(source: &Source) -> usize {
    let code = text::code_only(&source.text);
    let of_tests = text::test_items(&code)
        .into_iter()
        .map(|item| text::line_of(&code, item.end) - text::line_of(&code, item.start) + 1);
    source.text.lines().count() - of_tests.sum::<usize>()
}

#[test]
fn banned_calls_stay_in_their_homes() {
    let mut offenders = Vec::new();
    for source in shipped() {
        for ban in BANS.iter().filter(|ban| !at_home(&source.name, ban.homes)) {
            for (at, _) in source.code.match_indices(ban.text) {
                // `print!` is also the end of `eprint!`, which is meant; `.unwrap()` and the others stand alone.
                let line = text::line_of(&source.code, at);
                offenders.push(format!("{}:{line}: `{}`; use {}", source.name, ban.text, ban.instead));
            }
        }
    }
    none("banned outside of its home", offenders);
}

fn at_home(name: &str, homes: &[&str]) -> bool {
    homes.iter().any(|home| if home.ends_with('/') { name.starts_with(home) } else { name == *home })
}

#[test]
fn unsafe_stands_in_one_file() {
    let mut offenders = Vec::new();
    for source in sources("src").into_iter().filter(|source| source.name != UNSAFE_HOME) {
        // Tests are held to it as well, so this looks at all code of the file.
        let code = text::code_only(&source.text);
        for (at, _) in text::words(&code).filter(|(_, word)| matches!(*word, "unsafe" | "unsafe_code")) {
            offenders.push(format!("{}:{}", source.name, text::line_of(&code, at)));
        }
    }
    let manifest = fs::read_to_string(top().join("Cargo.toml")).expect("the manifest is there");
    assert!(manifest.contains("unsafe_code = \"deny\""), "Cargo.toml must deny unsafe code");
    none(&format!("`unsafe` is for src/{UNSAFE_HOME} alone"), offenders);
}

#[test]
fn nothing_is_left_unfinished_or_switched_off() {
    let mut offenders = Vec::new();
    for folder in ["src", "mock/src", "tests"] {
        for source in sources(folder) {
            for (number, line) in source.text.lines().enumerate() {
                let marked = UNFINISHED.iter().any(|mark| text::words(line).any(|(_, word)| word == *mark));
                if marked || line.trim_start().starts_with("#[ignore") {
                    offenders.push(format!("{folder}/{}:{}: {}", source.name, number + 1, line.trim()));
                }
            }
        }
    }
    none("finished, and no test switched off", offenders);
}

/// One row of the map in `src/lib.rs`.
struct Row {
    layer: String,
    module: String,
    /// The files of its folder but `mod.rs`; empty for a module of one file.
    files: Vec<String>,
}

/// Reads the map: the table rows below its heading in the opening comment, `| layer | module | files | what |`. An empty first cell
/// repeats the layer above.
fn map() -> Vec<Row> {
    let lib = fs::read_to_string(top().join("src/lib.rs")).expect("src/lib.rs is there");
    let mut rows: Vec<Row> = Vec::new();
    let rows_below = lib.lines().skip_while(|line| !line.starts_with("//! # The map"));
    for line in rows_below.filter_map(|line| line.strip_prefix("//! |")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [layer, module, files, ..] = cells[..] else { continue };
        let Some(module) = quoted_names(module).pop() else { continue };
        let layer = match (layer, rows.last()) {
            ("", Some(above)) => above.layer.clone(),
            _ => layer.to_owned(),
        };
        rows.push(Row { layer, module, files: quoted_names(files) });
    }
    rows
}

/// What stands between backticks.
fn quoted_names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_map_names_every_module_and_no_other() {
    let mut on_disk: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in shipped().filter(|source| !matches!(source.name.as_str(), "lib.rs" | "main.rs")) {
        let (module, file) = source.stem().split_once('/').unwrap_or((source.stem(), "mod"));
        let files = on_disk.entry(module.to_owned()).or_default();
        if file != "mod" {
            files.insert(file.strip_suffix("/mod").unwrap_or(file).to_owned());
        }
    }
    let mapped: BTreeMap<String, BTreeSet<String>> =
        map().into_iter().map(|row| (row.module, row.files.into_iter().collect())).collect();
    let mut offenders = Vec::new();
    for module in on_disk.keys().chain(mapped.keys()).collect::<BTreeSet<_>>() {
        let Some(there) = on_disk.get(module) else {
            offenders.push(format!("`{module}` is on the map, but not there"));
            continue;
        };
        if mapped.get(module) != Some(there) {
            // As the row must have it, to be copied.
            let cell: Vec<String> = there.iter().map(|file| format!("`{file}`")).collect();
            offenders
                .push(format!("the row of `{module}` is missing or has other files: | {} |", cell.join(" ")));
        }
    }
    none("the map in src/lib.rs", offenders);
}

#[test]
fn the_way_of_a_request_names_files_that_exist() {
    let lib = fs::read_to_string(top().join("src/lib.rs")).expect("src/lib.rs is there");
    let way = lib.lines().take_while(|line| !line.starts_with("//! # The map"));
    let first_cells =
        way.filter_map(|line| line.strip_prefix("//! | [")?.split('|').next().map(str::to_owned));
    let named: Vec<String> = first_cells.flat_map(|cell| quoted_names(&format!("[{cell}"))).collect();
    for story in ["enters", "admitted", "routed", "called", "answered"] {
        assert!(lib.contains(&format!("**{story}**")), "a newcomer looks for where a request is {story}");
    }
    assert!(named.len() >= 8, "the way has its steps: {named:?}");
    let missing =
        named.into_iter().filter(|name| !top().join(format!("src/{}.rs", name.replace("::", "/"))).is_file());
    none("the way of a request in src/lib.rs names a file", missing.collect());
}

#[test]
fn modules_import_only_downward() {
    let rank: BTreeMap<String, usize> = map()
        .into_iter()
        .map(|row| {
            let rank = LAYERS.iter().position(|layer| *layer == row.layer);
            (
                row.module.clone(),
                rank.unwrap_or_else(|| panic!("{}: no such layer: {}", row.module, row.layer)),
            )
        })
        .collect();
    let mut offenders = Vec::new();
    let mut uses: BTreeSet<(String, String)> = BTreeSet::new();
    for source in shipped() {
        let module = source.stem().split('/').next().expect("a name has a first part");
        let Some(own) = rank.get(module) else { continue };
        for (at, used) in text::crate_modules(&source.code) {
            let Some(theirs) = rank.get(&used) else { continue };
            if theirs > own {
                let line = text::line_of(&source.code, at);
                offenders.push(format!("{}:{line}: `{module}` must not know `{used}`", source.name));
            } else if used != module {
                uses.insert((module.to_owned(), used));
            }
        }
    }
    // Modules of one layer may use each other, but not in a circle.
    let both_ways = uses.iter().filter(|(a, b)| a < b && uses.contains(&(b.clone(), a.clone())));
    offenders.extend(both_ways.map(|(a, b)| format!("`{a}` and `{b}` use each other")));
    none("a module imports only downward", offenders);
}

#[test]
fn every_file_is_compiled() {
    let all = sources("src");
    let code: BTreeMap<&str, String> =
        all.iter().map(|source| (source.stem(), text::code_only(&source.text))).collect();
    let mut offenders = Vec::new();
    for stem in code.keys().filter(|stem| !matches!(**stem, "lib" | "main")) {
        let own = stem.strip_suffix("/mod").unwrap_or(stem);
        let (folder, name) = own.rsplit_once('/').unwrap_or(("", own));
        let parents = if folder.is_empty() {
            vec!["lib".to_owned(), "main".to_owned()]
        } else {
            vec![format!("{folder}/mod"), folder.to_owned()]
        };
        let line = format!("mod {name};");
        if !parents.iter().filter_map(|parent| code.get(parent.as_str())).any(|code| code.contains(&line)) {
            offenders.push(format!("{stem}.rs: nobody says `{line}`"));
        }
    }
    none("a file that nobody compiles", offenders);
}

#[test]
fn the_readme_names_only_commands_that_exist() {
    let readme = fs::read_to_string(top().join("README.md")).expect("README.md is there");
    let makefile = fs::read_to_string(top().join("Makefile")).expect("Makefile is there");
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| line.contains("## "))
        .filter_map(|line| line.split_once(':'))
        .map(|(target, _)| target)
        .collect();
    let named: Vec<&str> = readme
        .split("make ")
        .skip(1)
        .zip(readme.match_indices("make "))
        .filter(|(_, (at, _))| readme[..*at].ends_with(['`', '\n']))
        .map(|(rest, _)| rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or_default())
        .collect();
    assert!(named.contains(&"demo") && named.contains(&"test"), "the README shows how to try and test it");
    none(
        "`make` targets of the README that are not in the Makefile",
        named.into_iter().filter(|name| !targets.contains(name)).map(str::to_owned).collect(),
    );
}

#[test]
fn the_documents_point_only_at_files_that_exist() {
    let mut offenders = Vec::new();
    for document in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "tests/bench/README.md",
        "docs/SECURITY.md",
        "docs/API.md",
        "docs/OPERATING.md",
        "docs/ADDING-A-PROVIDER.md",
    ] {
        let text =
            fs::read_to_string(top().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"));
        let folders = ["src/", "tests/", "providers/", "docs/", "mock/"];
        let quoted =
            quoted_names(&text).into_iter().filter(|name| folders.iter().any(|f| name.starts_with(f)));
        let linked = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        let linked = linked.map(|(link, _)| link.split('#').next().unwrap_or_default().to_owned());
        for name in quoted.chain(linked).filter(|name| !name.contains("://") && !name.contains('*')) {
            let near = top().join(document).with_file_name(&name);
            if !top().join(&name).exists() && !near.exists() {
                offenders.push(format!("{document}: {name}"));
            }
        }
    }
    none("a document points at what is not there", offenders);
}

#[test]
fn the_guide_to_providers_names_only_fields_that_exist() {
    let guide = fs::read_to_string(top().join("docs/ADDING-A-PROVIDER.md")).expect("the guide is there");
    let schema = fs::read_to_string(top().join("providers/_schema.json")).expect("the schema is there");
    // Names that the guide makes up for its examples.
    let made_up = ["x-team", "seed", "safe_prompt", "temperature", "out of neurons", "home", "work"];
    let mut fields: Vec<&str> = guide
        .split('"')
        .zip(guide.split('"').skip(1))
        .filter(|(_, after)| after.starts_with(':'))
        .map(|(name, _)| name)
        .collect();
    fields.sort_unstable();
    fields.dedup();
    assert!(fields.len() > 25, "the guide has examples of most fields: {fields:?}");
    let unknown: Vec<&&str> = fields
        .iter()
        .filter(|name| !made_up.contains(name) && !schema.contains(&format!("\"{name}\":")))
        .collect();
    assert!(unknown.is_empty(), "fields of the guide that the schema does not know: {unknown:?}");
}

/// The page of settings is made from the table in the code. After a change there, run this test with
/// `FREEWAY_WRITE_DOCS=1` in the environment, and commit the page.
#[test]
fn the_page_of_settings_is_the_table() {
    let page = top().join("docs/settings.md");
    let expected = format!("{SETTINGS_INTRO}\n{}", freeway::catalog::table::markdown());
    if std::env::var_os("FREEWAY_WRITE_DOCS").is_some() {
        fs::write(&page, &expected).expect("docs can be written");
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    assert!(found == expected, "docs/settings.md differs from src/catalog/table.rs");
}

const SETTINGS_INTRO: &str = "\
# Settings

They live in `freeway.config.json`, which takes comments and trailing commas. A dot in a name is a level: `server.workers`
is `{\"server\": {\"workers\": 64}}`. A variable wins over the file, a real one over one in `.env`. An unknown name is a
warning with a suggestion; a wrong type or value stops the start and says where. `freeway config check` tells both.
";

/// A route that nobody can read about is there for nobody.
#[test]
fn the_page_of_routes_names_all() {
    let page = fs::read_to_string(top().join("docs/API.md")).expect("docs/API.md is there");
    let table = fs::read_to_string(top().join("src/http/routes.rs")).expect("the routes are there");
    let starts = ["anybody(\"", "client(\"", "owner(\""];
    let paths: Vec<&str> = starts
        .iter()
        .flat_map(|start| table.split(start).skip(1))
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(paths.len() > 30, "they are found: {paths:?}");
    // A `*` takes what stands in braces, under whatever name.
    let names = |path: &str| {
        let mut parts = path.split('*');
        let start = parts.next().unwrap_or_default();
        let end = parts.next().unwrap_or_default();
        page.split('`').any(|quoted| {
            let named = quoted.rsplit(' ').next().unwrap_or_default();
            let plain = named.split('?').next().unwrap_or_default();
            plain == path || path.contains('*') && quoted.contains(start) && quoted.ends_with(end)
        })
    };
    none(
        "docs/API.md names the route",
        paths.into_iter().filter(|path| !names(path)).map(str::to_owned).collect(),
    );
}

/// Whoever meets a reason in `/readyz` finds it in the guide.
#[test]
fn the_operating_guide_explains_every_reason() {
    let guide = fs::read_to_string(top().join("docs/OPERATING.md")).expect("docs/OPERATING.md is there");
    let read =
        |name: &str| fs::read_to_string(top().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (views, store) = (read("src/http/views.rs"), read("src/store/mod.rs"));
    let pushed =
        views.split("reasons.push(\"").skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
    let codes =
        store.split("const fn code(").nth(1).and_then(|rest| rest.split('}').next()).expect("the codes");
    let troubles = codes.split('"').skip(1).step_by(2);
    let reasons: Vec<&str> = pushed.chain(troubles).collect();
    assert!(reasons.len() >= 10, "they are found: {reasons:?}");
    let missing = reasons.into_iter().filter(|reason| !guide.contains(&format!("| `{reason}` |")));
    none("docs/OPERATING.md explains the reason", missing.map(str::to_owned).collect());
}
