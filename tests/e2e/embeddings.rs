//! Vectors: counted, failed over only where the same model serves, never half.
use crate::harness::*;

/// Two providers, alpha before beta, with an embedding model each.
fn two(first: Step, models: [&str; 2]) -> (MockUpstream, MockUpstream, Gateway) {
    let (alpha, beta) = (mock_that("alpha", [first]), mock("beta"));
    let gateway = Gateway::over([
        provider(&alpha).priority(1).embed_model(models[0]),
        provider(&beta).priority(2).embed_model(models[1]),
    ]);
    (alpha, beta, gateway)
}

#[test]
fn vectors_come_back_in_order() {
    let (alpha, _beta, gateway) = two(Step::ok(), ["e", "e"]);
    let answer = gateway.embed("e", json!(["one", "two"])).ok().served_by("alpha").after_attempts(1);
    assert_eq!((answer.at("/object"), answer.at("/data/1/index")), (json!("list"), json!(1)));
    assert_eq!(answer.at("/data/0/embedding").as_array().map(Vec::len), Some(8));
    assert_ne!(answer.at("/data/0/embedding"), answer.at("/data/1/embedding"));
    assert_eq!(alpha.calls_to("/embeddings")[0].json()["input"], json!(["one", "two"]));
}

/// Many clients take the vectors in the order in which they stand.
#[test]
fn vectors_that_come_in_another_order_are_sorted() {
    let entry =
        |index: u32, number: f64| json!({"object": "embedding", "index": index, "embedding": [number]});
    let body = json!({"object": "list", "data": [entry(1, 0.25), entry(0, 0.5)], "model": "e"});
    let (_alpha, _beta, gateway) = two(Step::json(200, &body), ["e", "e"]);
    let answer = gateway.embed("e", json!(["one", "two"])).ok().served_by("alpha");
    assert_eq!((answer.at("/data/0/index"), answer.at("/data/0/embedding")), (json!(0), json!([0.5])));
}

#[test]
fn options_reach_the_upstream() {
    let (alpha, _beta, gateway) = two(Step::ok(), ["e", "e"]);
    let body = json!({"model": "e", "input": "one", "dimensions": 4, "encoding_format": "base64"});
    let answer = gateway.post("/v1/embeddings", &body).ok();
    assert!(answer.at("/data/0/embedding").is_string());
    assert_eq!(alpha.calls_to("/embeddings")[0].json()["dimensions"], json!(4));
}

#[test]
fn a_provider_s_file_sets_fields_of_embeddings_too() {
    let alpha = mock("alpha");
    let file = provider(&alpha)
        .embed_model("e")
        .set("defaultParams", json!({"input_type": "passage", "temperature": 0.7}))
        .set("forceParams", json!({"truncate": "END"}))
        .set("renameParams", json!({"dimensions": "size"}))
        .set("dropParams", json!(["user"]));
    let gateway = Gateway::over([file]);
    let body = json!({"model": "e", "input": "one", "dimensions": 4, "user": "u", "truncate": "NONE"});
    gateway.post("/v1/embeddings", &body).ok();
    let sent = json!({"model": "e", "input": "one", "size": 4, "truncate": "END", "input_type": "passage"});
    assert_eq!(alpha.calls_to("/embeddings")[0].json(), &sent);
}

/// What clients get of an upstream that knows only this form of a vector.
fn told(vector: Value, fields: &str) -> Answer {
    let data = json!([{"object": "embedding", "index": 0, "embedding": vector}]);
    let body = json!({"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": 1, "total_tokens": 1}});
    let (_alpha, beta, gateway) = two(Step::json(200, &body), ["e", "e"]);
    let asked = format!(r#"{{"model":"e","input":"one"{fields}}}"#);
    let answer = gateway.send(&Request::new("POST", "/v1/embeddings").body(asked)).ok();
    assert!(beta.calls().is_empty(), "it is a good answer");
    answer
}

