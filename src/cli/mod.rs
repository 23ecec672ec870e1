//! The commands of the terminal, one file each. A command gets its arguments and a [`World`], writes to it, and returns
//! its exit status: 0 done, 1 failed, 2 not understood.
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::base::text::closest;
use crate::catalog::env::{self, Paths, Variables};
use crate::catalog::load::{self, Inputs, Snapshot};
use crate::catalog::slots::Slots;
use crate::catalog::{Issue, boxfile};

pub mod backup;
pub mod clients;
pub mod command;
pub mod config;
pub mod diagnosis;
pub mod doctor;
pub mod doctor_route;
pub mod health;
pub mod init;
pub mod keys;
pub mod provider;
pub mod restore;
pub mod running;
pub mod systemd;
pub mod verify;
pub mod verify_apply;

/// Exit statuses: it is done, it could not be done, it was not understood.
pub const DONE: u8 = 0;
pub const FAILED: u8 = 1;
pub const USAGE: u8 = 2;

/// What a command may touch, so that tests can give it a world of their own.
pub struct World<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
    /// The process's variables.
    pub process: Variables,
    /// The working folder.
    pub current: PathBuf,
}

impl World<'_> {
    /// Writes to standard output. A reader that went away is no fault of the command.
    pub fn say(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.out, "{}", text.as_ref());
    }

    /// Writes JSON to standard output.
    pub fn say_json(&mut self, value: &Value) {
        let text = serde_json::to_string_pretty(value).unwrap_or_default();
        self.say(text);
    }

    /// Writes to standard error.
    pub fn complain(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.err, "{}", text.as_ref());
    }

    /// Where everything is, by the variables and `.env`.
    pub fn paths(&self) -> Paths {
        env::places(&self.process, &self.current)
    }

    /// Everything configured, read without leaving a trace.
    pub fn load(&self, paths: &Paths) -> Result<Snapshot, Vec<Issue>> {
        self.load_with(paths, &mut Slots::default())
    }

    /// The same, for who has to know what saved state is kept under.
    pub fn load_with(&self, paths: &Paths, slots: &mut Slots) -> Result<Snapshot, Vec<Issue>> {
        let inputs = Inputs {
            paths,
            process: &self.process,
            fingerprints: &boxfile::fingerprints_if_any(&paths.data),
            discovered: &load::read_discovered(&paths.data),
            previous: None,
        };
        load::load(&inputs, slots)
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The arguments mean nothing.
    Usage(String),
    Failed(String),
}

impl From<lexopt::Error> for Failure {
    fn from(error: lexopt::Error) -> Failure {
        Failure::Usage(error.to_string())
    }
}

/// What `freeway --help` says.
const HELP: &str = "\
Freeway stacks the free tiers of many LLM providers behind one OpenAI-compatible endpoint.

usage: freeway COMMAND [ARGUMENTS]

  serve      serve OpenAI clients; with --demo without any key
  init       make a first client key and say what to type into an app
  clients    make, list and revoke the keys that apps present
  keys       import, export and list the keys of providers
  config     check the settings, the provider files and the variables
  provider   list, add, verify and refresh providers
  doctor     find what is amiss and say what to do; tell whom a request would ask
  backup     back up what cannot be rebuilt, sealed, to a folder or a server
  restore    put a backup back
  health     ask the running gateway whether it is alive
  systemd    print a unit that runs it as a service
  version    say which version this is

`freeway COMMAND --help` tells more, with examples. What a program may want to read comes as JSON with --json.

examples:
  freeway serve --demo
  freeway doctor
  freeway doctor --json | jq .ok

exit status: 0 done, 1 failed, 2 not understood";

/// Runs any command but `serve`; its exit status.
pub fn main(command: &OsStr, args: &[OsString], world: &mut World<'_>) -> u8 {
    let command = command.to_string_lossy();
    match &*command {
        "help" | "--help" | "-h" if wants_json(args) => {
            let all = commands().map(|(name, text)| json!({"name": name, "text": text}));
            world.say_json(&json!({"commands": all.collect::<Vec<_>>()}));
            DONE
        }
        "help" | "--help" | "-h" => {
            world.say(HELP);
            DONE
        }
        "version" | "--version" | "-V" => finish(VERSION_HELP, args, version(args, world), world),
        // It may stand before the command too.
        "--json" => {
            let mut rest: Vec<OsString> = args.iter().filter(|arg| *arg != "--json").cloned().collect();
            let command = if rest.is_empty() { OsString::new() } else { rest.remove(0) };
            rest.push("--json".into());
            main(&command, &rest, world)
        }
        "" if wants_json(args) => {
            world.say_json(
                &json!({"ok": false, "error": "give a command; `freeway --help` lists all of them"}),
            );
            USAGE
        }
        "" => {
            world.complain(HELP);
            USAGE
        }
        other => run(other, args, world).unwrap_or_else(|| {
            let hint = closest(other, commands().map(|(name, _)| name))
                .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            if wants_json(args) {
                world
                    .say_json(&json!({"ok": false, "error": format!("there is no command `{other}`{hint}")}));
            } else {
                world.complain(format!(
                    "freeway: there is no command `{other}`{hint}\n`freeway --help` lists all of them"
                ));
            }
            USAGE
        }),
    }
}

/// Every command with what it does, as the help has them.
fn commands() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows =
        HELP.lines().take_while(|line| !line.starts_with('`')).filter_map(|line| line.strip_prefix("  "));
    rows.filter_map(|row| row.split_once("  ")).map(|(name, text)| (name, text.trim()))
}

/// What `freeway version --help` says.
const VERSION_HELP: &str = "\
usage: freeway version [--json]

  Says which version this is.

