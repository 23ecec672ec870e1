//! Freeway.
pub mod base;
pub mod wire;

pub mod catalog;

pub mod quota;
pub mod route;

pub mod store;
pub mod upstream;

pub mod cli;
