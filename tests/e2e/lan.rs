//! `freeway init --lan` and nothing else: a client on another address of the network is served. The test runs itself
//! again in a network namespace of its own, so that nothing of this machine's network is touched.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use crate::harness::*;

/// Set in the namespace.
const INSIDE: &str = "FREEWAY_TEST_INSIDE_NAMESPACE";
const TEST: &str = "e2e::lan::after_init_lan_a_peer_is_served_by_address_and_by_name";
/// Where the gateway is found, and where its peer is.
const GATEWAY: &str = "10.77.0.1:8787";
const PEER: &str = "10.77.0.2:0";
/// The network of the namespace; what follows it on the command line runs in it.
const SET_UP: &str = "ip link set lo up && ip addr add 10.77.0.1/24 dev lo && ip addr add 10.77.0.2/24 dev lo \
                      && exec \"$0\" \"$@\"";

#[test]
fn after_init_lan_a_peer_is_served_by_address_and_by_name() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let this = std::env::current_exe().expect("this very program");
    // Whoever is root may lack the right to make user namespaces, and the other way round.
    let ways: [&[&str]; 2] = [&["--net", "--user", "--map-root-user"], &["--net"]];
    let run = |way: &[&str]| {
        Command::new("unshare")
            .args(way)
            .args(["sh", "-c", SET_UP])
            .arg(&this)
            .args(["--exact", TEST, "--nocapture"])
            .env(INSIDE, "1")
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("this test needs unshare(1) of util-linux: {error}"))
    };
    let mut told = String::new();
    for way in ways {
        let Output { status, stdout, stderr } = run(way);
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

/// A gateway that is killed with its test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        drop((self.0.kill(), self.0.wait()));
    }
}

fn inside() {
    let alpha = mock("alpha");
    let mut terminal = Terminal::new();
    terminal.provider(&provider(&alpha));
    let (code, made) = terminal.json("init --lan --json");
    assert_eq!((code, &made["baseUrl"]), (Some(0), &json!(format!("http://{GATEWAY}/v1"))), "{made}");
    let key = made["key"].as_str().expect("a key");
    let _served = serve(&terminal);
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the kernel tells it");
    let local = format!("{}.local:8787", name.trim().split('.').next().expect("a first part"));
    for host in [GATEWAY, &local] {
        assert_eq!(status(host, Some(key)), 200, "{host}");
        assert_eq!(status(host, None), 401, "{host}");
        assert_eq!(status(host, Some("fw-wrong")), 401, "{host}");
    }
    // The name is known by itself, and not because the key lifts the rule.
    assert_eq!(status("evil.example", None), 421);
    assert_eq!(chats(&alpha).len(), 2);
}

fn serve(terminal: &Terminal) -> Served {
    let mut child = Command::new(env!("CARGO_BIN_EXE_freeway"))
        .arg("serve")
        .current_dir(terminal.path())
        .env_clear()
        .env("ALPHA_API_KEY", "alpha-key")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the built program starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped above"));
    let served = Served(child);
    let mut line = String::new();
    out.read_line(&mut line).expect("a pipe can be read");
    assert!(line.contains("listening on http://0.0.0.0:8787"), "{line}");
    served
}

/// The status of a chat that the peer asks for by this host.
fn status(host: &str, key: Option<&str>) -> u16 {
    let address = |text: &str| text.parse::<SocketAddr>().expect("an address").into();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&address(PEER)).expect("the second address is there");
    socket.connect(&address(GATEWAY)).expect("the gateway listens");
    let mut stream = TcpStream::from(socket);
    let body = hello("auto").to_string();
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let length = body.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n{key}content-type: application/json\r\n\
         x-stainless-lang: python\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}
