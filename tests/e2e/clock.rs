//! A wall clock that is unset or steps, as on a box without a clock chip: daily counters are neither freed nor frozen by
//! it. The clock of the program under test is shifted by a small library that is preloaded.
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use crate::harness::*;

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

fn true_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64
}

/// A gateway over a provider that serves two requests a day.
fn two_a_day(alpha: &MockUpstream, clock: &Clock) -> Gateway {
    clock.of(Gateway::builder().provider(provider(alpha).limits(json!({"rpd": 2})))).start()
}

/// When the last request ended, as the gateway tells it.
fn last_s(gateway: &Gateway) -> i64 {
    gateway.get("/api/logs").ok().at("/logs/0/at").as_i64().expect("a time") / 1_000
}

fn reasons(gateway: &Gateway) -> String {
    gateway.get("/readyz").at("/reasons").to_string()
}

/// Faults C1, acceptance 25: the original lost the day's count at a step back, and did not find it again.
#[test]
fn c1_acceptance_25_a_step_over_midnight_keeps_the_count_of_the_day() {
    let (alpha, clock) = (mock("alpha"), Clock::shifted_by(0));
    let gateway = two_a_day(&alpha, &clock);
    gateway.chat("m").ok();
    gateway.chat("m").ok();
    let refused = |what: &str, shift: i64| {
        let answer = gateway.chat("m").error(429, "all_providers_blocked");
        assert_eq!(gateway.used("rpd"), 2.0, "{what}: {answer}");
        let seen = last_s(&gateway) - true_s() - shift;
        assert!(seen.abs() < HOUR, "{what}: the clock of the test does not work ({seen} s)");
    };
    refused("at first", 0);
    for (what, shift) in
        [("back over midnight", -30 * HOUR), ("on again", 0), ("ahead", 2 * DAY), ("and back", 0)]
    {
        clock.set(shift);
        refused(what, shift);
    }
    assert_eq!(chats(&alpha).len(), 2);
}

#[test]
fn c1_a_restart_after_a_step_back_keeps_the_count_of_the_day() {
    let (alpha, clock) = (mock("alpha"), Clock::shifted_by(0));
    let mut gateway = two_a_day(&alpha, &clock);
    gateway.chat("m").ok();
    gateway.chat("m").ok();
    for shift in [-2 * DAY, -40 * 365 * DAY, 0] {
        clock.set(shift);
        gateway.restart();
        gateway.chat("m").error(429, "all_providers_blocked");
        assert_eq!(gateway.used("rpd"), 2.0, "{shift}");
    }
}

/// Fault C1: a Pi boots in 1970, or on the day when it was switched off.
#[test]
fn c1_an_unset_clock_at_boot_is_told_and_what_is_used_meanwhile_counts() {
    // 1970, and a plausible date that lies before this program was built.
    for shift in [-true_s() + HOUR, -30 * DAY] {
        let (alpha, clock) = (mock("alpha"), Clock::shifted_by(shift));
        let gateway = two_a_day(&alpha, &clock);
        gateway.chat("m").ok();
        assert!(last_s(&gateway) < true_s() - 29 * DAY, "the clock of the test does not work");
        assert!(reasons(&gateway).contains("clock_behind"));
        assert_eq!(gateway.get("/readyz").status(), 200, "it serves all the same");
        let alerts = gateway.get("/api/alerts").ok();
        assert!(alerts.text().contains("the clock stands before"), "{alerts}");
        gateway.chat("m").ok();
        gateway.chat("m").error(429, "all_providers_blocked");
        // The network sets it: what was used counts for the day that it turns out to be.
        clock.set(0);
        gateway.chat("m").error(429, "all_providers_blocked");
        assert_eq!(gateway.used("rpd"), 2.0);
        assert_eq!(reasons(&gateway), "[]");
    }
}

/// On a box without a clock a reset as an instant was 57 years away, and benched for a week.
#[test]
fn a_reset_is_measured_by_the_clock_of_who_names_it() {
    let reset = true_s() + 50;
    let refusal = Step::error(429, "slow down")
        .header("date", httpdate::fmt_http_date(SystemTime::now()))
        .header("x-ratelimit-remaining", 0)
        .header("x-ratelimit-reset", reset);
    let (alpha, clock) = (mock_that("alpha", [refusal]), Clock::shifted_by(-true_s() + HOUR));
    let gateway = clock.of(Gateway::builder().provider(provider(&alpha))).start();
    let wait = gateway.chat("m").error(429, "all_attempts_failed").number("retry-after");
    assert!((40.0..=60.0).contains(&wait), "{wait}");
}

#[test]
fn backups_wait_for_a_clock_that_is_set() {
    let (alpha, clock) = (mock("alpha"), Clock::shifted_by(-true_s() + HOUR));
    let kept = TempDir::new().expect("a folder");
    let gateway = clock
        .of(Gateway::builder().provider(provider(&alpha)))
        .env("FREEWAY_BACKUP_TARGET", &kept.path().display().to_string())
        .env("FREEWAY_BACKUP_KEY", "correct horse battery")
        .start();
    gateway.chat("m").ok();
    // By hand it is made nevertheless, and under a later name than those that are there.
    std::fs::write(kept.path().join("freeway-20261130T071509Z.backup"), "an older one").expect("written");
    let made = gateway.post("/api/backup", &json!({})).ok();
    assert_eq!(made.at("/backup/name"), "freeway-20261130T071510Z.backup");
}
