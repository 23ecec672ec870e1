//! The interner behind [`Slot`]: one number for one name, the same for as long as the process runs.
use std::collections::HashMap;
use std::sync::Arc;

use super::provider::Slot;

/// Names of providers, accounts, keys and models, each with its slot. Names are written `provider/<id>`,
/// `account/<provider>:<group>`, `key/<provider>:<fingerprint>` and `model/<provider>/<model>`, and stored state is
/// kept under them.
#[derive(Debug, Default)]
pub struct Slots {
    by_name: HashMap<Arc<str>, Slot>,
    names: Vec<Arc<str>>,
}

impl Slots {
    /// The slot of `name`, new or known.
    pub fn intern(&mut self, name: &str) -> Slot {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let slot = Slot(self.names.len() as u32);
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.by_name.insert(name, slot);
        slot
    }

    /// The name behind a slot that this interner handed out.
    pub fn name(&self, slot: Slot) -> &Arc<str> {
        &self.names[slot.0 as usize]
    }
}
