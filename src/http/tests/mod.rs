//! The transport against raw sockets: a server with a scripted door, and clients that see every byte.
//!
//! | file | holds |
//! |---|---|
//! | `heads` | what a request head may be, and how it may arrive |
//! | `bodies` | bodies: framing, sizes, compression, deadlines, the shared budget |
//! | `answers` | the form of answers and streams, and what a panic leaves behind |
//! | `leaving` | clients that go away, wait, or send the next request early |
//! | `limits` | how many connections there may be, running out of descriptors, stopping |
mod answers;
mod bodies;
mod heads;
mod leaving;
mod limits;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::catalog::settings::ServerSettings;
use crate::wire::error::ApiError;

/// Longest that a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

fn settings() -> ServerSettings {
    ServerSettings {
        workers: 4,
        queue: 4,
        connections: Some(64),
        per_address: 64,
        body_bytes: 1 << 20,
        bodies_in_flight_bytes: 32 << 20,
        head_ms: 10_000,
        body_ms: 10_000,
        // Beyond the patience of all tests, so that none passes by waiting for it.
        idle_ms: 120_000,
        write_ms: 10_000,
        stop_ms: 1_000,
    }
}

/// A running server whose door does what the path says.
struct House {
    server: Server,
    address: SocketAddr,
    /// What `/hold` reports: `began`, then `cut` or `released`.
    news: Receiver<&'static str>,
    /// Lets one `/hold` go on.
    release: Sender<()>,
}

struct Script {
    news: Mutex<Sender<&'static str>>,
    released: Mutex<Receiver<()>>,
    body_bytes: usize,
}

impl House {
    fn new() -> House {
        House::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut ServerSettings)) -> House {
        let mut settings = settings();
        change(&mut settings);
        House::on("127.0.0.1:0", &settings)
    }

    fn on(bind: &str, settings: &ServerSettings) -> House {
        let (tell, news) = channel();
        let (release, released) = channel();
        let script = Arc::new(Script {
            news: Mutex::new(tell),
            released: Mutex::new(released),
            body_bytes: settings.body_bytes,
        });
        let listener = TcpListener::bind(bind).unwrap();
        let door = move |head: Head, peer: SocketAddr| Script::admit(&script, head, peer);
        let server = Server::start(listener, settings, Box::new(door)).unwrap();
        let address = server.local_addr().unwrap();
        House { server, address, news, release }
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }

    fn figures(&self) -> Figures {
        self.server.monitor().figures()
    }

    fn expect_news(&self, expected: &str) {
        assert_eq!(self.news.recv_timeout(PATIENCE), Ok(expected));
    }

    /// No connection is left: neither on the list, nor a descriptor of one.
    fn expect_nobody(&self) {
        let port = self.address.port();
        eventually("all connections are gone", || {
            self.figures().connections == 0 && sock::count_connections(port) == 0
        });
    }

    /// A well-behaved client is served.
    fn expect_served(&self) {
        let mut client = self.client();
        client.send("POST /echo HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\n\r\nfine");
        assert_eq!(client.answer(), (200, "fine".into()));
    }
}

impl Script {
    fn admit(script: &Arc<Script>, head: Head, peer: SocketAddr) -> Admission {
        let script = Arc::clone(script);
        let path = head.path().to_owned();
        let text = |text: String| Answer::of_type(200, "text/plain", text.into_bytes());
        match path.as_str() {
            "/now" => return Admission::Answer(text(format!("now {peer}"))),
            "/none" => return Admission::Answer(Answer::empty(204)),
            "/denied" => {
                let error = ApiError::new(401, "invalid_api_key", "no").header("www-authenticate", "Bearer");
                return Admission::Answer(Answer::error(&error));
            }
            "/panic/door" => panic!("on purpose"),
            _ => {}
        }
        let terms = Terms {
            max_bytes: script.body_bytes,
            headers: vec![("x-request-id", "r1".into())],
            ..Terms::default()
        };
        let then = move |body: Vec<u8>| match path.as_str() {
            "/echo" => Next::Answer(Answer::of_type(200, "text/plain", body)),
            "/panic/then" => panic!("on purpose"),
            "/depth" => Next::Answer(text(depth(&serde_json::from_slice(&body).unwrap()).to_string())),
            "/here" => Next::Here(Box::new(move |responder| work("/work", body, responder, &script))),
            "/live" => Next::Here(Box::new(move |responder| work("/live", body, responder, &script))),
            "/panic/here" => Next::Here(Box::new(|_| panic!("on purpose"))),
            _ => Next::Work(Box::new(move |responder| work(&path, body, responder, &script))),
        };
        Admission::Body(terms, Box::new(then))
    }

    /// Waits until the test releases it, or its client has left.
    fn hold(&self, responder: &Responder) -> bool {
        self.news.lock().send("began").unwrap();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if responder.is_abandoned() {
                self.news.lock().send("cut").unwrap();
                return false;
            }
            if self.released.lock().recv_timeout(Duration::from_millis(5)).is_ok() {
                self.news.lock().send("released").unwrap();
                return true;
            }
        }
        panic!("neither cut nor released");
    }
}

