//! The one table of settings: name, shape, default, variables and text of each. Reading a configuration, `config
//! check`, `docs/settings.md` and `.env.example` all come from it. Pure.
use Shape::*;

/// What a setting may hold. Every shape also takes `null` when the default is `null`.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Flag,
    /// A whole number in a range, both ends included.
    Whole(u64, u64),
    /// A number in a range, both ends included.
    Number(f64, f64),
    /// A text that is not empty.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list of texts; a comma list in a variable.
    Texts,
    /// A list of IP addresses; a comma list in a variable.
    Addresses,
    /// A list of web origins; a comma list in a variable.
    Origins,
    /// A list of host names, each with a port or without; a comma list in a variable.
    Hosts,
    /// A credential: visible ASCII, never shown.
    Secret,
    /// Keys that apps present: texts or objects; a comma list in a variable.
    Keys,
    /// An object from name to text.
    TextMap,
    /// An object from name to a list of model strings or `{models, strategy}`.
    Profiles,
    /// An object from cause to `{firstMs, capMs}`.
    Bench,
    /// An object from name to a number of at least zero.
    NumberMap,
}

/// One setting.
#[derive(Debug)]
pub struct Row {
    /// Its path in `freeway.config.json`.
    pub name: &'static str,
    pub shape: Shape,
    /// JSON.
    pub default: &'static str,
    /// Variables that win over the file, first one set first.
    pub variables: &'static [&'static str],
    pub text: &'static str,
    /// False for what this version checks but does not use yet.
    pub used: bool,
}

/// Names of [`Strategy`](super::settings::Strategy).
pub const STRATEGIES: [&str; 4] = ["priority", "round-robin", "least-used", "fastest"];
/// Kinds of bench whose steps can be set.
pub const BENCH_CAUSES: [&str; 8] =
    ["auth", "credit", "forbidden", "rateLimit", "quota", "modelMissing", "unavailable", "noAnswer"];

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const MIB: u64 = 1 << 20;
/// Largest limit on requests or tokens.
pub const LIMIT_MAX: u64 = 1_000_000_000_000;

const fn row(name: &'static str, shape: Shape, default: &'static str, text: &'static str) -> Row {
    Row { name, shape, default, variables: &[], text, used: true }
}

const fn named(
    name: &'static str,
    variables: &'static [&'static str],
    shape: Shape,
    default: &'static str,
    text: &'static str,
) -> Row {
    Row { name, shape, default, variables, text, used: true }
}

/// A setting of the published contract whose feature this version does not have.
const fn later(name: &'static str, shape: Shape, default: &'static str, text: &'static str) -> Row {
    Row { name, shape, default, variables: &[], text, used: false }
}

