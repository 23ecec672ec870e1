//! `/api/events`: the log as it happens, for readers that are quick, slow, late, or gone.
use std::time::Duration;

use crate::harness::*;

/// One event as it came.
#[derive(Clone, Debug)]
struct Told {
    id: Option<String>,
    name: String,
    data: Value,
}

/// A reader of the live log.
struct Reader {
    wire: Wire,
    head: Head,
    text: String,
}

impl Reader {
    fn open(gateway: &Gateway, request: &Request) -> Reader {
        let mut wire = gateway.wire();
        wire.send(request.bytes());
        let head = wire.head();
        Reader { wire, head, text: String::new() }
    }

    fn at(gateway: &Gateway, path: &str) -> Reader {
        Reader::open(gateway, &Request::get(path))
    }

    /// The next event; comments are passed over. `None` at the end of the stream.
    fn next(&mut self) -> Option<Told> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
                };
                if let Some(data) = field("data") {
                    let name = field("event").expect("every event has a name");
                    let data = serde_json::from_str(&data).expect("data is JSON");
                    return Some(Told { id: field("id"), name, data });
                }
            }
            let piece = self.wire.piece()?;
            self.text += &lossy(&piece);
        }
    }

    /// The next event, which must be of this name.
    fn expect(&mut self, name: &str) -> Told {
        let told = self.next().unwrap_or_else(|| panic!("the stream ended before {name}"));
        assert_eq!(told.name, name, "{told:?}");
        told
    }
}

#[test]
fn a_finished_request_appears_at_once() {
    let (_alpha, _beta, gateway) = two_with_first([Step::error(500, "engine on fire")]);
    let mut reader = Reader::at(&gateway, "/api/events");
    assert_eq!(
        (reader.head.status, reader.head.header("content-type")),
        (200, Some("text/event-stream; charset=utf-8"))
    );
    let hello = reader.expect("hello").data;
    assert!(
        hello["at"].as_u64().is_some_and(|at| at > 1_700_000_000_000) && hello["backlog"] == 0,
        "{hello}"
    );
    let answer = gateway.chat("m").ok();
    let told = reader.expect("log");
    let run = hello["run"].as_u64().expect("a number");
    assert!(told.id.as_deref().is_some_and(|id| id.starts_with(&format!("{run}-"))), "{hello} then {told:?}");
    assert_eq!(told.data["id"].as_str(), answer.header("x-request-id"));
    assert_eq!(
        (&told.data["providerId"], &told.data["attempts"][0]["providerId"]),
        (&json!("beta"), &json!("alpha"))
    );
    assert_eq!(told.data, gateway.last_turn(1), "it is what the log shows");
    assert!(told.id.is_some_and(|id| id.ends_with("-1")));
}

#[test]
fn b10_a_late_reader_gets_what_it_missed_and_nothing_twice() {
    let (_alpha, gateway) = gateway_over([Step::ok()]);
    gateway.chat("m").ok();
    gateway.chat("m").ok();
    let mut reader = Reader::at(&gateway, "/api/events");
    assert_eq!(reader.expect("hello").data["backlog"], 2);
    let first = reader.expect("log");
    reader.expect("log");
    let resume = |id: &str| Reader::open(&gateway, &Request::get("/api/events").header("last-event-id", id));
    gateway.chat("m").ok();
    let mut resumed = resume(&first.id.expect("an id"));
    assert_eq!(resumed.expect("hello").data["backlog"], 2);
    let numbers = [resumed.expect("log"), resumed.expect("log")].map(|told| told.data["seq"].clone());
    assert_eq!(numbers, [json!(2), json!(3)]);
    let mut of_another_run = resume("17-1");
    assert_eq!(of_another_run.expect("hello").data["backlog"], 3);
    let mut only_news = Reader::at(&gateway, "/api/events?backlog=0");
    assert_eq!(only_news.expect("hello").data["backlog"], 0);
    gateway.chat("m").ok();
    assert_eq!(only_news.expect("log").data["seq"], 4);
}

#[test]
fn changes_are_told_too() {
    let (_alpha, gateway) = gateway_over([Step::ok()]);
    let mut reader = Reader::at(&gateway, "/api/events");
    reader.expect("hello");
    gateway.reload();
    assert_eq!(reader.expect("change").data, json!({"what": "reload"}));
    gateway.send(&Request::new("DELETE", "/api/benches")).ok();
    assert_eq!(reader.expect("change").data, json!({"what": "benches"}));
}

