//! Questions in other words: which are answered from memory, and which must not be. The mock's own vectors are made of
//! character codes, so that any two sentences are close and only everything else can tell them apart.
use crate::harness::*;

const FRANCE: &str = "What is the capital of France?";
const FRANCE_AGAIN: &str = "Tell me what the capital of France is.";

/// An upstream that answers chats and embeddings so, always.
fn mock_of(chat: Step, embedding: Step) -> MockUpstream {
    let always = |step: Step, path: &str| step.for_path(path).times(FOREVER);
    mock_that("alpha", [always(chat, "/chat/completions"), always(embedding, "/embeddings")])
}

/// A gateway whose semantic cache is on, over `alpha` with a chat model and the embedding model `e`.
fn alike_over(alpha: &MockUpstream, settings: Value) -> Gateway {
    alike(provider(alpha).model("m").embed_model("e"), settings)
}

fn alike(alpha: Provider, settings: Value) -> Gateway {
    alike_builder(settings).provider(alpha).start()
}

/// Settings of the cache, over those that switch the semantic tier on.
fn alike_builder(settings: Value) -> Builder {
    let mut cache = json!({"semantic": {"enabled": true, "model": "e"}});
    for (name, value) in settings.as_object().expect("settings are an object") {
        cache[name] = value.clone();
    }
    Gateway::builder().settings(json!({"cache": cache}))
}

fn question(text: &str, fields: Value) -> Value {
    let mut body = json!({"model": "m", "temperature": 0, "messages": [{"role": "user", "content": text}]});
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    body
}

fn ask(gateway: &Gateway, text: &str) -> Answer {
    ask_with(gateway, text, json!({}))
}

fn ask_with(gateway: &Gateway, text: &str, fields: Value) -> Answer {
    gateway.post("/v1/chat/completions", &question(text, fields))
}

#[track_caller]
fn hit(answer: Answer) -> Answer {
    assert_eq!(answer.header("x-freeway-cache"), Some("semantic"), "{answer}");
    answer.ok().after_attempts(0)
}

#[track_caller]
fn miss(answer: Answer) -> Answer {
    assert_eq!(
        (answer.header("x-freeway-cache"), answer.header("x-freeway-cache-score")),
        (None, None),
        "{answer}"
    );
    answer.ok()
}

/// How many embeddings an upstream was asked for.
fn embeddings(mock: &MockUpstream) -> usize {
    mock.calls_to("/embeddings").len()
}

fn semantic(gateway: &Gateway) -> Value {
    gateway.get("/api/cache").ok().at("/semantic")
}

#[test]
fn a_question_in_other_words_is_answered_from_memory() {
    let alpha = mock_of(Step::say("Paris"), Step::ok());
    let gateway = alike_over(&alpha, json!({}));
    miss(ask(&gateway, FRANCE));
    let again = hit(ask(&gateway, FRANCE_AGAIN)).served_by("alpha");
    assert_eq!(again.content(), "Paris");
    let score = again.header("x-freeway-cache-score").expect("a score").to_owned();
    assert!(
        score.len() == 6 && score.parse::<f64>().is_ok_and(|score| (0.92..=1.0).contains(&score)),
        "{score}"
    );
    let stream = hit(ask_with(&gateway, FRANCE_AGAIN, json!({"stream": true})));
    assert_eq!((stream.content(), stream.finish_reason()), ("Paris".into(), Some("stop".into())));
    assert_eq!(ask(&gateway, FRANCE).header("x-freeway-cache"), Some("exact"), "the very same comes first");
    assert_eq!((chats(&alpha).len(), embeddings(&alpha)), (1, 3));
    let view = semantic(&gateway);
    assert_eq!(
        (&view["entries"], &view["hits"], &view["misses"], &view["dims"]),
        (&json!(1), &json!(2), &json!(1), &json!(8))
    );
    let turn = gateway.last_turn(6);
    assert_eq!(turn["cache"], "exact");
    assert_eq!(gateway.turns()[1]["cache"], "semantic");
    assert_eq!(gateway.send(&Request::new("DELETE", "/api/cache")).ok().at("/ok"), json!(true));
    miss(ask(&gateway, FRANCE_AGAIN));
}

#[test]
fn without_the_setting_nobody_is_asked_for_a_vector() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).model("m").embed_model("e")]);
    miss(ask(&gateway, FRANCE));
    miss(ask(&gateway, FRANCE_AGAIN));
    assert_eq!((chats(&alpha).len(), embeddings(&alpha)), (2, 0));
    assert_eq!(semantic(&gateway), Value::Null);
}

