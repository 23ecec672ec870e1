//! A client that goes away, at every moment of its request and in every manner: the upstream call is cut within 2 s,
//! nobody is benched, what was used stays counted, and the log says 499.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::harness::*;

/// How a client goes.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Close,
    Reset,
    /// Only its sending side ends, which counts as leaving.
    Half,
}

const MANNERS: [Manner; 3] = [Manner::Close, Manner::Reset, Manner::Half];

impl Manner {
    /// Goes, and gives the moment and what has to be kept for as long as the test lasts.
    fn leave(self, mut wire: Wire) -> (Instant, Option<Wire>) {
        let now = Instant::now();
        match self {
            Manner::Close => drop(wire),
            Manner::Reset => wire.reset(),
            Manner::Half => {
                wire.half_close();
                return (now, Some(wire));
            }
        }
        (now, None)
    }
}

/// `alpha` with limits before `beta`; alpha answers so, and well from the second call on.
fn two(step: Step) -> (MockUpstream, MockUpstream, Gateway) {
    let (alpha, beta) = (mock_that("alpha", [step, Step::ok()]), mock("beta"));
    let first = provider(&alpha).priority(1).limits(json!({"rpm": 10, "tpm": 100_000}));
    let gateway = Gateway::over([first, provider(&beta).priority(2)]);
    (alpha, beta, gateway)
}

/// A stream that begins and then says nothing more.
fn begun() -> Step {
    Step::writes([Act::write(event(&delta("Once upon a time"))), Act::Hold])
}

fn asking(stream: bool) -> Request {
    Request::chat(&hello_with(
        "auto",
        json!({"stream": stream, "messages": [{"role": "user", "content": "word ".repeat(100)}]}),
    ))
}

/// Waits for the log's newest entry, which has to be that of a client that left, within 2 s.
#[track_caller]
fn expect_logged(gateway: &Gateway, left_at: Instant) -> Value {
    let newest = || gateway.get("/api/logs?limit=1").ok().json()["logs"][0].clone();
    eventually("the log tells of it", || newest()["status"] == 499);
    assert!(left_at.elapsed() < Duration::from_secs(2), "logged after {:?}", left_at.elapsed());
    assert_eq!(newest()["error"], "client_closed_request");
    newest()
}

/// What has to hold after a client left the first call of `alpha`, whose upstream had got its request.
#[track_caller]
fn expect_left(world: &(MockUpstream, MockUpstream, Gateway), left_at: Instant) -> Value {
    let (alpha, beta, gateway) = world;
    expect_cut(alpha, left_at);
    let entry = expect_logged(gateway, left_at);
    assert_eq!((&entry["providerId"], &entry["attempts"]), (&json!("alpha"), &json!([])));
    assert_eq!(gateway.get("/api/benches").ok().at("/benches"), json!([]));
    assert_eq!(gateway.used("rpm"), 1.0);
    assert!(gateway.used("tpm") >= 100.0, "the prompt counts");
    assert!(entry["tokensIn"].as_u64() >= Some(100), "{entry}");
    assert_eq!((chats(alpha).len(), chats(beta).len()), (1, 0));
    gateway.chat("auto").ok().served_by("alpha").after_attempts(1);
    entry
}

/// Leaves as soon as the upstream has the request.
fn leaves_a_waiting_upstream(step: impl Fn() -> Step, stream: bool) {
    for manner in MANNERS {
        let world = two(step());
        let (alpha, _, gateway) = &world;
        let mut wire = gateway.wire();
        wire.send(asking(stream).bytes());
        eventually("the upstream has the request", || chats(alpha).len() == 1);
        let (left_at, _kept) = manner.leave(wire);
        let entry = expect_left(&world, left_at);
        assert_eq!((&entry["stream"], &entry["firstTokenMs"]), (&json!(stream), &Value::Null), "{manner:?}");
    }
}

#[test]
fn w6_before_the_head_of_a_whole_answer() {
    leaves_a_waiting_upstream(Step::hang, false);
}

#[test]
fn w6_before_the_head_of_a_stream() {
    leaves_a_waiting_upstream(Step::hang, true);
}

#[test]
fn w6_in_the_middle_of_a_whole_answer() {
    leaves_a_waiting_upstream(|| Step::say("hello").cut(20, End::Hold), false);
}

#[test]
fn w6_before_the_first_delta_of_a_stream() {
    leaves_a_waiting_upstream(|| Step::writes([Act::write(": processing\n\n"), Act::Hold]), true);
}

