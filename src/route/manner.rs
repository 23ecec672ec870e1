//! How a request is to be routed, besides what it needs: in whose order, and how readily.
use crate::catalog::names::{How, Resolution};
use crate::catalog::settings::Strategy;

/// How a request is to be routed, besides what it needs.
#[derive(Clone, Debug)]
pub struct Manner<'a> {
    /// The resolution's, for its round.
    pub route: &'a str,
    pub strategy: Strategy,
    /// Whether the order is the client's or the owner's own.
    pub keep_order: bool,
    /// One exact model was asked for.
    pub pinned: bool,
    /// Nobody is asked who has used more than this fraction of a limit; 1 asks everybody.
    pub fill_max: f64,
}

impl<'a> Manner<'a> {
    /// Of a resolution, with the strategy that the request itself `asked` for, else the model string, else the `usual`.
    pub fn of(resolution: &'a Resolution, usual: Strategy, asked: Option<Strategy>) -> Manner<'a> {
        Manner {
            route: &resolution.route,
            strategy: asked.or(resolution.strategy).unwrap_or(usual),
            keep_order: resolution.keep_order,
            pinned: resolution.how == How::Pin,
            fill_max: 1.0,
        }
    }

    /// The strategy that decides.
    pub(super) fn strategy(&self) -> Strategy {
        if self.keep_order { Strategy::Priority } else { self.strategy }
    }
}
