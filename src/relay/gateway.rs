//! Everything that lives as long as the process and that requests share: the snapshot in use, live state, the client
//! for upstream calls, the store, the log.
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value};

use super::answers::Answers;
use super::findings::FoundLog;
use super::notes::Notes;
use super::record::TurnLog;
use super::sessions::{SessionKey, Sessions};
use crate::backup::Keeper;
use crate::base::clock;
use crate::base::text::Secret;
use crate::catalog::Issue;
use crate::catalog::discovery::{Discovered, DiscoveredList};
use crate::catalog::env::{self, Paths, Variables};
use crate::catalog::load::{self, Inputs, Snapshot};
use crate::catalog::overrides::{self, Overrides};
use crate::catalog::pool::Fingerprints;
use crate::catalog::provider::Slot;
use crate::catalog::slots::Slots;
use crate::catalog::vault::Sealer;
use crate::context::ratios::Ratio;
use crate::guard::limiter::Limiter;
use crate::route::live::Live;
use crate::store::Store;
use crate::upstream::client::Client;
use crate::upstream::examine::Examined;
use crate::wire::error::ApiError;

/// The gateway, shared by all threads.
pub struct Gateway {
    /// The data folder, which stays for as long as the process runs.
    pub data: PathBuf,
    /// The folder that the process was started in.
    current: PathBuf,
    /// The process's own variables; those of `.env` come with each load.
    process: Variables,
    fingerprints: Fingerprints,
    snapshot: RwLock<Arc<Snapshot>>,
    /// No request takes it. Where it is taken together with `live`, it comes first.
    slots: Mutex<Slots>,
    /// What decisions read and change: counters, benches, latencies. Held for microseconds, never across I/O.
    pub live: Mutex<Live>,
    /// Held by who changes the overrides, to the end of the reload: two changes at once would lose one.
    overriding: Mutex<()>,
    discovered: Mutex<Discovered>,
    /// Whether model lists are being fetched.
    pub discovering: AtomicBool,
    /// Why a provider's list could not be fetched the last time, by provider id, without secrets.
    pub unlisted: Mutex<HashMap<Arc<str>, String>>,
    /// Whether a pass over all keys is under way, and when the last one ended (milliseconds since 1970, 0 for never).
    pub checking: AtomicBool,
    pub checked_at_ms: AtomicU64,
    /// What fetching model lists found out about the keys that it used, for the next pass, which does not ask again.
    pub examined: Mutex<HashMap<Slot, Examined>>,
    pub client: Client,
    pub store: Store,
    pub backups: Keeper,
    /// What was wrong with the data folder at the start, and was got over.
    pub mishaps: Vec<Issue>,
    /// Summaries of conversations.
    pub notes: Notes,
    pub turns: TurnLog,
    pub answers: Arc<Answers>,
    /// Stored conversations.
    pub sessions: Sessions,
    /// Memory that the conversations of requests in flight hold.
    pub lent_bytes: AtomicUsize,
    pub counts: Counts,
    /// What callers have had. Asked only where something is limited.
    pub limiter: Mutex<Limiter>,
    /// What the scan found of late.
    pub found: FoundLog,
    /// Requests that wait for a candidate to free up.
    held: AtomicUsize,
}

/// Most requests that wait for a candidate at once: each holds a worker's place.
const HELD_MAX: usize = 16;

/// The place of one waiting request; dropping it gives the place back.
pub struct Held<'g>(&'g AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Requests since the start.
#[derive(Debug, Default)]
pub struct Counts {
    pub requests: AtomicU64,
    pub succeeded: AtomicU64,
    pub failed: AtomicU64,
}

