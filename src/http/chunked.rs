//! The chunked transfer coding, decoded step by step. Pure: bytes in, bytes out.
//!
//! Invariant: it takes no byte beyond the end of the body, and no part of it can grow without limit.
use super::head::Refusal;

/// Longest line that names a chunk's size, its extensions included.
const SIZE_LINE_BYTES_MAX: usize = 256;
/// Most bytes of trailer lines, which are read and dropped.
const TRAILER_BYTES_MAX: usize = 4 * 1024;
/// Framing that costs more than this beside `FRAMING_PER_BYTE` for each byte of data is an attack.
const FRAMING_BYTES_MAX: usize = 16 * 1024;
/// One-byte chunks, the worst that a sane client sends, cost five bytes of framing each.
const FRAMING_PER_BYTE: usize = 8;

/// A decoder for one body.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// Size of the chunk being read; in `Data` what is left of it.
    size: usize,
    /// Bytes of the current size line, or of all trailer lines.
    line_bytes: usize,
    framing_bytes: usize,
    data_bytes: usize,
    max_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first digit of a size.
    SizeStart,
    Size,
    Extension,
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    /// At the beginning of a trailer line, or of the empty line that ends everything.
    TrailerStart,
    Trailer,
    TrailerLineFeed,
    LastLineFeed,
    Done,
}

impl Decoder {
    /// A decoder that refuses bodies above `max_bytes`.
    pub fn new(max_bytes: usize) -> Decoder {
        Decoder {
            state: State::SizeStart,
            size: 0,
            line_bytes: 0,
            framing_bytes: 0,
            data_bytes: 0,
            max_bytes,
        }
    }

