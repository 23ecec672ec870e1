//! Commands of the built program, run to their end in a private folder.
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::provider::Provider;
use super::wire::PATIENCE;

/// A folder to run commands in, and the variables that they see.
pub struct Terminal {
    folder: TempDir,
    env: Vec<(String, String)>,
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Ran {
    /// The JSON that it printed; it has to have ended well.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.out).unwrap_or(Value::Null)
    }

    /// Fails unless it failed and said this.
    #[track_caller]
    pub fn failed(&self, saying: &str) {
        assert!(self.code == Some(1) && self.err.contains(saying), "no {saying:?} in {self:?}");
    }
}

impl Terminal {
    pub fn new() -> Terminal {
        Terminal { folder: TempDir::new().expect("a temporary folder"), env: Vec::new() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file, and the folders above it.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
        fs::write(path, text).expect("a file in the temporary folder");
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.folder.path().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub fn env(&mut self, name: &str, value: &str) {
        self.env.push((name.into(), value.into()));
    }

    /// Puts a provider's file and keys in place.
    pub fn provider(&mut self, provider: &Provider) {
        let (name, text) = provider.file();
        self.write(&format!("providers/{name}"), &text);
        self.env.extend(provider.variables());
    }

    /// Runs a command line, split at spaces.
    pub fn run(&self, line: &str) -> Ran {
        run(self.folder.path(), &self.env, line)
    }

    /// Runs a command that has to print JSON and nothing else on standard output.
    pub fn json(&self, line: &str) -> (Option<i32>, Value) {
        let ran = self.run(line);
        let found = serde_json::from_str(&ran.out)
            .unwrap_or_else(|error| panic!("`freeway {line}` printed no JSON ({error}): {ran:?}"));
        (ran.code, found)
    }
}

/// Runs a command line, split at spaces, in a folder and with these variables alone.
pub fn run(folder: &Path, env: &[(String, String)], line: &str) -> Ran {
    let started = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_freeway"))
        .args(line.split(' ').filter(|word| !word.is_empty()))
        .current_dir(folder)
        .env_clear()
        .env("HOME", folder)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the built program starts");
    let (mut out, mut err) =
        (child.stdout.take().expect("piped above"), child.stderr.take().expect("piped above"));
    let told = thread::spawn(move || text_of(&mut err));
    let text = thread::spawn(move || text_of(&mut out));
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if started.elapsed() > PATIENCE {
            drop((child.kill(), child.wait()));
            panic!("`freeway {line}` did not end within {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let took = started.elapsed();
    let join = |thread: thread::JoinHandle<String>| thread.join().expect("reading does not fail");
    Ran { code: status.code(), out: join(text), err: join(told), took }
}

fn text_of(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).expect("a pipe can be read");
    String::from_utf8(bytes).expect("UTF-8")
}