impl Counts {
    /// Counts a finished request.
    pub fn count(&self, served: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let which = if served { &self.succeeded } else { &self.failed };
        which.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a [`Gateway`] is made of.
pub struct Parts {
    pub current: PathBuf,
    pub process: Variables,
    pub fingerprints: Fingerprints,
    pub slots: Slots,
    pub snapshot: Snapshot,
    pub live: Live,
    pub notes: Notes,
    pub discovered: Discovered,
    pub client: Client,
    pub store: Store,
    pub sessions: Sessions,
    pub mishaps: Vec<Issue>,
}

impl Gateway {
    /// The gateway of its parts.
    pub fn new(parts: Parts) -> Gateway {
        let Parts {
            current,
            process,
            fingerprints,
            slots,
            snapshot,
            live,
            notes,
            discovered,
            client,
            store,
            sessions,
            mishaps,
        } = parts;
        store.keep(snapshot.settings.history.into());
        let backups = Keeper::new(&snapshot.paths.data);
        Gateway {
            data: snapshot.paths.data.clone(),
            current,
            process,
            fingerprints,
            snapshot: RwLock::new(Arc::new(snapshot)),
            slots: Mutex::new(slots),
            live: Mutex::new(live),
            overriding: Mutex::new(()),
            discovered: Mutex::new(discovered),
            discovering: AtomicBool::new(false),
            unlisted: Mutex::default(),
            checking: AtomicBool::new(false),
            checked_at_ms: AtomicU64::new(0),
            examined: Mutex::default(),
            client,
            store,
            backups,
            mishaps,
            notes,
            sessions,
            lent_bytes: AtomicUsize::new(0),
            turns: TurnLog::new(clock::now().wall_ms),
            answers: Arc::default(),
            counts: Counts::default(),
            limiter: Mutex::default(),
            found: FoundLog::default(),
            held: AtomicUsize::new(0),
        }
    }

    /// A place among the requests that wait, if there is one left.
    pub fn hold_one(&self) -> Option<Held<'_>> {
        let held = Held(&self.held);
        (self.held.fetch_add(1, Ordering::AcqRel) < HELD_MAX).then_some(held)
    }

    /// When the last pass over all keys ended, if any did, and whether one is under way.
    pub fn last_check(&self) -> (Option<u64>, bool) {
        let at_ms = self.checked_at_ms.load(Ordering::Acquire);
        ((at_ms > 0).then_some(at_ms), self.checking.load(Ordering::Acquire))
    }

    /// The snapshot in use. A request takes it once and keeps it to its end.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read())
    }

    /// Reads everything again and swaps the snapshot. What turned bad keeps its last good version.
    ///
    /// # Errors
    /// Never in practice: with a previous snapshot even a bad configuration only becomes an issue.
    pub fn reload(&self) -> Result<Arc<Snapshot>, Vec<Issue>> {
        // Held to the end: two loads at once would make two snapshots of one number.
        let mut slots = self.slots.lock();
        let previous = self.snapshot();
        // Where everything is may stand in the `.env` file, which keeps its last good version.
        let paths = match env::read_file(&previous.paths.env_file) {
            Ok(_) => Paths { data: self.data.clone(), ..env::places(&self.process, &self.current) },
            Err(_) => previous.paths.clone(),
        };
        // `freeway provider refresh` leaves what it finds on disk.
        let discovered = self.learn_models(load::read_discovered(&self.data).lists);
        let inputs = Inputs {
            paths: &paths,
            process: &self.process,
            fingerprints: &self.fingerprints,
            discovered: &discovered,
            previous: Some(&previous),
        };
        let snapshot = Arc::new(load::load(&inputs, &mut slots)?);
        if !snapshot.settings.serves_as(&previous.settings) {
            log::warn!("host, port or server.* changed: it counts from the next start on");
        }
        self.sessions.set(snapshot.settings.sessions);
        *self.snapshot.write() = Arc::clone(&snapshot);
        self.store.keep(snapshot.settings.history.into());
        self.turns.changed("reload");
        Ok(snapshot)
    }

