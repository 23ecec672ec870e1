//! What a full, closed or damaged disk does to a running gateway: requests are served, the owner is told, and once the
//! disk is well again nothing is missing. The disks are made for the tests, in a mount namespace of their own.
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::harness::*;

/// Set in the namespace.
const INSIDE: &str = "FREEWAY_TEST_INSIDE_MOUNTS";

/// Runs `test`, which is called `name`, with the right to mount.
fn with_mounts(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let this = std::env::current_exe().expect("this very program");
    // Whoever is root may lack the right to make user namespaces, and the other way round.
    let ways: [&[&str]; 2] = [&["--mount", "--user", "--map-root-user"], &["--mount"]];
    let mut told = String::new();
    for way in ways {
        let Output { status, stdout, stderr } = Command::new("unshare")
            .args(way)
            .arg(&this)
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, "1")
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("this test needs unshare(1) of util-linux: {error}"));
        let text = [stdout, stderr].concat();
        let text = String::from_utf8_lossy(&text);
        if text.contains("running 1 test") && !text.contains(NO_RIGHT) {
            assert!(status.success(), "in the namespace:\n{text}");
            return;
        }
        told += &format!("unshare {way:?}: {text}\n");
    }
    panic!(
        "no mount namespace can be made here; it takes unprivileged user namespaces, or root with CAP_SYS_ADMIN:\n{told}"
    );
}

/// What a test says that finds that it cannot mount after all.
const NO_RIGHT: &str = "this namespace has no right to mount";

/// A small disk, unmounted when dropped.
struct Disk(TempDir);

