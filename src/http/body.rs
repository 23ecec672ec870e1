//! The body of a request, read into memory: bounded in size, in time, and by the budget that all bodies share.
use std::io::{self, Read};
use std::time::Instant;

use flate2::bufread::GzDecoder;

use super::budget::Share;
use super::chunked::Decoder;
use super::head::Refusal;
use super::line::Line;

/// Why there is no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client is to be told.
    Refused(Refusal),
    /// There is nobody left to tell.
    Gone,
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        Fault::Refused(refusal)
    }
}

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Identity,
    Gzip,
    Unknown,
}

impl Coding {
    /// The coding named by a `Content-Encoding` header.
    pub fn of(header: Option<&str>) -> Coding {
        let is = |known: &str| header.is_some_and(|value| value.eq_ignore_ascii_case(known));
        match header {
            None | Some("") => Coding::Identity,
            _ if is("identity") => Coding::Identity,
            _ if is("gzip") || is("x-gzip") => Coding::Gzip,
            _ => Coding::Unknown,
        }
    }
}

/// A body that is still coming begins with this much memory, and doubles: what a client merely announces costs nothing.
const GROWTH_BYTES: usize = 16 * 1024;
/// How much of a chunked body is looked at in one go.
const PEEK_BYTES: usize = 8 * 1024;

/// One body being read.
pub struct Intake<'r> {
    pub line: &'r Line,
    /// The body must be whole by then, however steadily it drips.
    pub deadline: Instant,
    pub max_bytes: usize,
    /// All of it has come already, so that no read will wait and the clock need not be asked.
    pub arrived: bool,
    pub share: &'r mut Share,
}

impl Intake<'_> {
    /// Reads exactly `length` bytes, which are at most `max_bytes`, from a source that is fed by the line.
    ///
    /// # Errors
    /// 408 when the deadline passes, 503 when the budget is used up, `Gone` when the client leaves.
    pub fn read_length(&mut self, source: &mut dyn Read, length: usize) -> Result<Vec<u8>, Fault> {
        let (mut body, mut filled) = (Vec::new(), 0);
        while filled < length {
            self.in_time()?;
            if filled == body.len() {
                let step = if self.arrived { length } else { filled.max(GROWTH_BYTES) };
                let wanted = length.min(filled + step);
                self.reserve(&mut body, wanted)?;
                body.resize(wanted, 0);
            }
            let room = body.get_mut(filled..).unwrap_or_default();
            filled += some(source.read(room))?;
        }
        Ok(body)
    }

    /// Reads a chunked body off the line, and tells how many bytes of the line it took.
    ///
    /// # Errors
    /// As [`Intake::read_length`], and those of the decoder.
    pub fn read_chunked(&mut self) -> Result<(Vec<u8>, u64), Fault> {
        let mut decoder = Decoder::new(self.max_bytes);
        let (mut body, mut scratch, mut total) = (Vec::new(), vec![0; PEEK_BYTES], 0);
        while !decoder.is_done() {
            self.in_time()?;
            let seen = some(self.line.peek(&mut scratch))?;
            let least = body.len() + seen;
            if least > body.capacity() {
                let wanted = least.max(body.capacity() * 2);
                self.reserve(&mut body, wanted)?;
            }
            let taken = decoder.feed(scratch.get(..seen).unwrap_or_default(), &mut body)?;
            // Only what belongs to this body: the next request may stand right behind it.
            total += taken as u64;
            let place = scratch.get_mut(..taken).unwrap_or_default();
            (&mut &*self.line).read_exact(place).map_err(|_| Fault::Gone)?;
        }
        Ok((body, total))
    }

    /// Checks the deadline and arms the line for the next wait.
    fn in_time(&self) -> Result<(), Fault> {
        if self.arrived || self.line.read_until(self.deadline) {
            return Ok(());
        }
        Err(Refusal::new(408, "", "the request body did not arrive in time").into())
    }

    fn reserve(&mut self, body: &mut Vec<u8>, bytes: usize) -> Result<(), Fault> {
        cover(self.share, bytes)?;
        body.reserve_exact(bytes.saturating_sub(body.len()));
        Ok(())
    }
}

