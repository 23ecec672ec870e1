//! The owner's right: by the admin key, by the machine itself, and by the page's cookie; and how wrong keys are slowed
//! down.
use crate::harness::*;

const ADMIN: &str = "admin-secret-1";

fn owned() -> (MockUpstream, Gateway) {
    let alpha = mock("alpha");
    let builder = Gateway::builder().provider(provider(&alpha)).env("FREEWAY_ADMIN_KEY", ADMIN);
    (alpha, builder.client_key("fw-right").start())
}

fn sign_in(gateway: &Gateway, key: &str) -> Answer {
    gateway.send(&Request::post("/api/session", &json!({"key": key})))
}

/// The cookie as a browser sends it back.
fn cookie(answer: &Answer) -> String {
    let set = answer.header("set-cookie").expect("a cookie");
    set.split(';').next().expect("a first part").to_owned()
}

fn state(gateway: &Gateway, request: Request) -> (Value, Value, Value) {
    let answer = gateway.send(&request).ok();
    (answer.at("/signedIn"), answer.at("/how"), answer.at("/by"))
}

#[test]
fn a10_the_page_signs_in_once_and_holds_no_key() {
    let (_alpha, gateway) = owned();
    assert_eq!(
        state(&gateway, Request::get("/api/session")),
        (json!(false), json!("admin_key"), Value::Null)
    );
    let answer = sign_in(&gateway, ADMIN).ok().never_says(ADMIN);
    let set = answer.header("set-cookie").expect("a cookie").to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(set.contains(part), "{set}");
    }
    let cookie = cookie(&answer);
    let with = |request: Request| request.header("cookie", &cookie);
    assert_eq!(
        state(&gateway, with(Request::get("/api/session"))),
        (json!(true), json!("admin_key"), json!("cookie"))
    );
    gateway.send(&with(Request::get("/api/stats"))).ok();
    gateway.send(&with(Request::new("POST", "/api/reload"))).ok();
    gateway.send(&with(Request::chat(&hello("m")))).ok();
    gateway.send(&with(Request::new("DELETE", "/api/session"))).ok();
    gateway.send(&with(Request::get("/api/stats"))).error(401, "invalid_api_key");
    gateway
        .send(&Request::get("/api/stats").header("cookie", "freeway_session=made-up"))
        .error(401, "invalid_api_key");
}

#[test]
fn a1_a_cookie_counts_for_our_own_page_only() {
    let (alpha, gateway) = owned();
    let cookie = cookie(&sign_in(&gateway, ADMIN).ok());
    let with = |request: Request| request.header("cookie", &cookie);
    // Ports do not part cookies: a page on another port of this machine has its requests carry ours.
    let neighbour = [("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")];
    for (name, value) in neighbour {
        assert_eq!(gateway.send(&with(Request::get("/api/stats")).header(name, value)).status(), 403);
        let posted =
            with(Request::post("/api/providers/alpha/key", &json!({"key": "theirs"}))).header(name, value);
        assert_eq!(gateway.send(&posted).status(), 403);
        let refused = gateway.send(&with(Request::chat(&hello("m"))).header(name, value));
        assert!([401, 403].contains(&refused.status()), "{refused}");
    }
    let plain = with(Request::chat(&hello("m"))).header("content-type", "text/plain");
    assert_eq!(gateway.send(&plain).status(), 415);
    assert!(chats(&alpha).is_empty());
}

#[test]
fn a_changed_admin_key_signs_everybody_out() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .settings(json!({"adminKey": "first-key"}))
        .client_key("fw-right")
        .start();
    let cookie = cookie(&sign_in(&gateway, "first-key").ok());
    let asked = Request::get("/api/stats").header("cookie", &cookie);
    gateway.send(&asked).ok();
    gateway.write("freeway.config.json", r#"{"adminKey": "second-key"}"#);
    gateway.send(&Request::new("POST", "/api/reload").key("first-key")).ok();
    gateway.send(&asked).error(401, "invalid_api_key");
}

