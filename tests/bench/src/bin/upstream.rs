//! The upstream of the benchmark: answers chat completions at once, or streams them at a steady pace, on one thread.
//! It does as little as it can, so that it is not what gets measured.
//!
//! `POST` to any path is a chat completion; with `"stream":true` it is streamed. The text of a message may say
//! `chunks=50` and `delay_ms=20`. `GET` answers a list of one model. Each chunk carries the time it was written.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use bench_rig::{find, header, number_after, stamp, wall_us};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

const LISTENER: Token = Token(usize::MAX);
/// Requests larger than this end the connection.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;

const COMPLETION: &str = concat!(
    r#"{"id":"chatcmpl-bench","object":"chat.completion","created":1764500000,"model":"mock-model","#,
    r#""choices":[{"index":0,"message":{"role":"assistant","content":"The quick brown fox jumps over the lazy dog."},"#,
    r#""finish_reason":"stop"}],"usage":{"prompt_tokens":21,"completion_tokens":10,"total_tokens":31}}"#
);
const MODELS: &str = r#"{"object":"list","data":[{"id":"mock-model","object":"model","owned_by":"bench"}]}"#;
const CHUNK_OPENS: &str = r#"{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1764500000,"model":"mock-model","choices":"#;
const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A stream that still has chunks to write.
struct Stream {
    chunks_left: u64,
    every: Duration,
    wants_usage: bool,
}

struct Peer {
    socket: TcpStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    stream: Option<Stream>,
    /// Tells a timer of this peer from one of an earlier peer in the same place.
    serial: u64,
}

struct Upstream {
    poll: Poll,
    peers: Vec<Option<Peer>>,
    free: Vec<usize>,
    timers: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    serial: u64,
}

fn main() -> io::Result<()> {
    let mut listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address"))?;
    let mut upstream = Upstream {
        poll: Poll::new()?,
        peers: Vec::new(),
        free: Vec::new(),
        timers: BinaryHeap::new(),
        serial: 0,
    };
    upstream.poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    println!("upstream listening on http://{}", listener.local_addr()?);
    let mut events = Events::with_capacity(1024);
    loop {
        let wait =
            upstream.timers.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
        match upstream.poll.poll(&mut events, wait) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in &events {
            match event.token() {
                LISTENER => upstream.accept(&listener)?,
                Token(at) => upstream.ready(at, event.is_readable(), event.is_writable()),
            }
        }
        upstream.fire();
    }
}

impl Upstream {
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        loop {
            let mut socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            socket.set_nodelay(true)?;
            let at = self.free.pop().unwrap_or_else(|| {
                self.peers.push(None);
                self.peers.len() - 1
            });
            self.poll.registry().register(&mut socket, Token(at), Interest::READABLE | Interest::WRITABLE)?;
            self.serial += 1;
            let (inbox, outbox) = (Vec::with_capacity(2048), Vec::with_capacity(2048));
            self.peers[at] = Some(Peer { socket, inbox, outbox, stream: None, serial: self.serial });
        }
    }

    fn ready(&mut self, at: usize, readable: bool, writable: bool) {
        let Some(peer) = &mut self.peers[at] else { return };
        let mut alive = true;
        if readable {
            let had_timer = peer.stream.is_some();
            alive = peer.read() && peer.answer();
            if let Some(stream) = peer.stream.as_ref().filter(|_| alive && !had_timer) {
                self.timers.push(Reverse((Instant::now() + stream.every, at, peer.serial)));
            }
        }
        if alive && (writable || !peer.outbox.is_empty()) {
            alive = peer.flush();
        }
        if !alive {
            self.peers[at] = None;
            self.free.push(at);
        }
    }

    /// Writes the chunks that are due.
    fn fire(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((due, at, serial))) =
            self.timers.peek().copied().filter(|timer| timer.0.0 <= now)
        {
            self.timers.pop();
            let Some(peer) = self.peers[at].as_mut().filter(|peer| peer.serial == serial) else { continue };
            if let Some(every) = peer.next_chunk() {
                self.timers.push(Reverse((due + every, at, serial)));
            }
            if !peer.flush() {
                self.peers[at] = None;
                self.free.push(at);
            }
        }
    }
}

impl Peer {
    /// Whether the peer is still there.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return false,
                Ok(got) => self.inbox.extend_from_slice(&buffer[..got]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.inbox.len() < REQUEST_BYTES_MAX;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Answers the whole requests in the inbox; false when one makes no sense.
    fn answer(&mut self) -> bool {
        while self.stream.is_none() {
            let Some(end) = find(&self.inbox, b"\r\n\r\n") else { return true };
            let Ok(head) = std::str::from_utf8(&self.inbox[..end]) else { return false };
            let length = match header(head, "content-length").map(str::parse::<usize>) {
                None if header(head, "transfer-encoding").is_some() => return false,
                None => 0,
                Some(Ok(length)) => length,
                Some(Err(_)) => return false,
            };
            let whole = end + 4 + length;
            if self.inbox.len() < whole {
                return true;
            }
            let is_get = head.starts_with("GET ");
            let body = &self.inbox[end + 4..whole];
            match says(body, "stream") {
                true => {
                    self.stream = Some(Stream {
                        chunks_left: number_after(body, "chunks=").unwrap_or(50).max(1),
                        every: Duration::from_millis(number_after(body, "delay_ms=").unwrap_or(20)),
                        wants_usage: says(body, "include_usage"),
                    });
                    self.outbox.extend_from_slice(STREAM_HEAD.as_bytes());
                    self.event(&format!(
                        r#"{CHUNK_OPENS}[{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]}}"#
                    ));
                    self.next_chunk();
                }
                false => self.whole(if is_get { MODELS } else { COMPLETION }),
            }
            self.inbox.drain(..whole);
        }
        true
    }

    fn whole(&mut self, body: &str) {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.outbox.extend_from_slice(head.as_bytes());
        self.outbox.extend_from_slice(body.as_bytes());
    }

    /// Adds the next chunk to the outbox, and all that ends a stream after the last one. Tells when the next is due.
    fn next_chunk(&mut self) -> Option<Duration> {
        let stream = self.stream.as_mut()?;
        stream.chunks_left -= 1;
        let (last, every, wants_usage) = (stream.chunks_left == 0, stream.every, stream.wants_usage);
        let text = stamp(wall_us());
        self.event(&format!(
            r#"{CHUNK_OPENS}[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#
        ));
        if !last {
            return Some(every);
        }
        self.event(&format!(r#"{CHUNK_OPENS}[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}"#));
        if wants_usage {
            let usage = r#"{"prompt_tokens":21,"completion_tokens":50,"total_tokens":71}"#;
            self.event(&format!(r#"{CHUNK_OPENS}[],"usage":{usage}}}"#));
        }
        self.event("[DONE]");
        self.outbox.extend_from_slice(b"0\r\n\r\n");
        self.stream = None;
        None
    }

    fn event(&mut self, data: &str) {
        let length = "data: ".len() + data.len() + 2;
        self.outbox.extend_from_slice(format!("{length:x}\r\ndata: {data}\n\n\r\n").as_bytes());
    }

    /// Whether the peer is still there.
    fn flush(&mut self) -> bool {
        while !self.outbox.is_empty() {
            match self.socket.write(&self.outbox) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Whether a body sets this member to true.
fn says(body: &[u8], name: &str) -> bool {
    let quoted = format!("\"{name}\":");
    find(body, quoted.as_bytes())
        .is_some_and(|at| body[at + quoted.len()..].trim_ascii_start().starts_with(b"true"))
}
