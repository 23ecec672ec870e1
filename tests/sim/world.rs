//! The world of one simulation: providers with limits that their files tell, tell wrongly or hide, and with bad days.
use std::collections::{BTreeMap, VecDeque};

use freeway::base::rng::Rng;
use freeway::catalog::Catalog;
use freeway::catalog::pool::Fingerprints;
use freeway::catalog::settings::Settings;
use freeway::catalog::slots::Slots;
use freeway::catalog::spec::{self, Context};
use serde_json::{Value, json};

pub const MINUTE_MS: u64 = 60_000;
pub const HOUR_MS: u64 = 60 * MINUTE_MS;
pub const DAY_MS: u64 = 24 * HOUR_MS;

/// What is wrong with something for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Refused,
    Dns,
    Hangs,
    Status(u16),
    Html,
    Empty,
    ErrorIn200,
    CutShort,
}

/// A span of time with a fault in it.
#[derive(Clone, Copy, Debug)]
pub struct Spell {
    from_ms: u64,
    to_ms: u64,
    fault: Fault,
}

/// Faults over time, in any order.
#[derive(Clone, Debug, Default)]
pub struct Spells(Vec<Spell>);

impl Spells {
    pub fn at(&self, ms: u64) -> Option<Fault> {
        self.0.iter().find(|spell| (spell.from_ms..spell.to_ms).contains(&ms)).map(|spell| spell.fault)
    }

    fn scattered(rng: &mut Rng, end_ms: u64, per_day: f64, longest_ms: u64, faults: &[Fault]) -> Spells {
        let count = (per_day * end_ms as f64 / DAY_MS as f64 * 2.0 * rng.unit()).round() as usize;
        let spell = |_| {
            let from_ms = rng.below(end_ms as usize) as u64;
            let to_ms = from_ms + 1_000 + rng.below(longest_ms as usize) as u64;
            Spell { from_ms, to_ms, fault: faults[rng.below(faults.len())] }
        };
        Spells((0..count).map(spell).collect())
    }
}

/// A limit that only the upstream knows: requests of one key within a minute, counted to the millisecond.
#[derive(Clone, Debug)]
pub struct Hidden {
    pub per_minute: usize,
    recent: BTreeMap<usize, VecDeque<u64>>,
}

impl Hidden {
    /// Counts a request; tells how long to wait when it is one too many.
    pub fn count(&mut self, key: usize, ms: u64) -> Result<(), u64> {
        let recent = self.recent.entry(key).or_default();
        while recent.front().is_some_and(|at| at + MINUTE_MS <= ms) {
            recent.pop_front();
        }
        if recent.len() >= self.per_minute {
            return Err(recent.front().map_or(MINUTE_MS, |at| at + MINUTE_MS - ms));
        }
        recent.push_back(ms);
        Ok(())
    }
}

/// The truth about one provider.
#[derive(Clone, Debug)]
pub struct Truth {
    pub spells: Spells,
    /// By key: 401, 402 or 403.
    pub keys: Vec<Spells>,
    /// By model: gone, or broken alone.
    pub models: Vec<Spells>,
    /// By model: the window that it really has.
    pub windows: Vec<u64>,
    pub hidden: Option<Hidden>,
    /// A field that it refuses.
    pub refuses: Option<&'static str>,
}

pub struct World {
    pub catalog: Catalog,
    pub slots: Slots,
    pub truth: Vec<Truth>,
    /// The box's own network is gone.
    pub offline: Spells,
    /// A provider that never fails and knows no limits, if there is one.
    pub steady: Option<usize>,
}

impl World {
    pub fn new(rng: &mut Rng, days: u64) -> World {
        let end_ms = days * DAY_MS;
        let count = 3 + rng.below(6);
        let steady = (rng.below(2) == 0).then(|| rng.below(count));
        let mut world = World {
            catalog: Catalog::default(),
            slots: Slots::default(),
            truth: Vec::new(),
            offline: Spells::scattered(rng, end_ms, 0.7, HOUR_MS, &[Fault::Dns]),
            steady,
        };
        for n in 0..count {
            world.add(rng, n, end_ms);
        }
        world
    }

