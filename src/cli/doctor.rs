//! `freeway doctor`: looks at everything around the gateway and says what is amiss, where, and what to do. It changes
//! nothing. What it makes of what it sees stands in [`super::diagnosis`].
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::{Value, json};

use super::diagnosis::{self, Finding, Private, Severity, finding};
use super::doctor_route::{self, Asked};
use super::provider::client;
use super::running::{Gateway, Running};
use super::{DONE, FAILED, Failure, World};
use crate::backup::Plan;
use crate::backup::record::Record;
use crate::base::clock;
use crate::base::text::human_duration;
use crate::catalog::env::Paths;
use crate::catalog::load::{self, Snapshot};
use crate::catalog::provider::{Auth, Provider};
use crate::catalog::slots::Slots;
use crate::catalog::{clients, overrides, vault};
use crate::http::sock;
use crate::route::health::KeyHealth;
use crate::route::live::Live;
use crate::store::{glance, state};
use crate::upstream::examine::Lab;

/// What `freeway doctor --help` says.
pub const HELP: &str = "\
usage: freeway doctor [--live] [--port N] [--json]
       freeway doctor route [MODEL] [--needs LIST] [--tokens N] [--max-tokens N] [--strategy NAME]
                            [--stream] [--all] [--port N] [--json]

  Without `route`: looks at the files, the clock, the disk, permissions, keys, models and settings, and says for each
  thing that is amiss what to do. Where a gateway runs, it is asked, too. Nothing is changed.
  With `route`: whom the next request for MODEL (default `auto`) would ask, in which order and with which score, and
  for everybody else why not, and for how long. A gateway that runs is asked; else its saved state is read.

  --live             ask every provider with each of its keys, one small request a key
  --port N           the gateway listens there, whatever the settings say
  --needs LIST       what the model has to know, such as tools,vision,json or embed; --tools and --vision for short
  --tokens N         the size of the prompt (default 500)
  --max-tokens N     the longest answer that is wanted
  --strategy NAME    priority, round-robin, least-used or fastest
  --stream           for a streamed answer
  --all              all candidates, however many
  --json             tell it as JSON

examples:
  freeway doctor
  freeway doctor --live --json | jq '.findings[] | select(.severity == \"error\")'
  freeway doctor route auto
  freeway doctor route big --tools --tokens 60000 --strategy fastest

exit status: 0 nothing grave, or somebody can be asked; 1 otherwise; 2 not understood";

/// What the words say.
#[derive(Debug, Default)]
struct Line {
    words: Vec<String>,
    live: bool,
    asked: Asked,
}

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let Some(mut line) = parse(args)? else {
        world.say(HELP);
        return Ok(DONE);
    };
    let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] if !line.asked.query.is_empty() || line.asked.all => {
            let about =
                "--all, --needs, --tokens, --max-tokens, --strategy and --stream belong to `doctor route`";
            Err(Failure::Usage(format!("doctor: {about}")))
        }
        [] => examine(&line, world),
        ["route"] | ["route", _] if line.live => {
            Err(Failure::Usage("doctor route: --live belongs to `freeway doctor`".into()))
        }
        ["route", model @ ..] if model.len() < 2 => {
            line.asked.model = model.first().map_or("auto", |model| *model).to_owned();
            doctor_route::run(&line.asked, world)
        }
        ["route", ..] => Err(Failure::Usage("doctor route: give one model, such as `auto`".into())),
        [other, ..] => {
            Err(Failure::Usage(format!("doctor: `{other}` is not known; try `freeway doctor route`")))
        }
    }
}