/// The jobs of workers. Errors of writing are the clients' doing and none of the tests' concern here.
fn work(path: &str, body: Vec<u8>, responder: Responder, script: &Script) {
    let events = || vec![("content-type", "text/event-stream; charset=utf-8".into())];
    match path {
        "/hold" => {
            if script.hold(&responder) {
                let _ = responder.whole(&Answer::of_type(200, "text/plain", body));
            }
        }
        "/forget" => drop(responder),
        "/slow-end" => {
            let _ = responder.whole(&Answer::of_type(200, "text/plain", body));
            std::thread::sleep(Duration::from_millis(300));
        }
        "/slow-end/stream" => {
            let _ = responder.stream(200, events()).end(b"data: [DONE]\n\n");
            std::thread::sleep(Duration::from_millis(300));
        }
        "/panic/work" => panic!("on purpose"),
        "/panic/stream" => {
            let mut stream = responder.stream(200, events());
            let _ = stream.frame(b"data: 1\n\n");
            panic!("on purpose");
        }
        "/stream" => {
            let mut stream = responder.stream(200, events());
            let _ = stream.frame(b"data: 1\n\n").and_then(|()| stream.frame(b"data: two\n\n"));
            let _ = stream.end(b"data: [DONE]\n\n");
        }
        "/live" => {
            let mut stream = responder.stream(200, events());
            let start = Instant::now();
            let _ = stream.frame(b": live\n\n");
            while start.elapsed() < PATIENCE && !stream.is_abandoned() {
                std::thread::sleep(Duration::from_millis(5));
            }
            script.news.lock().send("left").unwrap();
        }
        "/flood" => {
            let mut stream = responder.stream(200, events());
            let frame = [b'x'; 64 * 1024];
            let start = Instant::now();
            while start.elapsed() < PATIENCE {
                if let Err(error) = stream.frame(&frame) {
                    script.news.lock().send("write failed").unwrap();
                    assert!(stream.cut().is_cut(), "{error}");
                    return;
                }
            }
        }
        _ => {
            let _ = responder.whole(&Answer::of_type(200, "text/plain", body.len().to_string().into_bytes()));
        }
    }
}

/// Runs the test called `name` in a process of its own, for what is measured or limited by process. True in that
/// process, false in the one that started it, where the test has passed then.
fn is_alone(name: &str, before: &str) -> bool {
    const INSIDE: &str = "FREEWAY_TEST_ALONE";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("{before} exec \"$0\" --exact \"$1\" --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .arg(format!("http::tests::{name}"))
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

/// Processor time that the readers of this process have used.
fn reader_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
    let readers =
        tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "client\n"));
    let used = readers.filter_map(|task| std::fs::read_to_string(task.join("schedstat")).ok());
    used.map(|text| Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())).sum()
}

fn depth(value: &serde_json::Value) -> usize {
    1 + value.as_array().map_or(0, |items| items.iter().map(depth).max().unwrap_or(0))
}

/// A client on a raw socket.
struct Client {
    socket: TcpStream,
    /// Bytes that came behind the last answer.
    rest: Vec<u8>,
    /// The head of the last answer.
    head: String,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { socket, rest: Vec::new(), head: String::new() }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends to a server that may already have closed.
    fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.socket.write_all(bytes.as_ref()).is_ok()
    }

    /// Reads one answer with a `content-length`: status and body.
    fn answer(&mut self) -> (u16, String) {
        self.answer_to("GET")
    }

    fn answer_to(&mut self, method: &str) -> (u16, String) {
        let end =
            self.read_until(|bytes| bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4));
        self.head = String::from_utf8(self.rest.drain(..end).collect()).unwrap();
        let length = self.header("content-length").map_or(0, |text| text.parse().unwrap());
        let length = if method == "HEAD" { 0 } else { length };
        self.read_until(|bytes| (bytes.len() >= length).then_some(length));
        let body = String::from_utf8(self.rest.drain(..length).collect()).unwrap();
        (self.head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    /// A header of the last answer.
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn read_until(&mut self, found: impl Fn(&[u8]) -> Option<usize>) -> usize {
        loop {
            if let Some(end) = found(&self.rest) {
                return end;
            }
            let mut buffer = [0; 4096];
            match self.socket.read(&mut buffer) {
                Ok(0) => panic!("closed after {:?}", String::from_utf8_lossy(&self.rest)),
                Ok(count) => self.rest.extend_from_slice(&buffer[..count]),
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&self.rest)),
            }
        }
    }

    /// Everything until the server closes.
    fn until_close(&mut self) -> String {
        let mut bytes = std::mem::take(&mut self.rest);
        self.socket.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// The server closes and says nothing more.
    fn expect_close(&mut self) {
        assert_eq!(self.until_close(), "");
    }

    /// A JSON error with all four fields, after which the connection closes.
    fn expect_refusal(&mut self, status: u16) {
        let (got, body) = self.answer();
        assert_eq!(got, status, "{body}");
        assert_eq!(self.header("connection"), Some("close"));
        expect_error(&body);
        self.expect_close();
    }
}

fn expect_error(body: &str) -> serde_json::Value {
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    let fields: Vec<_> = value["error"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["code", "message", "param", "type"]);
    value
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A request that is served at once.
const NOW: &str = "GET /now HTTP/1.1\r\nHost: g\r\n\r\n";

/// A POST with a body of known length.
fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: g\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
