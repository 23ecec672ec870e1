//! Networks of a test's own, so that a test can take one away, or call from other addresses, without touching the
//! machine that it runs on.
use std::process::{Command, Output, Stdio};

/// Set in the namespace.
const INSIDE: &str = "FREEWAY_TEST_INSIDE_NAMESPACE";

/// Runs `inside`, a closure of the test itself, in a network (and a table of mounts) that only this test sees. There the
/// test is root; nothing is up but what `set_up` sets up, a line of shell.
///
/// The test program is started again in the namespace for this one test, because a thread cannot move there without
/// taking its process along.
#[track_caller]
pub fn in_private_network<F: FnOnce()>(set_up: &str, inside: F) {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    // `crate::module::test::{{closure}}`: the test's name, as its runner knows it.
    let name = std::any::type_name::<F>();
    let name = name.split_once("::").and_then(|(_, name)| name.strip_suffix("::{{closure}}"));
    let name = name.expect("a closure that is written in a test");
    let script = format!("{set_up} && exec \"$0\" \"$@\"");
    let this = std::env::current_exe().expect("this very program");
    // Whoever is root may lack the right to make user namespaces, and the other way round.
    let ways: [&[&str]; 2] = [&["--net", "--mount", "--user", "--map-root-user"], &["--net", "--mount"]];
    let mut told = String::new();
    for way in ways {
        let Output { status, stdout, stderr } = Command::new("unshare")
            .args(way)
            .args(["sh", "-c", &script])
            .arg(&this)
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(INSIDE, "1")
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("this test needs unshare(1) of util-linux: {error}"));
        let text = [stdout, stderr].concat();
        let text = String::from_utf8_lossy(&text);
        if text.contains("running 1 test") {
            assert!(status.success(), "in the namespace:\n{text}");
            return;
        }
        told += &format!("unshare {way:?}: {text}\n");
    }
    panic!(
        "no network namespace can be made here; it takes unprivileged user namespaces, or root with CAP_SYS_ADMIN, and ip(8):\n{told}"
    );
}

/// Runs a line of shell in the namespace.
#[track_caller]
pub fn sh(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().expect("a shell");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}
