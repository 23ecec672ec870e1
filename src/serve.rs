//! `freeway serve`: everything composed, started in order, and stopped in order.
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::base::clock;
use crate::catalog::env::{self, Variables};
use crate::catalog::load::{self, Inputs};
use crate::catalog::pool::Fingerprints;
use crate::catalog::settings::ServerSettings;
use crate::catalog::slots::Slots;
use crate::catalog::{Issue, IssueLevel, boxfile};
use crate::cli::{command, wants_json};
use crate::demo::Demo;
use crate::http::alerts;
use crate::http::routes;
use crate::http::server::Server;
use crate::http::sock;
use crate::jobs::{self, Order};
use crate::logger;
use crate::relay::gateway::{Gateway, Parts};
use crate::relay::notes::Notes;
use crate::relay::sessions::{Sessions, SessionsOf};
use crate::rescue;
use crate::route::live::Live;
use crate::service::Manager;
use crate::store::{Extent, Opened, Store, state};
use crate::upstream::client::{Client, ClientConfig};

/// What `freeway serve --help` says.
pub const HELP: &str = "\
usage: freeway serve [--demo] [--root FOLDER] [--host ADDRESS] [--port NUMBER] [--json]

Serves OpenAI clients until it is told to stop (SIGTERM or Ctrl-C). SIGHUP reads all files again.

  --demo           two scripted providers inside the process: try everything without any key
  --root FOLDER    where .env, freeway.config.json, providers/ and data/ are (default: here)
  --host ADDRESS   the address to listen on (default 127.0.0.1)
  --port NUMBER    the port to listen on (default 8787; 0 lets the system choose)
  --json           say where it listens, or why it does not start, as JSON

examples:
  freeway serve
  freeway serve --demo
  freeway serve --root /var/lib/freeway --host 0.0.0.0

exit status: 0 stopped, 1 failed, 2 usage, 78 the configuration refuses to start";

/// The start failed for a reason that a restart does not mend, as sysexits.h numbers it.
const EXIT_CONFIG: u8 = 78;
const EXIT_FAILED: u8 = 1;
const EXIT_USAGE: u8 = 2;

/// Why a start came to nothing.
struct Refusal {
    status: u8,
    message: String,
}

impl Refusal {
    fn failed(message: impl Into<String>) -> Refusal {
        Refusal { status: EXIT_FAILED, message: message.into() }
    }

    fn config(message: impl Into<String>) -> Refusal {
        Refusal { status: EXIT_CONFIG, message: message.into() }
    }
}

/// Runs the command; the exit status.
pub fn run(args: &[OsString], mut process: Variables) -> u8 {
    let wish = match read_args(args, &mut process) {
        Ok(Some(wish)) => wish,
        Ok(None) => {
            logger::say(HELP);
            return 0;
        }
        Err(error) if wants_json(args) => {
            logger::say(&json!({"ok": false, "error": error.to_string()}).to_string());
            return EXIT_USAGE;
        }
        Err(error) => {
            logger::complain(&format!("freeway: {error}\n\n{HELP}"));
            return EXIT_USAGE;
        }
    };
    match serve(process, &wish) {
        Ok(()) => 0,
        Err(refusal) => {
            if wish.json {
                logger::say(&json!({"ok": false, "error": refusal.message}).to_string());
            } else {
                logger::complain(&format!("freeway: {}", refusal.message));
            }
            refusal.status
        }
    }
}

/// What the command line wants that no variable says.
#[derive(Debug, Default)]
struct Wish {
    demo: bool,
    json: bool,
}

