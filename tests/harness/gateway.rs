//! The built program in a private folder, on a port of its own: started, asked, restarted, killed, and expected to end
//! well.
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tempfile::TempDir;

use super::answer::Answer;
use super::eventually;
use super::provider::Provider;
use super::request::{Request, hello, hello_with};
use super::terminal::{Ran, run};
use super::wire::{Live, Wire};

/// How long a start may take. It takes milliseconds, but the machine may be busy.
const START_MAX: Duration = Duration::from_secs(30);
/// How long an orderly stop may take.
const STOP_MAX: Duration = Duration::from_secs(30);
/// What the program says once it serves.
const READY: &str = "freeway listening on http://";

/// What a gateway is made of.
pub struct Builder {
    binary: PathBuf,
    args: Vec<String>,
    settings: Map<String, Value>,
    env: Vec<(String, String)>,
    files: Vec<(PathBuf, String)>,
    folders: Vec<PathBuf>,
    key: Option<String>,
}

/// A running gateway. When dropped it is told to stop, and has to end with 0.
pub struct Gateway {
    running: Option<Running>,
    launch: Launch,
    /// Sent with every request that is not built by hand.
    key: Option<String>,
}

/// All that a restart needs.
struct Launch {
    folder: TempDir,
    binary: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    log: Log,
}

struct Running {
    child: Child,
    addr: SocketAddr,
}

/// What the program wrote on both streams, all starts together.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

/// How a program ended that was not meant to serve.
#[derive(Debug)]
pub struct Exit {
    pub code: Option<i32>,
    pub log: String,
}

impl Builder {
    pub fn provider(mut self, provider: Provider) -> Builder {
        let (name, text) = provider.file();
        self.files.push((Path::new("providers").join(name), text));
        self.env.extend(provider.variables());
        self
    }

    /// Sets members of `freeway.config.json`.
    pub fn settings(mut self, settings: Value) -> Builder {
        let Value::Object(settings) = settings else { panic!("settings are an object: {settings}") };
        self.settings.extend(settings);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Builder {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Puts a file into the folder that the gateway starts in.
    pub fn file(mut self, path: &str, text: impl Into<String>) -> Builder {
        self.files.push((path.into(), text.into()));
        self
    }

    /// Makes a further folder there.
    pub fn folder(mut self, path: &str) -> Builder {
        self.folders.push(path.into());
        self
    }

    /// Asks clients for this key; the gateway's own helpers present it.
    pub fn client_key(mut self, key: &str) -> Builder {
        self.key = Some(key.into());
        self.env("FREEWAY_KEYS", key)
    }

    /// Another program than the gateway, to test this harness.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Builder {
        self.binary = path.into();
        self
    }

    /// As `freeway serve --demo`.
    pub fn demo(mut self) -> Builder {
        self.args.push("--demo".into());
        self
    }

    /// Grants the program no more than so many descriptors. The shell that sets the limit becomes the program.
    pub fn descriptor_limit(mut self, limit: u32) -> Builder {
        let script = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
        let program = self.binary.display().to_string();
        self.args.splice(0..0, ["-c".into(), script, program]);
        self.binary("sh")
    }

    /// Writes the files and starts the program; returns when it serves.
    pub fn start(self) -> Gateway {
        let key = self.key.clone();
        let launch = self.launch();
        let running =
            launch.start().unwrap_or_else(|exit| panic!("the gateway ended at the start: {exit:?}"));
        Gateway { running: Some(running), launch, key }
    }

    /// Starts a program that has to refuse, and gives its end.
    pub fn refusal(self) -> Exit {
        match self.launch().start() {
            Ok(mut running) => {
                drop(running.child.kill());
                drop(running.child.wait());
                panic!("the gateway serves, although it should refuse")
            }
            Err(exit) => exit,
        }
    }

    fn launch(self) -> Launch {
        let folder = TempDir::new().expect("a temporary folder");
        fs::create_dir(folder.path().join("providers")).expect("a folder for provider files");
        for path in &self.folders {
            fs::create_dir(folder.path().join(path)).expect("a further folder");
        }
        let mut files = self.files;
        if !self.settings.is_empty() {
            files.push(("freeway.config.json".into(), format!("{:#}", Value::Object(self.settings))));
        }
        for (path, text) in &files {
            fs::write(folder.path().join(path), text).expect("a file in the temporary folder");
        }
        Launch { folder, binary: self.binary, args: self.args, env: self.env, log: Log::default() }
    }
}

impl Launch {
    fn start(&self) -> Result<Running, Exit> {
        let mut child = Command::new(&self.binary)
            .args(&self.args)
            .current_dir(self.folder.path())
            // Nothing of the tester's own keys and proxies may reach the program.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("RUST_BACKTRACE", "1")
            .env("FREEWAY_ROOT", self.folder.path())
            .env("FREEWAY_HOST", "127.0.0.1")
            .env("FREEWAY_PORT", "0")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.binary.display()));
        let (ready, addr) = mpsc::channel();
        let told = child.stdout.take().expect("piped above");
        let out = self.log.pump(told, move |line| {
            if let Some(addr) = line.strip_prefix(READY).and_then(|rest| rest.split_whitespace().next()) {
                drop(ready.send(addr.trim_end_matches('/').to_owned()));
            }
        });
        let err = self.log.pump(child.stderr.take().expect("piped above"), |_| {});
        match addr.recv_timeout(START_MAX) {
            Ok(addr) => {
                let addr = addr.parse().unwrap_or_else(|_| panic!("not an address: {addr:?}"));
                Ok(Running { child, addr })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = wait(&mut child, STOP_MAX)
                    .unwrap_or_else(|| panic!("stdout closed, but it runs on{}", self.log));
                drop((out.join(), err.join()));
                Err(Exit { code: status.code(), log: self.log.text() })
            }
            Err(RecvTimeoutError::Timeout) => {
                drop(child.kill());
                drop(child.wait());
                panic!("it did not say \"{READY}...\" within {START_MAX:?}{}", self.log)
            }
        }
    }
}

