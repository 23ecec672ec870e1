//! Fetches the model lists of providers, in the background: what is declared serves meanwhile, what is found is kept on
//! disk and merged into the next snapshot.
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, bounded};

use crate::base::clock::{self, Now};
use crate::base::text::human_duration;
use crate::catalog::discovery::{self, Discovered, DiscoveredList, DiscoveredModel};
use crate::catalog::load::{self, Snapshot};
use crate::catalog::provider::Provider;
use crate::relay::gateway::Gateway;
use crate::upstream::examine::Lab;

/// A provider whose list could not be fetched is asked again after this.
const RETRY_MS: u64 = 10 * 60_000;

/// Which lists to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that are missing or old.
    Due,
    All,
}

/// Begins to fetch model lists on a thread of its own, unless that is going on already or nothing is to be fetched.
/// Whoever wants to wait for the end waits until the channel closes.
pub fn start(gateway: &Arc<Gateway>, which: Which) -> Option<Receiver<Never>> {
    let snapshot = gateway.snapshot();
    if wanted(&snapshot, &gateway.discovered(), which, clock::now()).next().is_none()
        || gateway.discovering.swap(true, Ordering::AcqRel)
    {
        return None;
    }
    let (ends, ended) = bounded(0);
    let gateway_of_thread = Arc::clone(gateway);
    let run = move || {
        let _ends = ends;
        if catch_unwind(AssertUnwindSafe(|| run(&gateway_of_thread, which))).is_err() {
            log::error!("fetching model lists failed; it is tried again");
        }
        gateway_of_thread.discovering.store(false, Ordering::Release);
    };
    if std::thread::Builder::new().name("discover".into()).spawn(run).is_err() {
        gateway.discovering.store(false, Ordering::Release);
        return None;
    }
    Some(ended)
}

/// What is never sent over a channel that only tells its end.
pub type Never = std::convert::Infallible;

/// Providers whose list is to be fetched.
fn wanted<'s>(
    snapshot: &'s Snapshot,
    discovered: &'s Discovered,
    which: Which,
    now: Now,
) -> impl Iterator<Item = &'s Provider> {
    let settings = &snapshot.settings.discovery;
    let ttl_ms = if which == Which::All { 0 } else { settings.ttl_ms };
    let providers = snapshot.catalog.providers.iter().filter(|_| settings.enabled);
    providers.filter(move |provider| discovery::is_due(provider, discovered, ttl_ms, now))
}

/// Fetches lists, one provider after the other, and puts them to use.
fn run(gateway: &Gateway, which: Which) {
    let snapshot = gateway.snapshot();
    let known = gateway.discovered();
    let now = clock::now();
    let (mut lists, mut any) = (BTreeMap::new(), false);
    // What was wrong with a provider that is gone is of no interest.
    gateway.unlisted.lock().retain(|id, _| snapshot.catalog.providers.iter().any(|known| known.id == *id));
    for provider in wanted(&snapshot, &known, which, now) {
        let list = match fetch(gateway, &snapshot, provider) {
            Ok(models) => {
                log::info!("{} lists {} models", provider.id, models.len());
                any = true;
                gateway.unlisted.lock().remove(&provider.id);
                DiscoveredList { fetched_wall_ms: now.wall_ms, base_url: provider.base_url.clone(), models }
            }
            Err(error) => {
                log::warn!(
                    "{}: its model list could not be fetched: {error}; tried again in {}",
                    provider.id,
                    human_duration(RETRY_MS)
                );
                let error = snapshot.redactor.redact(&error).into_owned();
                gateway.unlisted.lock().insert(Arc::clone(&provider.id), error);
                again_later(&known, provider, snapshot.settings.discovery.ttl_ms, now)
            }
        };
        lists.insert(provider.id.to_string(), list);
    }
    let all = gateway.learn_models(lists);
    if !any {
        return;
    }
    if let Err(error) = load::write_discovered(&gateway.data, &all) {
        log::warn!("fetched model lists cannot be kept: {error}");
    }
    if gateway.reload().is_err() {
        log::warn!("the configuration refuses; fetched models count once it is mended");
    }
}

/// Fetches a list with the first key that is let in. What is found out about the keys is kept for the next pass over all
/// of them: the boot costs one request per key, and not two.
fn fetch(
    gateway: &Gateway,
    snapshot: &Snapshot,
    provider: &Provider,
) -> Result<Vec<DiscoveredModel>, String> {
    if let Some(error) = provider.config_error() {
        return Err(error);
    }
    let mut failed = String::new();
    for key in &provider.keys {
        let lab = Lab { client: &gateway.client, redactor: &snapshot.redactor, provider, key };
        let mut found = lab.ask();
        let models = std::mem::take(&mut found.discovered);
        let listed = if found.errors.is_empty() { Ok(models) } else { Err(found.errors.join("; ")) };
        found.models.clear();
        gateway.examined.lock().insert(key.slot, found);
        match listed {
            Ok(models) => return Ok(models),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// What was known before, dated so that it is due again after [`RETRY_MS`].
fn again_later(known: &Discovered, provider: &Provider, ttl_ms: u64, now: Now) -> DiscoveredList {
    let models = match known.lists.get(&*provider.id) {
        Some(list) if list.base_url == provider.base_url => list.models.clone(),
        _ => Vec::new(),
    };
    let fetched_wall_ms = now.wall_ms.saturating_sub(ttl_ms.saturating_sub(RETRY_MS.min(ttl_ms)));
    DiscoveredList { fetched_wall_ms, base_url: provider.base_url.clone(), models }
}