/// Puts what the command line says over the variables; `None` for help.
fn read_args(args: &[OsString], process: &mut Variables) -> Result<Option<Wish>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut parser = lexopt::Parser::from_args(args);
    let mut wish = Wish::default();
    while let Some(arg) = parser.next()? {
        let variable = match arg {
            Long("demo") => {
                wish.demo = true;
                continue;
            }
            Long("json") => {
                wish.json = true;
                continue;
            }
            Long("help") | Short('h') => return Ok(None),
            Long("root") => "FREEWAY_ROOT",
            Long("host") => "FREEWAY_HOST",
            Long("port") => "FREEWAY_PORT",
            _ => return Err(arg.unexpected()),
        };
        let value = parser.value()?;
        // A slip of the command line is told as one, before anything is written.
        match variable {
            "FREEWAY_PORT" => drop(value.parse::<u16>()?),
            "FREEWAY_ROOT" if !Path::new(&value).is_dir() => {
                return Err(format!("--root {}: there is no such folder", Path::new(&value).display()).into());
            }
            _ => {}
        }
        let value = value.string()?;
        // The short names win over ours when both are set, so they must not contradict the command line.
        process.remove(variable.trim_start_matches("FREEWAY_"));
        process.insert(variable.to_owned(), value);
    }
    Ok(Some(wish))
}

fn serve(mut process: Variables, wish: &Wish) -> Result<(), Refusal> {
    sock::limit_memory();
    let manager = Manager::of(&process);
    let demo = match wish.demo {
        true => Some(Demo::start(&mut process).map_err(|error| Refusal::failed(format!("demo: {error}")))?),
        false => None,
    };
    let current = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let paths = places(&process, &current)?;
    rescue::finish_restoring(&paths.data).map_err(Refusal::failed)?;
    let Opened { store, state: saved, sessions, issues } = Store::open_or_rescue(&paths.data, &|lost| {
        rescue::rescue(&process, &paths, lost, &|| manager.restoring())
    })
    .map_err(|error| Refusal::failed(error.to_string()))?;
    let files = jobs::fingerprint(&paths);
    let (fingerprints, fingerprint_issue) = box_names(&paths.data);
    let discovered = load::read_discovered(&paths.data);
    let mut slots = Slots::default();
    let inputs = Inputs {
        paths: &paths,
        process: &process,
        fingerprints: &fingerprints,
        discovered: &discovered,
        previous: None,
    };
    let mut snapshot = load::load(&inputs, &mut slots).map_err(|issues| Refusal::config(lines(&issues)))?;
    snapshot.issues.extend(fingerprint_issue);
    if let Some(problem) = snapshot.settings.bind_problem() {
        return Err(Refusal::config(problem));
    }
    logger::start(snapshot.settings.log.level);
    logger::issues(&issues);
    logger::loaded(&snapshot);
    // What is amiss with the disk is told for as long as it is, what was got over for as long as we run.
    let mishaps = issues.into_iter().filter(|issue| issue.level == IssueLevel::Warning).collect();
    let mut live = Live::new();
    live.ledger.not_before(clock::built_s() * 1000);
    let notes = Notes::default();
    let summary = |name: &str, saved| notes.restore(name, saved);
    let useless = state::restore(&saved, kept(&mut live), summary, &mut slots, clock::now());
    store.forget(useless);
    let sessions = Sessions::restored(sessions, snapshot.settings.sessions, clock::now());
    let variables = env::variables(&process, &paths.env_file);
    let client = Client::new(ClientConfig::from_variables(&variables)).map_err(Refusal::config)?;
    let gateway = Arc::new(Gateway::new(Parts {
        current,
        process,
        fingerprints,
        slots,
        snapshot,
        live,
        notes,
        discovered,
        client,
        store,
        sessions,
        mishaps,
    }));
    logger::redact_by(&gateway);
    save_state_of(&gateway);
    reseal(&gateway);
    let outcome = listen(&gateway, files, &manager, wish);
    gateway.store.close();
    drop(demo);
    outcome
}

