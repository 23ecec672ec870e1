//! Calls on their way to an upstream: pooled connections that died, addresses that do not answer, proxies.
use crate::harness::*;

/// Fails over from an upstream at this address to a well-behaved one, streams included; what the client reads when
/// there is no other never says any of `secrets`.
#[track_caller]
fn fails_over_from(unreachable: &Provider, secrets: &[&str]) {
    let beta = mock("beta");
    let gateway = Gateway::over([unreachable.clone().priority(1), provider(&beta).priority(2)]);
    gateway.stream("m").well_formed_stream().served_by("beta").after_attempts(2);
    assert_eq!(chats(&beta).len(), 1);
    let gateway = Gateway::over([unreachable.clone().priority(1), provider(&beta).priority(2)]);
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    let alone = Gateway::over([unreachable.clone()]).chat("m");
    assert!([502, 504].contains(&alone.status()), "{alone}");
    secrets.iter().fold(alone, |answer, secret| answer.never_says(secret));
}

#[test]
fn fo_06_a_refused_connection_is_failed_over() {
    let closed = ClosedPort::take().expect("a free port");
    fails_over_from(&Provider::at("alpha", &closed.url()), &[&closed.addr().port().to_string(), "127.0.0.1"]);
}

#[test]
fn fo_06_a_name_that_does_not_exist_is_failed_over() {
    fails_over_from(&Provider::at("alpha", "http://no-such-host.invalid/v1"), &["no-such-host"]);
}

#[test]
fn fo_06_an_upstream_that_never_accepts_is_failed_over() {
    let silent = SilentPort::take().expect("a free port");
    let slow = Provider::at("alpha", &silent.url()).set("timeouts", json!({"connectMs": 300}));
    fails_over_from(&slow, &[&silent.addr().port().to_string(), "127.0.0.1"]);
}

#[test]
fn fo_06_an_upstream_without_tls_is_failed_over() {
    let plain = mock("alpha");
    let url = plain.url().replace("http://", "https://");
    fails_over_from(&Provider::at("alpha", &url), &[&plain.port().to_string(), "127.0.0.1"]);
    assert!(plain.calls().is_empty(), "no request left in plain text");
}

#[test]
fn fo_06_an_upstream_that_never_answers_is_failed_over_and_left() {
    let alpha = mock_that("alpha", [Step::hang()]);
    let slow = provider(&alpha).set("timeouts", json!({"firstByteMs": 300}));
    fails_over_from(&slow, &[&alpha.port().to_string(), "127.0.0.1"]);
    eventually("the dead calls are closed", || chats(&alpha).iter().all(|call| call.left_after.is_some()));
}

#[test]
fn net_01_a_pooled_connection_that_died_is_nobodys_fault() {
    let alpha =
        mock_with(MockOptions { name: "alpha".into(), keep_alive_ms: Some(50), ..MockOptions::default() });
    let beta = mock("beta");
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    for _ in 0..3 {
        gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        eventually("the upstream hangs up", || alpha.open_connections() == 0);
        gateway.stream("m").well_formed_stream().served_by("alpha").after_attempts(1);
        eventually("the upstream hangs up", || alpha.open_connections() == 0);
    }
    assert_eq!(chats(&alpha).len(), 6);
}

#[test]
fn net_01_a_pooled_connection_that_dies_under_the_request_is_replaced_once() {
    let (alpha, beta, gateway) = two_with_first([Step::ok(), Step::close(), Step::ok()]);
    gateway.chat("m").ok();
    gateway.chat("m").ok().served_by("alpha").after_attempts(1);
    gateway.chat("m").ok().served_by("alpha").after_attempts(1);
    let connections: Vec<u64> = chats(&alpha).iter().map(|call| call.connection).collect();
    assert!(connections[0] == connections[1] && connections[1] != connections[2], "{connections:?}");
    assert_eq!((connections.len(), chats(&beta).len()), (4, 0));
}

#[test]
fn net_01_a_fresh_connection_that_dies_under_the_request_is_not_tried_again() {
    let (alpha, beta, gateway) = two_with_first([Step::close()]);
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
}

#[test]
fn net_01_half_a_status_line_is_not_sent_again_to_the_same_host() {
    let (alpha, beta, gateway) = two_with_first([Step::ok(), Step::half_status_line()]);
    gateway.chat("m").ok().served_by("alpha");
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (2, 1));
}

/// A gateway whose proxy variables lead to a port that refuses.
fn behind_a_dead_proxy(
    no_proxy: &str,
    providers: impl IntoIterator<Item = Provider>,
) -> (ClosedPort, Gateway) {
    let dead = ClosedPort::take().expect("a free port");
    let proxy = format!("http://{}", dead.addr());
    let builder =
        Gateway::builder().env("HTTP_PROXY", &proxy).env("HTTPS_PROXY", &proxy).env("NO_PROXY", no_proxy);
    (dead, providers.into_iter().fold(builder, Builder::provider).start())
}

#[test]
fn net_02_local_upstreams_are_reached_without_the_proxy() {
    let alpha = mock("alpha");
    for no_proxy in ["", "localhost,127.0.0.1,192.168.0.0/16"] {
        for host in ["127.0.0.1", "localhost"] {
            let near = Provider::at("alpha", &format!("http://{host}:{}/v1", alpha.port()));
            let (_dead, gateway) = behind_a_dead_proxy(no_proxy, [near]);
            gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        }
    }
}

#[test]
fn net_02_a_dead_proxy_breaks_only_what_it_covers_and_is_named() {
    let beta = mock("beta");
    for (scheme, variable) in [("http", "HTTP_PROXY"), ("https", "HTTPS_PROXY")] {
        let far = Provider::at("alpha", &format!("{scheme}://upstream.example/v1")).priority(1);
        let (dead, gateway) = behind_a_dead_proxy("localhost", [far.clone()]);
        let answer = gateway.chat("m").error(502, "all_attempts_failed");
        assert!(answer.text().contains(variable), "{answer}");
        answer.never_says(&dead.addr().port().to_string());
        let (_dead, gateway) = behind_a_dead_proxy("localhost", [far, provider(&beta).priority(2)]);
        gateway.chat("m").ok().served_by("beta").after_attempts(2);
    }
}

#[test]
fn net_02_what_no_proxy_names_is_called_directly() {
    // The name leads nowhere, which only a direct call can find out.
    let far = Provider::at("alpha", "http://no-such-host.invalid/v1");
    let (_dead, gateway) = behind_a_dead_proxy("no-such-host.invalid", [far]);
    let answer = gateway.chat("m").error(502, "all_attempts_failed");
    assert!(!answer.text().contains("HTTP_PROXY"), "{answer}");
}

#[test]
fn net_03_both_addresses_of_this_machine_are_tried() {
    for host in ["127.0.0.1", "::1"] {
        let options = MockOptions { name: "alpha".into(), host: host.into(), ..MockOptions::default() };
        let alpha = mock_with(options);
        let gateway =
            Gateway::over([Provider::at("alpha", &format!("http://localhost:{}/v1", alpha.port()))]);
        for _ in 0..2 {
            gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        }
        assert_eq!(chats(&alpha).len(), 2, "on {host}");
    }
}

#[test]
fn net_03_one_gateway_serves_both_families() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .client_key("fw-family")
        .env("FREEWAY_HOST", "::")
        .start();
    let port = gateway.addr().port();
    let request = Request::chat(&hello("m")).key("fw-family");
    for host in ["127.0.0.1", "[::1]"] {
        let addr = format!("{host}:{port}").parse().expect("an address");
        Wire::connect(addr).ask(&request).ok().served_by("alpha");
    }
}
