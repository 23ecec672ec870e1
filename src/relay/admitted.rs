//! A request's place among those of its caller: taken when it is whole, given back when it has ended, whatever happens.
use std::sync::Arc;

use super::gateway::Gateway;
use crate::base::clock;
use crate::catalog::client_key::ClientLimits;
use crate::guard::limiter::{Refused, Scope};

/// The place of one request; dropping it gives the place back.
pub struct Admitted {
    gateway: Arc<Gateway>,
    scopes: Vec<Scope>,
    /// What it was counted for.
    expected_tokens: u64,
    /// What it used beyond that.
    more_tokens: u64,
}

impl Admitted {
    /// Takes a place with each of `callers`; `None` when none of them is limited.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn enter(
        gateway: &Arc<Gateway>,
        callers: &[(Scope, ClientLimits)],
        tokens: u64,
    ) -> Result<Option<Admitted>, Refused> {
        if callers.is_empty() {
            return Ok(None);
        }
        gateway.limiter.lock().enter(callers, tokens, clock::now())?;
        Ok(Some(Admitted {
            gateway: Arc::clone(gateway),
            scopes: callers.iter().map(|(scope, _)| *scope).collect(),
            expected_tokens: tokens,
            more_tokens: 0,
        }))
    }

    /// Gives the place back; the request used `tokens` in the end.
    pub fn leave(mut self, tokens: u64) {
        self.more_tokens = tokens.saturating_sub(self.expected_tokens);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.gateway.limiter.lock().leave(self.scopes.iter().copied(), self.more_tokens, clock::now());
    }
}
