//! Unpacks gzip as it arrives (RFC 1952), pure: bytes in, bytes out.
//!
//! Some upstreams compress without being asked, event streams included. flate2's own readers may hold back what is
//! already decoded until more input comes, which would stall a stream; this one never does.
use flate2::{Crc, Decompress, FlushDecompress, Status};

/// Longest member header that is accepted: name and comment fields may be of any length by the format.
const HEADER_BYTES_MAX: usize = 4096;
const TRAILER_BYTES: usize = 8;

/// Not gzip, or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Where the decoder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Collecting a member header; any number of members may follow each other.
    Header,
    Deflate,
    Trailer,
    /// Whatever follows the last member is ignored.
    Done,
}

#[derive(Debug)]
pub(super) struct Gunzip {
    state: State,
    inflate: Decompress,
    crc: Crc,
    members: usize,
    /// The bytes of a header or trailer seen so far.
    partial: Vec<u8>,
}

impl Gunzip {
    pub fn new() -> Gunzip {
        Gunzip {
            state: State::Header,
            inflate: Decompress::new(false),
            crc: Crc::new(),
            members: 0,
            partial: Vec::new(),
        }
    }

    /// Decodes from `input` into `out`; gives how many bytes it took and made.
    ///
    /// Output may be left when the input is used up: call again, with no input, until nothing is made.
    pub fn decode(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize), Broken> {
        let (mut taken, mut made) = (0, 0);
        loop {
            let rest = &input[taken..];
            match self.state {
                State::Header if rest.is_empty() => return Ok((taken, made)),
                State::Header => taken += self.header(rest)?,
                State::Deflate => {
                    let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
                    let status = self
                        .inflate
                        .decompress(rest, &mut out[made..], FlushDecompress::None)
                        .map_err(|_| Broken)?;
                    let (used, filled) = (
                        (self.inflate.total_in() - before_in) as usize,
                        (self.inflate.total_out() - before_out) as usize,
                    );
                    self.crc.update(&out[made..made + filled]);
                    taken += used;
                    made += filled;
                    if status == Status::StreamEnd {
                        self.state = State::Trailer;
                    } else if used == 0 || made == out.len() {
                        return Ok((taken, made));
                    }
                }
                State::Trailer if rest.is_empty() => return Ok((taken, made)),
                State::Trailer => taken += self.trailer(rest)?,
                State::Done => return Ok((input.len(), made)),
            }
        }
    }

    /// Whether the input may end here.
    pub fn is_whole(&self) -> bool {
        match self.state {
            State::Header => self.members > 0,
            State::Deflate | State::Trailer => false,
            State::Done => true,
        }
    }

    fn header(&mut self, input: &[u8]) -> Result<usize, Broken> {
        let known = self.partial.len();
        self.partial.extend_from_slice(&input[..input.len().min(HEADER_BYTES_MAX)]);
        match header_length(&self.partial) {
            Ok(Some(length)) => {
                self.partial.clear();
                self.inflate.reset(false);
                self.crc.reset();
                self.state = State::Deflate;
                Ok(length - known)
            }
            Ok(None) if self.partial.len() < HEADER_BYTES_MAX => Ok(self.partial.len() - known),
            // Padding behind a whole member is common enough; nothing at all that is gzip is not.
            _ if self.members > 0 => {
                self.state = State::Done;
                Ok(input.len())
            }
            _ => Err(Broken),
        }
    }

    fn trailer(&mut self, input: &[u8]) -> Result<usize, Broken> {
        let used = input.len().min(TRAILER_BYTES - self.partial.len());
        self.partial.extend_from_slice(&input[..used]);
        if self.partial.len() == TRAILER_BYTES {
            let word = |at: usize| {
                self.partial[at..at + 4].iter().rev().fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
            };
            if word(0) != self.crc.sum() || word(4) != self.crc.amount() {
                return Err(Broken);
            }
            self.partial.clear();
            self.members += 1;
            self.state = State::Header;
        }
        Ok(used)
    }
}

