//! The story of one request: resolved, planned, admitted, called, relayed, recorded. One attempt loop serves every
//! surface; a surface only translates in and out.
pub mod admitted;
pub mod alike;
pub mod answers;
pub mod attempt;
pub mod books;
pub mod cached;
pub mod feed;
pub mod findings;
pub mod fitting;
pub mod flight;
pub mod flow;
pub mod gate;
pub mod gateway;
pub mod hydrate;
pub mod intake;
pub mod notes;
pub mod outlet;
pub mod record;
pub mod route_info;
pub mod sessions;
pub mod story;
pub mod stream;
pub mod tally;
pub mod turn;