impl Gateway {
    pub fn builder() -> Builder {
        Builder {
            binary: env!("CARGO_BIN_EXE_freeway").into(),
            args: vec!["serve".into()],
            settings: Map::new(),
            env: Vec::new(),
            files: Vec::new(),
            folders: Vec::new(),
            key: None,
        }
    }

    /// A gateway over these providers, with default settings.
    pub fn over<const N: usize>(providers: [Provider; N]) -> Gateway {
        providers.into_iter().fold(Gateway::builder(), Builder::provider).start()
    }

    pub fn addr(&self) -> SocketAddr {
        self.running().addr
    }

    /// The private folder: `providers/`, `data/`, `freeway.config.json`, `.env`.
    pub fn folder(&self) -> &Path {
        self.launch.folder.path()
    }

    /// A connection of its own, for exact bytes.
    pub fn wire(&self) -> Wire {
        Wire::connect(self.addr())
    }

    /// Writes a file into the private folder.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::write(self.folder().join(path), text).expect("a file in the temporary folder");
    }

    /// Puts this provider's file in place, as another one or in place of its last version.
    pub fn write_provider(&self, provider: &Provider) {
        let (name, text) = provider.file();
        self.write(&format!("providers/{name}"), text);
    }

    /// Has it read all files again, and gives the answer.
    pub fn reload(&self) -> Answer {
        self.send(&self.keyed(Request::new("POST", "/api/reload"))).ok()
    }

    /// The owner's view of one provider.
    pub fn provider_view(&self, id: &str) -> Value {
        let all = self.get("/api/providers").ok().at("/providers");
        let found = all.as_array().and_then(|all| all.iter().find(|provider| provider["id"] == id));
        found.cloned().unwrap_or_else(|| panic!("no provider {id} in {all}"))
    }

    /// The newest turn of the log, once so many are there.
    pub fn last_turn(&self, turns: usize) -> Value {
        let logs = || self.get("/api/logs").ok().at("/logs");
        eventually(&format!("{turns} turns are logged"), || {
            logs().as_array().is_some_and(|all| all.len() >= turns)
        });
        logs()[0].clone()
    }

    /// The newest turn, as the owner sees it who has this key.
    pub fn last_turn_of(&self, admin_key: &str) -> Value {
        self.send(&Request::get("/api/logs").key(admin_key)).ok().at("/logs/0")
    }

    /// Sends a request on a connection of its own; the client key is added unless the request has one.
    pub fn send(&self, request: &Request) -> Answer {
        self.wire().ask(request)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send(&self.keyed(Request::get(path)))
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(&self.keyed(Request::post(path, body)))
    }

    /// "hi" to this model.
    pub fn chat(&self, model: &str) -> Answer {
        self.post("/v1/chat/completions", &hello(model))
    }

    /// "hi" to this model with further or other fields of the body.
    pub fn chat_with(&self, model: &str, fields: Value) -> Answer {
        self.post("/v1/chat/completions", &hello_with(model, fields))
    }

    /// The same as a stream, read to its end.
    pub fn stream(&self, model: &str) -> Answer {
        self.open_stream(model).finish()
    }

    /// The same as a stream that is read while it comes.
    pub fn open_stream(&self, model: &str) -> Live {
        self.open(&Request::chat(&hello_with(model, serde_json::json!({"stream": true}))))
    }

    pub fn stream_with(&self, model: &str, fields: Value) -> Answer {
        let mut body = hello_with(model, fields);
        body["stream"] = true.into();
        self.open(&Request::chat(&body)).finish()
    }

    /// Sends a request and reads the head of its answer.
    pub fn open(&self, request: &Request) -> Live {
        Live::open(self.wire(), &self.keyed(request.clone()))
    }

    pub fn embed(&self, model: &str, input: Value) -> Answer {
        self.post("/v1/embeddings", &serde_json::json!({"model": model, "input": input}))
    }

    /// The newest finished requests as the owner sees them, newest first.
    pub fn turns(&self) -> Vec<Value> {
        self.get("/api/logs").ok().at("/logs").as_array().expect("a list").clone()
    }

    /// Fails unless the newest request is in the log as served, with these token counts.
    #[track_caller]
    pub fn metered(&self, prompt: u64, completion: u64) {
        let newest = self.turns().swap_remove(0);
        let counted = (&newest["tokensIn"], &newest["tokensOut"], &newest["error"]);
        assert_eq!(counted, (&prompt.into(), &completion.into(), &Value::Null), "{newest}");
    }

    /// What the first key of the first provider has used of a limit, as the owner sees it.
    #[track_caller]
    pub fn used(&self, metric: &str) -> f64 {
        self.used_at("/providers/0/keys/0/bars", metric)
    }

    /// The same of other bars, by their place in `/api/providers`.
    #[track_caller]
    pub fn used_at(&self, bars: &str, metric: &str) -> f64 {
        let bars = self.get("/api/providers").ok().at(bars);
        let bar = bars.as_array().into_iter().flatten().find(|bar| bar["key"] == metric);
        bar.and_then(|bar| bar["used"].as_f64()).unwrap_or_else(|| panic!("no bar {metric} in {bars}"))
    }

    fn keyed(&self, request: Request) -> Request {
        match &self.key {
            Some(key) => request.key(key),
            None => request,
        }
    }

    /// Everything that the program wrote so far.
    pub fn log(&self) -> String {
        self.launch.log.text()
    }

    pub fn pid(&self) -> u32 {
        self.running().child.id()
    }

    /// Resident memory.
    pub fn rss_kib(&self) -> u64 {
        self.status_number("VmRSS:")
    }

    /// The most memory that was ever resident.
    pub fn peak_rss_kib(&self) -> u64 {
        self.status_number("VmHWM:")
    }

    pub fn threads(&self) -> u64 {
        self.status_number("Threads:")
    }

    /// Processor time used so far, in the kernel's ticks of 10 ms.
    pub fn processor_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the program runs");
        // Fields 14 and 15, of which the second field may hold spaces but ends with a parenthesis.
        let (_, fields) = stat.rsplit_once(')').expect("it has a name");
        fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    }

    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the program runs").count()
    }

    fn status_number(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the program runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {status}"))
    }

    pub fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(|running| matches!(running.child.try_wait(), Ok(None)))
    }

    /// Sends a signal by name: `TERM`, `INT`, `HUP`, `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Asks it to stop, and expects it to end with 0. The folder stays.
    pub fn stop(&mut self) {
        let mut running = self.running.take().expect("the gateway runs");
        if let Ok(Some(status)) = running.child.try_wait() {
            panic!("the gateway had ended by itself with {status}{}", self.launch.log);
        }
        signal(running.child.id(), "TERM");
        let status = wait(&mut running.child, STOP_MAX);
        if status.is_none() {
            drop(running.child.kill());
            drop(running.child.wait());
        }
        assert_eq!(status.map(|status| status.code()), Some(Some(0)), "the exit code{}", self.launch.log);
    }

    /// Waits until a program that was told to stop has ended, and expects 0.
    pub fn gone(mut self) {
        let mut running = self.running.take().expect("the gateway runs");
        let status = wait(&mut running.child, STOP_MAX);
        assert_eq!(status.map(|status| status.code()), Some(Some(0)), "the exit code{}", self.launch.log);
    }

    /// Pulls the plug. The folder stays.
    pub fn kill(&mut self) {
        let mut running = self.running.take().expect("the gateway runs");
        running.child.kill().expect("a running program can be killed");
        running.child.wait().expect("a killed program ends");
    }

    /// Starts it again on the same folder after [`Gateway::stop`] or [`Gateway::kill`]. The port is another one.
    pub fn start_again(&mut self) {
        assert!(self.running.is_none(), "it still runs");
        let running =
            self.launch.start().unwrap_or_else(|exit| panic!("the gateway did not start again: {exit:?}"));
        self.running = Some(running);
    }

    /// Runs a command in the same folder with the same variables, whether the gateway runs or not.
    pub fn command(&self, line: &str) -> Ran {
        let root = self.folder().display().to_string();
        let own = [("FREEWAY_ROOT".to_owned(), root), ("FREEWAY_PORT".to_owned(), "0".to_owned())];
        let env: Vec<_> = own.into_iter().chain(self.launch.env.iter().cloned()).collect();
        run(self.folder(), &env, line)
    }

    /// An orderly stop and a new start.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Changes a variable for the next start.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.launch.env.push((name.into(), value.into()));
    }

    /// Waits until it has written this.
    pub fn wait_for_log(&self, text: &str) {
        eventually(&format!("the log says {text:?}"), || self.log().contains(text));
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the gateway runs")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.running.is_none() {
            return;
        }
        // A test that has failed already must not fail twice, which would abort all tests.
        if thread::panicking() { self.kill() } else { self.stop() }
    }
}

impl Log {
    /// Reads lines until the end, keeps them, and prints them into the output of the test.
    fn pump(
        &self,
        from: impl Read + Send + 'static,
        mut seen: impl FnMut(&str) + Send + 'static,
    ) -> thread::JoinHandle<()> {
        let log = self.clone();
        thread::spawn(move || {
            for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                println!("[gateway] {line}");
                let mut text = log.0.lock().unwrap_or_else(PoisonError::into_inner);
                writeln!(text, "{line}").expect("a String takes every write");
                drop(text);
                seen(&line);
            }
        })
    }

    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "; its log:\n{}", self.text())
    }
}

/// The shell's own `kill`: it needs neither `unsafe` nor a package.
fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(status.is_ok_and(|status| status.success()), "cannot send {name} to {pid}");
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