/// The length of the member header at the front of `bytes`; `None` while it is not whole.
fn header_length(bytes: &[u8]) -> Result<Option<usize>, Broken> {
    const FIXED: usize = 10;
    const HEADER_CRC: u8 = 2;
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    const RESERVED: u8 = 0xe0;
    const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
    let seen = bytes.len().min(MAGIC.len());
    if bytes[..seen] != MAGIC[..seen] {
        return Err(Broken);
    }
    if bytes.len() < FIXED {
        return Ok(None);
    }
    let flags = bytes[3];
    if flags & RESERVED != 0 {
        return Err(Broken);
    }
    let mut at = FIXED;
    if flags & EXTRA != 0 {
        let Some(&[low, high]) = bytes.get(at..at + 2) else { return Ok(None) };
        at += 2 + usize::from(u16::from_le_bytes([low, high]));
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            let Some(length) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0))
            else {
                return Ok(None);
            };
            at += length + 1;
        }
    }
    if flags & HEADER_CRC != 0 {
        at += 2;
    }
    Ok((at <= bytes.len()).then_some(at))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::GzEncoder;
    use flate2::{Compression, GzBuilder};

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// Decodes `input` handed over in pieces of `step` bytes, into room for `room` bytes at a time.
    fn unpacked(input: &[u8], step: usize, room: usize) -> Result<(Vec<u8>, bool), Broken> {
        let mut gunzip = Gunzip::new();
        let mut text = Vec::new();
        let mut out = vec![0; room];
        for piece in input.chunks(step) {
            let mut rest = piece;
            loop {
                let (taken, made) = gunzip.decode(rest, &mut out)?;
                text.extend_from_slice(&out[..made]);
                rest = &rest[taken..];
                if rest.is_empty() && made == 0 {
                    break;
                }
            }
        }
        Ok((text, gunzip.is_whole()))
    }

    #[test]
    fn any_split_gives_the_same_text() {
        let text = "data: {\"n\":1}\n\n".repeat(500).into_bytes();
        let mut input = GzBuilder::new()
            .filename("a")
            .comment("b")
            .extra(vec![1, 2, 3])
            .write(Vec::new(), Compression::best());
        input.write_all(&text).unwrap();
        let mut input = input.finish().unwrap();
        input.extend(packed(b"second member"));
        input.extend([0; 40]);
        let whole = [&text[..], b"second member"].concat();
        for step in [1, 2, 7, 4096] {
            for room in [1, 13, 65_536] {
                assert_eq!(unpacked(&input, step, room), Ok((whole.clone(), true)), "{step} {room}");
            }
        }
    }

    #[test]
    fn what_is_flushed_is_decoded_at_once() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"data: first\n\n").unwrap();
        encoder.flush().unwrap();
        assert_eq!(unpacked(encoder.get_ref(), 4096, 4096), Ok((b"data: first\n\n".to_vec(), false)));
    }

    #[test]
    fn err_06_truncated_and_damaged_input_is_told_apart_from_whole() {
        let input = packed(b"{\"error\":\"busy\"}");
        for end in 0..input.len() {
            let whole = unpacked(&input[..end], 4096, 4096).map(|(_, whole)| whole);
            assert_eq!(whole, Ok(false), "{end}");
        }
        let mut wrong_sum = input.clone();
        let at = input.len() - 6;
        wrong_sum[at] ^= 1;
        assert_eq!(unpacked(&wrong_sum, 4096, 4096), Err(Broken));
        assert_eq!(unpacked(b"<html>", 4096, 4096), Err(Broken));
        assert_eq!(unpacked(&[0x1f, 0x8b, 8, 0xff, 0, 0, 0, 0, 0, 0, 0], 4096, 4096), Err(Broken));
        let endless_name = [&[0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 0][..], &[b'n'; 10_000]].concat();
        assert_eq!(unpacked(&endless_name, 100, 4096), Err(Broken));
    }
}
