//! `freeway init`: a first client key, a `.env` to fill in, and what to type into an app.
use std::ffi::OsString;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use lexopt::prelude::*;
use serde_json::json;

use super::{DONE, Failure, World, command, issue_lines};
use crate::base::clock;
use crate::base::rng::fill_random;
use crate::base::text::hex;
use crate::catalog::client_key::ClientRules;
use crate::catalog::env::Paths;
use crate::catalog::settings::{Settings, is_loopback};
use crate::catalog::{Issue, boxfile, clients, example};
use crate::http::host::MachineNames;
use crate::store::glance;

/// What `freeway init --help` says.
pub const HELP: &str = "\
usage: freeway init [--lan] [--json]

  Makes a key for your apps and a .env to put provider keys into, and says what to type into an app.
  What is there already stays as it is. Once there is a key, every app needs one, on this machine too.

  --lan   also listen for other machines of this network, and make an admin key
  --json  tell it as JSON

examples:
  freeway init
  freeway init --lan";

/// The name of the first client key.
const FIRST_CLIENT: &str = "first";

/// What says where to listen; a real one beats `.env`.
const HOST_VARIABLES: [&str; 2] = ["HOST", "FREEWAY_HOST"];

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let (mut lan, mut json) = (false, false);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("lan") => lan = true,
            Long("json") => json = true,
            Short('h') | Long("help") => {
                world.say(HELP);
                return Ok(DONE);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let paths = world.paths();
    let faults = |issues: &[Issue]| {
        Failure::Failed(format!(
            "nothing was changed, the configuration has faults:\n{}",
            issue_lines(issues)
        ))
    };
    let snapshot = world.load(&paths).map_err(|issues| faults(&issues))?;
    if snapshot.settings.keys_lost {
        return Err(faults(&clients::read(&paths.data).1));
    }
    let turn = command::turn(&paths.data);
    let done = set_up(&paths, &snapshot.settings, lan).map_err(Failure::Failed)?;
    drop(turn);
    command::read_again(&paths.data);
    tell(&done, json, world);
    let beats = |name: &&&str| world.process.get(**name).is_some_and(|host| is_loopback(host.trim()));
    if let Some(name) = HOST_VARIABLES.iter().find(beats).filter(|_| lan) {
        world.complain(format!(
            "note: the variable {name} of this shell keeps the gateway to this machine, whatever .env says; unset it where \
             the gateway runs"
        ));
    }
    Ok(DONE)
}

/// What came of it.
struct Done {
    /// Shown this once; `None` when there were keys before.
    key: Option<String>,
    admin_key: Option<String>,
    base_url: String,
    /// The same by the machine's name, for networks that find machines by name.
    name_url: Option<String>,
    /// Whether only this machine can call.
    loopback: bool,
    /// Whether it did so until now.
    opens: bool,
    /// Whether a gateway runs here already.
    running: bool,
    wrote: Vec<String>,
    env_file: String,
}

fn set_up(paths: &Paths, settings: &Settings, lan: bool) -> Result<Done, String> {
    let mut wrote = Vec::new();
    let mut lines = String::new();
    let opens = lan && is_loopback(&settings.host);
    if opens {
        lines += "FREEWAY_HOST=0.0.0.0\n";
    }
    let admin_key = (lan && settings.admin_key.is_none()).then(|| {
        let mut bytes = [0; 24];
        fill_random(&mut bytes);
        format!("fw-admin-{}", hex(&bytes))
    });
    if let Some(key) = &admin_key {
        lines += &format!("FREEWAY_ADMIN_KEY={key}\n");
    }
    if write_env(&paths.env_file, &lines)? {
        wrote.push(paths.env_file.display().to_string());
    }
    let key = if settings.keys.is_empty() {
        wrote.push(paths.data.join("clients.json").display().to_string());
        Some(clients::add(&paths.data, FIRST_CLIENT, ClientRules::default(), clock::now().wall_ms)?.0)
    } else {
        None
    };
    let loopback = !opens && is_loopback(&settings.host);
    let host = if loopback { "127.0.0.1".into() } else { own_address() };
    let url = |host: &str| format!("http://{host}:{}/v1", settings.port);
    let names = MachineNames::of_this_machine();
    let name_url = names.in_network().filter(|_| !loopback).map(url);
    let base_url = url(&host);
    Ok(Done {
        key,
        admin_key,
        base_url,
        name_url,
        loopback,
        opens,
        running: glance::is_owned(&paths.data),
        wrote,
        env_file: paths.env_file.display().to_string(),
    })
}