    /// Changes the overrides: checked, written, and put to use.
    ///
    /// # Errors
    /// What `change` says; a 400 that names the place when the outcome is not sound; a 500 when it cannot be written,
    /// and then nothing has changed.
    pub fn override_by(
        &self,
        change: impl FnOnce(&Snapshot) -> Result<Map<String, Value>, ApiError>,
    ) -> Result<Arc<Snapshot>, ApiError> {
        let _alone = self.overriding.lock();
        let mut snapshot = self.snapshot();
        // What the owner has written by hand meanwhile counts too, and must not be written over where it has a slip.
        match overrides::read_file(&self.data) {
            Ok(found) if found.document() == snapshot.overrides.document() => {}
            Ok(_) => snapshot = self.reload().unwrap_or(snapshot),
            Err(faults) => {
                let fault = faults.first().map_or("", String::as_str);
                let what = format!(
                    "{}: {fault}; mend it or move it away first; nothing was changed",
                    overrides::FILE
                );
                return Err(ApiError::new(500, "", what));
            }
        }
        let faulty = |fault: &str| {
            let place = fault.split_once(": ").map_or("", |(place, _)| place);
            ApiError::bad_field("invalid_body", place, fault)
        };
        let overrides = Overrides::read(change(&snapshot)?)
            .map_err(|faults| faulty(faults.first().map_or("", String::as_str)))?;
        if let Some(conflict) = overrides.conflict(&snapshot.configured_names) {
            return Err(faulty(&conflict));
        }
        overrides::write_file(&self.data, &overrides).map_err(|error| {
            ApiError::new(500, "", format!("the overrides cannot be written ({error}); nothing was changed"))
        })?;
        let reloaded = self.reload();
        self.turns.changed("overrides");
        reloaded
            .map_err(|_| ApiError::new(500, "", "the overrides are written, but the configuration refuses"))
    }

    /// Whether the process itself has a variable of this name, and not only its `.env` file.
    pub fn has_variable(&self, name: &str) -> bool {
        self.process.get(name).is_some_and(|value| !value.trim().is_empty())
    }

    /// Runs `act` with what seals and opens pasted keys; [`Gateway::reload`] makes a change count.
    pub fn with_sealer<T>(&self, act: impl FnOnce(&Sealer<'_>) -> T) -> T {
        let snapshot = self.snapshot();
        let passphrase = snapshot.passphrase.as_ref().map(Secret::expose);
        act(&Sealer { data: &self.data, fingerprints: &self.fingerprints, passphrase })
    }

    /// Model lists fetched so far.
    pub fn discovered(&self) -> Discovered {
        self.discovered.lock().clone()
    }

    /// Keeps model lists that are younger than those known of the same address; [`Gateway::reload`] makes them count.
    pub fn learn_models(&self, lists: BTreeMap<String, DiscoveredList>) -> Discovered {
        let mut discovered = self.discovered.lock();
        for (id, list) in lists {
            let known = discovered.lists.get(&id).filter(|known| known.base_url == list.base_url);
            if known.is_none_or(|known| known.fetched_wall_ms < list.fetched_wall_ms) {
                discovered.lists.insert(id, list);
            }
        }
        discovered.clone()
    }

    /// Deletes a conversation with everything that belongs to it; false when there is none.
    pub fn remove_session(&self, key: &SessionKey) -> bool {
        self.notes.forget(&key.tag());
        self.sessions.remove(key)
    }

    /// How many tokens each model counts for one of ours, by its reference, as far as learned.
    pub fn ratios(&self) -> Vec<(String, Ratio)> {
        let known = self.with_slots(|slots| self.live.lock().ratios.export(slots));
        let reference = |name: String| name.strip_prefix("model/").map(str::to_owned).unwrap_or(name);
        known.into_iter().map(|(name, ratio)| (reference(name), ratio)).collect()
    }

    /// Runs `look` with the interner, for stored state that is kept under names.
    pub fn with_slots<T>(&self, look: impl FnOnce(&mut Slots) -> T) -> T {
        look(&mut self.slots.lock())
    }
}