examples:
  freeway version
  freeway version --json";

fn version(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut json = false;
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Long("json") => json = true,
            lexopt::Arg::Short('h') | lexopt::Arg::Long("help") => {
                world.say(VERSION_HELP);
                return Ok(DONE);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    if json {
        world.say_json(&json!({"name": "freeway", "version": version}));
    } else {
        world.say(format!("freeway {version}"));
    }
    Ok(DONE)
}

/// Runs a command of this module. `None` when the word is not one of them.
pub fn run(command: &str, args: &[OsString], world: &mut World<'_>) -> Option<u8> {
    let (help, result) = match command {
        "init" => (init::HELP, init::run(args, world)),
        "clients" | "client" => (clients::HELP, clients::run(args, world)),
        "config" => (config::HELP, config::run(args, world)),
        "keys" | "key" => (keys::HELP, keys::run(args, world)),
        "provider" | "providers" => (provider::HELP, provider::run(args, world)),
        "doctor" => (doctor::HELP, doctor::run(args, world)),
        "backup" => (backup::HELP, backup::run(args, world)),
        "restore" => (restore::HELP, restore::run(args, world)),
        "health" => (health::HELP, health::run(args, world)),
        "systemd" => (systemd::HELP, systemd::run(args, world)),
        _ => return None,
    };
    Some(finish(help, args, result, world))
}

/// Tells a failure, as JSON where JSON was asked for, and gives the exit status.
fn finish(help: &str, args: &[OsString], result: Result<u8, Failure>, world: &mut World<'_>) -> u8 {
    let (status, message) = match result {
        Ok(status) => return status,
        Err(Failure::Failed(message)) => (FAILED, message),
        Err(Failure::Usage(message)) => (USAGE, message),
    };
    if wants_json(args) {
        world.say_json(&json!({"ok": false, "error": message}));
    } else {
        world.complain(format!("freeway: {message}"));
        if status == USAGE {
            // The first paragraph holds the usage lines.
            world.complain(help.split("\n\n").next().unwrap_or_default());
        }
    }
    status
}

/// Whether `--json` stands anywhere among the arguments, also when the rest means nothing.
pub fn wants_json(args: &[OsString]) -> bool {
    args.iter().any(|arg| arg == "--json")
}

/// An issue for people: level, file, message.
pub fn issue_line(issue: &Issue) -> String {
    format!("{}: {}: {}", issue.level.name(), issue.file, issue.message)
}

/// An issue for programs, as the API has it.
pub fn issue_json(issue: &Issue) -> Value {
    json!({
        "file": issue.file,
        "providerId": issue.provider,
        "level": issue.level.name(),
        "message": issue.message,
    })
}

/// The text of all issues, one a line.
pub fn issue_lines(issues: &[Issue]) -> String {
    issues.iter().map(issue_line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
pub mod testing {
    //! A world in a temporary folder, and an upstream on loopback.
    use std::io::{BufRead, BufReader, Read};
    use std::net::TcpListener;

    use super::*;

    /// What an upstream was asked.
    pub struct Request {
        pub path: String,
        /// Behind `Bearer `.
        pub key: String,
        pub body: Value,
    }

    /// A server that answers each request by a function: status, header lines, body. It ends with the process.
    pub struct Upstream {
        port: u16,
    }

    impl Upstream {
        pub fn start(answer: impl Fn(Request) -> (u16, String, String) + Send + 'static) -> Upstream {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("an address").port();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    // A client that hangs up early is the client's own affair.
                    let _ = serve_one(stream, &answer);
                }
            });
            Upstream { port }
        }

        /// A provider file for it, with one model.
        pub fn file(&self, id: &str) -> String {
            let port = self.port;
            format!(
                r#"{{"id": "{id}", "baseUrl": "http://127.0.0.1:{port}/v1", "auth": {{"envKeys": ["ACME_KEY"]}}, "models": [{{"id": "known"}}]}}"#
            )
        }
    }

    fn serve_one(
        stream: std::net::TcpStream,
        answer: &dyn Fn(Request) -> (u16, String, String),
    ) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line == "\r\n" {
                break;
            }
            head.push(line.trim_end().to_owned());
        }
        let header = |name: &str| {
            let line = head.iter().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")));
            line.map(|line| line[name.len() + 2..].to_owned()).unwrap_or_default()
        };
        let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        let key = header("authorization").trim_start_matches("Bearer ").to_owned();
        let (status, headers, text) =
            answer(Request { path, key, body: serde_json::from_slice(&body).unwrap_or_default() });
        let length = text.len();
        write!(
            reader.get_mut(),
            "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{text}"
        )
    }

    pub struct Site {
        pub folder: tempfile::TempDir,
        pub process: Variables,
    }

    /// What a command did.
    pub struct Ran {
        pub status: u8,
        pub out: String,
        pub err: String,
    }

    impl Ran {
        pub fn json(&self) -> Value {
            serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
        }
    }

    impl Site {
        pub fn empty() -> Site {
            Site { folder: tempfile::tempdir().expect("a folder"), process: Variables::new() }
        }

        pub fn run(&self, line: &[&str]) -> Ran {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let args: Vec<OsString> = line[1..].iter().map(OsString::from).collect();
            let mut world = World {
                out: &mut out,
                err: &mut err,
                process: self.process.clone(),
                current: self.folder.path().to_owned(),
            };
            let status = run(line[0], &args, &mut world).expect("a known command");
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
            Ran { status, out: text(out), err: text(err) }
        }

        pub fn write(&self, name: &str, text: &str) {
            let path = self.folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }

        pub fn read(&self, name: &str) -> String {
            std::fs::read_to_string(self.folder.path().join(name)).expect(name)
        }
    }
}
