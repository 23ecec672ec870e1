//! Backups: what is in them, that nobody else can read them, where they go and how many stay, and that a gateway comes
//! back from one as it was.
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::harness::*;

const KEY: &str = "correct horse battery";
/// A client key that is in no backup: it comes from a variable.
const OWN: &str = "fw-own-0123456789";
const PASTED: &str = "pasted-key-0123456789";

/// Starts over one provider with a daily limit, with backups to this place.
fn backed_up(alpha: &MockUpstream, target: &str) -> Builder {
    Gateway::builder()
        .provider(provider(alpha).keys([]).limits(json!({"rpd": 100_000})))
        .env("FREEWAY_BACKUP_TARGET", target)
        .env("FREEWAY_BACKUP_KEY", KEY)
}

fn place() -> (TempDir, String) {
    let folder = TempDir::new().expect("a folder");
    let text = folder.path().join("kept").display().to_string();
    (folder, text)
}

/// The names of the backups in a folder, oldest first.
fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("it is there").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

fn back_up(gateway: &Gateway) -> Value {
    gateway.post("/api/backup", &json!({})).ok().at("")
}

fn paste(gateway: &Gateway) {
    gateway.post("/api/providers/alpha/key", &json!({"key": PASTED})).ok();
}

fn reasons(gateway: &Gateway) -> Value {
    gateway.get("/readyz").at("/reasons")
}

/// Issue 5, line 2.
#[test]
fn a_backup_taken_under_load_brings_everything_back() {
    let alpha = mock("alpha");
    let (_folder, target) = place();
    let start =
        || backed_up(&alpha, &target).settings(json!({"backup": {"sessions": true}})).client_key(OWN).start();
    let gateway = start();
    paste(&gateway);
    let client = gateway.post("/api/clients", &json!({"name": "phone"}));
    let client = client.at("/key");
    let client = client.as_str().expect("a key").to_owned();
    let ask = |session: Option<&str>| {
        let mut body = hello_with("m", json!({}));
        if let Some(session) = session {
            body["session"] = session.into();
        }
        gateway.send(&Request::chat(&body).key(&client))
    };
    let patch =
        Request::new("PATCH", "/api/overrides").body(json!({"aliases": {"mine": "alpha/m"}}).to_string());
    gateway.send(&patch.key(OWN)).ok();
    ask(Some("holiday")).ok();
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(1));
    let (before, after, under_load) = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    ask(None).ok();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        eventually("there is load", || done.load(Ordering::SeqCst) > 100);
        let before = done.load(Ordering::SeqCst);
        let made = back_up(&gateway);
        // Those that were under way count as well.
        let after = done.load(Ordering::SeqCst) + 4;
        stop.store(true, Ordering::Relaxed);
        (before, after, made["backup"]["name"].as_str().expect("a name").to_owned())
    });
    alpha.script([Step::status(401).times(FOREVER)]);
    ask(None);
    back_up(&gateway);
    let benches = gateway.get("/api/benches").ok().at("/benches");
    assert_eq!(benches.as_array().map(Vec::len), Some(1), "{benches}");
    drop(gateway);
    alpha.reset();

    // The one under load: the same keys, client, overrides, conversation, and a count between before and after.
    let mut restored = start();
    restored.stop();
    restored.command(&format!("restore {target}/{under_load} --force")).ok();
    restored.start_again();
    let used = restored.used("rpd") as usize;
    assert!((before..=after).contains(&used), "{used} of {before} to {after}");
    let usage = restored.get("/api/stats").ok();
    assert_eq!(usage.at("/ready"), json!(true), "{usage}");
    restored.send(&Request::chat(&hello("mine")).key(&client)).ok().served_by("alpha");
    assert_eq!(chats(&alpha).last().expect("a call").key.as_deref(), Some(PASTED));
    restored.send(&Request::chat(&hello("m")).key("fw-wrong")).error(401, "invalid_api_key");
    let told = restored.get("/api/sessions").ok();
    assert!(told.text().contains("holiday"), "{told}");
    drop(restored);

    // The last one, by itself on an empty folder: the refused key is still on the bench.
    let restored = start();
    restored.wait_for_log("the data folder was empty; it was restored from");
    let benches = restored.get("/api/benches").ok().at("/benches");
    assert_eq!(benches.as_array().map(Vec::len), Some(1), "{benches}");
    let alerts = restored.get("/api/alerts").ok();
    assert!(alerts.text().contains("it was restored from"), "{alerts}");
}

