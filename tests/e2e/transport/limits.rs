//! Too many of everything, clients that do not read, and the stop.
use std::time::Instant;

use super::*;

/// Whether a chat is answered well; `None` when the connection ends instead.
fn try_chat(gateway: &Gateway, model: &str) -> Option<u16> {
    let mut wire = gateway.wire();
    wire.try_send(Request::chat(&hello(model)).bytes()).ok()?;
    Some(wire.try_head()?.status)
}

#[test]
fn running_out_of_descriptors_is_survived_and_blamed_on_nobody() {
    // So long that nobody goes by itself.
    let patient = json!({"server": {"headMs": 600_000, "idleMs": 600_000}});
    let siege = Siege::made(|builder| builder.descriptor_limit(64).settings(patient));
    siege.expect_served();
    for round in 0..3 {
        let crowd: Vec<Wire> = (0..100)
            .map(|number| {
                let mut wire = siege.wire();
                // Those that have been turned away already cannot be written to.
                drop(wire.try_send(if number % 2 == 0 { "GET /v1/models HTTP/1.1\r\nx: " } else { "" }));
                wire
            })
            .collect();
        eventually("a well-behaved client is served meanwhile", || {
            try_chat(&siege.gateway, "fine") == Some(200)
        });
        drop(crowd);
        eventually(&format!("the sockets of round {round} are gone"), || siege.gateway.descriptors() < 40);
        siege.gateway.chat("m").ok().served_by("alpha");
        siege.gateway.stream("fine").well_formed_stream().served_by("beta");
    }
    let benches = siege.gateway.get("/api/benches").ok();
    assert!(!benches.text().contains("unavailable"), "{benches}");
    siege.expect_small();
}

#[test]
fn when_all_places_are_taken_the_longest_idle_makes_room() {
    Siege::with(json!({"connections": 16})).run(|siege| {
        let mut crowd = Vec::new();
        for number in 0..60 {
            let mut wire = siege.wire();
            drop(wire.try_send(if number % 2 == 0 { "GET /v1/models HTTP/1.1\r\nx: " } else { "" }));
            crowd.push(wire);
            siege.gateway.chat("m").ok();
        }
        let held = siege.gateway.descriptors();
        assert!(held < 100, "{held} descriptors for {} clients", crowd.len());
    });
}

#[test]
fn when_everybody_is_busy_newcomers_are_told_and_the_busy_are_served() {
    /// The fewest connections that can be set.
    const CONNECTIONS: usize = 16;
    let siege = Siege::with(json!({"connections": CONNECTIONS, "workers": CONNECTIONS}));
    let siege = siege.upstream([Step::ok().delay_ms(2_000).times(FOREVER)]);
    let mut busy: Vec<Wire> = (0..CONNECTIONS)
        .map(|_| {
            let mut wire = siege.wire();
            wire.send(whole_chat());
            wire
        })
        .collect();
    eventually("all are being served", || siege.calls() == CONNECTIONS);
    for _ in 0..20 {
        let mut wire = siege.wire();
        let answer = expect_refusal(&mut wire, 503);
        assert_eq!(
            (answer.at("/error/code"), answer.header("retry-after")),
            (json!("overloaded"), Some("1"))
        );
    }
    for wire in &mut busy {
        wire.answer().ok();
    }
    siege.expect_served();
    siege.expect_small();
}

#[test]
fn a_full_pool_refuses_and_recovers_while_control_routes_are_served() {
    Siege::with(json!({"workers": 2, "queue": 2}))
        .upstream([Step::ok().delay_ms(2_000).times(FOREVER)])
        .asking(Request::get("/v1/models"))
        .run(|siege| {
            let statuses = at_once(12, |_| {
                let mut wire = siege.wire();
                wire.send(whole_chat());
                let answer = wire.answer();
                if answer.status() == 503 {
                    let answer = answer.error(503, "overloaded");
                    assert_eq!(answer.header("retry-after"), Some("1"));
                    // The refusal concerns the request, not the connection.
                    wire.ask(&Request::get("/healthz")).ok();
                    return 503;
                }
                answer.ok().status()
            });
            let served = statuses.iter().filter(|status| **status == 200).count();
            assert!((4..12).contains(&served), "two at work and two in the queue: {statuses:?}");
            assert_eq!(siege.calls(), served);
            siege.gateway.chat("fine").ok();
        });
}

#[test]
fn bodies_beyond_the_budget_of_all_are_refused() {
    Siege::with(json!({"bodiesInFlightBytes": 600_000})).upstream([Step::hang(), Step::ok()]).run(|siege| {
        let mut holder = siege.wire();
        holder.send(Request::chat(&large_chat(400_000)).bytes());
        eventually("it is being served", || siege.calls() == 1);
        let answer =
            siege.gateway.post("/v1/chat/completions", &large_chat(400_000)).error(503, "overloaded");
        assert_eq!(answer.header("retry-after"), Some("1"));
        drop(holder);
        eventually("its memory is free", || {
            siege.gateway.post("/v1/chat/completions", &large_chat(400_000)).status() == 200
        });
    });
}

