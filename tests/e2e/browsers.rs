//! Pages of other origins and of rebound names: they can neither read nor change anything, and those that the owner
//! allows can.
use crate::harness::*;

const LISTED: &str = "https://chat.example";

fn listening_to_a_page() -> (MockUpstream, Gateway) {
    let alpha = mock("alpha");
    let builder = Gateway::builder().provider(provider(&alpha)).env("FREEWAY_CORS_ORIGINS", LISTED);
    (alpha, builder.client_key("fw-right").start())
}

#[test]
fn a1_a_name_that_is_not_ours_is_refused_everywhere() {
    let (alpha, gateway) = gateway_over([]);
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/healthz"),
        ("GET", "/api/logs"),
        ("GET", "/api/session"),
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/api/reload"),
        ("OPTIONS", "/v1/chat/completions"),
    ] {
        let asked = Request::new(method, path).header("host", "evil.example");
        let answer = gateway.send(&asked);
        assert_eq!(answer.status(), 421, "{method} {path}: {answer}");
        assert!(answer.text().contains("FREEWAY_HOSTS"), "{answer}");
    }
    assert!(alpha.calls().is_empty());
}

#[test]
fn a1_names_and_addresses_of_this_machine_are_ours() {
    let alpha = mock("alpha");
    let gateway =
        Gateway::builder().provider(provider(&alpha)).env("FREEWAY_HOSTS", "Freeway.example").start();
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the kernel tells it");
    let short = name.trim().split('.').next().expect("a first part");
    for host in
        ["localhost:1", "192.168.7.7", "[fd00::1]:8787", "freeway.example", short, &format!("{short}.local")]
    {
        assert_eq!(gateway.send(&Request::get("/v1/models").header("host", host)).status(), 200, "{host}");
    }
}

#[test]
fn a1_a_valid_key_lifts_the_rule_for_apps_only() {
    let alpha = mock("alpha");
    let builder = Gateway::builder().provider(provider(&alpha)).client_key("fw-right");
    let gateway = builder.env("FREEWAY_ADMIN_KEY", "admin-secret").start();
    let ask = |path: &str, key: &str| {
        gateway.send(&Request::get(path).header("host", "freeway.example").key(key)).status()
    };
    assert_eq!(ask("/v1/models", "fw-right"), 200);
    assert_eq!(ask("/v1/models", "admin-secret"), 200);
    assert_eq!(ask("/v1/models", "fw-wrong"), 421);
    assert_eq!(ask("/api/stats", "admin-secret"), 421);
}

#[test]
fn a1_a_page_elsewhere_changes_nothing() {
    let (alpha, gateway) = gateway_over([]);
    let hostile: [&[(&str, &str)]; 4] = [
        &[("origin", "https://evil.example"), ("content-type", "text/plain")],
        &[("origin", "null"), ("content-type", "text/plain")],
        &[("origin", "http://localhost:3000"), ("content-type", "application/json")],
        &[("sec-fetch-site", "same-site"), ("content-type", "text/plain")],
    ];
    for headers in hostile {
        for path in
            ["/v1/chat/completions", "/api/reload", "/api/providers/alpha/key", "/api/session", "/_refresh"]
        {
            let request = Request::post(path, &hello("m"));
            let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
            let answer = gateway.send(&request);
            assert_eq!(answer.status(), 403, "{path} {headers:?}: {answer}");
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
        let request = Request::get("/api/logs");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        assert_eq!(gateway.send(&request).status(), 403, "{headers:?}");
    }
    assert!(chats(&alpha).is_empty());
}

#[test]
fn a1_bodies_that_browsers_send_unasked_are_refused() {
    let (alpha, gateway) = gateway_over([]);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        for path in ["/v1/chat/completions", "/api/session"] {
            let request = Request::post(path, &hello("m")).header("content-type", kind);
            assert_eq!(gateway.send(&request).status(), 415, "{path} {kind}");
        }
    }
    assert!(chats(&alpha).is_empty());
    let typed = |kind: &str| Request::post("/v1/chat/completions", &hello("m")).header("content-type", kind);
    gateway.send(&typed("Application/JSON; charset=utf-8")).ok();
    gateway.send(&typed("text/plain").key("whatever")).ok();
}

#[test]
fn small_clients_that_name_no_type_are_served() {
    let (_alpha, gateway) = gateway_over([]);
    let body = hello("m").to_string();
    let length = body.len();
    let mut wire = gateway.wire();
    wire.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
    ));
    wire.answer().ok();
}