    /// The whole body has been decoded.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Decodes the beginning of `input` onto `out` and returns how many bytes it took: all, unless the body ended.
    ///
    /// # Errors
    /// 400 for broken framing, 413 as soon as a size line announces more than the limit.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Refusal> {
        let mut at = 0;
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty() && !self.is_done()) {
            if self.state == State::Data {
                let taken = rest.len().min(self.size);
                out.extend_from_slice(&rest[..taken]);
                at += taken;
                self.size -= taken;
                self.data_bytes += taken;
                if self.size == 0 {
                    self.state = State::DataReturn;
                }
            } else {
                self.step(rest[0])?;
                at += 1;
            }
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<(), Refusal> {
        const BROKEN: Refusal = Refusal::bad("the chunked body is malformed");
        self.framing_bytes += 1;
        self.line_bytes += 1;
        if self.framing_bytes > FRAMING_BYTES_MAX + self.data_bytes * FRAMING_PER_BYTE {
            return Err(BROKEN);
        }
        self.state = match (self.state, byte) {
            (State::SizeStart | State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.grow_size(byte)?;
                State::Size
            }
            (State::Size, b'\r') | (State::Extension, b'\r') => State::SizeLineFeed,
            (State::Size, b';' | b' ' | b'\t') => State::Extension,
            (State::Extension, b'\t' | 0x20..=0x7e | 0x80..) => State::Extension,
            (State::SizeLineFeed, b'\n') => self.begin_chunk(),
            (State::DataReturn, b'\r') => State::DataLineFeed,
            (State::DataLineFeed, b'\n') => {
                (self.size, self.line_bytes) = (0, 0);
                State::SizeStart
            }
            (State::TrailerStart, b'\r') => State::LastLineFeed,
            (State::Trailer, b'\r') => State::TrailerLineFeed,
            (State::TrailerStart | State::Trailer, b'\t' | 0x20..=0x7e | 0x80..) => State::Trailer,
            (State::TrailerLineFeed, b'\n') => State::TrailerStart,
            (State::LastLineFeed, b'\n') => State::Done,
            _ => return Err(BROKEN),
        };
        let line_max = match self.state {
            State::TrailerStart | State::Trailer | State::TrailerLineFeed => TRAILER_BYTES_MAX,
            _ => SIZE_LINE_BYTES_MAX,
        };
        let bounded = self.line_bytes <= line_max || matches!(self.state, State::LastLineFeed | State::Done);
        if bounded { Ok(()) } else { Err(BROKEN) }
    }

    fn grow_size(&mut self, digit: u8) -> Result<(), Refusal> {
        let value = char::from(digit).to_digit(16).unwrap_or(0) as usize;
        self.size = self.size.checked_mul(16).and_then(|size| size.checked_add(value)).unwrap_or(usize::MAX);
        if self.size > self.max_bytes - self.data_bytes {
            return Err(Refusal::too_large());
        }
        Ok(())
    }

    fn begin_chunk(&mut self) -> State {
        self.line_bytes = 0;
        if self.size == 0 { State::TrailerStart } else { State::Data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `input` in pieces of every size; all must agree. Gives the body and how many bytes were left over.
    fn check(input: &[u8], expected: Result<(&[u8], usize), u16>) {
        for piece in 1..=input.len() {
            let (mut decoder, mut out, mut taken) = (Decoder::new(64), Vec::new(), 0);
            let mut result = Ok(());
            for part in input.chunks(piece) {
                match decoder.feed(part, &mut out) {
                    Ok(n) => taken += n,
                    Err(refusal) => {
                        result = Err(refusal.status);
                        break;
                    }
                }
            }
            let result = result.and_then(|()| {
                if decoder.is_done() { Ok((out.as_slice(), input.len() - taken)) } else { Err(0) }
            });
            assert_eq!(result, expected, "{:?} in pieces of {piece}", String::from_utf8_lossy(input));
        }
    }

    #[test]
    fn bodies_are_decoded_and_nothing_behind_them_is_taken() {
        check(b"3\r\nabc\r\n0\r\n\r\n", Ok((b"abc", 0)));
        check(b"3\r\nabc\r\n00a\r\n0123456789\r\n0\r\n\r\nGET /", Ok((b"abc0123456789", 5)));
        check(b"3;name=\"v\"\r\nabc\r\n0;x\r\nTrailer: 1\r\nB: 2\r\n\r\n", Ok((b"abc", 0)));
        check(b"3 \r\na\r\n\r\n0\r\n\r\n", Ok((b"a\r\n", 0)));
        check(b"0\r\n\r\n", Ok((b"", 0)));
    }

    #[test]
    fn broken_framing_is_refused() {
        check(b"3\nabc\r\n0\r\n\r\n", Err(400));
        check(b"\r\nabc", Err(400));
        check(b"0x3\r\nabc\r\n0\r\n\r\n", Err(400));
        check(b"-3\r\nabc", Err(400));
        check(b"3\r\nabcd\r\n0\r\n\r\n", Err(400));
        check(b"3;\x01\r\nabc", Err(400));
        check(b"3\r\rabc", Err(400));
        check(b"0\r\n\rX", Err(400));
        check(b"3\r\nabc\r\n0\r\n", Err(0));
    }

    #[test]
    fn sizes_above_the_limit_are_refused_when_announced() {
        check(b"40\r\n", Err(0));
        check(b"41\r\n", Err(413));
        check(b"3\r\nabc\r\n3e\r\n", Err(413));
        check(b"ffffffffffffffffffffff\r\n", Err(413));
    }

    #[test]
    fn lines_and_framing_are_bounded() {
        let feed = |bytes: &[u8]| Decoder::new(64).feed(bytes, &mut Vec::new()).map_err(|r| r.status);
        assert_eq!(feed(&[b"3;".to_vec(), vec![b'x'; 1 << 20]].concat()), Err(400));
        assert_eq!(feed(&[b'0'; 1 << 20]), Err(400));
        assert_eq!(feed(&[b"0\r\n".to_vec(), b"A: b\r\n".repeat(1 << 16)].concat()), Err(400));
        let padded = [b"1;".to_vec(), vec![b'x'; 250], b"\r\na\r\n".to_vec()].concat();
        let mut decoder = Decoder::new(1 << 20);
        let mut out = Vec::new();
        let result = decoder.feed(&padded.repeat(100_000), &mut out).map_err(|r| r.status);
        assert_eq!(result, Err(400));
        assert!(out.len() < 1000);
        let mut out = Vec::new();
        let bytewise = b"1\r\nx\r\n".repeat(100_000);
        assert_eq!(Decoder::new(1 << 20).feed(&bytewise, &mut out).map_err(|r| r.status), Ok(bytewise.len()));
    }
}