/// Every setting there is.
pub static TABLE: &[Row] = &[
    // Where it listens, and who may call.
    named(
        "host",
        &["HOST", "FREEWAY_HOST"],
        Text,
        "\"127.0.0.1\"",
        "Address to listen on; `0.0.0.0` and `::` are all of them",
    ),
    named(
        "port",
        &["PORT", "FREEWAY_PORT"],
        Whole(0, 65_535),
        "8787",
        "Port to listen on; 0 takes a free one",
    ),
    named(
        "keys",
        &["FREEWAY_KEYS"],
        Keys,
        "[]",
        "Keys that apps present: texts, or `{name, key or sha256, models, strategy, limits, cache}`; without any, only this machine may call",
    ),
    named(
        "adminKey",
        &["FREEWAY_ADMIN_KEY"],
        Secret,
        "null",
        "Key with full access; once there is one, `/api` answers to it alone, but from anywhere",
    ),
    named(
        "corsOrigins",
        &["FREEWAY_CORS_ORIGINS"],
        Origins,
        "[]",
        "Browser origins that may call, such as `https://chat.example`; `*` is not taken",
    ),
    named(
        "hosts",
        &["FREEWAY_HOSTS"],
        Hosts,
        "[]",
        "Further host names by which clients reach this gateway, beside its addresses and the machine's own name",
    ),
    named(
        "trustedProxies",
        &["FREEWAY_TRUSTED_PROXIES"],
        Addresses,
        "[]",
        "Addresses of proxies that are believed about the client's address",
    ),
    // Routing.
    named(
        "strategy",
        &["FREEWAY_STRATEGY"],
        Word(&STRATEGIES),
        "\"priority\"",
        "Order in which candidates are tried",
    ),
    row("aliases", TextMap, "{}", "Other names for model strings"),
    row("profiles", Profiles, "{}", "Named orders of model strings: a list, or `{models, strategy}`"),
    row("activeProfile", Text, "null", "The profile that `auto` stands for"),
    row("allowPaid", Flag, "false", "Whether models that cost money may be used"),
    row("maxAttempts", Whole(1, 20), "3", "Different models tried for one request"),
    row("cooldownSeconds", Number(0.001, 86_400.0), "60", "First bench after a 429 that names no time"),
    row(
        "timeoutMs",
        Whole(1, HOUR_MS),
        "60000",
        "Wait for the first byte of an answer, and again for the rest of a JSON answer",
    ),
    row(
        "streamTimeoutMs",
        Whole(1, HOUR_MS),
        "null",
        "Wait for the first data event of a stream; null is `timeoutMs`",
    ),
    row(
        "failover.budgetMs",
        Whole(1, HOUR_MS),
        "180000",
        "Longest time from a request to the first byte of its answer",
    ),
    row(
        "failover.bench",
        Bench,
        "{}",
        "First step and cap of a kind of bench, such as `{\"rateLimit\": {\"firstMs\": 60000, \"capMs\": 480000}}`",
    ),
    row(
        "stream.holdMs",
        Whole(0, HOUR_MS),
        "15000",
        "After this a stream's headers and keep-alive comments may go out before its first token",
    ),
    row("stream.keepAliveMs", Whole(100, HOUR_MS), "15000", "Time between keep-alive comments"),
    row("discovery.enabled", Flag, "true", "Whether model lists are fetched from the providers"),
    row(
        "discovery.ttlMs",
        Whole(1_000, 365 * DAY_MS),
        "86400000",
        "How long a fetched model list counts as fresh",
    ),
    // The server.
    row("server.workers", Whole(1, 4_096), "64", "Upstream calls at once"),
    row(
        "server.queue",
        Whole(0, 65_536),
        "128",
        "Requests that wait for a worker; more are refused with 503",
    ),
    row(
        "server.connections",
        Whole(16, 1_000_000),
        "null",
        "Connections at once; null derives it from the descriptor limit",
    ),
    row(
        "server.perAddress",
        Whole(1, 1_000_000),
        "256",
        "Connections of one address at once (an IPv6 /64 counts as one)",
    ),
    row("server.bodyBytes", Whole(1_024, 256 * MIB), "8388608", "Largest request body"),
    row(
        "server.bodiesInFlightBytes",
        Whole(1_024, 4_096 * MIB),
        "33554432",
        "Request bodies in memory at once, all clients together",
    ),
    row("server.headMs", Whole(1, HOUR_MS), "15000", "Longest time for the head of a request"),
    row("server.bodyMs", Whole(1, HOUR_MS), "120000", "Longest time for the body of a request"),
    row(
        "server.idleMs",
        Whole(1, HOUR_MS),
        "75000",
        "A kept-alive connection without a request is closed after this",
    ),
    row("server.writeMs", Whole(1, HOUR_MS), "30000", "Longest time for one write to a client"),
    row("server.stopMs", Whole(0, HOUR_MS), "20000", "How long a stop waits for answers in flight"),
    named(
        "log.level",
        &["FREEWAY_LOG"],
        Word(&["error", "warn", "info", "debug"]),
        "\"info\"",
        "What is logged",
    ),
    row("log.previews", Flag, "true", "Whether the last prompts and answers are kept in memory for the page"),
    // Admission.
    row("guard.maxMessages", Whole(1, 100_000), "500", "Most messages in one request"),
    row("guard.maxBodyBytes", Whole(1_024, 256 * MIB), "null", "Older name of `server.bodyBytes`"),
    row(
        "guard.perKey.rpm",
        Whole(1, LIMIT_MAX),
        "null",
        "Requests in a minute of one client key; beyond loopback 120 unless set",
    ),
    row("guard.perKey.tpm", Whole(1, LIMIT_MAX), "null", "Tokens in a minute of one client key"),
    row("guard.perKey.rpd", Whole(1, LIMIT_MAX), "null", "Requests in a day of one client key"),
    row(
        "guard.perKey.concurrency",
        Whole(1, LIMIT_MAX),
        "null",
        "Requests at once of one client key; beyond loopback 8 unless set",
    ),
    row(
        "guard.perIp.rpm",
        Whole(1, LIMIT_MAX),
        "null",
        "Requests in a minute of one address; beyond loopback 240 unless set",
    ),
    row(
        "guard.perIp.concurrency",
        Whole(1, LIMIT_MAX),
        "null",
        "Requests at once of one address; beyond loopback 16 unless set",
    ),
    row(
        "guard.scan.mode",
        Word(&["flag", "off", "block"]),
        "\"flag\"",
        "What is done about credentials, personal data and injection in prompts: shown, refused if grave, or nothing",
    ),
    row("guard.scan.secrets", Flag, "true", "Look for credentials"),
    row("guard.scan.pii", Flag, "true", "Look for personal data"),
    row("guard.scan.injection", Flag, "true", "Look for prompt injection"),
    later("guard.calibrate", Flag, "true", "Learn limits from the providers' headers"),
    row(
        "guard.keyHealthIntervalMs",
        Whole(60_000, 365 * DAY_MS),
        "21600000",
        "Time between checks of the provider keys; the first comes a minute after the start",
    ),
    row("guard.keyHealth", Flag, "true", "Whether provider keys are checked without being asked to"),
    // Conversations.
    row("context.preferFit", Flag, "true", "Models that take a request whole come first"),
    row("sessions.days", Whole(1, 36_500), "90", "How long conversations are kept after their last turn"),
    row("sessions.max", Whole(1, 10_000), "1000", "How many conversations are kept"),
    row("sessions.mib", Whole(1, 10_000), "64", "How much text they may hold, all together"),
    row("context.enabled", Flag, "true", "Reshape conversations to fit the model that serves"),
    row("context.maxTurns", Whole(1, 10_000), "12", "Turns kept when a conversation is cut"),
    row("context.reserveOutputTokens", Whole(1, 1_000_000), "1024", "Tokens kept free for the answer"),
    row("context.compactModel", Text, "\"fast\"", "Model that writes summaries"),
    row("context.autoCompactAt", Number(0.1, 1.0), "0.8", "Fill at which a summary is made ahead of need"),
    // The caches.
    row(
        "cache.mode",
        Word(&["safe", "off", "aggressive"]),
        "\"safe\"",
        "Which answers are kept: of requests with a seed or a temperature up to 0.2, none, or all",
    ),
    row(
        "cache.scope",
        Word(&["shared", "key"]),
        "\"shared\"",
        "Whether clients share them, or each key has its own",
    ),
    row("cache.ttlMs", Whole(1, 365 * DAY_MS), "86400000", "How long they are kept"),
    row("cache.maxEntries", Whole(1, 1_000_000), "5000", "How many are kept"),
    row(
        "cache.maxBytes",
        Whole(1_024, 4_096 * MIB),
        "67108864",
        "How much room they may take in the data folder",
    ),
    row("cache.maxEntryBytes", Whole(1_024, 32 * MIB), "1048576", "Largest answer that is kept"),
    row("cache.ignore", Texts, "[]", "Further top-level request fields that do not change an answer"),
    row(
        "cache.semantic.enabled",
        Flag,
        "false",
        "Answer questions that only differ in wording from the cache",
    ),
    row(
        "cache.semantic.threshold",
        Number(0.0, 1.0),
        "0.92",
        "How alike they must be: the least cosine of their vectors",
    ),
    row(
        "cache.semantic.model",
        Text,
        "\"embed\"",
        "Embedding model that compares them; every look-up is a call of it",
    ),
    row(
        "cache.semantic.maxEntries",
        Whole(1, 1_000_000),
        "5000",
        "How many are kept, each with a vector in memory",
    ),
    // What comes later.
    row(
        "routing.stickyMs",
        Whole(0, DAY_MS),
        "1800000",
        "A conversation keeps its model until it was not used for this long; 0 never",
    ),
    row(
        "routing.handoff",
        Flag,
        "true",
        "When another model goes on with a conversation, a note tells it so",
    ),
    later(
        "routing.exploration",
        Number(0.0, 1.0),
        "0.05",
        "Share of requests that try another healthy model",
    ),
    later("routing.thompson", Flag, "true", "Draw from the reliability of a model instead of its mean"),
    later("routing.weights", NumberMap, "null", "Weights of the strategy `custom`"),
    row(
        "history.days",
        Whole(1, 36_500),
        "90",
        "How long request rows are kept; sums by the hour stay for 400 days at least",
    ),
    row(
        "history.mib",
        Whole(8, 1_000_000),
        "256",
        "What the database may take on the disk, in MiB; the oldest go first",
    ),
    // Backups.
    named(
        "backup.target",
        &["FREEWAY_BACKUP_TARGET"],
        Text,
        "null",
        "Where backups go: a folder outside the data folder, or a URL below which files can be PUT; off without one",
    ),
    row(
        "backup.everyHours",
        Whole(1, 8_760),
        "24",
        "Hours between automatic backups; none when nothing changed",
    ),
    row(
        "backup.keep",
        Whole(1, 1_000),
        "7",
        "How many backups are kept at the target; older ones are removed",
    ),
    row("backup.sessions", Flag, "false", "Whether backups hold conversations"),
];

