//! The load generator of the benchmark. One line of JSON goes to stdout; times are in microseconds.
//!
//!     load pair   --seconds 10 --target direct=URL --target nginx=URL ...
//!         one connection to each target, requests strictly in turn, each target first as often: what one client waits
//!     load stream --target freeway=URL --clients 64 --repeats 3 --chunks 50 --delay-ms 20 [--spread-ms 20]
//!         clients that read one stream after the other: first token, delay of each chunk, what was lost
//!
//! Further options: `--key KEY` and `--model NAME`. Each request's text differs, so that no cache can answer it; with
//! `--same 1` all are one, at temperature 0, which a cache answers from the second on.
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as Blocking};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bench_rig::{Answer, loopback, stamp_in, wall_us};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// A stream that takes this much longer than it should has failed.
const STREAM_GRACE: Duration = Duration::from_secs(30);
/// Each side of `pair` gets this many calls before any counts.
const WARM_UP_CALLS: usize = 50;

struct Options {
    targets: Vec<(String, SocketAddr)>,
    key: String,
    model: String,
    seconds: u64,
    clients: usize,
    repeats: usize,
    chunks: usize,
    delay_ms: u64,
    spread_ms: u64,
    /// All requests are one and the same, such as a cache answers.
    same: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let outcome = options(arguments).and_then(|options| match mode.as_str() {
        "pair" => pair(&options),
        "stream" => stream(&options),
        _ => Err("want `pair` or `stream`".into()),
    });
    match outcome {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("load: {message}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        targets: Vec::new(),
        key: String::new(),
        model: "mock-model".into(),
        seconds: 5,
        clients: 16,
        repeats: 3,
        chunks: 50,
        delay_ms: 20,
        spread_ms: 20,
        same: false,
    };
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} wants a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name}: {value} is no number"));
        match name.as_str() {
            "--target" => {
                let (label, url) = value.split_once('=').ok_or("--target wants NAME=URL")?;
                options.targets.push((label.to_owned(), loopback(url)?));
            }
            "--key" => options.key = value,
            "--model" => options.model = value,
            "--seconds" => options.seconds = number()?,
            "--clients" => options.clients = number()? as usize,
            "--repeats" => options.repeats = number()? as usize,
            "--chunks" => options.chunks = number()? as usize,
            "--delay-ms" => options.delay_ms = number()?,
            "--spread-ms" => options.spread_ms = number()?,
            "--same" => options.same = number()? != 0,
            _ => return Err(format!("{name} is no option")),
        }
    }
    if options.targets.is_empty() { Err("no --target".into()) } else { Ok(options) }
}

impl Options {
    /// One chat request, head and body.
    fn request(&self, target: SocketAddr, stream: bool) -> Vec<u8> {
        let body = format!(
            concat!(
                r#"{{"model":"{}","stream":{},{}"messages":[{{"role":"system","content":"You are a helpful assistant."}},"#,
                r#"{{"role":"user","content":"Say something short about foxes and dogs. chunks={} delay_ms={} n={}"}}]}}"#
            ),
            self.model,
            stream,
            if self.same { r#""temperature":0,"# } else { "" },
            self.chunks,
            self.delay_ms,
            if self.same { 0 } else { wall_us() }
        );
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {target}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        )
        .into_bytes()
    }
}

/// The value below which a share of the sorted values lies.
fn share(sorted: &[u64], share: f64) -> u64 {
    let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0)
}

fn spread(name: &str, values: &mut [u64]) -> String {
    values.sort_unstable();
    format!(
        r#""{name}":{{"count":{},"p50":{},"p90":{},"p99":{}}}"#,
        values.len(),
        share(values, 0.5),
        share(values, 0.9),
        share(values, 0.99)
    )
}

