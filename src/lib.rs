//! Freeway stacks the free tiers of many LLM providers behind one OpenAI-compatible endpoint.
//!
//! # The map
//!
//! From the bottom up; a module imports only from its own layer and those below (`tests/tidy` holds this table to
//! the truth).
//!
//! | layer | module | files | what it is |
//! |---|---|---|---|
//! | words | `base` | `bounded` `clock` `rng` `text` | time, randomness, text, bounded containers |
//! | | `wire` | `error` `exchange` | the JSON and SSE shapes that cross the network |
//! | things | `catalog` | `provider` `settings` `slots` | providers, models, keys, names, settings |
//! | hands | `upstream` | `cut` | calls to providers |
pub mod base;
pub mod wire;

pub mod catalog;

pub mod context;
pub mod quota;
pub mod route;

pub mod store;
pub mod upstream;

pub mod relay;

pub mod http;

pub mod cli;
pub mod demo;
pub mod discover;
pub mod jobs;
pub mod logger;
pub mod serve;
