//! Clients that go away: before their request is whole, during the wait, amid the answer. The upstream is cut, nobody
//! is blamed.
use std::time::Instant;

use super::*;

/// A client whose upstream is silent leaves in its own way; the upstream must be cut, and nobody be blamed.
fn check_cut(request: &Request, first: Step, began: impl Fn(&mut Wire), leave: impl FnOnce(Wire)) {
    Siege::new().upstream([first, Step::ok()]).run(|siege| {
        let mut wire = siege.wire();
        wire.send(request.bytes());
        eventually("the upstream has the request", || siege.calls() == 1);
        began(&mut wire);
        let left_at = Instant::now();
        leave(wire);
        expect_cut(&siege.alpha, left_at);
        siege.gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        assert_eq!(siege.calls(), 2, "the request that nobody waits for was not tried again");
    });
}

/// A stream that says one word and then nothing.
fn silent_stream() -> Step {
    Step::writes([Act::write(event(&delta("one"))), Act::Hold])
}

fn streamed() -> Request {
    Request::chat(&hello_with("m", json!({"stream": true})))
}

fn nothing(_: &mut Wire) {}

/// Waits until the first word has come.
fn first_word(wire: &mut Wire) {
    assert_eq!(wire.head().status, 200);
    assert!(wire.piece().is_some_and(|piece| lossy(&piece).contains("one")));
}

#[test]
fn b9_http_12_a_client_that_leaves_during_the_wait_cuts_its_upstream() {
    check_cut(&Request::chat(&hello("m")), Step::hang(), nothing, drop);
    check_cut(&streamed(), Step::hang(), nothing, Wire::reset);
}

#[test]
fn a_client_that_leaves_amid_a_stream_cuts_its_upstream() {
    check_cut(&streamed(), silent_stream(), first_word, drop);
    check_cut(&streamed(), silent_stream(), first_word, Wire::reset);
}

#[test]
fn a_client_that_leaves_while_a_whole_answer_comes_cuts_its_upstream() {
    let half = Step::say("x".repeat(2_000)).cut(1_000, End::Hold);
    check_cut(&Request::chat(&hello("m")), half, nothing, drop);
}

#[test]
fn half_a_close_counts_as_leaving() {
    let mut kept = None;
    check_cut(&Request::chat(&hello("m")), Step::hang(), nothing, |mut wire| {
        wire.half_close();
        kept = Some(wire);
    });
    let mut kept = None;
    check_cut(&streamed(), silent_stream(), first_word, |mut wire| {
        wire.half_close();
        kept = Some(wire);
    });
}

#[test]
fn a_client_that_leaves_behind_a_pipelined_request_cuts_its_upstream() {
    check_cut(&Request::chat(&hello("m")), Step::hang(), nothing, |mut wire| {
        wire.send(Request::get("/healthz").bytes());
        thread::sleep(Duration::from_millis(100));
    });
}

#[test]
fn a_client_that_leaves_before_its_request_is_whole_makes_no_call() {
    Siege::new().run(|siege| {
        let request = Request::chat(&large_chat(50_000)).bytes();
        let framed = chat_head("transfer-encoding: chunked\r\n") + "5\r\n{\"mod\r\n";
        let starts =
            [&request[..0], &request[..10], &request[..60], &request[..40_000], framed.as_bytes(), b"\r\n"];
        for start in starts {
            for leave in [drop, Wire::reset] {
                let mut wire = siege.wire();
                wire.send(start);
                leave(wire);
            }
            let mut wire = siege.wire();
            wire.send(start);
            wire.half_close();
            wire.expect_closed();
        }
        assert_eq!(siege.calls(), 0);
    });
}

#[test]
fn a_crowd_that_leaves_frees_every_worker() {
    Siege::with(json!({"workers": 8, "queue": 100}))
        .upstream([Step::hang().times(FOREVER)])
        .asking(Request::get("/v1/models"))
        .run(|siege| {
            let crowd: Vec<Wire> = (0..60)
                .map(|_| {
                    let mut wire = siege.wire();
                    wire.send(whole_chat());
                    wire
                })
                .collect();
            eventually("all workers are busy", || siege.calls() == 8);
            drop(crowd);
            eventually("all are cut", || chats(&siege.alpha).iter().all(|call| call.left_after.is_some()));
            siege.gateway.chat("fine").ok();
        });
}