/// Asks all targets in turn, one call at a time.
fn pair(options: &Options) -> Result<String, String> {
    let mut sides = Vec::new();
    for (name, address) in &options.targets {
        let socket = Blocking::connect(address).map_err(|error| format!("{name}: {error}"))?;
        socket
            .set_nodelay(true)
            .and_then(|()| socket.set_read_timeout(Some(STREAM_GRACE)))
            .map_err(|e| e.to_string())?;
        sides.push((name, *address, socket, Vec::new()));
    }
    let mut until = None;
    for round in 0_usize.. {
        if round == WARM_UP_CALLS {
            until = Some(Instant::now() + Duration::from_secs(options.seconds));
        }
        if until.is_some_and(|until| Instant::now() > until) {
            break;
        }
        // Who comes after whom matters when cores fall asleep between calls, so the order rotates.
        let count = sides.len();
        for at in (0..count).map(|offset| (round + offset) % count) {
            let (name, address, socket, waited) = &mut sides[at];
            let request = options.request(*address, false);
            let started = Instant::now();
            call(socket, &request).map_err(|error| format!("{name}: {error}"))?;
            if until.is_some() {
                waited.push(started.elapsed().as_micros() as u64);
            }
        }
    }
    let all: Vec<String> = sides.iter_mut().map(|(name, _, _, waited)| spread(name, waited)).collect();
    Ok(format!("{{{}}}", all.join(",")))
}

/// One call on a kept connection; anything but a whole 200 is an error.
fn call(socket: &mut Blocking, request: &[u8]) -> Result<(), String> {
    socket.write_all(request).map_err(|error| error.to_string())?;
    let (mut answer, mut buffer, mut body) = (Answer::default(), [0; 16 * 1024], Vec::new());
    while !answer.is_done() {
        let got = socket.read(&mut buffer).map_err(|error| error.to_string())?;
        if got == 0 {
            return Err("closed before the answer".into());
        }
        answer.push(&buffer[..got], |bytes| body.extend_from_slice(bytes))?;
    }
    if answer.status == 200 { Ok(()) } else { Err(refusal(answer.status, &body)) }
}

fn refusal(status: u16, body: &[u8]) -> String {
    format!("status {status}: {}", String::from_utf8_lossy(&body[..body.len().min(300)]))
}

/// One client that reads streams, each on the connection of the one before.
struct Client {
    socket: Option<TcpStream>,
    answer: Answer,
    /// Bytes of the line that is not complete yet; of the whole body when the answer is a refusal.
    line: Vec<u8>,
    starts_at: Instant,
    started: Instant,
    running: bool,
    left: usize,
    chunks: usize,
    done: bool,
}

#[derive(Default)]
struct Tally {
    first_us: Vec<u64>,
    delay_us: Vec<u64>,
    chunks: usize,
    complete: usize,
    failed: usize,
    first_failure: Option<String>,
}

