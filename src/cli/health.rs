//! `freeway health`: whether the gateway of this folder answers. For health checks of containers and monitors, which
//! often have no HTTP client of their own.
use std::ffi::OsString;

use lexopt::prelude::*;
use serde_json::json;

use super::{DONE, FAILED, Failure, World, issue_lines, running};
use crate::service;

/// What `freeway health --help` says.
pub const HELP: &str = "\
usage: freeway health [--json]

  Asks the gateway of this data folder whether it is alive: GET /healthz where it listens; where none uses the folder,
  at the host and port of the settings.
  Whether it can serve is another question; GET /readyz answers it.

examples:
  freeway health
  freeway health --json

exit status: 0 it answers, 1 it does not";

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut json = false;
    while let Some(arg) = parser.next()? {
        match arg {
            Long("json") => json = true,
            Short('h') | Long("help") => {
                world.say(HELP);
                return Ok(DONE);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let paths = world.paths();
    let address = match running::owner_of(&paths.data) {
        // The settings may say what counts from the next start on, or nothing that makes sense.
        Some(address) => address,
        None => {
            let loaded = world.load(&paths).map_err(|issues| Failure::Failed(issue_lines(&issues)))?;
            running::address(&loaded.settings, None)?
        }
    };
    let result = service::probe(address);
    match (&result, json) {
        (Ok(()), true) => world.say_json(&json!({"ok": true, "address": address.to_string()})),
        (Ok(()), false) => world.say(format!("the gateway at {address} is alive")),
        (Err(problem), true) => {
            world.say_json(&json!({"ok": false, "address": address.to_string(), "error": problem}));
        }
        (Err(problem), false) => world.complain(format!("freeway: {problem}")),
    }
    Ok(if result.is_ok() { DONE } else { FAILED })
}

#[cfg(test)]
mod tests {
    use super::super::testing::Site;

    #[test]
    fn a_gateway_that_is_not_there_is_not_alive() {
        let site = Site::empty();
        // Nothing can listen on the port of the discard service without being root, and nothing does.
        site.write(".env", "FREEWAY_PORT=9\n");
        let ran = site.run(&["health", "--json"]);
        assert_eq!((ran.status, ran.json()["ok"].as_bool()), (1, Some(false)));
        assert_eq!(ran.json()["address"], "127.0.0.1:9");
        assert_eq!(site.run(&["health"]).status, 1);
        assert_eq!(site.run(&["health", "--what"]).status, 2);
    }
}