#[test]
fn nobody_else_can_read_one() {
    let alpha = mock("alpha");
    let (_folder, target) = place();
    let gateway = backed_up(&alpha, &target).start();
    paste(&gateway);
    gateway.chat_with(
        "m",
        json!({"session": "holiday", "messages": [{"role": "user", "content": "so secret"}]}),
    );
    back_up(&gateway);
    let name = names(&target).pop().expect("a backup");
    let file = Path::new(&target).join(&name);
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(Path::new(&target))), (0o600, 0o700));
    let bytes = std::fs::read(&file).expect("read");
    let boxes = std::fs::read(gateway.folder().join("data/box.key")).expect("read");
    let secrets: [&[u8]; 6] =
        [PASTED.as_bytes(), KEY.as_bytes(), b"alpha", b"SQLite format", b"so secret", &boxes];
    for secret in secrets {
        let found = bytes.windows(secret.len()).any(|window| window == secret);
        assert!(!found, "{:?} stands in it", String::from_utf8_lossy(secret));
    }
    for left in names(&gateway.folder().join("data").display().to_string()) {
        assert!(!left.contains("backup.db") && !left.contains(".tmp"), "{left} was left");
    }
    let log = gateway.log();
    assert!(!log.contains(KEY) && !log.contains(PASTED));
    gateway.get("/api/settings").ok().never_says(KEY);
    gateway.get("/api/backups").ok().never_says(KEY);
}

#[test]
fn the_newest_stay_and_strangers_are_left_alone() {
    let alpha = mock("alpha");
    let (_folder, target) = place();
    std::fs::create_dir(&target).expect("made");
    std::fs::write(format!("{target}/freeway-notes.txt"), "mine").expect("written");
    let gateway = backed_up(&alpha, &target).settings(json!({"backup": {"keep": 3}})).start();
    let made: Vec<String> =
        (0..5).map(|_| back_up(&gateway)["backup"]["name"].as_str().expect("a name").to_owned()).collect();
    let mut expected = made[2..].to_vec();
    expected.push("freeway-notes.txt".into());
    assert_eq!(names(&target), expected);
    let list = gateway.get("/api/backups").ok();
    assert_eq!((list.at("/backups/0/name"), list.at("/keep")), (json!(made[4]), json!(3)), "{list}");
}

#[test]
fn a_server_takes_them_by_put_and_gives_them_back() {
    let (alpha, shelf) = (mock("alpha"), Shelf::start());
    let target = shelf.url("me:p%40ss@");
    let gateway = backed_up(&alpha, &target).settings(json!({"backup": {"keep": 2}})).start();
    paste(&gateway);
    gateway.chat("m").ok();
    for _ in 0..3 {
        back_up(&gateway);
    }
    let kept = shelf.names();
    assert_eq!(kept.len(), 3, "two backups and their list: {kept:?}");
    assert!(shelf.asked().iter().any(|(method, ..)| method == "DELETE"));
    let authorized =
        |(_, _, header): &(String, String, Option<String>)| header.as_deref() == Some("Basic bWU6cEBzcw==");
    assert!(shelf.asked().iter().all(authorized), "{:?}", shelf.asked());
    for view in ["/api/settings", "/api/backups"] {
        gateway.get(view).ok().never_says("p%40ss");
    }
    drop(gateway);
    let again = backed_up(&alpha, &target).start();
    again.wait_for_log("it was restored from");
    assert_eq!(again.used("rpd"), 1.0);
    drop(again);
    // By its full address, into a folder that is not empty.
    let mut again = Gateway::builder().env("FREEWAY_BACKUP_KEY", KEY).start();
    again.stop();
    let url = format!("{}{}", shelf.url("me:p%40ss@").trim_end_matches("/b"), kept[1]);
    let ran = again.command(&format!("restore {url} --force --json"));
    assert_eq!(ran.ok()["ok"], true, "{ran:?}");
    assert!(!ran.out.contains("p%40ss"), "{}", ran.out);
    again.command(&format!("restore {url}-not --force")).failed("answered 404");
}

#[test]
fn they_are_made_by_themselves_when_something_changed() {
    let (alpha, clock) = (mock("alpha"), Clock::shifted_by(0));
    let (_folder, target) = place();
    let mut gateway = clock.of(backed_up(&alpha, &target)).env("FREEWAY_LOG", "debug").start();
    gateway.wait_for_log("backed up to");
    assert_eq!(names(&target).len(), 1);
    gateway.restart();
    clock.pass(25 * 3_600);
    gateway.wait_for_log("nothing changed since the last backup");
    assert_eq!(names(&target).len(), 1);
    paste(&gateway);
    clock.pass(51 * 3_600);
    eventually("the change is backed up", || names(&target).len() == 2);
}

#[test]
fn what_is_in_the_way_shows_and_passes() {
    let (alpha, shelf) = (mock("alpha"), Shelf::start());
    shelf.refuse(Some(507));
    let gateway = backed_up(&alpha, &shelf.url("")).start();
    paste(&gateway);
    let refused = gateway.post("/api/backup", &json!({})).error(503, "backup_error");
    assert!(refused.text().contains("answered 507"), "{refused}");
    assert_eq!(reasons(&gateway), json!(["backup_failing"]));
    assert_eq!(gateway.get("/readyz").status(), 200, "a warning is no reason not to serve");
    let alerts = gateway.get("/api/alerts").ok();
    assert!(alerts.text().contains("the last backup failed"), "{alerts}");
    gateway.chat("m").ok();
    shelf.refuse(None);
    back_up(&gateway);
    assert_eq!(reasons(&gateway), json!([]));
    gateway.post("/api/backup", &json!({"now": true})).error(400, "invalid_body").about("now");
}