fn stream(options: &Options) -> Result<String, String> {
    let (name, address) = &options.targets[0];
    let begun = Instant::now();
    let mut poll = Poll::new().map_err(|error| error.to_string())?;
    let mut tally = Tally::default();
    let mut clients: Vec<Client> = (0..options.clients)
        .map(|at| {
            Client::new(
                begun + Duration::from_millis(options.spread_ms * at as u64 / options.clients as u64),
                options,
            )
        })
        .collect();
    let one = Duration::from_millis(options.delay_ms * options.chunks as u64);
    let deadline =
        begun + one * options.repeats as u32 + Duration::from_millis(options.spread_ms) + STREAM_GRACE;
    let mut events = Events::with_capacity(1024);
    while clients.iter().any(|client| client.left > 0) {
        if Instant::now() > deadline {
            let late = clients.iter().map(|client| client.left).sum();
            tally.fail(late, "it took too long");
            break;
        }
        let next =
            clients.iter().filter(|client| !client.running && client.left > 0).map(|c| c.starts_at).min();
        let wait = next.map_or(Duration::from_millis(100), |at| at.saturating_duration_since(Instant::now()));
        match poll.poll(&mut events, Some(wait.min(Duration::from_millis(100)))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => other.map_err(|error| error.to_string())?,
        }
        for event in &events {
            let client = &mut clients[event.token().0];
            if let Err(message) = client.read(options, &mut tally) {
                client.give_up(&message, &mut tally);
            }
        }
        let now = Instant::now();
        for (at, client) in clients.iter_mut().enumerate() {
            if !client.running && client.left > 0 && client.starts_at <= now {
                if let Err(error) = client.start(options, *address, &mut poll, Token(at)) {
                    client.give_up(&error.to_string(), &mut tally);
                }
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let failure = tally.first_failure.take().map_or("null".into(), |text| format!("{text:?}"));
    Ok(format!(
        r#"{{"target":"{name}","chunks":{},"complete":{},"failed":{},"failure":{failure},"seconds":{seconds:.3},{},{}}}"#,
        tally.chunks,
        tally.complete,
        tally.failed,
        spread("first_token", &mut tally.first_us),
        spread("chunk_delay", &mut tally.delay_us)
    ))
}

impl Tally {
    fn fail(&mut self, streams: usize, why: &str) {
        self.failed += streams;
        self.first_failure.get_or_insert_with(|| why.to_owned());
    }
}

impl Client {
    fn new(starts_at: Instant, options: &Options) -> Client {
        Client {
            socket: None,
            answer: Answer::default(),
            line: Vec::with_capacity(1024),
            starts_at,
            started: starts_at,
            running: false,
            left: options.repeats,
            chunks: 0,
            done: false,
        }
    }

    fn start(
        &mut self,
        options: &Options,
        address: SocketAddr,
        poll: &mut Poll,
        token: Token,
    ) -> io::Result<()> {
        self.started = Instant::now();
        if self.socket.is_none() {
            // Connecting on loopback does not wait, so a plain connect keeps this simple; it counts, as for any client.
            let socket = Blocking::connect(address)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            let mut socket = TcpStream::from_std(socket);
            poll.registry().register(&mut socket, token, Interest::READABLE)?;
            self.socket = Some(socket);
        }
        self.answer = Answer::default();
        self.line.clear();
        (self.running, self.chunks, self.done) = (true, 0, false);
        let request = options.request(address, true);
        // A request is far smaller than a socket's buffer, so it is taken whole.
        self.socket.as_mut().expect("it was just made").write_all(&request)
    }

    fn read(&mut self, options: &Options, tally: &mut Tally) -> Result<(), String> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let Some(socket) = &mut self.socket else { return Ok(()) };
            match socket.read(&mut buffer) {
                Ok(0) if !self.running => {
                    self.socket = None;
                    return Ok(());
                }
                Ok(0) => return Err("closed within a stream".into()),
                Ok(got) => self.take(&buffer[..got], options, tally)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn take(&mut self, bytes: &[u8], options: &Options, tally: &mut Tally) -> Result<(), String> {
        let Client { answer, line, chunks, done, started, .. } = self;
        let now_us = wall_us();
        answer.push(bytes, |mut body| {
            while let Some(end) = body.iter().position(|&byte| byte == b'\n') {
                line.extend_from_slice(&body[..end]);
                body = &body[end + 1..];
                if let Some(written_us) = stamp_in(line) {
                    if *chunks == 0 {
                        tally.first_us.push(started.elapsed().as_micros() as u64);
                    }
                    *chunks += 1;
                    tally.delay_us.push(now_us.saturating_sub(written_us));
                }
                *done |= line.starts_with(b"data: [DONE]");
                line.clear();
            }
            line.extend_from_slice(body);
        })?;
        if !self.answer.is_done() {
            return Ok(());
        }
        if self.answer.status != 200 {
            return Err(refusal(self.answer.status, &self.line));
        }
        if self.chunks != options.chunks || !self.done {
            return Err(format!("{} of {} chunks, [DONE]: {}", self.chunks, options.chunks, self.done));
        }
        tally.chunks += self.chunks;
        tally.complete += 1;
        self.left -= 1;
        self.running = false;
        self.starts_at = Instant::now();
        Ok(())
    }

    /// Counts this stream as failed and goes on with the next on a fresh connection.
    fn give_up(&mut self, why: &str, tally: &mut Tally) {
        tally.fail(1, why);
        self.left -= 1;
        self.running = false;
        self.socket = None;
        self.starts_at = Instant::now();
    }
}