    fn add(&mut self, rng: &mut Rng, n: usize, end_ms: u64) {
        let steady = self.steady == Some(n);
        let (models, keys) = (1 + rng.below(4), 1 + rng.below(3));
        let windows: Vec<u64> =
            (0..models).map(|_| if steady { 1 << 20 } else { 4_096 << rng.below(6) }).collect();
        let file = file(rng, n, &windows, steady);
        let names: Vec<String> = (0..keys).map(|key| format!("test-key-{n}-{key}")).collect();
        let variables = BTreeMap::from([("KEYS".to_owned(), names.join(","))]);
        let mut context = Context {
            variables: &variables,
            settings: &Settings::default(),
            pasted: &freeway::catalog::vault::Vault::default(),
            fingerprints: &Fingerprints::new(&[7; 32]),
            slots: &mut self.slots,
        };
        let (provider, issues) = spec::read("sim.json", &file.to_string(), &mut context);
        self.catalog.providers.push(provider.unwrap_or_else(|| panic!("{issues:?} in {file}")));
        self.truth.push(if steady {
            Truth::steady(models, keys, windows)
        } else {
            Truth::moody(rng, end_ms, keys, windows)
        });
    }
}

/// The provider's file: some tell their limits, in one of the three scopes.
fn file(rng: &mut Rng, n: usize, windows: &[u64], steady: bool) -> Value {
    let mut told = json!({});
    if !steady {
        for (name, least, most) in
            [("rpm", 2, 30), ("rpd", 40, 800), ("tpm", 9_000, 60_000), ("concurrency", 1, 4)]
        {
            if rng.below(3) == 0 {
                told[name] = json!(least + rng.below(most - least));
            }
        }
    }
    let models: Vec<Value> = windows
        .iter()
        .enumerate()
        .map(|(m, window)| {
            let mut model =
                json!({"id": format!("m{m}"), "caps": ["chat", "tools"], "priority": rng.below(3)});
            // A file may not know the window, or believe in a larger one.
            match rng.below(4) {
                0 => {}
                1 => model["context"] = json!(window * 2),
                _ => model["context"] = json!(window),
            }
            if !steady && rng.below(4) == 0 {
                model["limits"] = json!({"rpm": 1 + rng.below(8)});
            }
            model
        })
        .collect();
    let local = !steady && rng.below(6) == 0;
    let scope = ["key", "model", "account"][rng.below(3)];
    json!({
        "id": format!("p{n}"),
        "baseUrl": if local { format!("http://127.0.0.1:{}/v1", 9_000 + n) } else { format!("https://p{n}.test/v1") },
        "priority": rng.below(5),
        "auth": {"type": "bearer", "envKeys": ["KEYS"]},
        "limits": told,
        "limitsScope": scope,
        "lastResort": !steady && rng.below(8) == 0,
        "models": models,
    })
}

impl Truth {
    fn steady(models: usize, keys: usize, windows: Vec<u64>) -> Truth {
        Truth {
            spells: Spells::default(),
            keys: vec![Spells::default(); keys],
            models: vec![Spells::default(); models],
            windows,
            hidden: None,
            refuses: None,
        }
    }

    fn moody(rng: &mut Rng, end_ms: u64, keys: usize, windows: Vec<u64>) -> Truth {
        const DOWN: [Fault; 8] = [
            Fault::Refused,
            Fault::Dns,
            Fault::Hangs,
            Fault::Status(500),
            Fault::Status(503),
            Fault::Html,
            Fault::ErrorIn200,
            Fault::CutShort,
        ];
        const KEY: [Fault; 3] = [Fault::Status(401), Fault::Status(402), Fault::Status(403)];
        const MODEL: [Fault; 4] = [Fault::Status(404), Fault::Status(529), Fault::Status(500), Fault::Empty];
        let mut spells = |per_day, longest, faults| Spells::scattered(rng, end_ms, per_day, longest, faults);
        Truth {
            spells: spells(3.0, 3 * HOUR_MS, &DOWN),
            keys: (0..keys).map(|_| spells(0.3, 8 * HOUR_MS, &KEY)).collect(),
            models: windows.iter().map(|_| spells(0.5, 4 * HOUR_MS, &MODEL)).collect(),
            hidden: (rng.below(3) == 0)
                .then(|| Hidden { per_minute: 1 + rng.below(10), recent: BTreeMap::new() }),
            refuses: (rng.below(5) == 0).then_some("store"),
            windows,
        }
    }
}
