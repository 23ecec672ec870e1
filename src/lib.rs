//! Freeway.
pub mod base;
pub mod wire;

pub mod catalog;

pub mod upstream;

pub mod cli;
