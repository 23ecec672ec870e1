//! What planning one request costs: `cargo run --release --example plan_cost`.
//!
//! 40 providers, 1,500 models, 120 keys, limits and benches on; the order of models is cached, as it is between reloads.
//! Planning is everything between a resolved request and the first upstream call: ranking, viability, the choice of a
//! key, the reservation.
use std::collections::BTreeMap;
use std::time::Instant;

use freeway::base::clock::Now;
use freeway::catalog::Catalog;
use freeway::catalog::names::{Kind, Names};
use freeway::catalog::pool::Fingerprints;
use freeway::catalog::provider::Caps;
use freeway::catalog::settings::{Settings, Strategy};
use freeway::catalog::slots::Slots;
use freeway::catalog::spec::{self, Context};
use freeway::context::budget::Shrink;
use freeway::quota::{Cause, Scope, Spent, Term};
use freeway::route::failover::{Failover, Next, Report};
use freeway::route::live::Live;
use freeway::route::manner::Manner;
use freeway::route::outcome::Outcome;
use freeway::route::plan::Ask;
use freeway::route::speed::Answer;
use freeway::route::verdict::Policy;

const PROVIDERS: usize = 40;
const MODELS: usize = 1_500;
const KEYS_EACH: usize = 3;
const REQUESTS: u64 = 20_000;

/// Every provider with three keys and limits, every tenth of its models with limits of its own.
fn catalog() -> Catalog {
    let keys: Vec<String> = (0..PROVIDERS * KEYS_EACH).map(|n| format!("test-key-{n:04}")).collect();
    let variables: BTreeMap<String, String> = (0..PROVIDERS)
        .map(|n| (format!("KEYS_{n}"), keys[n * KEYS_EACH..(n + 1) * KEYS_EACH].join(",")))
        .collect();
    let (settings, fingerprints, mut slots) =
        (Settings::default(), Fingerprints::new(&[7; 32]), Slots::default());
    let mut catalog = Catalog::default();
    for n in 0..PROVIDERS {
        let models: Vec<String> = (0..MODELS)
            .filter(|m| m % PROVIDERS == n)
            .map(|m| {
                let limits =
                    if m / PROVIDERS % 10 == 5 { r#", "limits": {"rpm": 60, "tpd": 500000}"# } else { "" };
                format!(r#"{{"id": "model-{m}", "context": 131072, "caps": ["chat", "tools"]{limits}}}"#)
            })
            .collect();
        let text = format!(
            r#"{{"id": "p{n}", "baseUrl": "https://p{n}.test/v1", "priority": {n},
                "auth": {{"type": "bearer", "envKeys": ["KEYS_{n}"]}},
                "limits": {{"rpm": 1000000, "rpd": 100000000, "tpm": 1000000000}}, "models": [{}]}}"#,
            models.join(",")
        );
        let mut context = Context {
            pasted: &freeway::catalog::vault::Vault::default(),
            variables: &variables,
            settings: &settings,
            fingerprints: &fingerprints,
            slots: &mut slots,
        };
        let (provider, issues) = spec::read("test.json", &text, &mut context);
        catalog.providers.push(provider.unwrap_or_else(|| panic!("{issues:?}")));
    }
    catalog
}

/// Microseconds for one request, planning alone and with its report.
fn measure(catalog: &Catalog, strategy: Strategy, benched_providers: usize) -> (f64, f64) {
    let settings = Settings::default();
    let resolution = Names::new(catalog).resolve(catalog, &settings, "auto", Kind::Chat);
    let mut live = Live::new();
    let start = Now::at(3_600_000, 1_796_104_800_000);
    for provider in catalog.providers.iter().take(benched_providers) {
        let term = Term::Named { ms: 86_400_000 };
        live.benches.put(Scope::Provider(provider.slot), Cause::Unavailable, term, 0, start);
    }
    let policy = Policy::new(&settings);
    let ask = Ask {
        kind: Kind::Chat,
        caps: Caps::TOOLS,
        prompt_tokens: 400,
        window_tokens: 400,
        shrink: Some(Shrink { lean_tokens: 400, core_tokens: 200, reserve_output: 1_024, prefer_fit: true }),
        max_output: None,
        choices: 1,
        answer: Answer::Stream,
    };
    let manner =
        Manner { route: &resolution.route, strategy, keep_order: false, pinned: false, fill_max: 1.0 };
    let (mut planning, began) = (std::time::Duration::ZERO, Instant::now());
    for n in 0..REQUESTS {
        let now = start.plus_ms(n * 10);
        let planned = Instant::now();
        let order = live.orders.get(1, catalog, &resolution, ask.needed());
        let mut failover = Failover::new(order, ask, policy, &manner, &mut live, now);
        let Next::Try(attempt) = failover.next(catalog, &mut live, now) else { panic!("nobody serves") };
        planning += planned.elapsed();
        let spent = Spent { prompt_tokens: 400, output_tokens: 200, credits: 0.0 };
        let outcome = Outcome::Served { exhausted_ms: None, left: Vec::new() };
        failover.report(
            catalog,
            &mut live,
            Report { attempt, outcome, spent, has_field: &|_| false, counted_prompt: None },
            now,
        );
    }
    let per_request = 1e6 / REQUESTS as f64;
    (planning.as_secs_f64() * per_request, began.elapsed().as_secs_f64() * per_request)
}

fn main() {
    let catalog = catalog();
    let keys: usize = catalog.providers.iter().map(|provider| provider.keys.len()).sum();
    println!("{} providers, {} models, {keys} keys", catalog.providers.len(), catalog.all().count());
    let mut slowest: f64 = 0.0;
    for (name, strategy) in Strategy::NAMES {
        for benched in [0, PROVIDERS / 2] {
            let (planning, whole) = measure(&catalog, strategy, benched);
            slowest = slowest.max(planning);
            println!(
                "{name:12} {benched:2} providers benched: plan {planning:6.2} µs, plan and report {whole:6.2} µs"
            );
        }
    }
    // For the benchmark's table.
    println!("plan_us {slowest:.2}");
}
