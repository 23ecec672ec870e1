//! Under a service manager: what it is told, when, and that the watchdog is fed only by a gateway that answers.
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::*;

/// How long a message may take. It takes milliseconds, but the machine may be busy.
const MESSAGE_MAX: Duration = Duration::from_secs(20);

/// A socket such as systemd gives to its services.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Manager {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(MESSAGE_MAX)).expect("a timeout");
        Manager { folder, socket }
    }

    fn place(&self) -> String {
        self.folder.path().join("notify").display().to_string()
    }

    /// Drops what has come so far.
    fn drain(&self) {
        self.socket.set_nonblocking(true).expect("a socket takes options");
        while self.socket.recv(&mut [0; 4096]).is_ok() {}
        self.socket.set_nonblocking(false).expect("a socket takes options");
    }

    /// The next message that has a line `wanted`; those before it are passed over.
    fn expect(&self, wanted: &str) -> String {
        let mut bytes = [0; 4096];
        loop {
            let length = self.socket.recv(&mut bytes).unwrap_or_else(|error| panic!("no {wanted}: {error}"));
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if text.lines().any(|line| line == wanted) {
                return text;
            }
        }
    }
}

#[test]
fn the_manager_hears_ready_watchdog_reload_and_stopping() {
    let manager = Manager::new();
    let mut gateway =
        Gateway::builder().env("NOTIFY_SOCKET", &manager.place()).env("WATCHDOG_USEC", "400000").start();
    let ready = manager.expect("READY=1");
    assert!(ready.contains(&format!("STATUS=Serving on http://{}", gateway.addr())), "{ready}");
    manager.expect("WATCHDOG=1");
    manager.expect("WATCHDOG=1");
    gateway.signal("HUP");
    manager.expect("RELOADING=1");
    manager.expect("READY=1");
    gateway.stop();
    manager.expect("STOPPING=1");
}

/// A large backup over a slow line takes longer than a start may take.
#[test]
fn the_manager_gives_a_restoration_the_time_that_it_takes() {
    let kept = tempfile::tempdir().expect("a folder");
    let (manager, target) = (Manager::new(), kept.path().display().to_string());
    let with_backups = || {
        let key = "correct horse battery";
        Gateway::builder().env("FREEWAY_BACKUP_TARGET", &target).env("FREEWAY_BACKUP_KEY", key)
    };
    with_backups().start().wait_for_log("backed up to");
    let _restored = with_backups().env("NOTIFY_SOCKET", &manager.place()).start();
    let told = manager.expect("STATUS=Restoring the newest backup");
    assert!(told.contains("EXTEND_TIMEOUT_USEC="), "{told}");
    manager.expect("READY=1");
}

#[test]
fn a_gateway_that_hangs_does_not_feed_the_watchdog() {
    let manager = Manager::new();
    let gateway =
        Gateway::builder().env("NOTIFY_SOCKET", &manager.place()).env("WATCHDOG_USEC", "400000").start();
    manager.expect("WATCHDOG=1");
    // A stopped process stands for one that hangs.
    gateway.signal("STOP");
    manager.socket.set_read_timeout(Some(Duration::from_millis(1500))).expect("a timeout");
    let mut bytes = [0; 4096];
    let mut late = 0;
    while manager.socket.recv(&mut bytes).is_ok() {
        late += 1;
    }
    gateway.signal("CONT");
    assert!(late <= 2, "{late} messages came from a gateway that hangs");
    manager.socket.set_read_timeout(Some(MESSAGE_MAX)).expect("a timeout");
    manager.expect("WATCHDOG=1");
}

#[test]
fn a_gateway_whose_places_are_all_taken_is_busy_and_not_dead() {
    /// The fewest connections that can be set.
    const CONNECTIONS: usize = 16;
    let manager = Manager::new();
    let alpha = mock_that("alpha", [Step::hang().times(FOREVER)]);
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .settings(json!({"server": {"connections": CONNECTIONS}}))
        .env("NOTIFY_SOCKET", &manager.place())
        .env("WATCHDOG_USEC", "400000")
        .start();
    // One more at a time, because the watchdog takes a place now and then.
    let mut busy: Vec<Wire> = Vec::new();
    eventually("all are being served", || {
        let served = chats(&alpha).len();
        if served < CONNECTIONS {
            let mut wire = gateway.wire();
            drop(wire.try_send(Request::chat(&hello("m")).bytes()));
            busy.push(wire);
        }
        served == CONNECTIONS
    });
    gateway.wire().answer().error(503, "overloaded");
    // What was sent before is passed over.
    manager.drain();
    manager.expect("WATCHDOG=1");
    manager.expect("WATCHDOG=1");
}

#[test]
fn without_a_manager_nothing_is_missed() {
    let nowhere = tempfile::tempdir().expect("a folder");
    let gone = nowhere.path().join("gone").display().to_string();
    let gateway = Gateway::builder().env("NOTIFY_SOCKET", &gone).env("WATCHDOG_USEC", "400000").start();
    assert_eq!(gateway.get("/healthz").status(), 200);
    assert!(fs::metadata(&gone).is_err());
}
