//! The simulator: the real plan, failover, ledger and benches against made-up providers with hidden limits and bad
//! days, over virtual time. One seed is one world; a failure prints it.
//!
//! `FREEWAY_SIM_SEEDS` (20) and `FREEWAY_SIM_DAYS` (1) say how much; `FREEWAY_SIM_SEED=17` runs that seed alone.
mod watch;
mod world;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use freeway::base::clock::Now;
use freeway::base::rng::Rng;
use freeway::catalog::names::{Kind, Names, Resolution};
use freeway::catalog::provider::Caps;
use freeway::catalog::settings::{Settings, Strategy};
use freeway::catalog::{Catalog, ModelIx};
use freeway::quota::Spent;
use freeway::route::failover::{Attempt, CALLS_MAX, Dead, DeadEnd, Failover, Next, Report};
use freeway::route::live::Live;
use freeway::route::manner::Manner;
use freeway::route::outcome::{Circumstances, Class, End, NoAnswer, Signal, classify};
use freeway::route::plan::Ask;
use freeway::route::speed::Answer;
use freeway::route::verdict::Policy;
use freeway::wire::exchange::{Fault as Broken, FaultKind, Headers, Phase};

use watch::Watch;
use world::{DAY_MS, Fault, HOUR_MS, World};

/// Mean time between requests; one in ten brings a burst.
const PAUSE_MS: f64 = 120_000.0;
const BURST_MAX: usize = 12;
/// Of so many requests one client leaves before its answer is whole.
const LEAVES: usize = 40;
/// 2026-12-01 00:00 UTC, from where virtual time counts.
const WALL_START_MS: u64 = 1_796_083_200_000;

/// What an upstream does to one call.
#[derive(Clone, Debug)]
enum Reply {
    Served { output_tokens: u64 },
    Status { status: u16, headers: Vec<(String, String)>, body: String },
    ErrorIn200(&'static str),
    Nothing(NoAnswer),
    Broken(FaultKind, Phase, bool),
    Left,
}

/// One request on its way.
struct Request {
    failover: Failover,
    ask: Ask,
    began_ms: u64,
    flight: Option<(Attempt, u64, Reply)>,
    calls: u32,
    models: Vec<ModelIx>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    Ends(usize),
    Restart,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    requests: u64,
    served: u64,
    calls: u64,
    /// Of everything that happened, in order.
    digest: u64,
}

struct Sim {
    world: World,
    live: Live,
    settings: Settings,
    resolution: Resolution,
    watch: Watch,
    rng: Rng,
    ms: u64,
    /// Virtual time when the process started: monotonic time begins anew with it.
    started_ms: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    requests: Vec<Request>,
    summary: Summary,
}

impl Sim {
    fn new(seed: u64, days: u64) -> Sim {
        let mut rng = Rng::seeded(seed);
        let world = World::new(&mut rng, days);
        let mut settings = Settings::default();
        settings.failover.budget_ms = 30_000 + rng.below(150_000) as u64;
        settings.max_attempts = 1 + rng.below(5) as u32;
        let resolution = Names::new(&world.catalog).resolve(&world.catalog, &settings, "", Kind::Chat);
        let mut sim = Sim {
            world,
            live: Live::new(),
            settings,
            resolution,
            watch: Watch::default(),
            rng,
            ms: 0,
            started_ms: 0,
            events: BinaryHeap::new(),
            order: 0,
            requests: Vec::new(),
            summary: Summary::default(),
        };
        sim.at(0, Event::Arrives);
        let restart_ms = sim.rng.below((days * DAY_MS) as usize) as u64;
        sim.at(restart_ms, Event::Restart);
        sim
    }

    fn now(&self) -> Now {
        Now::at(HOUR_MS + self.ms - self.started_ms, WALL_START_MS + self.ms)
    }

    fn at(&mut self, ms: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((ms, self.order, event)));
    }

