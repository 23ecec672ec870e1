//! `data/backups.json`: what became of the last backups, so that a restart knows when the next one is due, the owner sees
//! whether they work, and old ones can be removed where nothing can be listed.
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::catalog::boxfile;
use crate::catalog::env::read_bounded;

/// The name of the file in the data folder.
pub const FILE: &str = "backups.json";
const FILE_BYTES_MAX: u64 = 1 << 20;
/// A failed backup is tried again after this, the clock permitting.
const RETRY_MS: u64 = 30 * 60_000;

/// What is known of the backups of this box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// Where they are, as it may be shown.
    pub target: Option<String>,
    /// Those that are kept there, oldest first.
    pub kept: Vec<Kept>,
    /// Of the content of the newest one.
    pub digest: Option<String>,
    /// Since the last success.
    pub failed: Option<Failed>,
    /// When the content was last found to be that of the newest backup. Not written: looking again costs little.
    #[serde(skip)]
    pub looked_ms: Option<u64>,
}

/// One backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub name: String,
    /// Milliseconds since 1970.
    pub at: u64,
    pub bytes: u64,
}

/// An attempt that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Milliseconds since 1970.
    pub at: u64,
    pub error: String,
}

impl Record {
    /// That of the data folder. One that makes no sense is as good as none: then a backup is made.
    pub fn read(data: &Path) -> Record {
        let text = read_bounded(&data.join(FILE), FILE_BYTES_MAX).ok().flatten();
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Writes it.
    pub fn write(&self, data: &Path) {
        let Ok(text) = serde_json::to_vec_pretty(self) else { return };
        if let Err(error) = boxfile::write_private(&data.join(FILE), &text) {
            log::warn!("{FILE} cannot be written: {error}; after a restart a backup is made anew");
        }
    }

    /// The newest backup.
    pub fn last(&self) -> Option<&Kept> {
        self.kept.last()
    }

    /// What counts for this target: another one holds nothing yet.
    pub fn of_target(self, target: &str) -> Record {
        if self.target.as_deref() == Some(target) {
            return self;
        }
        Record { target: Some(target.to_owned()), failed: self.failed, ..Record::default() }
    }

    /// Whether it is time for the next automatic one. A clock that was set back does not put it off.
    pub fn is_due(&self, every_ms: u64, now_ms: u64) -> bool {
        let passed = |since: Option<u64>, ms: u64| since.is_none_or(|since| now_ms.abs_diff(since) >= ms);
        passed(self.last().map(|last| last.at), every_ms)
            && passed(self.looked_ms, every_ms)
            && passed(self.failed.as_ref().map(|failed| failed.at), RETRY_MS.min(every_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;
    const NOW: u64 = 1_796_000_000_000;

    #[test]
    fn a_backup_is_due_daily_and_sooner_after_a_failure() {
        let kept = |at| vec![Kept { name: "freeway-x.backup".into(), at, bytes: 9 }];
        let failed = |at| Some(Failed { at, error: "no".into() });
        let check = |record: Record, due: bool| assert_eq!(record.is_due(DAY, NOW), due, "{record:?}");
        check(Record::default(), true);
        check(Record { kept: kept(NOW - DAY + 1), ..Record::default() }, false);
        check(Record { kept: kept(NOW - DAY), ..Record::default() }, true);
        check(Record { kept: kept(NOW + 2 * DAY), ..Record::default() }, true);
        check(Record { kept: kept(NOW - DAY), looked_ms: Some(NOW - 1), ..Record::default() }, false);
        check(Record { failed: failed(NOW - 60_000), ..Record::default() }, false);
        check(Record { failed: failed(NOW - RETRY_MS), ..Record::default() }, true);
        check(Record { kept: kept(NOW - 9 * DAY), failed: failed(NOW - 60_000), ..Record::default() }, false);
    }

    #[test]
    fn another_target_holds_nothing_yet() {
        let kept = vec![Kept { name: "freeway-x.backup".into(), at: NOW, bytes: 9 }];
        let record =
            Record { target: Some("/a".into()), kept, digest: Some("d".into()), ..Record::default() };
        assert_eq!(record.clone().of_target("/a"), record);
        let moved = record.of_target("/b");
        assert_eq!((moved.target.as_deref(), moved.last(), &moved.digest), (Some("/b"), None, &None));
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Record::read(folder.path()), Record::default());
        let kept = vec![Kept { name: "freeway-x.backup".into(), at: NOW, bytes: 9 }];
        let record = Record { target: Some("/a".into()), kept, ..Record::default() };
        record.write(folder.path());
        assert_eq!(Record::read(folder.path()), record);
        std::fs::write(folder.path().join(FILE), "{").expect("written");
        assert_eq!(Record::read(folder.path()), Record::default());
    }
}
