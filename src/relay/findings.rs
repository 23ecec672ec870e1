//! What the scan found of late: redacted, in memory only, for the alerts.
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::guard::scan::Finding;

/// Requests with findings that are remembered.
const FOUND_MAX: usize = 100;

/// One request in which something was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub request_id: String,
    pub client: Option<Arc<str>>,
    /// Whether it was refused for it.
    pub refused: bool,
    pub findings: Vec<Finding>,
}

/// Requests with findings, newest last.
#[derive(Debug, Default)]
pub struct FoundLog(Mutex<VecDeque<Arc<Found>>>);

impl FoundLog {
    /// Keeps one, and forgets the oldest when there are too many.
    pub fn push(&self, found: Found) {
        let mut log = self.0.lock();
        if log.len() == FOUND_MAX {
            log.pop_front();
        }
        log.push_back(Arc::new(found));
    }

    /// All that are remembered, newest first.
    pub fn newest(&self) -> Vec<Arc<Found>> {
        self.0.lock().iter().rev().map(Arc::clone).collect()
    }
}

/// A finding as the API has it.
pub fn view(finding: &Finding) -> Value {
    json!({
        "category": finding.rule.category.name(),
        "rule": finding.rule.name,
        "path": finding.path,
        "sample": finding.sample,
        "severity": finding.rule.severity.name(),
    })
}
