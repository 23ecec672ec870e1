//! A provider as the rest of the program sees it: every field checked, every default filled in, variables put in
//! their places. `catalog::spec` reads the file format and makes these.
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::base::text::Secret;

/// A small number that stands for a provider, a key or a model in live state. The interner hands them out, and the
/// same name gets the same slot again after a reload, so that counters and benches survive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// One upstream account space, from one JSON file.
#[derive(Clone, Debug)]
pub struct Provider {
    pub slot: Slot,
    /// `^[a-z0-9][a-z0-9-]*$`; the first half of a model reference.
    pub id: Arc<str>,
    pub label: String,
    pub docs: Option<String>,
    pub console: Option<String>,
    pub signup: Option<String>,
    pub notes: Option<String>,
    pub terms: Option<Terms>,
    pub enabled: bool,
    /// Lower comes first.
    pub priority: f64,
    /// With its variables filled in and without a trailing slash; empty while one of them is missing.
    pub base_url: String,
    /// Whether the host is this machine or on a private network: benches are short there, proxies are not used.
    pub local: bool,
    pub auth: Auth,
    /// The key pool, in file order. A keyless provider has exactly one, with an empty secret.
    pub keys: Vec<Key>,
    /// Variables that a key may come from, in order.
    pub env_keys: Vec<String>,
    /// Variables that the file names and that are not set.
    pub missing_vars: Vec<String>,
    pub limits: Limits,
    pub limits_scope: LimitsScope,
    pub limits_source: LimitsSource,
    pub verified_on: Option<String>,
    /// Path of the model list below the base URL; `None` switches discovery off.
    pub models_endpoint: Option<String>,
    /// Where the ids stand in that list, such as `data[].id`.
    pub models_path: String,
    pub paths: Endpoints,
    pub quirks: Quirks,
    pub timeouts: Timeouts,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    pub reset_zone: ResetZone,
    /// Whether this upstream counts `max_tokens` against its token limits at once.
    pub counts_max_tokens: bool,
    pub billing: Billing,
    /// Whether its models may cost money: said by its own file or by the settings.
    pub allow_paid: bool,
    /// Tried only when nobody else can serve.
    pub last_resort: bool,
    /// Declared models first, discovered ones after them.
    pub models: Vec<Model>,
}

impl Provider {
    /// Whether it has all it needs to be called.
    pub fn configured(&self) -> bool {
        self.missing_vars.is_empty() && !self.keys.is_empty()
    }

    /// What the owner has to set, when it is not configured.
    pub fn config_error(&self) -> Option<String> {
        if !self.missing_vars.is_empty() {
            return Some(format!("missing environment variable(s): {}", self.missing_vars.join(", ")));
        }
        self.keys.is_empty().then(|| match self.env_keys.as_slice() {
            [only] => format!("no API key found (set {only})"),
            all => format!("no API key found (set one of: {})", all.join(", ")),
        })
    }
}

/// How a key is presented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: <prefix><key>`; the prefix is `Bearer ` unless the file says otherwise.
    Bearer {
        prefix: String,
    },
    /// A header of its own.
    Header {
        name: String,
        prefix: String,
    },
    /// A query parameter.
    Query {
        param: String,
    },
    None,
}

impl Auth {
    /// Its word in provider files and in the API.
    pub const fn name(&self) -> &'static str {
        match self {
            Auth::Bearer { .. } => "bearer",
            Auth::Header { .. } => "header",
            Auth::Query { .. } => "query",
            Auth::None => "none",
        }
    }
}

/// One credential of a pool.
#[derive(Clone, Debug)]
pub struct Key {
    pub slot: Slot,
    /// `<provider>:<fingerprint>`, where the fingerprint is keyed and says nothing about the key.
    pub id: Arc<str>,
    pub secret: Secret,
    /// For people.
    pub masked: String,
    /// The variable it came from, or `runtime`.
    pub source: String,
    /// Keys of one account share what is scoped to the account.
    pub account: Slot,
}

/// One model at a provider.
#[derive(Clone, Debug)]
pub struct Model {
    pub slot: Slot,
    /// Verbatim upstream id; may hold slashes.
    pub id: Arc<str>,
    /// `provider/id`.
    pub reference: Arc<str>,
    pub label: String,
    pub aliases: Vec<String>,
    /// Tokens; `None` is unknown.
    pub context: Option<u64>,
    pub max_output: Option<u64>,
    pub caps: Caps,
    pub priority: f64,
    pub enabled: bool,
    pub limits: Limits,
    pub drop_params: Vec<String>,
    pub credits: Option<Credits>,
    pub tier: Option<String>,
    pub rank: Option<u32>,
    pub paid_equivalent: Option<PaidEquivalent>,
    pub source: ModelSource,
    /// Length of the vectors of an embedding model, when the file gives it.
    pub dimensions: Option<u32>,
    pub standing: Standing,
}

