//! What `serve` does about an empty data folder or a damaged database: it looks for a backup. Whatever comes of it, the
//! gateway serves, and the owner is told.
use std::io;
use std::path::PathBuf;

use crate::backup::archive::Fault;
use crate::backup::{self, Plan, Restored};
use crate::base::clock;
use crate::catalog::env::{self, Paths, Variables};
use crate::catalog::{Issue, IssueLevel, load};
use crate::store::{self, Lost};
use crate::upstream::client::{Client, ClientConfig};

/// Backups that are tried, the newest first.
const TRIED_MAX: usize = 10;

/// Finishes a restoration that a power cut ended in the middle. Nobody else may have the folder meanwhile.
///
/// # Errors
/// Says what is in the way. The folder holds a mixture then, and must not be used.
pub fn finish_restoring(data: &std::path::Path) -> Result<(), String> {
    if !backup::is_unfinished(data) {
        return Ok(());
    }
    let _claim = store::claim(data)?;
    backup::finish_restoring(data).map_err(|error| {
        format!("a restoration that was cut off cannot be finished: {}: {error}", data.display())
    })
}

/// Puts back from the newest backup that opens what was lost; `begins` is called when it comes to that. `None` where
/// backups are off or there was never one.
pub fn rescue(process: &Variables, paths: &Paths, lost: Lost, begins: &dyn Fn()) -> Option<Issue> {
    // Without a database, but with keys, somebody is at work here.
    if lost == Lost::Everything && !backup::is_empty(&paths.data) {
        return None;
    }
    let variables = env::variables(process, &paths.env_file);
    // A configuration that refuses is told by the load.
    let settings = load::settings(&paths.config, &variables).ok()?;
    let plan = Plan::new(&settings.backup, load::backup_key(&variables).as_ref(), paths)?;
    begins();
    let (level, message) = match plan.and_then(|plan| from_backup(&plan, &variables, paths, lost)) {
        Ok(None) => return None,
        Ok(Some(message)) => (IssueLevel::Warning, message),
        Err(error) => (IssueLevel::Warning, format!("nothing could be restored: {error}")),
    };
    let what = match lost {
        Lost::Everything => "the data folder was empty",
        Lost::Database => "the database was damaged",
    };
    Some(Issue { file: "backup".into(), provider: None, level, message: format!("{what}; {message}") })
}

fn from_backup(
    plan: &Plan,
    variables: &Variables,
    paths: &Paths,
    lost: Lost,
) -> Result<Option<String>, String> {
    let client = Client::new(ClientConfig::from_variables(variables))?;
    let mut problems = Vec::new();
    for name in plan.target.names(&client)?.into_iter().take(TRIED_MAX) {
        let open = || -> Result<Restored, Fault> {
            let from =
                plan.target.open(&client, &name).map_err(|error| Fault::Io(io::Error::other(error)))?;
            let (key, now_ms) = (plan.key.expose(), clock::now().wall_ms);
            match lost {
                Lost::Everything => backup::restore(from, key, &paths.data, now_ms),
                Lost::Database => backup::restore_database(from, key, &paths.data),
            }
        };
        match open() {
            Ok(restored) => {
                let place = PathBuf::from(plan.target.shown()).join(&name);
                return Ok(Some(format!("it was restored from {} of {}", place.display(), restored.date())));
            }
            Err(fault) => problems.push(format!("{name}: {fault}")),
        }
    }
    match problems.split_first() {
        None => Ok(None),
        Some((newest, [])) => Err(newest.clone()),
        Some((newest, older)) => Err(format!("{newest}; and none of {} older ones opens", older.len())),
    }
}