#[test]
fn on_the_machine_itself_nothing_is_asked_until_there_are_keys() {
    let (_alpha, gateway) = gateway_over([]);
    assert_eq!(state(&gateway, Request::get("/api/session")), (json!(true), json!("none"), json!("machine")));
    let forwarded = Request::get("/api/session").header("x-forwarded-for", "127.0.0.1");
    assert_eq!(state(&gateway, forwarded), (json!(false), json!("set_admin_key"), Value::Null));
    let alpha = mock("alpha");
    let gateway = Gateway::builder().provider(provider(&alpha)).client_key("fw-right").start();
    assert_eq!(
        state(&gateway, Request::get("/api/session")),
        (json!(false), json!("client_key"), Value::Null)
    );
    gateway.send(&Request::get("/api/stats")).error(401, "invalid_api_key");
    let cookie = cookie(&sign_in(&gateway, "fw-right").ok());
    gateway.send(&Request::get("/api/stats").header("cookie", &cookie)).ok();
    let forwarded =
        Request::get("/api/stats").header("cookie", &cookie).header("x-forwarded-for", "10.0.0.1");
    let refused = gateway.send(&forwarded).error(403, "admin_required");
    assert!(refused.text().contains("FREEWAY_ADMIN_KEY"), "{refused}");
}

#[test]
fn wrong_sign_ins_are_told() {
    let (_alpha, gateway) = owned();
    sign_in(&gateway, "wrong").error(401, "invalid_api_key").about("key");
    sign_in(&gateway, "fw-right").error(401, "invalid_api_key");
    for body in [json!({}), json!({"key": ""}), json!({"key": 5}), json!({"key": "x", "user": "y"})] {
        gateway.send(&Request::post("/api/session", &body)).error(400, "invalid_body");
    }
}

#[test]
fn a6_who_tries_keys_is_slowed_down_and_right_keys_are_not() {
    let (alpha, gateway) = owned();
    let mut last = gateway.send(&Request::get("/v1/models").key("guess-0")).error(401, "invalid_api_key");
    for n in 1..40 {
        last = gateway.send(&Request::get("/v1/models").key(&format!("guess-{n}")));
        if last.status() == 429 {
            break;
        }
    }
    let refused = last.error(429, "caller_rate_limited");
    assert!(refused.number("retry-after") >= 1.0, "{refused}");
    sign_in(&gateway, "guess").error(429, "caller_rate_limited");
    gateway.chat("m").ok();
    gateway.send(&Request::get("/api/stats").key(ADMIN)).ok();
    sign_in(&gateway, ADMIN).ok();
    // Who presents none is told as always.
    gateway.send(&Request::get("/v1/models")).error(401, "invalid_api_key");
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn a6_guesses_at_the_admin_key_of_an_open_gateway_are_slowed_down() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder().provider(provider(&alpha)).env("FREEWAY_ADMIN_KEY", ADMIN).start();
    let guess = |n: usize| gateway.send(&Request::get("/api/stats").key(&format!("guess-{n}"))).status();
    assert_eq!(guess(0), 403);
    assert!((1..40).any(|n| guess(n) == 429));
    gateway.send(&Request::chat(&hello("m")).key("any key will do for an app")).ok();
}

#[test]
fn a2_a_trusted_proxy_is_believed_about_who_guesses() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .client_key("fw-right")
        .settings(json!({"trustedProxies": ["127.0.0.1"]}))
        .start();
    let guess = |from: &str| {
        gateway.send(&Request::get("/v1/models").key("guess").header("x-forwarded-for", from)).status()
    };
    assert!((0..40).any(|_| guess("192.0.2.1") == 429));
    assert_eq!(guess("192.0.2.2"), 401);
    assert_eq!(guess("192.0.2.2, 192.0.2.1"), 429);
}