#[test]
fn b10_readers_are_bounded_and_those_that_left_make_room() {
    let (_alpha, gateway) = gateway_over([Step::ok()]);
    let readers: Vec<Reader> = (0..16).map(|_| Reader::at(&gateway, "/api/events")).collect();
    assert!(readers.iter().all(|reader| reader.head.status == 200));
    let refused = gateway.get("/api/events").error(503, "too_many_streams");
    assert_eq!(refused.header("retry-after"), Some("5"));
    gateway.chat("m").ok();
    drop(readers);
    // At once, not when the log next has something to say: a page that is opened again finds its place.
    assert_eq!(Reader::at(&gateway, "/api/events").head.status, 200);
}

#[test]
fn a_stop_ends_the_live_log_at_once() {
    let (_alpha, mut gateway) = gateway_over([Step::ok()]);
    let mut reader = Reader::at(&gateway, "/api/events");
    reader.expect("hello");
    let began = std::time::Instant::now();
    gateway.restart();
    assert!(began.elapsed() < Duration::from_secs(10), "the stop waited for its reader");
    assert!(reader.next().is_none());
}

#[test]
fn the_live_log_is_only_for_its_methods_and_its_owner() {
    let (_alpha, gateway) = gateway_over([Step::ok()]);
    gateway.send(&Request::new("POST", "/api/events")).error(405, "method_not_allowed");
    let head = gateway.send(&Request::new("HEAD", "/api/events"));
    assert_eq!((head.status(), head.body.len()), (200, 0), "{head}");
    gateway
        .send(&Request::get("/api/events").header("x-forwarded-for", "10.0.0.9"))
        .error(403, "admin_required");
}

#[test]
fn b10_a_reader_that_stalls_holds_up_nobody_and_is_told_what_it_missed() {
    const REQUESTS: u64 = 1_500;
    let alpha = mock("alpha");
    // It may stall for as long as it likes.
    let settings = json!({"server": {"writeMs": 600_000}});
    let gateway = Gateway::builder().provider(provider(&alpha)).settings(settings).start();
    let mut stalled = Reader::at(&gateway, "/api/events?backlog=0");
    stalled.expect("hello");
    // Characters that are six bytes in JSON fill the sockets between the two soon.
    let fat = hello_with(
        "no-such-model-at-all",
        json!({"messages": [{"role": "user", "content": "\u{1}".repeat(1_500)}]}),
    );
    let request = Request::chat(&fat);
    let mut wire = gateway.wire();
    for _ in 0..REQUESTS {
        wire.ask(&request).error(404, "model_not_found");
    }
    let (mut seen, mut missed) = (0, 0);
    while seen + missed < REQUESTS {
        let told = stalled.next().expect("the stream goes on");
        match told.name.as_str() {
            "log" => seen += 1,
            "lagged" => missed += told.data["missed"].as_u64().expect("a number"),
            other => panic!("{other}"),
        }
    }
    assert_eq!(seen + missed, REQUESTS);
    assert!(missed > 0, "it was never too slow, so this shows nothing");
    gateway.chat("m").ok();
    assert_eq!(stalled.expect("log").data["requestedModel"], "m", "it has caught up");
}

/// Whether a reader hears this before its stream ends.
fn hears(reader: &mut Reader, words: &str) -> bool {
    std::iter::from_fn(|| reader.next()).any(|told| told.data.to_string().contains(words))
}

#[test]
fn a_reader_that_has_lost_its_right_hears_no_more() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .file(".env", "FREEWAY_ADMIN_KEY=fw-the-old-admin-key\n")
        .start();
    let say = |words: &str| {
        gateway.chat_with("m", json!({"messages": [{"role": "user", "content": words}]})).ok();
    };
    let as_owner = |request: Request| request.key("fw-the-old-admin-key");
    let mut by_key = Reader::open(&gateway, &as_owner(Request::get("/api/events")));
    let signed_in = gateway.post("/api/session", &json!({"key": "fw-the-old-admin-key"})).ok();
    let cookie = signed_in.header("set-cookie").and_then(|all| all.split(';').next()).expect("a cookie");
    let with_cookie = |method: &str, path: &str| Request::new(method, path).header("cookie", cookie);
    let mut by_cookie = Reader::open(&gateway, &with_cookie("GET", "/api/events"));
    say("to both of them");
    assert!(hears(&mut by_key, "to both of them") && hears(&mut by_cookie, "to both of them"));
    gateway.send(&with_cookie("DELETE", "/api/session")).ok();
    say("to the key alone");
    assert!(hears(&mut by_key, "to the key alone"));
    assert!(!hears(&mut by_cookie, "to the key alone"), "it signed out");
    gateway.write(".env", "FREEWAY_ADMIN_KEY=fw-the-new-admin-key\n");
    gateway.send(&as_owner(Request::new("POST", "/api/reload"))).ok();
    say("to neither of them");
    assert!(!hears(&mut by_key, "to neither of them"), "its key was changed");
}