#[test]
fn vectors_come_in_the_form_that_was_asked_for() {
    let (numbers, coded) = (json!([0.5, -0.25, 0.125]), json!("AAAAPwAAgL4AAAA+"));
    let base64 = r#","encoding_format":"base64""#;
    for came in [&numbers, &coded] {
        let form = |fields: &str| told(came.clone(), fields).at("/data/0/embedding");
        assert_eq!(form(base64), coded, "clients decode whatever comes as base64");
        assert_eq!(form(""), numbers);
        assert_eq!(form(r#","encoding_format":null"#), numbers);
        assert_eq!(form(r#","encoding_format":"float""#), numbers);
    }
    let other = told(json!([1, 2]), r#","encoding_format":"int8""#);
    assert_eq!(other.at("/data/0/embedding"), json!([1, 2]), "a form that only the upstream knows");
}

#[test]
fn no_input_is_the_clients_fault() {
    let (alpha, _beta, gateway) = two(Step::ok(), ["e", "e"]);
    gateway.post("/v1/embeddings", &json!({"model": "e"})).error(400, "missing_input").about("input");
    gateway.embed("e", Value::Null).error(400, "missing_input");
    assert!(alpha.calls().is_empty());
}

#[test]
fn emb_05_failover_keeps_the_operation_and_the_batch() {
    let (alpha, beta, gateway) = two(Step::status(503), ["e", "e"]);
    gateway.embed("e", json!(["one", "two"])).ok().served_by("beta").after_attempts(2);
    assert_eq!(alpha.calls_to("/embeddings").len(), 1);
    assert_eq!(beta.calls_to("/embeddings")[0].json()["input"], json!(["one", "two"]));
}

#[test]
fn emb_04_an_error_under_200_is_an_error() {
    let limit = json!({"error": {"message": "HTTP 429: slow down, retry after 3 seconds", "code": 429}});
    let (_alpha, _beta, gateway) = two(Step::json(200, &limit), ["e", "e"]);
    gateway.embed("e", json!("one")).ok().served_by("beta");
}

#[test]
fn emb_04_half_a_batch_is_no_answer() {
    let half = json!({"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [1.0]}], "model": "e"});
    let (_alpha, _beta, gateway) = two(Step::json(200, &half), ["e", "e"]);
    gateway.embed("e", json!(["one", "two"])).ok().served_by("beta");
}

#[test]
fn b18_another_models_vectors_are_never_mixed_in() {
    let (_alpha, beta, gateway) = two(Step::status(503), ["e-first", "e-second"]);
    assert!(gateway.embed("auto", json!("one")).status() >= 500);
    assert!(beta.calls().is_empty(), "other weights make other vectors");
}

#[test]
fn b18_an_alias_stays_with_one_model() {
    let (alpha, beta) = (mock_that("alpha", [Step::status(503)]), mock("beta"));
    let embed = |mock: &MockUpstream, id: &str| {
        provider(mock).model_with(id, json!({"caps": ["embed"], "alias": ["vectors"]}))
    };
    let gateway = Gateway::over([embed(&alpha, "e-first").priority(1), embed(&beta, "e-second").priority(2)]);
    assert!(gateway.embed("vectors", json!("one")).status() >= 500);
    assert!(gateway.embed("vectors", json!("one")).status() >= 400, "nor while the first rests");
    assert!(beta.calls().is_empty(), "other weights make other vectors");
}

#[test]
fn b18_tokens_of_every_form_of_input_are_counted() {
    let ids: Vec<u32> = (0..600).collect();
    for input in [json!(ids), json!([ids, ids]), json!("word ".repeat(600)), json!(["word ".repeat(600)])] {
        let alpha = mock_that("alpha", [Step { usage: Usage::None, ..Step::ok() }]);
        let file =
            provider(&alpha).embed_model("e").limits(json!({"tpm": 500})).set("tokenInputs", json!(true));
        let answer = Gateway::over([file]).embed("e", input.clone());
        answer.error(413, "context_length_exceeded");
        assert!(alpha.calls().is_empty());
    }
}

#[test]
fn emb_03_token_ids_go_only_where_they_are_taken() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let takes = |takes: bool| {
        let second = provider(&beta).priority(2).embed_model("e").set("tokenInputs", json!(takes));
        Gateway::over([provider(&alpha).priority(1).embed_model("e"), second])
    };
    let ids = json!([101, 2023]);
    takes(true).embed("e", ids.clone()).ok().served_by("beta").after_attempts(1);
    assert_eq!(beta.calls_to("/embeddings")[0].json()["input"], ids);
    let refused = takes(false).embed("e", ids).error(400, "capability_unavailable").about("input");
    assert!(refused.after_attempts(0).text().contains("send `input` as text"));
    assert!(alpha.calls().is_empty());
}

/// Each input is read by itself: a long list of short texts is no long text.
#[test]
fn a_window_has_to_hold_the_longest_input_and_not_all() {
    let alpha = mock("alpha");
    let gateway =
        Gateway::over([provider(&alpha).model_with("e", json!({"caps": ["embed"], "context": 100}))]);
    let text = |words: usize| json!("word ".repeat(words));
    gateway.embed("e", json!([text(60), text(60), text(60)])).ok();
    let refused = gateway.embed("e", json!([text(60), text(100)])).error(413, "context_length_exceeded");
    assert_eq!(refused.at("/freeway/required"), json!(125));
    gateway.embed("e", text(100)).error(413, "context_length_exceeded");
    assert_eq!(alpha.calls_to("/embeddings").len(), 1);
    // An upstream that finds one of them too long is not asked again with the same.
    let too_long = json!({"error": {"message": "input is too long: maximum context length is 40 tokens"}});
    alpha.script([Step::json(400, &too_long), Step::ok()]);
    gateway.embed("e", json!([text(60), text(60), text(60)])).error(413, "context_length_exceeded");
    assert_eq!(alpha.calls_to("/embeddings").len(), 2);
}

#[test]
fn an_embedding_limit_is_counted() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).embed_model("e").limits(json!({"rpm": 1}))]);
    gateway.embed("e", json!("one")).ok();
    gateway.embed("e", json!("two")).error(429, "all_providers_blocked");
}
