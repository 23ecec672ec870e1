//! Answers that were given before: under which key one is found again, which may be kept, and how one is given again.
//! No I/O and no clock: where the bytes of an answer lie is the keeper's business.
pub mod exact;
pub mod key;
mod lexicon;
pub mod likeness;
pub mod question;
pub mod replay;
pub mod rule;
pub mod semantic;
pub mod slab;
pub mod text;
