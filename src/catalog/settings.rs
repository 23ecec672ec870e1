//! The settings, checked and typed. Names, defaults and ranges stand in `catalog::table`; `catalog::config` reads them.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::client_key::{ClientKey, ClientLimits};
use super::clients;

/// Everything the owner can set, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    pub host: String,
    pub port: u16,
    pub strategy: Strategy,
    /// Attempts at different (provider, model) pairs.
    pub max_attempts: u32,
    /// First step of the bench after a bare 429.
    pub cooldown_ms: u64,
    /// Default for providers that set no `timeouts`.
    pub timeout_ms: u64,
    /// To the first data event of a stream; defaults to `timeout_ms`.
    pub stream_timeout_ms: Option<u64>,
    pub keys: Vec<Arc<ClientKey>>,
    /// Whether the file of client keys has a fault, so that there may have been more of them.
    pub keys_lost: bool,
    pub admin_key: Option<AdminKey>,
    pub cors_origins: Vec<String>,
    /// Further names by which clients reach this gateway, in lower case.
    pub hosts: Vec<String>,
    /// Proxies that are believed about the client's address.
    pub trusted_proxies: Vec<IpAddr>,
    /// Another name for a model string.
    pub aliases: BTreeMap<String, String>,
    /// A named order of model strings with an optional strategy.
    pub profiles: BTreeMap<String, Profile>,
    /// The profile that `auto` stands for.
    pub active_profile: Option<String>,
    /// Whether models that cost money may be used.
    pub allow_paid: bool,
    pub server: ServerSettings,
    pub failover: FailoverSettings,
    pub stream: StreamSettings,
    pub discovery: DiscoverySettings,
    pub history: HistorySettings,
    pub semantic: SemanticSettings,
    pub context: ContextSettings,
    pub max_messages: usize,
    pub guard: GuardSettings,
    /// Time between passes over all provider keys; `None` when they are made on demand only.
    pub key_health_ms: Option<u64>,
    pub cache: CacheSettings,
    pub sessions: SessionSettings,
    /// A conversation keeps its model until it was not used for this long; 0 never.
    pub sticky_ms: u64,
    /// Whether a model that goes on with another's conversation is told so.
    pub handoff: bool,
    pub log: LogSettings,
    pub backup: BackupSettings,
}

/// `backup.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupSettings {
    /// A folder or a web address; it may hold credentials. `None` is off.
    pub target: Option<String>,
    /// Between automatic backups.
    pub every_ms: u64,
    /// How many stay.
    pub keep: usize,
    /// Whether they hold conversations.
    pub sessions: bool,
}

/// How requests are kept within bounds, and looked through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardSettings {
    /// What each client key may have, where its own rules say nothing.
    pub per_key: ClientLimits,
    /// What each address may have; loopback too, but only of what the file says.
    pub per_address: ClientLimits,
    /// In place of `per_address` where that says nothing, for addresses other than loopback.
    pub per_stranger: ClientLimits,
    pub scan: ScanSettings,
}

/// What prompts are looked through for, and what is done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanSettings {
    pub mode: ScanMode,
    pub secrets: bool,
    /// Personal data.
    pub pii: bool,
    pub injection: bool,
}

/// What is done about findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanMode {
    /// They are shown.
    #[default]
    Flag,
    /// They are shown, and a request with a grave one is refused.
    Block,
    /// Nothing is looked through.
    Off,
}

/// In which order candidates are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    Priority,
    RoundRobin,
    LeastUsed,
    Fastest,
}

impl Strategy {
    /// Every strategy with its name in files, headers and `auto:<strategy>`.
    pub const NAMES: [(&'static str, Strategy); 4] = [
        ("priority", Strategy::Priority),
        ("round-robin", Strategy::RoundRobin),
        ("least-used", Strategy::LeastUsed),
        ("fastest", Strategy::Fastest),
    ];

    /// The strategy of a name, in any case.
    pub fn by_name(name: &str) -> Option<Strategy> {
        Strategy::NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, strategy)| *strategy)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Strategy::NAMES.iter().find(|(_, known)| *known == self).map_or("priority", |(name, _)| name)
    }
}

impl Settings {
    /// Whether other machines can call, so that there has to be a client key.
    pub fn needs_keys(&self) -> bool {
        !is_loopback(&self.host)
    }

    /// Whether a gateway of these settings serves as one of the others would; what differs counts from its next start.
    pub fn serves_as(&self, other: &Settings) -> bool {
        // The largest body is looked up with each request.
        let server = ServerSettings { body_bytes: self.server.body_bytes, ..other.server.clone() };
        (&self.host, self.port, &self.server) == (&other.host, other.port, &server)
    }

