//! How much a request holds, and how it fits a model. Pure: no clock, no network, no disk.
pub mod budget;
pub mod conversation;
pub mod handoff;
mod noise;
pub mod pairs;
pub mod ratios;
pub mod refit;
#[cfg(test)]
mod refit_tests;
pub mod summaries;
pub mod summary;
pub mod thread;
pub mod tokens;
