//! What puts the program in place: `make install`, the systemd unit, the container files. Every path, user, port and
//! command that they name has to be right.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::harness::Gateway;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn freeway() -> &'static str {
    env!("CARGO_BIN_EXE_freeway")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn ran(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; is it installed?"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// A folder that `make install` has filled with the program under test.
struct Installed(TempDir);

impl Installed {
    fn new() -> Installed {
        let folder = tempfile::tempdir().expect("a folder");
        let installed = Installed(folder);
        installed.make("install");
        installed
    }

    /// `PREFIX` is a real path, so that the unit names programs that exist; `DESTDIR` keeps systemd out of it.
    fn make(&self, target: &str) {
        let at = self.0.path().display();
        let mut make = Command::new("make");
        make.current_dir(root()).arg(target).args([
            "DESTDIR=/".to_owned(),
            format!("PREFIX={at}/usr"),
            format!("UNITDIR={at}/units"),
            format!("BIN={}", freeway()),
        ]);
        let output = ran(&mut make);
        assert!(output.status.success(), "{}", text(&output));
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.0.path().join(inside)
    }

    fn unit(&self) -> PathBuf {
        self.path("units/freeway.service")
    }
}

#[test]
fn what_is_installed_is_whole_and_goes_again() {
    let installed = Installed::new();
    let version = ran(Command::new(installed.path("usr/bin/freeway")).arg("version"));
    assert!(text(&version).starts_with("freeway "), "{}", text(&version));
    for file in
        ["usr/lib/sysusers.d/freeway.conf", "usr/share/doc/freeway/README.md", "units/freeway.service"]
    {
        assert!(installed.path(file).is_file(), "{file} is missing");
    }
    installed.make("uninstall");
    for file in ["usr/bin/freeway", "usr/lib/sysusers.d/freeway.conf", "units/freeway.service"] {
        assert!(!installed.path(file).exists(), "{file} was left behind");
    }
}

/// systemd's own judge of units, fetched if need be and allowed.
fn systemd_analyze() -> Command {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        let install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd";
        let output = ran(Command::new("sh").args(["-c", install]));
        assert!(output.status.success(), "systemd-analyze (package systemd) is needed: {}", text(&output));
    }
    Command::new("systemd-analyze")
}

#[test]
fn systemd_accepts_the_unit_and_finds_it_confined() {
    let installed = Installed::new();
    let verify = ran(systemd_analyze().args(["verify", "--man=no"]).arg(installed.unit()));
    assert!(verify.status.success() && verify.stderr.is_empty(), "{}", text(&verify));
    // Exposure is counted in tenths, and has to stay below 2.0.
    let security = ran(systemd_analyze()
        .args(["security", "--offline=true", "--threshold=19", "--no-pager"])
        .arg(installed.unit()));
    assert!(security.status.success(), "{}", text(&security));
}

#[test]
fn the_unit_does_what_the_program_expects_of_it() {
    let unit = read("deploy/freeway.service");
    let value = |name: &str| {
        let found = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} is not set"))
    };
    assert_eq!(value("Type"), "notify");
    assert_eq!(value("RestartPreventExitStatus"), "78");
    assert_eq!(value("StateDirectory"), "freeway");
    assert_eq!(value("Environment"), "FREEWAY_ROOT=/var/lib/freeway");
    // A thread for each connection that there may be, and the workers.
    assert!(value("TasksMax").parse::<u32>().is_ok_and(|tasks| tasks >= 1_024 + 512));
    // `RemoveIPC=` would throw away the counters that a crash is to spare.
    assert!(!unit.lines().any(|line| line.starts_with("RemoveIPC=")));
    let sysusers = read("deploy/sysusers.conf");
    assert!(sysusers.lines().any(|line| line.starts_with(&format!("u {} ", value("User")))));
    let settings = read("docs/settings.md");
    let row = settings.lines().find(|line| line.contains("server.stopMs")).expect("the setting");
    assert!(row.contains("20000") && value("TimeoutStopSec") == "40", "{row}");
}

