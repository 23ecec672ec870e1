//! What happens beside requests, on the main thread: one table of periods, and orders from signals.
//!
//! Nothing here may take long, because a signal to stop waits for it; what may, such as fetching model lists, gets a
//! thread of its own, one at a time.
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::base::clock;
use crate::catalog::env::Paths;
use crate::catalog::overrides;
use crate::catalog::{clients, vault};
use crate::discover::{self, Which};
use crate::health;
use crate::http::{alerts, backups};
use crate::logger;
use crate::relay::gateway::Gateway;
use crate::service::Manager;

/// What the main thread is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Reload,
    Stop,
}

/// Orders on their way to the main thread; signals that come faster are one.
const ORDERS_MAX: usize = 16;

/// Both ends of the way to the main thread.
pub struct Orders(Sender<Order>, Receiver<Order>);

/// A new way to the main thread.
pub fn orders() -> Orders {
    let (sender, receiver) = bounded(ORDERS_MAX);
    Orders(sender, receiver)
}

impl Orders {
    /// The end for whoever gives orders.
    pub fn sender(&self) -> Sender<Order> {
        self.0.clone()
    }
}

/// A job and how often it runs.
struct Job {
    name: &'static str,
    first: Duration,
    period: Duration,
    run: fn(&Arc<Gateway>, &mut Memory),
}

const FILES_EVERY: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

/// Every job. Discovery begins at once: a provider without declared models serves nothing before it.
const JOBS: [Job; 6] = [
    Job { name: "watch files", first: FILES_EVERY, period: FILES_EVERY, run: watch_files },
    Job { name: "discover models", first: Duration::ZERO, period: MINUTE, run: discover_models },
    Job { name: "sample quotas", first: Duration::ZERO, period: MINUTE, run: sample_quotas },
    Job { name: "check keys", first: MINUTE, period: MINUTE, run: check_keys },
    // Soon after the start: a box that is switched on for an hour a day is backed up as well.
    Job { name: "back up", first: FILES_EVERY, period: MINUTE, run: back_up },
    Job { name: "close idle connections", first: MINUTE, period: MINUTE, run: close_idle },
];

/// What jobs remember from one run to the next.
struct Memory {
    files: Fingerprint,
}

/// Runs the jobs until told to stop. `files` were seen before the load that the gateway started with.
pub fn run(gateway: &Arc<Gateway>, orders: &Orders, files: Fingerprint, manager: &Manager) {
    let mut memory = Memory { files };
    let mut due = JOBS.map(|job| clock::instant() + job.first);
    loop {
        let next = due.iter().min().copied().unwrap_or_else(clock::instant);
        match orders.1.recv_deadline(next) {
            Ok(Order::Stop) => return,
            Ok(Order::Reload) => {
                memory.files = fingerprint(&gateway.snapshot().paths);
                manager.reloading();
                reload(gateway, "told to by a signal");
                manager.reloaded();
            }
            Err(_) => {
                for (job, due) in JOBS.iter().zip(&mut due) {
                    if *due <= clock::instant() {
                        *due = clock::instant() + job.period;
                        let run = AssertUnwindSafe(|| (job.run)(gateway, &mut memory));
                        if catch_unwind(run).is_err() {
                            log::error!(
                                "the job \"{}\" failed; it runs again in {} s",
                                job.name,
                                job.period.as_secs()
                            );
                        }
                    }
                }
            }
        }
    }
}

fn reload(gateway: &Arc<Gateway>, why: &str) {
    match gateway.reload() {
        Ok(snapshot) => {
            logger::start(snapshot.settings.log.level);
            log::info!("files read again: {why}");
            logger::loaded(&snapshot);
            // A provider that just got its key may have no models yet.
            discover::start(gateway, Which::Due);
        }
        Err(issues) => logger::issues(&issues),
    }
}

/// Size and time of every file that a load reads, so that a change is seen without reading anything.
pub type Fingerprint = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// Most provider files looked at; a load reads no more either.
const FILES_MAX: usize = 1_000;

/// To be taken before a load: what changes during it is then noticed afterwards.
pub fn fingerprint(paths: &Paths) -> Fingerprint {
    let mut seen = Fingerprint::new();
    let mut look = |path: &Path| {
        if let Ok(about) = std::fs::metadata(path) {
            seen.insert(path.to_owned(), (about.len(), about.modified().ok()));
        }
    };
    look(&paths.config);
    look(&paths.env_file);
    look(&paths.data.join(clients::FILE));
    look(&paths.data.join(vault::FILE));
    look(&paths.data.join(overrides::FILE));
    look(&paths.data.join("discovered.json"));
    for entry in std::fs::read_dir(&paths.providers).into_iter().flatten().flatten().take(FILES_MAX) {
        look(&entry.path());
    }
    seen
}

fn watch_files(gateway: &Arc<Gateway>, memory: &mut Memory) {
    let now = fingerprint(&gateway.snapshot().paths);
    if now != memory.files {
        memory.files = now;
        reload(gateway, "one of them changed");
    }
}

/// What is used of each quota by now, from which forecasts are made.
fn sample_quotas(gateway: &Arc<Gateway>, _: &mut Memory) {
    alerts::sample(gateway);
}

/// A pass over all provider keys when the last one is long ago; the first of a run is the warm-up.
fn check_keys(gateway: &Arc<Gateway>, _: &mut Memory) {
    let Some(period_ms) = gateway.snapshot().settings.key_health_ms else { return };
    let (at, running) = gateway.last_check();
    let is_due = at.is_none_or(|at_ms| clock::now().wall_ms.abs_diff(at_ms) >= period_ms);
    if is_due && !running {
        health::start(gateway);
    }
}

/// A backup, when it is time and something changed.
fn back_up(gateway: &Arc<Gateway>, _: &mut Memory) {
    backups::start_if_due(gateway);
}

/// Closes connections to upstreams that nobody has used for a while.
fn close_idle(gateway: &Arc<Gateway>, _: &mut Memory) {
    gateway.client.close_idle();
}

/// Model lists that are missing or old.
fn discover_models(gateway: &Arc<Gateway>, _: &mut Memory) {
    discover::start(gateway, Which::Due);
}