fn parse(args: &[OsString]) -> Result<Option<Line>, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut line = Line::default();
    let mut needs: Vec<String> = Vec::new();
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("json") => line.asked.json = true,
            Long("live") => line.live = true,
            Long("all") => line.asked.all = true,
            Long("port") => line.asked.port = Some(parser.value()?.parse()?),
            Long("needs") => needs.push(parser.value()?.string()?),
            Long("tools") => needs.push("tools".into()),
            Long("vision") => needs.push("vision".into()),
            Long("tokens") => line.asked.query.push(("tokens", parser.value()?.string()?)),
            Long("max-tokens") => line.asked.query.push(("maxTokens", parser.value()?.string()?)),
            Long("strategy") => line.asked.query.push(("strategy", parser.value()?.string()?)),
            Long("stream") => line.asked.query.push(("stream", "true".into())),
            Value(word) => line.words.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    if !needs.is_empty() {
        line.asked.query.push(("needs", needs.join(",")));
    }
    Ok(Some(line))
}

fn examine(line: &Line, world: &mut World<'_>) -> Result<u8, Failure> {
    let paths = world.paths();
    let mut slots = Slots::default();
    let mut findings = of_machine(&paths);
    let loaded = world.load_with(&paths, &mut slots);
    let runs = Running::find(&paths.data, loaded.as_ref().ok(), line.asked.port);
    match loaded {
        Err(issues) => {
            findings.extend(diagnosis::files(&issues));
            // It goes on with what was good, and tells what came of that.
            if let Running::At(gateway) = &runs {
                findings.extend(ask_gateway(gateway));
            }
        }
        Ok(snapshot) => {
            findings.extend(diagnosis::files(&snapshot.issues));
            findings.extend(diagnosis::settings(&snapshot));
            findings.extend(diagnosis::providers(&snapshot.catalog.providers));
            let discovered = load::read_discovered(&paths.data);
            findings.extend(diagnosis::stale_models(&snapshot.catalog.providers, &discovered));
            findings.extend(of_backups(&snapshot));
            match &runs {
                Running::At(gateway) => findings.extend(ask_gateway(gateway)),
                Running::Silent => findings.push(finding(
                    Severity::Error,
                    "no_answer",
                    paths.data.display().to_string(),
                    "a gateway uses this folder, and does not answer",
                    "look at its log; restart it",
                )),
                Running::No => findings.extend(of_saved_state(&paths, &snapshot, &mut slots)),
            }
            if line.live {
                findings.extend(ask_providers(&paths, &snapshot, world)?);
            }
        }
    }
    findings.extend(diagnosis::permissions(&private(&paths), !matches!(runs, Running::No)));
    let listed = std::fs::read_dir(&paths.data);
    if listed.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
        // All else that was met there comes of this.
        findings
            .retain(|finding| finding.code != "not_writable" && !finding.what.contains("Permission denied"));
        findings.push(diagnosis::closed(&paths.data));
    }
    findings.sort_by_key(|finding| finding.severity);
    // What the gateway says and what is seen here may be the same, and so may be what two keys met.
    let mut told = BTreeSet::new();
    findings.retain(|finding| told.insert((finding.place.clone(), finding.what.clone())));
    Ok(tell(&findings, &runs, line.asked.json, world))
}

fn of_machine(paths: &Paths) -> Vec<Finding> {
    // The disk that a folder will be on is that of the nearest one above it that is there.
    let there = paths.data.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let free = sock::free_bytes(there);
    let descriptors = sock::raise_descriptor_limit(u64::MAX);
    let mut findings = diagnosis::machine(descriptors, glance::has_memory_folder());
    findings.extend(diagnosis::space(&paths.data, free, glance::database_bytes(&paths.data)));
    findings.extend(diagnosis::clock(clock::now(), clock::built_s(), sock::clock_follows()));
    findings
}

fn of_backups(snapshot: &Snapshot) -> Option<Finding> {
    let (settings, paths) = (&snapshot.settings.backup, &snapshot.paths);
    let plan = Plan::new(settings, snapshot.backup_key.as_ref(), paths);
    let mut record = Record::read(&paths.data);
    if let Some(Ok(plan)) = &plan {
        record = record.of_target(&plan.target.shown());
    }
    diagnosis::backups(plan.map(|plan| plan.map(drop)), &record)
}