    fn note(&mut self, what: u64) {
        self.summary.digest = (self.summary.digest ^ what ^ self.ms).wrapping_mul(0x0100_0000_01b3);
    }

    fn run(mut self, days: u64) -> Summary {
        while let Some(Reverse((ms, _, event))) = self.events.pop() {
            self.ms = self.ms.max(ms);
            match event {
                Event::Arrives if ms < days * DAY_MS => self.arrive(),
                Event::Arrives => {}
                Event::Ends(request) => self.end(request),
                Event::Restart => self.restart(),
            }
        }
        assert!(
            self.requests.iter().all(|request| request.flight.is_none()),
            "every request has come to an end"
        );
        for provider in &self.world.catalog.providers {
            for (at, key) in pairs(&self.world.catalog)
                .filter(|(at, _)| self.world.catalog.provider(*at).slot == provider.slot)
            {
                for scope in watch::scopes(provider, at, key) {
                    assert_eq!(self.live.ledger.in_flight(scope), 0, "a reservation was lost in {scope:?}");
                }
            }
        }
        self.summary.calls = self.watch.calls;
        self.summary
    }

    fn arrive(&mut self) {
        let pause_ms = (-PAUSE_MS * (1.0 - self.rng.unit()).ln()) as u64;
        self.at(self.ms + 1 + pause_ms, Event::Arrives);
        let count = if self.rng.below(10) == 0 { 2 + self.rng.below(BURST_MAX) } else { 1 };
        for _ in 0..count {
            let request = self.request();
            self.requests.push(request);
            self.summary.requests += 1;
            self.step(self.requests.len() - 1);
        }
    }

    fn request(&mut self) -> Request {
        let caps = if self.rng.below(5) == 0 { Caps::TOOLS } else { Caps::default() };
        let tokens = 1 << self.rng.below(15);
        let ask = Ask {
            kind: Kind::Chat,
            caps,
            prompt_tokens: tokens,
            window_tokens: tokens,
            shrink: None,
            max_output: (self.rng.below(2) == 0).then(|| 1 + self.rng.below(8_000) as u64),
            choices: 1,
            answer: if self.rng.below(2) == 0 { Answer::Stream } else { Answer::Whole },
        };
        let (_, strategy) = Strategy::NAMES[self.rng.below(Strategy::NAMES.len())];
        let manner = Manner {
            route: &self.resolution.route,
            strategy,
            keep_order: false,
            pinned: false,
            fill_max: 1.0,
        };
        let order = self.live.orders.get(1, &self.world.catalog, &self.resolution, ask.needed());
        let (policy, now) = (Policy::new(&self.settings), self.now());
        let failover = Failover::new(order, ask, policy, &manner, &mut self.live, now);
        Request { failover, ask, began_ms: self.ms, flight: None, calls: 0, models: Vec::new() }
    }

    /// Lets a request go on until it waits for an upstream, or for nothing any more.
    fn step(&mut self, at: usize) {
        let now = self.now();
        let request = &mut self.requests[at];
        match request.failover.next(&self.world.catalog, &mut self.live, now) {
            Next::Try(attempt) => {
                request.calls += 1;
                if !request.models.contains(&attempt.at) {
                    request.models.push(attempt.at);
                }
                assert!(request.calls <= CALLS_MAX, "{} upstream calls", request.calls);
                assert!(request.models.len() <= self.settings.max_attempts as usize, "{:?}", request.models);
                assert!(
                    self.ms < request.began_ms + self.settings.failover.budget_ms,
                    "begun after the budget"
                );
                self.call(at, attempt);
            }
            Next::GiveUp(dead) => {
                self.check_dead(at, &dead);
                self.note(dead.blocked.len() as u64);
            }
        }
    }