impl Model {
    /// Why it is switched off, for people; `None` when it is on.
    pub fn off_reason(&self) -> Option<&'static str> {
        match (self.standing, self.enabled) {
            (Standing::Paid, _) => Some("model costs money: set allowPaid to use it"),
            (_, false) => Some("model disabled"),
            _ => None,
        }
    }
}

/// What the free-only rule says of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// May serve any request.
    #[default]
    Free,
    /// Found at a provider where some models cost money, with no price: serves only who names it.
    Unpriced,
    /// Costs money, and `allowPaid` is off; such a model is never enabled.
    Paid,
}

/// Where a model is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// Its provider's file.
    Declared,
    /// Its provider's model list.
    Discovered,
}

impl ModelSource {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            ModelSource::Declared => "declared",
            ModelSource::Discovered => "discovered",
        }
    }
}

/// What a model can do, as a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caps(pub u16);

impl Caps {
    pub const CHAT: Caps = Caps(1);
    pub const TOOLS: Caps = Caps(2);
    pub const JSON: Caps = Caps(4);
    pub const VISION: Caps = Caps(8);
    pub const REASONING: Caps = Caps(16);
    pub const EMBED: Caps = Caps(32);
    pub const CODE: Caps = Caps(64);
    pub const LONG_CONTEXT: Caps = Caps(128);
    /// No word of a file's `caps`: the provider's `tokenInputs`, which routing looks for in the same way.
    pub const TOKEN_INPUTS: Caps = Caps(256);

    /// Every capability with its name in files and messages.
    pub const NAMES: [(&'static str, Caps); 8] = [
        ("chat", Caps::CHAT),
        ("tools", Caps::TOOLS),
        ("json", Caps::JSON),
        ("vision", Caps::VISION),
        ("reasoning", Caps::REASONING),
        ("embed", Caps::EMBED),
        ("code", Caps::CODE),
        ("long-context", Caps::LONG_CONTEXT),
    ];

    /// Both together.
    pub const fn with(self, other: Caps) -> Caps {
        Caps(self.0 | other.0)
    }

    /// Whether all of `all` are among them.
    pub const fn has(self, all: Caps) -> bool {
        self.0 & all.0 == all.0
    }

    /// What `self` asks for and `offered` lacks.
    pub const fn missing_from(self, offered: Caps) -> Caps {
        Caps(self.0 & !offered.0)
    }

    /// The capability of a name.
    pub fn by_name(name: &str) -> Option<Caps> {
        Caps::NAMES.iter().find(|(known, _)| *known == name).map(|(_, cap)| *cap)
    }

    /// The names of all of them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Caps::NAMES.into_iter().filter(move |(_, cap)| self.has(*cap)).map(|(name, _)| name)
    }
}

/// What is counted, and over which period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// Requests in one second, minute, hour, day, month.
    Rps,
    Rpm,
    Rph,
    Rpd,
    Rpmo,
    /// Tokens in one minute, hour, day, month.
    Tpm,
    Tph,
    Tpd,
    Tpmo,
    /// Provider-defined units in a day, such as Cloudflare's neurons.
    CreditsPerDay,
    /// Calls in flight.
    Concurrency,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Metric; 11] = [
        Metric::Rps,
        Metric::Rpm,
        Metric::Rph,
        Metric::Rpd,
        Metric::Rpmo,
        Metric::Tpm,
        Metric::Tph,
        Metric::Tpd,
        Metric::Tpmo,
        Metric::CreditsPerDay,
        Metric::Concurrency,
    ];

    /// Its name in provider files, in the API and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Rps => "rps",
            Metric::Rpm => "rpm",
            Metric::Rph => "rph",
            Metric::Rpd => "rpd",
            Metric::Rpmo => "rpmo",
            Metric::Tpm => "tpm",
            Metric::Tph => "tph",
            Metric::Tpd => "tpd",
            Metric::Tpmo => "tpmo",
            Metric::CreditsPerDay => "creditsPerDay",
            Metric::Concurrency => "concurrency",
        }
    }
}

/// How many of each metric are allowed; what is absent is unknown and does not bind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    pub max: BTreeMap<Metric, Limit>,
    /// Flat cost of a request in credits, where the model has no rates of its own.
    pub credits_per_request: Option<f64>,
}

/// How many, over which kind of window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Requests, tokens, credits or calls, as the metric says.
    pub amount: f64,
    pub window: WindowKind,
}

/// Whether a window slides or begins anew at a calendar border. By default a second, minute and hour slide, a day and
/// a month are of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    Rolling,
    Calendar,
}