#[test]
fn without_a_target_or_a_key_it_is_told_what_to_set() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha)]);
    let refused = gateway.post("/api/backup", &json!({})).error(503, "backup_error");
    assert!(refused.text().contains("FREEWAY_BACKUP_TARGET"), "{refused}");
    assert_eq!(gateway.get("/api/backups").ok().at("/on"), json!(false));
    assert_eq!(reasons(&gateway), json!([]), "off is nothing amiss");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .folder("kept")
        .env("FREEWAY_BACKUP_TARGET", "kept")
        .start();
    let refused = gateway.post("/api/backup", &json!({})).error(503, "backup_error");
    assert!(refused.text().contains("freeway backup --init"), "{refused}");
    let key = gateway.command("backup --init --json").ok()["key"].clone();
    back_up(&gateway);
    let list = gateway.get("/api/backups").ok().never_says(key.as_str().expect("a key"));
    assert_eq!((list.at("/key"), list.at("/problem")), (json!("file"), Value::Null));
}

#[test]
fn the_command_asks_the_gateway_that_runs_whatever_its_keys() {
    let alpha = mock("alpha");
    let (_folder, target) = place();
    let mut gateway = backed_up(&alpha, &target)
        .env("FREEWAY_ADMIN_KEY", "an-admin-key-of-the-owner")
        .client_key("fw-client-key-0123456789")
        .start();
    let ran = gateway.command("backup --json");
    assert_eq!(ran.ok()["backup"]["name"], json!(names(&target).last()), "{ran:?}");
    let ran = gateway.command("backup");
    assert!(ran.code == Some(0) && ran.out.starts_with("backed up to "), "{ran:?}");
    gateway.command("restore --latest --force").failed("another gateway is using the data folder");
    // The word that let it in opens nothing else, and is gone with the process.
    let file = gateway.folder().join("data/freeway.running");
    let running: Value = serde_json::from_slice(&std::fs::read(&file).expect("there")).expect("JSON");
    let word = running["word"].as_str().expect("a word").to_owned();
    gateway.send(&Request::chat(&hello("m")).key(&word)).error(401, "invalid_api_key");
    gateway.stop();
    assert!(!file.exists());
    gateway.command("backup").ok();
    // What a killed process left behind names a port where nobody listens.
    std::fs::write(&file, running.to_string()).expect("written");
    gateway.command("backup").ok();
    gateway.start_again();
}

#[test]
fn a_wrong_key_restores_nothing_and_keeps_nobody_from_serving() {
    let alpha = mock("alpha");
    let (_folder, target) = place();
    let gateway = backed_up(&alpha, &target).start();
    paste(&gateway);
    back_up(&gateway);
    drop(gateway);
    let other = backed_up(&alpha, &target).env("FREEWAY_BACKUP_KEY", "quite another key").start();
    other.wait_for_log("nothing could be restored");
    other.chat("m").error(503, "no_provider_configured");
    paste(&other);
    other.chat("m").ok();
}

/// A new key, and backups under the old one: they may be the only ones that hold what was lost.
#[test]
fn backups_under_another_key_are_never_pushed_out() {
    let (alpha, shelf) = (mock("alpha"), Shelf::start());
    let (_folder, target) = place();
    for target in [target, shelf.url("")] {
        let settings = json!({"backup": {"keep": 2}});
        let gateway = backed_up(&alpha, &target).settings(settings.clone()).start();
        let first = back_up(&gateway)["backup"]["name"].clone();
        drop(gateway);
        let mut other = backed_up(&alpha, &target)
            .env("FREEWAY_BACKUP_KEY", "quite another key")
            .settings(settings)
            .start();
        let made: Vec<Value> = (0..3).map(|_| back_up(&other)["backup"]["name"].clone()).collect();
        let kept = other.get("/api/backups").ok().at("/backups");
        let kept: Vec<&Value> = kept.as_array().expect("a list").iter().map(|kept| &kept["name"]).collect();
        assert_eq!(kept, [&made[2], &made[1], &first]);
        other.wait_for_log("is sealed under another key and stays");
        other.stop();
        other.set_env("FREEWAY_BACKUP_KEY", KEY);
        let place = format!("{}/{}", target.trim_end_matches('/'), first.as_str().expect("a name"));
        other.command(&format!("restore {place} --force --json")).ok();
    }
}

#[test]
fn a_demo_leaves_the_owners_backups_alone() {
    let alpha = mock("alpha");
    let (_folder, target) = place();
    let gateway = backed_up(&alpha, &target).demo().start();
    gateway.wait_for_log("backed up to");
    assert!(!Path::new(&target).exists());
    assert_ne!(gateway.get("/api/backups").ok().at("/target"), json!(target));
}
