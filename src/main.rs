//! The program: arguments to a command, its result to an exit status.
use std::ffi::OsString;
use std::process::ExitCode;

use freeway::catalog::env::Variables;
use freeway::cli::{self, World};
use freeway::serve;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    // Variables that are no UTF-8 are nobody's that we know.
    let process: Variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    if command == "serve" {
        return ExitCode::from(serve::run(&rest, process));
    }
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let current = std::env::current_dir().unwrap_or_default();
    let mut world = World { out: &mut out, err: &mut err, process, current };
    ExitCode::from(cli::main(&command, &rest, &mut world))
}
