//! What the two programs of the rig share: an HTTP/1.1 answer reader, and the stamp that a streamed chunk carries.
//! It knows just enough HTTP for the programs here, and only loopback addresses.
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

/// A head longer than this is no head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Microseconds since 1970, the clock that both programs share.
pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// `http://127.0.0.1:PORT` as an address; anything but loopback is refused.
pub fn loopback(url: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = url
        .strip_prefix("http://")
        .and_then(|rest| rest.trim_end_matches('/').parse().ok())
        .ok_or_else(|| format!("{url}: want http://127.0.0.1:PORT"))?;
    if address.ip().is_loopback() { Ok(address) } else { Err(format!("{url}: only loopback is allowed")) }
}

/// Where `needle` begins in `hay`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

/// The number that follows `name` in `text`, such as `chunks=50`.
pub fn number_after(text: &[u8], name: &str) -> Option<u64> {
    let from = find(text, name.as_bytes())? + name.len();
    let digits = text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[from..from + digits]).ok()?.parse().ok()
}

/// The value of a header in a head, without regard to case.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// A chunk's text: `t` and sixteen digits of microseconds and `;`.
pub fn stamp(us: u64) -> String {
    format!("t{us:016};")
}

/// The stamp in one line of a stream, if it carries one.
pub fn stamp_in(line: &[u8]) -> Option<u64> {
    line.windows(18).find_map(|window| {
        let digits = &window[1..17];
        let is_stamp = window[0] == b't' && window[17] == b';' && digits.iter().all(u8::is_ascii_digit);
        is_stamp.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
    })
}

enum Part {
    Head,
    Length(usize),
    ChunkSize,
    ChunkData(usize),
    ChunkEnd,
    Trailer,
    Done,
}

/// Reads one answer after the other from a connection, as the bytes come.
pub struct Answer {
    part: Part,
    /// Bytes of a head or a line that is not complete yet.
    partial: Vec<u8>,
    pub status: u16,
}

impl Default for Answer {
    fn default() -> Self {
        Answer { part: Part::Head, partial: Vec::with_capacity(1024), status: 0 }
    }
}

impl Answer {
    pub fn is_done(&self) -> bool {
        matches!(self.part, Part::Done)
    }

    /// Takes bytes of the connection and hands on those of the body.
    pub fn push(&mut self, mut bytes: &[u8], mut body: impl FnMut(&[u8])) -> Result<(), String> {
        while !bytes.is_empty() {
            match self.part {
                Part::Head => bytes = self.head(bytes)?,
                Part::Length(left) => {
                    let take = left.min(bytes.len());
                    body(&bytes[..take]);
                    bytes = &bytes[take..];
                    self.part = if take == left { Part::Done } else { Part::Length(left - take) };
                }
                Part::ChunkData(left) => {
                    let take = left.min(bytes.len());
                    body(&bytes[..take]);
                    bytes = &bytes[take..];
                    self.part = if take == left { Part::ChunkEnd } else { Part::ChunkData(left - take) };
                }
                Part::ChunkSize | Part::ChunkEnd | Part::Trailer => bytes = self.line(bytes)?,
                Part::Done => return Err("more bytes than the answer has".into()),
            }
        }
        Ok(())
    }

    fn head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let had = self.partial.len();
        self.partial.extend_from_slice(bytes);
        let Some(end) = find(&self.partial, b"\r\n\r\n") else {
            let fits = self.partial.len() <= HEAD_BYTES_MAX;
            return if fits { Ok(&[]) } else { Err("the head has no end".into()) };
        };
        let head = String::from_utf8_lossy(&self.partial[..end]).into_owned();
        self.status = head.get(9..12).and_then(|digits| digits.parse().ok()).ok_or("no status line")?;
        self.part = match (header(&head, "content-length"), header(&head, "transfer-encoding")) {
            (_, Some(_)) => Part::ChunkSize,
            (Some("0"), None) => Part::Done,
            (Some(length), None) => Part::Length(length.parse().map_err(|_| "bad content-length")?),
            (None, None) => return Err("an answer without a length".into()),
        };
        self.partial.clear();
        Ok(&bytes[end + 4 - had..])
    }

    fn line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            self.partial.extend_from_slice(bytes);
            return Ok(&[]);
        };
        self.partial.extend_from_slice(&bytes[..end]);
        let line = self.partial.trim_ascii();
        self.part = match self.part {
            Part::ChunkSize => {
                let size =
                    std::str::from_utf8(line).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
                match size.ok_or("bad chunk size")? {
                    0 => Part::Trailer,
                    size => Part::ChunkData(size),
                }
            }
            Part::ChunkEnd => Part::ChunkSize,
            _ if line.is_empty() => Part::Done,
            _ => Part::Trailer,
        };
        self.partial.clear();
        Ok(&bytes[end + 1..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reads_the_same_in_one_piece_and_byte_by_byte() {
        let check = |wire: &[u8], body: &[u8]| {
            for step in [1, 3, wire.len()] {
                let (mut answer, mut got) = (Answer::default(), Vec::new());
                for piece in wire.chunks(step) {
                    answer.push(piece, |bytes| got.extend_from_slice(bytes)).expect("it is well formed");
                }
                assert!(answer.is_done() && answer.status == 200 && got == body);
            }
        };
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc");
        check(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc");
    }

    #[test]
    fn a_stamp_survives_its_way() {
        assert_eq!(
            stamp_in(format!("data: {{\"content\":\"{}\"}}", stamp(1_764_500_000_000_001)).as_bytes()),
            Some(1_764_500_000_000_001)
        );
        assert_eq!(stamp_in(b"data: [DONE]"), None);
    }

    #[test]
    fn only_loopback_is_a_target() {
        assert!(loopback("http://127.0.0.1:80").is_ok() && loopback("http://10.0.0.1:80").is_err());
    }
}