#[test]
fn w6_in_the_middle_of_a_stream() {
    for manner in MANNERS {
        let world = two(begun());
        let mut wire = world.2.wire();
        wire.send(asking(true).bytes());
        assert_eq!(wire.head().status, 200);
        wire.piece().expect("the first delta");
        let (left_at, _kept) = manner.leave(wire);
        let entry = expect_left(&world, left_at);
        assert!(
            entry["firstTokenMs"].is_u64() && entry["tokensOut"].as_u64() > Some(0),
            "{manner:?}: {entry}"
        );
    }
}

#[test]
fn w6_in_the_middle_of_a_busy_stream() {
    let lively = Act::Repeat { bytes: event(&delta("word ")).into(), times: 100_000, pause_ms: 2 };
    let world = two(Step::writes([lively]));
    let mut live = world.2.open(&asking(true));
    for _ in 0..20 {
        live.first_text();
    }
    let left_at = Instant::now();
    live.leave();
    let entry = expect_left(&world, left_at);
    assert!(entry["tokensOut"].as_u64() >= Some(10), "{entry}");
}

#[test]
fn w6_while_only_keep_alives_have_come() {
    let (alpha, beta) = (mock_that("alpha", [Step::hang(), Step::ok()]), mock("beta"));
    let first = provider(&alpha).priority(1).limits(json!({"rpm": 10, "tpm": 100_000}));
    let gateway = Gateway::builder()
        .settings(json!({"stream": {"holdMs": 50, "keepAliveMs": 100}}))
        .provider(first)
        .provider(provider(&beta).priority(2))
        .start();
    let world = (alpha, beta, gateway);
    let mut live = world.2.open(&asking(true));
    assert!(matches!(live.event().expect("a comment").kind, EventKind::Comment(_)));
    let left_at = Instant::now();
    live.leave();
    expect_left(&world, left_at);
}

#[test]
fn w6_a_client_that_does_not_read_counts_as_gone() {
    let flood =
        Act::Repeat { bytes: event(&delta(&"word ".repeat(4_000))).into(), times: 5_000, pause_ms: 0 };
    let alpha = mock_that("alpha", [Step::writes([flood]), Step::ok()]);
    let gateway =
        Gateway::builder().settings(json!({"server": {"writeMs": 500}})).provider(provider(&alpha)).start();
    let live = gateway.open(&asking(true));
    eventually("the upstream is cut", || chats(&alpha)[0].left_after.is_some());
    eventually("the log tells of it", || {
        gateway.get("/api/logs?limit=1").ok().json()["logs"][0]["status"] == 499
    });
    assert_eq!(gateway.get("/api/benches").ok().at("/benches"), json!([]));
    drop(live);
    gateway.chat("auto").ok().after_attempts(1);
}

#[test]
fn w6_while_connecting_nothing_is_counted() {
    for manner in MANNERS {
        let silent = SilentPort::take().expect("a free port");
        let gateway =
            Gateway::over([Provider::at("alpha", &silent.url()).limits(json!({"rpm": 10, "tpm": 100_000}))]);
        let mut wire = gateway.wire();
        wire.send(asking(false).bytes());
        eventually("the call has begun", || gateway.used("rpm") > 0.0);
        let (left_at, _kept) = manner.leave(wire);
        expect_logged(&gateway, left_at);
        assert_eq!(gateway.get("/api/benches").ok().at("/benches"), json!([]));
        assert_eq!((gateway.used("rpm"), gateway.used("tpm")), (0.0, 0.0));
    }
}

