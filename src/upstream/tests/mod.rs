//! Calls against tiny servers on loopback that say exactly the bytes that a case needs.
//!
//! `calls` is the ordinary exchange and what upstreams do to it, `lent` is bodies read by others, `time` is deadlines,
//! pulses and cuts, `ways` is names, proxies and TLS.
mod calls;
mod lent;
mod time;
mod ways;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{Accept, Call, Client, ClientConfig, Method, Reply};
use super::cut::Cut;
use super::watch::Watch;
use crate::base::text::Secret;
use crate::catalog::fixture;
use crate::catalog::provider::{Auth, Key, Provider, Slot};
use crate::catalog::slots::Slots;
use crate::wire::exchange::Fault;

/// Longer than anything takes, shorter than a stuck test is worth.
const PATIENCE: Duration = Duration::from_secs(20);
const SECRET: &str = "test-key-0123456789";

/// A server whose connections are handled by a script, each on a thread of its own.
struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// `script` gets each connection with its number, counted from 0.
    fn start(script: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let number = count.fetch_add(1, Ordering::SeqCst);
                let script = Arc::clone(&script);
                thread::spawn(move || script(number, stream));
            }
        });
        Server { address, connections }
    }

    /// A server that gives every request the same bytes and keeps its connections.
    fn saying(answer: impl Into<Vec<u8>>) -> Server {
        let answer = answer.into();
        Server::start(
            move |_, mut stream| {
                while read_request(&mut stream).is_some() && stream.write_all(&answer).is_ok() {}
            },
        )
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }
}

/// One request with a body of known length, or `None` when the client left.
fn read_request(stream: &mut impl Read) -> Option<String> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    let head = String::from_utf8(request).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Says nothing until the client is gone.
fn wait_for_leave(stream: &mut TcpStream) {
    let mut sink = [0; 4096];
    while matches!(stream.read(&mut sink), Ok(1..)) {}
}

fn provider(base_url: &str) -> Provider {
    let timeouts = json!({"connectMs": 5_000, "firstByteMs": 5_000, "idleMs": 5_000, "totalMs": 5_000});
    let file = json!({"id": "acme", "modelsEndpoint": null, "timeouts": timeouts});
    let made = fixture::provider(file, &mut Slots::default());
    // Put in afterwards, because some tests use addresses that no file may name.
    Provider { base_url: base_url.into(), keys: vec![key()], ..made }
}

fn key() -> Key {
    Key {
        slot: Slot(0),
        id: "acme:0".into(),
        secret: Secret::new(SECRET),
        masked: "test…".into(),
        source: "ACME_KEY".into(),
        account: Slot(0),
    }
}

fn client() -> Client {
    Client::new(ClientConfig::default()).unwrap()
}

/// What a test may want to be different in a call.
struct Asked<'a> {
    client: &'a Client,
    provider: &'a Provider,
    method: Method,
    path: &'a str,
    body: &'a [u8],
    accept: Accept,
    cut: Arc<Cut>,
    watch: Rc<Watch>,
}

impl<'a> Asked<'a> {
    fn new(client: &'a Client, provider: &'a Provider) -> Asked<'a> {
        Asked {
            client,
            provider,
            method: Method::Post,
            path: "/chat/completions",
            body: b"{\"model\":\"m\"}",
            accept: Accept::Json,
            cut: Cut::new(),
            watch: Watch::new(Instant::now() + PATIENCE),
        }
    }

    fn send(&self) -> Result<Reply, Fault> {
        self.client.send(&Call {
            provider: self.provider,
            key: &self.provider.keys[0],
            method: self.method,
            path: self.path,
            body: &[self.body],
            accept: self.accept,
            cut: &self.cut,
            watch: &self.watch,
        })
    }

    /// Sends, and reads the whole answer.
    fn text(&self) -> Result<String, Fault> {
        let bytes = self.send()?.body.read_all(1 << 20)?;
        Ok(String::from_utf8(bytes).unwrap())
    }
}

/// Sends an ordinary request and reads the whole answer.
fn ask(client: &Client, provider: &Provider) -> Result<String, Fault> {
    Asked::new(client, provider).text()
}

/// What is true of every fault: its message gives away neither the key nor where the upstream is.
fn fault_of<T>(outcome: Result<T, Fault>) -> Fault {
    let fault = match outcome {
        Ok(_) => panic!("a fault was expected"),
        Err(fault) => fault,
    };
    for secret in [SECRET, "127.0.0.1", "localhost", "up.test"] {
        assert!(!fault.message.contains(secret), "{fault:?}");
    }
    fault
}
