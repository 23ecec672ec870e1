//! The settings: one table gives each its name, default, range and text; validation, the README and `config check`
//! come from it.
use std::collections::BTreeMap;

use crate::base::text::Secret;

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
    pub keys: Vec<ClientKey>,
    pub admin_key: Option<Secret>,
    pub cors_origins: Vec<String>,
    /// Further host names that clients may use.
    pub hosts: Vec<String>,
    pub trusted_proxies: Vec<std::net::IpAddr>,
    /// Another name for a model string.
    pub aliases: BTreeMap<String, String>,
    /// A named order of model strings with an optional strategy.
    pub profiles: BTreeMap<String, Profile>,
    pub server: ServerSettings,
    pub failover: FailoverSettings,
    pub stream: StreamSettings,
    pub discovery: DiscoverySettings,
    /// `context.preferFit`.
    pub prefer_fit: bool,
    pub max_messages: usize,
    pub log: LogSettings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    Priority,
    RoundRobin,
    LeastUsed,
    Fastest,
}

/// A key that an app presents.
#[derive(Clone, Debug)]
pub struct ClientKey {
    /// Shown in logs; `key-1`, `key-2`, ... when none was given.
    pub name: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub models: Vec<String>,
    pub strategy: Option<Strategy>,
}

#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Upstream calls at once.
    pub workers: usize,
    /// Admitted requests that wait for a worker.
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

#[derive(Clone, Debug)]
pub struct FailoverSettings {
    /// From admission to the commit.
    pub budget_ms: u64,
    /// First step and cap of each kind of bench, in milliseconds, by the cause's name.
    pub bench: BTreeMap<String, BenchSteps>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchSteps {
    pub first_ms: u64,
    pub cap_ms: u64,
}

#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// After this headers and keep-alive comments may go out before the first delta.
    pub hold_ms: u64,
    /// Between keep-alive comments.
    pub keep_alive_ms: u64,
}

#[derive(Clone, Debug)]
pub struct DiscoverySettings {
    pub enabled: bool,
    /// How long a fetched model list counts as fresh.
    pub ttl_ms: u64,
}

#[derive(Clone, Debug)]
pub struct LogSettings {
    pub level: LogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}
