//! `freeway doctor route`: whom the next request for a model would ask, in which order, and why not the others. A gateway
//! that runs is asked; where none does, the last one's saved state is looked at.
use serde_json::{Value, json};

use super::command::Reply;
use super::running::{Gateway, Running};
use super::{DONE, FAILED, Failure, World, issue_lines};
use crate::base::clock;
use crate::base::text::{human_duration, percent_encode};
use crate::catalog::load::Snapshot;
use crate::catalog::slots::Slots;
use crate::http::outlook;
use crate::route::live::Live;
use crate::route::outlook::Question;
use crate::route::terminal;
use crate::store::{glance, state};

/// Candidates and blocked models that are shown unless all are asked for.
const SHOWN_MAX: usize = 20;

/// What is asked.
#[derive(Debug, Default)]
pub struct Asked {
    pub model: String,
    /// The same question as the API's query has it: name and value.
    pub query: Vec<(&'static str, String)>,
    pub all: bool,
    pub json: bool,
    /// Where a gateway listens that was told on its command line.
    pub port: Option<u16>,
}

/// What was found out, and from whom.
struct Told {
    source: String,
    body: Value,
}

/// Runs `freeway doctor route`.
pub fn run(asked: &Asked, world: &mut World<'_>) -> Result<u8, Failure> {
    let query = query(asked);
    // A slip is told the same way whoever is asked.
    let question =
        outlook::read(&query).map_err(|error| Failure::Usage(format!("doctor route: {}", error.message)))?;
    let paths = world.paths();
    let mut slots = Slots::default();
    let loaded = world.load_with(&paths, &mut slots);
    let told = match Running::find(&paths.data, loaded.as_ref().ok(), asked.port) {
        Running::At(gateway) => ask(&gateway, &query)?,
        Running::Silent => {
            let folder = paths.data.display();
            return Err(Failure::Failed(format!(
                "a gateway uses {folder}, and does not answer; say where with --port"
            )));
        }
        Running::No => match asked.port {
            Some(port) => return Err(Failure::Failed(format!("no gateway answers at port {port}"))),
            None => {
                let snapshot = loaded.map_err(|issues| Failure::Failed(issue_lines(&issues)))?;
                look(&question, &snapshot, &mut slots)?
            }
        },
    };
    Ok(tell(told, asked, world))
}

/// What the last gateway of this folder left says.
fn look(question: &Question, snapshot: &Snapshot, slots: &mut Slots) -> Result<Told, Failure> {
    let mut live = Live::new();
    let saved = glance::saved_state(&snapshot.paths.data).map_err(Failure::Failed)?;
    let Live { ledger, benches, ratios, .. } = &mut live;
    let kept = state::Kept { ledger, benches, ratios };
    state::restore(&saved, kept, |_, _| true, slots, clock::now());
    let understood = question.understood(&snapshot.catalog, &snapshot.names, &snapshot.settings);
    let found = understood.outlook(&snapshot.catalog, &live, clock::now());
    if found.is_unmatched() {
        let model = snapshot.redactor.redact(&question.model);
        return Err(Failure::Failed(terminal::unmatched(&found.resolution, &model).message));
    }
    let source = "no gateway runs; this is what its saved state says".to_owned();
    Ok(Told { source, body: found.to_json(&question.model, &snapshot.catalog) })
}

fn query(asked: &Asked) -> String {
    let model = ("model", asked.model.clone());
    let pairs = std::iter::once(&model).chain(&asked.query);
    pairs.map(|(name, value)| format!("{name}={}", percent_encode(value))).collect::<Vec<_>>().join("&")
}

fn ask(gateway: &Gateway, query: &str) -> Result<Told, Failure> {
    let address = gateway.address;
    let reply = gateway
        .get(&format!("/api/route?{query}"))
        .map_err(|error| Failure::Failed(format!("the gateway at {address} does not answer: {error}")))?;
    match reply {
        Reply { status: 200, body } if body["candidates"].is_array() => {
            Ok(Told { source: format!("asked the gateway at http://{address}"), body })
        }
        reply => Err(Failure::Failed(format!("the gateway at {address}: {}", reply.error()))),
    }
}

fn tell(told: Told, asked: &Asked, world: &mut World<'_>) -> u8 {
    let Told { source, mut body } = told;
    let list = |body: &Value, name: &str| body[name].as_array().cloned().unwrap_or_default();
    let (candidates, blocked) = (list(&body, "candidates"), list(&body, "blocked"));
    let status = if candidates.is_empty() { FAILED } else { DONE };
    if asked.json {
        body["ok"] = json!(status == DONE);
        body["source"] = json!(source);
        world.say_json(&body);
        return status;
    }
    world.say(format!(
        "{} means {}; order: {}; a prompt of {} tokens ({source})",
        word(&body, "model"),
        word(&body, "route"),
        word(&body, "strategy"),
        body["tokens"]
    ));
    let shown = if asked.all { usize::MAX } else { SHOWN_MAX };
    let lines = if asked.all { blocked.iter().map(blocked_line).collect() } else { grouped(&blocked) };
    let names = candidates.iter().take(shown).map(|one| word(one, "ref"));
    let names = names.chain(lines.iter().take(shown).map(|line| line.who.clone()));
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
    world.say(if candidates.is_empty() {
        "\nnobody can be asked now"
    } else {
        "\nwould be asked, in this order:"
    });
    for one in candidates.iter().take(shown) {
        world.say(candidate_line(one, width));
    }
    more(candidates.len(), shown, world);
    if !lines.is_empty() {
        world.say("\ncannot be asked now:");
    }
    for Line { who, wait, reason } in lines.iter().take(shown) {
        world.say(format!("      {who:width$}  {wait:>7}  {reason}"));
    }
    more(lines.len(), shown, world);
    status
}

fn word(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// A line about who cannot be asked.
#[derive(PartialEq)]
struct Line {
    who: String,
    wait: String,
    reason: String,
}

fn blocked_line(one: &Value) -> Line {
    let wait = one["retryAfterMs"].as_u64().map_or_else(|| "-".to_owned(), human_duration);
    Line { who: word(one, "ref"), wait, reason: word(one, "reason") }
}

/// One line for all models of a provider that are kept by the same thing.
fn grouped(blocked: &[Value]) -> Vec<Line> {
    let mut groups: Vec<(String, Line, usize)> = Vec::new();
    for one in blocked {
        let (provider, line) = (word(one, "provider"), blocked_line(one));
        let same = |group: &&mut (String, Line, usize)| {
            group.0 == provider && (&group.1.wait, &group.1.reason) == (&line.wait, &line.reason)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.2 += 1,
            None => groups.push((provider, line, 1)),
        }
    }
    let line = |(provider, line, count)| match count {
        1 => line,
        count => Line { who: format!("{provider} ({count} models)"), ..line },
    };
    groups.into_iter().map(line).collect()
}

fn candidate_line(one: &Value, width: usize) -> String {
    let number = |name: &str| one[name].as_f64();
    let reference = one["ref"].as_str().unwrap_or_default();
    let pace = number("expectedMs").map_or_else(|| "untried".to_owned(), |ms| format!("~{ms} ms"));
    let key = match one["keys"].as_u64() {
        Some(2..) => format!("  key {} of {}", one["key"], one["keys"]),
        _ => String::new(),
    };
    let shortened = if one["fits"] == "shortened" { "  shortened to fit" } else { "" };
    let last = if one["lastResort"] == true { "  last resort" } else { "" };
    format!(
        "{:>4}. {reference:width$}  score {:<8}  used {:>4.1} %  {pace}{key}{shortened}{last}",
        one["place"].as_u64().unwrap_or_default(),
        number("score").unwrap_or_default(),
        number("used").unwrap_or_default() * 100.0,
    )
}

fn more(count: usize, shown: usize, world: &mut World<'_>) {
    if count > shown {
        world.say(format!("      and {} more; --all shows them", count - shown));
    }
}
