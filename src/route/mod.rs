pub mod waits;
pub mod words;
