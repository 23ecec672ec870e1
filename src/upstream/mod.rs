//! Calls to providers: one HTTP exchange with its phases, its cut handle and its bounds, and the adaptation of a
//! request to what one provider wants.
//!
//! `adapt` turns a client's request into this provider's; `client` sends it and judges how the exchange went; ureq
//! speaks HTTP/1.1 between the two; `dial` and `transport` move the bytes. Nothing here decides whom to call, nor what
//! a status means.
pub mod adapt;
pub mod history;
pub mod tools;

pub mod client;
pub mod watch;

pub mod cut;
pub mod examine;
pub mod probe;
pub mod proxy;
pub mod url;
pub mod way_out;

pub mod deliver;
mod dial;
mod gunzip;
mod idle;
mod resolve;
mod tls;
mod transport;
mod wire;

#[cfg(test)]
mod tests;