#[test]
fn w6_while_queued_for_a_worker_no_call_is_made() {
    for manner in MANNERS {
        let alpha = mock_that("alpha", [Step::hang(), Step::ok()]);
        let gateway = Gateway::builder()
            .settings(json!({"server": {"workers": 1, "queue": 4}}))
            .provider(provider(&alpha).limits(json!({"rpm": 10})))
            .start();
        let mut first = gateway.wire();
        first.send(asking(false).bytes());
        eventually("the only worker is busy", || chats(&alpha).len() == 1);
        let mut second = gateway.wire();
        second.send(asking(true).bytes());
        // It is queued, since nothing comes.
        std::thread::sleep(Duration::from_millis(200));
        let (_, _kept) = manner.leave(second);
        // Its reader has to notice before the worker is free again.
        std::thread::sleep(Duration::from_millis(300));
        let third = std::thread::scope(|scope| {
            let third = scope.spawn(|| gateway.chat("auto"));
            let (left_at, _) = Manner::Close.leave(first);
            eventually("the call is cut", || chats(&alpha)[0].left_after.is_some());
            assert!(left_at.elapsed() < Duration::from_secs(2));
            third.join().expect("no thread of the test fails")
        });
        third.ok().served_by("alpha");
        let logged = || gateway.get("/api/logs").ok().json()["logs"].clone();
        let left =
            || logged().as_array().into_iter().flatten().filter(|entry| entry["status"] == 499).count();
        eventually("both that left are logged", || left() == 2);
        assert_eq!((chats(&alpha).len(), gateway.used("rpm")), (2, 2.0), "{manner:?}");
    }
}

#[test]
fn w6_while_held_until_somebody_is_free() {
    let (alpha, _beta, gateway) = two(Step::ok());
    drop((_beta, gateway));
    let gateway = Gateway::over([provider(&alpha).limits(json!({"rpm": 1}))]);
    gateway.chat("m").ok();
    let mut wire = gateway.wire();
    wire.send(asking(false).header("x-freeway-wait", "100").bytes());
    // It is held, since nothing comes.
    std::thread::sleep(Duration::from_millis(200));
    let (left_at, _) = Manner::Close.leave(wire);
    let entry = expect_logged(&gateway, left_at);
    assert_eq!((&entry["providerId"], chats(&alpha).len()), (&Value::Null, 1));
}

#[test]
fn w6_between_two_attempts_nobody_else_is_called() {
    let (alpha, beta) = (mock_that("alpha", [Step::status(500).delay_ms(500)]), mock("beta"));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    let mut wire = gateway.wire();
    wire.send(asking(false).bytes());
    eventually("the first upstream has the request", || chats(&alpha).len() == 1);
    let (left_at, _) = Manner::Close.leave(wire);
    expect_logged(&gateway, left_at);
    assert!(chats(&beta).is_empty());
}

#[test]
fn w6_embeddings_are_left_alike() {
    let (alpha, _beta, _) = two(Step::hang());
    let gateway = Gateway::over([provider(&alpha).embed_model("e").limits(json!({"rpm": 10, "tpm": 1_000}))]);
    let mut wire = gateway.wire();
    wire.send(Request::post("/v1/embeddings", &json!({"model": "e", "input": "hi"})).bytes());
    eventually("the upstream has the request", || alpha.calls_to("/embeddings").len() == 1);
    let (left_at, _) = Manner::Close.leave(wire);
    let entry = expect_logged(&gateway, left_at);
    assert_eq!(entry["operation"], "embeddings");
    eventually("the call is cut", || alpha.calls_to("/embeddings")[0].left_after.is_some());
    assert_eq!(gateway.used("rpm"), 1.0);
}

#[test]
fn w6_one_that_leaves_takes_no_stranger_along() {
    let alpha = mock_that("alpha", [begun(), Step::say("short").drip_ms(100).times(FOREVER)]);
    let gateway = Gateway::over([provider(&alpha)]);
    let mut leaver = gateway.open_stream("m");
    leaver.first_text();
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..8).map(|_| scope.spawn(|| gateway.stream("m"))).collect();
        leaver.reset();
        for other in others {
            other.join().expect("no thread of the test fails").well_formed_stream().after_attempts(1);
        }
    });
}

#[test]
fn a_client_that_leaves_with_its_last_chunk_costs_no_connection() {
    let last = event(&finish("stop")) + "data: [DONE]\n\n";
    let acts = [Act::write(event(&delta("hello"))), Act::write(last), Act::Pause(50)];
    let alpha = mock_that("alpha", [Step::writes(acts).times(5)]);
    let gateway = Gateway::over([provider(&alpha)]);
    for number in 0..5 {
        let request = Request::chat(&hello_with("m", json!({"stream": true, "seed": number})));
        let mut live = gateway.open(&request);
        while live.event().is_some_and(|event| event.kind != EventKind::Done) {}
        live.leave();
        // The end of the upstream's answer comes behind the client's.
        std::thread::sleep(Duration::from_millis(150));
    }
    let connections: BTreeSet<u64> = chats(&alpha).iter().map(|call| call.connection).collect();
    assert!(chats(&alpha).len() == 5 && connections.len() == 1, "{connections:?}");
}