/// What a gateway that runs says of itself.
fn ask_gateway(gateway: &Gateway) -> Vec<Finding> {
    let address = gateway.address;
    match gateway.get("/api/alerts") {
        Ok(reply) if reply.status == 200 => diagnosis::alerts(&reply.body),
        Ok(reply) => vec![finding(
            Severity::Warning,
            "not_told",
            format!("http://{address}"),
            format!("the gateway does not say how it is: {}", reply.error()),
            "ask with the settings that it runs with, its admin key among them",
        )],
        Err(error) => vec![finding(
            Severity::Error,
            "no_answer",
            format!("http://{address}"),
            format!("the gateway does not answer: {error}"),
            "look at its log; restart it",
        )],
    }
}

/// What the last gateway of this folder left.
fn of_saved_state(paths: &Paths, snapshot: &Snapshot, slots: &mut Slots) -> Vec<Finding> {
    let saved = match glance::saved_state(&paths.data) {
        Ok(saved) => saved,
        Err(error) => {
            let todo = "`freeway serve` moves it aside if it is damaged; a backup brings back what it held";
            return vec![finding(Severity::Error, "database", "freeway.db", error, todo)];
        }
    };
    let (mut live, now) = (Live::new(), clock::now());
    let Live { ledger, benches, ratios, .. } = &mut live;
    state::restore(&saved, state::Kept { ledger, benches, ratios }, |_, _| true, slots, now);
    diagnosis::benches(snapshot, &live, now)
}

/// Everything that is to be the owner's alone, as far as it is there.
fn private(paths: &Paths) -> Vec<Private> {
    let files = ["box.key", "backup.key", vault::FILE, clients::FILE, overrides::FILE, "freeway.db"];
    let files = files.map(|name| paths.data.join(name));
    let all = [paths.data.clone(), paths.env_file.clone(), paths.config.clone()].into_iter().chain(files);
    let one = |path: std::path::PathBuf| {
        let found = std::fs::metadata(&path).ok()?;
        // Settings are no secret unless they hold one; those of the folder are.
        if path == paths.config && !holds_key(&path) {
            return None;
        }
        // Written to is the data folder alone.
        let writable = !path.starts_with(&paths.data) || may_write(&found);
        Some(Private { mode: found.permissions().mode(), is_folder: found.is_dir(), writable, path })
    };
    all.filter_map(one).collect()
}

fn holds_key(config: &Path) -> bool {
    let text = std::fs::read_to_string(config).unwrap_or_default();
    text.contains("\"adminKey\"") || text.contains("\"key\"")
}

/// Whether this user may write what belongs to somebody. `/proc/self` belongs to who we are.
fn may_write(found: &std::fs::Metadata) -> bool {
    let me = std::fs::metadata("/proc/self").map_or(0, |me| me.uid());
    me == 0 || (me == found.uid() && found.mode() & 0o200 != 0) || found.mode() & 0o002 != 0
}

/// Providers asked at once, and how long all of it may take.
const PROVIDERS_AT_ONCE: usize = 4;
const LIVE_MAX: Duration = Duration::from_secs(60);

/// Asks everybody who has a key, or needs none, whether it is let in: one request a key.
fn ask_providers(paths: &Paths, snapshot: &Snapshot, world: &World<'_>) -> Result<Vec<Finding>, Failure> {
    let client = client(paths, world)?;
    let all: Vec<&Provider> = snapshot
        .catalog
        .providers
        .iter()
        .filter(|provider| provider.enabled && provider.configured())
        .collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let ends = clock::instant() + LIVE_MAX;
    let work = || {
        while let Some(provider) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            for key in &provider.keys {
                let lab = Lab { client: &client, redactor: &snapshot.redactor, provider, key };
                let more = if clock::instant() < ends { of_key(&lab) } else { left_out(provider) };
                // A thread that failed left whole findings.
                found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(more);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..PROVIDERS_AT_ONCE.min(all.len())).for_each(|_| drop(scope.spawn(work)));
    });
    let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    // One that is away is no great matter while others serve.
    let away: BTreeSet<String> =
        found.iter().filter(|one| one.code == AWAY).map(|one| one.place.clone()).collect();
    if away.len() < all.len() {
        found.iter_mut().filter(|one| one.code == AWAY).for_each(|one| one.severity = Severity::Warning);
    }
    Ok(found)
}

