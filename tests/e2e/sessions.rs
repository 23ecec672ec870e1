//! Stored conversations: what is put before a request, what is kept of a turn and what is not, and whose it is.
use std::time::Duration;

use crate::harness::*;

/// Sends these messages as a part of a session.
fn say(gateway: &Gateway, session: &str, messages: Value) -> Answer {
    gateway.chat_with("m", json!({"session": session, "messages": messages}))
}

/// Sends one user message.
fn tell(gateway: &Gateway, session: &str, text: &str) -> Answer {
    say(gateway, session, user(text))
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Sends one user message with a key.
fn tell_as(gateway: &Gateway, key: &str, session: &str, text: &str) -> Answer {
    let body = hello_with("m", json!({"session": session, "messages": user(text)}));
    gateway.send(&Request::chat(&body).key(key))
}

/// The messages that the upstream got with its latest call.
fn sent(mock: &MockUpstream) -> Value {
    chats(mock).last().expect("a call").json()["messages"].clone()
}

/// `role:content` of messages, one after another.
fn words(messages: &Value) -> Vec<String> {
    let word = |message: &Value| {
        let content = message["content"].as_str().unwrap_or("-");
        format!("{}:{content}", message["role"].as_str().unwrap_or("?"))
    };
    messages.as_array().expect("a list").iter().map(word).collect()
}

fn heard(mock: &MockUpstream) -> Vec<String> {
    words(&sent(mock))
}

/// What the owner sees of a session.
fn view(gateway: &Gateway, session: &str) -> Answer {
    gateway.get(&format!("/api/sessions/{session}"))
}

/// What is stored of a session; nothing when there is none.
fn stored(gateway: &Gateway, session: &str) -> Vec<String> {
    let view = view(gateway, session);
    if view.status() == 404 { Vec::new() } else { words(&view.ok().at("/messages")) }
}

#[test]
fn w12_a_message_that_was_sent_before_is_appended_all_the_same() {
    let (alpha, gateway) = gateway_over([Step::say("one"), Step::say("two"), Step::say("three")]);
    tell(&gateway, "s", "continue").ok();
    tell(&gateway, "s", "continue").ok();
    assert_eq!(heard(&alpha), ["user:continue", "assistant:one", "user:continue"]);
    tell(&gateway, "s", "continue").ok();
    assert_eq!(
        heard(&alpha),
        ["user:continue", "assistant:one", "user:continue", "assistant:two", "user:continue"]
    );
}

#[test]
fn w12_long_prompts_with_one_preamble_are_all_kept() {
    let (alpha, gateway) = gateway_over([Step::say("a"), Step::say("b")]);
    let prompt = |end: &str| format!("{}{end}", "preamble ".repeat(50));
    tell(&gateway, "s", &prompt("one")).ok();
    tell(&gateway, "s", &prompt("two")).ok();
    let heard = heard(&alpha);
    assert!(heard.len() == 3 && heard[0].ends_with("one") && heard[2].ends_with("two"), "{heard:?}");
}

#[test]
fn a_history_replaces_what_is_stored() {
    let (alpha, gateway) = gateway_over([Step::say("one"), Step::say("two"), Step::say("three")]);
    tell(&gateway, "s", "a").ok();
    let history = json!([{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]);
    say(&gateway, "s", history).ok();
    assert_eq!(heard(&alpha), ["user:b", "assistant:c", "user:d"]);
    tell(&gateway, "s", "e").ok();
    assert_eq!(heard(&alpha), ["user:b", "assistant:c", "user:d", "assistant:two", "user:e"]);
}

#[test]
fn the_mode_overrides_what_the_messages_look_like() {
    let (alpha, gateway) = gateway_over([Step::say("one"), Step::say("two"), Step::say("three")]);
    tell(&gateway, "s", "a").ok();
    let ask = |mode: &str, messages: Value| {
        gateway.chat_with("m", json!({"session": {"id": " s ", "mode": mode}, "messages": messages})).ok()
    };
    ask("replace", user("b"));
    assert_eq!(heard(&alpha), ["user:b"]);
    let answer =
        ask("append", json!([{"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]));
    assert_eq!(heard(&alpha), ["user:b", "assistant:two", "assistant:c", "user:d"]);
    assert_eq!(answer.header("x-freeway-session"), Some("s"));
    gateway
        .chat_with("m", json!({"session": {"id": "s", "mode": "x"}}))
        .error(400, "invalid_body")
        .about("session.mode");
    gateway.chat_with("m", json!({"session": 7})).error(400, "invalid_body").about("session");
    gateway.chat_with("m", json!({"session": {}})).error(400, "invalid_body").about("session.id");
}

#[test]
fn a_system_message_is_stored_once() {
    let (alpha, gateway) = gateway_over([Step::say("one"), Step::say("two")]);
    let with_system =
        |text: &str| json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]);
    say(&gateway, "s", with_system("a")).ok();
    say(&gateway, "s", with_system("b")).ok();
    assert_eq!(heard(&alpha), ["system:be brief", "user:a", "assistant:one", "user:b"]);
}

#[test]
fn w13_a_tool_round_trip_keeps_its_calls() {
    let (alpha, gateway) = gateway_over([]);
    let ask = |messages: Value| {
        gateway.chat_with("m", json!({"session": "s", "messages": messages, "tools": [weather_tool()]})).ok()
    };
    let call = ask(user("weather?"));
    let id = call.at("/choices/0/message/tool_calls/0/id");
    let answer = ask(json!([{"role": "tool", "tool_call_id": id, "content": "sunny"}]));
    assert!(answer.content().ends_with("sunny"), "{answer}");
    let sent = sent(&alpha);
    assert_eq!(words(&sent), ["user:weather?", "assistant:-", "tool:sunny"]);
    assert_eq!(sent[1]["tool_calls"], call.at("/choices/0/message/tool_calls"));
    ask(user("thanks"));
    assert_eq!(self::sent(&alpha)[1]["tool_calls"], call.at("/choices/0/message/tool_calls"));
    gateway
        .chat_with(
            "m",
            json!({"session": "s", "messages": [{"role": "tool", "tool_call_id": "nobody", "content": "x"}]}),
        )
        .error(400, "invalid_body")
        .about("messages");
}

/// One result for each call is what upstreams take; agents that resume their work may send another.
#[test]
fn ctx_02_a_second_result_of_a_call_is_not_lost() {
    let (alpha, gateway) = gateway_over([]);
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}});
    let result = |text: &str| json!({"role": "tool", "tool_call_id": "c1", "content": text});
    let turn = |fields: Value| {
        let messages = json!([{"role": "user", "content": "weather?"},
            {"role": "assistant", "content": null, "tool_calls": [call]}, result("aborted"), result("sunny")]);
        let mut fields = fields;
        fields["messages"] = messages;
        gateway.chat_with("m", fields).ok();
        sent(&alpha)
    };
    for fields in [json!({}), json!({"session": "s"})] {
        let heard = turn(fields);
        assert_eq!(words(&heard), ["user:weather?", "assistant:-", "tool:aborted\nsunny"]);
    }
}

#[test]
fn ctx_02_a_call_that_nobody_answered_is_mended_in_the_session() {
    let (alpha, gateway) = gateway_over([]);
    let ask = |messages: Value| {
        gateway.chat_with("m", json!({"session": "s", "messages": messages, "tools": [weather_tool()]})).ok()
    };
    let call = ask(user("weather?"));
    alpha.script([Step::say("fine")]);
    ask(user("never mind"));
    let sent = sent(&alpha);
    assert_eq!(sent[2]["tool_call_id"], call.at("/choices/0/message/tool_calls/0/id"));
    assert_eq!(sent[3]["content"], "never mind");
    let stored = stored(&gateway, "s");
    assert!(stored.len() == 5 && stored[2].starts_with("tool:[no result"), "{stored:?}");
}

#[test]
fn w13_images_and_odd_fields_come_back_as_they_were() {
    let (alpha, gateway) = gateway_over([Step::say("a cat"), Step::say("black")]);
    let image = format!("data:image/png;base64,{}", "QUJD".repeat(5_000));
    let parts = format!(
        r#"{{"role":"user","content":[{{"type":"text","text":"what is \u0074his?"}},{{"type":"image_url","image_url":{{"url":"{image}"}}}}],"zz":9007199254740993}}"#
    );
    let body = format!(r#"{{"model":"m","session":"s","messages":[{parts}]}}"#);
    let request = Request::new("POST", "/v1/chat/completions").body(body.as_bytes());
    let file = provider(&alpha).model_with("m", json!({"caps": ["chat", "vision"]}));
    let gateway = {
        drop(gateway);
        Gateway::over([file])
    };
    gateway.send(&request).ok();
    let mut gateway = gateway;
    // From memory, and from the disk.
    for _ in 0..2 {
        tell(&gateway, "s", "colour?").ok();
        assert!(lossy(&chats(&alpha).last().expect("a call").request.body).contains(&parts));
        gateway.restart();
    }
    let view = gateway.get("/api/sessions/s?images=0").ok();
    let url = view.at("/messages/0/content/1/image_url/url");
    assert!(url.as_str().is_some_and(|url| url.starts_with("sha256:")), "{url}");
    assert_eq!(gateway.get("/api/sessions/s").ok().at("/messages/0/content/1/image_url/url"), json!(image));
}

#[test]
fn w13_of_several_answers_the_first_is_stored() {
    let choice = |index: u32, text: &str| json!({"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"});
    let body = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice(0, "one"), choice(1, "two")]});
    let (_alpha, gateway) = gateway_over([Step::json(200, &body)]);
    gateway.chat_with("m", json!({"session": "s", "n": 2})).ok();
    assert_eq!(stored(&gateway, "s"), ["user:hi", "assistant:one"]);
}