#[test]
fn the_printed_unit_runs_this_program() {
    let printed = ran(Command::new(freeway()).arg("systemd"));
    let unit = text(&printed);
    assert!(printed.status.success());
    assert!(unit.contains(&format!("ExecStart={} serve", freeway())), "{unit}");
}

#[test]
fn the_container_files_name_what_exists() {
    let (dockerfile, compose) = (read("deploy/Dockerfile"), read("deploy/compose.yaml"));
    let line = |start: &str| {
        let found = dockerfile.lines().find_map(|line| line.strip_prefix(start));
        found.unwrap_or_else(|| panic!("the Dockerfile has no {start:?}")).trim()
    };
    let compose_value = |name: &str| {
        let found = compose.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(": "));
        found.unwrap_or_else(|| panic!("compose has no {name:?}")).trim()
    };
    // The build.
    let context = root().join("deploy").join(compose_value("context"));
    assert!(context.join(compose_value("dockerfile")).is_file());
    assert!(context.join("Cargo.lock").is_file());
    assert!(dockerfile.contains("--bin freeway") && dockerfile.contains("/src/target/release/freeway "));
    // The user owns the one folder that is written to, which outlives the container.
    let home = line("WORKDIR /var").trim_start_matches(' ');
    assert_eq!(home, "/lib/freeway");
    assert_eq!(line("ENV FREEWAY_ROOT="), "/var/lib/freeway");
    assert_eq!(line("VOLUME "), "/var/lib/freeway");
    assert!(compose.contains("- data:/var/lib/freeway\n"));
    let user = line("USER ");
    assert!(user.parse::<u32>().is_ok_and(|user| user > 0), "{user}");
    assert!(dockerfile.contains(&format!("--uid {user} ")));
    // It listens where its settings say, and its commands are commands.
    let settings = read("docs/settings.md");
    let port = settings.lines().find(|line| line.starts_with("| `port`")).expect("the setting");
    assert!(port.contains(line("EXPOSE ")), "{port}");
    assert!(line("HEALTHCHECK ").ends_with("CMD [\"freeway\", \"health\"]"));
    assert!(dockerfile.contains("ENTRYPOINT [\"freeway\"]\nCMD [\"serve\"]"));
    for command in ["health", "serve"] {
        assert!(ran(Command::new(freeway()).args([command, "--help"])).status.success());
    }
    // It starts without a single file of the owner's, on loopback of the host.
    assert!(compose.contains("- path: ../.env\n        required: false\n"));
    assert_eq!(compose_value("network_mode"), "host");
    assert!(!dockerfile.contains("FREEWAY_HOST"), "a variable would beat what `init --lan` writes");
}

#[test]
fn health_asks_the_gateway_of_this_folder() {
    let mut gateway = Gateway::builder().start();
    let ask = |folder: &Path, port: u16| {
        ran(Command::new(freeway())
            .args(["health", "--json"])
            .current_dir(folder)
            .env_clear()
            .env("FREEWAY_PORT", port.to_string()))
    };
    let port = gateway.addr().port();
    let alive = ask(gateway.folder(), port);
    assert!(alive.status.success(), "{}", text(&alive));
    gateway.stop();
    assert_eq!(ask(gateway.folder(), port).status.code(), Some(1));
}

#[test]
fn health_finds_the_gateway_wherever_it_listens() {
    let gateway = Gateway::builder().start();
    let ask =
        || ran(Command::new(freeway()).args(["health", "--json"]).current_dir(gateway.folder()).env_clear());
    // Another port counts from the next start on, and a bad file not at all.
    for settings in ["{\"port\": 9}", "{\"port\": \"nine\"}", "{"] {
        gateway.write("freeway.config.json", settings);
        let alive = ask();
        assert!(alive.status.success(), "{settings}: {}", text(&alive));
        assert!(text(&alive).contains(&gateway.addr().to_string()), "{}", text(&alive));
    }
}