/// The code of a provider that cannot be reached.
const AWAY: &str = "unreachable";

fn left_out(provider: &Provider) -> Option<Finding> {
    let what = "was not asked: the others took too long";
    Some(finding(Severity::Warning, "not_asked", &*provider.id, what, "ask again later"))
}

fn of_key(lab: &Lab<'_>) -> Option<Finding> {
    let (provider, asked) = (lab.provider, lab.ask());
    let id = &*provider.id;
    let key = if provider.auth == Auth::None { String::new() } else { format!("key {}: ", asked.masked) };
    let errors = asked.errors.join("; ");
    match asked.health {
        KeyHealth::Healthy if asked.errors.is_empty() => None,
        KeyHealth::Healthy => {
            let todo = format!("`freeway provider verify {id}`; mend modelsEndpoint or modelsPath");
            Some(finding(Severity::Warning, "model_list", id, errors, todo))
        }
        KeyHealth::Limited => {
            let what = format!("{key}over a limit just now: {errors}");
            Some(finding(Severity::Note, "limited", id, what, "wait, or add a key"))
        }
        KeyHealth::Unreachable => {
            let todo = "check the network and its baseUrl; the gateway tries again by itself";
            Some(finding(Severity::Error, AWAY, id, format!("cannot be reached: {errors}"), todo))
        }
        health => {
            let what = format!("{key}{}: {errors}", health.name());
            let todo = format!("put a valid key into {}; `freeway provider verify {id}`", asked.source);
            Some(finding(Severity::Error, "key_refused", id, what, todo))
        }
    }
}

fn tell(findings: &[Finding], runs: &Running, json: bool, world: &mut World<'_>) -> u8 {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings, notes) = (count(Severity::Error), count(Severity::Warning), count(Severity::Note));
    let status = if errors == 0 { DONE } else { FAILED };
    if json {
        let gateway = match runs {
            Running::No => Value::Null,
            Running::Silent => json!({"address": null, "uptimeSec": null, "sameFolder": true}),
            Running::At(Gateway { address, uptime_s, ours, .. }) => {
                json!({"address": address.to_string(), "uptimeSec": uptime_s, "sameFolder": ours})
            }
        };
        world.say_json(&json!({
            "ok": errors == 0,
            "gateway": gateway,
            "counts": {"error": errors, "warning": warnings, "note": notes},
            "findings": findings.iter().map(Finding::to_json).collect::<Vec<_>>(),
        }));
        return status;
    }
    match runs {
        Running::No => world.say("No gateway runs here now."),
        Running::Silent => world.say("A gateway runs here."),
        Running::At(Gateway { address, uptime_s, ours, .. }) => {
            let since = human_duration(uptime_s.saturating_mul(1_000));
            let whose = if *ours { "" } else { ", on another data folder" };
            world.say(format!("The gateway at http://{address} has been running for {since}{whose}."));
        }
    }
    for finding in findings {
        world.say(format!("\n{:<8} {}: {}", finding.severity.name(), finding.place, finding.what));
        world.say(format!("         -> {}", finding.todo));
    }
    let several = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let counts = [several(errors, "error"), several(warnings, "warning"), several(notes, "note")].join(", ");
    world.say(if findings.is_empty() { "\nAll is well.".to_owned() } else { format!("\n{counts}") });
    status
}