#[test]
fn w13_a_turn_that_fails_leaves_nothing() {
    let truncated = Step::events([delta("half")]).without_done();
    for (steps, stream) in [
        (vec![Step::error(400, "no")], false),
        (vec![Step::status(404), Step::status(404)], false),
        (vec![Step::status(500)], false),
        (vec![Step::say("")], false),
        (vec![truncated], true),
        (vec![Step::events([delta("half"), r#"{"error":{"message":"died","code":500}}"#.to_owned()])], true),
    ] {
        let (alpha, gateway) = gateway_over(steps);
        let fields = json!({"session": "s"});
        let answer = if stream { gateway.stream_with("m", fields) } else { gateway.chat_with("m", fields) };
        assert_eq!(stored(&gateway, "s"), [""; 0], "{answer}");
        assert_eq!(answer.header("x-freeway-session"), Some("s"), "{answer}");
        drop(alpha);
    }
    let (_alpha, gateway) = gateway_over([]);
    let unknown = gateway.chat_with("no-such-model-at-all", json!({"session": "s"}));
    assert_eq!((unknown.status(), unknown.header("x-freeway-session")), (404, Some("s")), "{unknown}");
    assert_eq!(stored(&gateway, "s"), [""; 0]);
}

#[test]
fn w13_a_client_that_leaves_leaves_nothing() {
    let (alpha, gateway) =
        gateway_over([Step::events([delta("half"), delta("more"), finish("stop")]).drip_ms(400)]);
    let body = hello_with("m", json!({"stream": true, "session": "s"}));
    let live = gateway.open(&Request::chat(&body));
    drop(live);
    eventually("the turn has ended", || gateway.turns().len() == 1);
    assert_eq!((chats(&alpha).len(), stored(&gateway, "s")), (1, vec![]));
}

#[test]
fn b1_a_stream_is_stored_whole_however_it_was_cut() {
    let text = "naïve 漢字 😀!";
    let wire = [t(text), fin() + DONE].concat().into_bytes();
    let acts: Vec<Act> = wire.chunks(1).map(Act::write).collect();
    let (alpha, gateway) =
        gateway_over([Step::writes(acts).header("content-type", "text/event-stream"), Step::say("x")]);
    let answer = gateway.stream_with("m", json!({"session": "s"})).well_formed_stream();
    assert_eq!(answer.content(), text);
    assert_eq!(stored(&gateway, "s"), ["user:hi".to_owned(), format!("assistant:{text}")]);
    tell(&gateway, "s", "go on").ok();
    assert_eq!(heard(&alpha)[1], format!("assistant:{text}"));
}

#[test]
fn w13_a_streamed_tool_call_is_stored_whole() {
    let (alpha, gateway) = gateway_over([]);
    let fields = json!({"session": "s", "tools": [weather_tool()]});
    gateway.stream_with("m", fields).well_formed_stream();
    let message = view(&gateway, "s").ok().at("/messages/1");
    let call = &message["extra"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather", "{message}");
    let result = json!([{"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]);
    gateway.chat_with("m", json!({"session": "s", "messages": result, "tools": [weather_tool()]})).ok();
    assert_eq!(sent(&alpha)[1]["tool_calls"][0]["function"], call["function"]);
}

#[test]
fn w13_a_cached_answer_is_stored_too() {
    let (alpha, gateway) = gateway_over([Step::say("four")]);
    let ask = |session: &str| {
        let fields = json!({"session": session, "temperature": 0, "messages": user("2+2?")});
        gateway.chat_with("m", fields).ok()
    };
    ask("a");
    let hit = ask("b");
    assert_eq!(
        (hit.header("x-freeway-cache"), hit.header("x-freeway-session")),
        (Some("exact"), Some("b")),
        "{hit}"
    );
    assert_eq!(
        (chats(&alpha).len(), stored(&gateway, "b")),
        (1, vec!["user:2+2?".into(), "assistant:four".into()])
    );
}

#[test]
fn a9_each_key_has_its_own_sessions() {
    let alpha = mock_that("alpha", [Step::say("one"), Step::say("two"), Step::say("three")]);
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .client_key("fw-a,fw-b")
        .env("FREEWAY_ADMIN_KEY", "fw-admin")
        .start();
    let first = tell_as(&gateway, "fw-a", "s", "mine").ok();
    let second = tell_as(&gateway, "fw-b", "s", "other").ok();
    assert_eq!(heard(&alpha), ["user:other"]);
    for answer in [&first, &second] {
        assert_eq!(answer.header("x-freeway-session"), Some("s"), "{answer}");
    }
    tell_as(&gateway, "fw-a", "s", "again").ok();
    assert_eq!(heard(&alpha), ["user:mine", "assistant:one", "user:again"]);
    let owner = |path: &str| gateway.send(&Request::get(path).key("fw-admin"));
    let all = owner("/api/sessions").ok().at("/sessions");
    let owners: Vec<&str> =
        all.as_array().expect("a list").iter().filter_map(|s| s["owner"].as_str()).collect();
    assert!(owners.len() == 2 && owners[0] != owners[1], "{all}");
    let b = owners[1];
    let view = owner(&format!("/api/sessions/s?owner={b}")).ok();
    assert_eq!(words(&view.at("/messages")), ["user:other", "assistant:two"]);
    let request = Request::new("DELETE", &format!("/api/sessions/s?owner={b}")).key("fw-admin");
    assert_eq!(gateway.send(&request).ok().json(), json!({"ok": true, "id": "s"}));
    assert_eq!(owner("/api/sessions/s").ok().at("/owners").as_array().map(Vec::len), Some(1));
    assert_eq!(gateway.send(&Request::get("/api/sessions").key("fw-a")).status(), 403);
}

#[test]
fn a9_sessions_made_without_a_key_are_not_there_for_those_with_one() {
    let alpha = mock_that("alpha", [Step::say("one"), Step::say("two")]);
    let mut gateway = Gateway::builder().provider(provider(&alpha)).start();
    tell(&gateway, "s", "open").ok();
    gateway.stop();
    gateway.set_env("FREEWAY_KEYS", "fw-a");
    gateway.start_again();
    tell_as(&gateway, "fw-a", "s", "closed").ok();
    assert_eq!(heard(&alpha), ["user:closed"]);
}

#[test]
fn sessions_are_there_after_a_restart() {
    let (alpha, mut gateway) = gateway_over([Step::say("one"), Step::say("two"), Step::say("three")]);
    tell(&gateway, "s/ä", "a").ok();
    gateway.restart();
    tell(&gateway, "s/ä", "b").ok();
    assert_eq!(heard(&alpha), ["user:a", "assistant:one", "user:b"]);
    gateway.restart();
    assert_eq!(stored(&gateway, "s%2F%C3%A4"), ["user:a", "assistant:one", "user:b", "assistant:two"]);
    assert_eq!(gateway.get("/api/sessions/s/%C3%A4").ok().at("/session/messages"), json!(4));
    gateway.send(&Request::new("DELETE", "/api/sessions/s%2F%C3%A4")).ok();
    gateway.restart();
    assert_eq!(gateway.get("/api/sessions").ok().at("/sessions"), json!([]));
    tell(&gateway, "s/ä", "c").ok();
    assert_eq!(heard(&alpha), ["user:c"]);
}

#[test]
fn a_kill_costs_no_more_than_what_was_not_written() {
    let (alpha, mut gateway) = gateway_over([Step::say("one"), Step::say("two"), Step::say("three")]);
    tell(&gateway, "s", "a").ok();
    gateway.restart();
    tell(&gateway, "s", "b").ok();
    gateway.kill();
    gateway.start_again();
    tell(&gateway, "s", "c").ok();
    let heard = heard(&alpha);
    assert_eq!(
        (heard[..2].join(" "), heard.last().map(String::as_str)),
        ("user:a assistant:one".into(), Some("user:c"))
    );
}

#[test]
fn much_text_is_written_before_the_minute_ends() {
    // Numbers, so that they cannot be packed to nothing.
    let long =
        (0..60_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_string()).collect::<Vec<_>>().join(" ");
    let (_alpha, mut gateway) = gateway_over([Step::say(long)]);
    tell(&gateway, "s", "a").ok();
    eventually("a write", || committed_bytes(&gateway) > 100_000);
    gateway.kill();
    gateway.start_again();
    assert_eq!(stored(&gateway, "s").len(), 2);
}

#[test]
fn two_turns_at_once_are_stored_one_behind_the_other() {
    let steps = ["one", "two"].map(|text| Step::say(text).delay_ms(300));
    let (alpha, gateway) = gateway_over(std::iter::once(Step::say("zero")).chain(steps));
    tell(&gateway, "s", "begin").ok();
    at_once(2, |n| tell(&gateway, "s", &format!("q{n}")).ok());
    for call in &chats(&alpha)[1..] {
        let heard = words(&call.json()["messages"]);
        assert_eq!((heard.len(), heard[1].as_str()), (3, "assistant:zero"), "both begin with the same");
    }
    let stored = stored(&gateway, "s");
    let kinds: Vec<&str> = stored.iter().map(|word| &word[..1]).collect();
    assert_eq!(kinds, ["u", "a", "u", "a", "u", "a"], "{stored:?}");
}

#[test]
fn a_turn_that_ends_after_its_session_was_deleted_leaves_nothing() {
    let (_alpha, gateway) = gateway_over([Step::say("one"), Step::say("two").delay_ms(500)]);
    tell(&gateway, "s", "a").ok();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| tell(&gateway, "s", "b").ok());
        std::thread::sleep(Duration::from_millis(200));
        gateway.send(&Request::new("DELETE", "/api/sessions/s")).ok();
        slow.join().expect("it ends");
    });
    assert_eq!(stored(&gateway, "s"), [""; 0]);
    gateway.send(&Request::new("DELETE", "/api/sessions/s")).ok();
}

#[test]
fn c10_what_is_sent_is_bounded_and_all_is_kept() {
    let alpha = mock("alpha");
    let gateway =
        Gateway::builder().provider(provider(&alpha)).settings(json!({"guard": {"maxMessages": 4}})).start();
    alpha.script((0..4).map(|n| Step::say(format!("a{n}"))));
    for n in 0..4 {
        tell(&gateway, "s", &format!("q{n}")).ok();
    }
    assert_eq!(heard(&alpha), ["user:q2", "assistant:a2", "user:q3"]);
    assert_eq!(stored(&gateway, "s").len(), 8);
}

#[test]
fn old_and_many_sessions_go() {
    let (_alpha, gateway) = {
        let alpha = mock("alpha");
        let settings = json!({"sessions": {"max": 2}});
        let gateway = Gateway::builder().provider(provider(&alpha)).settings(settings).start();
        (alpha, gateway)
    };
    for session in ["a", "b", "c"] {
        tell(&gateway, session, "hi").ok();
    }
    let list = gateway.get("/api/sessions").ok().at("/sessions");
    let ids: Vec<&str> = list.as_array().expect("a list").iter().filter_map(|s| s["id"].as_str()).collect();
    assert_eq!(ids, ["c", "b"], "{list}");
}

#[test]
fn the_list_says_what_there_is() {
    let (_alpha, gateway) = gateway_over([Step::say("one")]);
    tell(&gateway, "s", "hi").ok();
    let view = gateway.get("/api/sessions").ok();
    let session = view.at("/sessions/0");
    assert_eq!(
        (&session["id"], &session["owner"], &session["messages"]),
        (&json!("s"), &Value::Null, &json!(2))
    );
    for number in ["createdAt", "updatedAt", "tokens", "bytes"] {
        assert!(session[number].is_u64(), "{number} in {session}");
    }
    assert_eq!(session["model"], "alpha/m");
    assert!(view.at("/config").is_object() && view.at("/totals/sessions") == 1, "{view}");
    let messages = self::view(&gateway, "s").ok().at("/messages");
    assert_eq!((&messages[1]["seq"], &messages[1]["extra"]), (&json!(1), &Value::Null));
    assert!(messages[0]["createdAt"].as_u64() <= messages[1]["createdAt"].as_u64());
    gateway.get("/api/sessions/nobody").error(404, "not_found");
    gateway.get("/api/sessions/%ZZ").error(400, "");
}

/// The upstream answers from now on, and nobody is benched any more.
fn well_again(mock: &MockUpstream, gateway: &Gateway) {
    mock.script([]);
    gateway.send(&Request::new("DELETE", "/api/benches")).ok();
}

#[test]
fn a_session_keeps_its_model_until_it_cannot_serve() {
    let (alpha, beta, gateway) = two_with_first([Step::status(500)]);
    let ask = |fields: Value| gateway.chat_with("auto", fields).ok();
    ask(json!({"session": "s"})).served_by("beta");
    well_again(&alpha, &gateway);
    ask(json!({})).served_by("alpha");
    ask(json!({"session": "s"})).served_by("beta");
    ask(json!({"session": "other"})).served_by("alpha");
    beta.script([Step::status(500)]);
    ask(json!({"session": "s"})).served_by("alpha");
    well_again(&beta, &gateway);
    ask(json!({"session": "s"})).served_by("alpha");
}

#[test]
fn four_headers_stick_and_store_nothing() {
    for header in ["x-session-id", "session-id", "x-claude-code-session-id", "x-codex-session-id"] {
        let (alpha, _beta, gateway) = two_with_first([Step::status(500)]);
        let ask = |id: &str| gateway.send(&Request::chat(&hello("auto")).header(header, id)).ok();
        assert_eq!(ask("s").header("x-freeway-session"), None);
        well_again(&alpha, &gateway);
        ask("s").served_by("beta");
        ask("t").served_by("alpha");
        assert_eq!(words(&sent(&alpha)), ["user:hi"]);
        assert_eq!(gateway.get("/api/sessions").ok().at("/sessions"), json!([]));
    }
}

#[test]
fn a_pinned_model_and_an_own_order_win_over_what_sticks() {
    let (alpha, _beta, gateway) = two_with_first([Step::status(500)]);
    let ask = |model: &str, fields: Value| gateway.chat_with(model, fields).ok();
    ask("auto", json!({"session": "s"})).served_by("beta");
    well_again(&alpha, &gateway);
    ask("alpha/m", json!({"session": "s"})).served_by("alpha");
    ask("auto", json!({"session": "t", "models": ["beta/m", "alpha/m"]})).served_by("beta");
    ask("auto", json!({"session": "t", "models": ["alpha/m", "beta/m"]})).served_by("alpha");
}

#[test]
fn a_note_tells_a_model_that_it_takes_over() {
    let (alpha, beta, gateway) = two_with_first([Step::say("one"), Step::status(500)]);
    let ask = |text: &str| gateway.chat_with("auto", json!({"session": "s", "messages": user(text)})).ok();
    ask("a").served_by("alpha");
    ask("b").served_by("beta");
    let heard = heard(&beta);
    assert_eq!(heard[1..], ["user:a", "assistant:one", "user:b"]);
    assert!(
        heard[0].starts_with("system:") && heard[0].contains("alpha/m") && heard[0].len() < 400,
        "{heard:?}"
    );
    ask("c").served_by("beta");
    assert!(self::heard(&beta)[0].starts_with("user:a"), "it is told once");
    assert!(stored(&gateway, "s").iter().all(|word| !word.starts_with("system:")), "and never stored");
    drop(alpha);
}

#[test]
fn the_note_joins_the_system_message_that_is_there() {
    let (_alpha, beta, gateway) = two_with_first([Step::say("one"), Step::status(500)]);
    let begin = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]);
    gateway.chat_with("auto", json!({"session": "s", "messages": begin})).ok();
    gateway.chat_with("auto", json!({"session": "s", "messages": user("b")})).ok().served_by("beta");
    let heard = heard(&beta);
    assert!(heard.len() == 4 && heard[0].starts_with("system:be brief\n\n"), "{heard:?}");
}

#[test]
fn the_note_can_be_switched_off() {
    let (alpha, beta) = (mock_that("alpha", [Step::say("one"), Step::status(500)]), mock("beta"));
    let gateway = Gateway::builder()
        .provider(provider(&alpha).priority(1))
        .provider(provider(&beta).priority(2))
        .settings(json!({"routing": {"handoff": false}}))
        .start();
    gateway.chat_with("auto", json!({"session": "s"})).ok().served_by("alpha");
    gateway.chat_with("auto", json!({"session": "s"})).ok().served_by("beta");
    assert_eq!(heard(&beta)[0], "user:hi");
}
