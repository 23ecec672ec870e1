//! Routing: what an upstream's answer means, whom to call next, and what to say when nobody is left.
//!
//! `upstream call -> End -> outcome::classify -> Failover::report -> Failover::next -> ... -> terminal::answer`.
//! Everything here is a function of the request, the catalog, [`live::Live`] and the time that is handed in: no I/O, no
//! clock. The one loop that drives it stands in `relay`; the simulator drives the same machine.
#[cfg(test)]
mod blame_tests;
pub mod failover;
mod fit;
pub mod health;
pub mod lessons;
pub mod live;
pub mod manner;
pub mod network;
pub mod outcome;
pub mod outlook;
pub mod plan;
pub mod scoreboard;
pub mod speed;
pub mod sticky;
pub mod terminal;
mod told;
pub mod verdict;
pub mod waits;
pub mod words;
