//! The mock and the raw client against each other: what a scenario relies on has to be true.
use std::time::Duration;

use crate::harness::*;

fn ask(mock: &MockUpstream, body: &Value) -> Answer {
    Wire::connect(mock.addr()).ask(&Request::chat(body))
}

fn stream(mock: &MockUpstream, fields: Value) -> Answer {
    let mut body = hello_with("m", fields);
    body["stream"] = true.into();
    ask(mock, &body)
}

#[test]
fn unscripted_it_is_a_well_behaved_server() {
    let mock = mock("alpha");
    let chat = ask(&mock, &hello("m")).ok();
    assert_eq!(chat.content(), "[alpha] hi");
    assert_eq!(chat.usage(), Some(json!({"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4})));
    let models = Wire::connect(mock.addr()).ask(&Request::get("/v1/models")).ok();
    assert_eq!(models.at("/data/2/id"), "@mock/vendor/slashy-model");
    let embed = Request::post("/v1/embeddings", &json!({"model": "e", "input": ["a", "b"]}));
    let embed = Wire::connect(mock.addr()).ask(&embed).ok();
    assert_eq!(embed.at("/data/1/embedding").as_array().map(Vec::len), Some(8));
    assert_eq!(Wire::connect(mock.addr()).ask(&Request::get("/v1/nope")).status(), 404);
}

#[test]
fn a_stream_is_well_formed_and_tells_its_usage() {
    let mock = mock("alpha");
    let plain = stream(&mock, json!({})).well_formed_stream();
    assert_eq!(plain.content(), "[alpha] hi");
    assert_eq!(plain.usage().map(|usage| usage["total_tokens"].clone()), Some(json!(4)));
    mock.script([Step::ok().usage(Usage::Asked)]);
    assert_eq!(stream(&mock, json!({})).well_formed_stream().usage(), None);
    let asked = stream(&mock, json!({"stream_options": {"include_usage": true}})).well_formed_stream();
    assert_eq!(asked.usage().map(|usage| usage["total_tokens"].clone()), Some(json!(4)));
    assert_eq!(asked.chunks().last().map(|chunk| chunk["choices"].clone()), Some(json!([])));
}

#[test]
fn tools_are_called_once_and_their_results_are_answered() {
    let mock = mock("alpha");
    let asked = hello_with("m", json!({"tools": [weather_tool()]}));
    let call = ask(&mock, &asked).ok();
    assert_eq!(call.finish_reason().as_deref(), Some("tool_calls"));
    assert_eq!(call.at("/choices/0/message/tool_calls/0/function/arguments"), r#"{"city":"city"}"#);
    let mut again = asked.clone();
    again["messages"] = json!([{"role": "user", "content": "?"}, call.at("/choices/0/message"),
        {"role": "tool", "tool_call_id": "call_mock_1", "content": "sunny"}]);
    assert!(ask(&mock, &again).ok().content().ends_with("sunny"));
    let parts = stream(&mock, json!({"tools": [weather_tool()]})).well_formed_stream();
    let arguments: String = parts
        .chunks()
        .iter()
        .filter_map(|chunk| {
            chunk.pointer("/choices/0/delta/tool_calls/0/function/arguments")?.as_str().map(String::from)
        })
        .collect();
    assert_eq!(arguments, r#"{"city":"city"}"#);
}

#[test]
fn the_control_plane_scripts_and_shows() {
    let mock = mock("alpha");
    let control = |body: Value| Wire::connect(mock.addr()).ask(&Request::post("/__control", &body));
    control(json!({"script": [{"status": 429, "headers": {"retry-after": "7"}}, {"content": "two"}]})).ok();
    let first = ask(&mock, &hello("m"));
    assert_eq!((first.status(), first.header("retry-after")), (429, Some("7")));
    assert_eq!(first.at("/error/type"), "rate_limit_exceeded");
    assert_eq!(ask(&mock, &hello("m")).ok().content(), "two");
    control(json!({"keys": {"bad": {"status": 401}}, "byModel": {"gone": {"status": 404}}})).ok();
    let keyed = |key: &str, model: &str| {
        Wire::connect(mock.addr()).ask(&Request::chat(&hello(model)).key(key)).status()
    };
    assert_eq!((keyed("bad", "m"), keyed("good", "gone"), keyed("good", "m")), (401, 404, 200));
    let calls = Wire::connect(mock.addr()).ask(&Request::get("/__calls")).ok();
    assert_eq!(calls.at("/calls/0/path"), "/__control");
    assert_eq!((calls.at("/calls/4/key"), calls.at("/calls/4/status")), (json!("bad"), json!(401)));
    let refused = control(json!({"script": [{"sttus": 1}]}));
    assert_eq!(
        (refused.status(), refused.at("/error")),
        (400, json!("script[0].sttus: no such field of a step"))
    );
    control(json!({"reset": true, "models": ["one"]})).ok();
    assert!(mock.calls().len() <= 1, "the reset forgets");
    assert_eq!(Wire::connect(mock.addr()).ask(&Request::get("/models")).at("/data/0/id"), "one");
}

#[test]
fn exact_bytes_go_out_as_they_are_asked_for() {
    let acts = [
        Act::write("HTTP/1.1 20"),
        Act::Pause(20),
        Act::write("0 OK\r\ncontent-length: 2\r\n\r\nhi"),
        Act::Close,
    ];
    let mock = mock_that("alpha", [Step::raw(acts), Step::half_status_line(), Step::close()]);
    let mut wire = Wire::connect(mock.addr());
    let answer = wire.ask(&Request::chat(&hello("m")));
    assert_eq!((answer.text().as_str(), answer.whole), ("hi", true));
    wire.expect_closed();
    for bytes in ["HTTP/1.1 20", ""] {
        let mut wire = Wire::connect(mock.addr());
        wire.send(Request::chat(&hello("m")).bytes());
        assert_eq!(lossy(&wire.until_close()), bytes);
    }
}

#[test]
fn bodies_break_off_where_they_are_told_to() {
    let mock = mock("alpha");
    for end in [End::Close, End::Reset] {
        mock.script([Step::say("hello").cut(40, end)]);
        let json = ask(&mock, &hello("m"));
        assert_eq!((json.status(), json.body.len(), json.whole), (200, 40, false), "{end:?}");
        let events = stream(&mock, json!({}));
        assert_eq!((events.body.len(), events.whole), (40, false), "{end:?}");
    }
}

#[test]
fn a_reset_is_a_reset() {
    use std::io::{Read, Write};
    let mock = mock_that("alpha", [Step::raw([Act::Reset])]);
    let mut stream = std::net::TcpStream::connect(mock.addr()).expect("it listens");
    stream.write_all(&Request::chat(&hello("m")).bytes()).expect("it reads");
    let error = stream.read(&mut [0; 16]).expect_err("no orderly end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn framings_line_ends_and_splits() {
    let mock = mock_that("alpha", [Step::say("hello").framing(Framing::Chunked)]);
    let chunked = ask(&mock, &hello("m")).ok();
    assert_eq!((chunked.header("transfer-encoding"), chunked.content().as_str()), (Some("chunked"), "hello"));
    mock.script([Step::say("hello").framing(Framing::Close)]);
    let closed = ask(&mock, &hello("m")).ok();
    assert_eq!((closed.header("content-length"), closed.content().as_str()), (None, "hello"));
    mock.script([Step::events([delta("x")]).newline(Newline::Cr)]);
    assert!(stream(&mock, json!({})).text().ends_with("}\r\rdata: [DONE]\r\r"));
    mock.script([Step { split_every: 3, ..Step::events([delta("x")]) }]);
    let split = stream(&mock, json!({}));
    assert!(split.pieces.windows(2).all(|pair| pair[1].end - pair[0].end <= 3));
    assert_eq!(split.text(), event(&delta("x")) + "data: [DONE]\n\n");
}

#[test]
fn heads_drip_bodies_wait_and_split_bodies_stay_split() {
    let mock = mock_that("alpha", [Step { head_drip_ms: 1, body_delay_ms: 30, ..Step::say("slow") }]);
    let slow = ask(&mock, &hello("m")).ok();
    assert!(slow.content() == "slow" && slow.took() >= Duration::from_millis(100), "{:?}", slow.took());
    mock.script([Step { split_at: vec![5, 9], drip_ms: 20, ..Step::say("parts") }]);
    let parts = ask(&mock, &hello("m")).ok();
    assert_eq!(parts.pieces.iter().map(|piece| piece.end).collect::<Vec<_>>(), [5, 9, parts.body.len()]);
}

#[test]
fn openai_forms_that_clients_ask_for() {
    let mock = mock("alpha");
    let asked = json!({"model": "e", "input": "x", "encoding_format": "base64", "dimensions": 4});
    let embed = Wire::connect(mock.addr()).ask(&Request::post("/embeddings", &asked)).ok();
    assert_eq!(embed.at("/data/0/embedding"), "AACAPwAAAAAAAAAAAAAAAA==");
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema":
        {"type": "object", "properties": {"n": {"type": "integer"}}}}}});
    assert_eq!(ask(&mock, &hello_with("m", format)).content(), r#"{"n":1}"#);
    assert_eq!(ask(&mock, &hello_with("m", json!({"n": 2}))).at("/choices/1/index"), json!(1));
    let none = hello_with("m", json!({"tools": [weather_tool()], "tool_choice": "none"}));
    assert_eq!(ask(&mock, &none).finish_reason().as_deref(), Some("stop"));
}

#[test]
fn gzip_whole_truncated_and_streamed() {
    let mock = mock_that("alpha", [Step::say("hello").gzip(Gzip::Whole)]);
    let whole = ask(&mock, &hello("m"));
    assert_eq!(whole.header("content-encoding"), Some("gzip"));
    assert!(unzip(&whole.body).expect("a whole body").contains("\"hello\""));
    let streamed = stream(&mock, json!({}));
    assert!(streamed.pieces.len() > 2, "each event is flushed");
    assert!(unzip(&streamed.body).expect("a whole stream").ends_with("data: [DONE]\n\n"));
    mock.script([Step::say("hello").gzip(Gzip::Truncated)]);
    assert!(unzip(&ask(&mock, &hello("m")).body).is_none());
}

fn unzip(bytes: &[u8]) -> Option<String> {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(bytes), &mut text).ok().map(|_| text)
}

#[test]
fn a_client_that_leaves_is_noticed_at_once() {
    let mock = mock_that("alpha", [Step::hang(), Step::say("a long story").drip_ms(60_000)]);
    let mut wire = Wire::connect(mock.addr());
    wire.send(Request::chat(&hello("m")).bytes());
    eventually("the call is there", || chats(&mock).len() == 1);
    drop(wire);
    eventually("the hang sees it", || chats(&mock)[0].left_after.is_some());
    let mut live =
        Live::open(Wire::connect(mock.addr()), &Request::chat(&hello_with("m", json!({"stream": true}))));
    live.event().expect("the first event is not held back");
    live.reset();
    eventually("the stream sees it", || chats(&mock)[1].left_after.is_some());
    assert!(chats(&mock)[1].answered_after.is_none());
}

#[test]
fn connections_are_kept_for_as_long_as_they_should_be() {
    let mock = mock_with(MockOptions { keep_alive_requests: Some(2), ..MockOptions::default() });
    let mut wire = Wire::connect(mock.addr());
    wire.ask(&Request::chat(&hello("m"))).ok();
    wire.ask(&Request::chat(&hello("m"))).ok();
    wire.expect_closed();
    let calls = chats(&mock);
    assert_eq!(calls[0].connection, calls[1].connection);
    let idle = mock_with(MockOptions { keep_alive_ms: Some(30), ..MockOptions::default() });
    let mut wire = Wire::connect(idle.addr());
    wire.ask(&Request::chat(&hello("m"))).ok();
    wire.expect_closed();
}

#[test]
fn a_stream_can_end_without_an_end() {
    let mock = mock_that("alpha", [Step::say("hello").without_done().end(End::Hold)]);
    let mut live =
        Live::open(Wire::connect(mock.addr()), &Request::chat(&hello_with("m", json!({"stream": true}))));
    let finished =
        |event: Event| event.json().is_some_and(|chunk| chunk["choices"][0]["finish_reason"] == "stop");
    while !finished(live.event().expect("the finish chunk comes")) {}
    assert_eq!(chats(&mock)[0].answered_after, None, "the socket is still open");
}

#[test]
fn error_frames_and_usage_forms() {
    let error = json!({"error": {"message": "died", "code": 503}});
    let mock =
        mock_that("alpha", [Step { error_frame: Some(error.clone()), error_at: 2, ..Step::say("hello") }]);
    let chunks = stream(&mock, json!({})).chunks();
    assert_eq!((chunks.len(), &chunks[2]), (3, &error));
    mock.script([Step::say("hello world").usage(Usage::Every)]);
    let totals = stream(&mock, json!({})).chunks();
    assert!(totals.iter().all(|chunk| chunk["usage"]["prompt_tokens"] == 1), "{totals:?}");
    mock.script([Step::say("hello").usage(Usage::XGroq)]);
    assert!(
        stream(&mock, json!({})).chunks().iter().any(|chunk| chunk["x_groq"]["usage"]["total_tokens"] == 3)
    );
    mock.script([Step::say("hello").usage(Usage::Floats)]);
    assert!(ask(&mock, &hello("m")).ok().text().contains("\"total_tokens\":3.0"));
}

#[test]
fn d_pages_broken_events_several_choices_and_endless_repeats() {
    let mock = mock_that(
        "alpha",
        [
            Step::html(200),
            Step::writes([Act::write("data: {\"choices\":[{\n\ndata: [DONE]\n\n")]),
            Step::say("again and again").times(FOREVER),
        ],
    );
    let page = ask(&mock, &hello("m"));
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")), "{page}");
    assert!(page.status() == 200 && page.text().contains("<html"), "{page}");
    let broken = ask(&mock, &hello_with("m", json!({"stream": true})));
    assert!(broken.is_stream() && broken.text().starts_with("data: {\"choices\":[{\n\n"), "{broken}");
    let several = ask(&mock, &hello_with("m", json!({"n": 3})));
    assert_eq!(several.at("/choices").as_array().map(Vec::len), Some(3));
    for _ in 0..5 {
        assert_eq!(ask(&mock, &hello("m")).content(), "again and again");
    }
}

#[test]
fn a_stopped_server_refuses_and_a_silent_port_never_answers() {
    let mut mock = mock("alpha");
    let addr = mock.addr();
    mock.stop();
    let refused = |addr| std::net::TcpStream::connect(addr).expect_err("nobody listens").kind();
    assert_eq!(refused(addr), std::io::ErrorKind::ConnectionRefused);
    let closed = ClosedPort::take().expect("a free port");
    assert_eq!(refused(closed.addr()), std::io::ErrorKind::ConnectionRefused);
    let silent = SilentPort::take().expect("a free port");
    let error = std::net::TcpStream::connect_timeout(&silent.addr(), Duration::from_millis(300))
        .expect_err("no answer");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

/// A stand-in for the gateway that serves nobody, but starts and stops as it should: `sh serve`.
fn stand_in(ends_with: u8) -> Builder {
    let script = format!(
        "trap 'echo bye >&2; exit {ends_with}' TERM\necho \"in $FREEWAY_ROOT with $ALPHA_API_KEY\" >&2\n\
         echo 'freeway listening on http://127.0.0.1:9'\nwhile :; do sleep 0.05; done\n"
    );
    Gateway::builder().binary("/bin/sh").file("serve", script)
}

#[test]
fn the_gateway_is_started_restarted_and_stopped() {
    let alpha = mock("alpha");
    let mut gateway =
        stand_in(0).provider(provider(&alpha).keys(["k1", "k2"])).settings(json!({"maxAttempts": 2})).start();
    gateway.wait_for_log("with k1,k2");
    let file =
        std::fs::read_to_string(gateway.folder().join("providers/alpha.json")).expect("the provider file");
    assert!(file.contains("ALPHA_API_KEY") && file.contains(&alpha.url()), "{file}");
    assert!(gateway.folder().join("freeway.config.json").exists());
    assert!(gateway.rss_kib() > 0 && gateway.threads() == 1 && gateway.descriptors() >= 3);
    gateway.restart();
    gateway.kill();
    gateway.start_again();
    assert!(gateway.is_running());
}

#[test]
#[should_panic(expected = "the exit code")]
fn a_gateway_that_ends_badly_fails_the_test() {
    drop(stand_in(3).start());
}

#[test]
fn a_refusal_shows_its_code_and_its_words() {
    let exit = Gateway::builder().binary("/bin/sh").refusal();
    assert_ne!(exit.code, Some(0), "`sh serve` finds no such script: {exit:?}");
    assert!(exit.log.contains("serve"), "{exit:?}");
}