/// Makes `.env` if there is none, and adds lines to it. Returns whether anything was written.
fn write_env(path: &Path, lines: &str) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    // What a link leads to is changed, and the link stays.
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = match std::fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    if old.is_some() && lines.is_empty() {
        return Ok(false);
    }
    let mut text = old.unwrap_or_else(example::env_example);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if !lines.is_empty() {
        text += "\n# Set by `freeway init --lan`.\n";
        text += lines;
    }
    boxfile::write_private(&real, text.as_bytes()).map_err(failed)?;
    Ok(true)
}

/// This machine's address in its network.
fn own_address() -> String {
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let socket =
        UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect("192.0.2.1:9").map(|()| socket));
    let routed = socket.and_then(|socket| socket.local_addr()).map(|address| address.ip().to_string());
    // A network without a way out has no route there, but has addresses all the same.
    let listed =
        || std::fs::read_to_string("/proc/self/net/fib_trie").ok().and_then(|table| local_address(&table));
    routed.ok().or_else(listed).unwrap_or_else(|| "<address of this machine>".into())
}

/// The first address of this machine in the kernel's table of routes that is not loopback.
fn local_address(table: &str) -> Option<String> {
    let mut last: Option<Ipv4Addr> = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            if let Some(address) = last.filter(|address| !address.is_loopback()) {
                return Some(address.to_string());
            }
        }
    }
    None
}

fn tell(done: &Done, json: bool, world: &mut World<'_>) {
    if json {
        world.say_json(&json!({
            "ok": true,
            "baseUrl": done.base_url,
            "nameUrl": done.name_url,
            "key": done.key,
            "adminKey": done.admin_key,
            "model": "auto",
            "wrote": done.wrote,
        }));
        return;
    }
    for file in &done.wrote {
        world.say(format!("wrote {file}"));
    }
    let gap = if done.wrote.is_empty() { "" } else { "\n" };
    world.say(format!("{gap}Type this into your app (it must speak to an OpenAI-compatible server):\n"));
    world.say(format!("  base URL  {}", done.base_url));
    if let Some(url) = &done.name_url {
        world.say(format!("        or  {url}   (where your network finds machines by name)"));
    }
    match &done.key {
        Some(key) => world.say(format!("  API key   {key}   (shown this once)")),
        None => world.say("  API key   one of those you have already"),
    }
    world.say("  model     auto");
    if let Some(key) = &done.admin_key {
        world.say(format!("\nAdmin key, never for an app: {key}   (also in {})", done.env_file));
    }
    if !done.loopback {
        world.say("\nKeys and prompts cross your network unencrypted. Beyond a network that you trust, put a TLS proxy in front.");
    }
    let then = match (done.running, done.opens) {
        (false, _) => ", then run `freeway serve`.",
        (true, false) => "; the gateway that runs takes them up within seconds.",
        (true, true) => ", then restart the gateway: it listens for other machines from its next start on.",
    };
    world.say(format!("\nNext: put the provider keys you have into {}{then}", done.env_file));
}

