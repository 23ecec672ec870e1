//! Freeway.
pub mod base;
pub mod wire;

pub mod catalog;

pub mod context;

pub mod upstream;
