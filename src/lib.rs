//! Freeway stacks the free tiers of many LLM providers behind one OpenAI-compatible endpoint.
//!
//! # The way of a request
//!
//! | where | what happens |
//! |---|---|
//! | [`http::server`] | a connection is **accepted** and given a thread |
//! | [`http::conn`] | it looks at the head before anything is taken off the socket, and refuses what is not sane |
//! | [`http::routes`] | the request **enters**: route, key and rights are settled before the body |
//! | [`http::v1`] | the body is read and understood; it is **admitted** as a [`relay::turn::Request`] and, if somebody has to be called, takes a place of [`http::workers`] |
//! | [`relay::intake`] | the model string is **resolved**, and what needs no upstream is settled |
//! | [`relay::story`] | the one loop: attempt follows attempt |
//! | [`route::failover`] | it is **routed**: who is called is chosen, and the quota reserved, in one step |
//! | [`relay::attempt`] | the upstream is **called** through [`upstream::client`], with the body that [`upstream::adapt`] made |
//! | [`relay::stream`], [`relay::gate`] | the stream is held back until it is an answer, then passed on |
//! | [`relay::flow`], [`http::ferry`] | in the midst of its answer it flows by itself: one thread carries all such streams |
//! | [`route::outcome`], [`route::verdict`] | a failure is judged: whose fault, what next, who sits on the bench |
//! | [`http::answer`] | it is **answered**, in as few writes as there are moments |
//!
//! # The map
//!
//! From the bottom up; a module imports only from its own layer and those below (`tests/tidy` holds this table to
//! the truth).
//!
//! | layer | module | files | what it is |
//! |---|---|---|---|
//! | words | `base` | `base64` `bounded` `calendar` `clock` `histogram` `packed` `redact` `rng` `text` `varint` | time and dates, randomness, text, bounded containers, histograms |
//! | | `wire` | `answer` `body` `calls` `chat` `choice` `chunk` `completion` `embeddings` `error` `exchange` `extent` `fold` `head` `json` `messages` `mould` `patch` `preview` `sse` `tally` `upstream_error` `usage` `vector` `whole_calls` | the shapes that cross the network: bodies, event streams, answers, errors |
//! | things | `catalog` | `address` `boxfile` `bundled` `check` `client_key` `clients` `config` `discovery` `env` `example` `fields` `json` `key_export` `key_import` `key_names` `listing` `load` `names` `overrides` `pool` `provider` `settings` `slots` `spec` `spec_model` `splice` `table` `unified` `vault` | providers, models, keys, names and settings, read into one snapshot |
//! | judgement | `cache` | `exact` `key` `lexicon` `likeness` `question` `replay` `rule` `semantic` `slab` `text` | which answers are kept, found and given again |
//! | | `guard` | `limiter` `rules` `scan` | what a request may hold, and how much its caller may have |
//! | | `context` | `budget` `conversation` `handoff` `noise` `pairs` `ratios` `refit` `summaries` `summary` `thread` `tokens` | how large a request is, and what a conversation becomes by it |
//! | | `quota` | `bench` `forecast` `ledger` `meter` `saved` `wall` `window` `zone` | who used what of which limit, and who sits on the bench |
//! | | `route` | `failover` `fit` `health` `lessons` `live` `manner` `network` `outcome` `outlook` `plan` `scoreboard` `speed` `sticky` `terminal` `told` `verdict` `waits` `words` | who may be called in what order, what an answer means, what follows |
//! | hands | `upstream` | `adapt` `client` `cut` `deliver` `dial` `examine` `gunzip` `history` `idle` `probe` `proxy` `resolve` `tls` `tools` `transport` `url` `watch` `way_out` `wire` | calls to providers |
//! | | `store` | `analytics` `copy` `db` `figures` `folder` `glance` `journal` `names` `page` `reader` `rollup` `row` `schema` `sessions` `shelf` `span` `state` `writer` | what outlives the process, written by one thread |
//! | | `backup` | `archive` `pack` `record` `target` `unpack` | what cannot be rebuilt, sealed and put where it is safe |
//! | story | `relay` | `admitted` `alike` `answers` `attempt` `books` `cached` `feed` `findings` `fitting` `flight` `flow` `gate` `gateway` `hydrate` `intake` `notes` `outlet` `record` `route_info` `sessions` `story` `stream` `tally` `turn` | one turn, from an admitted request to a recorded answer |
//! | doors | `http` | `alerts` `analytics` `answer` `backups` `benches` `body` `browser` `budget` `cache` `change` `chunked` `clients` `conn` `events` `exchange` `ferry` `hangup` `head` `host` `keys` `limits` `line` `look` `metrics` `models` `outlook` `overrides` `page` `path` `permit` `pool` `probes` `providers` `query` `registry` `rights` `routes` `server` `session` `sessions` `settings` `signin` `sock` `throttle` `v1` `views` `workers` | connections, routes, rights, surfaces |
//! | | `cli` | `backup` `clients` `command` `config` `diagnosis` `doctor` `doctor_route` `health` `init` `keys` `provider` `restore` `running` `systemd` `verify` `verify_apply` | the commands of the terminal |
//! | | `serve` | | start and stop, in order |
//! | | `jobs` | | what happens beside requests |
//! | | `service` | | what a service manager is told, and its watchdog |
//! | | `discover` | | model lists, fetched in the background |
//! | | `health` | | passes over all provider keys |
//! | | `rescue` | | what is put back from a backup at the start |
//! | | `demo` | | two scripted upstreams inside the process |
//! | | `logger` | | the lines that people read |
//!
//! # What always holds
//!
//! 1. One request uses one [`Snapshot`](catalog::load::Snapshot) from start to end; a reload swaps it whole.
//! 2. [`Live`](route::live::Live) state sits behind one mutex, held for microseconds and never across I/O.
//! 3. Decisions (`quota`, `route`, `context`) read no clock, no socket and no disk: they are handed the time.
//! 4. There is one attempt loop for all surfaces. The commit is the first byte of the answer's content: before it any
//!    failure can move on, after it none can.
//! 5. Quota is reserved before a call and settled after it; choosing and reserving are one critical section.
//! 6. The thread of a connection polices, reads, admits and answers; to call upstreams it takes a worker's place. Control
//!    routes never need one. One thread watches whether clients leave, one carries the streams that only have to flow.
//! 7. One thread owns the database; requests never wait for the disk.
//! 8. Every queue, map, body, wait and retry has a bound.
pub mod base;
pub mod wire;

pub mod catalog;

pub mod cache;
pub mod context;
pub mod guard;
pub mod quota;
pub mod route;

pub mod backup;
pub mod store;
pub mod upstream;

pub mod relay;

pub mod http;

pub mod cli;
pub mod demo;
pub mod discover;
pub mod health;
pub mod jobs;
pub mod logger;
pub mod rescue;
pub mod serve;
pub mod service;