#[cfg(test)]
mod tests {
    use super::super::testing::Site;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_first_start_gets_a_key_and_a_file_to_fill_in() {
        let site = Site::empty();
        let ran = site.run(&["init", "--json"]);
        let found = ran.json();
        let key = found["key"].as_str().expect("a key").to_owned();
        assert_eq!(
            (ran.status, found["baseUrl"].as_str(), found["adminKey"].is_null()),
            (0, Some("http://127.0.0.1:8787/v1"), true)
        );
        assert!(key.starts_with("fw-") && !site.read("data/clients.json").contains(&key));
        assert_eq!(site.read(".env"), super::example::env_example());
        let mode = std::fs::metadata(site.folder.path().join(".env")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_linked_file_is_changed_where_it_lies() {
        let site = Site::empty();
        site.write("elsewhere/env", "A=1\n");
        std::os::unix::fs::symlink(site.folder.path().join("elsewhere/env"), site.folder.path().join(".env"))
            .expect("made");
        assert_eq!(site.run(&["init", "--lan"]).status, 0);
        assert!(site.folder.path().join(".env").is_symlink());
        assert!(site.read("elsewhere/env").starts_with("A=1\n\n# Set by"));
    }

    #[test]
    fn with_client_keys_that_cannot_be_read_nothing_is_changed() {
        let site = Site::empty();
        site.write("data/clients.json", "{ cut");
        let ran = site.run(&["init", "--lan"]);
        assert!(ran.status == 1 && ran.err.contains("nothing was changed"), "{}", ran.err);
        assert!(!site.folder.path().join(".env").exists());
    }

    #[test]
    fn a_variable_that_beats_the_file_is_told() {
        let mut site = Site::empty();
        site.process.insert("HOST".into(), "127.0.0.1".into());
        let ran = site.run(&["init", "--lan"]);
        assert!(ran.status == 0 && ran.err.contains("variable HOST of this shell"), "{}", ran.err);
        assert_eq!(site.run(&["init"]).err, "");
    }

    #[test]
    fn a_second_run_changes_nothing() {
        let site = Site::empty();
        site.write(".env", "GROQ_API_KEY=test-key-1");
        site.run(&["init"]);
        let clients = site.read("data/clients.json");
        let ran = site.run(&["init"]);
        assert_eq!(
            (ran.status, site.read("data/clients.json"), site.read(".env").as_str()),
            (0, clients, "GROQ_API_KEY=test-key-1")
        );
        assert!(ran.out.contains("one of those you have already"));
    }

    #[test]
    fn lan_opens_the_gateway_with_keys() {
        let site = Site::empty();
        site.write(".env", "GROQ_API_KEY=test-key-1");
        let found = site.run(&["init", "--lan", "--json"]).json();
        assert!(
            found["nameUrl"].is_null()
                || found["nameUrl"].as_str().is_some_and(|url| url.contains(".local:"))
        );
        let admin = found["adminKey"].as_str().expect("an admin key").to_owned();
        let text = site.read(".env");
        assert!(
            text.starts_with("GROQ_API_KEY=test-key-1\n")
                && text.contains("FREEWAY_HOST=0.0.0.0\n")
                && text.contains(&admin)
        );
        assert_eq!(site.run(&["config", "check"]).status, 0);
        let again = site.run(&["init", "--lan", "--json"]).json();
        assert!(again["adminKey"].is_null() && again["key"].is_null());
        assert_eq!(site.read(".env"), text);
    }

    #[test]
    fn addresses_are_found_without_a_way_out() {
        let table = "Main:\n  +-- 0.0.0.0/1 2 0 2\n     |-- 10.77.0.0\n        /24 link UNICAST\nLocal:\n     +-- 10.77.0.0/24 2 0 2\n        |-- 127.0.0.1\n           /32 host LOCAL\n        |-- 10.77.0.1\n           /32 host LOCAL\n        |-- 10.77.0.255\n           /32 link BROADCAST\n";
        assert_eq!(super::local_address(table).as_deref(), Some("10.77.0.1"));
        assert_eq!(super::local_address(""), None);
    }

    #[test]
    fn a_bad_configuration_stays_untouched() {
        let site = Site::empty();
        site.write("freeway.config.json", "{");
        let ran = site.run(&["init"]);
        assert!(ran.status == 1 && ran.err.contains("nothing was changed"), "{}", ran.err);
        assert!(!site.folder.path().join(".env").exists());
        assert_eq!(site.run(&["init", "--wan"]).status, 2);
    }
}
