//! What every answer carries: id, object, time and model. Upstreams leave them out, or change them from chunk to chunk;
//! clients may rely on the first value of each.
use std::ops::Range;

use super::json;
use super::patch::{Patch, Track};

/// `object` of a chunk of a stream, and of a whole answer.
pub const CHUNK: &[u8] = b"\"chat.completion.chunk\"";
pub const COMPLETION: &[u8] = b"\"chat.completion\"";

/// The values, as raw JSON. Each but `object` is empty until the first chunk.
#[derive(Debug)]
pub struct Head {
    object: &'static [u8],
    id: Vec<u8>,
    created: Vec<u8>,
    model: Vec<u8>,
    fallback: Fallback,
}

/// Used for what the upstream does not give.
#[derive(Clone, Debug)]
pub struct Fallback {
    pub id: String,
    /// Seconds since 1970.
    pub created_s: u64,
    pub model: String,
}

/// Which of the members a chunk has.
#[derive(Debug, Default)]
pub struct Present {
    id: bool,
    object: bool,
    created: bool,
    model: bool,
}

impl Head {
    /// Nothing is known yet; `object` is [`CHUNK`] or [`COMPLETION`].
    pub fn new(object: &'static [u8], fallback: Fallback) -> Head {
        Head { object, id: Vec::new(), created: Vec::new(), model: Vec::new(), fallback }
    }

    /// Takes a member of a chunk, which stands at `span`, if it is one of ours.
    pub fn read(
        &mut self,
        name: &[u8],
        raw: &[u8],
        span: Range<usize>,
        present: &mut Present,
        patch: &mut Patch,
    ) {
        let is_text = raw.len() > 2 && raw.starts_with(b"\"");
        let Fallback { id, created_s, model } = &self.fallback;
        let known = match name {
            b"id" => {
                present.id = true;
                first(&mut self.id, is_text, raw, || json::quoted(id))
            }
            b"object" => {
                present.object = true;
                self.object
            }
            b"created" => {
                present.created = true;
                let digits = raw.iter().all(u8::is_ascii_digit);
                first(&mut self.created, digits, raw, || {
                    json::count(raw).unwrap_or(*created_s).to_string().into_bytes()
                })
            }
            b"model" => {
                present.model = true;
                first(&mut self.model, is_text, raw, || json::quoted(model))
            }
            _ => return,
        };
        if raw != known {
            patch.replace(span, known);
        }
    }

    /// Adds what a chunk lacks.
    pub fn complete(&mut self, present: &Present, track: &mut Track, patch: &mut Patch) {
        self.settle();
        for (there, name, value) in [
            (present.id, "id", self.id.as_slice()),
            (present.object, "object", self.object),
            (present.created, "created", &self.created),
            (present.model, "model", &self.model),
        ] {
            if !there {
                track.add(name, value, patch);
            }
        }
    }

    /// Appends the beginning of an object of our own, up to the list of choices.
    pub fn open(&mut self, out: &mut Vec<u8>) {
        self.settle();
        let parts: [&[u8]; 9] = [
            b"{\"id\":",
            &self.id,
            b",\"object\":",
            self.object,
            b",\"created\":",
            &self.created,
            b",\"model\":",
            &self.model,
            b",\"choices\":[",
        ];
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }

    /// Fills in what no chunk has given so far; it stays so.
    fn settle(&mut self) {
        let Fallback { id, created_s, model } = &self.fallback;
        first(&mut self.id, false, b"", || json::quoted(id));
        first(&mut self.created, false, b"", || created_s.to_string().into_bytes());
        first(&mut self.model, false, b"", || json::quoted(model));
    }
}

/// The first value of a member: what is known, else what came if it is valid, else the fallback.
fn first<'k>(
    known: &'k mut Vec<u8>,
    valid: bool,
    raw: &[u8],
    fallback: impl FnOnce() -> Vec<u8>,
) -> &'k [u8] {
    if known.is_empty() {
        *known = if valid { raw.to_vec() } else { fallback() };
    }
    known
}