impl Disk {
    fn new(kib: u32) -> Disk {
        let disk = Disk(TempDir::new().expect("a folder"));
        mount(&["-t", "tmpfs", "-o", &format!("size={kib}k,mode=700"), "tmpfs"], disk.path());
        disk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves no room on it.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.path().join("filler")).expect("made");
        while file.write_all(&[1; 1_024]).is_ok() {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.path().join("filler")).expect("removed");
    }

    fn remount(&self, how: &str) {
        mount(&["-o", &format!("remount,{how}")], self.path());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn mount(args: &[&str], at: &Path) {
    let done = Command::new("mount").args(args).arg(at).output().expect("mount(8) is there");
    assert!(done.status.success(), "{NO_RIGHT}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A gateway with its data on this disk.
fn on(disk: &Disk, alpha: &MockUpstream) -> Builder {
    Gateway::builder()
        .provider(provider(alpha).limits(json!({"rpd": 1_000})))
        .env("FREEWAY_DATA", &disk.path().join("data").display().to_string())
}

fn reasons(gateway: &Gateway) -> Value {
    gateway.get("/readyz").at("/reasons")
}

/// Lets the writer write now: whoever lifts benches does not wait for the minute.
fn write_now(gateway: &Gateway) {
    gateway.send(&Request::new("DELETE", "/api/benches")).ok();
}

/// Lets it write until it has met the trouble.
fn expect_trouble(gateway: &Gateway, code: &str) {
    eventually(code, || {
        write_now(gateway);
        gateway.chat("m").ok();
        reasons(gateway) == json!([code])
    });
    assert_eq!(gateway.get("/readyz").status(), 200, "a full disk is no reason not to serve");
    let alerts = gateway.get("/api/alerts").ok();
    assert!(alerts.text().contains(code), "{alerts}");
}

/// Case OPS-04.
#[test]
fn ops_04_a_full_disk_is_served_from_memory_and_got_over() {
    with_mounts("e2e::storage::ops_04_a_full_disk_is_served_from_memory_and_got_over", || {
        let (alpha, disk) = (mock("alpha"), Disk::new(400));
        let mut gateway = on(&disk, &alpha).start();
        gateway.chat("m").ok();
        disk.fill();
        expect_trouble(&gateway, "disk_full");
        // What has to be on the disk to count is refused, and changes nothing.
        let patch = Request::new("PATCH", "/api/overrides");
        let refused = gateway.send(&patch.body(json!({"aliases": {"mine": "alpha/m"}}).to_string()));
        assert_eq!(refused.status(), 500, "{refused}");
        assert!(refused.text().contains("nothing was changed"), "{refused}");
        disk.empty();
        eventually("it saves again", || reasons(&gateway) == json!([]));
        let served = chats(&alpha).len() as f64;
        gateway.restart();
        assert_eq!((gateway.used("rpd"), reasons(&gateway)), (served, json!([])));
        let logged = gateway.get("/api/logs?limit=500").ok().at("/logs");
        assert_eq!(logged.as_array().map(Vec::len), Some(served as usize), "no row is lost");
    });
}

#[test]
fn ops_04_a_disk_that_is_full_at_the_start_keeps_nobody_from_serving() {
    with_mounts("e2e::storage::ops_04_a_disk_that_is_full_at_the_start_keeps_nobody_from_serving", || {
        let (alpha, disk) = (mock("alpha"), Disk::new(400));
        disk.fill();
        let mut gateway = on(&disk, &alpha).start();
        gateway.chat("m").ok();
        let told = reasons(&gateway).to_string();
        assert!(told.contains("disk_"), "{told}");
        disk.empty();
        eventually("it saves", || {
            write_now(&gateway);
            reasons(&gateway) == json!([])
        });
        gateway.restart();
        assert_eq!(reasons(&gateway), json!([]));
    });
}

#[test]
fn ops_04_a_read_only_card_is_served_from_memory_and_got_over() {
    with_mounts("e2e::storage::ops_04_a_read_only_card_is_served_from_memory_and_got_over", || {
        let (alpha, disk) = (mock("alpha"), Disk::new(2_000));
        let mut gateway = on(&disk, &alpha).start();
        gateway.chat("m").ok();
        gateway.stop();
        // As the kernel does with a card that fails.
        disk.remount("ro");
        gateway.start_again();
        gateway.chat("m").ok();
        let told = reasons(&gateway).to_string();
        assert!(told.contains("disk_read_only"), "{told}");
        assert_eq!(gateway.get("/readyz").status(), 200);
        disk.remount("rw");
        eventually("it saves again", || reasons(&gateway) == json!([]));
        gateway.restart();
        assert!(gateway.used("rpd") >= 1.0, "what was counted meanwhile is kept");
    });
}

/// Every file of the data folder, with its length and when it was written last.
fn files(gateway: &Gateway) -> Vec<(String, u64, std::time::SystemTime)> {
    let entries = std::fs::read_dir(gateway.folder().join("data")).expect("read").flatten();
    let look = |entry: std::fs::DirEntry| {
        let about = entry.metadata().expect("there");
        (entry.file_name().to_string_lossy().into_owned(), about.len(), about.modified().expect("a time"))
    };
    let mut files: Vec<_> = entries.map(look).collect();
    files.sort();
    files
}

/// Case OPS-03: an hour with the page open and nothing to do writes nothing, and a thousand requests are few commits.
#[test]
fn ops_03_nothing_is_written_when_nothing_happens_and_load_is_written_in_batches() {
    let (alpha, clock) = (mock("alpha"), Clock::shifted_by(0));
    let gateway =
        clock.of(Gateway::builder().provider(provider(&alpha).limits(json!({"rpd": 100_000})))).start();
    gateway.chat("m").ok();
    let _page = gateway.open(&Request::get("/api/events"));
    // The warm-up of the keys comes, the row goes to the disk and, once its hour is over, into the sums.
    clock.pass(120);
    eventually("the key was checked", || gateway.get("/api/alerts").ok().at("/keyHealth/at").is_u64());
    clock.pass(2 * 3_600);
    write_now(&gateway);
    let written = || gateway.get("/api/stats").ok().at("/rows/written");
    eventually("the row is written", || written() == 1);
    let mut before = files(&gateway);
    loop {
        std::thread::sleep(PAUSE);
        let now = files(&gateway);
        if now == before {
            break;
        }
        before = now;
    }
    for minute in 1..=60 {
        clock.pass(2 * 3_600 + minute * 60);
        for view in ["/api/providers", "/api/alerts", "/api/usage", "/api/logs", "/readyz"] {
            gateway.get(view).ok();
        }
    }
    std::thread::sleep(PAUSE);
    assert_eq!(files(&gateway), before, "an idle hour");
    for _ in 0..1_000 {
        gateway.chat("m").ok();
    }
    clock.pass(4 * 3_600);
    write_now(&gateway);
    eventually("every row is written", || written().as_u64() >= Some(1_001));
    let grown = files(&gateway).into_iter().find(|(name, ..)| name == "freeway.db-wal").expect("a log").1;
    assert!(grown < 1_200_000, "the write-ahead log has {grown} bytes");
}

/// Longer than anything in the program waits to look at counters and rows.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(10_500);

fn damage(gateway: &Gateway) {
    let path = gateway.folder().join("data/freeway.db");
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[1_000..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 % 251) as u8);
    std::fs::write(&path, bytes).expect("written");
}

fn aside(gateway: &Gateway) -> usize {
    let entries = std::fs::read_dir(gateway.folder().join("data")).expect("read").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("freeway.db.damaged-2")).count()
}

/// Case OPS-04, and decisions 10: a corrupt file is moved aside, state comes from the last backup.
#[test]
fn ops_04_a_damaged_database_comes_back_from_the_last_backup() {
    let alpha = mock("alpha");
    let kept = TempDir::new().expect("a folder");
    let mut gateway = Gateway::builder()
        .provider(provider(&alpha).limits(json!({"rpd": 1_000})))
        .env("FREEWAY_BACKUP_TARGET", &kept.path().display().to_string())
        .env("FREEWAY_BACKUP_KEY", "correct horse battery")
        .start();
    for _ in 0..3 {
        gateway.chat("m").ok();
    }
    gateway.post("/api/backup", &json!({})).ok();
    gateway.chat("m").ok();
    gateway.stop();
    damage(&gateway);
    gateway.start_again();
    gateway.wait_for_log("freeway.db was damaged");
    gateway.wait_for_log("the database was damaged; it was restored from");
    assert_eq!((gateway.used("rpd"), aside(&gateway)), (3.0, 1));
    let alerts = gateway.get("/api/alerts").ok().text();
    assert!(alerts.contains("was moved to") && alerts.contains("it was restored from"), "{alerts}");
    gateway.reload();
    let alerts = gateway.get("/api/alerts").ok().text();
    assert!(alerts.contains("was moved to"), "a reload forgets nothing: {alerts}");
    gateway.chat("m").ok();
    gateway.restart();
    assert_eq!((gateway.used("rpd"), reasons(&gateway)), (4.0, json!([])));
}

#[test]
fn ops_04_a_damaged_database_without_a_backup_begins_anew() {
    let alpha = mock("alpha");
    let mut gateway = Gateway::over([provider(&alpha).limits(json!({"rpd": 1_000}))]);
    gateway.chat("m").ok();
    gateway.stop();
    damage(&gateway);
    gateway.start_again();
    gateway.wait_for_log("freeway.db was damaged");
    gateway.chat("m").ok();
    assert_eq!((gateway.used("rpd"), aside(&gateway), reasons(&gateway)), (1.0, 1, json!([])));
    let alerts = gateway.get("/api/alerts").ok().text();
    assert!(alerts.contains("was moved to"), "{alerts}");
}
