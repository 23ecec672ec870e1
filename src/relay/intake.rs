//! What is settled about a request before a worker is needed: what its model string means. On the reader's thread, so
//! nothing here may wait for an upstream or for the disk.
use std::sync::Arc;

use super::gateway::Gateway;
use super::turn::Request;
use crate::catalog::load::Snapshot;
use crate::catalog::names::Resolution;
use crate::route::plan::Ask;
use crate::route::terminal;

/// A request that is understood.
pub struct Prepared {
    pub request: Request,
    /// The one that the request uses from now to its end.
    pub snapshot: Arc<Snapshot>,
    pub ask: Ask,
    pub resolution: Resolution,
    /// The model string, or the list, as it was asked for.
    pub requested: Arc<str>,
    /// `x-freeway-route`.
    pub route: Arc<str>,
}

impl Prepared {
    /// Whether it can be answered only by calling somebody.
    pub fn needs_upstream(&self) -> bool {
        !terminal::is_unmatched(&self.resolution)
    }
}

/// Finds out what `request` means.
pub fn prepare(gateway: &Gateway, request: Request) -> Prepared {
    let snapshot = gateway.snapshot();
    let ask = request.operation.ask();
    let (model, models) = request.operation.asked();
    let (names, catalog, settings) = (&snapshot.names, &snapshot.catalog, &snapshot.settings);
    let (requested, resolution) = if models.is_empty() {
        (model.into(), names.resolve(catalog, settings, model, ask.kind))
    } else {
        (models.join(", ").into(), names.resolve_list(catalog, settings, models, ask.kind))
    };
    let route = resolution.route.as_str().into();
    Prepared { request, snapshot, ask, resolution, requested, route }
}
