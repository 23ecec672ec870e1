//! The log: one line to standard error for each event, with its level in front as journald reads it. Times and process
//! ids are added by whoever collects the lines.
use std::io::Write;
use std::sync::{Arc, OnceLock, Weak};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::catalog::load::Snapshot;
use crate::catalog::settings::LogLevel;
use crate::catalog::{Issue, IssueLevel};
use crate::relay::gateway::Gateway;

/// Begins to write lines of `level` and above. Later calls change the level.
pub fn start(level: LogLevel) {
    // An error means that the logger is in place already, which is what is wanted.
    let _ =
        log::set_boxed_logger(Box::new(Stderr { for_journal: std::env::var_os("JOURNAL_STREAM").is_some() }));
    log::set_max_level(match level {
        LogLevel::Error => LevelFilter::Error,
        LogLevel::Warn => LevelFilter::Warn,
        LogLevel::Info => LevelFilter::Info,
        LogLevel::Debug => LevelFilter::Debug,
    });
}

/// Writes a line to standard output, for people and for programs that started us.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // A reader that went away is no reason to stop.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Writes to standard error whatever the level.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Logs what is wrong with the files, each issue at its own level.
pub fn issues(issues: &[Issue]) {
    for issue in issues {
        let level = match issue.level {
            IssueLevel::Error => Level::Error,
            IssueLevel::Warning => Level::Warn,
        };
        log::log!(level, "{}: {}", issue.file, issue.message);
    }
}

/// Logs what a load found: its issues, and how many providers can be called.
pub fn loaded(snapshot: &Snapshot) {
    issues(&snapshot.issues);
    let providers = &snapshot.catalog.providers;
    let ready = providers.iter().filter(|provider| provider.enabled && provider.configured()).count();
    if ready == 0 {
        log::warn!(
            "no provider has a key yet: put one into .env (`freeway init` makes one to fill in), or try `freeway serve --demo`"
        );
    } else {
        log::info!("{ready} of {} providers are configured", providers.len());
    }
}

/// Whose redactor looks through every line.
static KEEPER: OnceLock<Weak<Gateway>> = OnceLock::new();

/// From now on no line holds a credential that `gateway` knows, whoever writes it.
pub fn redact_by(gateway: &Arc<Gateway>) {
    // An error means that there is one already, of this very process.
    let _ = KEEPER.set(Arc::downgrade(gateway));
}

struct Stderr {
    /// Lines go to the journal, which says so by a variable and knows the `<n>` of sd-daemon(3).
    for_journal: bool,
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries speak of what is ordinary for us.
        metadata.target().starts_with("freeway")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (number, word) = match record.level() {
            Level::Error => (3, "error"),
            Level::Warn => (4, "warning"),
            Level::Info => (6, "info"),
            Level::Debug | Level::Trace => (7, "debug"),
        };
        let text = record.args().to_string().replace(['\n', '\r'], " ");
        let snapshot = KEEPER.get().and_then(Weak::upgrade).map(|gateway| gateway.snapshot());
        let text =
            snapshot.as_ref().map_or_else(|| text.as_str().into(), |known| known.redactor.redact(&text));
        match self.for_journal {
            true => complain(&format!("<{number}>{word}: {text}")),
            false => complain(&format!("{word}: {text}")),
        }
    }

    fn flush(&self) {}
}
