//! Fetches the model lists of providers, in the background: what is declared serves meanwhile, what is found is kept on
//! disk and merged into the next snapshot.
use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::clock::{self, Now};
use crate::base::text::human_duration;
use crate::catalog::discovery::{self, Discovered, DiscoveredList};
use crate::catalog::load::{self, Snapshot};
use crate::catalog::provider::Provider;
use crate::relay::gateway::Gateway;
use crate::upstream::client::{Accept, Call, Client, Method};
use crate::upstream::cut::Cut;
use crate::upstream::watch::Watch;

/// Longest model list that is read; the largest ones known have about a megabyte.
const LIST_BYTES_MAX: usize = 8 << 20;
/// For a whole list.
const LIST_WAIT: Duration = Duration::from_secs(20);
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
    let ttl_ms = snapshot.settings.discovery.ttl_ms;
    let enabled = snapshot.settings.discovery.enabled;
    snapshot.catalog.providers.iter().filter(move |provider| {
        let asks = enabled && provider.enabled && provider.configured() && provider.models_endpoint.is_some();
        asks && discovered.lists.get(&*provider.id).is_none_or(|list| {
            // A clock that was set back must not make a list fresh for ever.
            let age_ms = now.wall_ms.abs_diff(list.fetched_wall_ms);
            list.base_url != provider.base_url || age_ms >= ttl_ms
        })
    })
}

/// Fetches what is due, one provider after the other, and puts it to use.
pub fn run(gateway: &Gateway) {
    let snapshot = gateway.snapshot();
    let known = gateway.discovered();
    let now = clock::now();
    let mut fetched = BTreeMap::new();
    for provider in due(&snapshot, &known, now) {
        let list = match fetch(&gateway.client, provider, now) {
            Ok(list) => {
                log::info!("{} lists {} models", provider.id, list.models.len());
                list
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

/// Fetches one provider's list, with the first key that is let in.
pub fn fetch(client: &Client, provider: &Provider, now: Now) -> Result<DiscoveredList, String> {
    let path = provider.models_endpoint.as_deref().ok_or("its file switches discovery off")?;
    let mut error = "it has no key".to_owned();
    for key in &provider.keys {
        let watch = Watch::new(clock::instant() + LIST_WAIT);
        let call = Call {
            provider,
            key,
            method: Method::Get,
            path,
            body: &[],
            accept: Accept::Json,
            cut: &Cut::new(),
            watch: &watch,
        };
        let mut reply = client.send(&call).map_err(|fault| fault.message)?;
        if reply.status != 200 {
            error = format!("it answered with status {}", reply.status);
            continue;
        }
        let body = reply.body.read_all(LIST_BYTES_MAX).map_err(|fault| fault.message)?;
        let models = discovery::parse_models(provider, &body)?;
        return Ok(DiscoveredList {
            fetched_wall_ms: now.wall_ms,
            base_url: provider.base_url.clone(),
            models,
        });
    }
    Err(error)
}