/// Variables that are no settings: where things are, and what other parts read.
pub static PATH_VARIABLES: &[(&str, &str, &str)] = &[
    ("FREEWAY_ROOT", ".", "Folder that the other paths are relative to"),
    ("FREEWAY_PROVIDERS", "./providers", "Folder of provider files; without it the built-in ones are used"),
    ("FREEWAY_DATA", "./data", "Folder for counters, history and fetched model lists"),
    ("FREEWAY_CONFIG", "./freeway.config.json", "Configuration file"),
    ("FREEWAY_WWW", "", "Folder whose files replace those of the page, name by name"),
    (
        "FREEWAY_SECRET",
        "",
        "Passphrase under which pasted provider keys are sealed; without it the box's own secret is used",
    ),
    (
        "FREEWAY_BACKUP_KEY",
        "",
        "Key that seals and opens backups, 16 characters or more; or let `freeway backup --init` make one",
    ),
    ("FREEWAY_CA_FILE", "", "Further certificate authorities, as a PEM file"),
];

/// The row of a setting.
pub fn find(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name)
}

/// The table as Markdown, for `docs/settings.md`.
pub fn markdown() -> String {
    let mut out = String::from("| setting | default | variable | meaning |\n|---|---|---|---|\n");
    for row in TABLE.iter().filter(|row| row.used) {
        let variables: Vec<String> = row.variables.iter().map(|name| format!("`{name}`")).collect();
        let text = row.text.replace('|', "\\|");
        out += &format!(
            "| `{}` | `{}` | {} | {text}{} |\n",
            row.name,
            row.default,
            variables.join(", "),
            range(&row.shape)
        );
    }
    out
}