#[test]
fn our_own_page_may_call_without_a_key() {
    let (_alpha, gateway) = gateway_over([]);
    let own = format!("http://{}", gateway.addr());
    let host = gateway.addr().to_string();
    let asked = |request: Request| gateway.send(&request.header("host", &host).header("origin", &own));
    asked(Request::chat(&hello("m"))).ok();
    asked(Request::new("POST", "/api/reload")).ok();
    gateway.send(&Request::get("/api/stats").header("sec-fetch-site", "same-origin")).ok();
}

#[test]
fn http_04_every_answer_to_a_listed_page_can_be_read() {
    let (_alpha, gateway) = listening_to_a_page();
    let page = |request: Request| gateway.send(&request.header("origin", LISTED));
    let preflight = page(
        Request::new("OPTIONS", "/v1/chat/completions")
            .header("access-control-request-method", "POST")
            .header(
                "access-control-request-headers",
                "authorization,content-type,x-stainless-os,x-freeway-cache,x-evil",
            )
            .header("access-control-request-private-network", "true"),
    );
    assert_eq!(preflight.status(), 204, "no key is asked for: {preflight}");
    assert_eq!(
        preflight.header("access-control-allow-headers"),
        Some("authorization, content-type, x-stainless-os, x-freeway-cache")
    );
    assert_eq!(preflight.header("access-control-allow-private-network"), Some("true"));
    let answers = [
        (200, page(Request::chat(&hello("m")).key("fw-right"))),
        (200, page(Request::chat(&hello_with("m", json!({"stream": true}))).key("fw-right"))),
        (401, page(Request::chat(&hello("m")))),
        (401, page(Request::chat(&hello("m")).key("fw-wrong"))),
        (404, page(Request::chat(&hello("nothing")).key("fw-right"))),
        (404, page(Request::get("/v1/nope").key("fw-right"))),
        (405, page(Request::get("/v1/chat/completions").key("fw-right"))),
        (413, page(Request::chat(&hello("m")).key("fw-right").header("content-length", "99000000"))),
    ];
    for (status, answer) in answers {
        assert_eq!(answer.status(), status, "{answer}");
        assert_eq!(answer.header("access-control-allow-origin"), Some(LISTED), "{answer}");
        let exposed = answer.header("access-control-expose-headers").expect("it is there");
        assert!(exposed.contains("x-freeway-route") && exposed.contains("retry-after"), "{exposed}");
        assert_eq!(answer.header("vary"), Some("authorization, origin"));
    }
}

#[test]
fn http_04_the_owners_routes_stay_with_our_own_page() {
    let alpha = mock("alpha");
    let builder = Gateway::builder().provider(provider(&alpha)).env("FREEWAY_CORS_ORIGINS", LISTED);
    let gateway = builder.env("FREEWAY_ADMIN_KEY", "admin-secret").start();
    let page = |request: Request| gateway.send(&request.header("origin", LISTED));
    for answer in [
        page(Request::new("OPTIONS", "/api/stats").header("access-control-request-method", "GET")),
        page(Request::get("/api/stats").key("admin-secret")),
        page(Request::get("/api/stats")),
    ] {
        assert_eq!(answer.header("access-control-allow-origin"), None, "{answer}");
    }
    assert_eq!(page(Request::get("/api/stats")).status(), 403);
}

#[test]
fn http_04_an_unlisted_page_is_granted_nothing() {
    let (_alpha, gateway) = listening_to_a_page();
    let preflight = gateway.send(
        &Request::new("OPTIONS", "/v1/chat/completions")
            .header("origin", "https://evil.example")
            .header("access-control-request-headers", "authorization"),
    );
    assert_eq!(preflight.status(), 204);
    assert!(!preflight.to_string().contains("access-control"), "{preflight}");
}

#[test]
fn cache_06_no_shared_cache_keeps_what_a_key_was_told() {
    let (_alpha, gateway) = listening_to_a_page();
    for path in ["/v1/models", "/v1/nope", "/api/stats"] {
        let answer = gateway.get(path);
        assert_eq!(answer.header("cache-control"), Some("no-store, no-transform"), "{answer}");
        assert_eq!(answer.header("vary"), Some("authorization, origin"), "{answer}");
    }
    let answer = gateway.stream("m");
    assert_eq!(answer.header("cache-control"), Some("no-store, no-transform"), "{answer}");
}

#[test]
fn a10_pages_and_views_cannot_be_framed_or_mistaken() {
    let (_alpha, gateway) = gateway_over([]);
    for path in ["/", "/api/stats", "/api/session", "/api/nope"] {
        let answer = gateway.get(path);
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(
            policy.contains("frame-ancestors 'none'") && policy.contains("default-src 'none'"),
            "{answer}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{answer}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{answer}");
    }
}
