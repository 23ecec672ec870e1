//! Calls to providers: one HTTP exchange with its phases, its cut handle and its bounds, and the adaptation of a
//! request to what one provider wants.
pub mod adapt;
pub mod cut;
pub mod history;
pub mod tools;
