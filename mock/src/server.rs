//! The server: one thread that accepts, one a connection, and the control plane.
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::SockRef;

use crate::answer::{self, Answer, Speaker};
use crate::request::{self, Request};
use crate::script::{Call, State};
use crate::step::{Act, Step};
use crate::step_json;

/// The longest sleep in a wait that cannot be woken through the socket.
const NAP: Duration = Duration::from_millis(20);
/// Waits below this are slept: the kernel rounds socket timeouts up to its tick.
const TICK: Duration = Duration::from_millis(4);
/// How long a hold waits before it looks again whether it should.
const HOLD_SLICE: Duration = Duration::from_secs(1);
/// After a failed accept (no descriptors left), before the next.
const ACCEPT_BACK_OFF: Duration = Duration::from_millis(50);
/// The longest that one write may wait for a client that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct MockOptions {
    /// Stands in every answer, so that a test sees who gave it.
    pub name: String,
    pub host: String,
    /// 0 takes a free one.
    pub port: u16,
    /// Before each answer, besides what steps ask for.
    pub latency_ms: u64,
    /// What `GET /models` lists.
    pub models: Vec<String>,
    /// Closes a connection, without a word, after so many answers.
    pub keep_alive_requests: Option<u32>,
    /// Closes a connection, without a word, on which no request came for so long.
    pub keep_alive_ms: Option<u64>,
}

impl Default for MockOptions {
    fn default() -> MockOptions {
        MockOptions {
            name: "mock".into(),
            host: "127.0.0.1".into(),
            port: 0,
            latency_ms: 0,
            models: ["mock-small", "mock-large", "@mock/vendor/slashy-model"].map(String::from).to_vec(),
            keep_alive_requests: None,
            keep_alive_ms: None,
        }
    }
}

/// A running upstream. It stops when dropped.
pub struct MockUpstream {
    shared: Arc<Shared>,
    addr: SocketAddr,
    listener: TcpListener,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    options: MockOptions,
    state: Mutex<State>,
    /// Open connections by number, to be shut at the stop.
    connections: Mutex<HashMap<u64, TcpStream>>,
    stopping: AtomicBool,
}

impl MockUpstream {
    /// Binds and serves. An error is the port's.
    pub fn start(options: MockOptions) -> io::Result<MockUpstream> {
        let listener = TcpListener::bind((options.host.as_str(), options.port))?;
        let addr = listener.local_addr()?;
        let accepting_on = listener.try_clone()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(options.models.clone())),
            connections: Mutex::new(HashMap::new()),
            stopping: AtomicBool::new(false),
            options,
        });
        let accepting = Arc::clone(&shared);
        let name = format!("mock-{}", accepting.options.name);
        let acceptor = thread::Builder::new().name(name).spawn(move || accept(&accepting_on, &accepting))?;
        Ok(MockUpstream { shared, addr, listener, acceptor: Some(acceptor) })
    }

    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// The base URL, `/v1` included.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Replaces the script.
    pub fn script(&self, steps: impl IntoIterator<Item = Step>) {
        self.shared.state().set_script(steps.into_iter().collect());
    }

    /// Replaces what single keys get instead of the script.
    pub fn set_keys<K: Into<String>>(&self, keys: impl IntoIterator<Item = (K, Vec<Step>)>) {
        self.shared.state().set_keys(keys.into_iter().map(|(key, steps)| (key.into(), steps)).collect());
    }

    /// Replaces what single models get instead of the script.
    pub fn set_by_model<K: Into<String>>(&self, models: impl IntoIterator<Item = (K, Vec<Step>)>) {
        self.shared
            .state()
            .set_by_model(models.into_iter().map(|(model, steps)| (model.into(), steps)).collect());
    }

    /// Replaces the list of `GET /models`.
    pub fn set_models<T: Into<String>>(&self, ids: impl IntoIterator<Item = T>) {
        self.shared.state().models = ids.into_iter().map(Into::into).collect();
    }

    /// Forgets scripts and calls.
    pub fn reset(&self) {
        self.shared.state().reset();
    }

    /// All calls since the start or the last reset, in the order in which they had come in whole.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.state().calls()
    }

    /// The calls whose path ends so; `/chat/completions` finds them under any base path.
    pub fn calls_to(&self, path: &str) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.path().ends_with(path));
        calls
    }

    /// Connections open now.
    pub fn open_connections(&self) -> usize {
        self.shared.connections().len()
    }

    /// Closes the port and all connections; from now on connecting is refused. Calls can still be read.
    pub fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let Some(acceptor) = self.acceptor.take() else { return };
        // It wakes the acceptor, also where nobody can connect any more; and closing alone would not do while a process that
        // is just being spawned holds a copy of the descriptor.
        drop(SockRef::from(&self.listener).shutdown(Shutdown::Both));
        drop(acceptor.join());
        for stream in self.shared.connections().values() {
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    /// Waits until the server ends, which for a program is never.
    pub fn join(mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join());
        }
    }
}

