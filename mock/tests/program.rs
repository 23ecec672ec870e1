//! The program itself: it says where it listens, answers, obeys the control plane, and knows a usage error.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Program {
    child: Child,
    addr: String,
}

impl Program {
    fn start(args: &[&str]) -> (Program, String) {
        let mut child = command(args).stdout(Stdio::piped()).spawn().expect("the built program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped above"))
            .read_line(&mut line)
            .expect("it says a line");
        let addr =
            line.trim().rsplit("http://").next().expect("an address").trim_end_matches("/v1").to_owned();
        (Program { child, addr }, line)
    }

    fn ask(&self, request: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.addr).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a connected socket takes options");
        let length = body.len();
        write!(stream, "{request} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
            .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers and closes");
        answer
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mock-upstream"));
    command.args(args);
    command
}

#[test]
fn it_listens_answers_and_obeys() {
    let (program, line) =
        Program::start(&["--name", "alpha", "--port=0", "--latency", "1", "--model", "only"]);
    assert!(line.starts_with("mock-upstream alpha listening on http://127.0.0.1:"), "{line}");
    assert!(program.ask("GET /v1/models", "").contains("\"id\":\"only\""));
    assert!(program.ask("POST /__control", r#"{"script":[{"status":429}]}"#).ends_with(r#"{"ok":true}"#));
    let chat = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    assert!(program.ask("POST /v1/chat/completions", chat).starts_with("HTTP/1.1 429 "));
    assert!(program.ask("GET /__calls", "").contains("\"path\":\"/v1/chat/completions\""));
}

#[test]
fn help_shows_examples_and_a_slip_is_told() {
    let help = command(&["--help"]).output().expect("it runs");
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("examples:"));
    for args in [["--port", "many"].as_slice(), &["--bogus"], &["--name"]] {
        let slip = command(args).output().expect("it runs");
        assert_eq!(slip.status.code(), Some(2), "{args:?}");
        assert!(!slip.stderr.is_empty());
    }
}
