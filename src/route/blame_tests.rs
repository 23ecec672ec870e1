//! The blame table, row by row: who is called, who is benched for how long, and what the client gets in the end.
use serde_json::{Value, json};

use super::failover::{Failover, Next, Report};
use super::live::Live;
use super::manner::Manner;
use super::outcome::{Circumstances, End, NoAnswer, Signal, classify};
use super::plan::Ask;
use super::speed::Answer;
use super::terminal::{self, Asked};
use super::verdict::Policy;
use crate::base::clock::Now;
use crate::base::redact::Redactor;
use crate::base::text::Secret;
use crate::catalog::names::{How, Kind, Resolution};
use crate::catalog::provider::{Caps, Key};
use crate::catalog::settings::{Settings, Strategy};
use crate::catalog::slots::Slots;
use crate::catalog::{Catalog, fixture};
use crate::quota::{Scope, Spent};
use crate::wire::error::ApiError;
use crate::wire::exchange::{Fault, FaultKind, Headers, Phase};

const HOUR_S: u64 = 3_600;
/// 2026-12-01 06:00 UTC.
const START: Now = Now::at(10 * 3_600_000, 1_796_104_800_000);

/// What an upstream does.
enum Reply {
    Serve,
    ServeWith(&'static [(&'static str, &'static str)]),
    Status(u16, &'static str),
    StatusWith(u16, &'static [(&'static str, &'static str)], &'static str),
    ErrorIn200(&'static str),
    Nothing(NoAnswer),
    /// Kind, phase, whether the request was sent, and how long that took.
    Fault(FaultKind, Phase, bool, u64),
    Left,
}

use Reply::{ErrorIn200, Left, Nothing, Serve, ServeWith, Status, StatusWith};

fn refused() -> Reply {
    Reply::Fault(FaultKind::Refused, Phase::Connect, false, 1)
}

fn timeout() -> Reply {
    Reply::Fault(FaultKind::Timeout, Phase::FirstByte, true, 60_000)
}

/// What became of a request.
struct Run {
    /// `provider/model#key`, in order.
    calls: Vec<String>,
    drops: Vec<Vec<String>>,
    error: Option<ApiError>,
}

impl Run {
    fn code(&self) -> (u16, &str) {
        self.error.as_ref().map_or((200, ""), |error| (error.status, error.code.as_str()))
    }

    fn freeway(&self, name: &str) -> Value {
        self.error.as_ref().and_then(|error| error.freeway.get(name)).cloned().unwrap_or_default()
    }
}

struct Bed {
    catalog: Catalog,
    live: Live,
    settings: Settings,
    now: Now,
    ask: Ask,
    how: How,
    strategy: Strategy,
    /// References; all models when empty.
    models: Vec<&'static str>,
    fields: Vec<&'static str>,
    circumstances: Circumstances,
}

/// A provider on another host with some models, each of them good for everything.
fn remote(id: &str, models: &[&str]) -> Value {
    let models: Vec<Value> =
        models.iter().map(|id| json!({"id": id, "caps": ["chat", "tools", "json", "vision"]})).collect();
    json!({"id": id, "baseUrl": format!("https://{id}.test/v1"), "models": models})
}

impl Bed {
    /// Providers with so many keys each.
    fn new(files: &[(Value, usize)]) -> Bed {
        let mut slots = Slots::default();
        let mut providers = Vec::new();
        for (file, keys) in files {
            let mut provider = fixture::provider(file.clone(), &mut slots);
            let first = provider.keys.pop().expect("the fixture gives a key");
            for n in 1..=*keys {
                let account = match provider.limits_scope {
                    crate::catalog::provider::LimitsScope::Account => first.account,
                    _ => slots.intern(&format!("account/{}:{n}", provider.id)),
                };
                let slot = slots.intern(&format!("key/{}:{n}", provider.id));
                provider.keys.push(Key { slot, account, ..first.clone() });
            }
            providers.push(provider);
        }
        Bed {
            catalog: Catalog { providers },
            live: Live::new(),
            settings: Settings::default(),
            now: START,
            ask: Ask {
                kind: Kind::Chat,
                caps: Caps::default(),
                prompt_tokens: 100,
                window_tokens: 100,
                shrink: None,
                max_output: None,
                choices: 1,
                answer: Answer::Whole,
            },
            how: How::Auto,
            strategy: Strategy::Priority,
            models: Vec::new(),
            fields: vec!["model", "messages", "store", "seed", "tools", "max_tokens", "parallel_tool_calls"],
            circumstances: Circumstances::default(),
        }
    }

    /// One provider `a` with one model `m`, and a spare one `b`.
    fn two() -> Bed {
        Bed::new(&[(remote("a", &["m"]), 1), (remote("b", &["m"]), 1)])
    }

    /// A chat of so many tokens.
    fn sends(&mut self, tokens: u64) {
        (self.ask.prompt_tokens, self.ask.window_tokens) = (tokens, tokens);
    }

    fn wait_s(&mut self, seconds: u64) -> &mut Bed {
        self.now = self.now.plus_ms(seconds * 1_000);
        self
    }

    fn resolution(&self) -> Resolution {
        let wanted = |reference: &str| self.models.is_empty() || self.models.contains(&reference);
        let models = self.catalog.all().filter(|at| wanted(&self.catalog.model(*at).reference)).collect();
        Resolution {
            route: "auto".into(),
            models,
            how: self.how,
            strategy: None,
            keep_order: self.how == How::List,
            suggestions: Vec::new(),
        }
    }

    fn start(&mut self) -> Failover {
        let resolution = self.resolution();
        let order = self.live.orders.get(1, &self.catalog, &resolution, self.ask.needed());
        let manner = Manner {
            route: &resolution.route,
            strategy: self.strategy,
            keep_order: resolution.keep_order,
            pinned: self.how == How::Pin,
            fill_max: 1.0,
        };
        let policy = Policy::new(&self.settings);
        // Resolutions of one name differ between tests of one bed.
        self.live.orders = Default::default();
        Failover::new(order, self.ask, policy, &manner, &mut self.live, self.now)
    }

    fn run(&mut self, upstream: impl Fn(&str) -> Reply) -> Run {
        let mut failover = self.start();
        let mut run = Run { calls: Vec::new(), drops: Vec::new(), error: None };
        loop {
            let attempt = match failover.next(&self.catalog, &mut self.live, self.now) {
                Next::Try(attempt) => attempt,
                Next::GiveUp(dead) => {
                    let resolution = self.resolution();
                    let redactor = Redactor::new([Secret::new("test-key-1")]);
                    let asked = Asked {
                        catalog: &self.catalog,
                        resolution: &resolution,
                        model: "auto",
                        redactor: &redactor,
                    };
                    run.error = Some(terminal::answer(&dead, &failover, &asked));
                    return run;
                }
            };
            let call = format!("{}#{}", self.catalog.model(attempt.at).reference, attempt.key + 1);
            let reply = upstream(&call);
            let served = matches!(reply, Serve | ServeWith(_));
            run.calls.push(call);
            run.drops.push(attempt.drops.clone());
            let outcome = self.judge(&attempt, &reply);
            let spent = if served {
                Spent { prompt_tokens: 100, output_tokens: 20, credits: 0.0 }
            } else {
                Spent::default()
            };
            let fields = &self.fields;
            let has_field = |name: &str| fields.contains(&name);
            let report = Report { attempt, outcome, spent, has_field: &has_field, counted_prompt: None };
            failover.report(&self.catalog, &mut self.live, report, self.now);
            if served {
                return run;
            }
        }
    }

    fn judge(&mut self, attempt: &super::failover::Attempt, reply: &Reply) -> super::outcome::Outcome {
        let none = Headers::default();
        let headers;
        let fault;
        let end = match reply {
            Serve => End::Served { headers: &none },
            ServeWith(pairs) => {
                headers = header_list(pairs);
                End::Served { headers: &headers }
            }
            Status(status, body) => End::Status { status: *status, headers: &none, body: body.as_bytes() },
            StatusWith(status, pairs, body) => {
                headers = header_list(pairs);
                End::Status { status: *status, headers: &headers, body: body.as_bytes() }
            }
            ErrorIn200(body) => End::ErrorInAnswer { headers: &none, body: body.as_bytes() },
            Nothing(kind) => End::NoAnswer(*kind),
            Reply::Fault(kind, phase, request_sent, took_ms) => {
                self.now = self.now.plus_ms(*took_ms);
                let message = "the connection failed".to_owned();
                fault = Fault { phase: *phase, kind: *kind, message, request_sent: *request_sent };
                End::Fault(&fault)
            }
            Left => End::ClientLeft { reached: true },
        };
        let signal = Signal {
            provider: self.catalog.provider(attempt.at),
            prompt_tokens: self.ask.prompt_tokens,
            circumstances: self.circumstances,
            end,
        };
        classify(&signal, self.now)
    }

    /// Who sits on a bench: `provider`, `provider#key`, `provider/model` or `provider/model#key`; why; seconds left.
    fn benches(&self) -> Vec<(String, &'static str, u64)> {
        let mut all: Vec<_> = self
            .live
            .benches
            .list(self.now)
            .into_iter()
            .map(|bench| {
                (self.name(bench.scope), bench.cause.name(), bench.remaining_ms(self.now).div_ceil(1_000))
            })
            .collect();
        all.sort();
        all
    }

    fn name(&self, scope: Scope) -> String {
        let key = |slot| {
            let all = self.catalog.providers.iter();
            all.flat_map(|p| p.keys.iter().enumerate().map(move |(n, key)| (p, n, key)))
                .find(|(_, _, key)| key.slot == slot || key.account == slot)
                .map(|(p, n, _)| format!("{}#{}", p.id, n + 1))
                .expect("the key is known")
        };
        let model = |slot| {
            let at = self.catalog.all().find(|at| self.catalog.model(*at).slot == slot);
            self.catalog.model(at.expect("the model is known")).reference.to_string()
        };
        match scope {
            Scope::Provider(slot) => {
                let found = self.catalog.providers.iter().find(|provider| provider.slot == slot);
                found.expect("the provider is known").id.to_string()
            }
            Scope::Key(slot) => key(slot),
            Scope::Account(slot) => format!("account of {}", key(slot)),
            Scope::Model(slot) => model(slot),
            Scope::KeyModel(of, slot) => format!("{} with {}", model(slot), key(of)),
            Scope::AccountModel(of, slot) => format!("{} with account of {}", model(slot), key(of)),
        }
    }

    #[track_caller]
    fn check_benches(&self, expected: &[(&str, &str, u64)]) {
        let benches = self.benches();
        let found: Vec<_> = benches.iter().map(|(who, why, s)| (who.as_str(), *why, *s)).collect();
        assert_eq!(found, expected);
    }
}

fn header_list(pairs: &[(&str, &str)]) -> Headers {
    pairs.iter().copied().collect()
}

/// Everything but `a` serves.
fn a_fails(reply: impl Fn() -> Reply) -> impl Fn(&str) -> Reply {
    move |call| if call.starts_with("a/") { reply() } else { Serve }
}

#[test]
fn row_401_benches_the_key_and_goes_to_the_next() {
    let mut bed = Bed::new(&[(remote("a", &["m"]), 2), (remote("b", &["m"]), 1)]);
    let run = bed.run(|call| if call == "a/m#1" { Status(401, "") } else { Serve });
    assert_eq!(run.calls, ["a/m#1", "a/m#2"]);
    bed.check_benches(&[("a#1", "auth", 900)]);
}

#[test]
fn row_401_grows_from_a_quarter_of_an_hour_to_six_hours() {
    let mut bed = Bed::two();
    for seconds in [900, 1_800, 3_600, 7_200, 14_400, 21_600, 21_600] {
        assert_eq!(bed.run(a_fails(|| Status(401, ""))).calls, ["a/m#1", "b/m#1"]);
        bed.check_benches(&[("a#1", "auth", seconds)]);
        bed.wait_s(seconds);
    }
    assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"], "it is asked again");
}

#[test]
fn row_401_keys_do_not_count_as_attempts() {
    let mut bed = Bed::new(&[(remote("a", &["m"]), 6), (remote("b", &["m"]), 1)]);
    let run = bed.run(a_fails(|| Status(401, "")));
    assert_eq!(run.calls.len(), 7, "six dead keys do not eat the budget of three models");
    assert_eq!(run.calls.last().map(String::as_str), Some("b/m#1"));
    assert_eq!(run.code().0, 200);
}

#[test]
fn row_401_all_keys_dead_is_our_502() {
    let mut bed = Bed::new(&[(remote("a", &["m"]), 2)]);
    let run = bed.run(a_fails(|| Status(401, r#"{"error":{"message":"bad key test-key-1"}}"#)));
    assert_eq!((run.calls.len(), run.code()), (2, (502, "all_attempts_failed")));
    let body = String::from_utf8(run.error.expect("an error").body()).expect("text");
    assert!(!body.contains("test-key-1"), "{body}");
}

#[test]
fn row_401_bad_key_in_a_400_is_the_keys_fault() {
    let body = r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}]"#;
    let mut bed = Bed::two();
    let run = bed.run(a_fails(|| Status(400, body)));
    assert_eq!(run.calls, ["a/m#1", "b/m#1"]);
    bed.check_benches(&[("a#1", "auth", 900)]);
}

#[test]
fn row_402_benches_the_key_for_a_day_or_until_its_reset() {
    let check = |reply: fn() -> Reply, seconds| {
        let mut bed = Bed::new(&[(remote("a", &["m"]), 2), (remote("b", &["m"]), 1)]);
        let run = bed.run(a_fails(reply));
        assert_eq!(run.calls, ["a/m#1", "a/m#2", "b/m#1"]);
        bed.check_benches(&[("a#1", "credit", seconds), ("a#2", "credit", seconds)]);
    };
    check(|| Status(402, r#"{"detail":"Check your subscription"}"#), 24 * HOUR_S);
    check(|| StatusWith(402, &[("retry-after", "600")], ""), 600);
    check(|| Status(429, r#"{"error":{"message":"m","code":"insufficient_quota"}}"#), 24 * HOUR_S);
    check(|| Status(400, r#"{"error":{"message":"Your credit balance is too low"}}"#), 24 * HOUR_S);
    check(|| Status(402, r#"{"error":"daily limit exceeded"}"#), 18 * HOUR_S + 30);
}

#[test]
fn row_403_benches_key_and_model_then_the_whole_key() {
    let mut bed = Bed::new(&[(remote("a", &["m", "n", "o"]), 2), (remote("b", &["m"]), 1)]);
    let run = bed.run(|call| if call == "a/m#1" { Status(403, "") } else { Serve });
    assert_eq!(run.calls, ["a/m#1", "a/m#2"], "next key");
    bed.check_benches(&[("a/m with a#1", "forbidden", HOUR_S)]);
    // QUO-12: the key stays in use for other models.
    bed.models = vec!["a/n"];
    assert_eq!(bed.run(|_| Serve).calls, ["a/n#1"]);
    assert_eq!(bed.run(|call| if call == "a/n#2" { Serve } else { Status(403, "") }).calls, ["a/n#2"]);
    assert_eq!(
        bed.run(|call| if call == "a/n#1" { Status(403, "") } else { Serve }).calls,
        ["a/n#1", "a/n#2"]
    );
    assert!(
        bed.benches().iter().any(|(who, why, _)| who == "a#1" && *why == "forbidden"),
        "{:?}",
        bed.benches()
    );
}

#[test]
fn row_403_goes_on_with_the_next_model() {
    let mut bed = Bed::new(&[(remote("a", &["m", "n"]), 1), (remote("b", &["m"]), 1)]);
    let run = bed.run(|call| if call == "a/m#1" { Status(403, "") } else { Serve });
    assert_eq!(run.calls, ["a/m#1", "a/n#1"]);
}

#[test]
fn row_429_next_key_then_one_more_model_then_another_provider() {
    let mut bed = Bed::new(&[(remote("a", &["m", "n", "o"]), 2), (remote("b", &["m"]), 1)]);
    let run = bed.run(a_fails(|| Status(429, "")));
    assert_eq!(run.calls, ["a/m#1", "a/m#2", "a/n#1", "a/n#2", "b/m#1"]);
    bed.check_benches(&[
        ("a/m with a#1", "rateLimit", 60),
        ("a/m with a#2", "rateLimit", 60),
        ("a/n with a#1", "rateLimit", 60),
        ("a/n with a#2", "rateLimit", 60),
    ]);
    // QUO-11: only that key and that model wait.
    bed.models = vec!["a/o"];
    assert_eq!(bed.run(|_| Serve).calls.len(), 1);
}

#[test]
fn row_429_w1_leaves_a_limited_provider() {
    let mut bed = Bed::new(&[(remote("a", &["m", "n", "o", "p"]), 1), (remote("b", &["m"]), 1)]);
    let run = bed.run(a_fails(|| Status(429, "")));
    assert_eq!(run.calls, ["a/m#1", "a/n#1", "b/m#1"]);
    // W8: several models of one key together are the key.
    let run = bed.run(a_fails(|| Status(429, "")));
    assert_eq!(run.calls, ["a/o#1", "b/m#1"], "the third model takes the key out");
    assert_eq!(bed.run(|_| Serve).calls, ["b/m#1"]);
}

#[test]
fn row_429_waits_as_long_as_it_is_told() {
    let check = |reply: fn() -> Reply, who: &str, why: &str, seconds| {
        let mut bed = Bed::two();
        assert_eq!(bed.run(a_fails(reply)).calls.last().map(String::as_str), Some("b/m#1"));
        bed.check_benches(&[(who, why, seconds)]);
    };
    let limited = "a/m with a#1";
    check(|| StatusWith(429, &[("retry-after", "7")], ""), limited, "rateLimit", 7);
    check(|| StatusWith(429, &[("retry-after", "999999999")], ""), limited, "rateLimit", 7 * 24 * HOUR_S);
    check(|| StatusWith(429, &[("x-ratelimit-reset", "1796104890")], ""), limited, "rateLimit", 90);
    check(
        || {
            Status(
                429,
                r#"{"error":{"message":"Rate limit reached for model `m` in organization `org_1` on tokens per minute (TPM): Limit 9000, Used 8100, Requested 2200. Please try again in 8.66s.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            )
        },
        limited,
        "rateLimit",
        9,
    );
    check(
        || {
            Status(
                413,
                r#"{"error":{"message":"too large on tokens per minute (TPM): Limit 9000, Requested 2200"}}"#,
            )
        },
        limited,
        "rateLimit",
        60,
    );
    // A daily quota, until the provider's midnight; a plan, for a day.
    check(
        || Status(429, r#"{"error":"you have used up your daily free allocation of 10,000 neurons"}"#),
        limited,
        "quota",
        18 * HOUR_S + 30,
    );
    check(
        || {
            Status(
                429,
                r#"[{"error":{"code":429,"details":[{"quotaId":"GenerateRequestsPerDayPerProject"},{"retryDelay":"17s"}]}}]"#,
            )
        },
        limited,
        "quota",
        18 * HOUR_S + 30,
    );
    check(
        || Status(429, r#"{"error":"you have reached your weekly usage limit (ref: 0000)"}"#),
        "a#1",
        "quota",
        24 * HOUR_S,
    );
    check(
        || {
            Status(
                429,
                r#"{"error":{"message":"Rate limit exceeded: free-models-per-day","code":429,"metadata":{"headers":{"X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1796169600000"}}}}"#,
            )
        },
        "a#1",
        "quota",
        18 * HOUR_S,
    );
    check(
        || {
            StatusWith(
                429,
                &[("retry-after", "9")],
                r#"{"error":"Rate limit exceeded: free-models-per-min"}"#,
            )
        },
        "a#1",
        "rateLimit",
        9,
    );
}

#[test]
fn row_429_day_quota_just_after_midnight_is_still_yesterdays() {
    let mut bed = Bed::two();
    bed.now = Now::at(START.mono_ms, 1_796_083_200_000 + 5_000);
    bed.run(a_fails(|| Status(429, r#"{"error":"daily quota exceeded"}"#)));
    bed.check_benches(&[("a/m with a#1", "quota", 600)]);
}

#[test]
fn row_429_grows_from_one_minute_to_eight() {
    let mut bed = Bed::two();
    for seconds in [60, 120, 240, 480, 480] {
        bed.run(a_fails(|| Status(429, "")));
        bed.check_benches(&[("a/m with a#1", "rateLimit", seconds)]);
        bed.wait_s(seconds);
    }
}

#[test]
fn row_429_cooldown_setting_is_the_first_step() {
    let mut bed = Bed::two();
    bed.settings.cooldown_ms = 5_000;
    bed.run(a_fails(|| Status(429, "")));
    bed.check_benches(&[("a/m with a#1", "rateLimit", 5)]);
}

#[test]
fn row_429_shared_accounts_wait_together() {
    let mut file = remote("a", &["m"]);
    file["limitsScope"] = json!("account");
    let mut bed = Bed::new(&[(file, 2), (remote("b", &["m"]), 1)]);
    let run = bed.run(a_fails(|| Status(429, "")));
    assert_eq!(
        run.calls,
        ["a/m#1", "b/m#1"],
        "QUO-16: the other key of the account would meet the same limit"
    );
}

#[test]
fn row_429_all_of_them_says_when_to_come_back() {
    let mut bed = Bed::two();
    let run = bed.run(|call| match call {
        "a/m#1" => StatusWith(429, &[("retry-after", "90")], ""),
        _ => StatusWith(429, &[("retry-after", "41.2")], ""),
    });
    assert_eq!(run.code(), (429, "all_attempts_failed"));
    assert_eq!(run.error.as_ref().and_then(ApiError::retry_after_s), Some(42), "B11, QUO-09");
    assert_eq!(run.freeway("next_eligible_model"), "b/m");
    assert_eq!(run.freeway("attempts").as_array().map(Vec::len), Some(2));
    let run = bed.run(|_| Serve);
    assert_eq!((run.calls.len(), run.code()), (0, (429, "all_providers_blocked")));
    assert_eq!(run.freeway("nextEligible"), json!({"provider": "b", "model": "m", "inMs": 41_200}));
    assert_eq!(run.freeway("blocked").as_array().map(Vec::len), Some(2));
}

#[test]
fn row_404_benches_the_model_and_goes_on() {
    for reply in [
        || Status(404, ""),
        || Status(410, ""),
        || Status(400, r#"{"error":{"message":"The model `m` does not exist","code":"model_not_found"}}"#),
    ] as [fn() -> Reply; 3]
    {
        let mut bed = Bed::two();
        assert_eq!(bed.run(a_fails(reply)).calls, ["a/m#1", "b/m#1"]);
        bed.check_benches(&[("a/m", "modelMissing", HOUR_S)]);
    }
}

#[test]
fn row_404_pinned_is_returned_and_remembered() {
    let mut bed = Bed::two();
    bed.models = vec!["a/m"];
    bed.how = How::Pin;
    let run = bed.run(|_| Status(404, r#"{"error":{"message":"The model `m` does not exist"}}"#));
    assert_eq!((run.calls.len(), run.code()), (1, (404, "model_not_found")));
    assert!(run.freeway("upstream")["body"]["error"]["message"].is_string());
    let run = bed.run(|_| Serve);
    assert_eq!((run.calls.len(), run.code()), (0, (404, "model_not_found")), "no wait helps");
}

#[test]
fn row_404_everywhere_is_a_404() {
    let mut bed = Bed::two();
    let run = bed.run(|_| Status(404, ""));
    assert_eq!((run.calls.len(), run.code()), (2, (404, "model_not_found")), "FO-03");
}

#[test]
fn row_404_of_a_wrong_address_is_the_providers() {
    let mut bed = Bed::new(&[(remote("a", &["m", "n"]), 1), (remote("b", &["m"]), 1)]);
    let body =
        r#"{"success":false,"errors":[{"code":7003,"message":"no route for /accounts/0123456789abcdef/x"}]}"#;
    assert_eq!(bed.run(a_fails(|| Status(404, body))).calls, ["a/m#1", "b/m#1"]);
    bed.wait_s(31);
    assert_eq!(bed.run(a_fails(|| Status(400, body))).calls, ["a/m#1", "b/m#1"], "under 400 as well");
    bed.wait_s(61);
    assert_eq!(bed.run(a_fails(|| ErrorIn200(body))).calls, ["a/m#1", "b/m#1"], "ERR-05, under 200 as well");
}

/// Three providers whose windows grow.
fn windows() -> Bed {
    let with = |id: &str, context: u64| {
        let mut file = remote(id, &["m"]);
        file["models"][0]["context"] = json!(context);
        (file, 1)
    };
    Bed::new(&[with("a", 8_192), with("b", 8_192), with("c", 200_000)])
}

#[test]
fn row_413_goes_to_a_larger_window_and_learns() {
    let mut bed = windows();
    bed.sends(7_000);
    bed.ask.max_output = Some(2_000);
    let body = r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 9000 tokens","code":"context_length_exceeded"}}"#;
    let run = bed.run(a_fails(|| Status(400, body)));
    assert_eq!(run.calls, ["a/m#1", "b/m#1"], "the window is smaller than its file says, so b may be larger");
    bed.check_benches(&[]);
    assert_eq!(bed.run(|_| Serve).calls, ["b/m#1"], "learned");
    bed.sends(4_000);
    assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"], "what fits is still sent");
}

#[test]
fn row_413_passes_windows_that_are_no_larger() {
    let mut bed = windows();
    bed.sends(8_000);
    let run = bed.run(a_fails(|| Status(413, r#"{"error":{"message":"prompt is too long"}}"#)));
    assert_eq!(run.calls, ["a/m#1", "c/m#1"]);
}

#[test]
fn row_413_of_a_short_request_says_little_of_the_others() {
    // A proxy in front of `a` minds the bytes: a larger window comes first, one of the same size is no dead end.
    let page = "<html><head><title>413 Request Entity Too Large</title></head></html>";
    let mut bed = windows();
    bed.sends(5);
    let run = bed.run(|call| if call == "b/m#1" { Serve } else { Status(413, page) });
    assert_eq!(run.calls, ["a/m#1", "c/m#1", "b/m#1"]);
    bed.check_benches(&[]);
    bed.models = vec!["a/m"];
    let run = bed.run(|_| Status(413, page));
    let error = run.error.as_ref().expect("an error");
    assert_eq!((run.calls.len(), run.code()), (1, (413, "context_length_exceeded")));
    assert_eq!(error.message, "413 Request Entity Too Large", "no window explains it");
    assert_eq!((error.param.as_deref(), run.freeway("code")), (Some("messages"), json!("context_too_large")));
}

#[test]
fn row_413_w17_small_windows_are_passed_by_unasked() {
    let mut bed = windows();
    bed.sends(9_000);
    assert_eq!(bed.run(|_| Serve).calls, ["c/m#1"]);
    bed.sends(300_000);
    let run = bed.run(|_| Serve);
    assert_eq!((run.calls.len(), run.code()), (0, (413, "context_length_exceeded")));
    assert_eq!((run.freeway("code"), run.freeway("available")), (json!("context_too_large"), json!(200_000)));
}

#[test]
fn row_413_by_all_ends_as_413() {
    let mut bed = Bed::two();
    let run = bed.run(|_| Status(413, r#"{"error":{"message":"prompt is too long"}}"#));
    assert_eq!((run.calls.len(), run.code()), (2, (413, "context_length_exceeded")));
}

#[test]
fn row_413_limit_below_the_request_teaches_and_benches_nothing() {
    let mut bed = Bed::two();
    bed.sends(9_000);
    let body = r#"{"error":{"message":"Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000","code":"rate_limit_exceeded"}}"#;
    for status in [413, 429] {
        assert_eq!(
            bed.run(|call| if call == "a/m#1" { Status(status, body) } else { Serve }).calls.len(),
            if status == 413 { 2 } else { 1 }
        );
        bed.check_benches(&[]);
    }
    bed.sends(5_000);
    assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"], "smaller ones are still sent");
    bed.sends(9_000);
    bed.models = vec!["a/m"];
    let run = bed.run(|_| Serve);
    assert_eq!((run.calls.len(), run.code()), (0, (413, "context_length_exceeded")), "nobody is wider");
}

#[test]
fn row_5xx_takes_the_whole_provider_out() {
    for reply in [
        || Status(500, ""),
        || Status(503, "took 4031ms"),
        || Status(302, ""),
        || Status(408, ""),
        timeout,
        refused,
        || Reply::Fault(FaultKind::Dns, Phase::Resolve, false, 1),
        || Reply::Fault(FaultKind::Tls, Phase::Connect, false, 1),
        || Reply::Fault(FaultKind::Closed, Phase::Stream, true, 1),
        || Reply::Fault(FaultKind::CertNotYetValid, Phase::Connect, false, 1),
    ] as [fn() -> Reply; 10]
    {
        let mut bed = Bed::new(&[(remote("a", &["m", "n"]), 2), (remote("b", &["m"]), 1)]);
        assert_eq!(bed.run(a_fails(reply)).calls, ["a/m#1", "b/m#1"]);
        bed.check_benches(&[("a", "unavailable", 30)]);
    }
}

#[test]
fn row_5xx_grows_from_half_a_minute_to_ten() {
    let mut bed = Bed::two();
    for seconds in [30, 60, 120, 240, 480, 600, 600] {
        bed.run(a_fails(|| Status(500, "")));
        bed.check_benches(&[("a", "unavailable", seconds)]);
        bed.wait_s(seconds);
    }
}

#[test]
fn row_5xx_retry_after_wins_over_the_first_step() {
    let mut bed = Bed::two();
    let page = "<html><body>busy</body></html>";
    bed.run(a_fails(|| StatusWith(503, &[("retry-after", "2")], page)));
    bed.check_benches(&[("a", "unavailable", 2)]);
}

#[test]
fn row_5xx_local_addresses_are_back_in_five_seconds() {
    let mut file = remote("a", &["m"]);
    file["baseUrl"] = json!("http://127.0.0.1:9/v1");
    let mut bed = Bed::new(&[(file, 1), (remote("b", &["m"]), 1)]);
    for _ in 0..4 {
        bed.run(a_fails(refused));
        bed.check_benches(&[("a", "unavailable", 5)]);
        bed.wait_s(5);
    }
}

#[test]
fn row_5xx_model_that_fails_alone_is_benched_alone() {
    let mut bed = Bed::new(&[(remote("a", &["m", "n"]), 1), (remote("b", &["m"]), 1)]);
    bed.models = vec!["a/n"];
    assert_eq!(bed.run(|_| Serve).calls, ["a/n#1"]);
    bed.models = Vec::new();
    let run = bed.run(|call| if call == "a/m#1" { Status(500, "") } else { Serve });
    assert_eq!(run.calls, ["a/m#1", "a/n#1"]);
    bed.check_benches(&[("a/m", "unavailable", 30)]);
}

#[test]
fn row_5xx_two_models_that_fail_are_the_provider() {
    let mut bed = Bed::new(&[(remote("a", &["m", "n", "o"]), 1), (remote("b", &["m"]), 1)]);
    bed.models = vec!["a/o"];
    bed.run(|_| Serve);
    bed.models = Vec::new();
    let run = bed.run(a_fails(|| Status(500, "")));
    assert_eq!(run.calls, ["a/m#1", "a/n#1", "b/m#1"]);
    bed.check_benches(&[("a", "unavailable", 30), ("a/m", "unavailable", 30)]);
}

#[test]
fn row_5xx_529_and_loading_are_the_models() {
    for reply in [
        || Status(529, ""),
        || Status(503, r#"{"error":"Model m is currently loading","estimated_time":20}"#),
        || ErrorIn200(r#"{"type":"error","error":{"type":"overloaded_error","code":529}}"#),
    ] as [fn() -> Reply; 3]
    {
        let mut bed = Bed::new(&[(remote("a", &["m", "n"]), 1), (remote("b", &["m"]), 1)]);
        let run = bed.run(|call| if call == "a/m#1" { reply() } else { Serve });
        assert_eq!(run.calls, ["a/m#1", "a/n#1"]);
        bed.check_benches(&[("a/m", "unavailable", 30)]);
    }
}

#[test]
fn row_5xx_statuses_tell_timeouts_from_the_rest() {
    let mut bed = Bed::two();
    assert_eq!(bed.run(|_| timeout()).code(), (504, "all_attempts_failed"));
    let mut bed = Bed::two();
    let run = bed.run(|_| Status(500, ""));
    assert_eq!(run.code(), (502, "all_attempts_failed"));
    assert_eq!(run.error.as_ref().and_then(ApiError::retry_after_s), Some(30));
    let mut bed = Bed::two();
    assert_eq!(bed.run(|call| if call == "a/m#1" { timeout() } else { Status(429, "") }).code().0, 429);
}

/// Four remote providers and one on this machine.
fn far_and_near() -> Bed {
    let mut local = remote("local", &["m"]);
    local["baseUrl"] = json!("http://192.168.1.5/v1");
    local["priority"] = json!(90);
    let mut bed = Bed::new(&[
        (remote("a", &["m"]), 1),
        (remote("b", &["m"]), 1),
        (remote("c", &["m"]), 1),
        (remote("d", &["m"]), 1),
        (local, 1),
    ]);
    bed.models = vec!["a/m", "b/m", "c/m", "d/m"];
    bed
}

#[test]
fn row_network_three_unreachable_hosts_are_our_own_network() {
    for kind in [FaultKind::Dns, FaultKind::Refused, FaultKind::Unreachable] {
        let mut bed = far_and_near();
        let run = bed.run(|_| Reply::Fault(kind, Phase::Resolve, false, 100));
        assert_eq!(run.calls, ["a/m#1", "b/m#1", "c/m#1"]);
        assert_eq!(run.code(), (503, "offline"));
        assert_eq!(run.error.as_ref().and_then(ApiError::retry_after_s), Some(5));
        bed.check_benches(&[]);
        let run = bed.run(|_| Reply::Fault(kind, Phase::Resolve, false, 100));
        assert_eq!((run.calls.len(), run.code()), (1, (503, "offline")), "nobody else is asked in vain");
        bed.check_benches(&[]);
        bed.models = vec!["a/m", "local/m"];
        let near = bed.run(|call| if call == "local/m#1" { Serve } else { refused() });
        assert_eq!(near.calls, ["a/m#1", "local/m#1"], "what is near is served");
        bed.models = Vec::new();
        assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"], "the first request after it has returned is served");
        assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"]);
    }
}

#[test]
fn row_network_without_a_route_one_host_tells_enough() {
    for (kind, phase) in [(FaultKind::Dns, Phase::Resolve), (FaultKind::Unreachable, Phase::FirstByte)] {
        let mut bed = far_and_near();
        bed.circumstances.cut_off = true;
        for _ in 0..2 {
            let run = bed.run(|_| Reply::Fault(kind, phase, phase > Phase::Connect, 1));
            assert_eq!((run.calls.len(), run.code()), (1, (503, "offline")));
            bed.check_benches(&[]);
        }
        bed.models = vec!["a/m", "local/m"];
        let near = bed.run(|call| match call {
            "local/m#1" => Serve,
            _ => Reply::Fault(kind, phase, false, 1),
        });
        assert_eq!(near.calls, ["a/m#1", "local/m#1"]);
        bed.circumstances.cut_off = false;
        bed.models = Vec::new();
        assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"]);
    }
}

#[test]
fn row_network_a_gateway_without_descriptors_blames_nobody() {
    let mut bed = far_and_near();
    let run = bed.run(|_| Reply::Fault(FaultKind::Exhausted, Phase::Connect, false, 1));
    assert_eq!(run.code(), (502, "all_attempts_failed"));
    bed.check_benches(&[]);
    assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"], "nor is it the network");
}

#[test]
fn row_network_slow_failures_and_answers_in_between_are_the_hosts() {
    let mut bed = far_and_near();
    let run = bed.run(|_| Reply::Fault(FaultKind::Timeout, Phase::Connect, false, 10_000));
    assert_eq!((run.calls.len(), run.code().0), (3, 504));
    assert_eq!(bed.benches().len(), 3);
    let mut bed = far_and_near();
    let run = bed.run(|call| if call == "b/m#1" { Status(500, "") } else { refused() });
    assert_eq!(run.code().0, 502);
    assert_eq!(bed.benches().len(), 3);
}

#[test]
fn row_clock_blames_nobody() {
    let mut bed = Bed::two();
    bed.circumstances.clock_behind = true;
    let run = bed.run(a_fails(|| Reply::Fault(FaultKind::CertNotYetValid, Phase::Connect, false, 1)));
    assert_eq!(run.calls, ["a/m#1", "b/m#1"]);
    bed.check_benches(&[]);
}

#[test]
fn row_no_answer_goes_on_and_benches_by_strikes() {
    for kind in [NoAnswer::Html, NoAnswer::NotJson, NoAnswer::WrongShape] {
        let mut bed = Bed::new(&[(remote("a", &["m", "n"]), 1), (remote("b", &["m"]), 1)]);
        for expected in [&[][..], &[], &[("a/m", "noAnswer", 30)]] {
            let run = bed.run(|call| if call == "a/m#1" { Nothing(kind) } else { Serve });
            assert_eq!(run.calls, ["a/m#1", "a/n#1"], "the next model, of the same provider as well");
            bed.check_benches(expected);
        }
    }
}

#[test]
fn row_no_answer_errors_under_200_are_judged_by_their_code() {
    let check = |body: &'static str, calls: &[&str], who: &str, why: &str, seconds| {
        let mut bed = Bed::two();
        assert_eq!(bed.run(a_fails(|| ErrorIn200(body))).calls, calls, "{body}");
        bed.check_benches(&[(who, why, seconds)]);
    };
    let both = ["a/m#1", "b/m#1"];
    check(r#"{"error":{"message":"m","code":429}}"#, &both, "a/m with a#1", "rateLimit", 60);
    check(r#"{"error":{"message":"m","code":"503"}}"#, &both, "a", "unavailable", 30);
    check(r#"{"error":{"message":"m","code":"invalid_api_key"}}"#, &both, "a#1", "auth", 900);
    check(r#"{"error":{"message":"m","type":"rate_limit_error"}}"#, &both, "a/m with a#1", "rateLimit", 60);
    let mut bed = Bed::two();
    assert_eq!(bed.run(a_fails(|| ErrorIn200(r#"{"error":{"message":"oops"}}"#))).calls, both);
    bed.check_benches(&[]);
}

#[test]
fn row_no_answer_empty_goes_on_once() {
    let mut bed = Bed::new(&[(remote("a", &["m", "n"]), 1), (remote("b", &["m"]), 1)]);
    let run = bed.run(|call| if call == "a/m#1" { Nothing(NoAnswer::Empty) } else { Serve });
    assert_eq!(run.calls, ["a/m#1", "a/n#1"]);
    let run = bed.run(|_| Nothing(NoAnswer::Empty));
    assert_eq!((run.calls.len(), run.code()), (2, (502, "all_attempts_failed")));
}

#[test]
fn row_400_is_returned_at_once() {
    let body = r#"{"error":{"message":"temperature must be 1 for this model","type":"invalid_request_error","param":"temperature"}}"#;
    for status in [400, 422] {
        let mut bed = Bed::two();
        bed.fields.push("temperature");
        let run = bed.run(|_| Status(status, body));
        let error = run.error.as_ref().expect("an error");
        assert_eq!((run.calls.len(), error.status), (1, status), "ERR-07");
        assert_eq!(error.message, "temperature must be 1 for this model");
        assert_eq!(error.param.as_deref(), Some("temperature"));
        assert_eq!(run.freeway("upstream")["status"], status);
        bed.check_benches(&[]);
    }
}

#[test]
fn req_09_a_model_that_refuses_several_choices_is_passed_by() {
    let refusal = r#"{"error":{"message":"'n' : number must be at most 1","type":"invalid_request_error"}}"#;
    let mut bed = Bed::two();
    bed.ask.choices = 2;
    assert_eq!(bed.run(a_fails(|| Status(400, refusal))).calls, ["a/m#1", "b/m#1"]);
    bed.check_benches(&[]);
    assert_eq!(bed.run(|_| Serve).calls, ["b/m#1"], "learned");
    bed.ask.choices = 1;
    assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"], "one is given as before");
    // By all: the client's own affair.
    bed.ask.choices = 2;
    let by_all = |run: Run, calls: usize| {
        let error = run.error.as_ref().expect("an error");
        assert_eq!((run.calls.len(), run.code()), (calls, (400, "capability_unavailable")));
        assert_eq!(error.param.as_deref(), Some("n"));
    };
    by_all(bed.run(|_| Status(400, refusal)), 1);
    by_all(bed.run(|_| Serve), 0);
    // Who wants one and is refused for `n` has another problem.
    let mut bed = Bed::two();
    assert_eq!(bed.run(|_| Status(400, refusal)).calls, ["a/m#1"]);
}

#[test]
fn statuses_that_no_client_can_mend_go_on() {
    for status in [407, 411, 424, 426, 428, 431, 499] {
        let mut bed = Bed::two();
        assert_eq!(bed.run(a_fails(|| Status(status, ""))).calls, ["a/m#1", "b/m#1"], "{status}");
        bed.check_benches(&[("a", "unavailable", 30)]);
    }
    let mut bed = Bed::two();
    assert_eq!(bed.run(a_fails(|| Status(451, ""))).calls, ["a/m#1", "b/m#1"]);
    bed.check_benches(&[("a/m with a#1", "forbidden", 3_600)]);
}

#[test]
fn row_400_never_counts_against_health() {
    let mut bed = Bed::two();
    for _ in 0..20 {
        let run = bed.run(|_| Status(400, r#"{"error":{"message":"image exceeds the pixel limit"}}"#));
        assert_eq!((run.calls.len(), run.code().0), (1, 400));
    }
    assert_eq!(bed.run(|_| Serve).calls, ["a/m#1"], "FO-04");
}

#[test]
fn row_400_drops_a_field_once_and_remembers() {
    let body = r#"{"error":{"message":"unsupported parameters: store","param":"store"}}"#;
    let mut bed = Bed::new(&[(remote("a", &["m"]), 2), (remote("b", &["m"]), 1)]);
    let refusals = std::cell::Cell::new(0);
    let run = bed.run(|_| {
        refusals.set(refusals.get() + 1);
        if refusals.get() == 1 { Status(400, body) } else { Serve }
    });
    assert_eq!(run.calls, ["a/m#1", "a/m#1"], "the same key of the same model");
    assert_eq!(run.drops, [vec![], vec!["store".to_owned()]]);
    assert_eq!(bed.run(|_| Serve).drops, [vec!["store".to_owned()]], "remembered");
    bed.check_benches(&[]);
}

#[test]
fn row_400_gives_up_on_a_field_that_did_not_help() {
    let mut bed = Bed::two();
    let run = bed.run(|_| Status(400, r#"{"error":{"message":"unsupported parameter","param":"store"}}"#));
    assert_eq!((run.calls.len(), run.code().0), (2, 400));
    assert_eq!(bed.run(|_| Serve).drops, [Vec::<String>::new()], "what did not help is not remembered");
}

#[test]
fn row_400_fields_one_after_the_other() {
    let mut bed = Bed::two();
    let refusals = std::cell::Cell::new(0);
    let run = bed.run(|_| {
        refusals.set(refusals.get() + 1);
        match refusals.get() {
            1 => Status(422, r#"{"detail":[{"type":"extra_forbidden","loc":["body","store"],"msg":"Extra inputs are not permitted"}]}"#),
            2 => Status(400, r#"{"error":{"message":"this model only supports single tool-calls at once"}}"#),
            _ => Serve,
        }
    });
    assert_eq!(
        run.drops.last(),
        Some(&vec!["store".to_owned(), "parallel_tool_calls".to_owned()]),
        "TOOL-14"
    );
}

#[test]
fn row_400_never_drops_what_the_request_is_about() {
    for param in ["messages", "tools", "response_format", "max_tokens", "max_completion_tokens", "n"] {
        let mut bed = Bed::two();
        bed.fields.push("response_format");
        let body = json!({"error": {"message": "unsupported parameter", "param": param}}).to_string().leak();
        let run = bed.run(|_| Status(400, body));
        assert_eq!((run.calls.len(), run.code().0), (1, 400), "{param}");
    }
    let mut bed = Bed::two();
    let run =
        bed.run(|_| Status(400, r#"{"error":{"message":"unsupported parameter","param":"logit_bias"}}"#));
    assert_eq!(run.calls.len(), 1, "the request has no such field");
}

#[test]
fn row_policy_is_returned() {
    for reply in [
        || Status(400, r#"{"error":{"message":"m","code":"content_filter"}}"#),
        || Status(403, r#"{"error":{"message":"Your input was flagged","code":403}}"#),
        || ErrorIn200(r#"{"error":{"message":"m","code":"content_policy_violation"}}"#),
    ] as [fn() -> Reply; 3]
    {
        let mut bed = Bed::two();
        let run = bed.run(|_| reply());
        assert_eq!(run.calls.len(), 1);
        assert!((400..=403).contains(&run.code().0));
        bed.check_benches(&[]);
    }
}

#[test]
fn row_client_left_stops_and_benches_nobody() {
    let mut bed = Bed::two();
    let run = bed.run(|_| Left);
    assert_eq!((run.calls.len(), run.code().0), (1, 499));
    bed.check_benches(&[]);
    let mut bed = Bed::two();
    let run = bed.run(|_| Reply::Fault(FaultKind::Cut, Phase::Stream, true, 1));
    assert_eq!(run.calls.len(), 1, "what we cut ourselves is no fault of the upstream");
    bed.check_benches(&[]);
}

#[test]
fn own_words_of_a_provider_decide_first() {
    let mut file = remote("a", &["m"]);
    file["errorWords"] = json!({"queue is full": "rateLimit", "kaputt": "auth"});
    let mut bed = Bed::new(&[(file, 1), (remote("b", &["m"]), 1)]);
    bed.run(a_fails(|| Status(500, r#"{"error":"The queue is FULL"}"#)));
    bed.check_benches(&[("a/m with a#1", "rateLimit", 60)]);
}

#[test]
fn digits_in_a_text_mean_nothing() {
    for body in ["took 4031ms", "queue 1404", r#"{"error":{"message":"Limit 6000, Used 4021"}}"#] {
        let mut bed = Bed::two();
        bed.run(a_fails(|| Status(500, body)));
        bed.check_benches(&[("a", "unavailable", 30)]);
    }
}

#[test]
fn three_models_and_no_more() {
    let mut bed = Bed::new(&[
        (remote("a", &["m"]), 1),
        (remote("b", &["m"]), 1),
        (remote("c", &["m"]), 1),
        (remote("d", &["m"]), 1),
    ]);
    let run = bed.run(|_| Status(500, ""));
    assert_eq!(run.calls, ["a/m#1", "b/m#1", "c/m#1"]);
    bed.settings.max_attempts = 1;
    bed.wait_s(60);
    assert_eq!(bed.run(|_| Status(500, "")).calls, ["a/m#1"]);
}

#[test]
fn twenty_calls_and_no_more() {
    let mut bed = Bed::new(&[(remote("a", &["m"]), 30)]);
    let run = bed.run(|_| Status(401, ""));
    assert_eq!((run.calls.len(), run.code().0), (20, 502));
}

#[test]
fn no_attempt_begins_after_the_budget() {
    let mut bed = far_and_near();
    bed.settings.failover.budget_ms = 100_000;
    let run = bed.run(|_| timeout());
    assert_eq!((run.calls.len(), run.code().0), (2, 504));
}

#[test]
fn a_call_that_our_own_budget_cut_short_benches_nobody() {
    let mut bed = Bed::two();
    bed.settings.failover.budget_ms = 61_000;
    let run = bed.run(|call| match call {
        "a/m#1" => timeout(),
        _ => Reply::Fault(FaultKind::Timeout, Phase::FirstByte, true, 1_000),
    });
    assert_eq!(run.code().0, 504);
    bed.check_benches(&[("a", "unavailable", 29)]);
}

#[test]
fn a_success_lifts_no_bench_that_began_after_it() {
    let mut bed = Bed::two();
    let mut slow = bed.start();
    let Next::Try(attempt) = slow.next(&bed.catalog, &mut bed.live, bed.now) else { panic!("a serves") };
    bed.wait_s(1);
    bed.run(a_fails(|| Status(500, "")));
    bed.wait_s(1);
    let outcome = bed.judge(&attempt, &Serve);
    let report =
        Report { attempt, outcome, spent: Spent::default(), has_field: &|_| false, counted_prompt: None };
    slow.report(&bed.catalog, &mut bed.live, report, bed.now);
    bed.check_benches(&[("a", "unavailable", 29)]);
}

#[test]
fn quo_15_a_good_answer_that_says_nothing_is_left_is_believed() {
    let mut bed = Bed::two();
    let headers: &[(&str, &str)] =
        &[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "7.2s")];
    assert_eq!(bed.run(|_| ServeWith(headers)).calls, ["a/m#1"]);
    bed.check_benches(&[("a/m with a#1", "rateLimit", 8)]);
}

#[test]
fn w9_refused_connections_give_their_request_back() {
    let mut file = remote("a", &["m"]);
    file["limits"] = json!({"rpd": 1});
    let mut bed = Bed::new(&[(file, 1)]);
    assert_eq!(bed.run(|_| refused()).code().0, 502);
    bed.wait_s(30);
    assert_eq!(bed.run(|_| Status(500, "")).calls.len(), 1, "nothing was counted");
    bed.wait_s(60);
    let run = bed.run(|_| Serve);
    assert_eq!((run.calls.len(), run.code()), (0, (429, "all_providers_blocked")), "what arrived counts");
}
