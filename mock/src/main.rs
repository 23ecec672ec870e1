//! The program: one upstream on one port, driven over its control plane.
use std::io::{self, Write};
use std::process::ExitCode;

use mock_upstream::{MockOptions, MockUpstream};

const HELP: &str = "\
mock-upstream: an OpenAI-compatible upstream that misbehaves on request

usage: mock-upstream [--name NAME] [--host HOST] [--port PORT] [--latency MS] [--model ID]...
                     [--keep-alive-requests N] [--keep-alive-ms MS]

  --name NAME     stands in every answer (default: mock)
  --host HOST     address to bind (default: 127.0.0.1)
  --port PORT     0 takes a free one (default: 0)
  --latency MS    before each answer (default: 0)
  --model ID      in the model list; may be given again
  --keep-alive-requests N   close a connection after N answers
  --keep-alive-ms MS        close a connection that is idle for so long

control plane:
  POST /__control   {reset?, script?: [STEP], keys?: {KEY: STEP}, byModel?: {MODEL: STEP}, models?: [ID]}
  GET /__calls      what was asked, and which clients left early

fields of a STEP (all optional; {} is a well-behaved answer):
  for whom    path model key repeat
  head        status headers delayMs headDripMs bodyDelayMs hang
  content     content reasoning reasoningField toolCalls toolStyle finish choices usage usageValues body
  stream      stream events done newline pieceChars comments errorFrame errorAt
  bytes       raw writes gzip splitAt splitEvery dripMs cutAt end framing

examples:
  mock-upstream --name alpha --port 9101 --latency 5
  curl -d '{\"script\":[{\"status\":429,\"headers\":{\"retry-after\":\"2\"}},{}]}' http://127.0.0.1:9101/__control
  curl -d '{\"script\":[{\"cutAt\":300,\"end\":\"reset\"}]}' http://127.0.0.1:9101/__control
  curl http://127.0.0.1:9101/__calls
";

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            say(HELP);
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("mock-upstream: {problem} (see --help)");
            return ExitCode::from(2);
        }
    };
    match MockUpstream::start(options) {
        Ok(mock) => {
            say(&format!("mock-upstream {} listening on {}\n", mock.name(), mock.url()));
            mock.join();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mock-upstream: cannot listen: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A reader that went away is no reason to fail.
fn say(text: &str) {
    let mut out = io::stdout();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// `None` when help is asked for.
fn options(mut args: impl Iterator<Item = String>) -> Result<Option<MockOptions>, String> {
    let mut options = MockOptions::default();
    let mut models = Vec::new();
    while let Some(arg) = args.next() {
        let (flag, inline) = match arg.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (arg, None),
        };
        if flag == "--help" || flag == "-h" {
            return Ok(None);
        }
        let value = inline.or_else(|| args.next()).ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--name" => options.name = value?,
            "--host" => options.host = value?,
            "--port" => options.port = number(&flag, &value?)?,
            "--latency" => options.latency_ms = number(&flag, &value?)?,
            "--model" => models.push(value?),
            "--keep-alive-requests" => options.keep_alive_requests = Some(number(&flag, &value?)?),
            "--keep-alive-ms" => options.keep_alive_ms = Some(number(&flag, &value?)?),
            _ => return Err(format!("unknown argument {flag}")),
        }
    }
    if !models.is_empty() {
        options.models = models;
    }
    Ok(Some(options))
}

fn number<T: std::str::FromStr>(flag: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{flag} needs a number, not {value:?}"))
}
