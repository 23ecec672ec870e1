//! Figures for Prometheus.
use crate::harness::*;

/// The value of a sample, by its name and labels.
fn sample(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn figures_tell_what_was_served_and_what_failed() {
    let (_alpha, _beta, gateway) = two_with_first([Step::status(503).times(1), Step::ok()]);
    gateway.chat("auto").ok();
    gateway.chat("nothing-such").error(404, "model_not_found");
    let answer = gateway.get("/metrics").ok();
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    let check =
        |name: &str, expected: f64| assert_eq!(sample(&text, name), Some(expected), "{name} in {text}");
    check("freeway_requests_total{provider=\"beta\",model=\"m\",status=\"200\"}", 1.0);
    check("freeway_requests_total{provider=\"\",model=\"\",status=\"404\"}", 1.0);
    check("freeway_failed_attempts_total{provider=\"alpha\",model=\"m\"}", 1.0);
    check("freeway_request_seconds_count{provider=\"beta\",model=\"m\"}", 1.0);
    check("freeway_request_seconds_bucket{provider=\"beta\",model=\"m\",le=\"+Inf\"}", 1.0);
    check("freeway_ready", 1.0);
    check("freeway_benches", 1.0);
    assert!(sample(&text, "freeway_connections").is_some_and(|count| count >= 1.0), "{text}");
    assert!(
        sample(&text, "freeway_prompt_tokens_total{provider=\"beta\",model=\"m\"}").is_some_and(|n| n > 0.0)
    );
    // Every sample belongs to a family that was announced.
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(
            text.contains(&format!("# TYPE {family} ")) || text.contains(&format!("# TYPE {name} ")),
            "{line}"
        );
    }
}

#[test]
fn figures_are_the_owner_s() {
    let gateway = Gateway::builder().env("FREEWAY_ADMIN_KEY", "fw-admin-right").start();
    gateway.get("/metrics").error(403, "admin_required");
    gateway.send(&Request::get("/metrics").key("fw-admin-right")).ok();
}