/// Judges the result of one wait for bytes; a timeout is no bytes.
fn some(result: io::Result<usize>) -> Result<usize, Fault> {
    match result {
        Ok(0) => Err(Fault::Gone),
        Ok(count) => Ok(count),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        Err(_) => Err(Fault::Gone),
    }
}

fn cover(share: &mut Share, bytes: usize) -> Result<(), Refusal> {
    if share.cover(bytes) {
        return Ok(());
    }
    Err(Refusal::overloaded("too many large requests are being read just now"))
}

/// Parts that a gzip body may consist of. Each costs a decoder, however little comes out of it, and a body has room for
/// hundreds of thousands.
const GZIP_MEMBERS_MAX: usize = 64;
const NOT_GZIP: Refusal = Refusal::bad("the body is not the gzip that its Content-Encoding promises");

/// Decompresses a gzip body.
///
/// # Errors
/// 400 for what is not gzip, 413 when more than `max_bytes` come out, 503 when the budget is used up. The message never
/// holds any of the bytes.
pub fn gunzip(packed: Vec<u8>, max_bytes: usize, share: &mut Share) -> Result<Vec<u8>, Refusal> {
    let (mut body, mut filled) = (Vec::new(), 0);
    let mut rest = packed.as_slice();
    for _ in 0..GZIP_MEMBERS_MAX {
        let mut decoder = GzDecoder::new(rest);
        loop {
            if filled == body.len() {
                let wanted = (max_bytes + 1).min(filled.max(GROWTH_BYTES) + filled);
                cover(share, packed.len() + wanted)?;
                body.reserve_exact(wanted - filled);
                body.resize(wanted, 0);
            }
            match decoder.read(body.get_mut(filled..).unwrap_or_default()) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(_) => return Err(NOT_GZIP),
            }
            if filled > max_bytes {
                return Err(Refusal::too_large());
            }
        }
        rest = decoder.into_inner();
        if rest.is_empty() {
            break;
        }
    }
    if !rest.is_empty() {
        return Err(NOT_GZIP);
    }
    body.truncate(filled);
    share.trim(body.capacity());
    Ok(body)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::super::budget::Budget;
    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn check(packed: Vec<u8>, max_bytes: usize, expected: Result<&[u8], u16>) {
        let budget = Budget::new(1 << 20);
        let mut share = Share::new(&budget);
        let result = gunzip(packed, max_bytes, &mut share).map_err(|refusal| refusal.status);
        assert_eq!(result.as_deref(), expected.as_ref().copied());
    }

    #[test]
    fn gzip_bodies_are_bounded_and_checked() {
        check(gzip(b"hello"), 5, Ok(b"hello"));
        check([gzip(b"hel"), gzip(b"lo")].concat(), 5, Ok(b"hello"));
        check(gzip(b""), 5, Ok(b""));
        check(gzip(b"hello!"), 5, Err(413));
        check(gzip(&vec![0; 64 << 20]), 200_000, Err(413));
        check(b"{\"plain\": \"json\"}".to_vec(), 5, Err(400));
        check(gzip(b"hello")[..12].to_vec(), 5, Err(400));
        check([gzip(b"hello"), b"junk".to_vec()].concat(), 5, Err(400));
        check(gzip(b"").repeat(GZIP_MEMBERS_MAX), 5, Ok(b""));
        check(gzip(b"").repeat(GZIP_MEMBERS_MAX + 1), 5, Err(400));
        check(Vec::new(), 5, Err(400));
    }

    #[test]
    fn codings() {
        let of = |header| Coding::of(header);
        assert_eq!([of(None), of(Some("")), of(Some("Identity"))], [Coding::Identity; 3]);
        assert_eq!([of(Some("GZIP")), of(Some("x-gzip"))], [Coding::Gzip; 2]);
        assert_eq!(
            [of(Some("zstd")), of(Some("br")), of(Some("gzip, gzip")), of(Some("foo"))],
            [Coding::Unknown; 4]
        );
    }
}