    fn call(&mut self, at: usize, attempt: Attempt) {
        let (now, prompt) = (self.now(), self.requests[at].ask.prompt_tokens);
        let booked = self.watch.call(&self.world.catalog, &self.live, &attempt, prompt, now);
        self.note(
            u64::from(attempt.at.provider) << 32 | u64::from(attempt.at.model) << 16 | attempt.key as u64,
        );
        let (mut reply, mut took_ms) = self.upstream(at, &attempt);
        if self.rng.below(LEAVES) == 0 {
            (reply, took_ms) = (Reply::Left, took_ms / 2);
        }
        let deadline_ms = attempt.deadline_ms.saturating_sub(now.mono_ms);
        if took_ms > deadline_ms {
            (reply, took_ms) = (Reply::Broken(FaultKind::Timeout, Phase::FirstByte, true), deadline_ms);
        }
        self.requests[at].flight = Some((attempt, booked, reply));
        self.at(self.ms + took_ms, Event::Ends(at));
    }

    /// What really happens to a call, and how long it takes.
    fn upstream(&mut self, at: usize, attempt: &Attempt) -> (Reply, u64) {
        let (p, m) = (usize::from(attempt.at.provider), usize::from(attempt.at.model));
        let (ms, prompt) = (self.ms, self.requests[at].ask.prompt_tokens);
        let local = self.world.catalog.providers[p].local;
        let network = self.world.offline.at(ms).filter(|_| !local);
        let truth = &mut self.world.truth[p];
        let wrong = network
            .or_else(|| truth.spells.at(ms))
            .or_else(|| truth.keys[attempt.key].at(ms))
            .or_else(|| truth.models[m].at(ms));
        if let Some(fault) = wrong {
            return broken(fault, &mut self.rng);
        }
        if prompt > truth.windows[m] {
            let body = format!(
                "{{\"error\":{{\"message\":\"This model's maximum context length is {} tokens. However, you requested \
                 {prompt} tokens\",\"code\":\"context_length_exceeded\"}}}}",
                truth.windows[m]
            );
            return (status(400, body), 50);
        }
        if truth.refuses.is_some_and(|field| !attempt.drops.iter().any(|dropped| dropped == field)) {
            return (
                status(400, r#"{"error":{"message":"unsupported parameter","param":"store"}}"#.into()),
                50,
            );
        }
        if let Some(Err(wait_ms)) = truth.hidden.as_mut().map(|hidden| hidden.count(attempt.key, ms)) {
            return (limited(wait_ms, &mut self.rng), 50);
        }
        let output_tokens = 1 + self.rng.below(2_000) as u64;
        (Reply::Served { output_tokens }, 200 + self.rng.below(20_000) as u64)
    }

    fn end(&mut self, at: usize) {
        let now = self.now();
        let (attempt, booked, reply) = self.requests[at].flight.take().expect("it was in flight");
        let prompt_tokens = self.requests[at].ask.prompt_tokens;
        let (model, key) = (attempt.at, attempt.key);
        let (none, headers, fault) = (Headers::default(), of_reply(&reply), of_fault(&reply));
        let end = match &reply {
            Reply::Served { .. } => End::Served { headers: &none },
            Reply::Status { status, body, .. } => {
                End::Status { status: *status, headers: &headers, body: body.as_bytes() }
            }
            Reply::ErrorIn200(body) => End::ErrorInAnswer { headers: &none, body: body.as_bytes() },
            Reply::Nothing(kind) => End::NoAnswer(*kind),
            Reply::Broken(..) => End::Fault(&fault),
            Reply::Left => End::ClientLeft { reached: true },
        };
        let provider = self.world.catalog.provider(model);
        let outcome =
            classify(&Signal { provider, prompt_tokens, circumstances: Circumstances::default(), end }, now);
        let spent = match reply {
            Reply::Served { output_tokens } => Spent { prompt_tokens, output_tokens, credits: 0.0 },
            Reply::Left => Spent { prompt_tokens, output_tokens: 100, credits: 0.0 },
            _ => Spent::default(),
        };
        let arrived = !matches!(reply, Reply::Broken(_, _, false));
        let tokens = arrived.then_some(spent.prompt_tokens + spent.output_tokens);
        self.watch.ended(&self.world.catalog, model, key, booked, tokens);
        let report =
            Report { attempt, outcome, spent, has_field: &|name| name == "store", counted_prompt: None };
        self.requests[at].failover.report(&self.world.catalog, &mut self.live, report, now);
        if matches!(reply, Reply::Served { .. }) {
            self.summary.served += 1;
        } else {
            self.step(at);
        }
    }

    /// A request got nothing. Then it has used up what it may, or there was nobody left to ask.
    fn check_dead(&self, at: usize, dead: &Dead) {
        let request = &self.requests[at];
        let hops = request.failover.hops();
        let empty = hops.iter().filter(|hop| hop.failure.class == Class::EmptyAnswer).count();
        let used_up = matches!(dead.end, DeadEnd::ClientLeft | DeadEnd::Returned | DeadEnd::Offline)
            || request.models.len() >= self.settings.max_attempts as usize
            || request.calls >= CALLS_MAX
            || self.now().mono_ms >= request.failover.deadline_ms()
            || empty >= 2;
        if used_up {
            return;
        }
        let (catalog, now) = (&self.world.catalog, self.now());
        for (model, key) in pairs(catalog) {
            let provider = catalog.provider(model);
            let asked = hops.iter().any(|hop| hop.at.provider == model.provider);
            let truth = &self.world.truth[usize::from(model.provider)];
            let prompt = request.ask.prompt_tokens;
            let told = catalog.model(model).context.is_none_or(|window| prompt <= window);
            // A model that a too small one has taught this request to pass by.
            let above = hops.iter().any(|hop| hop.failure.class == Class::TooLong);
            let healthy = !asked
                && !above
                && told
                && prompt <= truth.windows[usize::from(model.model)]
                && (provider.local || !self.live.network.offline())
                && self.live.benches.blocking(&watch::scopes(provider, model, key), now).is_none()
                && self.watch.is_clear(catalog, model, key, prompt, now);
            assert!(
                !healthy,
                "{} with key {key} was free, but nobody asked it: {:?}, {} hops, blocked: {:?}",
                catalog.model(model).reference,
                dead.end,
                hops.len(),
                dead.blocked.iter().find(|blocked| blocked.at == model),
            );
        }
    }

    /// The process ends and starts again with what was saved; waits until nothing is in flight.
    fn restart(&mut self) {
        if self.requests.iter().any(|request| request.flight.is_some()) {
            return self.at(self.ms + 1_000, Event::Restart);
        }
        let slots = &mut self.world.slots;
        let before = Now::at(HOUR_MS + self.ms - self.started_ms, WALL_START_MS + self.ms);
        let (counters, benches) =
            (self.live.ledger.export(slots, before), self.live.benches.export(slots, before));
        let gone_ms = self.rng.below(HOUR_MS as usize) as u64;
        self.ms += gone_ms;
        self.started_ms = self.ms;
        let after = Now::at(HOUR_MS, WALL_START_MS + self.ms);
        self.live = Live::new();
        self.live.ledger.restore(&counters, slots, after);
        self.live.benches.restore(&benches, slots, after);
    }
}

/// Every model with every key.
fn pairs(catalog: &Catalog) -> impl Iterator<Item = (ModelIx, usize)> {
    catalog.all().flat_map(|at| (0..catalog.provider(at).keys.len()).map(move |key| (at, key)))
}

fn status(status: u16, body: String) -> Reply {
    Reply::Status { status, headers: Vec::new(), body }
}

fn broken(fault: Fault, rng: &mut Rng) -> (Reply, u64) {
    match fault {
        Fault::Refused => (Reply::Broken(FaultKind::Refused, Phase::Connect, false), 1),
        Fault::Dns => (Reply::Broken(FaultKind::Dns, Phase::Resolve, false), 20),
        Fault::Hangs => (Reply::Broken(FaultKind::Timeout, Phase::FirstByte, true), 60_000),
        Fault::CutShort => (Reply::Broken(FaultKind::Closed, Phase::Stream, true), 3_000),
        Fault::Html => (Reply::Nothing(NoAnswer::Html), 100),
        Fault::Empty => (Reply::Nothing(NoAnswer::Empty), 2_000),
        Fault::ErrorIn200 => {
            (Reply::ErrorIn200(r#"{"error":{"message":"oops","code":"server_error"}}"#), 100)
        }
        Fault::Status(code) if code >= 500 && rng.below(3) == 0 => {
            let headers = vec![("retry-after".to_owned(), (1 + rng.below(120)).to_string())];
            (Reply::Status { status: code, headers, body: "<html>busy</html>".into() }, 100)
        }
        Fault::Status(code) => (status(code, String::new()), 100),
    }
}

/// A 429 that tells its wait in one of many ways, or not at all.
fn limited(wait_ms: u64, rng: &mut Rng) -> Reply {
    let seconds = wait_ms as f64 / 1_000.0;
    let header = |name: &str, value: String| Reply::Status {
        status: 429,
        headers: vec![(name.to_owned(), value)],
        body: String::new(),
    };
    match rng.below(5) {
        0 => status(429, String::new()),
        1 => header("retry-after", seconds.ceil().to_string()),
        2 => header("retry-after-ms", wait_ms.to_string()),
        3 => header("x-ratelimit-reset", format!("{seconds:.3}s")),
        _ => status(429, format!("{{\"error\":{{\"message\":\"Please try again in {seconds:.2}s.\"}}}}")),
    }
}

fn of_reply(reply: &Reply) -> Headers {
    match reply {
        Reply::Status { headers, .. } => headers.iter().map(|(name, value)| (name, value)).collect(),
        _ => Headers::default(),
    }
}

fn of_fault(reply: &Reply) -> Broken {
    let (kind, phase, request_sent) = match reply {
        Reply::Broken(kind, phase, sent) => (*kind, *phase, *sent),
        _ => (FaultKind::Cut, Phase::End, true),
    };
    Broken { phase, kind, message: "it broke".into(), request_sent }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn run(seed: u64, days: u64) -> Summary {
    match catch_unwind(AssertUnwindSafe(|| Sim::new(seed, days).run(days))) {
        Ok(summary) => summary,
        Err(panic) => {
            eprintln!("the simulation failed: FREEWAY_SIM_SEED={seed} FREEWAY_SIM_DAYS={days}");
            resume_unwind(panic)
        }
    }
}

#[test]
fn worlds_hold_what_routing_promises() {
    let days = setting("FREEWAY_SIM_DAYS", 1);
    let (first, count) = match std::env::var("FREEWAY_SIM_SEED") {
        Ok(_) => (setting("FREEWAY_SIM_SEED", 0), 1),
        Err(_) => (0, setting("FREEWAY_SIM_SEEDS", 20)),
    };
    let next = AtomicU64::new(first);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let summaries: Vec<Summary> = std::thread::scope(|scope| {
        let work = || {
            let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            seeds.take_while(|seed| *seed < first + count).map(|seed| run(seed, days)).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    let total = |of: fn(&Summary) -> u64| summaries.iter().map(of).sum::<u64>();
    let (requests, served, calls) = (total(|s| s.requests), total(|s| s.served), total(|s| s.calls));
    println!("{count} worlds, {days} days: {requests} requests, {served} served, {calls} upstream calls");
    // A simulation in which little happens shows little.
    assert!(requests >= 700 * days * count, "{requests} requests");
    assert!(served * 10 >= requests * 5, "only {served} of {requests} requests were served");
    assert!(calls > served, "nothing ever failed");
}

#[test]
fn equal_seeds_give_equal_stories() {
    assert_eq!(run(3, 1), run(3, 1));
}