impl Drop for MockUpstream {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut number = 0;
    loop {
        let accepted = listener.accept();
        if shared.stopping() {
            return;
        }
        let Ok((stream, _)) = accepted else {
            thread::sleep(ACCEPT_BACK_OFF);
            continue;
        };
        number += 1;
        let Ok(registered) = stream.try_clone() else { continue };
        shared.connections().insert(number, registered);
        let serving = Arc::clone(shared);
        let spawned = thread::Builder::new().name(format!("mock-conn-{number}")).spawn(move || {
            // A connection that fails is the client's affair.
            drop(Connection { stream, number, shared: &serving }.serve());
            serving.connections().remove(&number);
        });
        if spawned.is_err() {
            shared.connections().remove(&number);
        }
    }
}

/// Why an answer was not finished.
enum Stopped {
    ClientLeft,
    /// The script or the stop closed the connection.
    Closed,
    /// The script wants a reset, which an orderly shutdown would prevent.
    Reset,
}

struct Connection<'a> {
    stream: TcpStream,
    number: u64,
    shared: &'a Shared,
}

impl Connection<'_> {
    fn serve(mut self) -> io::Result<()> {
        let options = &self.shared.options;
        self.stream.set_nodelay(true)?;
        self.stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let mut unread = Vec::new();
        let mut answered = 0;
        loop {
            self.stream.set_read_timeout(options.keep_alive_ms.map(|ms| Duration::from_millis(ms.max(1))))?;
            let Some(request) = request::read(&mut self.stream, &mut unread)? else { return Ok(()) };
            let call = self.shared.state().record(self.number, &request);
            let answer = self.answer(call, &request);
            let keep = answer.keep && request.keep_alive;
            let outcome = self.play(answer);
            if let Some(call) = self.shared.state().call_mut(call) {
                let after = Some(call.at.elapsed());
                match outcome {
                    Err(Stopped::ClientLeft) => call.left_after = after,
                    _ => call.answered_after = after,
                }
            }
            answered += 1;
            match outcome {
                Err(Stopped::Reset) => return Ok(()),
                Ok(()) if keep && options.keep_alive_requests.is_none_or(|most| answered < most) => {}
                _ => return self.stream.shutdown(Shutdown::Both),
            }
        }
    }

    fn answer(&self, number: u64, request: &Request) -> Answer {
        match (request.method.as_str(), request.path.as_str()) {
            (_, "/__control" | "/v1/__control") => control(&mut self.shared.state(), request),
            (_, "/__calls" | "/v1/__calls") => {
                let views: Vec<Value> = self.shared.state().calls().iter().map(Call::view).collect();
                answer::plain(200, &json!({"calls": views}))
            }
            _ => {
                let mut state = self.shared.state();
                let step = state.choose(request);
                let speaker = Speaker { name: &self.shared.options.name, models: &state.models, number };
                let mut answer = answer::make(&speaker, &step, request);
                let delay_ms = step.delay_ms + self.shared.options.latency_ms;
                if delay_ms > 0 {
                    answer.acts.insert(0, Act::Pause(delay_ms));
                }
                if let Some(call) = state.call_mut(number) {
                    call.status = answer.status;
                }
                answer
            }
        }
    }

    fn play(&mut self, answer: Answer) -> Result<(), Stopped> {
        for act in answer.acts {
            match act {
                Act::Write(bytes) => self.write(&bytes)?,
                Act::Repeat { bytes, times, pause_ms } => {
                    for _ in 0..times {
                        self.write(&bytes)?;
                        self.pause(Some(Duration::from_millis(pause_ms)))?;
                    }
                }
                Act::Pause(ms) => self.pause(Some(Duration::from_millis(ms)))?,
                Act::Hold => self.pause(None)?,
                Act::Close => return Err(Stopped::Closed),
                Act::Reset => {
                    self.prepare_reset();
                    return Err(Stopped::Reset);
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        self.stream.write_all(bytes).map_err(|_| Stopped::ClientLeft)
    }

    /// Waits, for ever without a limit, and notices a client that leaves: an end of its stream counts, since no
    /// client of ours closes half a connection and goes on reading.
    fn pause(&self, limit: Option<Duration>) -> Result<(), Stopped> {
        let end = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = end.map_or(HOLD_SLICE, |end| end.saturating_duration_since(Instant::now()));
            if left < TICK {
                thread::sleep(left);
                return Ok(());
            }
            drop(self.stream.set_read_timeout(Some(left)));
            match self.stream.peek(&mut [0]) {
                _ if self.shared.stopping() => return Err(Stopped::Closed),
                Ok(0) => return Err(Stopped::ClientLeft),
                // The next request is here already; nothing can be learnt from the socket until it is read.
                Ok(_) => thread::sleep(left.min(NAP)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Stopped::ClientLeft),
            }
        }
    }

    /// With no time to linger, the close that follows is a reset. The registered duplicate has to go first, since only
    /// the last descriptor closes.
    fn prepare_reset(&mut self) {
        drop(SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)));
        self.shared.connections().remove(&self.number);
    }
}