/// What a shape allows, as the end of a sentence; empty where the text says enough.
pub fn range(shape: &Shape) -> String {
    match shape {
        Whole(min, max) => format!(" ({min} to {max})"),
        Number(min, max) => format!(" ({min} to {max})"),
        Word(words) => format!(" (`{}`)", words.join("`, `")),
        _ => String::new(),
    }
}

/// What a shape must be, for messages.
pub fn must_be(shape: &Shape) -> String {
    match shape {
        Flag => "true or false".into(),
        Whole(min, max) => format!("a whole number from {min} to {max}"),
        Number(min, max) => format!("a number from {min} to {max}"),
        Text => "a text that is not empty".into(),
        Word(words) => format!("one of {}", words.join(", ")),
        Texts => "a list of texts".into(),
        Addresses => "a list of IP addresses".into(),
        Origins => "a list of origins".into(),
        Hosts => "a list of host names".into(),
        Secret => "a text of visible ASCII characters that is not empty".into(),
        Keys => "a list of keys: texts, or objects with a name and a key or sha256".into(),
        TextMap => "an object from name to text".into(),
        Profiles => "an object from name to a list of model strings, or to {models, strategy}".into(),
        Bench => format!("an object from cause ({}) to {{firstMs, capMs}}", BENCH_CAUSES.join(", ")),
        NumberMap => "an object from name to a number of at least 0".into(),
    }
}