/// Whose the limits of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsScope {
    /// Each key has them for itself (the default).
    Key,
    /// Each key has them for each model.
    Model,
    /// All keys of an account share them.
    Account,
}

/// How the limits of a file are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsSource {
    Docs,
    Observed,
    Unverified,
}

impl LimitsSource {
    /// Every source with its word in provider files and in the API.
    pub const NAMES: [(&'static str, LimitsSource); 3] = [
        ("docs", LimitsSource::Docs),
        ("observed", LimitsSource::Observed),
        ("unverified", LimitsSource::Unverified),
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        LimitsSource::NAMES.iter().find(|(_, known)| *known == self).map_or("unverified", |(name, _)| name)
    }
}

/// What a million tokens of a model cost in its provider's own units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Credits {
    pub per_m_tok_in: Option<f64>,
    pub per_m_tok_out: Option<f64>,
}

/// What the same tokens would cost elsewhere, in US dollars per million.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaidEquivalent {
    pub in_per_m: f64,
    pub out_per_m: f64,
}

impl PaidEquivalent {
    /// For a model whose file names none: about what open-weight models of middle size are sold for (FreeLLMAPI
    /// reckons with the same).
    pub const USUAL: PaidEquivalent = PaidEquivalent { in_per_m: 0.20, out_per_m: 0.80 };
}

/// What a provider's terms say about use through a gateway, as far as the author of the file could tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// `ok`, `caution`, `ambiguous`, `avoid` or `unknown`.
    pub verdict: String,
    pub note: Option<String>,
}

/// Paths below the base URL, each with a leading slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    pub chat: String,
    pub embeddings: String,
    pub completions: String,
}

/// What this upstream wants to be different in a request, and how it words its errors. All of it is data.
#[derive(Clone, Debug, Default)]
pub struct Quirks {
    /// Top-level request fields that are removed.
    pub drop_params: Vec<String>,
    /// Top-level request fields that go under another name: from, to.
    pub rename_params: Vec<(String, String)>,
    /// Set whatever the client says.
    pub force_params: Vec<(String, Value)>,
    /// Set when the client does not.
    pub default_params: Vec<(String, Value)>,
    /// How the output limit is spelled here; `None` keeps the client's spelling.
    pub max_tokens_field: Option<String>,
    /// Whether `stream_options.include_usage` may be sent.
    pub stream_usage: bool,
    /// Whether arrays of text parts must be joined to one string.
    pub flatten_content: bool,
    pub tool_ids: ToolIds,
    /// Message members that are removed, because this upstream refuses them (`reasoning_content`, ...).
    pub drop_message_fields: Vec<String>,
    /// Whether the `developer` role is understood; else it is sent as `system`.
    pub developer_role: bool,
    /// Whether an assistant's `content: null` beside tool calls is refused; then `""` is sent.
    pub null_content_refused: bool,
    /// Whether embedding inputs may be token ids.
    pub token_inputs: bool,
    /// Words of this provider's errors, lower-case, with what they mean.
    pub error_words: Vec<(String, ErrorWord)>,
}

/// What a provider's own wording means, for `errorWords`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorWord {
    Auth,
    Credit,
    Forbidden,
    RateLimit,
    DailyQuota,
    ModelMissing,
    ContextLength,
    Unavailable,
    Policy,
    Request,
}

/// Which tool call ids this upstream takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolIds {
    #[default]
    Any,
    /// Exactly nine letters and digits (Mistral).
    Alnum9,
}

/// How long the phases of a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect_ms: u64,
    /// To the first byte of the answer's head; for a stream to its first data event.
    pub first_byte_ms: u64,
    /// Between data events of a stream.
    pub idle_ms: u64,
    /// For a whole JSON answer, from its first byte on.
    pub total_ms: u64,
}

/// The zone in which calendar windows begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetZone {
    /// Minutes east of UTC.
    Fixed(i32),
    /// Pacific time with the daylight saving rules of the United States since 2007.
    UsPacific,
}

/// What using a provider costs; decides about discovered models (see [`Standing`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Billing {
    /// Nothing, ever.
    Free,
    /// Nothing within the limits.
    FreeTier,
    /// Some models are free, others are not.
    Mixed,
    Paid,
}

impl Billing {
    /// Every kind with its word in provider files and in the API.
    pub const NAMES: [(&'static str, Billing); 4] = [
        ("free", Billing::Free),
        ("freeTier", Billing::FreeTier),
        ("mixed", Billing::Mixed),
        ("paid", Billing::Paid),
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        Billing::NAMES.iter().find(|(_, known)| *known == self).map_or("freeTier", |(name, _)| name)
    }
}
