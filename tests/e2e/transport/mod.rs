//! Hostile and unlucky clients, on raw sockets. Each attack runs under a [`Siege`]: meanwhile a well-behaved client is
//! served, and afterwards the program is alive, has never held more than 64 MiB, and has kept nothing of the attackers.
//!
//! | file | holds |
//! |---|---|
//! | `heads` | request heads that are wrong, ambiguous, endless or slow |
//! | `bodies` | bodies that are announced, packed, endless, slow, or not wanted |
//! | `answers` | the forms of answers: `HEAD`, HTTP/1.0, `100 Continue`, pipelines |
//! | `leaving` | clients that go away |
//! | `limits` | too many of everything, clients that do not read, the stop |
mod answers;
mod bodies;
mod heads;
mod leaving;
mod limits;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::*;

/// The most memory that the program may ever hold, whatever is done to it.
const RSS_KIB_MAX: u64 = 64 * 1024;
/// Descriptors that may be open after an attack beside those before it: idle connections to upstreams, and the well-
/// behaved client.
const LEFT_OVER_MAX: usize = 8;
/// Between two requests of the well-behaved client.
const REGULAR_PAUSE: Duration = Duration::from_millis(20);

/// A gateway to be attacked. Model `m` is that of `alpha`, whose upstream is scripted; model `fine` is what a
/// well-behaved client asks of `beta` all the while.
struct Siege {
    gateway: Gateway,
    alpha: MockUpstream,
    _beta: MockUpstream,
    /// What the well-behaved client asks.
    regular: Request,
}

impl Siege {
    fn new() -> Siege {
        Siege::with(json!({}))
    }

    /// A gateway with these `server` settings.
    fn with(server: Value) -> Siege {
        Siege::made(|builder| builder.settings(json!({"server": server})))
    }

    fn made(change: impl FnOnce(Builder) -> Builder) -> Siege {
        let (alpha, beta) = (mock("alpha"), mock("beta"));
        let builder = Gateway::builder().provider(provider(&alpha)).provider(provider(&beta).model("fine"));
        Siege { gateway: change(builder).start(), alpha, _beta: beta, regular: Request::chat(&hello("fine")) }
    }

    /// How alpha's upstream answers.
    fn upstream(self, steps: impl IntoIterator<Item = Step>) -> Siege {
        self.alpha.script(steps);
        self
    }

    /// What the well-behaved client asks, where a chat cannot be answered for good reason.
    fn asking(mut self, regular: Request) -> Siege {
        self.regular = regular;
        self
    }

    /// Attacks.
    fn run(self, attack: impl FnOnce(&Siege)) {
        self.expect_served();
        let before = self.gateway.descriptors();
        self.meanwhile(|| attack(&self));
        self.expect_served();
        eventually("no descriptor of the attackers is left", || {
            self.gateway.descriptors() <= before + LEFT_OVER_MAX
        });
        self.expect_small();
    }

    /// Runs `attack` while a well-behaved client asks again and again, and is answered each time.
    fn meanwhile(&self, attack: impl FnOnce()) {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    self.expect_served();
                    thread::sleep(REGULAR_PAUSE);
                }
            });
            let result = std::panic::catch_unwind(AssertUnwindSafe(attack));
            over.store(true, Ordering::SeqCst);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    fn expect_served(&self) {
        self.gateway.send(&self.regular).ok();
    }

    fn expect_small(&self) {
        let peak = self.gateway.peak_rss_kib();
        assert!(peak < RSS_KIB_MAX, "{peak} KiB were resident");
    }

    fn wire(&self) -> Wire {
        self.gateway.wire()
    }

    /// How many requests have reached alpha's upstream.
    fn calls(&self) -> usize {
        chats(&self.alpha).len()
    }
}

/// Fails unless the answer is this error in our envelope, the last on its connection, and the server closes behind it.
#[track_caller]
fn expect_refusal(wire: &mut Wire, status: u16) -> Answer {
    let answer = wire.answer();
    expect_last(&answer, status);
    wire.expect_closed();
    answer
}

/// Fails unless this is an error of ours that says it is the last on its connection.
#[track_caller]
fn expect_last(answer: &Answer, status: u16) {
    assert_eq!((answer.status(), answer.whole), (status, true), "{answer}");
    assert_eq!(answer.header("connection"), Some("close"), "{answer}");
    assert!(answer.at("/error/message").is_string(), "{answer}");
}

/// The head of a chat request with these further header lines, each with its line end.
fn chat_head(fields: &str) -> String {
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n")
}

/// A whole chat request to the model of alpha.
fn whole_chat() -> Vec<u8> {
    Request::chat(&hello("m")).bytes()
}

/// A chat to the model of alpha with an image this large.
fn large_chat(bytes: usize) -> Value {
    let url = format!("data:image/png;base64,{}", "A".repeat(bytes));
    let content = json!([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": url}}]);
    json!({"model": "m", "messages": [{"role": "user", "content": content}]})
}