#[test]
fn a_few_slow_uploads_do_not_use_up_the_budget_of_all() {
    const UPLOAD_BYTES: usize = 1 << 20;
    Siege::with(json!({"bodiesInFlightBytes": 2 * UPLOAD_BYTES})).run(|siege| {
        // Memory doubles as a body comes, so that each holds all of its size by now.
        let uploads = [(); 2].map(|()| {
            let mut wire = siege.wire();
            wire.send(chat_head(&format!("content-length: {UPLOAD_BYTES}\r\n")));
            wire.send(vec![b' '; UPLOAD_BYTES * 6 / 10]);
            wire
        });
        thread::sleep(Duration::from_millis(300));
        siege.gateway.chat("m").ok();
        drop(uploads);
    });
}

#[test]
fn any_number_of_slow_uploads_leaves_room_for_a_short_question() {
    // A Siege asks all the while.
    Siege::new().run(|siege| {
        let uploads: Vec<Wire> = (0..300)
            .map(|_| {
                let mut wire = siege.wire();
                drop(wire.try_send(chat_head("content-length: 8000000\r\n")));
                drop(wire.try_send([b' '; 130_000]));
                wire
            })
            .collect();
        siege.gateway.chat("m").ok();
        siege.gateway.stream("m").well_formed_stream();
        thread::sleep(Duration::from_millis(2_500));
        siege.gateway.chat("m").ok();
        drop(uploads);
    });
}

#[test]
fn large_bodies_of_many_clients_stay_within_the_budget() {
    Siege::new().upstream([Step::ok().delay_ms(300).times(FOREVER)]).run(|siege| {
        let request = Request::chat(&large_chat(7 << 20)).bytes();
        let statuses = at_once(12, |_| {
            let mut wire = siege.wire();
            // A refused one is cut short when it goes on for long.
            drop(wire.try_send(&request));
            wire.try_head().map(|head| head.status)
        });
        assert!(statuses.contains(&Some(200)), "{statuses:?}");
        assert!(statuses.iter().flatten().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    });
}

/// A stream that never ends, in large events.
fn endless_stream() -> Step {
    let bytes = event(&delta(&"x".repeat(16_000))).into_bytes();
    Step::writes([Act::Repeat { bytes, times: 1_000_000, pause_ms: 0 }])
}

#[test]
fn clients_that_do_not_read_their_stream_are_cut_and_stop_nobody() {
    Siege::with(json!({"writeMs": 1_000})).upstream([endless_stream().times(6), Step::ok()]).run(|siege| {
        let slow: Vec<Live> = (0..6)
            .map(|_| {
                let mut live = siege.gateway.open_stream("m");
                live.first_text();
                live
            })
            .collect();
        siege.gateway.stream("fine").well_formed_stream();
        eventually("their upstreams are cut", || {
            chats(&siege.alpha).iter().filter(|call| call.left_after.is_some()).count() == 6
        });
        drop(slow);
        siege.gateway.chat("m").ok().served_by("alpha");
    });
}

#[test]
fn a_client_that_reads_too_slowly_meets_the_deadline_of_a_frame() {
    Siege::with(json!({"writeMs": 1_000})).upstream([endless_stream()]).run(|siege| {
        let mut live = siege.gateway.open_stream("m");
        // Each read makes a little room, which must not move the deadline.
        eventually("its upstream is cut", || {
            live.event();
            thread::sleep(Duration::from_millis(100));
            chats(&siege.alpha)[0].left_after.is_some()
        });
    });
}

#[test]
fn a_stop_lets_a_stream_finish() {
    let text = "a story that takes its time";
    let step = Step { piece_chars: 3, ..Step::say(text) }.drip_ms(100);
    let (_alpha, gateway) = gateway_over([step]);
    let mut idle = gateway.wire();
    idle.ask(&Request::get("/healthz")).ok();
    let mut live = gateway.open_stream("m");
    let begun = live.first_text();
    gateway.signal("TERM");
    idle.expect_closed();
    let refused = || std::net::TcpStream::connect(gateway.addr()).is_err();
    eventually("nobody else is let in", refused);
    let answer = live.finish().well_formed_stream();
    assert!(text.starts_with(&begun) && answer.content() == text, "{answer}");
    gateway.gone();
}

#[test]
fn a_stop_cuts_a_stream_that_does_not_finish() {
    let alpha = mock_that("alpha", [Step::writes([Act::write(event(&delta("one"))), Act::Hold])]);
    let builder = Gateway::builder().provider(provider(&alpha)).settings(json!({"server": {"stopMs": 300}}));
    let gateway = builder.start();
    let mut live = gateway.open_stream("m");
    live.first_text();
    let stopped_at = Instant::now();
    gateway.signal("TERM");
    let answer = live.finish();
    assert!(!answer.whole && answer.finish_reason().is_none(), "{answer}");
    expect_cut(&alpha, stopped_at);
    gateway.gone();
}

#[test]
fn a_client_that_asks_at_once_and_then_no_more_costs_nothing() {
    let (_alpha, gateway) = gateway_over([Step::ok()]);
    let mut wires: Vec<Wire> = (0..4).map(|_| gateway.wire()).collect();
    for wire in &mut wires {
        for _ in 0..50 {
            wire.ask(&Request::get("/healthz")).ok();
        }
    }
    let before = gateway.processor_ticks();
    std::thread::sleep(Duration::from_millis(1_500));
    let used = gateway.processor_ticks() - before;
    assert!(used < 30, "{used} ticks in 1.5 s");
    wires[0].ask(&Request::get("/healthz")).ok();
}