/// `POST /__control`: `{reset?, script?, keys?, byModel?, models?}`, all or nothing.
fn control(state: &mut State, request: &Request) -> Answer {
    if request.method != "POST" {
        return answer::plain(405, &json!({"error": "POST a JSON object here"}));
    }
    match changes(request.json.as_ref()) {
        Ok(changes) => {
            if changes.reset {
                state.reset();
            }
            if let Some(script) = changes.script {
                state.set_script(script);
            }
            if let Some(keys) = changes.keys {
                state.set_keys(keys);
            }
            if let Some(by_model) = changes.by_model {
                state.set_by_model(by_model);
            }
            if let Some(models) = changes.models {
                state.models = models;
            }
            answer::plain(200, &json!({"ok": true}))
        }
        Err(problem) => answer::plain(400, &json!({"error": problem})),
    }
}

#[derive(Default)]
struct Changes {
    reset: bool,
    script: Option<Vec<Step>>,
    keys: Option<BTreeMap<String, Vec<Step>>>,
    by_model: Option<BTreeMap<String, Vec<Step>>>,
    models: Option<Vec<String>>,
}

fn changes(body: Option<&Value>) -> Result<Changes, String> {
    let fields = body.and_then(Value::as_object).ok_or("the body must be a JSON object")?;
    let mut changes = Changes::default();
    for (name, value) in fields {
        let read =
            |problem: String| format!("{name}{}{problem}", if problem.starts_with('[') { "" } else { "." });
        match name.as_str() {
            "reset" => changes.reset = value.as_bool().ok_or("reset must be true or false")?,
            "script" => changes.script = Some(step_json::steps(value).map_err(read)?),
            "keys" => changes.keys = Some(scripts(value).map_err(read)?),
            "byModel" => changes.by_model = Some(scripts(value).map_err(read)?),
            "models" => {
                let ids = value
                    .as_array()
                    .and_then(|ids| ids.iter().map(|id| id.as_str().map(String::from)).collect());
                changes.models = Some(ids.ok_or("models must be a list of strings")?);
            }
            _ => return Err(format!("{name}: unknown; known are reset, script, keys, byModel, models")),
        }
    }
    Ok(changes)
}

fn scripts(value: &Value) -> Result<BTreeMap<String, Vec<Step>>, String> {
    let fields = value.as_object().ok_or("must be an object of steps")?;
    let read = |(name, value): (&String, &Value)| {
        step_json::steps(value)
            .map(|steps| (name.clone(), steps))
            .map_err(|problem| format!("{name}.{problem}"))
    };
    fields.iter().map(read).collect()
}