    /// Why these settings must not listen: open to everybody, but beyond this machine, or where keys were meant to be.
    pub fn bind_problem(&self) -> Option<String> {
        let open = self.keys.is_empty();
        if open && self.keys_lost {
            return Some(format!(
                "{} has a fault, so that no client key is known and nobody could be kept out; mend it, or move it away \
                 to begin without",
                clients::FILE
            ));
        }
        (open && self.needs_keys()).then(|| {
            format!(
                "host {} can be reached from other machines, but no client key is set; run `freeway init --lan`, or set \
                 FREEWAY_KEYS to a key that your apps present, or listen on 127.0.0.1",
                self.host
            )
        })
    }
}

/// Whether a listening address can only be reached from this machine.
pub fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    }
}

/// The key of the owner, of which only the hash is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminKey {
    pub sha256: [u8; 32],
}

impl AdminKey {
    /// Of its text.
    pub fn new(key: &str) -> AdminKey {
        AdminKey { sha256: Sha256::digest(key).into() }
    }
}

/// A named order of model strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub models: Vec<String>,
    pub strategy: Option<Strategy>,
}

/// `server.*`: how many, how large, how long.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// Upstream calls at once.
    pub workers: usize,
    /// Admitted requests that wait for a worker's place.
    pub queue: usize,
    /// Connections at once; `None` derives it from the descriptor limit.
    pub connections: Option<usize>,
    /// Connections of one address at once.
    pub per_address: usize,
    pub body_bytes: usize,
    /// Request bodies in memory at once, all clients together.
    pub bodies_in_flight_bytes: usize,
    pub head_ms: u64,
    pub body_ms: u64,
    /// A kept-alive connection without a request is closed after this.
    pub idle_ms: u64,
    /// The longest that one write to a client may take in all.
    pub write_ms: u64,
    /// How long a stop waits for answers in flight.
    pub stop_ms: u64,
}

/// `failover.*`.
#[derive(Clone, Debug)]
pub struct FailoverSettings {
    /// From admission to the commit.
    pub budget_ms: u64,
    /// First step and cap of each kind of bench, in milliseconds, by the cause's name.
    pub bench: BTreeMap<String, BenchSteps>,
}

/// How long benches of one kind are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchSteps {
    pub first_ms: u64,
    pub cap_ms: u64,
}

/// `stream.*`.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// After this headers and keep-alive comments may go out before the first delta.
    pub hold_ms: u64,
    /// Between keep-alive comments.
    pub keep_alive_ms: u64,
}

/// `context.*`.
#[derive(Clone, Debug)]
pub struct ContextSettings {
    /// Whether conversations are made to fit.
    pub enabled: bool,
    /// Whether models that take a request whole come first.
    pub prefer_fit: bool,
    /// Turns that stay when some go.
    pub max_turns: usize,
    /// Tokens kept free for an answer that the client does not limit.
    pub reserve_output: u64,
    /// The model string of summaries.
    pub compact_model: String,
    /// Fill of a window at which a summary is made ahead of need.
    pub auto_compact_at: f64,
}

/// `discovery.*`.
#[derive(Clone, Debug)]
pub struct DiscoverySettings {
    pub enabled: bool,
    /// How long a fetched model list counts as fresh.
    pub ttl_ms: u64,
}

/// `cache.*`, without the semantic tier.
#[derive(Clone, Debug)]
pub struct CacheSettings {
    pub mode: CacheMode,
    pub scope: CacheScope,
    /// How long an answer is good.
    pub ttl_ms: u64,
    pub max_entries: usize,
    /// All answers together, and the largest one.
    pub max_bytes: u64,
    pub max_entry_bytes: usize,
    /// Further top-level request fields that do not change an answer.
    pub ignore: Vec<String>,
}

/// Which answers are kept without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    Off,
    /// Of requests whose answer can be expected to be the same twice.
    Safe,
    Aggressive,
}

impl CacheMode {
    /// Its word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            CacheMode::Off => "off",
            CacheMode::Safe => "safe",
            CacheMode::Aggressive => "aggressive",
        }
    }
}

/// Who shares answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheScope {
    Shared,
    /// Each client key has its own.
    Key,
}

impl CacheScope {
    /// Its word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            CacheScope::Shared => "shared",
            CacheScope::Key => "key",
        }
    }
}

/// `sessions.*`: how much is kept of stored conversations.
#[derive(Clone, Copy, Debug)]
pub struct SessionSettings {
    /// After the last turn.
    pub days: u64,
    pub max: usize,
    /// Text of all of them together.
    pub bytes: usize,
}

impl Default for SessionSettings {
    fn default() -> SessionSettings {
        SessionSettings { days: 90, max: 1_000, bytes: 64 << 20 }
    }
}

/// `history.*`: how much of finished requests is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistorySettings {
    pub days: u64,
    pub mib: u64,
}

/// `cache.semantic.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct SemanticSettings {
    pub enabled: bool,
    /// The least cosine.
    pub threshold: f64,
    /// A model string.
    pub model: String,
    pub max_entries: usize,
}

/// `log.*`.
#[derive(Clone, Debug)]
pub struct LogSettings {
    pub level: LogLevel,
    /// Whether the beginnings of what was said last are kept in memory for the page.
    pub previews: bool,
}

/// The least important lines that are still logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}
