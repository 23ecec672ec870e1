//! HTTP/1.1 to clients: connections, requests, answers, and the places of workers; and above them the routes, the rights
//! and the surfaces.
//!
//! tiny_http (the maintained fork) accepts connections, parses heads and delimits bodies. Left alone it can be made
//! to leak threads, to wait without end and to read one request as two, so a thread of ours stands at each connection:
//! it looks before tiny_http reads, reads itself what tiny_http cannot, admits, and takes a worker's place when upstreams
//! have to be called. [`hangup`] watches all clients, [`ferry`] carries the streams that only have to flow.
//!
//! The way of a request: [`server`] accepts and gives the connection to a thread of the [`pool`], [`conn`] looks and asks
//! the [`Door`], [`body`] reads, [`workers`] let it through, a [`Responder`] answers on the [`line`](line).
//!
//! Invariant: no wait is without a deadline, no memory without a bound, and a client that has left is noticed.
pub mod routes;

pub mod browser;
pub mod host;
pub mod limits;
pub mod path;
pub mod permit;
pub mod query;
pub mod rights;
pub mod signin;
pub mod throttle;

pub mod clients;
pub mod keys;
pub mod session;
pub mod sessions;

pub mod change;
pub mod events;
pub mod overrides;

pub mod alerts;
pub mod analytics;
pub mod backups;
pub mod benches;
pub mod look;
pub mod metrics;
pub mod models;
pub mod outlook;
pub mod page;
pub mod probes;
pub mod providers;
pub mod settings;
pub mod v1;
pub mod views;

pub mod server;

pub mod conn;

pub mod body;
pub mod chunked;
pub mod head;

pub mod answer;
pub mod exchange;
pub mod ferry;

pub mod hangup;
pub mod line;
pub mod registry;

pub mod budget;
pub mod cache;
pub mod pool;
pub mod sock;
pub mod workers;

#[cfg(test)]
mod tests;

pub use answer::{Answer, Fields, Responder, Stream};
pub use conn::{Admission, Door, Next};
pub use exchange::Terms;
pub use head::Head;
pub use server::{Figures, Monitor, Server};