#[test]
fn cache_02_numbers_negations_names_and_histories_are_told_apart() {
    let alpha = mock("alpha");
    let gateway = alike_over(&alpha, json!({}));
    for [first, second] in [
        ["What is 17*23?", "What is 17*24?"],
        ["How do I enable X?", "How do I disable X?"],
        ["What is the capital of Australia?", "What is the capital of Austria?"],
        ["Can I eat this with milk?", "Can I eat this without milk?"],
        ["Translate 'good morning' to French.", "Translate 'good evening' to French."],
        ["Is it open on Monday?", "Is it open on Sunday?"],
    ] {
        let first = miss(ask(&gateway, first)).content();
        assert_ne!(miss(ask(&gateway, second)).content(), first);
    }
    let after = |topic: &str, last: &str| {
        let messages = json!([{"role": "user", "content": format!("How is the weather in {topic}?")},
            {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": last}]);
        ask_with(&gateway, "", json!({"messages": messages}))
    };
    miss(after("Rome", "And what about Paris?"));
    miss(after("Oslo", "And what about Paris?"));
    hit(after("Rome", "and what about paris"));
}

#[test]
fn cache_02_vectors_that_say_nothing_match_nothing() {
    for vector in [
        json!([0, 0, 0, 0]),
        json!([0.5, 0.5, 0.5, 0.5]),
        json!([1]),
        json!([]),
        json!([null, 1, 2]),
        json!("x"),
    ] {
        let body = json!({"object": "list", "model": "e", "data": [{"object": "embedding", "index": 0, "embedding": vector}],
            "usage": {"prompt_tokens": 1, "total_tokens": 1}});
        let alpha = mock_of(Step::ok(), Step::json(200, &body));
        let gateway = alike_over(&alpha, json!({}));
        miss(ask(&gateway, FRANCE));
        miss(ask(&gateway, FRANCE_AGAIN));
        assert_eq!(semantic(&gateway)["entries"], 0, "{vector}");
    }
}

#[test]
fn the_threshold_decides() {
    let vectors = [(FRANCE, vec![1.0, 0.0, 0.0]), (FRANCE_AGAIN, vec![0.9, 0.435_889_9, 0.0])];
    let alpha = mock_of(Step::ok(), Step::vectors(vectors));
    let gateway = alike_over(&alpha, json!({}));
    miss(ask(&gateway, FRANCE));
    miss(ask(&gateway, FRANCE_AGAIN));
    let lower = json!({"semantic": {"enabled": true, "model": "e", "threshold": 0.9}});
    let gateway = alike_over(&alpha, lower);
    miss(ask(&gateway, FRANCE));
    let score = hit(ask(&gateway, FRANCE_AGAIN));
    assert_eq!(score.header("x-freeway-cache-score"), Some("0.9000"));
}

#[test]
fn w18_another_system_prompt_tool_or_parameter_is_another_question() {
    let alpha = mock("alpha");
    let gateway = alike_over(&alpha, json!({}));
    miss(ask(&gateway, FRANCE));
    for fields in [
        json!({"tools": [weather_tool()], "max_tokens": 50}),
        json!({"max_tokens": 50}),
        json!({"temperature": 0.1}),
        json!({"response_format": {"type": "json_object"}}),
        json!({"messages": [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": FRANCE_AGAIN}]}),
    ] {
        miss(ask_with(&gateway, FRANCE_AGAIN, fields));
    }
    hit(ask_with(&gateway, FRANCE_AGAIN, json!({"user": "ann", "metadata": {"a": "b"}})));
}

#[test]
fn w18_images_and_tool_results_are_not_looked_up() {
    let alpha = mock("alpha");
    let gateway = alike_over(&alpha, json!({}));
    let image = json!([{"type": "text", "text": FRANCE}, {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}}]);
    miss(ask_with(&gateway, "", json!({"messages": [{"role": "user", "content": image}]})));
    let result = json!([{"role": "user", "content": FRANCE},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "Paris"}]);
    miss(ask_with(&gateway, "", json!({"messages": result, "tools": [weather_tool()]})));
    miss(ask(&gateway, &"very long ".repeat(200)));
    assert_eq!(embeddings(&alpha), 0);
    // What the exact tier must not keep is not looked up either.
    ask_with(&gateway, FRANCE, json!({"temperature": 1})).ok();
    let off = Request::chat(&question(FRANCE, json!({}))).header("x-freeway-cache", "off");
    gateway.send(&off).ok();
    assert_eq!(embeddings(&alpha), 0);
}

#[test]
fn w18_look_ups_are_metered_and_logged_like_any_request() {
    let alpha = mock("alpha");
    let gateway = alike(provider(&alpha).model("m").embed_model("e").limits(json!({"rpm": 100})), json!({}));
    miss(ask(&gateway, FRANCE));
    assert_eq!((embeddings(&alpha), gateway.used("rpm")), (1, 2.0));
    hit(ask(&gateway, FRANCE_AGAIN));
    assert_eq!((embeddings(&alpha), gateway.used("rpm")), (2, 3.0));
    let turns = gateway.turns();
    let own = turns.iter().find(|turn| turn["operation"] == "embeddings").expect("a turn of its own");
    assert_eq!((&own["modelId"], &own["status"]), (&json!("e"), &json!(200)));
}

#[test]
fn a_look_up_never_takes_the_last_of_a_quota() {
    let (alpha, embedder) = (mock("alpha"), mock("vectors"));
    let gateway = alike_builder(json!({}))
        .provider(provider(&alpha))
        .provider(provider(&embedder).embed_model("e").limits(json!({"rpd": 20})))
        .start();
    for number in 0..25 {
        miss(ask(&gateway, &format!("What is the square root of {number}?")));
    }
    assert_eq!(embeddings(&embedder), 19, "one in ten is left for those who ask for vectors");
    let failed = gateway.turns().iter().filter(|turn| turn["status"] != 200).count();
    assert_eq!(failed, 0, "a look-up that nobody could make is no failure");
    gateway.embed("e", json!("mine")).ok();
}

#[test]
fn w18_the_embedder_fails_over_to_the_same_model_and_to_no_other() {
    let (alpha, first, second, other) =
        (mock("alpha"), mock_that("first", [Step::status(503)]), mock("second"), mock("zother"));
    let embedder = |mock: &MockUpstream, id: &str| {
        provider(mock).model_with(id, json!({"caps": ["embed"], "alias": ["vectors"]}))
    };
    let gateway = alike_builder(json!({"semantic": {"enabled": true, "model": "vectors"}}))
        .provider(provider(&alpha))
        .provider(embedder(&first, "e").priority(1))
        .provider(embedder(&second, "e").priority(2))
        .provider(embedder(&other, "f").priority(3))
        .start();
    miss(ask(&gateway, FRANCE));
    hit(ask(&gateway, FRANCE_AGAIN));
    assert_eq!((embeddings(&first) > 0, embeddings(&second), embeddings(&other)), (true, 2, 0));
}

#[test]
fn a_look_up_that_fails_is_a_miss() {
    for step in [
        Step::status(500),
        Step::html(200),
        Step::close(),
        Step::json(200, &json!({"object": "list", "data": []})),
    ] {
        let alpha = mock_of(Step::ok(), step);
        let gateway = alike_over(&alpha, json!({}));
        miss(ask(&gateway, FRANCE)).after_attempts(1);
        assert_eq!(ask(&gateway, FRANCE).header("x-freeway-cache"), Some("exact"));
    }
    let alpha = mock("alpha");
    let gateway = alike_over(&alpha, json!({"semantic": {"enabled": true, "model": "no-such-model"}}));
    miss(ask(&gateway, FRANCE)).after_attempts(1);
    let gateway = alike_over(&alpha, json!({"semantic": {"enabled": true, "model": "m"}}));
    miss(ask(&gateway, FRANCE)).after_attempts(1);
}

#[test]
fn a_miss_is_not_paid_for_twice() {
    let down = Step::status(400).for_path("/chat/completions");
    let alpha = mock_that(
        "alpha",
        [down, Step::ok().for_path("/chat/completions"), Step::ok().for_path("/embeddings")],
    );
    let gateway = alike_over(&alpha, json!({}));
    assert!(ask(&gateway, FRANCE).status() >= 400);
    miss(ask(&gateway, FRANCE));
    assert_eq!(embeddings(&alpha), 1);
}

#[test]
fn w18_another_embedder_begins_anew() {
    let alpha = mock("alpha");
    let gateway = alike(provider(&alpha).model("m").embed_model("e").embed_model("f"), json!({}));
    miss(ask(&gateway, FRANCE));
    gateway.write(
        "freeway.config.json",
        json!({"cache": {"semantic": {"enabled": true, "model": "f"}}}).to_string(),
    );
    gateway.reload();
    miss(ask(&gateway, FRANCE_AGAIN));
    assert_eq!(semantic(&gateway)["entries"], 1, "the other's vectors are gone");
    hit(ask(&gateway, "what is the capital of france"));
}

#[test]
fn w18_another_width_begins_anew() {
    let wide = Step::vectors([("Who wrote Hamlet?", (1_u8..20).map(f32::from).collect::<Vec<_>>())]);
    let alpha = mock_of(Step::ok(), wide);
    let gateway = alike_over(&alpha, json!({}));
    miss(ask(&gateway, FRANCE));
    miss(ask(&gateway, "Who wrote Hamlet?"));
    let view = semantic(&gateway);
    assert_eq!((&view["entries"], &view["dims"]), (&json!(1), &json!(19)));
}

#[test]
fn w18_a_forgotten_answer_takes_its_question_along() {
    let near = |degrees: f32| vec![degrees.to_radians().cos(), degrees.to_radians().sin(), 0.0];
    let best = "What's the capital of France";
    let vectors = Step::vectors([
        (FRANCE, near(10.0)),
        (best, near(16.0)),
        (FRANCE_AGAIN, near(18.0)),
        ("Who are you?", near(90.0)),
    ]);
    let (alpha, beta) = (mock_of(Step::say("of alpha"), vectors), mock_that("beta", [Step::say("of beta")]));
    let gateway = alike_builder(json!({}))
        .provider(provider(&alpha).model("m").embed_model("e"))
        .provider(provider(&beta).model("n"))
        .start();
    miss(ask(&gateway, FRANCE));
    let refused = ask_with(&gateway, best, json!({"model": "n"}));
    assert_eq!(miss(refused).content(), "of beta", "alpha's answer does not fit");
    assert_eq!(hit(ask(&gateway, FRANCE_AGAIN)).content(), "of alpha", "beta's is closer, but does not fit");
    let small = alike_over(&alpha, json!({"maxEntries": 1}));
    miss(ask(&small, FRANCE));
    miss(ask(&small, "Who are you?"));
    assert_eq!(semantic(&small)["entries"], 1, "the other went with its answer");
    miss(ask(&small, FRANCE_AGAIN));
}

#[test]
fn keys_have_questions_of_their_own_where_answers_are() {
    let alpha = mock("alpha");
    let over = |scope: &str| {
        let builder = alike_builder(json!({"scope": scope})).env("FREEWAY_KEYS", "key-of-ann,key-of-bob");
        builder.provider(provider(&alpha).model("m").embed_model("e")).start()
    };
    let ask = |gateway: &Gateway, key: &str, text: &str| {
        gateway.send(
            &Request::chat(&question(text, json!({}))).header("authorization", &format!("Bearer {key}")),
        )
    };
    let own = over("key");
    miss(ask(&own, "key-of-ann", FRANCE));
    miss(ask(&own, "key-of-bob", FRANCE_AGAIN));
    hit(ask(&own, "key-of-ann", FRANCE_AGAIN));
    let shared = over("shared");
    miss(ask(&shared, "key-of-ann", FRANCE));
    hit(ask(&shared, "key-of-bob", FRANCE_AGAIN));
}

#[test]
fn those_who_ask_the_same_at_once_share_one_look_up() {
    let slow = Step::ok().for_path("/embeddings").delay_ms(300);
    let alpha = mock_that("alpha", [Step::ok().for_path("/embeddings"), slow, Step::ok()]);
    let gateway = alike_over(&alpha, json!({}));
    miss(ask(&gateway, FRANCE));
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(|| hit(ask(&gateway, FRANCE_AGAIN)))).collect();
        asked.into_iter().for_each(|asked| drop(asked.join().expect("a hit")));
    });
    assert_eq!((chats(&alpha).len(), embeddings(&alpha)), (1, 2));
}

#[test]
fn w18_questions_outlive_a_restart() {
    let alpha = mock_of(Step::say("Paris"), Step::ok());
    let mut gateway = alike_over(&alpha, json!({}));
    miss(ask(&gateway, FRANCE));
    miss(ask(&gateway, "Who wrote Hamlet?"));
    let score = hit(ask(&gateway, FRANCE_AGAIN)).header("x-freeway-cache-score").map(str::to_owned);
    gateway.restart();
    let again = hit(ask(&gateway, FRANCE_AGAIN));
    assert_eq!(again.header("x-freeway-cache-score").map(str::to_owned), score, "vectors keep what they say");
    assert_eq!((again.content(), semantic(&gateway)["entries"].clone()), ("Paris".into(), json!(2)));
    hit(ask(&gateway, "who wrote hamlet"));
    assert_eq!((chats(&alpha).len(), embeddings(&alpha)), (2, 5));
    gateway.send(&Request::new("DELETE", "/api/cache")).ok();
    gateway.restart();
    miss(ask(&gateway, FRANCE_AGAIN));
}
