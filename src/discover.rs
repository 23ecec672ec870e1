//! Fetches the model lists of providers, in the background: what is declared serves meanwhile, what is found is kept on
//! disk and merged into the next snapshot.
use std::collections::BTreeMap;

use crate::base::clock::{self, Now};
use crate::base::text::human_duration;
use crate::catalog::discovery::{self, Discovered, DiscoveredList};
use crate::catalog::load::{self, Snapshot};
use crate::catalog::provider::Provider;
use crate::relay::gateway::Gateway;
use crate::upstream::probe;

/// A provider whose list could not be fetched is asked again after this.
const RETRY_MS: u64 = 10 * 60_000;

/// Whether any list is missing or old.
pub fn is_due(snapshot: &Snapshot, discovered: &Discovered, now: Now) -> bool {
    due(snapshot, discovered, now).next().is_some()
}

/// Providers whose list is missing or old.
fn due<'s>(
    snapshot: &'s Snapshot,
    discovered: &'s Discovered,
    now: Now,
) -> impl Iterator<Item = &'s Provider> {
    let settings = &snapshot.settings.discovery;
    let providers = snapshot.catalog.providers.iter().filter(|_| settings.enabled);
    providers.filter(move |provider| discovery::is_due(provider, discovered, settings.ttl_ms, now))
}

/// Fetches what is due, one provider after the other, and puts it to use.
pub fn run(gateway: &Gateway) {
    let snapshot = gateway.snapshot();
    let known = gateway.discovered();
    let now = clock::now();
    let mut fetched = BTreeMap::new();
    for provider in due(&snapshot, &known, now) {
        let list = match probe::fetch_models(&gateway.client, provider) {
            Ok(probe::Fetched { models, .. }) => {
                log::info!("{} lists {} models", provider.id, models.len());
                DiscoveredList { fetched_wall_ms: now.wall_ms, base_url: provider.base_url.clone(), models }
            }
            Err(error) => {
                let error = snapshot.redactor.redact(&error).into_owned();
                log::warn!(
                    "{}: its model list could not be fetched: {error}; tried again in {}",
                    provider.id,
                    human_duration(RETRY_MS)
                );
                again_later(&known, provider, snapshot.settings.discovery.ttl_ms, now)
            }
        };
        fetched.insert(provider.id.to_string(), list);
    }
    if fetched.is_empty() {
        return;
    }
    let all = gateway.learn_models(fetched);
    if let Err(error) = load::write_discovered(&gateway.paths.data, &all) {
        log::warn!("fetched model lists cannot be kept: {error}");
    }
    if gateway.reload().is_err() {
        log::warn!("the configuration refuses; fetched models count once it is mended");
    }
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