/// Listens, serves, and returns when told to stop.
fn listen(
    gateway: &Arc<Gateway>,
    files: jobs::Fingerprint,
    manager: &Manager,
    wish: &Wish,
) -> Result<(), Refusal> {
    let snapshot = gateway.snapshot();
    let ServerSettings { stop_ms, .. } = snapshot.settings.server;
    let address = (snapshot.settings.host.as_str(), snapshot.settings.port);
    let listener = TcpListener::bind(address)
        .map_err(|error| Refusal::failed(format!("cannot listen on {}:{}: {error}", address.0, address.1)))?;
    // Signals are taken before anybody is told that we are ready.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Refusal::failed(format!("signals cannot be watched: {error}")))?;
    // Forecasts are measured against what was used before anybody asked.
    alerts::sample(gateway);
    let keeper = routes::doorkeeper();
    let door = routes::door(Arc::clone(gateway), Arc::clone(&keeper));
    let server = Server::start(listener, &snapshot.settings.server, door)
        .map_err(|error| Refusal::failed(format!("the server cannot start: {error}")))?;
    keeper.monitor.get_or_init(|| server.monitor());
    let address = server.local_addr().map_err(|error| Refusal::failed(error.to_string()))?;
    let door = command::open(&gateway.data, address, &keeper);
    if wish.json {
        logger::say(&json!({"ok": true, "listening": format!("http://{address}")}).to_string());
    } else {
        logger::say(&format!("freeway listening on http://{address}"));
    }
    drop(snapshot);
    let orders = jobs::orders();
    watch_signals(signals, orders.sender());
    manager.ready(address);
    let watch = manager.watch(gateway, address);
    jobs::run(gateway, &orders, files, manager);
    manager.stopping();
    drop((watch, door));
    log::info!("stopping: answers in flight have {stop_ms} ms");
    gateway.turns.close();
    if !server.stop(Duration::from_millis(stop_ms)) {
        log::warn!("stopped with answers still in flight; they were cut");
    }
    Ok(())
}

/// Waits for signals on a thread of its own and passes them on as orders. The thread ends with the process.
fn watch_signals(mut signals: Signals, orders: crossbeam_channel::Sender<Order>) {
    let pass = move || {
        for signal in signals.forever() {
            let order = if signal == SIGHUP { Order::Reload } else { Order::Stop };
            if orders.send(order).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(pass)
        .expect("the operating system starts a thread at start-up");
}

/// Lets the store's writer fetch the state that it saves.
fn save_state_of(gateway: &Arc<Gateway>) {
    let shared = Arc::downgrade(gateway);
    gateway.store.save_from(Box::new(move |extent| {
        let Some(gateway) = shared.upgrade() else { return Default::default() };
        let taken = gateway
            .with_slots(|slots| state::take(kept(&mut gateway.live.lock()), slots, extent, clock::now()));
        let summaries = match extent {
            Extent::Changes => gateway.notes.take_changes(),
            Extent::Everything => gateway.notes.export(),
        };
        taken.with_summaries(summaries).into_changes()
    }));
    gateway.store.save_sessions_from(Box::new(SessionsOf(Arc::downgrade(gateway))));
}

/// The part of live state that is saved.
fn kept(live: &mut Live) -> state::Kept<'_> {
    let Live { ledger, benches, ratios, .. } = live;
    state::Kept { ledger, benches, ratios }
}

/// Where everything is. A `.env` file that cannot be read refuses before anything is made at a place that it does not
/// name.
fn places(process: &Variables, current: &Path) -> Result<env::Paths, Refusal> {
    let paths = env::places(process, current);
    env::read_file(&paths.env_file).map_err(|issue| Refusal::config(lines(&[issue])))?;
    Ok(paths)
}

/// How this box names keys; a command that runs at the same time must not make another secret for it.
fn box_names(data: &Path) -> (Fingerprints, Option<Issue>) {
    let _turn = sock::lock_folder(data);
    boxfile::fingerprints(data)
}

/// Has pasted keys sealed as the next one would be.
fn reseal(gateway: &Gateway) {
    let _turn = sock::lock_folder(&gateway.data);
    if let Err(error) = gateway.with_sealer(|sealer| sealer.reseal()) {
        log::warn!("pasted keys stay sealed as they are: {error}");
    }
}

fn lines(issues: &[Issue]) -> String {
    let line = |issue: &Issue| format!("{}: {}", issue.file, issue.message);
    issues.iter().map(line).collect::<Vec<_>>().join("\nfreeway: ")
}
