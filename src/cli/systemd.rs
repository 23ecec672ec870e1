//! `freeway systemd`: the unit that runs this very program as a service.
use std::ffi::OsString;
use std::path::Path;

use lexopt::prelude::*;
use serde_json::json;

use super::{DONE, Failure, World};
use crate::base::packed::{Packed, packed};

/// What `freeway systemd --help` says.
pub const HELP: &str = "\
usage: freeway systemd [--json]

  Prints a unit for systemd that runs this program, restarts it when it hangs, and confines it to its own folder.
  It runs as the user `freeway`, with its files in /var/lib/freeway. `make install` does all of this at once.

examples:
  freeway systemd | sudo tee /etc/systemd/system/freeway.service
  sudo useradd --system --home-dir /var/lib/freeway freeway
  sudo systemctl enable --now freeway";

/// The unit for a program in `INSTALLED`.
static UNIT: Packed = packed!("deploy/freeway.service");
const INSTALLED: &str = "/usr/local/bin/freeway";

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
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("where this program is cannot be found out: {error}")))?;
    let unit = unit(&program);
    if json {
        world.say_json(&json!({"ok": true, "unit": unit}));
    } else {
        world.say(unit.trim_end());
    }
    Ok(DONE)
}

/// The unit that runs `program`.
fn unit(program: &Path) -> String {
    // systemd expands % and splits at spaces.
    let program = program.display().to_string().replace('%', "%%").replace(' ', "\\x20");
    UNIT.text().replace(INSTALLED, &program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_runs_the_program_that_printed_it() {
        let unit = unit(Path::new("/opt/free way/100%/freeway"));
        assert!(unit.contains("ExecStart=/opt/free\\x20way/100%%/freeway serve\n"), "{unit}");
        assert!(!unit.contains(INSTALLED));
    }
}
